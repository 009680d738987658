package main

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// interest is what a watcher wants to see: see Interest in benches/peers/src/watchers/mod.rs.
type interest struct {
	what   what
	number int
}

type what int

const (
	everything  what = iota
	oneKey           // one object
	inNamespace      // all objects of one namespace
	nothing          // an object that is never published
)

// wanted is the key or the prefix that a watcher wants.
func (i interest) wanted() string {
	switch i.what {
	case oneKey:
		return key(i.number)
	case inNamespace:
		return namespace(i.number)
	case nothing:
		return fmt.Sprintf("/registry/pods/never/%06d", i.number)
	}
	return prefix
}

func interests(what what, count int) []interest {
	all := make([]interest, count)
	for number := range all {
		all[number] = interest{what, number}
	}
	return all
}

// publisher is the publishing side: it copies key and value and hands them to whom
// they interest.
type publisher interface {
	publish(key string, value []byte)
}

// receiver waits for events and says of each that it took how many more were taken
// with it, until the process ends.
type receiver func(took func(events int))

// fanout is a way from a publisher to watchers.
type fanout struct {
	name, note string
	selective  bool // it has a filter
	window     int  // events that may be published before the watchers are waited for
	most       int  // with more watchers it takes longer than a run can wait for
	open       func(interests []interest) (publisher, []receiver)
}

// seen is what the watchers have taken: each adds once for each time that it took some.
type seen struct {
	begun  atomic.Int64 // watchers that wait for their first event
	events atomic.Uint64
	last   atomic.Int64 // nanoseconds from birth to the last addition
	birth  time.Time
}

func (s *seen) add(events int) {
	s.last.Store(s.now())
	s.events.Add(uint64(events))
}

func (s *seen) now() int64 { return int64(time.Since(s.birth)) }

// waitForWatchers sleeps in short steps until so many watchers have begun.
func (s *seen) waitForWatchers(watchers int64) {
	until(func() bool { return s.begun.Load() >= watchers })
}

// waitFor is the same until so many events were taken.
func (s *seen) waitFor(events uint64) {
	until(func() bool { return s.events.Load() >= events })
	if s.events.Load() != events {
		check(fmt.Errorf("%d events were delivered in place of %d", s.events.Load(), events))
	}
}

// until sleeps in short steps until it holds, at most bound.
func until(holds func() bool) {
	for end := time.Now().Add(bound); !holds() && time.Now().Before(end); {
		time.Sleep(50 * time.Microsecond)
	}
}

const (
	// fallAsleep is time enough for a watcher that has taken everything to fall asleep.
	fallAsleep = 500 * time.Microsecond
	// bound: a window that takes longer has lost something.
	bound = time.Minute
)

// stage is a publisher whose watchers sleep, a goroutine each.
type stage struct {
	publisher publisher
	seen      *seen
	keys      []string
	window    int
	takers    uint64
	expected  uint64        // events that must have been taken before the next window
	empty     time.Duration // processor time of others in a settle in which nothing happens
}

// goroutines are there before anything is opened for them: their memory is not the
// subscription's.
type goroutines struct {
	bodies chan func()
	ready  sync.WaitGroup
}

func startGoroutines(count int) *goroutines {
	g := &goroutines{bodies: make(chan func())}
	for range count {
		g.ready.Add(1)
		go func() {
			g.ready.Done()
			(<-g.bodies)()
		}()
	}
	g.ready.Wait()
	return g
}

// worn is a fanout as it is after it has served for a while: who keeps a history has a full
// one, and takes no memory that is new to the process any more. opens is called before the
// first watcher is opened.
func (f fanout) worn(opens func()) fanout {
	open := f.open
	if f.name == "watchcore" {
		f.open = func(interests []interest) (publisher, []receiver) { return openWornWatchcore(interests, opens) }
	} else {
		f.open = func(interests []interest) (publisher, []receiver) {
			opens()
			return open(interests)
		}
	}
	return f
}

// openStage opens the watchers and warms them up: each object was published once and
// all sleep. So many takers take each event.
func openStage(f fanout, keys []string, interests []interest, takers int) *stage {
	s := openIn(startGoroutines(len(interests)), f.worn(func() {}), keys, interests, takers)
	s.empty = s.emptySettle()
	return s
}

// emptySettle is what a settle in which nothing happens takes of the process beside the thread that
// sleeps in it: the runtime hands on what that thread had, and looks for work. That is no
// watcher's cost: for one watcher it was most of what it showed.
func (s *stage) emptySettle() time.Duration {
	const settles = 50
	var idle section
	before := processorTime(syscall.RUSAGE_SELF)
	for range settles {
		idle.waiting(s.settle)
	}
	return max(0, processorTime(syscall.RUSAGE_SELF)-before-idle.waited) / settles
}

func openIn(g *goroutines, f fanout, keys []string, interests []interest, takers int) *stage {
	s := openCold(g, f, keys, interests, takers)
	if p, is := s.publisher.(*watchcorePublisher); is {
		p.warmUp(interests)
	}
	for at := range keys {
		s.publish(at)
		if (at+1)%s.window == 0 || at+1 == len(keys) {
			s.settle()
		}
	}
	return s
}

// openCold opens watchers that wait: nothing was published since they came.
func openCold(g *goroutines, f fanout, keys []string, interests []interest, takers int) *stage {
	publisher, receivers := f.open(interests)
	s := &stage{publisher: publisher, seen: &seen{birth: time.Now()}, keys: keys, window: f.window, takers: uint64(takers)}
	for _, receive := range receivers {
		g.bodies <- func() {
			s.seen.begun.Add(1)
			receive(s.seen.add)
		}
	}
	s.seen.waitForWatchers(int64(len(receivers)))
	time.Sleep(fallAsleep)
	return s
}

func (s *stage) publish(object int) {
	s.publisher.publish(s.keys[object], value)
	s.expected += s.takers
}

// settle waits until all is taken and all sleep again.
func (s *stage) settle() {
	s.seen.waitFor(s.expected)
	time.Sleep(fallAsleep)
}

// settleIn is settle outside of what is measured: time counts until the last event
// was taken.
func (s *stage) settleIn(section *section) {
	section.waiting(s.settle)
	section.waited += s.empty
	section.paused += time.Duration(s.seen.now() - s.seen.last.Load())
}

// drained takes what is there in a channel after a first event, and says how many
// that were.
func drained[E any](events <-chan E, first E, read func(E)) int {
	read(first)
	count := 1
	for {
		select {
		case event, open := <-events:
			if !open {
				return count
			}
			read(event)
			count++
		default:
			return count
		}
	}
}

// sink keeps what was read from being optimized away.
var sink atomic.Uint64

func readVersion(v *version) { runtime.KeepAlive(v.revision) }
