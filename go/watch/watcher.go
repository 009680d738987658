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
// ResultChan; Stop it in the end, or publishers wait for it where its policy is Wait.
//
// All methods may be called from any goroutine. Several readers share the events. A watcher that is
// read by a channel is not read otherwise at the same time.
type Watcher[T any] struct {
	b        *Broadcaster[T]
	behavior FullChannelBehavior
	places   int // the length of its queue

	member member // Wait
	stop   sync.Once
	gone   chan struct{} // closed by Stop
	end    atomic.Uint64 // Stop's head: nothing from there on is given

	dropped atomic.Uint64
	channel atomic.Pointer[chan Event[T]]

	mu      sync.Mutex
	prefix  []Event[T] // given first
	queue   accepted   // Drop; with Wait only seen counts: the next number
	waiting uint64     // readers that sleep in Next: each takes an event past the queue
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
	// The prefix counts as taken when it is, so the sum grows from here.
	w.member.base = start + uint64(places) + uint64(b.incoming) - uint64(len(prefix))
	return w
}

// Stop ends the watch. What was published before can still be read, then comes the end. It waits
// for nobody, releases publishers that wait for this watcher, and may be called any number of times.
func (w *Watcher[T]) Stop() {
	w.stop.Do(func() {
		w.end.Store(w.b.log.Head())
		close(w.gone)
		if w.behavior == WaitIfChannelFull {
			w.b.leave(&w.member)
		}
	})
}

// Dropped is how many events this watcher has lost so far, because its queue was full or because
// the log went on without it. It counts those, too, that the next event will report in Lost.
func (w *Watcher[T]) Dropped() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.behavior == DropIfChannelFull && w.channel.Load() == nil {
		w.look(w.head())
	}
	return w.dropped.Load()
}

// Next takes the next event, waiting for it if it must; see [Puller]. After ResultChan it takes from
// the channel. It needs no goroutine, and costs the same however many other watchers there are.
func (w *Watcher[T]) Next(ctx context.Context) (Event[T], error) {
	var one [1]Event[T]
	_, err := w.NextBatch(ctx, one[:])
	return one[0], err
}

// NextBatch takes as many events as there are and fit, at least one: it waits for the first. They
// count as taken, all at once. After ResultChan it takes one event from the channel. The errors are
// those of Next, and one where nothing fits.
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

// leave gives up waiting. What was published meanwhile came while a reader waited, and is counted so.
func (w *Watcher[T]) leave() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.behavior == DropIfChannelFull && w.channel.Load() == nil {
		w.look(w.head())
	}
	w.waiting--
}

// batchOfAll is how many events All takes at once.
const batchOfAll = 16

// All is the watch as a loop, until its end or that of the context. It takes up to 16 events at once;
// what the loop has not seen when it is left goes back, and is the next to be taken. To leave the
// loop does not stop the watch.
func (w *Watcher[T]) All(ctx context.Context) iter.Seq[Event[T]] {
	return func(yield func(Event[T]) bool) {
		var batch [batchOfAll]Event[T]
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
				// A loop that takes long should not keep what it has seen.
				batch[seen] = Event[T]{}
				seen++
				if !yield(e) {
					return
				}
			}
		}
	}
}

// putBack makes events the next ones again. Publishers that went on because of them stay where they
// are. If somebody has made a channel meanwhile the events are behind what is in it: they are lost.
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

// head is how far this watcher may read. It is the end once the log is closed or the watch stopped.
func (w *Watcher[T]) head() uint64 {
	return min(w.b.log.Head(), w.end.Load())
}

// over says whether the head is the end. To be called before the head is loaded.
func (w *Watcher[T]) over() bool {
	return w.b.log.Closed() || w.end.Load() != math.MaxUint64
}

// look accepts what the log has for a watcher with the policy Drop. A reader that waits takes one
// event that needs no place. The caller holds the lock.
func (w *Watcher[T]) look(head uint64) {
	places := uint64(w.places) - min(uint64(w.places), uint64(len(w.prefix))) + w.waiting
	w.dropped.Add(w.queue.look(head, w.b.log.Oldest(), places))
}

// take gives what there is, and whether more can come. The caller holds the lock; waited says that it
// was counted as waiting, which this ends.
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

// fetch copies next events, and consume takes as many of them as it is given. More may be there
// than it copies: ask until there is none. It belongs to who owns prefix and queue.
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

// fetchNext is fetch with the policy Wait: the next numbers. They are in the log, because the gate
// holds the publishers back; only after Stop can they have left.
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

// fetchAccepted is fetch with the policy Drop: of the first run.
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

// skip makes lost what has left the log at the watcher's number.
func (w *Watcher[T]) skip(head uint64) {
	w.lose(min(max(w.b.log.Oldest(), w.queue.seen+1), head))
}

// lose makes everything below a number lost.
func (w *Watcher[T]) lose(to uint64) {
	w.dropped.Add(to - w.queue.seen)
	w.queue.lost += to - w.queue.seen
	w.queue.seen = to
}
