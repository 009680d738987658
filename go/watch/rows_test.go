package watch_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/watchcore/watchcore/go/internal/contract"
	"github.com/watchcore/watchcore/go/internal/rows"
	"github.com/watchcore/watchcore/go/watch"
)

// The rows of contract/toolkit that are about watches; contract/README.md, "Words of watches", says what they mean.
func TestContractRowsOfWatches(t *testing.T) {
	for _, first := range []string{"run watches", "run batches"} {
		rows.RunSettled(t, "../../contract/toolkit", "go", first, func(t *testing.T) rows.Machine { return newWatches(t, false) })
	}
}

// The same where watchers of a broadcaster, and decoders, are read by their channels.
func TestContractRowsOfWatchesByChannel(t *testing.T) {
	rows.RunSettled(t, "../../contract/toolkit", "go", "run watches", func(t *testing.T) rows.Machine { return newWatches(t, true) })
}

// watches is what the steps of a case have made. It lives in a bubble of synctest: behind each step every goroutine waits.
type watches struct {
	t            *testing.T
	channel      bool
	broadcasters map[string]*watch.Broadcaster[string]
	watches      map[string]watch.Interface[string]
	fakes        map[string]verbs
	speeches     map[string]*speech
	jobs         map[string]*job
	whys         map[string]string
}

func newWatches(t *testing.T, channel bool) *watches {
	return &watches{
		t: t, channel: channel,
		broadcasters: map[string]*watch.Broadcaster[string]{},
		watches:      map[string]watch.Interface[string]{},
		fakes:        map[string]verbs{},
		speeches:     map[string]*speech{},
		jobs:         map[string]*job{},
		whys:         map[string]string{},
	}
}

// job is a step that was started.
type job struct {
	cancel  context.CancelFunc
	printed chan []string
}

// poll is what it printed; ok says whether it has ended.
func (j *job) poll() (printed []string, ok bool) {
	synctest.Wait()
	select {
	case printed = <-j.printed:
		j.printed <- printed
		return printed, true
	default:
		return nil, false
	}
}

func begin(call func(context.Context) []string) *job {
	ctx, cancel := context.WithCancel(context.Background())
	j := &job{cancel, make(chan []string, 1)}
	go func() { j.printed <- call(ctx) }()
	return j
}

// Close ends what a case has left.
func (p *watches) Close() {
	for _, j := range p.jobs {
		j.cancel()
	}
	for _, w := range p.watches {
		w.Stop()
	}
	for _, b := range p.broadcasters {
		b.Shutdown()
	}
}

// Run is a step, and what it prints.
func (p *watches) Run(words []string) (printed []string) {
	word, rest := words[0], words[1:]
	defer synctest.Wait()
	switch word {
	case "run":
	case "start":
		p.jobs[rest[0]] = begin(p.call(rest[1], rest[2:]))
	case "join":
		printed, over := p.jobs[rest[0]].poll()
		switch {
		case !over:
			return []string{"waits"}
		case len(printed) == 0:
			return []string{"done"}
		}
		return printed
	case "cancel":
		j := p.jobs[rest[0]]
		j.cancel()
		if _, over := j.poll(); !over {
			panic("it cannot be cancelled")
		}
		delete(p.jobs, rest[0])
	case "publish", "send":
		j := begin(p.call(word, rest))
		printed, over := j.poll()
		if !over {
			j.cancel()
			panic("it waits: start it")
		}
		return printed
	case "broadcaster", "watch", "try", "shutdown", "at":
		return p.broadcast(word, rest[0], rest[1:])
	case "fake", "buffered", "reset", "empty", "decoder", "events", "filter", "select", "record":
		p.make(word, rest[0], rest[1:])
	default:
		return p.read(word, rest[0], rest[1:])
	}
	return nil
}

