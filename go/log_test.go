package watchcore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	watchcore "github.com/watchcore/watchcore/go"
	"github.com/watchcore/watchcore/go/internal/bounded"
	"github.com/watchcore/watchcore/go/internal/etcdtest"
)

// said is what a logger was given, and a handler of slog.
type said struct {
	mu    *sync.Mutex
	lines *[]string
	level slog.Level
	wait  func()
}

func listen(level slog.Level) said {
	return said{mu: &sync.Mutex{}, lines: &[]string{}, level: level, wait: func() {}}
}

func (s said) Enabled(_ context.Context, level slog.Level) bool { return level >= s.level }
func (s said) WithAttrs([]slog.Attr) slog.Handler               { return s }
func (s said) WithGroup(string) slog.Handler                    { return s }

func (s said) Handle(_ context.Context, record slog.Record) error {
	s.wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	*s.lines = append(*s.lines, record.Level.String()+": "+record.Message)
	return nil
}

func (s said) count(part string) (count int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, line := range *s.lines {
		if strings.Contains(line, part) {
			count++
		}
	}
	return count
}

// quiet ends what a test of loggers did.
func quiet(t testing.TB) { check(t, watchcore.SetLogger(nil)) }

// unreachable is a cache that follows a server that is not there.
func unreachable(t testing.TB) (*watchcore.Cache, string) {
	t.Helper()
	endpoint := fmt.Sprintf("http://127.0.0.1:%d", etcdtest.ReservePort(t))
	cache, err := watchcore.New(watchcore.Config{ExpectLoad: true})
	check(t, err)
	t.Cleanup(func() { cache.Close() })
	check(t, cache.StartFeeder(watchcore.EtcdConfig{Endpoints: []string{endpoint}}))
	return cache, endpoint
}

func TestSetLogger(t *testing.T) {
	defer quiet(t)
	first, second := listen(slog.LevelDebug), listen(slog.LevelDebug)
	check(t, watchcore.SetLogger(slog.New(first)))
	cache, endpoint := unreachable(t)
	bounded.Eventually(t, "the failure is told", func() bool { return first.count("WARN: watchcore: ") > 0 && first.count(endpoint) > 0 })

	// Whoever comes next is told the rest, and the first one nothing any more.
	check(t, watchcore.SetLogger(slog.New(second)))
	before := first.count("")
	counters, err := cache.FeederCounters()
	check(t, err)
	bounded.Eventually(t, "the next failure is told", func() bool { return second.count(endpoint) > 0 })
	bounded.Eventually(t, "it failed again", func() bool {
		now, err := cache.FeederCounters()
		check(t, err)
		return now.Failures > counters.Failures
	})
	want(t, "what the first one is told behind it", first.count(""), before)
	check(t, watchcore.SetLogger(slog.New(slog.DiscardHandler)))
	after := second.count("")
	counters, err = cache.FeederCounters()
	check(t, err)
	bounded.Eventually(t, "it failed again", func() bool {
		now, err := cache.FeederCounters()
		check(t, err)
		return now.Failures > counters.Failures
	})
	want(t, "what is told where nobody listens", second.count(""), after)
}

// A server that is not there: the call ends with its context, and says why; what keeps it is
// in the log of the program meanwhile, also where nobody asked for a logger.
func TestOpenOfADeadServerLogs(t *testing.T) {
	defer quiet(t)
	before := slog.Default()
	defer slog.SetDefault(before)
	var written lockedBuffer
	slog.SetDefault(slog.New(slog.NewTextHandler(&written, nil)))
	check(t, watchcore.SetLogger(nil)) // as at the start of a process
	endpoint := fmt.Sprintf("http://127.0.0.1:%d", etcdtest.ReservePort(t))
	ctx, cancel := context.WithCancelCause(context.Background())
	opened := make(chan error)
	go func() {
		_, err := watchcore.Open(ctx, watchcore.EtcdConfig{Endpoints: []string{endpoint}}, watchcore.Config{Name: "pods"})
		opened <- err
	}()
	bounded.Eventually(t, "the log says what keeps it", func() bool {
		text := written.String()
		return strings.Contains(text, "level=WARN") && strings.Contains(text, endpoint) && strings.Contains(text, "pods")
	})
	select {
	case err := <-opened:
		t.Fatalf("it ended before its context: %v", err)
	default:
	}
	cancel(nil)
	err := bounded.Receive(t, "open", opened)
	wantError(t, "open", err, context.Canceled)
	wantError(t, "open", err, watchcore.ErrUnavailable)
	if !strings.Contains(err.Error(), endpoint) {
		t.Errorf("the error does not name the endpoint: %v", err)
	}
	// One that is over already does not even begin.
	late, stop := context.WithDeadline(context.Background(), time.Unix(0, 0))
	defer stop()
	_, err = watchcore.Open(late, watchcore.EtcdConfig{Endpoints: []string{endpoint}}, watchcore.Config{})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a context that is over: %v", err)
	}
}

