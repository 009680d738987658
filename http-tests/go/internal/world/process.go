// Package world is what the clients are tested in: an etcd that can be killed and come back, a connection to it that can
// be cut, watchcore serve or Kubernetes' API server over it, and a writer who keeps a history of what it wrote.
//
// Everything listens on the loopback address, on ports that were free, and lies in a directory that the caller removes.
package world

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// Timeout is how long anything may take that is waited for.
const Timeout = 60 * time.Second

// A Process is a program that was started here. The kernel kills the process when this program dies, however that happens.
type Process struct {
	command *exec.Cmd
	ended   chan struct{}
	err     error
	output  *tail
}

// A Command is what a Process runs. Without an Output, what it writes to its standard output is kept for messages, as
// what it writes to its standard error always is.
type Command struct {
	Name        string
	Arguments   []string
	Environment []string // beyond that of this program
	Input       *os.File
	Output      io.Writer
	// OnError gets each line that it writes to its standard error.
	OnError func(line string)
}

// Start runs it.
func (c Command) Start() (*Process, error) {
	p := &Process{command: exec.Command(c.Name, c.Arguments...), ended: make(chan struct{}), output: &tail{onLine: c.OnError}}
	p.command.Env = append(os.Environ(), c.Environment...)
	p.command.Stderr = p.output
	p.command.Stdout = p.output
	if c.Output != nil {
		p.command.Stdout = c.Output
	}
	if c.Input != nil {
		p.command.Stdin = c.Input
	}
	p.command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	// A program that was killed may have left a child with the pipe.
	p.command.WaitDelay = 5 * time.Second
	if err := p.command.Start(); err != nil {
		return nil, err
	}
	go func() {
		p.err = p.command.Wait()
		close(p.ended)
	}()
	return p, nil
}

// Ended is closed when the program has ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Output is the last of what it wrote.
func (p *Process) Output() string { return p.output.String() }

// Wait waits until it has ended. The error is how it ended, or that it did not within Timeout.
func (p *Process) Wait() error {
	select {
	case <-p.ended:
		return p.err
	case <-time.After(Timeout):
		p.Kill()
		return fmt.Errorf("%s did not end within %v", p.command.Path, Timeout)
	}
}

// Kill ends it at once, as kill -9 does, and waits.
func (p *Process) Kill() {
	_ = p.command.Process.Kill()
	<-p.ended
}

// Terminate asks it to end and waits for it. The error is how it ended, or that it did not.
func (p *Process) Terminate() error {
	_ = p.command.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.ended:
		return p.err
	case <-time.After(Timeout):
		p.Kill()
		return fmt.Errorf("%s did not end %v after SIGTERM:\n%s", p.command.Path, Timeout, p.Output())
	}
}

// A tail keeps the last 16 KiB that were written to it, and shows each line to who asked for them.
type tail struct {
	mutex sync.Mutex
	bytes []byte

	onLine func(line string)
	line   []byte
}

func (t *tail) Write(b []byte) (int, error) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.bytes = append(t.bytes, b...)
	if t.onLine != nil {
		t.line = append(t.line, b...)
		for {
			line, rest, ended := bytes.Cut(t.line, []byte("\n"))
			if !ended {
				break
			}
			t.onLine(string(line))
			t.line = rest
		}
	}
	if len(t.bytes) > 32<<10 {
		t.bytes = append([]byte(nil), t.bytes[len(t.bytes)-16<<10:]...)
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	return string(bytes.TrimSpace(t.bytes))
}

// FreeAddress is an address of the loopback interface that nobody listens on. Its port is below those that Linux gives to
// connections, so that no connection takes it while a server that listened there is started again.
func FreeAddress() (string, error) {
	const lowest, highest = 12_000, 32_000
	var listener net.Listener
	var err error
	for range 100 {
		if listener, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", lowest+rand.IntN(highest-lowest))); err == nil {
			defer listener.Close()
			return listener.Addr().String(), nil
		}
	}
	return "", err
}

// Until asks again and again until there is no error, and gives up with the last one after Timeout or with the context.
func Until(ctx context.Context, what string, ask func() error) error {
	deadline := time.Now().Add(Timeout)
	for {
		err := ask()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: not within %v: %w", what, Timeout, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w (%w)", what, ctx.Err(), err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// healthy is an error while a URL does not answer 200.
func healthy(url string) error {
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get(url)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(response.Body, 1000))
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %s", url, response.Status, body)
	}
	return nil
}
