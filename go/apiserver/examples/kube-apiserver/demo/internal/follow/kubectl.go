package follow

import (
	"context"
	"encoding/json"
	"io"
	"os/exec"
	"syscall"
	"time"

	"github.com/watchcore/watchcore/go/apiserver/examples/kube-apiserver/demo/internal/check"
)

// Kubectl is kubectl get -w. It ends when its connection breaks, and is started anew then: it lists again.
type Kubectl struct {
	check.Log
	Resource Resource
	// Command makes the command.
	Command func(context.Context) *exec.Cmd
	// Troubles has what it printed that is no event.
	Troubles []string
}

// Run runs it until the context ends.
func (k *Kubectl) Run(ctx context.Context) {
	for ctx.Err() == nil {
		if err := k.once(ctx); err != nil && ctx.Err() == nil {
			k.Troubles = append(k.Troubles, err.Error())
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (k *Kubectl) once(ctx context.Context) error {
	command := k.Command(ctx)
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := command.StdoutPipe()
	if err != nil {
		return err
	}
	if err := command.Start(); err != nil {
		return err
	}
	begun, failed := k.read(out)
	_ = command.Process.Kill() // it has ended but for an error here
	if err := command.Wait(); begun && ctx.Err() == nil && err != nil {
		k.End(err.Error())
	}
	return failed
}

// read takes what it prints, and says whether there was an event.
func (k *Kubectl) read(out io.Reader) (begun bool, err error) {
	events := json.NewDecoder(out)
	for {
		var e wireEvent
		if err := events.Decode(&e); err == io.EOF || err == io.ErrUnexpectedEOF {
			return begun, nil
		} else if err != nil {
			return begun, err
		}
		event, err := e.event(k.Resource, k.View)
		if err != nil {
			return begun, err
		}
		if !begun {
			k.Begin(check.Session{Start: check.Printed})
			begun = true
		}
		k.Add(event)
	}
}
