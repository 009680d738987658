package watch

import (
	"context"
	"iter"
	"math"
	"sync"
	"sync/atomic"
)

// Watcher is a watch of a [Broadcaster]: a position in its log. Read it with Next, All, or
// ResultChan; Stop it in the end, or publishers wait for it where its policy is Wait.
//
// All methods may be called from any goroutine. Several readers share the events.
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
	if err := ctx.Err(); err != nil {
		return Event[T]{}, err
	}
	waited := uint64(0)
	for {
		if c := w.channel.Load(); c != nil {
			return receive(ctx, *c)
		}
		w.mu.Lock()
		if w.channel.Load() != nil {
			w.waiting -= waited
			w.mu.Unlock()
			continue
		}
		e, head, state := w.take(waited)
		if state != nothing {
			w.mu.Unlock()
			if state == ended {
				return e, ErrEnded
			}
			return e, nil
		}
		waited = 1
		w.waiting++
		w.mu.Unlock()
		select {
		case <-w.b.log.Wait(head):
		case <-w.gone:
		case <-ctx.Done():
			w.leave()
			return Event[T]{}, ctx.Err()
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

// All is the watch as a loop, until its end or that of the context. To leave the loop does not
// stop the watch.
func (w *Watcher[T]) All(ctx context.Context) iter.Seq[Event[T]] { return All(ctx, w) }

// taken is what take has found.
type taken int

const (
	nothing taken = iota // nothing yet
	event                // an event
	ended                // nothing will come any more
)

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

// take gives the next event, if there is one. The caller holds the lock; waited says that it was
// counted as waiting, which this ends.
func (w *Watcher[T]) take(waited uint64) (e Event[T], head uint64, state taken) {
	over := w.over()
	head = w.head()
	if w.behavior == DropIfChannelFull {
		w.look(head)
	}
	w.waiting -= waited
	e, ok := w.peek(head)
	switch {
	case ok:
		w.advance()
		state = event
	case over:
		state = ended
	}
	return e, head, state
}

// peek is the next event, which advance takes. It belongs to who owns prefix and queue.
func (w *Watcher[T]) peek(head uint64) (e Event[T], ok bool) {
	switch {
	case len(w.prefix) > 0:
		return w.prefix[0], true
	case w.behavior == DropIfChannelFull:
		return w.peekAccepted()
	}
	return w.peekNext(head)
}

func (w *Watcher[T]) advance() {
	switch {
	case len(w.prefix) > 0:
		w.prefix[0] = Event[T]{}
		w.prefix = w.prefix[1:]
	case w.behavior == DropIfChannelFull:
		w.queue.took()
		return
	default:
		w.queue.seen++
		w.queue.lost = 0
	}
	if w.behavior == WaitIfChannelFull {
		w.b.took(&w.member)
	}
}

// peekNext is peek with the policy Wait: the next number. It is in the log, because the gate
// holds the publishers back; only after Stop can it have left.
func (w *Watcher[T]) peekNext(head uint64) (e Event[T], ok bool) {
	for w.queue.seen < head {
		if e, ok = w.read(w.queue.seen); ok {
			e.Lost += w.queue.lost
			return e, true
		}
		w.skip(head)
	}
	return e, false
}

// peekAccepted is peek with the policy Drop.
func (w *Watcher[T]) peekAccepted() (e Event[T], ok bool) {
	for {
		number, lost, ok := w.queue.first()
		if !ok {
			return e, false
		}
		if e, ok = w.read(number); ok {
			e.Lost += lost
			return e, true
		}
		w.dropped.Add(w.queue.forget(max(w.b.log.Oldest(), number+1)))
	}
}

func (w *Watcher[T]) read(number uint64) (Event[T], bool) {
	var into [1]Event[T]
	n, _ := w.b.log.Read(number, into[:])
	return into[0], n == 1
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
