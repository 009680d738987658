package watch

import (
	"context"
	"errors"
	"iter"
	"math"
	"slices"
	"sync"
	"sync/atomic"
)

// Watcher is a watch of a [Broadcaster]: a position in its log. Read it with Next, All, or
// ResultChan, and Stop it in the end: otherwise publishers wait for a Wait watcher.
//
// All methods may be called from any goroutine. Several readers share the events. After ResultChan,
// read a watcher only by its channel.
type Watcher[T any] struct {
	b        *Broadcaster[T]
	behavior FullChannelBehavior
	places   int // the length of its queue

	member member // for the policy Wait
	stop   sync.Once
	gone   chan struct{} // closed by Stop
	end    atomic.Uint64 // the head at Stop: events from there on are not delivered

	dropped atomic.Uint64
	channel atomic.Pointer[chan Event[T]]

	mu      sync.Mutex
	prefix  []Event[T] // delivered first
	queue   accepted   // for the policy Drop; with Wait only seen is used, the next number
	waiting uint64     // readers that sleep in Next: each takes an event that needs no slot of the queue
}

func newWatcher[T any](b *Broadcaster[T], behavior FullChannelBehavior, places int, prefix []Event[T], start uint64) *Watcher[T] {
	w := &Watcher[T]{
		b:        b,
		behavior: behavior,
		places:   places,
		gone:     make(chan struct{}),
		prefix:   append([]Event[T](nil), prefix...),
	}
	w.end.Store(math.MaxUint64)
	w.queue.seen = start
	// The prefix is subtracted here, because taking its events adds to taken.
	w.member.base = start + uint64(places) + uint64(b.incoming) - uint64(len(prefix))
	return w
}

// Stop ends the watch. Events that were published before can still be read. Stop does not wait,
// releases publishers that wait for this watcher, and may be called any number of times.
func (w *Watcher[T]) Stop() {
	w.stop.Do(func() {
		w.end.Store(w.b.log.Head())
		close(w.gone)
		if w.behavior == WaitIfChannelFull {
			w.b.leave(&w.member)
		}
	})
}

// Dropped returns how many events this watcher has lost so far, because its queue was full or
// because they left the log. Dropped includes those that the next event will report in Lost.
func (w *Watcher[T]) Dropped() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.behavior == DropIfChannelFull && w.channel.Load() == nil {
		w.look(w.head())
	}
	return w.dropped.Load()
}

// Next takes the next event, and waits for it if necessary; see [Puller]. After ResultChan it takes from the
// channel. Next needs no goroutine, and its cost does not depend on the number of other watchers.
func (w *Watcher[T]) Next(ctx context.Context) (Event[T], error) {
	var one [1]Event[T]
	_, err := w.NextBatch(ctx, one[:])
	return one[0], err
}

// NextBatch takes all available events that fit, at least one: it waits for the first. They count
// as taken, all at once. After ResultChan it takes one event from the channel. The errors are those
// of Next, and one for an empty slice.
func (w *Watcher[T]) NextBatch(ctx context.Context, into []Event[T]) (n int, err error) {
	if len(into) == 0 {
		return 0, errors.New("watch: a batch of no events was asked for: give a slice with a place for one at least")
	}
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	waited := uint64(0)
	for {
		w.mu.Lock()
		if c := w.channel.Load(); c != nil {
			w.waiting -= waited
			w.mu.Unlock()
			if into[0], err = receive(ctx, *c); err != nil {
				return 0, err
			}
			return 1, nil
		}
		n, head, over := w.take(into, waited)
		if n == 0 && !over {
			w.waiting++
		}
		w.mu.Unlock()
		switch {
		case n > 0:
			return n, nil
		case over:
			return 0, ErrEnded
		}
		waited = 1
		select {
		case <-w.b.log.Wait(head):
		case <-w.gone:
		case <-ctx.Done():
			w.leave()
			return 0, ctx.Err()
		}
	}
}

// leave ends a wait. Events that were published meanwhile count as published while a reader waited.
func (w *Watcher[T]) leave() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.behavior == DropIfChannelFull && w.channel.Load() == nil {
		w.look(w.head())
	}
	w.waiting--
}

// allBatch is the number of events that All takes at once.
const allBatch = 16

