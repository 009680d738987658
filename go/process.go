//go:build cgo

package watchcore

import (
	"log/slog"
	"sync"

	"watchcore/internal/goroutine"
)

// process is what the package has once for all caches: the wake loop (waker.go) and the bridge that hands
// out log messages (log.go). Each has a goroutine. Both are started at their first need and end with the
// last user, so that a program whose caches are closed has no goroutine of this package. The users are
//
//   - each cache, from before the library makes it until the library's handle is freed;
//   - each wait and each subscription that has a tag in the wake set;
//   - whoever reports a message of the package's own, while it does.
//
// docs/internals/shutdown.md has the states, and why no wake-up and no message is lost between an end and
// the next start.
type process struct {
	mu    sync.Mutex
	users int
	log   logging

	loop *wakeLoop // nil: nobody has waited since the last user left

	running map[worker]struct{} // what was started and has not ended: Shutdown waits for it
}

var theProcess = process{running: map[worker]struct{}{}}

// worker has a goroutine: a wakeLoop or a bridge.
type worker interface {
	over() <-chan struct{} // closed when the goroutine has ended
}

// enter counts a user, and starts the log with the first one. It calls the program's log handler (Enabled), so
// no lock may be held. leave must follow, unless there is an error.
func (p *process) enter() error {
	most := mostOf(nil)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.users == 0 {
		if err := p.log.begin(p, most); err != nil {
			return err
		}
	}
	p.users++
	return nil
}

// leave ends with the last user what the process has once.
func (p *process) leave() {
	p.mu.Lock()
	loop := p.left()
	p.mu.Unlock()
	loop.end()
}

// left uncounts a user, with the lock. The caller has to end what it returns, without the lock.
func (p *process) left() (unused *wakeLoop) {
	if p.users--; p.users > 0 {
		return nil
	}
	p.log.stop()
	unused, p.loop = p.loop, nil
	return unused
}

// started needs the lock; ended follows.
func (p *process) started(w worker) { p.running[w] = struct{}{} }

func (p *process) ended(w worker) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.running, w)
}

// isHandler says whether the goroutine that calls it runs the program's log handler: it would wait for
// itself in what waits for that.
func (p *process) isHandler() bool {
	id := goroutine.ID()
	p.mu.Lock()
	defer p.mu.Unlock()
	for w := range p.running {
		if b, ok := w.(*bridge); ok && id != 0 && b.goroutine.Load() == id {
			return true
		}
	}
	return false
}

// report says a message of the package's own where the library's messages go. It calls the program's log
// handler (Enabled): not from a cleanup, nor with a lock.
func (p *process) report(level slog.Level, message string) {
	if p.enter() != nil {
		return
	}
	defer p.leave()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.log.send(level, message)
}
