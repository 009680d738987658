// Package contract drives the machines under the rows of contract/toolkit, for the tests of several packages:
// over a source that a row feeds, or over a hostile server. contract/README.md explains the words of a row.
package contract

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/watchcore/watchcore/go/internal/handclock"
	"github.com/watchcore/watchcore/go/internal/rows"
	"github.com/watchcore/watchcore/go/watch"
)

// Page is the answer to a list request.
type Page struct {
	Items    []watch.Item[string]
	Revision uint64
	Continue string
	Err      error
}

// Source gives its scripted answers in order. After the last list it refuses with 503, after the
// last watch it stays silent.
type Source struct {
	mu      sync.Mutex
	lists   []func() Page
	watches []func() (*Fed, error)
	given   []*Fed
	asked   []string
}

// List answers a list request, and records it.
func (s *Source) List(ctx context.Context, asked string) Page {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, asked)
	if len(s.lists) == 0 {
		return Page{Err: &watch.Status{Code: 503, Message: "no more lists"}}
	}
	answer := s.lists[0]
	if s.lists = s.lists[1:]; answer == nil {
		return Page{Err: s.neverAnswers(ctx)}
	}
	return answer()
}

// neverAnswers keeps its caller until that gives up. The caller holds the lock.
func (s *Source) neverAnswers(ctx context.Context) error {
	s.mu.Unlock()
	defer s.mu.Lock()
	<-ctx.Done()
	return ctx.Err()
}

// Watch answers a watch request, and records it. It implements watch.Source.
func (s *Source) Watch(ctx context.Context, after uint64) (watch.Interface[string], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, fmt.Sprint("watch@", after))
	w := newFed()
	if len(s.watches) > 0 {
		answer := s.watches[0]
		if s.watches = s.watches[1:]; answer == nil {
			return nil, s.neverAnswers(ctx)
		}
		var err error
		if w, err = answer(); w == nil {
			return nil, err
		}
	}
	s.given = append(s.given, w)
	return w, nil
}

// opened returns the most recently opened watch.
func (s *Source) opened() *Fed {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.given[len(s.given)-1]
}

// open is how many watches nobody has stopped.
func (s *Source) open() (open int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.given {
		if !w.isStopped() {
			open++
		}
	}
	return open
}

// takeAsked returns the requests since its previous call.
func (s *Source) takeAsked() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	asked := strings.Join(s.asked, " ")
	s.asked = nil
	return asked
}

func (s *Source) addList(words []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	add := func(page Page) { s.lists = append(s.lists, func() Page { return page }) }
	switch words[0] {
	case "panic":
		s.lists = append(s.lists, func() Page { panic("as the row says") })
	case "never":
		s.lists = append(s.lists, nil)
	case "error":
		add(Page{Err: failure(words)})
	default:
		page := Page{Revision: rows.Number(words[0])}
		if at := slices.Index(words, "more"); at >= 0 {
			page.Continue, words = words[at+1], words[:at]
		}
		for _, text := range words[1:] {
			object, own, _ := strings.Cut(text, "@")
			page.Items = append(page.Items, watch.Item[string]{Object: object, Revision: rows.Number(own)})
		}
		add(page)
	}
}

func (s *Source) addWatch(words []string, clock *handclock.Clock) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var slow time.Duration
	if len(words) > 0 && words[0] == "slow" {
		slow, words = rows.Duration(words[1]), words[2:]
	}
	if len(words) > 0 && words[0] == "never" {
		s.watches = append(s.watches, nil)
		return
	}
	var answer func() (*Fed, error)
	switch {
	case len(words) > 0 && words[0] == "panic":
		answer = func() (*Fed, error) { panic("as the row says") }
	case len(words) > 0 && words[0] == "none":
		answer = func() (*Fed, error) { return nil, nil }
	case len(words) > 0 && words[0] == "error":
		err := failure(words)
		answer = func() (*Fed, error) { return nil, err }
	default:
		w := newFed()
		w.feed(words)
		answer = func() (*Fed, error) { return w, nil }
	}
	s.watches = append(s.watches, func() (*Fed, error) {
		if slow > 0 {
			clock.Advance(slow)
		}
		return answer()
	})
}

