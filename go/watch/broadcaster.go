package watch

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/watchcore/watchcore/go/internal/journal"
)

const (
	// incomingQueue is how far publishers may run ahead of the watchers' queues. In apimachinery's
	// broadcaster this is a channel of capacity 25, and the event in the hands of the goroutine
	// that distributes. Programs that publish and read on one goroutine rely on it.
	incomingQueue = 25
	inHand        = 1
	// historyFactor times the longest queue is the minimum length of the log, so that an event that
	// a stalled watcher has accepted stays for some time.
	historyFactor = 4
	// maxQueue bounds queues and histories. Only the channel of a watcher that uses one is
	// allocated by the length of its queue.
	maxQueue = math.MaxInt32
)

// ErrBroadcasterStopped is the error of a Broadcaster's methods after its Shutdown.
var ErrBroadcasterStopped = errors.New("broadcaster already stopped")

// Broadcaster distributes events to any number of watchers. All of them read one log, each from its
// own position, so publishing costs nothing per watcher, except for watchers that publishers wait
// for. If many watchers sleep, a separate goroutine wakes them. An unread watcher costs no work per
// event, unless it has a channel, whose goroutine checks each event.
//
// An event's Revision is its number in the broadcaster, from 1. All methods may be called from any goroutine.
type Broadcaster[T any] struct {
	queue    Queue
	incoming int

	// turn has a token for the publisher that waits for a free slot. Later publishers wait for the
	// token, in order of arrival, and ActionOrDrop does not wait for them.
	turn chan struct{}

	// mu protects the fields below. mu is never held during a wait.
	mu      sync.Mutex
	log     *journal.Journal[Event[T]]
	kept    int // the minimum number of events in the log
	gate    gate
	inLine  int // publishers that wait for a slot, or for the token
	stopped bool

	// down is closed by Shutdown.
	down chan struct{}
}

// BroadcasterOptions are the options of [NewBroadcasterWithOptions].
type BroadcasterOptions struct {
	// Queue is the default queue of watchers. Its zero value is WaitQueue(0).
	Queue Queue
	// Incoming is how far publishers may run ahead of the slowest Wait watcher beyond its queue. 0
	// means 25; -1 means not at all.
	Incoming int
	// History is the minimum number of events kept for watchers that start later and for those that
	// are behind. Four times the longest queue are kept in any case.
	History int
}

// NewBroadcaster makes a broadcaster whose watchers have queues of the given length. Four times
// that many events, and some more, stay in memory.
//
// With WaitIfChannelFull publishers may run ahead of the slowest watcher by its queue and 26 more
// events: as many as apimachinery's broadcaster has in its incoming queue and in its hands. With
// DropIfChannelFull they never wait.
//
// A negative length panics, as make(chan T, -1) does.
func NewBroadcaster[T any](queueLength int, behavior FullChannelBehavior) *Broadcaster[T] {
	return must[T](BroadcasterOptions{Queue: Queue{queueLength, behavior, true}})
}

// NewLongQueueBroadcaster makes a broadcaster whose publishers may run ahead by a second queue of
// the same length instead of the 25 events.
func NewLongQueueBroadcaster[T any](queueLength int, behavior FullChannelBehavior) *Broadcaster[T] {
	incoming := queueLength
	if incoming == 0 {
		incoming = -1
	}
	return must[T](BroadcasterOptions{Queue: Queue{queueLength, behavior, true}, Incoming: incoming})
}

func must[T any](options BroadcasterOptions) *Broadcaster[T] {
	b, err := NewBroadcasterWithOptions[T](options)
	if err != nil {
		panic(err.Error())
	}
	return b
}

// NewBroadcasterWithOptions makes a broadcaster. Its error names the option that is out of bounds.
func NewBroadcasterWithOptions[T any](options BroadcasterOptions) (*Broadcaster[T], error) {
	if err := options.Queue.check(); err != nil {
		return nil, fmt.Errorf("watch: Queue: %w", err)
	}
	if options.Incoming < -1 || options.Incoming > maxQueue {
		return nil, fmt.Errorf("watch: Incoming of %d was asked for: -1 (none), 0 (%d) to %d are possible", options.Incoming, incomingQueue, maxQueue)
	}
	if options.History < 0 || options.History > maxQueue {
		return nil, fmt.Errorf("watch: History of %d was asked for: 0 to %d are possible", options.History, maxQueue)
	}
	// Without the additional slot nothing could be published to a queue of length 0.
	incoming := max(options.Incoming, 0) + inHand
	if options.Incoming == 0 {
		incoming = incomingQueue + inHand
	}
	b := &Broadcaster[T]{
		queue:    options.Queue,
		incoming: incoming,
		gate:     newGate(),
		turn:     make(chan struct{}, 1),
		down:     make(chan struct{}),
	}
	b.turn <- struct{}{}
	b.kept = max(options.History, b.window(options.Queue.length))
	b.log = journal.New[Event[T]](b.kept)
	return b, nil
}

