//go:build cgo

package watchcore

import (
	"context"
	"errors"
	"testing"

	"github.com/watchcore/watchcore/go/internal/bounded"
)

// Where the descriptor cannot be polled a thread waits: it wakes, and ends, too.
func TestLoopWithoutAPoller(t *testing.T) {
	p := &process{running: map[worker]struct{}{}}
	loop, err := newWakeLoop(p)
	if err != nil {
		t.Fatal(err)
	}
	loop.conn = nil
	p.mu.Lock()
	loop.start()
	p.mu.Unlock()
	_, tag, err := p.join(make(chan struct{}, 1))
	if err != nil {
		t.Fatal(err)
	}
	p.quit(tag)
	bounded.Receive(t, "the end of the loop", loop.over())
	if len(p.running) != 0 || p.loop != nil {
		t.Errorf("something is left: %v, %v", p.running, p.loop)
	}
}

// Of two shutdowns at once the second is refused.
func TestSecondShutdownIsRefused(t *testing.T) {
	shuttingDown.Lock()
	defer shuttingDown.Unlock()
	if err := Shutdown(context.Background()); !errors.Is(err, ErrBusy) {
		t.Errorf("the second one: %v", err)
	}
}
