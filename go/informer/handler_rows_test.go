package informer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	watchcore "github.com/watchcore/watchcore/go"
	"github.com/watchcore/watchcore/go/informer"
	"github.com/watchcore/watchcore/go/internal/bounded"
	"github.com/watchcore/watchcore/go/internal/handclock"
	"github.com/watchcore/watchcore/go/internal/rows"
)

// The rows of contract/toolkit that are about handlers, listers and indexes.
func TestContractRowsOfTheInformer(t *testing.T) {
	rows.Run(t, "../../contract/toolkit", "go", "run informer", func(t *testing.T) rows.Machine {
		return &informed{t: t, clock: newClock(), hands: map[string]*hand{}, states: map[string]*informer.Lister[string]{},
			mood: &mood{calls: map[string]uint64{}}}
	})
}

// hand is a handler of a row. It writes down what it is given.
type hand struct {
	reg     *informer.Registration
	panics  string // where it is given this value; "" is none
	removes bool   // itself, and waits for that, in its first call

	mu      sync.Mutex
	changed sync.Cond
	lines   []string
	stalls  bool // its calls do not return, but for one that may
	may     bool
	stands  bool // one of them stands now
}

func (h *hand) OnAdd(o *informer.Object[string], initial bool) {
	mark := "+"
	if initial {
		mark = "*"
	}
	h.write(mark+shown(o), o.Value)
}

func (h *hand) OnUpdate(old, new *informer.Object[string]) {
	if old == new {
		h.write("="+shown(new), new.Value)
	} else {
		h.write("~"+shown(old)+">"+new.Value, new.Value)
	}
}

func (h *hand) OnDelete(last *informer.Object[string]) { h.write("-"+shown(last), last.Value) }

func shown(o *informer.Object[string]) string { return o.Key + "=" + o.Value }

func (h *hand) write(line, value string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for h.stands = h.stalls; h.stalls && !h.may; {
		h.changed.Wait()
	}
	h.stands, h.may = false, false
	if h.panics != "" && h.panics == value {
		panic("as the row says")
	}
	if h.removes {
		h.removes = false
		h.lines = append(h.lines, code(h.reg.RemoveAndWait(context.Background())))
	}
	h.lines = append(h.lines, line)
}

// stall says whether the calls return.
func (h *hand) stall(stalls bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stalls = stalls; !stalls {
		h.stands = false
		h.changed.Broadcast()
	}
}

// step lets the call that stands return.
func (h *hand) step() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stands, h.may = false, true
	h.changed.Broadcast()
}

// settled says whether it has nothing left to do, has ended, or stands in a call.
func (h *hand) settled() bool {
	h.mu.Lock()
	stands := h.stands
	h.mu.Unlock()
	return stands || isClosed(h.reg.Done()) || h.reg.Status().LagEvents == 0 && h.reg.IsAsleep()
}

// given is what it was given since the last time. A state, and what a resync gives, are in no particular order.
func (h *hand) given() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	lines := h.lines
	h.lines = nil
	for first := 0; first < len(lines); {
		next := first
		for next < len(lines) && lines[next][0] == lines[first][0] {
			next++
		}
		if strings.Contains("*=", lines[first][:1]) {
			slices.Sort(lines[first:next])
		}
		first = next
	}
	return lines
}

// mood is how the functions of all indexes answer: with the words of a value, with this one, or by a panic.
type mood struct {
	mu    sync.Mutex
	says  string
	calls map[string]uint64 // by index, object and revision

	panicked atomic.Uint64
}

func (m *mood) values(index string, o *informer.Object[string]) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls[fmt.Sprint(index, " ", shown(o), " ", o.Revision)]++
	switch m.says {
	case "":
		return words(o)
	case "panics":
		m.panicked.Add(1)
		panic("as the row says")
	}
	return []string{m.says}
}

