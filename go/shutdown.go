package watchcore

// #include "abi.h"
// #cgo noescape wc_shutdown
// #cgo nocallback wc_shutdown
import "C"

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Shutdown ends the goroutines of this package, then the library's threads. A program that exits
// needs no such call, and a program whose caches are closed runs no goroutine of this package (see
// the package's documentation): Shutdown is for programs that must know when that is so, such as a
// plug-in before it is unloaded, and for programs that count threads.
//
// Close everything first that keeps a cache: caches, writers, loadings, subscriptions, snapshots,
// pages. While one is open, the error is ErrBusy at once, with the number of each kind. Shutdown
// waits for calls of other goroutines that are still inside closed objects. Batches may remain:
// they stay valid until they are released.
//
// Shutdown waits until the log handler has returned from the last message and the library's threads have
// ended, or the context is done. The error is then the context's, everything that was shut down starts again
// on demand, and Shutdown may be called again. A cache can be made at any time, also afterwards: it starts
// what it needs, and the logger stays set. A second call has nothing to do. While another goroutine is inside
// Shutdown, and inside the log handler, the error is ErrBusy; in a forked child it is ErrUnsupported.
func Shutdown(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if theProcess.isHandler() {
		return newError(ErrBusy, "Shutdown was called by the log handler: it would wait for itself. Call it outside of the handler")
	}
	if !shuttingDown.TryLock() {
		return newError(ErrBusy, "another goroutine is inside Shutdown. One call is enough")
	}
	defer shuttingDown.Unlock()
	for rest := time.Millisecond; ; rest = min(2*rest, 50*time.Millisecond) {
		if left := openObjects(); left != "" {
			return newError(ErrBusy, "shut down: not closed yet: %s. Close or release them first", left)
		}
		what, err := theProcess.shutDown(ctx)
		if what == "" || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("watchcore: the shutdown waits for %s: %w", what, ctx.Err())
		case <-time.After(rest):
		}
	}
}

var shuttingDown sync.Mutex

// shutDown makes one attempt. shutDown returns what must be waited for; "" without an error means that
// nothing is left.
func (p *process) shutDown(ctx context.Context) (what string, err error) {
	p.mu.Lock()
	users, running := p.users, make([]worker, 0, len(p.running))
	for w := range p.running {
		running = append(running, w)
	}
	p.mu.Unlock()
	if users > 0 {
		return "calls that are inside of what was closed", nil
	}
	for _, w := range running {
		select {
		case <-w.over():
		case <-ctx.Done():
			return "the log's handler", nil
		}
	}
	// The wait is made of short pieces, because the context cannot interrupt it.
	err = failed(C.wc_shutdown(20))
	switch {
	case errors.Is(err, ErrBusy):
		return "calls that are inside of what was closed", nil
	case errors.Is(err, ErrTimeout):
		return "the library's threads: much is being freed, or a name is looked up", nil
	}
	return "", err
}

// kind is a kind of object that the program must close before Shutdown.
type kind int

const (
	kindCache kind = iota
	kindWriter
	kindLoading
	kindSubscription
	kindSnapshot
	kindPage
	kindWalk
	kinds
)

var kindNames = [kinds]string{"Cache", "Writer", "Loading", "Subscription", "Snapshot", "Page", "loop over Snapshot.Range"}

// open counts the objects of each kind that were made and not closed.
var open [kinds]atomic.Int64

// openObjects returns the numbers and kinds of open objects; "" if none is open.
func openObjects() string {
	var left []string
	for k := range kinds {
		if n := open[k].Load(); n > 0 {
			left = append(left, fmt.Sprintf("%d of kind %s", n, kindNames[k]))
		}
	}
	return strings.Join(left, ", ")
}
