package watch_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/watchcore/watchcore/go/watch"
)

// coded is an error of another package that says its code.
type coded struct{ code int }

func (c coded) Error() string             { return fmt.Sprint("code ", c.code) }
func (c coded) HTTPStatus() int           { return c.code }
func (c coded) RetryAfter() time.Duration { return time.Duration(c.code) * time.Millisecond }

func TestStatusClasses(t *testing.T) {
	classes := []struct {
		name string
		is   func(error) bool
		of   map[int]bool
	}{
		{"IsGone", watch.IsGone, map[int]bool{410: true}},
		{"IsRefused", watch.IsRefused, map[int]bool{401: true, 403: true}},
		{"IsTooManyRequests", watch.IsTooManyRequests, map[int]bool{429: true}},
		{"IsTimeout", watch.IsTimeout, map[int]bool{408: true, 504: true}},
	}
	for code := 400; code < 600; code++ {
		for _, err := range []error{&watch.Status{Code: code}, coded{code}, fmt.Errorf("wrapped: %w", coded{code})} {
			for _, class := range classes {
				want(t, fmt.Sprintf("%s of %v", class.name, err), class.is(err), class.of[code])
			}
		}
		want(t, "after", watch.RetryAfter(fmt.Errorf("wrapped: %w", coded{code})), time.Duration(code)*time.Millisecond)
	}
	for _, err := range []error{nil, errors.New("no code"), (*watch.Status)(nil)} {
		for _, class := range classes {
			want(t, fmt.Sprintf("%s of %v", class.name, err), class.is(err), false)
		}
		want(t, "after", watch.RetryAfter(err), 0)
	}
}

func TestInterruptedClasses(t *testing.T) {
	for _, err := range []error{context.Canceled, context.DeadlineExceeded} {
		want(t, err.Error(), watch.Interrupted(fmt.Errorf("wrapped: %w", err)), true)
	}
	for _, err := range []error{nil, watch.ErrWatchClosed, watch.ErrEnded} {
		want(t, fmt.Sprint(err), watch.Interrupted(err), false)
	}
}
