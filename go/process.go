//go:build cgo

package watchcore

import (
	"log/slog"
	"sync"

	"github.com/watchcore/watchcore/go/internal/goroutine"
)

// process is the state that all caches share: the wake loop (waker.go) and the bridge that passes
// on log messages (log.go). Each has a goroutine. Both start on demand and end with the last user,
// so that a program whose caches are closed runs no goroutine of this package. The users are
//
//   - each cache, from before the library makes it until the library's handle is freed;
//   - each wait and each subscription that has a tag in the wake set;
//   - each caller of report, during the call.
//
// docs/internals/shutdown.md has the states, and the reason why no wake-up and no message is lost
// between an end and the next start.
type process struct {
	mu    sync.Mutex
	users int
	log   logging

	loop *wakeLoop // nil: nobody has waited since the last user left

	running map[worker]struct{} // started and not ended yet: Shutdown waits for them
}

var theProcess = process{running: map[worker]struct{}{}}

// worker has a goroutine: it is a wakeLoop or a bridge.
type worker interface {
	over() <-chan struct{} // closed when the goroutine has ended
}

// enter counts a user, and starts the log for the first one. enter calls the program's log handler
// (Enabled), so the caller must hold no lock. Unless enter fails, leave must follow.
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

// leave removes a user. After the last one it ends the shared goroutines.
func (p *process) leave() {
	p.mu.Lock()
	loop := p.left()
	p.mu.Unlock()
	loop.end()
}

// left removes a user, under the lock. The caller must end the returned loop without the lock.
func (p *process) left() (unused *wakeLoop) {
	if p.users--; p.users > 0 {
		return nil
	}
	p.log.stop()
	unused, p.loop = p.loop, nil
	return unused
}

// started needs the lock. ended must follow.
func (p *process) started(w worker) { p.running[w] = struct{}{} }

func (p *process) ended(w worker) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.running, w)
}

// isHandler reports whether the calling goroutine runs the program's log handler, which would wait
// for itself in a call that waits for the handler.
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

// report logs a message of this package. report calls the program's log handler (Enabled), so it must
// not be called from a cleanup, nor under a lock.
func (p *process) report(level slog.Level, message string) {
	if p.enter() != nil {
		return
	}
	defer p.leave()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.log.send(level, message)
}