// call is a call that may wait.
func (p *watches) call(word string, rest []string) func(context.Context) []string {
	switch word {
	case "publish":
		b, e := p.broadcasters[rest[0]], piece(rest[1])
		return func(ctx context.Context) []string { return failed(b.PublishContext(ctx, e)) }
	case "send":
		f, e := p.fakes[rest[0]], piece(rest[1])
		return func(context.Context) []string { return failed(sendByVerb(f, e)) }
	case "take":
		return func(ctx context.Context) []string { return []string{p.next(ctx, rest[0])} }
	}
	panic(word + " does not wait")
}

// next is the next event of a watch as a line, "end", or "nothing" where the context ends the wait.
func (p *watches) next(ctx context.Context, name string) string {
	e, err := watch.Next(ctx, p.watches[name])
	switch {
	case errors.Is(err, watch.ErrEnded):
		return "end"
	case err != nil:
		return "nothing"
	}
	if s, ok := watch.StatusOf(e.Err); ok {
		p.whys[name] = s.Message
	}
	return shown(e)
}

func (p *watches) take(name string) string {
	j := begin(func(ctx context.Context) []string { return []string{p.next(ctx, name)} })
	if _, over := j.poll(); !over {
		j.cancel()
	}
	printed, _ := j.poll()
	return printed[0]
}

// option is the word behind another.
func option(words []string, name string) (string, bool) {
	if at := slices.Index(words, name); at >= 0 {
		return words[at+1], true
	}
	return "", false
}

// queueOf is `[queue N] [drop]`, where one of them is said.
func queueOf(words []string) (q watch.Queue) {
	text, given := option(words, "queue")
	length := 0
	if given {
		length = int(rows.Number(text))
	}
	switch {
	case slices.Contains(words, "drop"):
		return watch.DropQueue(length)
	case given:
		return watch.WaitQueue(length)
	}
	return q
}

// broadcast is the words of a broadcaster.
func (p *watches) broadcast(word, name string, rest []string) []string {
	b := p.broadcasters[name]
	switch word {
	case "broadcaster":
		options := watch.BroadcasterOptions{Queue: queueOf(rest)}
		if events, given := option(rest, "history"); given {
			options.History = int(rows.Number(events))
		}
		b, err := watch.NewBroadcasterWithOptions[string](options)
		if err == nil {
			p.broadcasters[name] = b
		}
		return failed(err)
	case "watch":
		options := watch.WatchOptions[string]{Queue: queueOf(rest)}
		if at := slices.Index(rest, "prefix"); at >= 0 {
			for _, text := range rest[at+1:] {
				options.Prefix = append(options.Prefix, piece(text))
			}
			rest = rest[:at]
		}
		if after, given := option(rest, "after"); given {
			options.Start = watch.StartAfter(rows.Number(after))
		}
		w, err := p.broadcasters[rest[1]].WatchWithOptions(options)
		if err != nil {
			return failed(err)
		}
		if p.watches[name] = w; p.channel {
			w.ResultChan()
		}
	case "try":
		e := piece(rest[0])
		sent, err := b.ActionOrDrop(e.Type, e.Object)
		if err == nil && !sent {
			return []string{"full"}
		}
		return failed(err)
	case "shutdown":
		b.Shutdown()
	case "at":
		return []string{fmt.Sprint(b.Revision())}
	}
	return nil
}

// value is what stands behind the key of an object, or the object.
func value(object string) string {
	_, value, found := strings.Cut(object, "=")
	if !found {
		return object
	}
	return value
}

