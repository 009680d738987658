package informer_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	watchcore "github.com/watchcore/watchcore/go"
	"github.com/watchcore/watchcore/go/informer"
	"github.com/watchcore/watchcore/go/internal/bounded"
	"github.com/watchcore/watchcore/go/internal/handclock"
	"github.com/watchcore/watchcore/go/watch"
)

// server answers lists and watches from a script, and writes down what it was asked.
type server struct {
	t       *testing.T
	mu      sync.Mutex
	asked   []string
	lists   []func(watch.ListRequest) (watch.ListPage[string], error) // the last one stays
	watches []func() (watch.Interface[string], error)                 // then fakes
	fakes   chan *watch.FakeWatcher[string]
}

func newServer(t *testing.T) *server {
	return &server{t: t, fakes: make(chan *watch.FakeWatcher[string], 100)}
}

func (s *server) ask(what string) {
	s.asked = append(s.asked, what)
}

func (s *server) questions() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.asked, " ")
}

func (s *server) List(_ context.Context, r watch.ListRequest) (watch.ListPage[string], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ask(fmt.Sprintf("list%d%s", r.Revision, r.Continue))
	answer := s.lists[0]
	if len(s.lists) > 1 {
		s.lists = s.lists[1:]
	}
	return answer(r)
}

func (s *server) Watch(_ context.Context, after uint64) (watch.Interface[string], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ask(fmt.Sprint("watch", after))
	if len(s.watches) > 0 {
		answer := s.watches[0]
		s.watches = s.watches[1:]
		return answer()
	}
	f := watch.NewFakeWithChanSize[string](100, false)
	s.fakes <- f
	return f, nil
}

// listed is "revision: key=value@revision ...".
func listed(revision uint64, items ...string) func(watch.ListRequest) (watch.ListPage[string], error) {
	page := watch.ListPage[string]{Revision: revision}
	for _, text := range items {
		object, own, _ := strings.Cut(text, "@")
		var number uint64
		_, _ = fmt.Sscan(own, &number)
		page.Items = append(page.Items, watch.Item[string]{Object: object, Revision: number})
	}
	return func(watch.ListRequest) (watch.ListPage[string], error) { return page, nil }
}

func refusedList(err error) func(watch.ListRequest) (watch.ListPage[string], error) {
	return func(watch.ListRequest) (watch.ListPage[string], error) {
		return watch.ListPage[string]{}, err
	}
}

func refusedWatch(err error) func() (watch.Interface[string], error) {
	return func() (watch.Interface[string], error) { return nil, err }
}

func keyOf(object string) string {
	switch object {
	case "panic":
		panic("no key")
	case "exit":
		runtime.Goexit()
	}
	key, _, _ := strings.Cut(object, "=")
	return key
}

func (s *server) informer(o options) (*informer.Informer[string], *handclock.Clock, *errorList) {
	s.t.Helper()
	clock, reported := newClock(), &errorList{}
	if o.Clock = clock; o.OnError == nil {
		o.OnError = reported.add
	}
	in, err := informer.NewFromSource[string](s, keyOf, o)
	check(s.t, err)
	s.t.Cleanup(func() { check(s.t, in.StopAndWait(bounded.Context(s.t))) })
	return in, clock, reported
}

func (s *server) fake() *watch.FakeWatcher[string] {
	s.t.Helper()
	return bounded.Receive(s.t, "a watch", s.fakes)
}

func send(t *testing.T, f *watch.FakeWatcher[string], e watch.Event[string]) {
	t.Helper()
	check(t, f.Send(e))
}

