package journal_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/watchcore/watchcore/go/internal/bounded"
	"github.com/watchcore/watchcore/go/internal/journal"
)

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Random appends, reservations and reads at random places, each answer compared with
// a plain slice of everything that was ever appended. The journal may keep more than it
// was asked for, by less than a segment; it must never keep less.
func TestJournalEqualsASlice(t *testing.T) {
	for seed := range uint64(60) {
		dice := rand.New(rand.NewPCG(seed, 7))
		capacity := 1 + dice.IntN(3000)
		j := journal.New[uint64](capacity)
		var all []uint64
		for range 300 {
			switch dice.IntN(8) {
			case 0:
				if dice.IntN(10) == 0 {
					capacity += dice.IntN(5000)
					// What has left does not come back, so the promise begins to grow here.
					j.Reserve(capacity)
					for range capacity {
						all = append(all, dice.Uint64())
						j.Append(all[len(all)-1])
					}
				}
			case 1, 2, 3:
				for range dice.IntN(400) {
					all = append(all, dice.Uint64())
					if n := j.Append(all[len(all)-1]); n != uint64(len(all)-1) {
						t.Fatalf("seed %d: value %d got the number %d", seed, len(all)-1, n)
					}
				}
			default:
				compare(t, seed, j, all, capacity, dice)
			}
		}
	}
}

func compare(t *testing.T, seed uint64, j *journal.Journal[uint64], all []uint64, capacity int, dice *rand.Rand) {
	t.Helper()
	length := len(all)
	if j.Head() != uint64(length) {
		t.Fatalf("seed %d: head %d of %d values", seed, j.Head(), length)
	}
	oldest := int(j.Oldest())
	if oldest > max(0, length-capacity) || oldest < length-capacity-2*256 {
		t.Fatalf("seed %d: oldest %d of %d, capacity %d", seed, oldest, length, capacity)
	}
	from := dice.IntN(length + 10)
	into := make([]uint64, dice.IntN(700))
	n, ok := j.Read(uint64(from), into)
	switch {
	case from >= length || len(into) == 0:
		if n != 0 || !ok {
			t.Fatalf("seed %d: read at %d of %d: %d, %v", seed, from, length, n, ok)
		}
	case from < oldest:
		if n != 0 || ok {
			t.Fatalf("seed %d: read at %d below the oldest, %d: %d, %v", seed, from, oldest, n, ok)
		}
	default:
		if want := min(len(into), length-from); n != want || !ok {
			t.Fatalf("seed %d: read at %d of %d: %d, %v, not %d", seed, from, length, n, ok, want)
		}
		for i, v := range into[:n] {
			if v != all[from+i] {
				t.Fatalf("seed %d: value %d is wrong", seed, from+i)
			}
		}
	}
}

// Readers that read slower than the appender writes are overtaken all the time. What they
// read is never torn, never of another number, and the race detector sees nothing.
func TestJournalOvertakenReadersReadNothingWrong(t *testing.T) {
	type value struct {
		number, twice uint64
		self          *uint64
	}
	const values = 200_000
	j := journal.New[value](64)
	var readers sync.WaitGroup
	var overtaken, read atomic.Uint64
	for i := range 4 {
		readers.Add(1)
		go func() {
			defer readers.Done()
			into := make([]value, 1+i*37)
			for from := uint64(0); ; {
				n, ok := j.Read(from, into)
				if !ok {
					overtaken.Add(1)
					from = max(from+1, j.Oldest())
					continue
				}
				for k, v := range into[:n] {
					if want := from + uint64(k); v.number != want || v.twice != 2*want || *v.self != want {
						t.Errorf("at %d: %+v", want, v)
						return
					}
				}
				read.Add(uint64(n))
				from += uint64(n)
				if n > 0 {
					continue
				}
				if closed := j.Closed(); closed && from == j.Head() {
					return
				}
				<-j.Wait(from)
			}
		}()
	}
	for i := range uint64(values) {
		j.Append(value{i, 2 * i, &i})
		if i == values/2 {
			j.Reserve(5000)
		}
	}
	j.Close()
	readers.Wait()
	t.Logf("%d values read, overtaken %d times", read.Load(), overtaken.Load())
}

// What has left the window is the collector's, though readers stand at it.
func TestJournalValuesThatLeftAreCollected(t *testing.T) {
	const values, capacity = 5000, 100
	j := journal.New[*[64]byte](capacity)
	var collected atomic.Int64
	for range values {
		v := new([64]byte)
		runtime.AddCleanup(v, func(c *atomic.Int64) { c.Add(1) }, &collected)
		j.Append(v)
	}
	if n, ok := j.Read(0, make([]*[64]byte, 10)); n != 0 || ok {
		t.Fatalf("the first value is still there: %d, %v", n, ok)
	}
	kept := values - int64(j.Oldest())
	if kept > capacity+32 {
		t.Fatalf("%d values are kept of a capacity of %d", kept, capacity)
	}
	deadline := time.Now().Add(bounded.Bound)
	for collected.Load() < values-kept {
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d were collected", collected.Load(), values-kept)
		}
		runtime.GC()
	}
	into := make([]*[64]byte, kept)
	if n, ok := j.Read(uint64(values-kept), into); n != int(kept) || !ok {
		t.Fatalf("the window reads %d, %v, not %d", n, ok, kept)
	}
	if collected.Load() != values-kept {
		t.Fatalf("%d were collected, %d are in the window", collected.Load(), kept)
	}
	runtime.KeepAlive(into)
}