// make is the words that make a watch which is no broadcaster's.
func (p *watches) make(word, name string, rest []string) {
	switch word {
	case "fake":
		p.fakes[name] = watch.NewFake[string]()
		p.watches[name] = p.fakes[name]
	case "buffered":
		p.fakes[name] = watch.NewRaceFreeFakeWithLogger[string](quiet())
		p.watches[name] = p.fakes[name]
	case "reset":
		p.fakes[name].Reset()
	case "empty":
		p.watches[name] = watch.NewEmptyWatch[string]()
	case "decoder", "events":
		s := &speech{words: make(chan said, 1000), closed: make(chan struct{})}
		p.speeches[name] = s
		var r watch.Reporter
		if code, given := option(rest, "reporter"); given {
			r = reporterOf(code)
		}
		w := watch.NewEventStreamWatcher(eventSpeech{s}, r)
		if word == "decoder" {
			w = watch.NewStreamWatcher[string](s, r)
		}
		if p.watches[name] = w; p.channel {
			w.ResultChan()
		}
	case "filter":
		out, leaves := option(rest, "out")
		fail, fails := option(rest, "fail")
		p.watches[name] = watch.Filter(p.watches[rest[1]], func(e watch.Event[string]) (watch.Event[string], bool) {
			if fails && strings.HasPrefix(value(e.Object), fail) {
				return watch.Event[string]{Type: watch.Error, Err: &watch.Status{Code: 500}}, true
			}
			return e, !leaves || !strings.HasPrefix(value(e.Object), out)
		})
	case "select":
		p.watches[name] = watch.FilterByKey(p.watches[rest[1]], contract.Key, func(e watch.Event[string]) (watch.Event[string], bool) {
			return e, strings.HasPrefix(value(e.Object), rest[2])
		})
	case "record":
		p.watches[name] = watch.NewRecorder(p.watches[rest[1]])
	}
}

// read is the words that read, and those that end.
func (p *watches) read(word, name string, rest []string) []string {
	switch word {
	case "take":
		return []string{p.take(name)}
	case "drain":
		all := []string{p.take(name)}
		for last := all[0]; last != "nothing" && last != "end"; all = append(all, last) {
			last = p.take(name)
		}
		return all
	case "batch":
		return p.batch(name, int(rows.Number(rest[0])))
	case "lost":
		return []string{fmt.Sprint(p.watches[name].(*watch.Watcher[string]).Dropped())}
	case "why":
		return []string{p.whys[name]}
	case "recorded":
		var all []string
		for _, e := range p.watches[name].(*watch.Recorder[string]).Events() {
			all = append(all, shown(e))
		}
		return all
	case "say":
		p.speeches[name].add(rest)
	case "stop":
		p.watches[name].Stop()
	case "stopped":
		return yes(p.fakes[name].IsStopped())
	case "closed":
		synctest.Wait()
		select {
		case <-p.speeches[name].closed:
			return yes(true)
		default:
			return yes(false)
		}
	default:
		panic(word + " is no word of watches")
	}
	return nil
}

func (p *watches) batch(name string, most int) []string {
	into, n := make([]watch.Event[string], most), 0
	j := begin(func(ctx context.Context) []string {
		var err error
		n, err = p.watches[name].(*watch.Watcher[string]).NextBatch(ctx, into)
		switch {
		case errors.Is(err, watch.ErrEnded):
			return []string{"end"}
		case errors.Is(err, context.Canceled):
			return []string{"nothing"}
		}
		return failed(err)
	})
	if _, over := j.poll(); !over {
		j.cancel()
	}
	printed, _ := j.poll()
	for _, e := range into[:n] {
		printed = append(printed, shown(e))
	}
	return printed
}

func yes(is bool) []string {
	if is {
		return []string{"yes"}
	}
	return []string{"no"}
}

// failed is what a call that failed prints.
func failed(err error) []string {
	switch s, coded := watch.StatusOf(err); {
	case err == nil:
		return nil
	case coded:
		return []string{fmt.Sprint("error:", s.Code)}
	case errors.Is(err, watch.ErrBroadcasterStopped):
		return []string{err.Error()}
	case errors.Is(err, watch.ErrStopped):
		return []string{"stopped"}
	case errors.Is(err, watch.ErrFull):
		return []string{"full"}
	}
	return []string{"refused"}
}

