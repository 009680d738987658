package watchcore_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	watchcore "github.com/watchcore/watchcore/go"
	"github.com/watchcore/watchcore/go/internal/bounded"
)

func listed(key, value string) watchcore.KeyValue {
	return watchcore.KeyValue{Key: []byte(key), Value: []byte(value), CreateRevision: 2, ModRevision: 5, Version: 3}
}

func TestLoadingInPieces(t *testing.T) {
	cache, writer := embedded(t, watchcore.Config{ExpectLoad: true})
	loading, err := writer.BeginLoad(7)
	check(t, err)
	first := []watchcore.KeyValue{listed("/c", "3"), listed("/a", "")}
	check(t, loading.Add(first...))
	first[0].Value[0] = 'x' // it was copied
	check(t, loading.Add())
	check(t, loading.Add(listed("/b", "2")))
	want(t, "state", cache.Status().State, watchcore.StateNotReady)
	check(t, loading.Finish())
	check(t, cache.WaitReady(bounded.Context(t)))
	want(t, "state of the cache", drain(t, subscribe(t, cache)), lines(
		"5 ADDED /a <- initial", "5 ADDED /b 2<- initial", "5 ADDED /c 3<- initial", "7 BOOKMARK end"))
	wantError(t, "add to a finished loading", loading.Add(listed("/d", "")), watchcore.ErrClosed)
	wantError(t, "a second end", loading.Finish(), watchcore.ErrClosed)
	_, err = writer.BeginLoad(8)
	wantError(t, "a second listing", err, watchcore.ErrOutOfOrder)
	loading.Close()
}

func TestRefusedLoading(t *testing.T) {
	cache, writer := embedded(t, watchcore.Config{ExpectLoad: true, Prefix: "/"})
	dropped, err := writer.BeginLoad(6)
	check(t, err)
	check(t, dropped.Add(listed("/dropped", "")))
	dropped.Close()
	dropped.Close()
	wantError(t, "add to a closed loading", dropped.Add(), watchcore.ErrClosed)

	twice, err := writer.BeginLoad(6)
	check(t, err)
	check(t, twice.Add(listed("/a", "1"), listed("/a", "2")))
	wantError(t, "a key twice", twice.Finish(), watchcore.ErrInvalidArgument)
	wantError(t, "the end again", twice.Finish(), watchcore.ErrClosed)

	loading, err := writer.BeginLoad(6)
	check(t, err)
	err = loading.Add(listed("/a", "1"), listed("outside", ""), listed("/b", "1"))
	wantError(t, "a key outside", err, watchcore.ErrInvalidArgument)
	want(t, "the error names it", strings.Contains(err.Error(), "outside"), true)
	writer.Close()
	wantError(t, "add by a closed writer", loading.Add(), watchcore.ErrClosed)
	wantError(t, "the end by a closed writer", loading.Finish(), watchcore.ErrClosed)
	loading.Close()
	want(t, "state", cache.Status().State, watchcore.StateNotReady)
	want(t, "objects", cache.Status().Objects, 0)
}

// One at a time, with the writer: each key comes once, or the call says ErrBusy.
func TestLoadingOfManyGoroutines(t *testing.T) {
	cache, writer := embedded(t, watchcore.Config{ExpectLoad: true})
	loading, err := writer.BeginLoad(7)
	check(t, err)
	var added atomic.Uint64
	var all sync.WaitGroup
	for lane := range 3 {
		all.Go(func() {
			for i := range 500 {
				err := loading.Add(listed(fmt.Sprintf("/%d/%d", lane, i), "x"))
				switch {
				case err == nil:
					added.Add(1)
				case !errors.Is(err, watchcore.ErrBusy):
					t.Errorf("add: %v", err)
				}
			}
		})
	}
	all.Wait()
	check(t, loading.Finish())
	want(t, "objects", cache.Status().Objects, added.Load())
}

// What one that nobody can reach any more had copied goes back to its cache.
func TestLoadingCleanup(t *testing.T) {
	cache, writer := embedded(t, watchcore.Config{ExpectLoad: true})
	var before uint64
	func() {
		loading, err := writer.BeginLoad(7)
		check(t, err)
		for i := range 1000 {
			check(t, loading.Add(listed(fmt.Sprintf("/%d", i), strings.Repeat("x", 100))))
		}
		before = cache.Stats().IndexBytes
		runtime.KeepAlive(loading)
	}()
	collected(t, "a lost loading is closed", func() bool { return cache.Stats().IndexBytes >= before+100_000 })
}
