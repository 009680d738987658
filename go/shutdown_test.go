package watchcore_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"

	watchcore "github.com/watchcore/watchcore/go"
	"github.com/watchcore/watchcore/go/internal/bounded"
)

// libraryThreads are the names of the library's threads in this process.
func libraryThreads(t testing.TB) (names []string) {
	t.Helper()
	tasks, err := filepath.Glob("/proc/self/task/*/comm")
	check(t, err)
	for _, task := range tasks {
		name, err := os.ReadFile(task)
		if err == nil && strings.HasPrefix(string(name), "watchcore-") {
			names = append(names, strings.TrimSpace(string(name)))
		}
	}
	return names
}

// goroutinesOf is how many goroutines run a method of a type of the package, such as "wakeLoop".
func goroutinesOf(method string) int {
	stacks := make([]byte, 1<<20)
	return strings.Count(string(stacks[:runtime.Stack(stacks, true)]), reflect.TypeFor[watchcore.Cache]().PkgPath()+".(*"+method+").run(")
}

// everything waits, hands out by a channel, follows a server and logs, and closes all of it.
func everything(t *testing.T) {
	t.Helper()
	cache, writer := embedded(t)
	sub, channel := subscribe(t, cache), subscribe(t, cache)
	waited, closed := make(chan error, 2), make(chan error, 1)
	go func() { waited <- cache.WaitUntil(bounded.Context(t), 1) }()
	go func() {
		for {
			batch, err := sub.Next(bounded.Context(t))
			batch.Release()
			if err != nil {
				closed <- err
				return
			}
		}
	}()
	bounded.Eventually(t, "both sleep", func() bool { return cache.Stats().Waiting == 2 })
	check(t, writer.Apply(1, watchcore.Put("/a", "1")))
	check(t, bounded.Receive(t, "the revision", waited))
	bounded.Receive(t, "an event", channel.ResultChan())
	unreachable(t)
	sub.Close()
	channel.Stop()
	wantError(t, "next", bounded.Receive(t, "the end of the subscription", closed), watchcore.ErrClosed)
}

// The process has no goroutine of the package's once its caches are closed, without a call that ends them;
// those of the log and of the waits are there as long as a cache is.
func TestClosedCachesLeaveNoGoroutine(t *testing.T) {
	if alone(t) {
		return
	}
	before := runtime.NumGoroutine()
	for round := range 3 {
		t.Run(fmt.Sprint(round), everything)
		bounded.Eventually(t, "nothing is left", func() bool { return runtime.NumGoroutine() <= before })
	}

	cache := mustNew(t)
	sub := subscribe(t, cache)
	ctx, cancel := context.WithCancel(bounded.Context(t))
	ended := make(chan error)
	go func() {
		for {
			batch, err := sub.Next(ctx)
			batch.Release()
			if err != nil {
				ended <- err
				return
			}
		}
	}()
	bounded.Eventually(t, "it sleeps", func() bool { return cache.Stats().Waiting == 1 })
	cancel()
	wantError(t, "next", bounded.Receive(t, "its end", ended), context.Canceled)
	want(t, "goroutines that wake", goroutinesOf("wakeLoop"), 1)
	want(t, "goroutines that log", goroutinesOf("bridge"), 1)
	mustNew(t).Close()
	want(t, "goroutines that wake, of two caches", goroutinesOf("wakeLoop"), 1)
	cache.Close()
	bounded.Eventually(t, "the subscription has one still", func() bool { return goroutinesOf("wakeLoop") == 1 })
	sub.Close()
	bounded.Eventually(t, "nothing is left", func() bool { return runtime.NumGoroutine() <= before })
}

