package informer_test

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	watchcore "github.com/watchcore/watchcore/go"
	"github.com/watchcore/watchcore/go/informer"
	"github.com/watchcore/watchcore/go/internal/bounded"
)

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func want[T comparable](t testing.TB, what string, got, expected T) {
	t.Helper()
	if got != expected {
		t.Fatalf("%s:\n got %v\nwant %v", what, got, expected)
	}
}

func wantError(t testing.TB, what string, err, expected error) {
	t.Helper()
	if !errors.Is(err, expected) {
		t.Fatalf("%s: got error %v, want %v", what, err, expected)
	}
}

func contains(t testing.TB, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Fatalf("%q does not say %q", text, part)
		}
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// source is a cache with its writer, and the revision that comes next.
type source struct {
	t      testing.TB
	cache  *watchcore.Cache
	writer *watchcore.Writer
	next   uint64
}

func newSource(t testing.TB, config watchcore.Config) *source {
	t.Helper()
	cache, err := watchcore.New(config)
	check(t, err)
	t.Cleanup(func() { cache.Close() })
	writer, err := cache.Writer()
	check(t, err)
	t.Cleanup(func() { writer.Close() })
	return &source{t, cache, writer, 1}
}

// apply writes "key=value" and "-key" as one revision, which it returns.
func (s *source) apply(changes ...string) uint64 {
	s.t.Helper()
	var list []watchcore.Change
	for _, change := range changes {
		if key, gone := strings.CutPrefix(change, "-"); gone {
			list = append(list, watchcore.Delete(key))
		} else {
			key, value, _ := strings.Cut(change, "=")
			list = append(list, watchcore.Put(key, value))
		}
	}
	s.next++
	check(s.t, s.writer.Apply(s.next-1, list...))
	return s.next - 1
}

var errRefused = errors.New("no good value")

// decode takes any text but those that begin with "bad", "panic" or "exit".
func decode(_ string, value []byte) (string, error) {
	switch text := string(value); {
	case strings.HasPrefix(text, "bad"):
		return "", errRefused
	case strings.HasPrefix(text, "panic"):
		panic("a bad decoder")
	case strings.HasPrefix(text, "exit"):
		runtime.Goexit()
	}
	return string(value), nil
}

type options = informer.Options[string]

func (s *source) informer(o options) *informer.Informer[string] {
	s.t.Helper()
	in, err := informer.New(s.cache, decode, o)
	check(s.t, err)
	s.t.Cleanup(func() { check(s.t, in.StopAndWait(bounded.Context(s.t))) })
	return in
}

// recorder writes down what it is given, and waits where it is asked to.
type recorder struct {
	mu    sync.Mutex
	lines []string
	state map[string]string

	before func(line string) // called before the line is written down
}

func newRecorder() *recorder { return &recorder{state: map[string]string{}} }

func (r *recorder) OnAdd(o *informer.Object[string], initial bool) {
	mark := "+"
	if initial {
		mark = "*"
	}
	r.line(mark+o.Key+"="+o.Value, func() { r.state[o.Key] = o.Value })
}

func (r *recorder) OnUpdate(old, new *informer.Object[string]) {
	if old == new {
		r.line("="+new.Key+"="+new.Value, func() {})
		return
	}
	r.line("~"+new.Key+"="+old.Value+">"+new.Value, func() { r.state[new.Key] = new.Value })
}

func (r *recorder) OnDelete(last *informer.Object[string]) {
	r.line("-"+last.Key+"="+last.Value, func() { delete(r.state, last.Key) })
}

func (r *recorder) line(line string, change func()) {
	if r.before != nil {
		r.before(line)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, line)
	change()
}

func (r *recorder) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.lines, " ")
}

// sorted is the first n lines in order, which those of an initial state are not.
func (r *recorder) sorted(n int) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	lines := slices.Clone(r.lines)
	slices.Sort(lines[:min(n, len(lines))])
	return strings.Join(lines, " ")
}

func add(t testing.TB, in *informer.Informer[string], h informer.Handler[string], o informer.HandlerOptions) *informer.Registration {
	t.Helper()
	r, err := in.AddHandler(h, o)
	check(t, err)
	return r
}

// settled waits until a handler has handled everything up to the source's revision.
func (s *source) settled(in *informer.Informer[string], rs ...*informer.Registration) {
	s.t.Helper()
	check(s.t, in.WaitUntil(bounded.Context(s.t), s.cache.Revision()))
	for _, r := range rs {
		bounded.Eventually(s.t, fmt.Sprintf("handler: %+v", r.Status()), func() bool {
			now := r.Status()
			return now.Synced && now.LagEvents == 0 && now.Handling == ""
		})
	}
}

func values(list []*informer.Object[string]) string {
	var texts []string
	for _, o := range list {
		texts = append(texts, o.Key+"="+o.Value)
	}
	slices.Sort(texts)
	return strings.Join(texts, " ")
}
