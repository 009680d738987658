package informer_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	watchcore "github.com/watchcore/watchcore/go"
	"github.com/watchcore/watchcore/go/informer"
	"github.com/watchcore/watchcore/go/internal/bounded"
)

// overtaken is a handler that stands in the callback for /a while the window moves past it.
func overtaken(t *testing.T, o informer.HandlerOptions, onError func(error)) (s *source, in *informer.Informer[string], r *recorder, reg *informer.Registration, gate chan struct{}) {
	s = newSource(t, watchcore.Config{})
	s.apply("/a=1", "/b=1", "/c=1")
	in = s.informer(options{Window: 8, Clock: newClock(), OnError: onError})
	r, gate = newRecorder(), make(chan struct{})
	var once sync.Once
	reg = add(t, in, r, o)
	check(t, reg.WaitSynced(bounded.Context(t)))
	r.lines = nil
	r.before = func(line string) { once.Do(func() { <-gate }) }
	s.apply("/a=2")
	bounded.Eventually(t, "it handles", func() bool { return reg.Status().Handling == "/a" })
	s.apply("/z=1")
	s.apply("-/b")
	for i := range 400 { // its buffer, and the window
		s.apply(fmt.Sprint("/a=", i+3))
	}
	s.apply("/d=1")
	s.apply("/c=2")
	s.apply("-/z")
	check(t, in.WaitUntil(bounded.Context(t), s.cache.Revision()))
	return s, in, r, reg, gate
}

// Its end is decided once, also where the error handler ends the goroutine that reports it.
func TestRF19StoppedOnLagIsReportedOnce(t *testing.T) {
	var reported errorList
	_, _, _, reg, gate := overtaken(t, informer.HandlerOptions{OnLag: informer.Stop, Name: "strict"}, func(err error) {
		reported.add(err)
		runtime.Goexit()
	})
	close(gate)
	bounded.Receive(t, "its end", reg.Done())
	err := reg.Status().Err
	wantError(t, "its end", err, watchcore.ErrLagged)
	contains(t, err.Error(), `"strict"`)
	var e *watchcore.Error
	want(t, "numbers", errors.As(err, &e) && e.LostFrom == 3 && e.Position == 2, true)
	want(t, "reports", len(reported.all()), 1)
	want(t, "resnapshots", reg.Status().Resnapshots, 1)
}

// What a handler is behind is said in changes and in time.
func TestRF19LagIsSaidInChangesAndTime(t *testing.T) {
	clock := newClock()
	s := newSource(t, watchcore.Config{})
	s.apply("/a=1")
	in := s.informer(options{Clock: clock})
	r, gate := newRecorder(), make(chan struct{})
	reg := add(t, in, r, informer.HandlerOptions{})
	check(t, reg.WaitSynced(bounded.Context(t)))
	r.before = func(string) { <-gate }
	s.apply("/a=2")
	bounded.Eventually(t, "it handles", func() bool { return reg.Status().Handling == "/a" })
	s.apply("/a=3")
	s.apply("/a=4")
	check(t, in.WaitUntil(bounded.Context(t), 4))
	clock.Advance(time.Minute)
	status := reg.Status()
	want(t, "lag", fmt.Sprint(status.LagEvents, status.LagAge, clock.Now().Sub(status.HandlingSince)), "3 1m0s 1m0s")
	close(gate)
	s.settled(in, reg)
	status = reg.Status()
	want(t, "afterwards", fmt.Sprint(status.LagEvents, status.LagAge), "0 0s")
}