// code is that of a refusal. What has no time is refused as in other languages.
func code(err error) string {
	var e *watchcore.Error
	switch {
	case err == nil:
		return ""
	case errors.Is(err, context.Canceled):
		return watchcore.ErrTimeout.Name()
	case errors.As(err, &e):
		return e.Code.Name()
	}
	panic(err)
}

// informed runs the steps of a row: a cache that it feeds, an informer over it, and its handlers.
type informed struct {
	t      *testing.T
	clock  *handclock.Clock
	cache  *watchcore.Cache
	writer *watchcore.Writer
	in     *informer.Informer[string]
	hands  map[string]*hand
	states map[string]*informer.Lister[string]
	mood   *mood
	panics atomic.Uint64 // of the functions of indexes

	resyncs uint64 // steps
}

func (r *informed) Close() {
	for _, h := range r.hands {
		h.stall(false)
	}
	if r.in != nil {
		check(r.t, r.in.StopAndWait(bounded.Context(r.t)))
	}
	if r.cache != nil {
		r.writer.Close()
		r.cache.Close()
	}
}

// Run is a step, and what it prints.
func (r *informed) Run(words []string) []string {
	printed, err := r.run(words[0], words[1:])
	if err != nil {
		return []string{code(err)}
	}
	return slices.DeleteFunc(printed, func(line string) bool { return line == "" })
}

func (r *informed) run(word string, rest []string) ([]string, error) {
	switch word {
	case "run":
		return nil, r.start(rest[1:])
	case "apply", "load", "resync", "progress", "compact", "close", "stop", "advance", "function":
		err := r.feed(word, rest)
		if r.settle(); word == "resync" {
			r.resyncs++
			want(r.t, "resyncs", r.in.Status().Resyncs, r.resyncs)
		}
		return nil, err
	case "handler":
		err := r.handle(rest)
		r.settle()
		return nil, err
	case "until":
		ctx, cancel := context.WithCancel(bounded.Context(r.t))
		defer cancel()
		if len(rest) > 1 {
			cancel()
		}
		return nil, r.in.WaitUntil(ctx, rows.Number(rest[0]))
	case "function-panics":
		r.settle()
		// Each is reported behind the lock, so after readers see its revision.
		bounded.Eventually(r.t, "every panic is reported", func() bool { return r.panics.Load() >= r.mood.panicked.Load() })
		return []string{fmt.Sprint(r.panics.Load())}, nil
	case "calls":
		r.mood.mu.Lock()
		defer r.mood.mu.Unlock()
		most := uint64(0)
		for _, calls := range r.mood.calls {
			most = max(most, calls)
		}
		return []string{fmt.Sprint(most)}, nil
	case "keep":
		r.settle()
		r.states[rest[0]] = r.in.Current()
		return nil, nil
	case "at", "list", "get", "select", "by", "values":
		r.settle()
		return r.read(r.in.Lister(), word, rest)
	case "in":
		return r.read(r.states[rest[0]], rest[1], rest[2:])
	}
	if h := r.hands[rest[0]]; h != nil {
		return r.hand(h, word, rest[1:])
	}
	panic(word + " is no word of an informer, or there is no handler")
}

func (r *informed) start(words []string) error {
	var config watchcore.Config
	o := options{Clock: r.clock, OnError: func(err error) {
		if strings.Contains(err.Error(), "the function of index") {
			r.panics.Add(1)
		}
	}}
	o.Indexers = informer.Indexers[string]{}
	for len(words) > 0 {
		word, value := words[0], words[min(1, len(words)-1)]
		words = words[1:]
		switch word {
		case "load":
			config.ExpectLoad = true
			continue
		case "small":
			o.Window = 8
			continue
		case "labels":
			config.Labels = watchcore.LabelsJSON(value)
		case "prefix":
			o.Range = watchcore.RangePrefix(value)
		case "where-labels":
			o.LabelSelector = value
		case "index":
			o.Indexers[value] = func(o *informer.Object[string]) []string { return r.mood.values(value, o) }
		default:
			panic(word + " is no option of an informer")
		}
		words = words[1:]
	}
	var err error
	if r.cache, err = watchcore.New(config); err != nil {
		return err
	}
	r.writer, err = r.cache.Writer()
	check(r.t, err)
	in, err := informer.New(r.cache, decode, o)
	if err == nil {
		r.in = in
	}
	return err
}

