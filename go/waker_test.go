package watchcore_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"

	watchcore "github.com/watchcore/watchcore/go"
	"github.com/watchcore/watchcore/go/internal/bounded"
)

// alone runs a test in a process of its own, where it may change what a process has once.
// False: this is that process.
func alone(t *testing.T) bool {
	t.Helper()
	const key = "WATCHCORE_TEST_ALONE"
	if os.Getenv(key) == t.Name() {
		return false
	}
	program, err := os.Executable()
	check(t, err)
	cmd := exec.CommandContext(bounded.Context(t), program, "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), key+"="+t.Name())
	said, err := cmd.CombinedOutput()
	if err != nil || !bytes.Contains(said, []byte("--- PASS: "+t.Name()+" ")) {
		t.Fatalf("in a process of its own: %v\n%s", err, said)
	}
	return true
}

// The first wait of a process needs a descriptor. Where there is none left it fails, and
// says that a later one may succeed: so it does when there is one again.
func TestFirstWaitWithoutADescriptor(t *testing.T) {
	t.Parallel()
	if alone(t) {
		return
	}
	cache, writer := embedded(t)
	sub := subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartNow()})
	ctx := bounded.Context(t)
	var before syscall.Rlimit
	check(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &before))
	check(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Max: before.Max}))
	_, next := sub.Next(ctx)
	until := cache.WaitUntil(ctx, 1)
	check(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &before))
	for what, err := range map[string]error{"next": next, "wait": until} {
		wantError(t, what, err, watchcore.ErrResourceExhausted)
		var e *watchcore.Error
		if !errors.As(err, &e) || !e.Retryable() {
			t.Errorf("%s: it cannot be tried again: %v", what, err)
		}
	}

	cancelled, cancel := context.WithCancel(ctx)
	ended := make(chan error)
	go func() {
		_, err := sub.Next(cancelled)
		ended <- err
	}()
	bounded.Eventually(t, "it sleeps", func() bool {
		select {
		case err := <-ended:
			t.Fatalf("with descriptors again: %v", err)
		default:
		}
		return cache.Stats().Waiting == 1
	})
	cancel()
	wantError(t, "next", bounded.Receive(t, "the end of the wait", ended), context.Canceled)
	go func() { ended <- cache.WaitUntil(ctx, 1) }()
	go func() {
		batch, err := sub.Next(ctx)
		batch.Release()
		ended <- err
	}()
	bounded.Eventually(t, "both sleep", func() bool { return cache.Stats().Waiting == 2 })
	check(t, writer.Apply(1, watchcore.Put("/a", "1")))
	check(t, bounded.Receive(t, "one", ended))
	check(t, bounded.Receive(t, "the other", ended))
}
