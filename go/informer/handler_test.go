package informer_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	watchcore "github.com/watchcore/watchcore/go"
	"github.com/watchcore/watchcore/go/informer"
	"github.com/watchcore/watchcore/go/internal/bounded"
	"github.com/watchcore/watchcore/go/internal/handclock"
)

// Handlers that come while the informer starts and the cache is written to see all of it:
// the state first, then each change once.
func TestSI02HandlersAddedDuringStartSeeAll(t *testing.T) {
	for range 20 {
		s := newSource(t, watchcore.Config{})
		s.apply("/a=0", "/b=0")
		in := s.informer(options{})
		var handlers sync.WaitGroup
		recorders := make([]*recorder, 8)
		registrations := make([]*informer.Registration, len(recorders))
		for i := range recorders {
			recorders[i] = newRecorder()
			handlers.Go(func() { registrations[i] = add(t, in, recorders[i], informer.HandlerOptions{}) })
		}
		for i := range 50 {
			s.apply(fmt.Sprint("/a=", i+1))
		}
		s.apply("-/b", "/c=1")
		handlers.Wait()
		s.settled(in, registrations...)
		for _, r := range recorders {
			want(t, "state", fmt.Sprint(r.state), "map[/a:50 /c:1]")
			seen := map[string]int{}
			for _, line := range r.lines {
				seen[line]++
			}
			for line, times := range seen {
				want(t, line, times, 1)
			}
		}
	}
}

// hurry is a clock of which so many timers have passed when they are set.
type hurry struct {
	*handclock.Clock
	left atomic.Int32
}

func (h *hurry) Timer(d time.Duration) (<-chan time.Time, func()) { return h.TimerAt(h.Now().Add(d)) }

func (h *hurry) TimerAt(at time.Time) (<-chan time.Time, func()) {
	if h.left.Add(-1) < 0 {
		return h.Clock.TimerAt(at)
	}
	return h.Clock.Timer(0)
}

// Also where a resync is due again as soon as one has ended, a change that is there comes before it.
func TestSI01ResyncThatIsAlwaysDueHoldsUpNoChange(t *testing.T) {
	clock := &hurry{Clock: newClock()}
	s := newSource(t, watchcore.Config{})
	s.apply("/a=1")
	in := s.informer(options{Clock: clock})
	r, quick := newRecorder(), newRecorder()
	other := add(t, in, quick, informer.HandlerOptions{})
	reg := add(t, in, r, informer.HandlerOptions{ResyncPeriod: time.Second})
	s.settled(in, reg, other)
	r.lines = nil
	var once sync.Once
	r.before = func(string) {
		once.Do(func() {
			clock.left.Store(10)
			for _, change := range []string{"/a=2", "/a=3"} {
				s.apply(change)
			}
			bounded.Eventually(t, "the journal has them", func() bool { return strings.Contains(quick.text(), "~/a=2>3") })
			clock.Advance(time.Second)
		})
	}
	clock.Advance(time.Second)
	bounded.Eventually(t, "the changes", func() bool { return strings.Contains(r.text(), "~/a=2>3") })
	if text := r.text(); !strings.HasPrefix(text, "=/a=1 ~/a=1>2 =/a=2 ~/a=2>3") {
		t.Fatal(text)
	}
}