// settle waits until the informer and every handler are through with what was published.
func (r *informed) settle() {
	if !isClosed(r.in.Done()) && r.cache.Status().State == watchcore.StateReady {
		// A revision of 0 is reached before the state of an empty cache is there.
		bounded.Eventually(r.t, "the informer has its state", func() bool { return r.in.HasSynced() || isClosed(r.in.Done()) })
		// One that ends meanwhile follows nothing.
		if err := r.in.WaitUntil(bounded.Context(r.t), r.cache.Revision()); err != nil && !errors.Is(err, watchcore.ErrClosed) {
			r.t.Fatal(err)
		}
	}
	for name, h := range r.hands {
		bounded.Eventually(r.t, "handler "+name+" is through", h.settled)
	}
}

// feed is the words that make something happen.
func (r *informed) feed(word string, rest []string) error {
	switch word {
	case "apply":
		var changes []watchcore.Change
		for _, change := range rest[1:] {
			if key, gone := strings.CutPrefix(change, "-"); gone {
				changes = append(changes, watchcore.Delete(key))
			} else {
				key, value, _ := strings.Cut(change, "=")
				changes = append(changes, watchcore.Put(key, value))
			}
		}
		return r.writer.Apply(rows.Number(rest[0]), changes...)
	case "load":
		return r.writer.Load(rows.Number(rest[0]), items(rest[1:]))
	case "resync":
		reason := watchcore.ReasonCompacted
		for reason.String() != rest[1] {
			if reason++; reason > watchcore.ReasonLagged {
				panic(rest[1] + " is no reason")
			}
		}
		_, err := r.writer.Resync(rows.Number(rest[0]), items(rest[2:]), reason)
		return err
	case "progress":
		return r.writer.Progress(rows.Number(rest[0]))
	case "compact":
		return r.writer.Compact(rows.Number(rest[0]))
	case "close":
		r.cache.Close()
		bounded.Receive(r.t, "the informer's end", r.in.Done())
	case "stop":
		r.in.Stop()
		bounded.Receive(r.t, "the informer's end", r.in.Done())
	case "advance":
		r.settle()
		r.clock.Advance(rows.Duration(rest[0]))
	case "function":
		r.mood.mu.Lock()
		defer r.mood.mu.Unlock()
		if r.mood.says = rest[0]; rest[0] == "works" {
			r.mood.says = ""
		}
	}
	return nil
}

// items is /a=1@3, created and changed at 3, and /a=1@2,3,2 with its own numbers.
func items(words []string) []watchcore.KeyValue {
	var all []watchcore.KeyValue
	for _, word := range words {
		object, numbers, _ := strings.Cut(word, "@")
		key, value, _ := strings.Cut(object, "=")
		parts := strings.Split(numbers, ",")
		one := watchcore.KeyValue{Key: []byte(key), Value: []byte(value), CreateRevision: rows.Number(parts[0]), ModRevision: rows.Number(parts[0]), Version: 1}
		if len(parts) == 3 {
			one.ModRevision, one.Version = rows.Number(parts[1]), rows.Number(parts[2])
		}
		all = append(all, one)
	}
	return all
}

