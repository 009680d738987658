package informer_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	watchcore "github.com/watchcore/watchcore/go"
	"github.com/watchcore/watchcore/go/informer"
	"github.com/watchcore/watchcore/go/internal/bounded"
)

// flighty is an index function that answers differently each time, panics and ends its goroutine, and remembers
// what it said.
type flighty struct {
	mu    sync.Mutex
	calls int
	said  map[string][]string // by key, value and revision
}

func (f *flighty) of(o *informer.Object[string]) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	id := fmt.Sprint(o.Key, "=", o.Value, "@", o.Revision)
	f.said[id] = nil
	switch f.calls % 11 {
	case 3:
		panic("the function's fault")
	case 7:
		runtime.Goexit()
	}
	values := []string{fmt.Sprint("call", f.calls%5), o.Value, fmt.Sprint("call", f.calls%3)}
	slices.Sort(values)
	f.said[id] = slices.Compact(values)
	return slices.Clone(f.said[id])
}

// short has objects with short values under one value: often all of them, which then share a map with the objects.
func short(o *informer.Object[string]) []string {
	if len(o.Value) > 1 {
		return nil
	}
	return []string{"short"}
}

// A thousand histories over a function that is no function: after each of them, every object is under what was said of its
// version and under nothing else, and a reader beside them never sees half a revision.
func TestSI10HostileFunctionsEqualWhatTheySaid(t *testing.T) {
	histories := uint64(1000)
	if testing.Short() {
		histories = 100
	}
	for seed := range histories {
		hostileHistory(t, seed)
	}
}

func hostileHistory(t *testing.T, seed uint64) {
	dice := rand.New(rand.NewPCG(seed, 39))
	cache, err := watchcore.New(watchcore.Config{})
	check(t, err)
	defer cache.Close()
	writer, err := cache.Writer()
	check(t, err)
	defer writer.Close()
	s := &source{t, cache, writer, 1}
	f := &flighty{said: map[string][]string{}}
	all := func(o *informer.Object[string]) []string { return []string{"all"} }
	in, err := informer.New(cache, decode, options{Indexers: informer.Indexers[string]{"flighty": f.of, "all": all, "short": short}, Window: 16})
	check(t, err)
	defer func() { check(t, in.StopAndWait(bounded.Context(t))) }()
	state := map[string]string{}
	for range 1 + dice.IntN(4) {
		randomRevisions(s, state, dice)
		// Two keys that change together, with a value between them that is refused.
		pair := fmt.Sprint(s.next)
		s.apply("/x="+pair, "/refused=bad", "/y="+pair)
		state["/x"], state["/y"] = pair, pair
		list, err := in.Lister().ByIndex("all", "all")
		check(t, err)
		wholePairs(t, list, seed)
	}
	s.settled(in)
	now := in.Current()
	byIndex := map[string][]string{}
	sets, err := now.IndexValues("flighty")
	check(t, err)
	for _, set := range sets {
		list, err := now.ByIndex("flighty", set)
		check(t, err)
		if len(list) == 0 {
			t.Fatalf("seed %d: %q is a value without an object", seed, set)
		}
		for _, o := range list {
			id := fmt.Sprint(o.Key, "=", o.Value, "@", o.Revision)
			byIndex[id] = append(byIndex[id], set)
		}
	}
	for index, has := range map[string]func(*informer.Object[string]) []string{"all": all, "short": short} {
		list, err := now.ByIndex(index, index)
		check(t, err)
		wanted := now.Select(func(o *informer.Object[string]) bool { return len(has(o)) > 0 })
		want(t, fmt.Sprintf("seed %d: %s", seed, index), values(list), values(wanted))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	said := map[string][]string{}
	for _, o := range now.List() {
		id := fmt.Sprint(o.Key, "=", o.Value, "@", o.Revision)
		if len(f.said[id]) > 0 {
			said[id] = f.said[id]
		}
		want(t, fmt.Sprintf("seed %d: %s", seed, o.Key), o.Value, state[o.Key])
	}
	for id := range byIndex {
		slices.Sort(byIndex[id])
	}
	if fmt.Sprint(byIndex) != fmt.Sprint(said) {
		t.Fatalf("seed %d:\n got %v\nwant %v", seed, byIndex, said)
	}
	want(t, fmt.Sprintf("seed %d: objects", seed), now.Len(), len(slices.Collect(maps.Keys(state))))
}

// wholePairs says that no revision is there in part.
func wholePairs(t *testing.T, list []*informer.Object[string], seed uint64) {
	t.Helper()
	found := map[string]string{}
	for _, o := range list {
		found[strings.TrimPrefix(o.Key, "/")] = o.Value
	}
	want(t, fmt.Sprintf("seed %d: the pair", seed), found["x"], found["y"])
}

// OnError is called behind the lock below which an index's function runs: it may call the informer, and wait for
// another goroutine that does.
func TestFaultErrorHandlerCallsTheInformer(t *testing.T) {
	s := newSource(t, watchcore.Config{})
	var in *informer.Informer[string]
	made, answers := make(chan struct{}), make(chan error, 2)
	var added atomic.Int32
	in = s.informer(options{
		Indexers: informer.Indexers[string]{"sick": func(o *informer.Object[string]) []string { panic("not loaded") }},
		OnError: func(error) {
			<-made
			other := make(chan error, 1)
			name := fmt.Sprint("more", added.Add(1))
			go func() {
				other <- in.AddIndexers(informer.Indexers[string]{name: words})
			}()
			answers <- bounded.Receive(t, "the other goroutine's answer", other)
		},
	})
	close(made)
	s.apply("/a=red")
	check(t, bounded.Receive(t, "its answer", answers))
	s.settled(in)
	list, err := in.Lister().ByIndex("more1", "red")
	check(t, err)
	want(t, "red", values(list), "/a=red")
}
