package watch

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"

	"watchcore/internal/journal"
)

const (
	// incomingQueue is how far publishers may run ahead beside the queues of the watchers. In the
	// original these are a channel of 25 places and the event in the hands of the goroutine that
	// distributes. Programs that publish and read on one goroutine rely on it.
	incomingQueue = 25
	inHand        = 1
	// historyFactor: the log keeps at least as many times the longest queue, so that an event
	// which a stalled watcher has accepted stays for some time.
	historyFactor = 4
	// maxQueue bounds queues and histories. Nothing is allocated by the length of a queue but
	// the channel of a watcher that asks for one.
	maxQueue = math.MaxInt32
)

// ErrBroadcasterStopped is what a Broadcaster answers after its Shutdown.
var ErrBroadcasterStopped = errors.New("broadcaster already stopped")

// Broadcaster distributes events to any number of watchers. All of them read one log, each with a
// number for its position: to publish does nothing for each of them, but for those that are waited for.
// Where many of them sleep, a goroutine of its own wakes them. A watcher that nobody reads costs nothing
// more with each event, unless it has a channel, whose goroutine looks at what came.
//
// An event's Revision is its number in the broadcaster, from 1. All methods may be called from
// any goroutine.
type Broadcaster[T any] struct {
	queue    Queue
	incoming int

	// turn has a token for the publisher that waits for a place. Those behind it wait for the token,
	// first come, first served, and ActionOrDrop waits for none of them.
	turn chan struct{}

	// mu guards what follows. It is never held while somebody waits.
	mu      sync.Mutex
	log     *journal.Journal[Event[T]]
	kept    int // how many events the log keeps at least
	gate    gate
	inLine  int // publishers that wait for a place, or for their turn to do so
	stopped bool

	// down is closed by Shutdown.
	down chan struct{}
}

// BroadcasterOptions are those of [NewBroadcasterWithOptions].
type BroadcasterOptions struct {
	// Queue is that of a watcher which asks for no other. Its zero value is WaitQueue(0).
	Queue Queue
	// Incoming is how far publishers may run ahead of the slowest Wait watcher beyond its queue.
	// 0 means 25; -1 means not at all.
	Incoming int
	// History is how many events are kept at least for watchers that come later and for those
	// that are behind. Four times the longest queue are kept in any case.
	History int
}

// NewBroadcaster makes a broadcaster whose watchers have a queue of that length. The events of its
// last four queues, and some more, stay in memory.
//
// With WaitIfChannelFull publishers may run ahead of the slowest watcher by its queue and 26 events
// more: as many as the original has in its incoming queue and in its hands. With DropIfChannelFull
// they never wait.
//
// A length below 0 panics, as make(chan T, -1) does.
func NewBroadcaster[T any](queueLength int, behavior FullChannelBehavior) *Broadcaster[T] {
	return must[T](BroadcasterOptions{Queue: Queue{queueLength, behavior, true}})
}

// NewLongQueueBroadcaster is one whose publishers may run ahead by a second queue of the same
// length in place of the 25 events.
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
	// Without the one in hand nothing could be published to a queue without places.
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

// window is how many events the log keeps for a queue of this length.
func (b *Broadcaster[T]) window(length int) int {
	return max(historyFactor*length, length+b.incoming)
}

// Action publishes an event. With a watcher of the policy Wait whose queue is full it waits until
// that one has taken an event or has stopped, or until Shutdown; a watcher's own goroutine must
// therefore not publish more than its queue holds. The error is ErrBroadcasterStopped.
//
// The Err of an event of type Error is the object, if that is an error, or else a *Status with its text. Such an event
// is one like others: watchers go on behind it until Shutdown.
func (b *Broadcaster[T]) Action(action EventType, obj T) error {
	return b.Publish(explained(Event[T]{Type: action, Object: obj}))
}

// ActionOrDrop publishes an event if that needs no waiting: (false, nil) where it would, also while
// another publisher waits. The error is ErrBroadcasterStopped.
func (b *Broadcaster[T]) ActionOrDrop(action EventType, obj T) (bool, error) {
	blocked, err := b.try(explained(Event[T]{Type: action, Object: obj}))
	return err == nil && !blocked, err
}

