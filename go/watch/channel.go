package watch

// batchOfChannel is how many events the goroutine of a channel copies out of the log at once.
const batchOfChannel = 16

// ResultChan is the watch as a channel, with as many places as the queue has. The first call
// moves into it what there is, and starts a goroutine for the rest unless the watch has ended. The
// goroutine ends with the watch: behind the last event, or at Stop.
//
// With the policy Drop this goroutine looks at the log soon after an event was published, and no
// more at the moment of a take: what the consumer takes in between makes room, so that a channel
// may give more than its queue promises, and never less while the log has what came meanwhile.
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

// moveTo makes c the watcher's channel. What is taken from now on counts for the gate when it has
// left the channel. Readers that wait in Next are woken by the next event, and find the channel.
func (w *Watcher[T]) moveTo(c *chan Event[T]) {
	length := func() int { return len(*c) }
	w.member.length.Store(&length)
	w.channel.Store(c)
}

// allAccepted takes everything that a watcher with the policy Drop has accepted.
func (w *Watcher[T]) allAccepted() (all []Event[T]) {
	var batch [batchOfChannel]Event[T]
	for {
		n := w.fetch(batch[:], 0)
		if n == 0 {
			return all
		}
		all = append(all, batch[:n]...)
		w.consume(n)
	}
}

// feed moves a watcher's events into its channel. Until run begins it is used under the lock; from
// then on the watcher's prefix and queue are its own.
type feed[T any] struct {
	w *Watcher[T]
	c chan Event[T]
}

// run feeds the channel until the end, and closes it.
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

// fill moves what fits without waiting, with the policy Wait.
func (f *feed[T]) fill(head uint64) {
	var one [1]Event[T]
	for len(f.c) < cap(f.c) && f.w.fetch(one[:], head) == 1 {
		// Nobody else sends, so there is a place. It counts as taken only now: the publishers
		// go by this count less what is in the channel.
		f.c <- one[0]
		f.w.consume(1)
	}
}

// push moves everything below the head, waiting for places; false where Stop ended that.
func (f *feed[T]) push(head uint64) bool {
	var batch [batchOfChannel]Event[T]
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

// offer is the policy Drop: what finds a place comes in, the rest is lost and counted.
func (f *feed[T]) offer(head uint64) {
	w, q := f.w, &f.w.queue
	var batch [batchOfChannel]Event[T]
	for q.seen < head {
		if len(f.c) == cap(f.c) && cap(f.c) > 0 {
			// Full since the last event that came in, for only this goroutine sends.
			w.lose(head)
			return
		}
		n, ok := w.b.log.Read(q.seen, batch[:min(head-q.seen, batchOfChannel)])
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
