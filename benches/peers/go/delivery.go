package main

import (
	"math"
	"runtime"
	"slices"
	"time"
)

// The rows about watchers: see benches/peers/src/rows/delivery.rs.

// window is how many events are published before the watchers are waited for.
const window = 96

const unlimited = math.MaxInt

// upTo leaves out what is more than most.
func upTo(most int, sizes ...int) []int {
	return slices.DeleteFunc(sizes, func(size int) bool { return size > most })
}

var fanouts = []fanout{
	{"watchcore", "", true, window, unlimited, openWatchcore},
	{"channels", "a channel for each watcher, in a map by key and namespace", true, window, unlimited, openChannels},
	{"Broadcaster", "apimachinery's, it has no filter", false, window, unlimited, openBroadcaster},
	{"Kubernetes", kubernetesNote, true, 8, unlimited, openKubernetes},
}

const kubernetesNote = "apiserver's cacher over a storage that is a channel; in windows of 8: a watcher has room for ten events, " +
	"and is closed when it is behind for long"

func delivery() []contestant {
	all := []contestant{{"poll", "watchcore", "", []int{64}, pollWatchcore}}
	for _, f := range fanouts {
		add := func(row string, run func(fanout, int) measured, sizes ...int) {
			body := func(size int) measured { return run(f, size) }
			all = append(all, contestant{row, f.name, f.note, upTo(f.most, sizes...), body})
		}
		add("deliver", deliver, 1, 10, 100, 1000, 10_000)
		add("bytes-subscription", bytesOfWatchers, 10_000)
		if !f.selective {
			add("wake", wake, 1)
			continue
		}
		add("publish", publishIdle, 1, 1000, 10_000)
		add("selective-key", selectiveByKey, 1000, 10_000)
		add("selective-namespace", selectiveByNamespace, 1000, 10_000)
		add("selective-cold", selectiveCold, 1000, 10_000)
		add("publish-cold", publishCold, 1000, 10_000)
		add("wake", wake, 1, 1000)
	}
	return all
}

func deliver(f fanout, watchers int) measured {
	s := openStage(f, keys(window), interests(everything, watchers), watchers)
	return repeat(func(section *section) uint64 {
		for at := range f.window {
			s.publish(at)
		}
		s.settleIn(section)
		return uint64(f.window * watchers)
	})
}

func publishIdle(f fanout, watchers int) measured {
	const objects = 1000
	s := openStage(f, keys(objects), interests(nothing, watchers), 0)
	window := func(section *section) uint64 {
		for at := range objects {
			s.publish(at)
		}
		// Where others do the rest of the work, it is waited for.
		if waiter, is := s.publisher.(interface{ wait() }); is {
			section.waiting(waiter.wait)
		}
		return objects
	}
	for range fillsALog / objects {
		window(&section{})
	}
	return repeat(window)
}

func selectiveByKey(f fanout, watchers int) measured {
	return selective(f, keys(watchers), interests(oneKey, watchers))
}

func selectiveByNamespace(f fanout, watchers int) measured {
	firsts := make([]string, watchers)
	for number := range firsts {
		firsts[number] = key(number * namespaceSize)
	}
	return selective(f, firsts, interests(inNamespace, watchers))
}

func selective(f fanout, keys []string, interests []interest) measured {
	s := openStage(f, keys, interests, 1)
	order := scattered{count: len(keys)}
	return repeat(func(section *section) uint64 {
		for range f.window {
			s.publish(order.next())
		}
		s.settleIn(section)
		return uint64(f.window)
	})
}

// eventsOfEach is how many events each watcher that comes cold is to take.
const eventsOfEach = 4

func selectiveCold(f fanout, watchers int) measured {
	return cold(f, keys(watchers), interests(oneKey, watchers), 1)
}

func publishCold(f fanout, watchers int) measured {
	return cold(f, keys(1000), interests(nothing, watchers), 0)
}

// cold measures from before the first watcher came until all events were taken.
func cold(f fanout, keys []string, interests []interest, takers int) measured {
	goroutines, order := startGoroutines(len(interests)), scattered{count: len(keys)}
	var section *section
	s := openCold(goroutines, f.worn(func() { section = begin() }), keys, interests, takers)
	events := eventsOfEach * len(interests)
	for range events {
		s.publish(order.next())
	}
	if takers > 0 {
		section.waiting(s.settle)
		section.paused += time.Duration(s.seen.now() - s.seen.last.Load())
	}
	return section.end(uint64(events))
}

func wake(f fanout, watchers int) measured {
	wanted := interests(everything, 1)
	if watchers > 1 {
		wanted = interests(oneKey, watchers)
	}
	s := openStage(f, keys(watchers), wanted, 1)
	order := scattered{count: watchers}
	samples := make([]float64, 4*atLeast().Milliseconds())
	for at := range samples {
		begun := s.seen.now()
		s.publish(order.next())
		s.settle()
		samples[at] = float64(s.seen.last.Load() - begun)
	}
	return distribution(samples)
}

// bytesOfWatchers is what opened watchers that sleep take, beside their goroutines.
func bytesOfWatchers(f fanout, watchers int) measured {
	wanted, one := interests(everything, watchers), keys(1)
	goroutines := startGoroutines(watchers)
	before := resident()
	s := openIn(goroutines, f, one, wanted, watchers)
	bytes := resident() - before
	runtime.KeepAlive(s)
	return measured{Value: bytes / float64(watchers), Count: uint64(watchers)}
}
