//go:build cgo

package watchcore

import (
	"errors"
	"slices"
	"testing"
	"time"
)

// A revision that has come may be gone when the read is made, by a reset to a lower one. The read waits again, and
// gives up only where its time is over.
func TestReadWaitsAgainAfterAReset(t *testing.T) {
	future := newError(ErrFutureRevision, "a revision that is still to come")
	timeout := newError(ErrTimeout, "nothing came")
	broken := newError(ErrUnavailable, "nothing works")
	for name, row := range map[string]struct {
		limit        time.Duration
		waits, calls []error
		expected     error
	}{
		"it is there":                       {time.Hour, []error{nil}, []error{nil}, nil},
		"gone once, without a limit":        {-1, []error{nil, nil}, []error{future, nil}, nil},
		"gone twice":                        {time.Hour, []error{nil, nil, nil}, []error{future, future, nil}, nil},
		"gone, and the time is over":        {time.Hour, []error{nil, timeout}, []error{future, future}, future},
		"the time is over, and it is there": {time.Hour, []error{timeout}, []error{nil}, nil},
		"gone, and the wait fails":          {time.Hour, []error{nil, broken}, []error{future}, broken},
		"another error":                     {-1, []error{nil}, []error{broken}, broken},
	} {
		t.Run(name, func(t *testing.T) {
			var left []time.Duration
			next := func(answers *[]error) (answer error) {
				answer, *answers = (*answers)[0], (*answers)[1:]
				return answer
			}
			err := settle(row.limit, func(of time.Duration) error {
				left = append(left, of)
				return next(&row.waits)
			}, func() error { return next(&row.calls) })
			if !errors.Is(err, row.expected) || len(row.waits)+len(row.calls) > 0 {
				t.Fatalf("the answer is %v, and %d waits and %d calls are left", err, len(row.waits), len(row.calls))
			}
			if row.limit >= 0 && (left[0] != row.limit || !slices.IsSortedFunc(left, func(a, b time.Duration) int { return int(b - a) })) {
				t.Errorf("the waits were for %v", left)
			}
			if row.limit < 0 && slices.Max(left) >= 0 {
				t.Errorf("the waits were for %v", left)
			}
		})
	}
}