// Publish is Action for an event with all its fields: with Old, say. The broadcaster sets Revision,
// and Lost is the watchers' own.
func (b *Broadcaster[T]) Publish(e Event[T]) error {
	return b.PublishContext(context.Background(), e)
}

// PublishContext is Publish that waits no longer than its context. With the context's error nothing
// was published, and the publishers behind this one come in their order.
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
		// The watcher that is in the way is marked and will open the gate; a stale token only
		// makes this look again.
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

// pass publishes where nobody waits; otherwise the publisher is in line.
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

// Revision is that of the newest event; 0 before the first.
func (b *Broadcaster[T]) Revision() uint64 { return b.log.Head() }

// Shutdown ends the broadcaster. Watchers get what was published before and then their end;
// publishers that wait, and everybody who comes later, get ErrBroadcasterStopped. It waits for
// nobody, and may be called any number of times.
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

// Start is where a watcher begins. [StartAfter] makes one; the zero value is: with the next event.
type Start struct {
	after uint64
	given bool
}

// StartAfter begins behind a revision, with what the log still has. That of an event which a
// watcher has taken goes on where that watcher was.
func StartAfter(revision uint64) Start { return Start{revision, true} }

// WatchOptions are those of [Broadcaster.WatchWithOptions].
type WatchOptions[T any] struct {
	// Queue is the watcher's own; the zero value is the broadcaster's.
	Queue Queue
	// Prefix are events that the watcher takes before all others, as they are.
	Prefix []Event[T]
	// Start is where it begins behind its prefix; the zero value: with the next event.
	Start Start
}

// Watch opens a watcher that gets what is published from now on, and nothing before. It does not
// wait. The error is ErrBroadcasterStopped.
func (b *Broadcaster[T]) Watch() (*Watcher[T], error) {
	return b.WatchWithOptions(WatchOptions[T]{})
}

// WatchWithPrefix opens a watcher that first gets the given events. Its queue holds them and one
// more at least.
func (b *Broadcaster[T]) WatchWithPrefix(queuedEvents []Event[T]) (*Watcher[T], error) {
	return b.WatchWithOptions(WatchOptions[T]{Prefix: queuedEvents})
}

// WatchAfter opens a watcher that begins behind a revision. Its queue holds what there is, and one
// more; but publishers wait for a Wait watcher that begins where the log does. Where the log does not go back so far the error is a [*Status] with the code 410, and
// where the revision has not been published, one with 400.
func (b *Broadcaster[T]) WatchAfter(revision uint64) (*Watcher[T], error) {
	return b.WatchWithOptions(WatchOptions[T]{Start: StartAfter(revision)})
}

// WatchWithOptions opens a watcher. Its errors are those of Watch and WatchAfter, and one for a
// queue that cannot be.
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
	places, err := b.places(queue, len(options.Prefix), int(head-start))
	if err != nil {
		return nil, err
	}
	w := newWatcher(b, queue.behavior, places, options.Prefix, start)
	if queue.behavior == WaitIfChannelFull {
		b.gate.add(&w.member)
	}
	return w, nil
}

// places is how long a watcher's queue is: what it begins with is in it, and one place more is
// free. The log is made as long as the asked queue and the prefix need. For a backlog it is not: it
// would grow with each watcher that begins at its oldest event. So publishers wait for a Wait watcher
// that begins with a full log until it has taken something.
func (b *Broadcaster[T]) places(queue Queue, prefix, backlog int) (int, error) {
	places := queue.length
	if queue.behavior == DropIfChannelFull {
		// Without a place a watcher would be given only what comes while it waits.
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

// took counts events that a waiting watcher has taken.
func (b *Broadcaster[T]) took(m *member, n uint64) {
	m.taken.Add(n)
	if m.awaited.Load() && m.awaited.Swap(false) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.gate.open(b.log.Head())
	}
}

// leave takes a waiting watcher out of the gate.
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
		return 0, &Status{Code: 400, Message: fmt.Sprintf("a watch after revision %d was asked for, and the newest is %d: watch after that, or after one that an event had", asked.after, head)}
	}
	if oldest := b.log.Oldest(); asked.after < oldest {
		return 0, &Status{Code: 410, Message: fmt.Sprintf("a watch after revision %d was asked for, and the oldest possible is %d: begin without a revision, or keep more (History)", asked.after, oldest)}
	}
	return asked.after, nil
}
