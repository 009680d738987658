package informer_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	watchcore "github.com/watchcore/watchcore/go"
	"github.com/watchcore/watchcore/go/internal/bounded"
	"github.com/watchcore/watchcore/go/watch"
)

// The informer as a watch, for Until and its family: state, Synced, changes with their old values; what was
// deleted while nobody looked has its last value.
func TestIW03InformerAsAWatch(t *testing.T) {
	s := newSource(t, watchcore.Config{})
	s.apply("/a=1", "/b=1")
	in := s.informer(options{Window: 8})
	w, err := in.Watch(bounded.Context(t))
	check(t, err)
	next := func() string {
		t.Helper()
		e, err := watch.Next(bounded.Context(t), w)
		check(t, err)
		text := fmt.Sprintf("%s@%d", e.Type, e.Revision)
		if e.ObjectRevision > e.Revision {
			text += fmt.Sprint(" of ", e.ObjectRevision)
		}
		if e.Lost > 0 {
			text += fmt.Sprint(" lost ", e.Lost)
		}
		if e.Object != nil {
			text += " " + e.Object.Key + "=" + e.Object.Value
		}
		if e.HasOld {
			text += " old " + e.Old.Value
		}
		return text
	}
	first, second := next(), next()
	want(t, "state", min(first, second)+", "+max(first, second), "ADDED@0 of 1 /a=1, ADDED@0 of 1 /b=1")
	want(t, "synced", next(), "SYNCED@1")
	s.apply("/a=2")
	want(t, "a change", next(), "MODIFIED@2 /a=2 old 1")
	s.apply("-/b", "/c=1")
	want(t, "a deletion", next(), "DELETED@3 /b=1 old 1")
	want(t, "an addition", next(), "ADDED@3 /c=1")
	s.apply("-/c")
	for i := range 300 {
		s.apply(fmt.Sprint("/a=", i+3))
	}
	s.settled(in)
	want(t, "overtaken", next(), "DELETED@3 of 304 lost 301 /c=1 old 1")
	want(t, "then", next(), "MODIFIED@304 /a=302 old 2")
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	_, err = watch.Next(ctx, w)
	wantError(t, "nothing now", err, context.DeadlineExceeded)
	go w.Stop()
	_, err = watch.Next(bounded.Context(t), w)
	wantError(t, "stopped", err, watch.ErrEnded)
	w.Stop()

	// By channel, ended by its context, and behind the last change of a cache that was closed.
	ctx, cancel = context.WithCancel(context.Background())
	w, err = in.Watch(ctx)
	check(t, err)
	c := w.ResultChan()
	want(t, "by channel", bounded.Receive(t, "an event", c).Type, watch.Added)
	cancel()
	bounded.Eventually(t, "closed", func() bool { _, open := <-c; return !open })
	w, err = in.Watch(bounded.Context(t))
	check(t, err)
	s.apply("/z=1")
	s.settled(in)
	s.cache.Close()
	bounded.Receive(t, "the informer's end", in.Done())
	var all []string
	for e := range watch.All(bounded.Context(t), w) {
		all = append(all, string(e.Type))
	}
	slices.Sort(all)
	want(t, "all", strings.Join(all, " "), "ADDED ADDED SYNCED")
	in.Stop()
	_, err = in.Watch(context.Background())
	wantError(t, "of one that has ended", err, watchcore.ErrClosed)
}