// handle adds a handler.
func (r *informed) handle(words []string) error {
	h := &hand{}
	h.changed.L = &h.mu
	o := informer.HandlerOptions{Name: words[0]}
	for rest := words[1:]; len(rest) > 0; rest = rest[1:] {
		switch rest[0] {
		case "removes-itself":
			h.removes = true
			continue
		case "stalls":
			h.stalls = true
			continue
		}
		word, value := rest[0], rest[1]
		rest = rest[1:]
		switch word {
		case "resync":
			o.ResyncPeriod = rows.Duration(value)
		case "lag":
			o.OnLag = map[string]informer.OnLag{"stop": informer.Stop, "skip": informer.SkipToOldest, "resnapshot": informer.Resnapshot}[value]
		case "panics":
			h.panics = value
		default:
			panic(word + " is no option of a handler")
		}
	}
	h.mu.Lock() // its first call waits for the registration
	defer h.mu.Unlock()
	reg, err := r.in.AddHandler(h, o)
	if h.reg = reg; err == nil {
		r.hands[words[0]] = h
	}
	return err
}

// hand is the words of a handler.
func (r *informed) hand(h *hand, word string, rest []string) ([]string, error) {
	switch word {
	case "stall":
		h.stall(true)
		return nil, nil
	case "release":
		h.stall(false)
	case "step":
		h.step()
	case "remove":
		if len(rest) > 0 {
			return r.removeAndWait(h), nil
		}
		h.reg.Remove()
		return nil, nil
	}
	r.settle()
	switch word {
	case "release", "step":
		return nil, nil
	case "given":
		return h.given(), nil
	}
	return []string{r.counted(word, h)}, nil
}

// removeAndWait removes a handler. Where a call of it stands, the wait is in vain, and has no time.
func (r *informed) removeAndWait(h *hand) []string {
	r.settle()
	ctx, cancel := context.WithCancel(bounded.Context(r.t))
	defer cancel()
	if h.reg.Status().Handling != "" {
		cancel()
	}
	return []string{why(h, h.reg.RemoveAndWait(ctx))}
}

func (r *informed) counted(word string, h *hand) string {
	yesOrNo := map[bool]string{true: "yes", false: "no"}
	status := h.reg.Status()
	switch word {
	case "handling":
		return status.Handling
	case "synced":
		return yesOrNo[h.reg.HasSynced()]
	case "why":
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		return why(h, h.reg.WaitSynced(ctx))
	case "ended":
		if errors.Is(status.Err, watchcore.ErrLagged) {
			return "LAGGED"
		}
		return yesOrNo[isClosed(h.reg.Done())]
	case "handled":
		return fmt.Sprint(status.Handled)
	case "panics":
		return fmt.Sprint(status.Panics)
	case "lag":
		return fmt.Sprint(status.LagEvents)
	case "seen":
		return fmt.Sprint(status.Handled + status.Lost)
	}
	panic(word + " is no word of a handler")
}

// why is the code of an error, and what it says of a handler that it names: that there is no listing, or which call stands.
func why(h *hand, err error) string {
	if err == nil {
		return ""
	}
	status := h.reg.Status()
	says := func(what string) bool {
		return strings.Contains(err.Error(), what) && strings.Contains(err.Error(), fmt.Sprintf("handler %q", status.Name))
	}
	switch {
	case says("no listing yet"):
		return code(err) + " no listing"
	case status.Handling != "" && says(fmt.Sprintf("callback for %q", status.Handling)):
		return code(err) + " handling " + status.Handling
	}
	return code(err)
}

// read is a read of a lister.
func (r *informed) read(l *informer.Lister[string], word string, rest []string) ([]string, error) {
	var list []*informer.Object[string]
	var err error
	switch word {
	case "at":
		return []string{fmt.Sprint(l.Position().Revision)}, nil
	case "values":
		values, err := l.IndexValues(rest[0])
		return []string{strings.Join(values, " ")}, err
	case "get":
		if o, found := l.Get(rest[0]); found {
			list = append(list, o)
		}
	case "select":
		list, err = l.SelectLabels(bounded.Context(r.t), rest[0])
	case "by":
		list, err = l.ByIndex(rest[0], rest[1])
	default:
		list = l.List()
	}
	var lines []string
	for _, o := range list {
		lines = append(lines, shown(o))
	}
	slices.Sort(lines)
	return lines, err
}
