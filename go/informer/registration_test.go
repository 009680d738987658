package informer_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	watchcore "github.com/watchcore/watchcore/go"
	"github.com/watchcore/watchcore/go/informer"
	"github.com/watchcore/watchcore/go/internal/bounded"
)

// Ten thousand handlers, and each is given everything; all are gone afterwards.
func TestSI05TenThousandHandlers(t *testing.T) {
	s := newSource(t, watchcore.Config{})
	s.apply("/a=0", "/b=0", "/c=0")
	in := s.informer(options{})
	check(t, in.WaitSynced(bounded.Context(t)))
	// The informer's own sleep takes a goroutine for its descriptor, which may begin after this.
	before := runtime.NumGoroutine() + 1
	const handlers, changes = 10_000, 20
	var given atomic.Uint64
	var all []*informer.Registration
	for range handlers {
		all = append(all, add(t, in, informer.HandlerFuncs[string]{
			Add: func(*informer.Object[string], bool) { given.Add(1) }, Update: func(_, _ *informer.Object[string]) { given.Add(1) },
		}, informer.HandlerOptions{}))
	}
	for _, r := range all {
		check(t, r.WaitSynced(bounded.Context(t)))
	}
	for i := range changes {
		s.apply(fmt.Sprint("/a=", i))
	}
	bounded.Eventually(t, "all are given all", func() bool { return given.Load() == handlers*(3+changes) })
	for _, r := range all {
		r.Remove()
	}
	for _, r := range all {
		bounded.Receive(t, "its end", r.Done())
	}
	want(t, "handlers", len(in.Status().Handlers), 0)
	bounded.Eventually(t, "no goroutine is left", func() bool { return runtime.NumGoroutine() <= before })
}

// Handlers come and go from inside callbacks, also the handler itself.
func TestSI05HandlersComeAndGoInsideCallbacks(t *testing.T) {
	s := newSource(t, watchcore.Config{})
	s.apply("/a=1")
	in := s.informer(options{})
	child := newRecorder()
	made := make(chan *informer.Registration, 1)
	var self *informer.Registration
	known := make(chan struct{})
	calls := 0
	self = add(t, in, informer.HandlerFuncs[string]{Add: func(*informer.Object[string], bool) {
		<-known
		calls++
		r, err := in.AddHandler(child, informer.HandlerOptions{})
		if err == nil {
			made <- r
		}
		self.Remove()
	}}, informer.HandlerOptions{})
	s.apply("/b=1")
	close(known)
	inner := bounded.Receive(t, "the inner one", made)
	bounded.Receive(t, "the outer one's end", self.Done())
	s.settled(in, inner)
	want(t, "calls of the outer one", calls, 1)
	want(t, "the inner one has", fmt.Sprint(child.state), "map[/a:1 /b:1]")
}

// Removal against a stream of changes: once RemoveAndWait has returned nothing is called, ever.
func TestSI06NoCallbackAfterRemoveAndWait(t *testing.T) {
	s := newSource(t, watchcore.Config{})
	s.apply("/a=0")
	in := s.informer(options{})
	stop := make(chan struct{})
	var writing sync.WaitGroup
	writing.Go(func() {
		for i := 0; !isClosed(stop); i++ {
			s.apply(fmt.Sprint("/a=", i))
		}
	})
	for range 200 {
		var removed bool // the race detector watches it, too
		reg := add(t, in, informer.HandlerFuncs[string]{Update: func(_, _ *informer.Object[string]) {
			if removed {
				t.Error("a callback after its removal")
			}
		}}, informer.HandlerOptions{})
		for range 10 {
			runtime.Gosched()
		}
		check(t, reg.RemoveAndWait(bounded.Context(t)))
		removed = true
	}
	close(stop)
	writing.Wait()
}

// Also without waiting: a callback that runs after Remove has returned had begun before.
func TestSI06NoCallbackBeginsAfterRemove(t *testing.T) {
	s := newSource(t, watchcore.Config{})
	var list []string
	for i := range 3000 {
		list = append(list, fmt.Sprint("/", i, "=x"))
	}
	s.apply(list...)
	in := s.informer(options{})
	check(t, in.WaitSynced(bounded.Context(t)))
	for range 1000 {
		var self *informer.Registration
		var latest time.Time
		known := make(chan struct{})
		self = add(t, in, informer.HandlerFuncs[string]{Add: func(*informer.Object[string], bool) {
			<-known
			latest = self.Status().HandlingSince
		}}, informer.HandlerOptions{})
		close(known)
		bounded.Eventually(t, "it runs", func() bool { return self.Status().Handled > 0 })
		self.Remove()
		removed := time.Now()
		check(t, self.RemoveAndWait(bounded.Context(t)))
		if latest.After(removed) {
			t.Fatalf("a callback began %v after the removal", latest.Sub(removed))
		}
	}
}

// From inside its own callback a handler that waits for its removal would wait for itself: it
// is refused, and the handler lives on. The same holds for the informer's end.
func TestFaultRemovalInsideItsOwnCallbackIsRefused(t *testing.T) {
	s := newSource(t, watchcore.Config{})
	s.apply("/a=1")
	in := s.informer(options{})
	errs := make(chan error, 2)
	known := make(chan struct{})
	var self *informer.Registration
	self = add(t, in, informer.HandlerFuncs[string]{Add: func(*informer.Object[string], bool) {
		<-known
		errs <- self.RemoveAndWait(context.Background())
		errs <- in.StopAndWait(context.Background())
	}}, informer.HandlerOptions{Name: "self"})
	close(known)
	err := bounded.Receive(t, "its answer", errs)
	wantError(t, "inside", err, watchcore.ErrBusy)
	contains(t, err.Error(), "self", "Call Remove there")
	wantError(t, "inside", bounded.Receive(t, "its answer", errs), watchcore.ErrBusy)
	s.apply("/b=1")
	s.settled(in, self)
	want(t, "it lives on", self.Status().Handled, 2)
	bounded.Receive(t, "its answers", errs)
	bounded.Receive(t, "its answers", errs)
	check(t, self.RemoveAndWait(bounded.Context(t)))
}

// Also inside an index's function, on whichever goroutine that runs: of one that is added, and of an older state that a
// reader asks by it.
func TestFaultStopInsideAnIndexIsRefused(t *testing.T) {
	s := newSource(t, watchcore.Config{})
	s.apply("/a=1", "/gone=1")
	in := s.informer(options{})
	check(t, in.WaitSynced(bounded.Context(t)))
	before := in.Current()
	s.apply("-/gone")
	s.settled(in)
	var inside []error
	check(t, in.AddIndexers(informer.Indexers[string]{"x": func(o *informer.Object[string]) []string {
		inside = append(inside, in.StopAndWait(bounded.Context(t)))
		return []string{"x"}
	}}))
	_, err := before.ByIndex("x", "x")
	check(t, err)
	want(t, "calls: of /a, and of /gone in the older state", len(inside), 2)
	for _, err := range inside {
		wantError(t, "inside", err, watchcore.ErrBusy)
	}
	s.apply("/b=1")
	s.settled(in)
	want(t, "it lives on", values(in.Lister().List()), "/a=1 /b=1")
	want(t, "on the source's goroutine", len(inside), 3)
}