// A panic is caught, counted and reported; the next change comes; no other handler is harmed.
// The same for one that ends its goroutine.
func TestSI07PanicsAreIsolated(t *testing.T) {
	s := newSource(t, watchcore.Config{})
	s.apply("/a=1")
	var reported errorList
	in := s.informer(options{OnError: reported.add})
	bad, worse, good := newRecorder(), newRecorder(), newRecorder()
	bad.before = func(line string) {
		if strings.HasSuffix(line, "1") {
			panic("a bad handler")
		}
	}
	worse.before = func(line string) {
		if strings.HasSuffix(line, "1") {
			runtime.Goexit()
		}
	}
	rs := []*informer.Registration{
		add(t, in, bad, informer.HandlerOptions{Name: "bad"}),
		add(t, in, worse, informer.HandlerOptions{Name: "worse"}),
		add(t, in, good, informer.HandlerOptions{Name: "good"}),
	}
	s.settled(in, rs...)
	s.apply("/b=1")
	s.apply("/b=2")
	s.settled(in, rs...)
	want(t, "bad", bad.text(), "~/b=1>2")
	want(t, "worse", worse.text(), "~/b=1>2")
	want(t, "good", good.text(), "*/a=1 +/b=1 ~/b=1>2")
	for i, expected := range []string{"bad 3 2 true", "worse 3 2 true", "good 3 0 true"} {
		status := rs[i].Status()
		want(t, "status", fmt.Sprint(status.Name, " ", status.Handled, " ", status.Panics, " ", status.Synced), expected)
	}
	want(t, "reports", len(reported.all()), 4)
	var e *informer.PanicError
	for _, err := range reported.all() {
		if !errors.As(err, &e) || !errors.Is(err, watchcore.ErrPanic) || e.Handler == "bad" && !strings.Contains(string(e.Stack), "handler_test.go") {
			t.Fatalf("%v\n%s", err, e.Stack)
		}
	}
	check(t, rs[1].RemoveAndWait(bounded.Context(t)))
}

// errorList collects errors from any goroutine.
type errorList struct {
	mu   sync.Mutex
	list []error
}

func (e *errorList) add(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.list = append(e.list, err)
}

func (e *errorList) all() []error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.list
}

// Without a server the reason is the source's error.
func TestFaultSyncWithoutAServerSaysWhy(t *testing.T) {
	cache, err := watchcore.New(watchcore.Config{Prefix: "/pods/", ExpectLoad: true})
	check(t, err)
	t.Cleanup(func() { cache.Close() })
	check(t, cache.StartFeeder(watchcore.EtcdConfig{Endpoints: []string{"http://127.0.0.1:1"}}))
	in, err := informer.New(cache, decode, options{})
	check(t, err)
	t.Cleanup(in.Stop)
	bounded.Eventually(t, "the source's error", func() bool { return cache.Status().SourceError != nil })
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	err = in.WaitSynced(ctx)
	contains(t, err.Error(), "its source is not followed", "127.0.0.1:1")
}

// Who waits for a revision hears of the informer's end, before and during the wait, while the cache lives on.
func TestRQ03WaitForARevisionEndsWithTheInformer(t *testing.T) {
	s := newSource(t, watchcore.Config{})
	s.apply("/a=1")
	in := s.informer(options{})
	check(t, in.WaitSynced(bounded.Context(t)))
	waits := make(chan error, 1)
	go func() { waits <- in.WaitUntil(context.Background(), 2) }()
	in.Stop()
	wantError(t, "during the wait", bounded.Receive(t, "the wait's end", waits), watchcore.ErrClosed)
	bounded.Receive(t, "the informer's end", in.Done())
	go func() { waits <- in.WaitUntil(context.Background(), 2) }()
	err := bounded.Receive(t, "the wait's end", waits)
	wantError(t, "behind it", err, watchcore.ErrClosed)
	contains(t, err.Error(), "waits for revision 2 and is at 1", "it was stopped")
	check(t, in.WaitUntil(context.Background(), 1))
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(errRefused)
	wantError(t, "the context's cause", s.informer(options{}).WaitUntil(ctx, 2), errRefused)
	s.apply("/a=2")
	_, err = informer.SameRevision(bounded.Context(t), in)
	wantError(t, "several informers", err, watchcore.ErrClosed)
}