// A handler that never returns holds no more after ten million changes than after a few: no
// buffer of what it was not given, only the state that it was given last.
func TestFaultStalledHandlerHoldsConstantMemory(t *testing.T) {
	events := 500_000
	if n, err := strconv.Atoi(os.Getenv("INFORMER_EVENTS")); err == nil { // 10000000 takes a minute
		events = n
	}
	const keys, inOne = 1000, 1000
	s := newSource(t, watchcore.Config{Capacity: 16384})
	decodeInt := func(_ string, value []byte) (int, error) { return len(value), nil }
	in, err := informer.New(s.cache, decodeInt, informer.Options[int]{})
	check(t, err)
	t.Cleanup(in.Stop)
	gate, blocked := make(chan struct{}), make(chan struct{})
	var once sync.Once
	h := informer.HandlerFuncs[int]{Update: func(_, _ *informer.Object[int]) {
		once.Do(func() { close(blocked); <-gate })
	}}
	reg, err := in.AddHandler(h, informer.HandlerOptions{})
	check(t, err)
	round := make([]watchcore.Change, keys)
	for i := range round {
		round[i] = watchcore.Put(fmt.Sprintf("/%04d", i), "value")
	}
	write := func(n int) {
		for range n / inOne {
			check(t, s.writer.Apply(s.next, round...))
			s.next++
			if s.next%8 == 0 { // the informer itself is not to be overtaken
				check(t, in.WaitUntil(bounded.Context(t), s.next-1))
			}
		}
		check(t, in.WaitUntil(bounded.Context(t), s.next-1))
	}
	write(inOne)
	check(t, reg.WaitSynced(bounded.Context(t)))
	write(inOne)
	bounded.Receive(t, "it stalls", blocked)
	write(100_000)
	before := heap()
	write(events)
	after := heap()
	if status := reg.Status(); status.LagEvents < uint64(events) || status.Resnapshots != 0 {
		t.Fatalf("%+v", status)
	}
	if after > before+1<<20 {
		t.Fatalf("%d bytes before, %d after %d changes", before, after, events)
	}
	t.Logf("heap %d kB before, %d kB after %d changes", before>>10, after>>10, events)
	close(gate)
	bounded.Eventually(t, "it catches up", func() bool { status := reg.Status(); return status.LagEvents == 0 && status.Resnapshots == 1 })
}

func heap() uint64 {
	for range 3 {
		runtime.GC()
	}
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

// No wake-up is lost: a change that comes as a handler goes to sleep is given.
func TestFaultNoWakeUpIsLost(t *testing.T) {
	s := newSource(t, watchcore.Config{})
	s.apply("/a=0")
	in := s.informer(options{})
	var given atomic.Uint64
	var rs []*informer.Registration
	for range 4 {
		rs = append(rs, add(t, in, informer.HandlerFuncs[string]{Update: func(_, _ *informer.Object[string]) { given.Add(1) }}, informer.HandlerOptions{}))
	}
	s.settled(in, rs...)
	for i := range 3000 {
		s.apply(fmt.Sprint("/a=", i))
		bounded.Eventually(t, "all four", func() bool { return given.Load() == uint64(4*(i+1)) })
	}
}

// The informer itself, overtaken by the cache's window, gives its handlers the difference.
func TestRF19InformerItselfIsOvertaken(t *testing.T) {
	s := newSource(t, watchcore.Config{Capacity: 128})
	s.apply("/a=1", "/gone=1")
	gate, decoding := make(chan struct{}), make(chan struct{})
	var once sync.Once
	slow := func(_ string, value []byte) (string, error) {
		if string(value) == "slow" {
			once.Do(func() { close(decoding); <-gate })
		}
		return string(value), nil
	}
	var reported errorList
	in, err := informer.New(s.cache, slow, options{OnError: func(err error) {
		reported.add(err)
		runtime.Goexit() // which harms nothing
	}})
	check(t, err)
	t.Cleanup(in.Stop)
	r := newRecorder()
	reg := add(t, in, r, informer.HandlerOptions{})
	check(t, reg.WaitSynced(bounded.Context(t)))
	r.lines = nil
	s.apply("/a=slow")
	bounded.Receive(t, "it decodes", decoding)
	s.apply("-/gone")
	for i := range 5000 {
		s.apply(fmt.Sprint("/b=", i))
	}
	close(gate)
	s.settled(in, reg)
	want(t, "first", r.lines[0], "~/a=1>slow")
	want(t, "state", values(in.Lister().List()), "/a=slow /b=4999")
	want(t, "the handler's", fmt.Sprint(r.state), "map[/a:slow /b:4999]")
	want(t, "deleted", slices.Contains(r.lines, "-/gone=1"), true)
	want(t, "counted", in.Status().Lagged, 1)
	wantError(t, "reported", reported.all()[0], watchcore.ErrLagged)
}

// Random histories over few keys, and handlers that come, go, stall, panic and end their goroutine,
// against a naive oracle: each handler's changes fit one another (an update's old value is what it
// had), a live one ends with the state, and the lister is the state.
func TestModelOfHandlersOverRandomHistories(t *testing.T) {
	seeds := uint64(60)
	if testing.Short() {
		seeds = 10
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { model(t, rand.New(rand.NewPCG(seed, 3))) })
	}
}

