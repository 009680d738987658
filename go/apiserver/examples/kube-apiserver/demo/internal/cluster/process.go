// Package cluster is what the demonstration runs: etcd, the API server and the controller manager, on the loopback address and on ports
// that were free, with everything below one directory.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Timeout is how long anything may take that is waited for.
const Timeout = 2 * time.Minute

// Process is a program that was started here. The kernel kills it when this program dies, however that happens.
type Process struct {
	command *exec.Cmd
	log     string
	ended   chan struct{}
	err     error
}

// start runs a program that writes to a log below directory.
func start(directory, name string, environment []string, program string, arguments ...string) (*Process, error) {
	p := &Process{command: exec.Command(program, arguments...), log: filepath.Join(directory, name+".log"), ended: make(chan struct{})}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p.command.Env = append(os.Environ(), environment...)
	p.command.Stdout, p.command.Stderr = log, log
	p.command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.command.Start(); err != nil {
		return nil, err
	}
	go func() {
		p.err = p.command.Wait()
		close(p.ended)
	}()
	return p, nil
}

// Kill ends it as kill -9 does, and waits.
func (p *Process) Kill() {
	_ = p.command.Process.Kill()
	<-p.ended
}

// Terminate asks it to end and waits. The error is how it ended, or that it did not.
func (p *Process) Terminate() error {
	_ = p.command.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.ended:
		return p.err
	case <-time.After(Timeout):
		p.Kill()
		return fmt.Errorf("it did not end %v after SIGTERM", Timeout)
	}
}

// Alive is an error with the end of its log where it has ended.
func (p *Process) Alive() error {
	select {
	case <-p.ended:
		return fmt.Errorf("%s ended (%v):\n%s", filepath.Base(p.command.Path), p.err, p.tail())
	default:
		return nil
	}
}

// tail is the end of its log.
func (p *Process) tail() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-12):], "\n")
}

// freeAddress is one of the loopback interface that nobody listens on. Its port is below those that Linux gives to connections, so that
// none takes it while a server that listened there is started again.
func freeAddress() (string, error) {
	const lowest, highest = 12_000, 32_000
	var failed error
	for range 100 {
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", lowest+rand.IntN(highest-lowest)))
		if err == nil {
			return listener.Addr().String(), listener.Close()
		}
		failed = err
	}
	return "", failed
}

// Until asks again and again until there is no error, and gives up after Timeout or with the context. The error is the last one that is not
// the context's.
func Until(ctx context.Context, what string, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, Timeout, fmt.Errorf("not within %v", Timeout))
	defer cancel()
	var last error
	for {
		err := ask(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%s: %w", what, errors.Join(context.Cause(ctx), last, err))
		}
		last = err
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
}