// Caches come and go on several goroutines, so that what the process has once ends and begins again all the time:
// nobody who waits is forgotten, and no message.
func TestWaitsBesideTheEndsOfOthers(t *testing.T) {
	defer quiet(t)
	s := listen(slog.LevelDebug)
	check(t, watchcore.SetLogger(slog.New(s)))
	const goroutines, rounds = 4, 200
	ctx := bounded.Context(t)
	var all sync.WaitGroup
	for number := range goroutines {
		all.Go(func() {
			for round := range rounds {
				name := fmt.Sprintf("cache %d of %d", round, number)
				if err := waitsAndLogs(ctx, name); err != nil {
					t.Errorf("round %d of %d: %v", round, number, err)
					return
				}
				// The library does not wait for the logger: a round that did not, either, would fill its queue, and be
				// told how many messages are lost.
				for s.count("cache="+name+",") == 0 && ctx.Err() == nil {
					runtime.Gosched()
				}
			}
		})
	}
	all.Wait()
	check(t, watchcore.SetLogger(nil)) // the logger has seen everything behind it
	for number := range goroutines {
		for round := range rounds {
			if n := s.count(fmt.Sprintf("cache=cache %d of %d,", round, number)); n != 1 && !t.Failed() {
				t.Errorf("the warning of cache %d of %d came %d times", round, number, n)
			}
		}
	}
	want(t, "messages that were lost", s.count("are lost"), 0)
}

const capacity = 128 // the least

// waitsAndLogs makes a cache that wakes two who wait, and that says one message.
func waitsAndLogs(ctx context.Context, name string) error {
	cache, err := watchcore.New(watchcore.Config{Name: name, Capacity: capacity})
	if err != nil {
		return err
	}
	defer cache.Close()
	writer, err := cache.Writer()
	if err != nil {
		return err
	}
	defer writer.Close()
	sub, err := cache.Subscribe(ctx, watchcore.SubscribeOptions{Start: watchcore.StartNow()})
	if err != nil {
		return err
	}
	defer sub.Close()
	ended := make(chan error, 2)
	go func() {
		batch, err := sub.Next(ctx)
		batch.Release()
		ended <- err
	}()
	go func() { ended <- cache.WaitUntil(ctx, 1) }()
	if err := writer.Apply(1, watchcore.Put("/a", "")); err != nil {
		return err
	}
	if err := errors.Join(<-ended, <-ended); err != nil {
		return err
	}
	return loses(cache, writer)
}

// loses makes the library say that events were lost, on this goroutine, at the level of debugging: what one of its
// threads says may come after the end that it is about. The log of the cache holds as few events as it may.
func loses(cache *watchcore.Cache, writer *watchcore.Writer) error {
	sub, err := cache.Subscribe(context.Background(), watchcore.SubscribeOptions{Start: watchcore.StartNow()})
	if err != nil {
		return err
	}
	defer sub.Close()
	for range capacity + 1 {
		if err := writer.Apply(cache.Revision()+1, watchcore.Put("/a", "")); err != nil {
			return err
		}
	}
	if _, err := sub.Poll(0); !errors.Is(err, watchcore.ErrLagged) {
		return fmt.Errorf("no loss: %w", err)
	}
	return nil
}

// A shutdown is refused while something is open, and its message says what; then it leaves neither a goroutine nor
// a thread, and caches can be made as before.
func TestShutdown(t *testing.T) {
	if alone(t) {
		return
	}
	before := runtime.NumGoroutine()
	ctx := bounded.Context(t)
	check(t, watchcore.Shutdown(ctx)) // there is nothing
	for range 2 {
		t.Run("everything", everything)
		check(t, watchcore.Shutdown(ctx))
		check(t, watchcore.Shutdown(ctx))
		want(t, "threads", strings.Join(libraryThreads(t), " "), "")
		want(t, "goroutines more than before", max(runtime.NumGoroutine()-before, 0), 0)
	}

	cache, writer := embedded(t, watchcore.Config{ExpectLoad: true})
	refused := func(left string) {
		t.Helper()
		err := watchcore.Shutdown(ctx)
		wantError(t, "shutdown", err, watchcore.ErrBusy)
		if want := "not closed yet: " + left + "."; !strings.Contains(err.Error(), want) {
			t.Errorf("the message does not say %q: %v", want, err)
		}
	}
	refused("1 of kind Cache, 1 of kind Writer")
	loading, err := writer.BeginLoad(1)
	check(t, err)
	refused("1 of kind Cache, 1 of kind Writer, 1 of kind Loading")
	check(t, loading.Add(watchcore.KeyValue{Key: []byte("/a"), Value: []byte("1"), CreateRevision: 1, ModRevision: 1, Version: 1}))
	check(t, loading.Finish())
	loading.Close()
	sub := subscribe(t, cache)
	snapshot, err := cache.Snapshot()
	check(t, err)
	page, err := cache.List(ctx, watchcore.RangeAll(), watchcore.ListOptions{})
	check(t, err)
	for _, err := range snapshot.Range(watchcore.RangeAll(), watchcore.SelectOptions{}) {
		check(t, err)
		refused("1 of kind Cache, 1 of kind Writer, 1 of kind Subscription, 1 of kind Snapshot, 1 of kind Page, 1 of kind loop over Snapshot.Range")
	}
	state := oneBatch(t, sub)
	check(t, writer.Apply(2, watchcore.Put("/a", "2")))
	batch := oneBatch(t, sub)
	const rest = "1 of kind Page"
	for _, one := range []struct {
		close func() error
		left  string
	}{
		{cache.Close, "1 of kind Writer, 1 of kind Subscription, 1 of kind Snapshot, " + rest},
		{writer.Close, "1 of kind Subscription, 1 of kind Snapshot, " + rest},
		{snapshot.Close, "1 of kind Subscription, " + rest},
		{sub.Close, rest},
	} {
		check(t, one.close())
		refused(one.left)
		check(t, one.close())
		refused(one.left)
	}
	page.Release()
	check(t, watchcore.Shutdown(ctx))
	want(t, "threads", strings.Join(libraryThreads(t), " "), "")
	want(t, "a batch behind the shutdown", batch.At(0).Key(), "/a")
	want(t, "a state behind the shutdown", state.At(0).Key(), "/a")
	batch.Release()
	state.Release()

	t.Run("again", everything)
	check(t, watchcore.Shutdown(ctx))
}

