// Package clocks sets timers for points of time on any clock.
package clocks

import (
	"context"
	"time"
)

// Clock has the methods of watch.Clock.
type Clock interface {
	Now() time.Time
	Timer(d time.Duration) (fired <-chan time.Time, stop func())
}

// TimerAt fires at a point of time, or at once if it has passed. A watch.DeadlineClock fires
// exactly then. Another clock that advances between Now and Timer fires late by that advance.
func TimerAt(clock Clock, at time.Time) (fired <-chan time.Time, stop func()) {
	if exact, ok := clock.(interface {
		TimerAt(at time.Time) (<-chan time.Time, func())
	}); ok {
		return exact.TimerAt(at)
	}
	return clock.Timer(at.Sub(clock.Now()))
}

// SleepUntil waits for a point of time. SleepUntil returns false if the context was done first.
func SleepUntil(ctx context.Context, clock Clock, at time.Time) bool {
	if !at.After(clock.Now()) {
		return ctx.Err() == nil
	}
	fired, stop := TimerAt(clock, at)
	defer stop()
	select {
	case <-fired:
		return true
	case <-ctx.Done():
		return false
	}
}