// A window much larger than the directory's first length: it doubles, and nothing is lost.
func TestJournalDirectoryGrows(t *testing.T) {
	const values = 100_000
	j := journal.New[int](values)
	for i := range values {
		j.Append(i)
	}
	into := make([]int, values)
	if n, ok := j.Read(0, into); n != values || !ok || j.Oldest() != 0 {
		t.Fatalf("%d, %v, oldest %d", n, ok, j.Oldest())
	}
	for i, v := range into {
		if i != v {
			t.Fatalf("value %d is %d", i, v)
		}
	}
}

func TestJournalWaitersShareOneNotice(t *testing.T) {
	j := journal.New[int](10)
	a, b := j.Wait(0), j.Wait(0)
	if a != b {
		t.Fatal("two waiters of one moment have two channels")
	}
	if isClosed(a) {
		t.Fatal("nothing was appended, and the channel is closed")
	}
	j.Append(1)
	bounded.Receive(t, "a waiter after an append", a)
	if !isClosed(j.Wait(0)) {
		t.Fatal("the head has moved from 0, and Wait(0) waits")
	}
	c := j.Wait(1)
	if isClosed(c) {
		t.Fatal("nothing follows 1 yet")
	}
	j.Close()
	bounded.Receive(t, "a waiter after the end", c)
	if !isClosed(j.Wait(1)) {
		t.Fatal("a closed journal makes nobody wait")
	}
}

// The appender and its waiters, few that it wakes itself and many that it has woken, meet as often as
// they can. A wake-up that got lost would leave a waiter asleep: the appender goes on only when all of
// them have read what it appended.
func TestJournalNoWakeUpIsLost(t *testing.T) {
	for _, waiters := range []int{10, 40} {
		meet(t, waiters, 50_000/waiters)
	}
}

func meet(t *testing.T, waiters, rounds int) {
	j := journal.New[int](16)
	acks := make(chan int, waiters)
	for range waiters {
		go func() {
			into := make([]int, 1)
			for from := uint64(0); from < uint64(rounds); {
				if n, _ := j.Read(from, into); n == 1 {
					from++
					acks <- into[0]
					continue
				}
				<-j.Wait(from)
			}
		}()
	}
	timeout := time.After(bounded.Bound)
	for round := range rounds {
		j.Append(round)
		for range waiters {
			select {
			case got := <-acks:
				if got != round {
					t.Fatalf("round %d: %d", round, got)
				}
			case <-timeout:
				t.Fatalf("round %d: a waiter of %d sleeps", round, waiters)
			}
		}
	}
}

func TestJournalTenThousandWaitersWake(t *testing.T) {
	const waiters = 10_000
	j := journal.New[int](1)
	var parked, woken sync.WaitGroup
	parked.Add(waiters)
	woken.Add(waiters)
	for range waiters {
		go func() {
			defer woken.Done()
			c := j.Wait(0)
			parked.Done()
			<-c
		}()
	}
	parked.Wait()
	j.Append(1)
	done := make(chan struct{})
	go func() { woken.Wait(); close(done) }()
	bounded.Receive(t, "ten thousand waiters", done)
}

// The end is published behind the last value: who sees it and then the head has everything.
func TestJournalEndIsBehindTheLastValue(t *testing.T) {
	for range 2000 {
		j := journal.New[int](8)
		seen := make(chan uint64)
		go func() {
			for !j.Closed() {
				runtime.Gosched()
			}
			seen <- j.Head()
		}()
		j.Append(1)
		j.Append(2)
		j.Close()
		if head := <-seen; head != 2 {
			t.Fatalf("closed at %d of 2", head)
		}
	}
}

func TestJournalAppendAfterClosePanics(t *testing.T) {
	j := journal.New[int](8)
	j.Close()
	j.Close()
	defer func() {
		if recover() == nil {
			t.Fatal("a value that nobody would see was accepted")
		}
	}()
	j.Append(1)
}

func BenchmarkJournalAppend(b *testing.B) {
	j := journal.New[[4]uint64](1000)
	b.ReportAllocs()
	for b.Loop() {
		j.Append([4]uint64{1})
	}
}

func BenchmarkJournalReadOne(b *testing.B) {
	j := journal.New[[4]uint64](1000)
	for range 1000 {
		j.Append([4]uint64{1})
	}
	var into [1][4]uint64
	from := j.Oldest()
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := j.Read(from, into[:]); !ok {
			b.Fatal("left")
		}
	}
}

// What an append costs its caller while that many readers sleep.
func BenchmarkJournalAppendBesideSleepers(b *testing.B) {
	for _, sleepers := range []int{0, 10, 1000, 10_000} {
		b.Run(fmt.Sprintf("sleepers=%d", sleepers), func(b *testing.B) {
			j := journal.New[int](1000)
			var asleep atomic.Int64
			var all sync.WaitGroup
			for range sleepers {
				all.Add(1)
				go func() {
					defer all.Done()
					for !j.Closed() {
						c := j.Wait(j.Head())
						asleep.Add(1)
						<-c
					}
				}()
			}
			var spent time.Duration
			for range b.N {
				for asleep.Load() < int64(sleepers) {
					runtime.Gosched()
				}
				asleep.Store(0)
				began := time.Now()
				j.Append(1)
				spent += time.Since(began)
			}
			b.ReportMetric(float64(spent)/float64(b.N), "ns/append")
			j.Close()
			all.Wait()
		})
	}
}
