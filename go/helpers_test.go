package watchcore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	watchcore "github.com/watchcore/watchcore/go"
)

// one is what was given, or the zero value.
func one[T any](given []T) (value T) {
	if len(given) > 1 {
		panic("more than one")
	}
	for _, value = range given {
	}
	return value
}

func embedded(t testing.TB, config ...watchcore.Config) (*watchcore.Cache, *watchcore.Writer) {
	t.Helper()
	cache, err := watchcore.New(one(config))
	check(t, err)
	t.Cleanup(func() { cache.Close() })
	writer, err := cache.Writer()
	check(t, err)
	t.Cleanup(func() { writer.Close() })
	return cache, writer
}

func subscribe(t testing.TB, cache *watchcore.Cache, options ...watchcore.SubscribeOptions) *watchcore.Subscription {
	t.Helper()
	sub, err := cache.Subscribe(context.Background(), one(options))
	check(t, err)
	t.Cleanup(func() { sub.Close() })
	return sub
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func want[T comparable](t testing.TB, what string, got, expected T) {
	t.Helper()
	if got != expected {
		t.Fatalf("%s: got %v, want %v", what, got, expected)
	}
}

func wantError(t testing.TB, what string, err, expected error) {
	t.Helper()
	if !errors.Is(err, expected) {
		t.Fatalf("%s: got error %v, want %v", what, err, expected)
	}
}

func bytesText(bytes []byte) string {
	if bytes == nil {
		return "-"
	}
	return string(bytes)
}

// text is "7 MODIFIED /a new<old", with "-" for nil.
func text(e watchcore.Event) string {
	var flags string
	switch {
	case e.EndsInitialState():
		flags = " end"
	case e.InitialState():
		flags = " initial"
	case e.Synthetic():
		flags = " synthetic"
	}
	switch e.Type {
	case watchcore.EventBookmark:
		return fmt.Sprintf("%d BOOKMARK%s", e.Revision, flags)
	case watchcore.EventResync:
		return fmt.Sprintf("%d RESYNC %+v", e.Revision, e.Resync())
	}
	return fmt.Sprintf("%d %v %s %s<%s%s", e.Revision, e.Type, e.Key(), bytesText(e.Value()), bytesText(e.PrevValue()), flags)
}

// drain is what polls give until they give nothing.
func drain(t testing.TB, sub *watchcore.Subscription) string {
	t.Helper()
	var lines []string
	for {
		batch, err := sub.Poll(0)
		check(t, err)
		if batch == nil {
			return strings.Join(lines, "\n")
		}
		for e := range batch.Events() {
			lines = append(lines, text(e))
		}
		batch.Release()
	}
}

func lines(lines ...string) string {
	return strings.Join(lines, "\n")
}