// What was closed, with a call still inside, is waited for, and no longer than the context lasts.
func TestShutdownWaits(t *testing.T) {
	if alone(t) {
		return
	}
	ctx := bounded.Context(t)
	over, cancel := context.WithCancel(ctx)
	cancel()
	wantError(t, "a context that is over", watchcore.Shutdown(over), context.Canceled)

	cache, writer := embedded(t)
	check(t, writer.Apply(1, watchcore.Put("/a", "1")))
	check(t, writer.Close())
	inside, goOn := make(chan struct{}), make(chan struct{})
	viewed := make(chan error)
	go func() {
		_, _, err := cache.GetView(ctx, "/a", watchcore.ReadOptions{}, func(watchcore.KeyValue) {
			close(inside)
			<-goOn
		})
		viewed <- err
	}()
	bounded.Receive(t, "the view", inside)
	check(t, cache.Close())
	check(t, watchcore.Shutdown(ctx)) // a view is memory alone
	close(goOn)
	check(t, bounded.Receive(t, "the end of the view", viewed))

	// A handler that does not return holds a shutdown up, and no cache.
	s := listen(slog.LevelDebug)
	in, out := make(chan struct{}), make(chan struct{})
	var once sync.Once
	s.wait = func() { once.Do(func() { close(in); <-out }) }
	check(t, watchcore.SetLogger(slog.New(s)))
	check(t, waitsAndLogs(ctx, "first"))
	bounded.Receive(t, "a message in the handler", in)
	waiting, stop := context.WithCancel(ctx)
	ended := make(chan error)
	go func() { ended <- watchcore.Shutdown(waiting) }()
	stop()
	wantError(t, "shutdown", bounded.Receive(t, "its end", ended), context.Canceled)
	check(t, waitsAndLogs(ctx, "second"))
	go func() { ended <- watchcore.Shutdown(ctx) }()
	close(out)
	check(t, bounded.Receive(t, "its end", ended))
	want(t, "the first message", s.count("cache=first,"), 1)
	want(t, "the second message", s.count("cache=second,"), 1)
	check(t, waitsAndLogs(ctx, "third"))
	check(t, watchcore.Shutdown(ctx))
	want(t, "the message behind a shutdown", s.count("cache=third,"), 1)
}

// What would wait for the log handler is refused inside it.
func TestHandlerCannotWaitForItself(t *testing.T) {
	defer quiet(t)
	warn := warner(t)
	s := listen(slog.LevelDebug)
	answers := make(chan error, 2)
	s.wait = func() {
		answers <- watchcore.SetLogger(nil)
		answers <- watchcore.Shutdown(context.Background())
	}
	check(t, watchcore.SetLogger(slog.New(s)))
	warn()
	wantError(t, "SetLogger", bounded.Receive(t, "its answer", answers), watchcore.ErrBusy)
	wantError(t, "Shutdown", bounded.Receive(t, "its answer", answers), watchcore.ErrBusy)
}