func objects(in *informer.Informer[string]) string {
	var all []string
	for o := range in.Lister().All() {
		all = append(all, o.Value)
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

func status(code int) error { return &watch.Status{Code: code} }

// A history that went back may use a revision again: what it has there is another object, and is told.
func TestSI03RevisionThatAnotherHistoryUsesAgain(t *testing.T) {
	s := newServer(t)
	s.lists = append(s.lists, listed(100, "a=X@50", "b=X@60"), refusedList(status(410)), listed(60, "a=Y@50", "b=X@60"))
	s.watches = append(s.watches, refusedWatch(status(410)))
	in, _, _ := s.informer(options{})
	bounded.Receive(t, "the watch behind the last list", s.fakes)
	want(t, "asked", s.questions(), "list0 watch100 list100 list0 watch60")
	want(t, "position", fmt.Sprint(in.Lister().Position()), "{2 60}")
	want(t, "objects", objects(in), "a=Y b=X")
	want(t, "changes", in.Status().Changes, 2)
}

// Errors in between leave the listed state, and say why nothing came before.
func TestRF04ErrorsLeaveTheListedState(t *testing.T) {
	s := newServer(t)
	s.lists = append(s.lists, refusedList(errors.New("no list today")),
		func(watch.ListRequest) (watch.ListPage[string], error) { panic("a bad source") },
		func(watch.ListRequest) (watch.ListPage[string], error) { runtime.Goexit(); panic(0) },
		listed(1, "panic@1"), listed(1, "exit@1"), listed(10, "a=1@1"))
	s.watches = append(s.watches, refusedWatch(errors.New("no watch today")))
	in, clock, reported := s.informer(options{})
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	bounded.Eventually(t, "the first backoff", func() bool { return clock.Armed() == 1 })
	err := in.WaitSynced(ctx)
	contains(t, err.Error(), "its source could not be listed; its last error was", "no list today")
	for i := range 6 {
		bounded.Eventually(t, "the backoff", func() bool { return clock.Armed() == 1 && len(reported.all()) == i+1 })
		clock.Advance(30 * time.Second)
	}
	s.fake()
	want(t, "asked", s.questions(), "list0 list0 list0 list0 list0 list0 watch10 list10 watch10")
	want(t, "objects", objects(in), "a=1")
	wantError(t, "a panic", reported.all()[1], watchcore.ErrPanic)
	wantError(t, "the end of its goroutine", reported.all()[2], watchcore.ErrPanic)
	wantError(t, "a key that panics", reported.all()[3], watchcore.ErrPanic)
	wantError(t, "a key that ends its goroutine", reported.all()[4], watchcore.ErrPanic)
}

// broken is a watch that does what it likes.
type broken struct {
	watch.Interface[string]
	next func() (watch.Event[string], error)
	stop func()
}

func (b broken) Next(context.Context) (watch.Event[string], error) { return b.next() }
func (b broken) Stop()                                             { b.stop() }

// A watch, or a function for keys, that panics or ends the goroutine that reads or stops it is an error 500: reported, the
// backoff, another watch, and a list after the third in a row.
func TestRF26BrokenWatchIsAnError(t *testing.T) {
	quit := func() (watch.Event[string], error) { return watch.Event[string]{}, watch.ErrEnded }
	bad := func() (watch.Event[string], error) {
		return watch.Event[string]{Type: watch.Added, Object: "panic", Revision: 11}, nil
	}
	for what, w := range map[string]broken{
		"no key":               {next: bad, stop: func() {}},
		"Next panics":          {next: func() (watch.Event[string], error) { panic("a bad watch") }, stop: func() {}},
		"Next ends":            {next: func() (watch.Event[string], error) { runtime.Goexit(); panic(0) }, stop: func() {}},
		"Stop panics":          {next: quit, stop: func() { panic("a bad stop") }},
		"Stop ends":            {next: quit, stop: runtime.Goexit},
		"Next panics and Stop": {next: func() (watch.Event[string], error) { panic("a bad watch") }, stop: func() { panic("a bad stop") }},
		"Next ends, and Stop":  {next: func() (watch.Event[string], error) { runtime.Goexit(); panic(0) }, stop: runtime.Goexit},
	} {
		s := newServer(t)
		s.lists = append(s.lists, listed(10, "a=1@1"), listed(20, "a=2@20"))
		for range 3 {
			s.watches = append(s.watches, func() (watch.Interface[string], error) { return w, nil })
		}
		in, clock, reported := s.informer(options{})
		asked := "list0"
		for range 3 {
			asked += " watch10"
			bounded.Eventually(t, what, func() bool { return clock.Armed() == 1 && s.questions() == asked })
			clock.Advance(time.Minute)
		}
		check(t, in.WaitUntil(bounded.Context(t), 20))
		s.fake()
		want(t, what, s.questions(), asked+" list10 watch20")
		for _, err := range reported.all() {
			if !errors.Is(err, watchcore.ErrPanic) && !strings.Contains(err.Error(), "within a second") {
				t.Fatal(what, err)
			}
		}
	}
	// One that comes behind the informer's end is stopped where nobody reads it.
	opening, release := make(chan struct{}), make(chan struct{})
	s := newServer(t)
	s.lists = append(s.lists, listed(1))
	var reported errorList
	source := slowWatch{s, func() watch.Interface[string] {
		close(opening)
		<-release
		return broken{stop: func() { panic("a bad stop") }}
	}}
	in, err := informer.NewFromSource[string](source, keyOf, options{OnError: reported.add})
	check(t, err)
	bounded.Receive(t, "it opens", opening)
	check(t, in.StopAndWait(bounded.Context(t)))
	close(release)
	bounded.Eventually(t, "it is reported", func() bool { return len(reported.all()) == 1 })
	wantError(t, "a late one", reported.all()[0], watchcore.ErrPanic)
}

// A refused connection: the backoff, and no new list. The rest is row RF-06.
func TestRF06RefusedConnectionIsNotListedAgain(t *testing.T) {
	s := newServer(t)
	s.lists = append(s.lists, listed(10, "a=1@1"))
	s.watches = append(s.watches, refusedWatch(fmt.Errorf("dial: %w", syscall.ECONNREFUSED)))
	_, clock, _ := s.informer(options{})
	bounded.Eventually(t, "the backoff", func() bool { return clock.Armed() == 1 })
	clock.Advance(1600 * time.Millisecond)
	s.fake()
	want(t, "asked", s.questions(), "list0 watch10 watch10")
}

// An error handler that ends its goroutine does not make a busy loop of the backoff.
func TestRF05ErrorHandlerThatEndsItsGoroutine(t *testing.T) {
	s := newServer(t)
	s.lists = append(s.lists, refusedList(io.EOF), refusedList(io.EOF), listed(3, "a=1@1"))
	s.watches = append(s.watches, refusedWatch(status(410)), refusedWatch(status(429)))
	in, clock, _ := s.informer(options{OnError: func(error) { runtime.Goexit() }})
	for _, asked := range []string{"list0", "list0 list0", "list0 list0 list0 watch3 list3 watch3"} {
		bounded.Eventually(t, asked, func() bool { return clock.Armed() == 1 && s.questions() == asked })
		clock.Advance(time.Minute)
	}
	s.fake()
	want(t, "objects", objects(in), "a=1")
}

// The backoff counts from the failure: who hears of it and moves the clock has waited.
func TestRF05BackoffCountsFromTheFailure(t *testing.T) {
	s := newServer(t)
	s.lists = append(s.lists, refusedList(io.EOF), listed(3, "a=1@1"))
	clock := newClock()
	in, err := informer.NewFromSource[string](s, keyOf, options{Clock: clock, OnError: func(error) { clock.Advance(time.Minute) }})
	check(t, err)
	t.Cleanup(func() { check(t, in.StopAndWait(bounded.Context(t))) })
	check(t, in.WaitSynced(bounded.Context(t)))
	want(t, "objects", objects(in), "a=1")
}

// Pages are put together; each is asked for with the token of the one before.
func TestRF12PagesArePutTogether(t *testing.T) {
	s := newServer(t)
	page := func(next string, item string) func(watch.ListRequest) (watch.ListPage[string], error) {
		return func(r watch.ListRequest) (watch.ListPage[string], error) {
			want(t, "limit", r.Limit, 2)
			p, err := listed(7, item+"=1@1")(r)
			p.Continue = next
			return p, err
		}
	}
	s.lists = append(s.lists, page("+", "a"), page("++", "b"), page("", "c"))
	in, _, _ := s.informer(options{PageSize: 2})
	check(t, in.WaitSynced(bounded.Context(t)))
	s.fake()
	want(t, "objects", objects(in), "a=1 b=1 c=1")
	want(t, "asked", s.questions(), "list0 list0+ list0++ watch7")
	for size, limit := range map[int]int{0: informer.DefaultPageSize, -1: 0} {
		s := newServer(t)
		s.lists = append(s.lists, func(r watch.ListRequest) (watch.ListPage[string], error) {
			want(t, "limit", r.Limit, limit)
			return listed(1)(r)
		})
		in, _, _ := s.informer(options{PageSize: size})
		check(t, in.WaitSynced(bounded.Context(t)))
	}
}

// An opening that does not return when it is stopped: what comes later is stopped. The rest is row RF-01.
func TestRF01StopInAnOpening(t *testing.T) {
	opening, release := make(chan struct{}), make(chan struct{})
	late := watch.NewFake[string]()
	s := newServer(t)
	s.lists = append(s.lists, listed(1))
	source := slowWatch{s, func() watch.Interface[string] { close(opening); <-release; return late }}
	in, err := informer.NewFromSource[string](source, keyOf, options{})
	check(t, err)
	bounded.Receive(t, "it opens", opening)
	check(t, in.StopAndWait(bounded.Context(t)))
	close(release)
	bounded.Eventually(t, "the late one is stopped", late.IsStopped)
	_, err = informer.NewFromSource[string](nil, keyOf, options{})
	wantError(t, "no source", err, watchcore.ErrInvalidArgument)
	_, err = informer.NewFromSource[string](s, keyOf, options{LabelSelector: "a=b"})
	wantError(t, "a selector", err, watchcore.ErrInvalidArgument)
}

type slowWatch struct {
	*server
	open func() watch.Interface[string]
}

func (s slowWatch) Watch(context.Context, uint64) (watch.Interface[string], error) {
	return s.open(), nil
}
