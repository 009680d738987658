package workqueue_test

import "github.com/watchcore/watchcore/go/internal/handclock"

func newClock() *handclock.Clock { return handclock.New() }
