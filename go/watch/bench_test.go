//go:build unix

package watch_test

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/watchcore/watchcore/go/watch"
)

// cpu is what the process has used, in user and system mode.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// deliver publishes b.N events to readers that read all of them, and reports the CPU time of the
// process for each delivery. queue is that of every watcher.
func deliver(b *testing.B, watchers, queue int, read func(*watch.Watcher[*pod]) int) {
	m := watch.NewBroadcaster[*pod](queue, watch.WaitIfChannelFull)
	var reading sync.WaitGroup
	for range watchers {
		w, err := m.Watch()
		if err != nil {
			b.Fatal(err)
		}
		reading.Add(1)
		go func() {
			defer reading.Done()
			if n := read(w); n != b.N {
				b.Errorf("%d of %d events", n, b.N)
			}
		}()
	}
	object := &pod{"foo", "hello world"}
	b.ReportAllocs()
	before := cpu(b)
	b.ResetTimer()
	for range b.N {
		if err := m.Action(watch.Added, object); err != nil {
			b.Fatal(err)
		}
	}
	m.Shutdown()
	reading.Wait()
	b.StopTimer()
	b.ReportMetric(float64(cpu(b)-before)/float64(b.N)/float64(watchers), "cpu-ns/delivery")
	b.ReportMetric(0, "ns/op")
}

func pull(w *watch.Watcher[*pod]) (n int) {
	for {
		if _, err := w.Next(context.Background()); err != nil {
			return n
		}
		n++
	}
}

func batches(w *watch.Watcher[*pod]) (n int) {
	var batch [64]watch.Event[*pod]
	for {
		k, err := w.NextBatch(context.Background(), batch[:])
		if err != nil {
			return n
		}
		n += k
	}
}

func all(w *watch.Watcher[*pod]) (n int) {
	for range w.All(context.Background()) {
		n++
	}
	return n
}

func channel(w *watch.Watcher[*pod]) (n int) {
	for range w.ResultChan() {
		n++
	}
	return n
}

// AW-10: everybody reads everything, publishers wait for the slowest.
func BenchmarkBroadcaster(b *testing.B) {
	for _, face := range []struct {
		name string
		read func(*watch.Watcher[*pod]) int
	}{{"batches", batches}, {"all", all}, {"pull", pull}, {"channel", channel}} {
		for _, watchers := range []int{1, 10, 100, 1000} {
			b.Run(fmt.Sprintf("face=%s/watchers=%d", face.name, watchers), func(b *testing.B) {
				deliver(b, watchers, 100, face.read)
			})
		}
	}
}

// AW-10 as the original has it: nobody watches, several goroutines publish.
func BenchmarkBroadcasterNobodyWatches(b *testing.B) {
	m := watch.NewBroadcaster[*pod](0, watch.WaitIfChannelFull)
	object := &pod{"foo", "hello world"}
	b.ReportAllocs()
	b.RunParallel(func(p *testing.PB) {
		for p.Next() {
			_ = m.Action(watch.Added, object)
		}
	})
}

// What a publish costs beside watchers that are never read.
func BenchmarkBroadcasterStalled(b *testing.B) {
	for _, watchers := range []int{1, 1000, 10_000} {
		b.Run(fmt.Sprintf("watchers=%d", watchers), func(b *testing.B) {
			m := watch.NewBroadcaster[*pod](100, watch.DropIfChannelFull)
			for range watchers {
				if _, err := m.Watch(); err != nil {
					b.Fatal(err)
				}
			}
			object := &pod{"foo", "hello world"}
			b.ReportAllocs()
			for b.Loop() {
				_ = m.Action(watch.Added, object)
			}
		})
	}
}
