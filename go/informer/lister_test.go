package informer_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	watchcore "github.com/watchcore/watchcore/go"
	"github.com/watchcore/watchcore/go/informer"
	"github.com/watchcore/watchcore/go/internal/bounded"
)

// words is an index by the words of a value.
func words(o *informer.Object[string]) []string { return strings.Fields(o.Value) }

// An index may be added at any time; it is built of what is there, and readers of an older
// state have it, too.
func TestSI09IndexesAddedLater(t *testing.T) {
	s := newSource(t, watchcore.Config{})
	s.apply("/a=red", "/b=blue")
	in := s.informer(options{})
	check(t, in.WaitSynced(bounded.Context(t)))
	old := in.Current()
	s.apply("/a=blue")
	s.settled(in)
	inside := make(chan error, 1)
	check(t, in.AddIndexers(informer.Indexers[string]{"word": func(o *informer.Object[string]) []string {
		if o.Value == "inside" {
			inside <- in.AddIndexers(informer.Indexers[string]{"x": words})
		}
		return words(o)
	}}))
	for l, expected := range map[*informer.Lister[string]]string{in.Lister(): "/a=blue /b=blue", old: "/b=blue", in.Current(): "/a=blue /b=blue"} {
		list, err := l.ByIndex("word", "blue")
		check(t, err)
		want(t, "blue", values(list), expected)
	}
	all, err := old.IndexValues("word")
	check(t, err)
	want(t, "values of the older state", strings.Join(all, " "), "blue red")
	err = in.AddIndexers(informer.Indexers[string]{"word": words, "other": words})
	wantError(t, "a name that is taken", err, watchcore.ErrInvalidArgument)
	_, err = in.Lister().ByIndex("other", "")
	wantError(t, "none of it was added", err, watchcore.ErrInvalidArgument)
	s.apply("/c=inside")
	wantError(t, "from inside an index's function", bounded.Receive(t, "the answer", inside), watchcore.ErrBusy)
	s.settled(in)
	list, err := in.Lister().ByIndex("word", "inside")
	check(t, err)
	want(t, "inside", values(list), "/c=inside")
	// Before the informer is synced, too.
	late := newSource(t, watchcore.Config{ExpectLoad: true})
	in = late.informer(options{})
	check(t, in.AddIndexers(informer.Indexers[string]{"word": words}))
	check(t, late.writer.Load(3, []watchcore.KeyValue{{Key: []byte("/a"), Value: []byte("red"), CreateRevision: 1, ModRevision: 1, Version: 1}}))
	check(t, in.WaitSynced(bounded.Context(t)))
	list, err = in.Lister().ByIndex("word", "red")
	check(t, err)
	want(t, "red", values(list), "/a=red")
}

// What a lister answers: a key, all, those of a namespace with and without an index, those for
// which a function holds, and those that a label selector selects.
func TestSI09ListersAnswer(t *testing.T) {
	s := newSource(t, watchcore.Config{Labels: watchcore.LabelsJSON("/labels")})
	check(t, s.writer.Apply(1,
		watchcore.Put("/registry/pods/red/a", `{"labels":{"app":"web"}}`), watchcore.Put("/registry/pods/red/b", `{"labels":{"app":"db"}}`),
		watchcore.Put("/registry/pods/blue/a", `{"labels":{"app":"web","tier":"1"}}`), watchcore.Put("/other", "x")))
	s.next = 2
	in := s.informer(options{Range: watchcore.RangePrefix("/registry/")})
	check(t, in.WaitSynced(bounded.Context(t)))
	keys := func(list []*informer.Object[string]) string {
		var all []string
		for _, o := range list {
			all = append(all, strings.TrimPrefix(o.Key, "/registry/pods/"))
		}
		slices.Sort(all)
		return strings.Join(all, " ")
	}
	l := in.Lister()
	namespaces := func() {
		t.Helper()
		want(t, "red", keys(l.Namespace("red")), "red/a red/b")
		want(t, "blue", keys(l.Namespace("blue")), "blue/a")
		want(t, "none", keys(l.Namespace("green")), "")
	}
	namespaces()
	check(t, in.AddIndexers(informer.Indexers[string]{informer.NamespaceIndex: informer.ByKeySegment[string](2)}))
	namespaces()
	want(t, "all", keys(l.List()), "blue/a red/a red/b")
	want(t, "selected", keys(l.Select(func(o *informer.Object[string]) bool { return strings.HasSuffix(o.Key, "/a") })), "blue/a red/a")
	o, found := l.Get("/registry/pods/red/b")
	want(t, "an object", fmt.Sprint(found, o.Revision, o.CreateRevision, o.Version), "true 1 1 1")
	_, found = l.Get("/other")
	want(t, "outside of the range", found, false)
	for selector, expected := range map[string]string{"app=web": "blue/a red/a", "app in (web,db),!tier": "red/a red/b", "": "blue/a red/a red/b", "app=x": ""} {
		list, err := l.SelectLabels(bounded.Context(t), selector)
		check(t, err)
		want(t, selector, keys(list), expected)
	}
	_, err := l.SelectLabels(bounded.Context(t), "app in")
	wantError(t, "a selector that does not parse", err, watchcore.ErrInvalidArgument)
	frozen := in.Current()
	s.apply("/registry/pods/red/a={}")
	s.settled(in)
	list, err := frozen.SelectLabels(bounded.Context(t), "app=web")
	check(t, err)
	want(t, "of the older revision", keys(list), "blue/a red/a")
	list, err = l.SelectLabels(bounded.Context(t), "app=web")
	check(t, err)
	want(t, "of the newest", keys(list), "blue/a")
	check(t, s.writer.Compact(2))
	_, err = frozen.SelectLabels(bounded.Context(t), "app=web")
	wantError(t, "of one that was compacted", err, watchcore.ErrCompacted)
	for key, expected := range map[string]string{"/a/b/c": "c true", "a/b/c/d": "c true", "/a/b": " false", "": " false", "/a/b/": " true"} {
		value := informer.ByKeySegment[string](2)(&informer.Object[string]{Key: key})
		want(t, key, fmt.Sprint(strings.Join(value, ""), " ", len(value) == 1), expected)
	}
}