// window returns the number of events that the log keeps for a queue of this length.
func (b *Broadcaster[T]) window(length int) int {
	return max(historyFactor*length, length+b.incoming)
}

// Action publishes an event. If the queue of a Wait watcher is full, Action waits until that
// watcher has taken an event or has stopped, or until Shutdown. A watcher's own goroutine must
// therefore not publish more than its queue holds. The error is ErrBroadcasterStopped.
//
// For an event of type Error, Event.Err is the object if it is an error, otherwise a *Status with
// its text. Such an event is like any other: watchers continue after it until Shutdown.
func (b *Broadcaster[T]) Action(action EventType, obj T) error {
	return b.Publish(explained(Event[T]{Type: action, Object: obj}))
}

// ActionOrDrop publishes an event unless it would have to wait, also for another publisher that
// waits: then it returns (false, nil). The error is ErrBroadcasterStopped.
func (b *Broadcaster[T]) ActionOrDrop(action EventType, obj T) (bool, error) {
	blocked, err := b.try(explained(Event[T]{Type: action, Object: obj}))
	return err == nil && !blocked, err
}

// Publish is Action for an event with all its fields, for example Old. The broadcaster sets
// Revision, and the watchers set Lost.
func (b *Broadcaster[T]) Publish(e Event[T]) error {
	return b.PublishContext(context.Background(), e)
}

