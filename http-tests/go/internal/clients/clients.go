// Package clients has the programs and libraries that list and watch, each as one that can be started, tells logs what
// it was told, and is stopped.
//
// No client knows that it is tested: each keeps its own rules of when it resumes and when it lists anew, and where
// a program has none (curl), it is run by the smallest loop that Kubernetes' documentation asks for.
package clients

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"strconv"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"watchcore.test/http/internal/history"
)

// Quiet keeps client-go from logging each connection that a restart broke.
func Quiet() {
	flags := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(flags)
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	_ = flags.Set("stderrthreshold", "FATAL")
}

// A Client is one that runs.
type Client struct {
	// Logs are what it was told, one for each resource.
	Logs []*history.Log
	// State is what it would say if asked, for a log: nil where the client keeps no state of its own.
	State func(log *history.Log) (map[string]int64, error)
	// Back says where what the client itself shows went back in time, or is empty. nil where it shows no revisions.
	Back func() string

	cancel context.CancelFunc
	tasks  sync.WaitGroup
	mutex  sync.Mutex
	err    error
}

// start makes a client whose tasks end with the context or with Stop.
func start(ctx context.Context, logs ...*history.Log) (*Client, context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	return &Client{Logs: logs, cancel: cancel}, ctx
}

// run adds a task. Its error is the client's.
func (c *Client) run(task func() error) {
	c.tasks.Add(1)
	go func() {
		defer c.tasks.Done()
		if err := task(); err != nil {
			c.fail(err)
		}
	}()
}

func (c *Client) fail(err error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.err == nil {
		c.err = err
	}
}

// Err is why the client cannot go on.
func (c *Client) Err() error {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.err
}

// Stop ends it and waits until it has.
func (c *Client) Stop() {
	c.cancel()
	c.tasks.Wait()
}

// pause is what a client waits before it tries again: false when it is to end instead.
func pause(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(50 * time.Millisecond):
		return true
	}
}

// metadataOf is what is read of an object.
type metadataOf struct {
	Name            string            `json:"name"`
	Namespace       string            `json:"namespace"`
	ResourceVersion string            `json:"resourceVersion"`
	Continue        string            `json:"continue"`
	Annotations     map[string]string `json:"annotations"`
}

func (m metadataOf) key(plural string) string {
	if m.Namespace == "" {
		return plural + "/" + m.Name
	}
	return plural + "/" + m.Namespace + "/" + m.Name
}

func (m metadataOf) revision() int64 {
	revision, err := strconv.ParseInt(m.ResourceVersion, 10, 64)
	if err != nil {
		return -1
	}
	return revision
}

// An expired error says that the server has no longer what was asked for: the client lists anew.
type expired struct{ message string }

func (e expired) Error() string { return e.message }

// read reads one message of a watch into a log.
func read(log *history.Log, plural string, line []byte) error {
	var event struct {
		Type   string
		Object struct {
			Kind     string
			Metadata metadataOf
			Code     int
			Message  string
		}
	}
	if err := json.Unmarshal(line, &event); err != nil {
		return fmt.Errorf("no event: %w: %.200s", err, line)
	}
	object := event.Object
	switch event.Type {
	case "ADDED", "MODIFIED", "DELETED":
		log.Event(event.Type, object.Metadata.key(plural), object.Metadata.revision())
	case "BOOKMARK":
		log.Bookmark(object.Metadata.revision())
	case "ERROR":
		if object.Code == 410 {
			return expired{object.Message}
		}
		return fmt.Errorf("the watch failed: %s", line)
	default:
		return fmt.Errorf("an event of another type: %.200s", line)
	}
	return nil
}