// A reader sees all of a revision or nothing of it, in every kind of read.
func TestSI10ReadersSeeWholeRevisions(t *testing.T) {
	s := newSource(t, watchcore.Config{})
	s.apply("/a=0", "/b=0")
	in := s.informer(options{Indexers: informer.Indexers[string]{"value": words}})
	check(t, in.WaitSynced(bounded.Context(t)))
	stop := make(chan struct{})
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for !isClosed(stop) {
				l := in.Current()
				a, _ := l.Get("/a")
				b, _ := l.Get("/b")
				list, err := l.ByIndex("value", a.Value)
				if err != nil || a.Value != b.Value || len(list) != 2 || l.Len() != 2 {
					t.Errorf("%v %v %v %v", a, b, list, err)
					return
				}
			}
		})
	}
	for i := range 3000 {
		s.apply(fmt.Sprint("/a=", i), fmt.Sprint("/b=", i))
	}
	s.settled(in)
	close(stop)
	readers.Wait()
}

// A revision that comes in many batches is shown whole, too: readers see one value only.
func TestSI10LongRevisionsAreSeenWhole(t *testing.T) {
	const keys = 2500
	s := newSource(t, watchcore.Config{})
	write := func(value int) {
		changes := make([]watchcore.Change, keys)
		for i := range changes {
			changes[i] = watchcore.Put(fmt.Sprintf("/%04d", i), fmt.Sprint(value))
		}
		check(t, s.writer.Apply(s.next, changes...))
		s.next++
	}
	write(0)
	in := s.informer(options{Indexers: informer.Indexers[string]{"value": words}})
	check(t, in.WaitSynced(bounded.Context(t)))
	stop := make(chan struct{})
	var reading sync.WaitGroup
	reading.Go(func() {
		for !isClosed(stop) {
			if values, err := in.Current().IndexValues("value"); err != nil || len(values) != 1 {
				t.Errorf("a part of a revision: %v %v", values, err)
				return
			}
		}
	})
	for i := range 30 {
		write(i + 1)
		check(t, in.WaitUntil(bounded.Context(t), s.next-1))
	}
	close(stop)
	reading.Wait()
}

// When a handler is called the lister shows the change, or a later one.
func TestSI10ListerShowsWhatAHandlerIsGiven(t *testing.T) {
	s := newSource(t, watchcore.Config{})
	s.apply("/a=0")
	in := s.informer(options{})
	reg := add(t, in, informer.HandlerFuncs[string]{Update: func(_, new *informer.Object[string]) {
		if o, found := in.Lister().Get(new.Key); !found || o.Revision < new.Revision {
			t.Errorf("given revision %d, and the lister has %v", new.Revision, o)
		}
	}}, informer.HandlerOptions{})
	for i := range 20 { // many changes at once: the first is given while the last are on their way
		var list []string
		for key := range 2000 {
			list = append(list, fmt.Sprint("/", key, "=", i))
		}
		s.apply(list...)
		s.settled(in, reg)
	}
}