// failure parses `error 410 [after 5s]`; 0 is an error that has no number.
func failure(words []string) error {
	s := &watch.Status{Code: int(rows.Number(words[1])), Message: "as the row says"}
	if s.Code == 0 {
		return errors.New(s.Message)
	}
	if len(words) > 2 {
		s.RetryAfter = rows.Duration(words[3])
	}
	return s
}

// Fed is a watch that the script feeds.
type Fed struct {
	mu      sync.Mutex
	events  []watch.Event[string]
	ended   bool
	panics  bool
	stopped bool
	waiting bool          // its reader has read everything and waits
	changed chan struct{} // closed when there is more
}

func newFed() *Fed { return &Fed{changed: make(chan struct{})} }

// idle reports whether the reader has read everything and waits for more.
func (w *Fed) idle() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.waiting
}

func (w *Fed) isStopped() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stopped
}

// feed parses `EVENT... [then end|stay|panic|error 410]`.
func (w *Fed) feed(words []string) {
	then := []string{"stay"}
	if at := slices.Index(words, "then"); at >= 0 {
		words, then = words[:at], words[at+1:]
	}
	var events []watch.Event[string]
	for _, text := range words {
		events = append(events, event(text))
	}
	if then[0] == "error" {
		events = append(events, watch.Event[string]{Type: watch.Error, Err: failure(then)})
	}
	w.mu.Lock()
	w.panics = then[0] == "panic"
	w.mu.Unlock()
	w.push(events, then[0] == "end")
}

// push appends events. With ends, the watch ends after them.
func (w *Fed) push(events []watch.Event[string], ends bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, events...)
	w.ended = w.ended || ends
	w.wake()
}

// wake tells the reader that there is more, or the end. With the lock.
func (w *Fed) wake() {
	w.waiting = false
	close(w.changed)
	w.changed = make(chan struct{})
}

var types = map[string]watch.EventType{"+": watch.Added, "~": watch.Modified, "-": watch.Deleted, "?": watch.Deleted}

// event parses `+/a=1@11/10!3`, `~/a=2@12`, `-/a=2@13`, `?/a@13`, `bookmark@20` or `synced@20`; the number after the last
// slash of the numbers is the position, the one after `!` says how many events were lost before it.
func event(text string) watch.Event[string] {
	var e watch.Event[string]
	text, lost, some := strings.Cut(text, "!")
	if some {
		e.Lost = rows.Number(lost)
	}
	object, numbers, _ := strings.Cut(text, "@")
	own, position, two := strings.Cut(numbers, "/")
	if !two {
		position = own
	}
	e.Revision = rows.Number(position)
	switch object {
	case "bookmark":
		e.Type = watch.Bookmark
	case "synced":
		e.Type = watch.Synced
	default:
		e.Type, e.Object, e.FinalStateUnknown = types[object[:1]], object[1:], object[0] == '?'
		e.ObjectRevision = rows.Number(own)
	}
	return e
}

// Next returns the next event.
func (w *Fed) Next(ctx context.Context) (e watch.Event[string], err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.events) == 0 && !w.ended && !w.stopped {
		if w.panics {
			panic("as the row says")
		}
		w.waiting = true
		changed := w.changed
		w.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			err = ctx.Err()
		}
		w.mu.Lock()
		if err != nil {
			return e, err
		}
	}
	if len(w.events) == 0 || w.stopped {
		return e, watch.ErrEnded
	}
	e, w.events = w.events[0], w.events[1:]
	return e, nil
}

// ResultChan is never called, because readers prefer Next.
func (w *Fed) ResultChan() <-chan watch.Event[string] { panic("a watch that is pulled") }

// Stop ends the watch.
func (w *Fed) Stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped = true
	w.wake()
}

