package watch

// channelBatch is the number of events that a channel's goroutine copies out of the log at once.
const channelBatch = 16

// ResultChan returns the watch as a channel, with the capacity of the queue. The first call moves
// the available events into it, and starts a goroutine for the rest unless the watch has ended. The
// goroutine ends with the watch: after the last event, or at Stop.
//
// With the policy Drop this goroutine reads the log soon after an event was published, not at the moment when
// the consumer takes one: if the consumer takes events in between, there is more room, so the channel may
// deliver more than its queue promises, and never less as long as the log still has the events.
func (w *Watcher[T]) ResultChan() <-chan Event[T] {
	if c := w.channel.Load(); c != nil {
		return *c
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if c := w.channel.Load(); c != nil {
		return *c
	}
	over := w.over()
	head := w.head()
	var first []Event[T]
	if w.behavior == DropIfChannelFull {
		w.look(head)
		first = w.allAccepted()
	}
	c := make(chan Event[T], max(w.places, len(first)))
	w.moveTo(&c)
	for _, e := range first {
		c <- e
	}
	f := &feed[T]{w: w, c: c}
	if w.behavior == WaitIfChannelFull {
		f.fill(head)
	}
	if over && w.queue.seen == head && len(w.prefix) == 0 {
		close(c)
		return c
	}
	go f.run()
	return c
}

// moveTo makes c the watcher's channel. From now on an event counts as taken when it has left the
// channel. Readers that wait in Next are woken by the next event, and find the channel.
func (w *Watcher[T]) moveTo(c *chan Event[T]) {
	length := func() int { return len(*c) }
	w.member.length.Store(&length)
	w.channel.Store(c)
}

// allAccepted takes all events that a Drop watcher has accepted.
func (w *Watcher[T]) allAccepted() (all []Event[T]) {
	var batch [channelBatch]Event[T]
	for {
		n := w.fetch(batch[:], 0)
		if n == 0 {
			return all
		}
		all = append(all, batch[:n]...)
		w.consume(n)
	}
}

// feed moves a watcher's events into its channel. Until run starts it is used under the lock; from
// then on it alone uses the watcher's prefix and queue.
type feed[T any] struct {
	w *Watcher[T]
	c chan Event[T]
}

// run feeds the channel until the watch ends, and closes it.
func (f *feed[T]) run() {
	defer close(f.c)
	w := f.w
	for {
		over := w.over()
		head := w.head()
		if w.behavior == DropIfChannelFull {
			f.offer(head)
		} else if !f.push(head) {
			return
		}
		if over {
			return
		}
		select {
		case <-w.b.log.Wait(head):
		case <-w.gone:
		}
	}
}

// fill moves the events that fit without waiting, with the policy Wait.
func (f *feed[T]) fill(head uint64) {
	var one [1]Event[T]
	for len(f.c) < cap(f.c) && f.w.fetch(one[:], head) == 1 {
		// This is the only sender, so there is a free slot. The event counts as consumed only after
		// the send, because publishers subtract the channel's length from that count.
		f.c <- one[0]
		f.w.consume(1)
	}
}

// push moves all events below the head, and waits for free slots. push returns false if Stop ended the wait.
func (f *feed[T]) push(head uint64) bool {
	var batch [channelBatch]Event[T]
	for {
		n := f.w.fetch(batch[:], head)
		if n == 0 {
			return true
		}
		for i := range n {
			select {
			case f.c <- batch[i]:
			default:
				select {
				case f.c <- batch[i]:
				case <-f.w.gone:
					return false
				}
			}
			f.w.consume(1)
		}
	}
}

// offer implements the policy Drop: events that find a free slot are sent, others are lost and counted.
func (f *feed[T]) offer(head uint64) {
	w, q := f.w, &f.w.queue
	var batch [channelBatch]Event[T]
	for q.seen < head {
		if len(f.c) == cap(f.c) && cap(f.c) > 0 {
			// The channel has been full since the last event was sent, because only this goroutine sends.
			w.lose(head)
			return
		}
		n, ok := w.b.log.Read(q.seen, batch[:min(head-q.seen, channelBatch)])
		if !ok {
			w.skip(head)
			continue
		}
		for _, e := range batch[:n] {
			e.Lost += q.lost
			select {
			case f.c <- e:
				q.lost = 0
				q.seen++
			default:
				w.lose(q.seen + 1)
			}
		}
	}
}
