package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

const (
	protobufForm       = "application/vnd.kubernetes.protobuf"
	protobufStreamForm = protobufForm + ";stream=watch"
	// slowWindow is what a watcher that does not read lets the server send.
	slowWindow = 64 << 10
)

// fleet are watchers of all pods, and the changes that they wait for. Frames are read, not decoded.
type fleet struct {
	watchers []*watcher
	begin    time.Time
	sent     []atomic.Int64 // when a change was written, since begin
	running  sync.WaitGroup
	cancel   context.CancelFunc
}

// watcher is one watch. Its goroutine alone writes what it has got; readers wait for done, or load last.
type watcher struct {
	slow    bool
	read    chan struct{} // closed when it begins to read
	last    atomic.Int64  // the newest change that it has
	ended   atomic.Bool   // by the server
	got     int
	latency []time.Duration // of the changes, in their order
}

// watchPods opens watches behind what the server has now. The last ones of them are slow: they do not read before wake.
func (s *server) watchPods(ctx context.Context, count, slow, changes int) (*fleet, error) {
	at, err := s.revision(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	f := &fleet{begin: time.Now(), sent: make([]atomic.Int64, changes), cancel: cancel}
	slowClient := newClient(&http.HTTP2Config{MaxReceiveBufferPerStream: slowWindow})
	for i := range count {
		w := &watcher{slow: i >= count-slow, read: make(chan struct{}), latency: make([]time.Duration, 0, changes)}
		w.last.Store(-1)
		client := s.client
		if w.slow {
			client = slowClient
		} else {
			close(w.read)
		}
		answer, err := s.request(ctx, client, http.MethodGet, "/api/v1/pods?watch=1&allowWatchBookmarks=true&timeoutSeconds=3600&resourceVersion="+at, protobufStreamForm, nil)
		if err != nil {
			f.close()
			return nil, err
		}
		f.watchers = append(f.watchers, w)
		f.running.Go(func() {
			defer answer.Body.Close()
			if w.receive(f, answer.Body); ctx.Err() == nil {
				w.ended.Store(true)
			}
		})
	}
	return f, nil
}

// revision is the newest one.
func (s *server) revision(ctx context.Context) (string, error) {
	text, err := s.get(ctx, "/api/v1/pods?limit=1", "")
	if err != nil {
		return "", err
	}
	var list struct {
		Metadata struct{ ResourceVersion string }
	}
	err = json.Unmarshal(text, &list)
	return list.Metadata.ResourceVersion, err
}

// receive reads frames until the stream ends.
func (w *watcher) receive(f *fleet, body io.Reader) {
	<-w.read
	in, frame := bufio.NewReaderSize(body, 16<<10), []byte(nil)
	for {
		var length [4]byte
		if _, err := io.ReadFull(in, length[:]); err != nil {
			return
		}
		frame = slices.Grow(frame[:0], int(binary.BigEndian.Uint32(length[:])))[:binary.BigEndian.Uint32(length[:])]
		if _, err := io.ReadFull(in, frame); err != nil {
			return
		}
		_, rest, found := bytes.Cut(frame, []byte(marker))
		if !found {
			continue // a bookmark
		}
		number, err := strconv.Atoi(string(rest[:markerDigits]))
		if err != nil || number >= len(f.sent) {
			continue // of another fleet
		}
		w.got++
		w.latency = append(w.latency, time.Since(f.begin)-time.Duration(f.sent[number].Load()))
		w.last.Store(int64(number))
	}
}

// change makes changes at a rate, and waits until every watcher that reads has the last one.
func (f *fleet) change(ctx context.Context, b *bench, from, to int, rate float64) error {
	begin := time.Now()
	for number := from; number < to; number++ {
		time.Sleep(time.Until(begin.Add(time.Duration(float64(number-from) / rate * float64(time.Second)))))
		f.sent[number].Store(int64(time.Since(f.begin)))
		if err := b.change(ctx, number); err != nil {
			return err
		}
	}
	return poll(ctx, time.Minute, fmt.Sprintf("all watchers have change %d", to-1), func() bool {
		return !slices.ContainsFunc(f.watchers, func(w *watcher) bool { return !w.slow && w.last.Load() < int64(to-1) && !w.ended.Load() })
	})
}

// latencies are those of the changes from one on, of the watchers that read. It is an error if one of them missed a change.
func (f *fleet) latencies(from, changes int) (all []time.Duration, err error) {
	for i, w := range f.watchers {
		if w.slow {
			continue
		}
		if w.got != changes || w.ended.Load() {
			return nil, fmt.Errorf("watcher %d has %d of %d changes; ended by the server: %v", i, w.got, changes, w.ended.Load())
		}
		all = append(all, w.latency[from:]...)
	}
	slices.Sort(all)
	return all, nil
}

// wake lets the slow watchers read, and returns how many of them the server had ended and how many go on to a change.
func (f *fleet) wake(ctx context.Context, last int) (ended, caughtUp int, err error) {
	for _, w := range f.watchers {
		if w.slow {
			close(w.read)
		}
	}
	err = poll(ctx, time.Minute, "each slow watcher has ended or has the last change", func() bool {
		ended, caughtUp = 0, 0
		slow := 0
		for _, w := range f.watchers {
			switch {
			case !w.slow:
				continue
			case w.last.Load() >= int64(last):
				caughtUp++
			case w.ended.Load():
				ended++
			}
			slow++
		}
		return ended+caughtUp == slow
	})
	return ended, caughtUp, err
}

func (f *fleet) close() {
	f.cancel()
	f.running.Wait()
}

func quantile(sorted []time.Duration, q float64) time.Duration {
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}