// One batch with a value that cannot be decoded, the same key again and again, and keys of the
// initial state: the broken one costs nothing but itself.
func TestRQ04BrokenValuesInsideABatch(t *testing.T) {
	s := newSource(t, watchcore.Config{})
	s.apply("/a=1", "/b=bad", "/c=panic", "/d=exit", "/e=1")
	var reported errorList
	in := s.informer(options{OnError: reported.add})
	r := newRecorder()
	reg := add(t, in, r, informer.HandlerOptions{})
	s.settled(in, reg)
	want(t, "initial", r.sorted(2), "*/a=1 */e=1")
	r.lines = nil
	s.apply("/a=2", "/b=1", "/c=exit", "/e=bad")
	s.apply("/a=exit")
	s.apply("/a=3", "-/e", "-/d")
	s.apply("/e=bad")
	s.apply("-/e")
	s.settled(in, reg)
	want(t, "lines", r.text(), "~/a=1>2 +/b=1 ~/a=2>3 -/e=1")
	status := in.Status()
	want(t, "decode failures", status.DecodeFailures, 7)
	var e *informer.DecodeError
	if err := reported.all()[0]; !errors.As(err, &e) || e.Key != "/b" || !errors.Is(err, errRefused) {
		t.Fatal(err)
	}
	for _, err := range reported.all()[1:3] {
		wantError(t, "a panic", err, watchcore.ErrPanic)
	}
	want(t, "the last one", fmt.Sprint(status.LastError), fmt.Sprint(reported.all()[6]))
}

// A value is decoded once, whatever the number of handlers, and all have the same object.
func TestSI04EachValueIsDecodedOnce(t *testing.T) {
	s := newSource(t, watchcore.Config{})
	s.apply("/a=1", "/b=1")
	in := s.informer(options{})
	var mu sync.Mutex
	objects := map[string]map[*informer.Object[string]]bool{}
	var rs []*informer.Registration
	for range 10 {
		rs = append(rs, add(t, in, informer.HandlerFuncs[string]{Add: func(o *informer.Object[string], _ bool) {
			mu.Lock()
			defer mu.Unlock()
			if objects[o.Key] == nil {
				objects[o.Key] = map[*informer.Object[string]]bool{}
			}
			objects[o.Key][o] = true
		}}, informer.HandlerOptions{}))
	}
	s.apply("/c=1")
	s.settled(in, rs...)
	want(t, "decoded", in.Status().Decoded, 3)
	for key, all := range objects {
		want(t, key, len(all), 1)
	}
	o, _ := in.Lister().Get("/c")
	want(t, "the lister's", objects["/c"][o], true)
}

// What the error handler does harms nothing, and options that make no sense are refused.
func TestSI04ErrorHandlerHarmsNothing(t *testing.T) {
	s := newSource(t, watchcore.Config{})
	s.apply("/a=bad", "/b=1")
	in := s.informer(options{OnError: func(err error) {
		if errors.Is(err, watchcore.ErrPanic) {
			runtime.Goexit()
		}
		panic("a bad error handler")
	}})
	r := newRecorder()
	r.before = func(line string) {
		if strings.Contains(line, "/p") {
			panic("a bad handler")
		}
	}
	reg := add(t, in, r, informer.HandlerOptions{})
	s.settled(in, reg)
	s.apply("/p=1", "/q=panic")
	s.apply("/b=2")
	s.settled(in, reg)
	want(t, "lines", r.text(), "*/b=1 ~/b=1>2")
	for what, o := range map[string]options{
		"window":    {Window: -1},
		"segment":   {NamespaceSegment: -1},
		"selector":  {LabelSelector: "a in"},
		"no labels": {LabelSelector: "a=b"},
		"index":     {Indexers: informer.Indexers[string]{"x": nil}},
	} {
		if in, err := informer.New(s.cache, decode, o); err == nil {
			in.Stop()
			t.Fatalf("%s: no error", what)
		}
	}
	_, err := in.AddHandler(r, informer.HandlerOptions{ResyncPeriod: -1})
	wantError(t, "a period", err, watchcore.ErrInvalidArgument)
	_, err = in.AddHandler(r, informer.HandlerOptions{OnLag: 7})
	wantError(t, "a policy", err, watchcore.ErrInvalidArgument)
	_, err = in.AddHandler(nil, informer.HandlerOptions{})
	wantError(t, "no handler", err, watchcore.ErrInvalidArgument)
	_, err = informer.New[string](nil, decode, options{})
	wantError(t, "no cache", err, watchcore.ErrInvalidArgument)
}
