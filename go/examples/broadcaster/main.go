// Command broadcaster shows a broadcaster with three kinds of watchers: one that the publisher
// waits for, one that loses events when it is too slow, with a report, and one that starts late, in
// the past. It prints the same in each run:
//
//	waits: saw 1000 jobs, lost 0
//	drops: saw 8 jobs, lost 992, at first: ADDED@1: job 0 ADDED@2: job 1 …
//	late: saw 500 jobs, from ADDED@501: job 500
//
// Run it with `go run github.com/watchcore/watchcore/go/examples/broadcaster@latest`, or from the
// module with `go run ./examples/broadcaster`. It needs neither cgo nor etcd.
package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/watchcore/watchcore/go/watch"
)

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "broadcaster:", err)
		os.Exit(1)
	}
}

// job is what the events are about. job is shared by all watchers, so nobody writes to it.
type job struct{ number int }

func (j *job) String() string { return fmt.Sprintf("job %d", j.number) }

const jobs = 1000

func run(ctx context.Context, out io.Writer) error {
	// The broadcaster keeps the last thousand events for late watchers.
	b, err := watch.NewBroadcasterWithOptions[*job](watch.BroadcasterOptions{
		Queue:   watch.WaitQueue(100),
		History: jobs,
	})
	if err != nil {
		return err
	}
	waits, err := b.Watch()
	if err != nil {
		return err
	}
	drops, err := b.WatchWithOptions(watch.WatchOptions[*job]{Queue: watch.DropQueue(8)})
	if err != nil {
		return err
	}

	// The publisher waits whenever the first watcher is more than its queue behind. The second one,
	// which is not read yet, delays nobody.
	published := make(chan error, 1)
	go func() { published <- publish(b) }()
	seen, lost := count(ctx, waits)
	// Stop in any case, also after the end of the context: the publisher must not wait for an unread watcher.
	waits.Stop()
	if err := <-published; err != nil {
		return err
	}
	fmt.Fprintf(out, "waits: saw %d jobs, lost %d\n", seen, lost)

	// The late watcher starts in the middle. After Shutdown, watchers can still read earlier events.
	late, err := b.WatchAfter(jobs / 2)
	if err != nil {
		return err
	}
	b.Shutdown()
	first, err := drops.Next(ctx)
	if err != nil {
		return err
	}
	second, err := drops.Next(ctx)
	if err != nil {
		return err
	}
	seen, _ = count(ctx, drops)
	fmt.Fprintf(out, "drops: saw %d jobs, lost %d, at first: %v %v …\n", seen+2, drops.Dropped(), first, second)

	first, err = late.Next(ctx)
	if err != nil {
		return err
	}
	seen, _ = count(ctx, late)
	fmt.Fprintf(out, "late: saw %d jobs, from %v\n", seen+1, first)
	return nil
}

func publish(b *watch.Broadcaster[*job]) error {
	for i := range jobs {
		if err := b.Action(watch.Added, &job{i}); err != nil {
			return err
		}
	}
	return nil
}

// count reads a watcher to the last job, or to its end.
func count(ctx context.Context, w *watch.Watcher[*job]) (seen int, lost uint64) {
	for e := range w.All(ctx) {
		seen++
		lost += e.Lost
		if e.Object.number == jobs-1 {
			break
		}
	}
	return seen, lost
}
