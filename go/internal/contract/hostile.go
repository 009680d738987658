package contract

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/watchcore/watchcore/go/internal/bounded"
	"github.com/watchcore/watchcore/go/internal/handclock"
	"github.com/watchcore/watchcore/go/watch"
)

// Hostile is a server that cuts watches, refuses requests, compacts, goes back and lies, and is
// honest in the end. Revision n is the n-th entry of its history.
type Hostile struct {
	seed     uint64
	mu       sync.Mutex
	dice     *rand.Rand
	history  []map[string]string // the changes of each revision; "" is a deletion
	oldest   int
	marked   bool // its events mark the last event of each revision
	honest   bool
	wentBack bool // no client has listed since goBack: it writes nothing, because clients could not tell a new history that overtakes them from theirs
	open     *Fed
	values   int
}

// NewHostile makes the server of a seed.
func NewHostile(seed uint64, marked bool) *Hostile {
	h := &Hostile{seed: seed, dice: rand.New(rand.NewPCG(seed, 1)), marked: marked}
	h.write()
	return h
}

func (h *Hostile) state() map[string]watch.Item[string] {
	state := map[string]watch.Item[string]{}
	for n, changes := range h.history {
		for key, value := range changes {
			if delete(state, key); value != "" {
				state[key] = watch.Item[string]{Object: key + "=" + value, Revision: uint64(n + 1)}
			}
		}
	}
	return state
}

// Truth returns the server's state and revision.
func (h *Hostile) Truth() ([]string, uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var objects []string
	for _, item := range h.state() {
		objects = append(objects, item.Object)
	}
	slices.Sort(objects)
	return objects, uint64(len(h.history))
}

// write appends a revision of one to three keys.
func (h *Hostile) write() {
	state, changes := h.state(), map[string]string{}
	for range 1 + h.dice.IntN(3) {
		key := fmt.Sprint("/", h.dice.IntN(5))
		h.values++
		changes[key] = fmt.Sprint(h.values)
		if _, there := state[key]; there && h.dice.IntN(3) == 0 {
			changes[key] = ""
		}
	}
	h.history = append(h.history, changes)
	if h.open != nil {
		h.open.push(h.events(len(h.history)-1), false)
	}
}

// goBack acts as a restored backup: its newest revisions vanish. The first of these has one change,
// because a RetryWatcher that received half of a vanished revision could not detect that.
func (h *Hostile) goBack() {
	length := len(h.history)/2 + 1
	for length > 0 && length < len(h.history) && len(h.history[length]) > 1 {
		length--
	}
	if length == 0 {
		return
	}
	h.history, h.oldest, h.wentBack = h.history[:min(length, len(h.history))], min(h.oldest, length), true
	h.close()
}

func (h *Hostile) close() {
	if h.open != nil {
		h.open.push(nil, true)
		h.open = nil
	}
}

func (h *Hostile) events(from int) []watch.Event[string] {
	var events []watch.Event[string]
	for n := from; n < len(h.history); n++ {
		keys := slices.Sorted(maps.Keys(h.history[n]))
		for i, key := range keys {
			e := watch.Event[string]{Type: watch.Modified, Object: key + "=" + h.history[n][key],
				Revision: uint64(n + 1), ObjectRevision: uint64(n + 1)}
			if h.history[n][key] == "" {
				e.Type = watch.Deleted
			}
			if h.marked && i+1 < len(keys) {
				e.Revision--
			}
			events = append(events, e)
		}
	}
	return events
}

func (h *Hostile) refusal() error {
	codes := []int{400, 404, 410, 429, 500, 502, 503, 504, 666}
	return &watch.Status{Code: codes[h.dice.IntN(len(codes))], Message: "in this mood"}
}

// List lists a state that is not older than a revision.
func (h *Hostile) List(atLeast uint64) Page {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.honest && h.dice.IntN(4) == 0 {
		return Page{Err: h.refusal()}
	}
	if atLeast > uint64(len(h.history)) {
		return Page{Err: &watch.Status{Code: 504, Message: "too large a revision"}}
	}
	h.wentBack = false
	return Page{Items: slices.Collect(maps.Values(h.state())), Revision: uint64(len(h.history))}
}

// Watch opens a watch after a revision.
func (h *Hostile) Watch(_ context.Context, after uint64) (watch.Interface[string], error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.open = nil
	mood, from, newest, w := 12, int(after), len(h.history), newFed()
	if !h.honest {
		mood = h.dice.IntN(12)
	}
	mark := []watch.Event[string]{{Type: watch.Bookmark, Revision: uint64(min(newest, max(from, 1)))}}
	switch {
	case mood == 0:
		return nil, h.refusal()
	case mood == 1:
		return nil, nil
	case mood == 2:
		w.push(mark, true)
	case mood == 3 && from > newest:
		w.push(mark, false)
	case from > newest:
		return nil, &watch.Status{Code: 504, Message: "too large a revision"}
	case from < h.oldest:
		return nil, &watch.Status{Code: 410, Message: "compacted"}
	case mood >= 4 && mood <= 8: // some of its events, perhaps preceded by earlier revisions
		if mood == 4 {
			from = min(from, max(1, from-3))
		}
		events := h.events(from)
		events = events[:min(len(events), h.dice.IntN(8))]
		if mood == 8 {
			events = append(events, watch.Event[string]{Type: watch.Error, Err: h.refusal()})
		}
		w.push(events, true)
	default:
		w.push(h.events(from), false)
		h.open = w
	}
	return w, nil
}

// hostilities is the number of faults of the server before it becomes honest.
const hostilities = 60

// Drive moves the server and the clock, first hostile, then honest, until the check holds; poll
// takes the available events.
func (h *Hostile) Drive(t testing.TB, clock *handclock.Clock, poll func(), holds func() bool) {
	for round := range hostilities {
		h.mu.Lock()
		switch one := h.dice.IntN(10); {
		case one <= 5 && !h.wentBack:
			h.write()
		case one == 6:
			h.close()
		case one == 7:
			h.oldest = len(h.history)
		case one == 8:
			h.goBack()
		}
		h.mu.Unlock()
		poll()
		if round%3 != 0 {
			_, first := clock.Timers()
			clock.Advance(min(first, 31*time.Second))
		}
	}
	h.mu.Lock()
	h.honest = true
	h.mu.Unlock()
	bounded.Eventually(t, fmt.Sprintf("seed %d: it has the server's state", h.seed), func() bool {
		poll()
		if holds() {
			return true
		}
		// The server ends its watches, so that a watch that started inside a vanished revision finds out.
		_, first := clock.Timers()
		clock.Advance(max(first, 2*time.Second))
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.open != nil && h.open.idle() {
			h.close()
		}
		return false
	})
}