// Key returns the key of an object `key=value`.
func Key(object string) string {
	key, _, _ := strings.Cut(object, "=")
	return key
}

// Machine is the code under test that a row drives over its source.
type Machine interface {
	// Poll takes all available events. Poll returns true if it took any: more may follow.
	Poll() (took bool)
	// Say runs a word of this machine, and returns the lines that it prints.
	Say(words []string) []string
}

// Start makes the machine of a row; the words configure it. An error: the machine is refused.
type Start func(t *testing.T, words []string, source *Source, clock *handclock.Clock) (Machine, error)

// Rows runs the rows of contract/toolkit for this machine.
func Rows(t *testing.T, machine string, start Start) {
	rows.RunSettled(t, "../../contract/toolkit", "go", "run "+machine, func(t *testing.T) rows.Machine {
		return &script{t: t, source: &Source{}, clock: handclock.New(), start: start, skip: len(strings.Fields(machine))}
	})
}

// script is the state of a case between its steps.
type script struct {
	t       *testing.T
	source  *Source
	clock   *handclock.Clock
	start   Start
	skip    int // how many words behind run are the machine's name
	words   []string
	machine Machine // nil before the step "start"
}

// settle waits until every goroutine of the case is blocked and the machine has nothing to take.
func (s *script) settle() {
	for synctest.Wait(); s.machine != nil && s.machine.Poll(); {
		synctest.Wait()
	}
}

// Close does nothing: the test that starts a machine ends it.
func (s *script) Close() {}

// Run executes a step, and returns its output.
func (s *script) Run(words []string) (printed []string) {
	s.settle()
	word, rest := words[0], words[1:]
	switch word {
	case "run":
		s.words = rest[s.skip:]
	case "list":
		s.source.addList(rest)
	case "watch":
		s.source.addWatch(rest, s.clock)
	case "start":
		machine, err := s.start(s.t, s.words, s.source, s.clock)
		if err != nil {
			return Line("INVALID_ARGUMENT")
		}
		s.machine = machine
	case "send":
		s.source.opened().feed(rest)
	case "advance":
		s.clock.Advance(rows.Duration(rest[0]))
	case "backoff", "delay":
		_, due := s.clock.Timers()
		most := rows.Duration(rest[0])
		least := most
		if word == "backoff" {
			least = most / 2
		}
		if due < least || due > most {
			printed = Line(fmt.Sprint("waits for ", due.Milliseconds(), "ms"))
		}
		s.clock.Advance(due)
	case "asked":
		return Line(s.source.takeAsked())
	case "open":
		return Line(fmt.Sprint(s.source.open()))
	default:
		printed = s.machine.Say(words)
	}
	s.settle()
	return printed
}

// Line returns the text as a line, and no line if it is empty.
func Line(text string) []string {
	if text == "" {
		return nil
	}
	return []string{text}
}

// Shown formats an event as `+/a=1`, `~/a=2`, `-/a=2`, `?/a` or `error:410`, followed by the number
// of lost changes, `!3`.
func Shown(e watch.Event[string]) string {
	text := strings.ToLower(string(e.Type))
	switch e.Type {
	case watch.Added:
		text = "+" + e.Object
	case watch.Modified:
		text = "~" + e.Object
	case watch.Deleted:
		text = "-" + e.Object
		if e.FinalStateUnknown {
			text = "?" + e.Object
		}
	case watch.Error:
		if s, coded := watch.StatusOf(e.Err); coded {
			text = fmt.Sprint("error:", s.Code)
		}
	}
	if e.Lost > 0 {
		text += fmt.Sprint("!", e.Lost)
	}
	return text
}

// ShownWithOld is `~/a=2 was 1`.
func ShownWithOld(e watch.Event[string]) string {
	if e.Type != watch.Modified || !e.HasOld {
		return Shown(e)
	}
	_, old, _ := strings.Cut(e.Old, "=")
	return Shown(e) + " was " + old
}
