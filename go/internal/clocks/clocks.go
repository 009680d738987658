// Package clocks sets timers for points of time on any clock.
package clocks

import (
	"context"
	"time"
)

// Clock is a watch.Clock.
type Clock interface {
	Now() time.Time
	Timer(d time.Duration) (fired <-chan time.Time, stop func())
}

// TimerAt fires at a point of time, at once where it has passed. A clock that is a watch.DeadlineClock fires
// exactly then; another one that is moved between the look and the timer is late by as much.
func TimerAt(clock Clock, at time.Time) (fired <-chan time.Time, stop func()) {
	if exact, ok := clock.(interface {
		TimerAt(at time.Time) (<-chan time.Time, func())
	}); ok {
		return exact.TimerAt(at)
	}
	return clock.Timer(at.Sub(clock.Now()))
}

// SleepUntil waits for a point of time; false where the context ended it.
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
