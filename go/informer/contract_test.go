package informer_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	watchcore "github.com/watchcore/watchcore/go"
	"github.com/watchcore/watchcore/go/informer"
	"github.com/watchcore/watchcore/go/internal/bounded"
	"github.com/watchcore/watchcore/go/internal/contract"
	"github.com/watchcore/watchcore/go/internal/handclock"
	"github.com/watchcore/watchcore/go/watch"
)

// reflecting is an informer that a row drives, and what a handler of it was given.
type reflecting struct {
	t       *testing.T
	in      *informer.Informer[string]
	reg     *informer.Registration
	mu      sync.Mutex
	initial []string
	given   []watch.Event[string]
	synced  bool // it was said
	ended   bool
	said    bool // that it has ended
}

func (r *reflecting) Poll() bool { return false }

func (r *reflecting) OnAdd(o *informer.Object[string], initial bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := (watch.Event[string]{Type: watch.Added, Object: o.Value}); initial {
		r.initial = append(r.initial, contract.Shown(e))
	} else {
		r.given = append(r.given, e)
	}
}

func (r *reflecting) OnUpdate(old, new *informer.Object[string]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.given = append(r.given, watch.Event[string]{Type: watch.Modified, Object: new.Value, Old: old.Value, HasOld: true})
}

func (r *reflecting) OnDelete(last *informer.Object[string]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.given = append(r.given, watch.Event[string]{Type: watch.Deleted, Object: last.Value})
}

// take is what the handler was given.
func (r *reflecting) take(shown func(watch.Event[string]) string) (all []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	slices.Sort(r.initial)
	if all, r.initial = r.initial, nil; r.in.HasSynced() && !r.synced {
		r.synced = true
		all = append(all, "synced")
	}
	for _, e := range r.given {
		all = append(all, shown(e))
	}
	r.given = nil
	return all
}

func (r *reflecting) Say(words []string) []string {
	position := r.in.Lister().Position()
	switch strings.Join(words, " ") {
	case "given":
		all := r.take(contract.Shown)
		if r.ended && !r.said {
			r.said = true
			all = append(all, "end")
		}
		return contract.Line(strings.Join(all, " "))
	case "given full":
		return r.take(contract.ShownWithOld)
	case "objects":
		var all []string
		for o := range r.in.Lister().All() {
			all = append(all, fmt.Sprint(o.Value, "@", o.Revision))
		}
		slices.Sort(all)
		return contract.Line(strings.Join(all, " "))
	case "at":
		return contract.Line(fmt.Sprint(position.Revision))
	case "epoch":
		return contract.Line(fmt.Sprint(position.Epoch))
	case "stop":
		check(r.t, r.in.StopAndWait(bounded.Context(r.t)))
		wantError(r.t, "its end", r.in.Status().Err, watchcore.ErrClosed)
		r.ended = true
		return nil
	}
	panic(words[0] + " is no word of a reflector")
}

func newReflected(t *testing.T, source *contract.Source, clock *handclock.Clock) *informer.Informer[string] {
	in, err := informer.NewFromSource[string](contract.Lister{Source: source}, contract.Key, options{Clock: clock, OnError: func(error) {}})
	check(t, err)
	t.Cleanup(func() { check(t, in.StopAndWait(bounded.Context(t))) })
	return in
}

// The rows of contract/toolkit that are about a reflector.
func TestContractRowsOfTheReflector(t *testing.T) {
	contract.Rows(t, "reflector", func(t *testing.T, _ []string, source *contract.Source, clock *handclock.Clock) (contract.Machine, error) {
		r := &reflecting{t: t, in: newReflected(t, source, clock)}
		r.reg = add(t, r.in, r, informer.HandlerOptions{})
		return r, nil
	})
}

// The rows that are about a wait over a state.
func TestContractRowsOfUntilWithSync(t *testing.T) {
	type lister = *informer.Lister[string]
	type conditions = []watch.ConditionFunc[object]
	shown := func(e watch.Event[object]) string {
		plain := watch.Event[string]{Type: e.Type, Err: e.Err}
		if e.Object != nil {
			plain.Object = e.Object.Value
		}
		return contract.Shown(plain)
	}
	contract.Rows(t, "until state", func(t *testing.T, words []string, source *contract.Source, clock *handclock.Clock) (contract.Machine, error) {
		in := newReflected(t, source, clock)
		w := contract.NewWait(t, words, clock, false)
		has := contract.Precondition(w, func(state lister, key string) bool {
			_, there := state.Get(key)
			return there
		})
		contract.Begin(w, shown, func(ctx context.Context, all conditions) (*watch.Event[object], error) {
			return watch.UntilWithSync(ctx, in, has, all...)
		})
		return w, nil
	})
}

// Whatever the server did, the informer has its state in the end.
func TestRF28ReflectorSurvivesHostileServers(t *testing.T) {
	for seed := range uint64(1000) {
		server, clock := contract.NewHostile(seed, seed%2 == 0), newClock()
		in, err := informer.NewFromSource[string](contract.Besieged{Hostile: server}, contract.Key, options{Clock: clock, OnError: func(error) {}})
		check(t, err)
		server.Drive(t, clock, runtime.Gosched, func() bool {
			truth, revision := server.Truth()
			return in.HasSynced() && objects(in) == strings.Join(truth, " ") && in.Lister().Position().Revision == revision
		})
		check(t, in.StopAndWait(bounded.Context(t)))
	}
}