// Positions stay in order where a batch has events of two histories, the later one with lower
// revisions: informers at one revision find their states.
func TestSI09OneRevisionOverTwoHistories(t *testing.T) {
	for range 50 {
		s := newSource(t, watchcore.Config{})
		s.apply("/a/x=0", "/b/x=0")
		s.next = 100
		gate := make(chan struct{})
		held := func(_ string, value []byte) (string, error) {
			if string(value) == "1" {
				<-gate // the rest comes in one batch
			}
			return string(value), nil
		}
		var informers []*informer.Informer[string]
		for _, prefix := range []string{"/a/", "/b/"} {
			in, err := informer.New(s.cache, held, options{Range: watchcore.RangePrefix(prefix)})
			check(t, err)
			t.Cleanup(in.Stop)
			check(t, in.WaitSynced(bounded.Context(t)))
			informers = append(informers, in)
		}
		s.apply("/a/x=1", "/b/x=1")
		s.apply("/a/x=2", "/b/x=2")
		kv := func(key, value string, at uint64) watchcore.KeyValue {
			return watchcore.KeyValue{Key: []byte(key), Value: []byte(value), CreateRevision: 1, ModRevision: at, Version: 2}
		}
		_, err := s.writer.Resync(5, []watchcore.KeyValue{kv("/a/x", "3", 5), kv("/b/x", "3", 5)}, watchcore.ReasonHistoryReset)
		check(t, err)
		s.next = 6
		close(gate)
		first, err := informer.SameRevision(bounded.Context(t), informers[0], informers[1])
		check(t, err)
		l, err := informers[0].At(first)
		check(t, err)
		o, _ := l.Get("/a/x")
		want(t, "at the new history's first revision", o.Value, "3")
		stop := make(chan struct{})
		var writing sync.WaitGroup
		writing.Go(func() {
			for i := 4; !isClosed(stop); i++ {
				s.apply(fmt.Sprint("/a/x=", i), fmt.Sprint("/b/x=", i))
			}
		})
		for range 5 {
			v, err := informer.SameRevision(bounded.Context(t), informers[0], informers[1])
			check(t, err)
			var both []string
			for i, key := range []string{"/a/x", "/b/x"} {
				l, err := informers[i].At(v)
				check(t, err)
				o, _ := l.Get(key)
				both = append(both, o.Value)
			}
			want(t, "both", both[0], both[1])
			if at := v.Position(); at.Epoch == s.cache.Position().Epoch {
				want(t, "what was written at the revision", both[0], fmt.Sprint(at.Revision-2))
			}
		}
		close(stop)
		writing.Wait()
	}
}

// Many wait at once, for what is still to come, inside and outside of the range. The rest is row FT-31.
func TestFaultReadYourOwnWrites(t *testing.T) {
	s := newSource(t, watchcore.Config{})
	s.apply("/in/a=0")
	in := s.informer(options{Range: watchcore.RangePrefix("/in/")})
	check(t, in.WaitSynced(bounded.Context(t)))
	var waiting sync.WaitGroup
	next := s.next
	for i := range 200 {
		waiting.Go(func() {
			if err := in.WaitUntil(bounded.Context(t), next+uint64(i%20)); err != nil {
				t.Error(err)
			}
		})
	}
	for i := range 20 {
		if i%3 == 0 {
			s.apply("/in/a=x")
		} else {
			s.apply("/out=x")
		}
	}
	waiting.Wait()
}

// Several informers of one cache at one revision: what is written together is seen
// together, beside a writer that does not pause.
func TestSI09InformersAtOneRevision(t *testing.T) {
	s := newSource(t, watchcore.Config{})
	s.apply("/pods/a=0", "/nodes/a=0")
	of := func(prefix string) *informer.Informer[string] {
		return s.informer(options{Range: watchcore.RangePrefix(prefix), Indexers: informer.Indexers[string]{"value": words}, Window: 4096})
	}
	pods, nodes, idle := of("/pods/"), of("/nodes/"), of("/idle/")
	stop := make(chan struct{})
	var writing sync.WaitGroup
	writing.Go(func() {
		for i := 1; !isClosed(stop); i++ {
			s.apply(fmt.Sprint("/pods/a=", i), fmt.Sprint("/nodes/a=", i))
			if i%7 == 0 {
				s.apply("/elsewhere=x")
			}
		}
	})
	for range 300 {
		v, err := informer.SameRevision(bounded.Context(t), pods, nodes, idle)
		check(t, err)
		p, err := pods.At(v)
		check(t, err)
		n, err := nodes.At(v)
		check(t, err)
		i, err := idle.At(v)
		check(t, err)
		a, _ := p.Get("/pods/a")
		b, _ := n.Get("/nodes/a")
		want(t, "both", a.Value, b.Value)
		want(t, "one position", p.Position() == n.Position() && n.Position() == v.Position() && i.Position() == v.Position(), true)
		list, err := p.ByIndex("value", a.Value)
		check(t, err)
		want(t, "the index is of it", len(list), 1)
		if v.Position().Revision < a.Revision {
			t.Fatalf("an object of revision %d at %d", a.Revision, v.Position().Revision)
		}
	}
	close(stop)
	writing.Wait()
	v, err := informer.SameRevision(bounded.Context(t), pods, pods)
	check(t, err)
	want(t, "the newest", v.Position(), s.cache.Position())
	_, err = nodes.At(v)
	wantError(t, "one that was not asked for", err, watchcore.ErrInvalidArgument)
	other := newSource(t, watchcore.Config{})
	_, err = informer.SameRevision(bounded.Context(t), pods, other.informer(options{}))
	wantError(t, "of another cache", err, watchcore.ErrInvalidArgument)
	_, err = informer.SameRevision(bounded.Context(t))
	wantError(t, "of none", err, watchcore.ErrInvalidArgument)
	pods.Stop()
	bounded.Receive(t, "its end", pods.Done())
	s.apply("/pods/a=x")
	_, err = informer.SameRevision(bounded.Context(t), nodes, pods)
	if !errors.Is(err, watchcore.ErrClosed) {
		t.Fatal(err)
	}
}
