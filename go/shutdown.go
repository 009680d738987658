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

// Shutdown ends what the process has once: the goroutines of this package, then the library's threads. A
// program that ends needs no such call, and one whose caches are closed has no goroutine of this package left
// (see the package's documentation): Shutdown is for who wants to know when, as a plug-in before it is
// unloaded, and for who counts threads.
//
// What keeps a cache is to be closed before: caches, writers, loadings, subscriptions, snapshots, pages. While
// one is open that nobody has closed the answer is ErrBusy at once, and its message says how many of which. What
// was closed while another goroutine is still inside a call of it is waited for. Batches may stay: they are valid
// until they are released, as ever.
//
// It waits until the log's handler has returned from the last message and the library's threads have ended, or
// the context is done: then the error is the context's, nothing was shut down that is not started again at its
// next need, and Shutdown may be called again. A cache can be made at any time, also afterwards: it starts what
// it needs, and the logger that was set stays. Called twice, the second call has nothing to do; while another
// goroutine is inside Shutdown, and in the log's handler, it is ErrBusy; in a forked child ErrUnsupported.
func Shutdown(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if theProcess.isHandler() {
		return newError(ErrBusy, "Shutdown was called by the log handler: it would wait for itself. Call it elsewhere")
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

// shutDown tries once. It says what it has to wait for; "" without an error: nothing is left.
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
	// In short pieces: nothing of Go's ends this wait.
	err = failed(C.wc_shutdown(20))
	switch {
	case errors.Is(err, ErrBusy):
		return "calls that are inside of what was closed", nil
	case errors.Is(err, ErrTimeout):
		return "the library's threads: much is being freed, or a name is looked up", nil
	}
	return "", err
}

// kind is a kind of object that the program has to close before a Shutdown.
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

// open is how many of each kind were made and not closed.
var open [kinds]atomic.Int64

// openObjects says how many of which kinds are open; "" where none is.
func openObjects() string {
	var left []string
	for k := range kinds {
		if n := open[k].Load(); n > 0 {
			left = append(left, fmt.Sprintf("%d of kind %s", n, kindNames[k]))
		}
	}
	return strings.Join(left, ", ")
}