// PublishContext is Publish, limited by its context. If it returns the context's error, nothing was
// published, and the publishers that came later keep their order.
func (b *Broadcaster[T]) PublishContext(ctx context.Context, e Event[T]) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if done, err := b.pass(e); done {
		return err
	}
	defer b.leaveLine()
	select {
	case <-b.turn:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { b.turn <- struct{}{} }()
	for {
		blocked, err := b.try(e)
		if !blocked || err != nil {
			return err
		}
		// The blocking watcher is marked and will open the gate; a stale token only makes this
		// publisher check again.
		select {
		case <-b.gate.opened:
		case <-b.down:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (b *Broadcaster[T]) leaveLine() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.inLine--
}

// pass publishes if no publisher waits and the gate is open. Otherwise it counts this publisher as waiting.
func (b *Broadcaster[T]) pass(e Event[T]) (done bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.inLine == 0 {
		if blocked, err := b.append(e); !blocked {
			return true, err
		}
	}
	b.inLine++
	return false, nil
}

func (b *Broadcaster[T]) try(e Event[T]) (blocked bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.append(e)
}

// append publishes if the gate is open. The caller holds the lock.
func (b *Broadcaster[T]) append(e Event[T]) (blocked bool, err error) {
	if b.stopped {
		return false, ErrBroadcasterStopped
	}
	head := b.log.Head()
	if b.gate.shutFor(head) != nil {
		return true, nil
	}
	e.Revision, e.Lost = head+1, 0
	b.log.Append(e)
	return false, nil
}

// Revision returns the revision of the newest event; 0 before the first.
func (b *Broadcaster[T]) Revision() uint64 { return b.log.Head() }

// Shutdown ends the broadcaster. Watchers get the events that were published before and then their
// end; waiting publishers, and all later calls, get ErrBroadcasterStopped. Shutdown does not wait,
// and may be called any number of times.
func (b *Broadcaster[T]) Shutdown() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stopped {
		return
	}
	b.stopped = true
	b.log.Close()
	close(b.down)
}

// Start is the position where a watcher starts. [StartAfter] makes one; the zero value starts with
// the next event.
type Start struct {
	after uint64
	given bool
}

// StartAfter starts after a revision, with the events that the log still has. With the revision of
// the last event that a watcher has taken, the new watcher continues where that watcher was.
func StartAfter(revision uint64) Start { return Start{revision, true} }

// WatchOptions are the options of [Broadcaster.WatchWithOptions].
type WatchOptions[T any] struct {
	// Queue is the watcher's queue; the zero value is the broadcaster's.
	Queue Queue
	// Prefix are events that the watcher gets before all others, unchanged.
	Prefix []Event[T]
	// Start is where the watcher continues after its prefix; the zero value is the next event.
	Start Start
}

// Watch opens a watcher that gets the events published from now on. Watch does not wait. The error is
// ErrBroadcasterStopped.
func (b *Broadcaster[T]) Watch() (*Watcher[T], error) {
	return b.WatchWithOptions(WatchOptions[T]{})
}

// WatchWithPrefix opens a watcher that first gets the given events. Its queue holds at least these
// and one more.
func (b *Broadcaster[T]) WatchWithPrefix(queuedEvents []Event[T]) (*Watcher[T], error) {
	return b.WatchWithOptions(WatchOptions[T]{Prefix: queuedEvents})
}

// WatchAfter opens a watcher that starts after a revision. Its queue holds the available events and
// one more; but publishers wait for a Wait watcher that starts at the oldest event of the log. If
// the log does not reach back so far, the error is a [*Status] with the code 410; if the revision
// has not been published, a Status 504.
func (b *Broadcaster[T]) WatchAfter(revision uint64) (*Watcher[T], error) {
	return b.WatchWithOptions(WatchOptions[T]{Start: StartAfter(revision)})
}

// WatchWithOptions opens a watcher. Its errors are those of Watch and WatchAfter, and one for an
// invalid queue.
func (b *Broadcaster[T]) WatchWithOptions(options WatchOptions[T]) (*Watcher[T], error) {
	queue := options.Queue
	if !queue.given {
		queue = b.queue
	}
	if err := queue.check(); err != nil {
		return nil, fmt.Errorf("watch: Queue: %w", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stopped {
		return nil, ErrBroadcasterStopped
	}
	head := b.log.Head()
	start, err := b.start(options.Start, head)
	if err != nil {
		return nil, err
	}
	places, err := b.capacity(queue, len(options.Prefix), int(head-start))
	if err != nil {
		return nil, err
	}
	w := newWatcher(b, queue.behavior, places, options.Prefix, start)
	if queue.behavior == WaitIfChannelFull {
		b.gate.add(&w.member)
	}
	return w, nil
}

// capacity returns the length of a watcher's queue: it has room for the events that the watcher
// starts with, and one more. The log is lengthened for the requested queue and the prefix, but not
// for a backlog: it would grow with each watcher that starts at its oldest event. So publishers
// wait for a Wait watcher that starts with a full log until it has taken an event.
func (b *Broadcaster[T]) capacity(queue Queue, prefix, backlog int) (int, error) {
	places := queue.length
	if queue.behavior == DropIfChannelFull {
		// With a queue of length 0 a watcher would get only events that are published while it waits.
		places = max(places, 1)
	}
	if prefix > 0 {
		places = max(places, prefix+1)
	}
	if places > maxQueue {
		return 0, fmt.Errorf("watch: a prefix of %d events was given: fewer than %d are possible", prefix, maxQueue)
	}
	if need := b.window(places); need > b.kept {
		b.kept = need
		b.log.Reserve(need)
	}
	if backlog == 0 {
		return places, nil
	}
	longer := prefix + backlog + 1
	if queue.behavior == WaitIfChannelFull {
		longer = min(longer, b.kept-b.incoming)
	}
	return max(places, longer), nil
}

// took counts events that a Wait watcher has taken, and opens the gate if a publisher waits for them.
func (b *Broadcaster[T]) took(m *member, n uint64) {
	m.taken.Add(n)
	if m.awaited.Load() && m.awaited.Swap(false) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.gate.open(b.log.Head())
	}
}

// leave removes a Wait watcher from the gate.
func (b *Broadcaster[T]) leave(m *member) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.gate.remove(m)
	if m.awaited.Swap(false) {
		b.gate.open(b.log.Head())
	}
}

func (b *Broadcaster[T]) start(asked Start, head uint64) (uint64, error) {
	if !asked.given {
		return head, nil
	}
	if asked.after > head {
		return 0, &Status{Code: 504, Message: fmt.Sprintf("a watch after revision %d was asked for, and the newest is %d: watch after that, or after one that an event had", asked.after, head)}
	}
	if oldest := b.log.Oldest(); asked.after < oldest {
		return 0, &Status{Code: 410, Message: fmt.Sprintf("a watch after revision %d was asked for, and the oldest possible is %d: begin without a revision, or keep more (History)", asked.after, oldest)}
	}
	return asked.after, nil
}
