package informer_test

import "watchcore/internal/handclock"

func newClock() *handclock.Clock { return handclock.New() }
