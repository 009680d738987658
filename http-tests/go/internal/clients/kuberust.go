package clients

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"watchcore.test/http/internal/history"
	"watchcore.test/http/internal/world"
)

// KubeRust starts the program with kube-rs (http-tests/rust): watchers by lists and by streamed lists, of objects and of
// metadata, and a reflector.
func KubeRust(ctx context.Context, binary, url string) (*Client, error) {
	states := &storeStates{arrived: map[string]map[string]int64{}}
	byName := map[string]*history.Log{}
	var logs []*history.Log
	for _, plural := range []string{"widgets", "gizmos"} {
		for _, kind := range []string{"reflector", "streaming", "metadata", "streaming metadata"} {
			log := history.NewLog("kube-rs "+kind, plural+"/")
			byName[kind+" "+plural] = log
			logs = append(logs, log)
			if kind == "reflector" {
				states.names = append(states.names, kind+" "+plural)
			}
		}
	}
	input, asks, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer input.Close()
	states.asks = asks
	reader, writer := io.Pipe()
	program, err := world.Command{Name: binary, Arguments: []string{url}, Input: input, Output: writer}.Start()
	if err != nil {
		asks.Close()
		return nil, err
	}
	c, ctx := start(ctx, logs...)
	c.State = func(log *history.Log) (map[string]int64, error) {
		for name, of := range byName {
			if of == log && name[:9] == "reflector" {
				return states.ask(name)
			}
		}
		return nil, nil
	}
	c.run(func() error {
		select {
		case <-ctx.Done():
			asks.Close()
			select {
			case <-program.Ended():
			case <-time.After(5 * time.Second):
				program.Kill()
			}
			writer.Close()
			return nil
		case <-program.Ended():
			writer.Close()
			return fmt.Errorf("the program with kube-rs ended:\n%s", program.Output())
		}
	})
	c.run(func() error { return readEntries(reader, byName, states) })
	return c, nil
}

func readEntries(reader io.Reader, byName map[string]*history.Log, states *storeStates) error {
	lines := bufio.NewReaderSize(reader, 1<<20)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return nil
		}
		var printed struct {
			Log   string
			Entry history.Entry
		}
		if err := json.Unmarshal(line, &printed); err != nil {
			return fmt.Errorf("the program with kube-rs printed %.200s: %w", line, err)
		}
		if printed.Entry.Kind == "state" {
			states.came(printed.Log, printed.Entry.Items)
		} else if log := byName[printed.Log]; log != nil {
			log.Add(printed.Entry)
		} else {
			return fmt.Errorf("the program with kube-rs printed %.200s", line)
		}
	}
}

// storeStates are what the program's stores said when they were asked last.
type storeStates struct {
	names []string
	asks  io.WriteCloser

	mutex   sync.Mutex
	arrived map[string]map[string]int64
}

func (s *storeStates) came(name string, state map[string]int64) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.arrived[name] = state
}

func (s *storeStates) ask(name string) (map[string]int64, error) {
	s.mutex.Lock()
	delete(s.arrived, name)
	s.mutex.Unlock()
	if _, err := io.WriteString(s.asks, "state\n"); err != nil {
		return nil, err
	}
	deadline := time.Now().Add(world.Timeout)
	for time.Now().Before(deadline) {
		s.mutex.Lock()
		state, there := s.arrived[name]
		s.mutex.Unlock()
		if there {
			return state, nil
		}
		time.Sleep(5 * time.Millisecond)
	}
	return nil, fmt.Errorf("no answer from the store")
}