// piece is `+a=1@3!2`, `~a=2<a=1`, `-a=2`, `?a`, `synced`, `bookmark@7` or `error:500`.
func piece(text string) (e watch.Event[string]) {
	text, lost, _ := strings.Cut(text, "!")
	text, position, _ := strings.Cut(text, "@")
	if lost != "" {
		e.Lost = rows.Number(lost)
	}
	if position != "" {
		e.Revision = rows.Number(position)
	}
	code, fails := strings.CutPrefix(text, "error:")
	switch {
	case text == "synced":
		e.Type = watch.Synced
	case text == "bookmark":
		e.Type = watch.Bookmark
	case fails:
		e.Type, e.Err = watch.Error, &watch.Status{Code: int(rows.Number(code)), Message: "as the row says"}
	default:
		e.Object, e.Old, e.HasOld = strings.Cut(text[1:], "<")
		e.Type = map[byte]watch.EventType{'+': watch.Added, '~': watch.Modified, '-': watch.Deleted, '?': watch.Deleted}[text[0]]
		e.FinalStateUnknown = text[0] == '?'
	}
	return e
}

// shown is an event as piece reads it.
func shown(e watch.Event[string]) string {
	lost := e.Lost
	e.Lost = 0
	text := contract.Shown(e)
	if e.Type == watch.Modified && e.HasOld {
		text += "<" + e.Old
	}
	if e.Revision > 0 && e.Type != watch.Error {
		text += fmt.Sprint("@", e.Revision)
	}
	if lost > 0 {
		text += fmt.Sprint("!", lost)
	}
	return text
}

// sendByVerb sends as a test does: by the verb of the event's type where there is one.
func sendByVerb(f verbs, e watch.Event[string]) error {
	switch {
	case e.Revision > 0 || e.Lost > 0 || e.HasOld || e.FinalStateUnknown:
		return f.Send(e)
	case e.Type == watch.Added:
		return f.Add(e.Object)
	case e.Type == watch.Modified:
		return f.Modify(e.Object)
	case e.Type == watch.Deleted:
		return f.Delete(e.Object)
	case e.Type == watch.Error:
		return f.Error(e.Err)
	}
	return f.Send(e)
}

// said is what a decoder says next.
type said struct {
	event  watch.Event[string]
	err    error
	panics bool
}

// speech is a decoder that the script speaks for.
type speech struct {
	words  chan said
	closed chan struct{}
	once   sync.Once
}

// add is `EVENT... [then end|broken|error TEXT|panic]`.
func (s *speech) add(words []string) {
	var then []string
	if at := slices.Index(words, "then"); at >= 0 {
		words, then = words[:at], words[at+1:]
	}
	for _, text := range words {
		s.words <- said{event: piece(text)}
	}
	if len(then) == 0 {
		return
	}
	last := said{panics: then[0] == "panic"}
	switch then[0] {
	case "end":
		last.err = io.EOF
	case "broken":
		last.err = io.ErrUnexpectedEOF
	case "error":
		last.err = errors.New(then[1])
	}
	s.words <- last
}

func (s *speech) Close() { s.once.Do(func() { close(s.closed) }) }

func (s *speech) decode() (watch.Event[string], error) {
	select {
	case next := <-s.words:
		if next.panics {
			panic("as the row says")
		}
		return next.event, next.err
	case <-s.closed:
		return watch.Event[string]{}, net.ErrClosed
	}
}

func (s *speech) Decode() (watch.EventType, string, error) {
	e, err := s.decode()
	return e.Type, e.Object, err
}

type eventSpeech struct{ *speech }

func (s eventSpeech) DecodeEvent() (watch.Event[string], error) { return s.decode() }

// reporterOf reports with this code, or panics.
type reporterOf string

func (r reporterOf) AsError(err error) error {
	if r == "panic" {
		panic("as the row says")
	}
	return &watch.Status{Code: int(rows.Number(string(r))), Message: err.Error()}
}