// witness checks that changes fit what it was given before.
type witness struct {
	t        *testing.T
	mu       sync.Mutex
	has      map[string]*informer.Object[string]
	revision map[string]uint64
	dice     *rand.Rand
	faults   int          // one in this many callbacks panics or ends its goroutine; 0: none
	stall    *atomic.Bool // it stands still meanwhile
	skips    bool
}

func (w *witness) given(old, new *informer.Object[string], initial bool) {
	for w.stall.Load() {
		runtime.Gosched()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	key, revision := "", uint64(0)
	if old != nil {
		key = old.Key
	}
	if new != nil {
		key, revision = new.Key, new.Revision
	}
	if w.has[key] != old && !w.skips {
		w.t.Errorf("%s: it was given %v before, and now %v as old", key, w.has[key], old)
	}
	if new != nil && revision < w.revision[key] {
		w.t.Errorf("%s: revision %d after %d", key, revision, w.revision[key])
	}
	if w.has[key] = new; new == nil {
		delete(w.has, key)
	}
	w.revision[key] = max(w.revision[key], revision)
	if w.faults > 0 && w.dice.IntN(w.faults) == 0 {
		if w.dice.IntN(2) == 0 {
			panic("a fault")
		}
		runtime.Goexit()
	}
}

func (w *witness) OnAdd(o *informer.Object[string], initial bool) { w.given(nil, o, initial) }
func (w *witness) OnUpdate(old, new *informer.Object[string])     { w.given(old, new, false) }
func (w *witness) OnDelete(last *informer.Object[string])         { w.given(last, nil, false) }

func model(t *testing.T, dice *rand.Rand) {
	s := newSource(t, watchcore.Config{Capacity: 128 + dice.IntN(400)})
	in := s.informer(options{Window: 1 + dice.IntN(200)})
	state := map[string]string{}
	type party struct {
		*witness
		*informer.Registration
	}
	var parties []party
	for range 300 {
		switch dice.IntN(12) {
		case 0:
			w := &witness{t: t, has: map[string]*informer.Object[string]{}, revision: map[string]uint64{}, stall: new(atomic.Bool),
				dice: rand.New(rand.NewPCG(dice.Uint64(), 1)), faults: dice.IntN(3) * 5, skips: dice.IntN(4) == 0}
			o := informer.HandlerOptions{}
			if w.skips {
				o.OnLag = informer.SkipToOldest
			}
			parties = append(parties, party{w, add(t, in, w, o)})
		case 1:
			if len(parties) > 0 {
				i := dice.IntN(len(parties))
				parties[i].stall.Store(false)
				if parties[i].Remove(); dice.IntN(2) == 0 {
					check(t, parties[i].RemoveAndWait(bounded.Context(t)))
				}
				parties = slices.Delete(parties, i, i+1)
			}
		case 2, 3:
			if len(parties) > 0 {
				p := parties[dice.IntN(len(parties))]
				p.stall.Store(!p.stall.Load())
			}
		default:
			randomRevisions(s, state, dice)
		}
	}
	for _, p := range parties {
		p.stall.Store(false)
	}
	for _, p := range parties {
		s.settled(in, p.Registration)
	}
	check(t, in.WaitUntil(bounded.Context(t), s.cache.Revision()))
	compare := func(what string, got map[string]string) {
		if fmt.Sprint(got) != fmt.Sprint(state) {
			t.Fatalf("%s: %v\nwant %v", what, got, state)
		}
	}
	listed := map[string]string{}
	for o := range in.Lister().All() {
		listed[o.Key] = o.Value
	}
	compare("lister", listed)
	for _, p := range parties {
		if p.skips {
			continue
		}
		has := map[string]string{}
		for key, o := range p.has {
			has[key] = o.Value
		}
		compare("handler "+p.Status().Name, has)
	}
}

func randomRevisions(s *source, state map[string]string, dice *rand.Rand) {
	for range 1 + dice.IntN(40) {
		changes := map[string]string{}
		for range 1 + dice.IntN(4) {
			key := fmt.Sprint("/", dice.IntN(12))
			if _, there := state[key]; there && dice.IntN(3) == 0 {
				changes[key] = ""
			} else {
				changes[key] = fmt.Sprint(s.next)
			}
		}
		var list []string
		for key, value := range changes {
			if value == "" {
				delete(state, key)
				list = append(list, "-"+key)
			} else {
				state[key] = value
				list = append(list, key+"="+value)
			}
		}
		s.apply(list...)
	}
	if dice.IntN(20) == 0 { // another history with the same state, but for one key
		var listing []watchcore.KeyValue
		delete(state, "/3")
		for key, value := range state {
			listing = append(listing, watchcore.KeyValue{Key: []byte(key), Value: []byte(value), CreateRevision: s.next, ModRevision: s.next, Version: 1})
		}
		_, err := s.writer.Resync(s.next, listing, watchcore.ReasonRequested)
		check(s.t, err)
		s.next++
	}
}

// The metrics say what the status says, by names.
func TestRF19MetricsForPrometheus(t *testing.T) {
	s := newSource(t, watchcore.Config{})
	s.apply("/a=1", "/b=bad")
	in := s.informer(options{Name: "pods \"x\"", Clock: newClock()})
	r, gate := newRecorder(), make(chan struct{})
	reg := add(t, in, r, informer.HandlerOptions{Name: "slow"})
	check(t, reg.WaitSynced(bounded.Context(t)))
	r.before = func(string) { <-gate }
	s.apply("/a=2")
	s.apply("/a=3")
	check(t, in.WaitUntil(bounded.Context(t), 3))
	var text strings.Builder
	check(t, informer.WriteMetrics(&text, in))
	contains(t, text.String(), "# TYPE watchcore_informer_objects gauge\n", `watchcore_informer_objects{informer="pods \"x\""} 1`,
		"# TYPE watchcore_informer_changes_total counter\n", `watchcore_informer_decode_failures_total{informer="pods \"x\""} 1`,
		`watchcore_informer_handler_lag_events{informer="pods \"x\"",handler="slow"} 2`, `watchcore_informer_handler_handled_total{informer="pods \"x\"",handler="slow"} 1`,
		`watchcore_informer_revision{informer="pods \"x\""} 3`)
	close(gate)
}

// Informers of one cache have its name, and handlers may have one name: each has metrics of its own all the same.
func TestRF19MetricsOfOneNameAreNumbered(t *testing.T) {
	s := newSource(t, watchcore.Config{})
	in := []informer.Reporter{s.informer(options{Name: "pods"}), s.informer(options{Name: "pods 2"}), s.informer(options{Name: "pods"})}
	one := in[0].(*informer.Informer[string])
	var names []string
	for _, name := range []string{"x", "handler 4", "x", "", "x"} {
		names = append(names, add(t, one, newRecorder(), informer.HandlerOptions{Name: name}).Status().Name)
	}
	want(t, "handlers", strings.Join(names, ", "), "x, handler 4, x 2, handler 4 2, x 3")
	var text strings.Builder
	check(t, informer.WriteMetrics(&text, append(in, in[0])...))
	contains(t, text.String(), `_synced{informer="pods"}`, `_synced{informer="pods 2"}`, `_synced{informer="pods 3"}`, `_synced{informer="pods 4"}`,
		`_handler_synced{informer="pods",handler="x 3"}`, `_handler_synced{informer="pods 4",handler="x 3"}`)
	seen := map[string]bool{}
	for line := range strings.Lines(text.String()) {
		series, _, _ := strings.Cut(line, "} ")
		want(t, "twice: "+series, seen[series], false)
		seen[series] = true
	}
}
