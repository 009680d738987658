package watchcore_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	watchcore "github.com/watchcore/watchcore/go"
	"github.com/watchcore/watchcore/go/internal/bounded"
)

// MaxRevision is the largest: a larger one is too large at once for who reads or waits, and no
// argument of a writer.
func TestImpossibleRevisions(t *testing.T) {
	for _, revision := range []uint64{watchcore.MaxRevision + 1, math.MaxUint64} {
		cache, writer := embedded(t)
		check(t, writer.Apply(3, watchcore.Put("/a", "1")))
		ctx, at := bounded.Context(t), watchcore.Position{Revision: revision}
		for what, call := range map[string]func() error{
			"AfterPosition": func() error {
				_, err := cache.Subscribe(ctx, watchcore.SubscribeOptions{Start: watchcore.StartAfterPosition(at)})
				return err
			},
			"List AtLeastIn": func() error {
				_, err := cache.List(ctx, watchcore.RangeAll(), watchcore.ListOptions{Read: watchcore.ReadAtLeastPosition(at)})
				return err
			},
			"Count": func() error {
				_, _, err := cache.Count(ctx, watchcore.RangeAll(), watchcore.ReadOptions{Read: watchcore.ReadExactPosition(at)})
				return err
			},
			"WaitUntilPosition": func() error { return cache.WaitUntilPosition(ctx, at) },
		} {
			err := call()
			wantError(t, fmt.Sprint(what, " ", revision), err, watchcore.ErrFutureRevision)
			var taken *watchcore.Error
			errors.As(err, &taken)
			want(t, what+" asked", taken.Asked, revision)
			want(t, what+" current", taken.Current, 3)
			if words := fmt.Sprintf("Too large resource version: %d, current: 3", revision); !strings.Contains(err.Error(), words) {
				t.Errorf("%s: %v", what, err)
			}
		}
		_, err := watchcore.Open(ctx, watchcore.EtcdConfig{Endpoints: []string{"http://127.0.0.1:1"}, StartRevision: revision}, watchcore.Config{})
		wantError(t, fmt.Sprint("StartRevision ", revision), err, watchcore.ErrInvalidArgument)
		want(t, "revision", cache.Position().Revision, 3)
	}
}

// A window that is sized by age has an age, and room for what it keeps.
func TestKeep(t *testing.T) {
	for _, config := range []watchcore.Config{
		{Capacity: 1024, KeepEvents: -1, KeepAge: time.Second}, {Capacity: 1024, KeepEvents: 5},
		{Capacity: 1024, KeepEvents: 5, KeepAge: -time.Second}, {Capacity: 1024, KeepEvents: 1_000_000, KeepAge: time.Second},
	} {
		_, err := watchcore.New(config)
		wantError(t, "new", err, watchcore.ErrInvalidArgument)
	}
	cache, writer := embedded(t, watchcore.Config{Capacity: 4096, KeepEvents: 128, KeepAge: time.Hour})
	churn(t, writer, 0, 3000)
	want(t, "what is younger stays", cache.Status().Oldest, 1)
	if stats := cache.Stats(); stats.WindowBytes == 0 || stats.WindowAge >= time.Hour || cache.Status().WindowAge >= time.Hour {
		t.Fatalf("impossible statistics: %+v", stats)
	}
}