// All iterates over the events of the watch until it ends or the context is done. All takes up to 16
// events at once; if the loop is left, events that it has not seen are put back, and are taken
// next. Leaving the loop does not stop the watch.
func (w *Watcher[T]) All(ctx context.Context) iter.Seq[Event[T]] {
	return func(yield func(Event[T]) bool) {
		var batch [allBatch]Event[T]
		n, seen := 0, 0
		defer func() { w.putBack(batch[seen:n]) }()
		for {
			var err error
			seen = 0
			if n, err = w.NextBatch(ctx, batch[:]); err != nil {
				return
			}
			for seen < n {
				e := batch[seen]
				// A loop body that runs long should not keep the event reachable.
				batch[seen] = Event[T]{}
				seen++
				if !yield(e) {
					return
				}
			}
		}
	}
}

// putBack makes events the next ones again. Publishers that have continued because of them are not
// undone. If a channel was made meanwhile, the events would follow newer ones in it: they are lost.
func (w *Watcher[T]) putBack(events []Event[T]) {
	if len(events) == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.channel.Load() != nil {
		w.dropped.Add(uint64(len(events)))
		return
	}
	w.prefix = append(slices.Clone(events), w.prefix...)
	w.member.taken.Add(-uint64(len(events)))
}

// head returns how far this watcher may read. head is the final position once the log is closed or
// the watch stopped.
func (w *Watcher[T]) head() uint64 {
	return min(w.b.log.Head(), w.end.Load())
}

// over reports whether head is the final position. over must be called before head.
func (w *Watcher[T]) over() bool {
	return w.b.log.Closed() || w.end.Load() != math.MaxUint64
}

// look updates the queue of a Drop watcher from the log. Each waiting reader takes one event that
// needs no slot. The caller holds the lock.
func (w *Watcher[T]) look(head uint64) {
	places := uint64(w.places) - min(uint64(w.places), uint64(len(w.prefix))) + w.waiting
	w.dropped.Add(w.queue.look(head, w.b.log.Oldest(), places))
}

// take takes the available events, and reports whether more can come. The caller holds the lock;
// waited is 1 if the reader was counted as waiting, which ends here.
func (w *Watcher[T]) take(into []Event[T], waited uint64) (n int, head uint64, over bool) {
	over = w.over()
	head = w.head()
	if w.behavior == DropIfChannelFull {
		w.look(head)
	}
	w.waiting -= waited
	for n < len(into) {
		k := w.fetch(into[n:], head)
		if k == 0 {
			break
		}
		w.consume(k)
		n += k
	}
	return n, head, over
}

// fetch copies the next events, and consume takes as many of them as it is told. There may be more events
// than fetch copies: call it until it returns 0. Both belong to the owner of prefix and queue.
func (w *Watcher[T]) fetch(into []Event[T], head uint64) int {
	switch {
	case len(w.prefix) > 0:
		return copy(into, w.prefix)
	case w.behavior == DropIfChannelFull:
		return w.fetchAccepted(into)
	}
	return w.fetchNext(into, head)
}

func (w *Watcher[T]) consume(n int) {
	switch {
	case len(w.prefix) > 0:
		clear(w.prefix[:n])
		if w.prefix = w.prefix[n:]; len(w.prefix) == 0 {
			w.prefix = nil
		}
	case w.behavior == DropIfChannelFull:
		w.queue.took(uint64(n))
		return
	default:
		w.queue.seen += uint64(n)
		w.queue.lost = 0
	}
	if w.behavior == WaitIfChannelFull {
		w.b.took(&w.member, uint64(n))
	}
}

// fetchNext is fetch for the policy Wait: the next numbers. They are in the log, because the gate
// holds publishers back; only after Stop can they have left it.
func (w *Watcher[T]) fetchNext(into []Event[T], head uint64) int {
	for w.queue.seen < head {
		n, ok := w.b.log.Read(w.queue.seen, into[:min(uint64(len(into)), head-w.queue.seen)])
		if ok {
			into[0].Lost += w.queue.lost
			return n
		}
		w.skip(head)
	}
	return 0
}

// fetchAccepted is fetch for the policy Drop: from the first run.
func (w *Watcher[T]) fetchAccepted(into []Event[T]) int {
	for {
		r, ok := w.queue.first()
		if !ok {
			return 0
		}
		n, ok := w.b.log.Read(r.from, into[:min(uint64(len(into)), r.end-r.from)])
		if ok {
			into[0].Lost += r.lost
			return n
		}
		w.dropped.Add(w.queue.forget(max(w.b.log.Oldest(), r.from+1)))
	}
}

// skip marks the events from the watcher's number on that have left the log as lost.
func (w *Watcher[T]) skip(head uint64) {
	w.lose(min(max(w.b.log.Oldest(), w.queue.seen+1), head))
}

// lose marks all events below a number as lost.
func (w *Watcher[T]) lose(to uint64) {
	w.dropped.Add(to - w.queue.seen)
	w.queue.lost += to - w.queue.seen
	w.queue.seen = to
}