// lockedBuffer is written and read by several goroutines.
type lockedBuffer struct {
	mu    sync.Mutex
	bytes bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.bytes.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.bytes.String()
}

// A handler that does not come to its end holds nobody up, and is told what it missed.
func TestSlowLogger(t *testing.T) {
	defer quiet(t)
	s := listen(watchcore.LevelTrace)
	var once sync.Once
	inside, goOn := make(chan struct{}), make(chan struct{})
	s.wait = func() {
		once.Do(func() { close(inside) })
		<-goOn
	}
	check(t, watchcore.SetLogger(slog.New(s)))
	// Each feeder says at least that it failed: more than the socket holds.
	for range 500 {
		cache, _ := unreachable(t)
		bounded.Eventually(t, "it failed", func() bool {
			counters, err := cache.FeederCounters()
			check(t, err)
			return counters.Failures > 0
		})
		cache.Close()
	}
	bounded.Receive(t, "a line in the handler", inside)
	close(goOn)
	bounded.Eventually(t, "it is told", func() bool { return s.count("are lost") > 0 })
	check(t, watchcore.SetLogger(slog.New(slog.DiscardHandler)))
	t.Logf("%d messages came", s.count(""))
}

// warner makes the library say a message with each call.
func warner(t *testing.T) func() {
	cache, writer := embedded(t, watchcore.Config{Capacity: capacity})
	return func() {
		t.Helper()
		check(t, loses(cache, writer))
	}
}

// A handler that ends its goroutine, as a test's FailNow does, costs the message that it was given, and no other.
func TestLoggerThatEndsItsGoroutine(t *testing.T) {
	defer quiet(t)
	warn := warner(t)
	s := listen(slog.LevelDebug)
	var handled atomic.Int64
	s.wait = func() {
		if handled.Add(1)%2 == 1 {
			runtime.Goexit()
		}
	}
	check(t, watchcore.SetLogger(slog.New(s)))
	for range 6 {
		warn()
	}
	// It waits until everything was handed out.
	ended := make(chan error, 1)
	go func() { ended <- watchcore.SetLogger(slog.New(slog.DiscardHandler)) }()
	check(t, bounded.Receive(t, "the end of the logger", ended))
	want(t, "messages that were handed out", handled.Load(), 6)
	want(t, "those that were kept", s.count("DEBUG: watchcore: "), 3)
	want(t, "those that were lost", s.count("are lost"), 0)
}

// A handler that does not come to its end holds up who sets another logger, and nobody
// else: caches can be made meanwhile, also by the handler.
func TestStuckLogger(t *testing.T) {
	defer quiet(t)
	warn := warner(t)
	made := make(chan error, 2)
	makeOne := func() {
		another, err := watchcore.New(watchcore.Config{})
		if err == nil {
			err = another.Close()
		}
		made <- err
	}
	first, second := listen(slog.LevelDebug), listen(slog.LevelDebug)
	inside, goOn := make(chan struct{}), make(chan bool)
	defer close(goOn)
	var once sync.Once
	first.wait = func() {
		once.Do(func() {
			close(inside)
			if <-goOn {
				makeOne()
			}
		})
	}
	check(t, watchcore.SetLogger(slog.New(first)))
	warn()
	bounded.Receive(t, "a line in the handler", inside)
	set := make(chan error, 1)
	go func() { set <- watchcore.SetLogger(slog.New(second)) }()
	bounded.Eventually(t, "the second one is told", func() bool {
		warn()
		return second.count("") > 0
	})
	go makeOne()
	check(t, bounded.Receive(t, "a cache made meanwhile", made))
	want(t, "ends of SetLogger before that of the handler", len(set), 0)
	goOn <- true
	check(t, bounded.Receive(t, "a cache made by the handler", made))
	check(t, bounded.Receive(t, "the end of SetLogger", set))
}
