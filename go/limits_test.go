package watchcore_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"watchcore"
	"watchcore/internal/bounded"
)

// MaxRevision is the largest: a larger one is too large at once for who reads or waits, and no
// argument of a writer.
func TestImpossibleRevisions(t *testing.T) {
	for _, revision := range []uint64{watchcore.MaxRevision + 1, math.MaxUint64} {
		cache, writer := embedded(t)
		check(t, writer.Apply(3, watchcore.Put("/a", "1")))
		ctx, at := bounded.Context(t), watchcore.Position{Revision: revision}
		whole := watchcore.KeyValue{Key: []byte("/a"), Value: []byte("1"), CreateRevision: 3, ModRevision: 3, Version: 1}
		late := whole
		late.ModRevision = revision
		for what, call := range map[string]func() error{
			"After": func() error {
				_, err := cache.Subscribe(ctx, watchcore.SubscribeOptions{Start: watchcore.StartAfter(revision)})
				return err
			},
			"AfterPosition": func() error {
				_, err := cache.Subscribe(ctx, watchcore.SubscribeOptions{Start: watchcore.StartAfterPosition(at)})
				return err
			},
			"FromStateAtLeast": func() error {
				_, err := cache.Subscribe(ctx, watchcore.SubscribeOptions{Start: watchcore.StartStateAtLeast(revision)})
				return err
			},
			"Get AtLeast": func() error {
				_, _, err := cache.Get(ctx, "/a", watchcore.ReadOptions{Read: watchcore.ReadAtLeast(revision)})
				return err
			},
			"Get Exact": func() error {
				_, _, err := cache.Get(ctx, "/a", watchcore.ReadOptions{Read: watchcore.ReadExact(revision)})
				return err
			},
			"List AtLeastIn": func() error {
				_, err := cache.List(ctx, watchcore.RangeAll(), watchcore.ListOptions{Read: watchcore.ReadAtLeastPosition(at)})
				return err
			},
			"List Exact": func() error {
				_, err := cache.List(ctx, watchcore.RangeAll(), watchcore.ListOptions{Read: watchcore.ReadExact(revision)})
				return err
			},
			"Count": func() error {
				_, _, err := cache.Count(ctx, watchcore.RangeAll(), watchcore.ReadOptions{Read: watchcore.ReadExactPosition(at)})
				return err
			},
			"Diff":              func() error { _, err := cache.Diff(watchcore.Position{}, at, watchcore.DiffOptions{}); return err },
			"Diff from":         func() error { _, err := cache.Diff(at, at, watchcore.DiffOptions{}); return err },
			"WaitUntil":         func() error { return cache.WaitUntil(ctx, revision) },
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
		for what, call := range map[string]func() error{
			"Apply":    func() error { return writer.Apply(revision, watchcore.Put("/a", "2")) },
			"Progress": func() error { return writer.Progress(revision) },
			"Compact":  func() error { return writer.Compact(revision) },
			"Resync": func() error {
				_, err := writer.Resync(revision, []watchcore.KeyValue{whole}, watchcore.ReasonRequested)
				return err
			},
			"Resync with": func() error {
				_, err := writer.Resync(9, []watchcore.KeyValue{late}, watchcore.ReasonRequested)
				return err
			},
			"StartRevision": func() error {
				_, err := watchcore.Open(ctx, watchcore.EtcdConfig{Endpoints: []string{"http://127.0.0.1:1"}, StartRevision: revision}, watchcore.Config{})
				return err
			},
		} {
			wantError(t, fmt.Sprint(what, " ", revision), call(), watchcore.ErrInvalidArgument)
		}
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
		t.Fatalf("figures that cannot be: %+v", stats)
	}
}
