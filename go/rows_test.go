package watchcore_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	watchcore "github.com/watchcore/watchcore/go"
	"github.com/watchcore/watchcore/go/internal/bounded"
	"github.com/watchcore/watchcore/go/internal/rows"
)

// TestRows runs the rows of contract/core from the same text as Rust and C.
func TestRows(t *testing.T) {
	rows.Run(t, "../contract/core", "go", "", func(t *testing.T) rows.Machine {
		return &core{t: t, subs: map[string]*rowSubscription{}, snapshots: map[string]*watchcore.Snapshot{},
			lists: map[string]*rowList{}, jobs: map[string]chan []string{}}
	})
}

// core is what the steps of a case have made.
type core struct {
	t         *testing.T
	cache     *watchcore.Cache
	writers   []*watchcore.Writer
	subs      map[string]*rowSubscription
	snapshots map[string]*watchcore.Snapshot
	lists     map[string]*rowList
	jobs      map[string]chan []string
	last      atomic.Pointer[watchcore.Error] // the last refusal, also of a job
}

// rowSubscription is a subscription and what a wait has taken of it: Go's Next waits and takes.
type rowSubscription struct {
	*watchcore.Subscription
	ahead  *watchcore.Batch
	behind error
}

// rowList is a list that is read page by page.
type rowList struct {
	keys watchcore.Range
	watchcore.ListOptions
	types []watchcore.EventType
	full  bool
}

func (c *core) Close() {
	for _, sub := range c.subs {
		sub.Close()
	}
	for _, snapshot := range c.snapshots {
		snapshot.Close()
	}
	for _, writer := range c.writers {
		writer.Close()
	}
	if c.cache != nil {
		c.cache.Close()
	}
}

// Run is a step, and what it prints.
func (c *core) Run(words []string) []string {
	lines, err := c.run(words)
	if err == nil {
		return lines
	}
	// A drain has printed what came before; of other steps nothing counts.
	if words[0] != "drain" && words[0] != "batches" {
		lines = nil
	}
	var e *watchcore.Error
	switch {
	case errors.As(err, &e):
		c.last.Store(e)
	case errors.Is(err, context.DeadlineExceeded):
		// Of a wait that has no limit of its own beside its context.
		e = &watchcore.Error{Code: watchcore.ErrTimeout}
	default:
		panic(err)
	}
	return append(lines, refused(e))
}

func (c *core) run(words []string) (lines []string, err error) {
	s := step(words)
	switch word := s.next(); word {
	case "cache":
		return nil, c.make(s)
	case "apply":
		revision := s.number()
		return nil, c.writer().Apply(revision, changes(s)...)
	case "load":
		revision := s.number()
		return nil, c.writer().Load(revision, items(s))
	case "resync":
		revision, reason := s.number(), named(s.next(), watchcore.ReasonCompacted, watchcore.ReasonLagged)
		_, err = c.writer().Resync(revision, items(s), reason)
		return nil, err
	case "progress":
		return nil, c.writer().Progress(s.number())
	case "compact":
		return nil, c.writer().Compact(s.number())
	case "writer":
		return nil, c.takeWriter()
	case "free":
		switch name := s.next(); name {
		case "writer":
			c.writers[len(c.writers)-1].Close()
			c.writers = c.writers[:len(c.writers)-1]
		case "cache":
			c.cache.Close()
		default:
			c.subs[name].Close()
			delete(c.subs, name)
		}
	case "subscribe":
		return nil, c.subscribe(s)
	case "position":
		return line(c.subs[s.next()].Position().Revision), nil
	case "lag":
		lag := c.subs[s.next()].Lag()
		return line(lag.Events, " events ", lag.Revisions, " revisions"), nil
	case "delivered":
		return line(c.subs[s.next()].Stats().DeliveredKeys), nil
	case "epoch":
		position := c.made().Position()
		if len(s) > 0 {
			position = c.subs[s.next()].Position()
		}
		return line(position.Epoch & (1<<32 - 1)), nil
	case "close":
		if len(s) == 0 {
			c.made().Close()
		} else {
			c.subs[s.next()].Close()
		}
	case "start":
		name, done := s.next(), make(chan []string, 1)
		c.made()
		c.jobs[name] = done
		go func() {
			defer close(done)
			done <- c.Run(s)
		}()
	case "join":
		return bounded.Receive(c.t, "the job ends", c.jobs[s.next()]), nil
	case "asleep":
		count := s.number()
		bounded.Eventually(c.t, "calls sleep", func() bool { return c.cache.Stats().Waiting >= count })
	case "poll", "drain", "batches", "wait":
		return c.subs[s.next()].taken(word, s)
	case "between":
		from, to, _ := strings.Cut(s.next(), "..")
		lines, err := c.run(s)
		if err == nil && len(lines) == 1 && rows.Number(lines[0]) >= rows.Number(from) && rows.Number(lines[0]) <= rows.Number(to) {
			lines = nil
		}
		return lines, err
	case "message":
		for _, part := range s {
			if message := c.last.Load().Message; !strings.Contains(message, part) {
				return line(message), nil
			}
		}
	case "numbers":
		e := c.last.Load()
		return line("asked ", e.Asked, " oldest ", e.Oldest, " current ", e.Current, " lost ", e.LostFrom, "..", e.LostTo,
			" position ", e.Position, " in ", e.Epoch&(1<<32-1)), nil
	case "codes":
		return codes(), nil
	case "stats":
		for _, name := range s {
			lines = append(lines, fmt.Sprint(statistic(c.made(), name)))
		}
		return line(strings.Join(lines, " ")), nil
	case "subscriptions":
		for _, info := range c.made().Subscriptions() {
			lines = append(lines, subscriptionLine(info))
		}
		return lines, nil
	case "token":
		return line(cmp.Or(c.lists[s.next()].Continue, "none")), nil
	case "list":
		list, name := s.list(c.made())
		c.lists[name] = list
		return c.page(list)
	case "next":
		list := c.lists[s.next()]
		list.Read = watchcore.ReadAny()
		return c.page(list)
	case "snapshot":
		snapshot, err := c.made().Snapshot()
		if err == nil {
			c.snapshots[s.next()] = snapshot
			lines = line("at ", snapshot.Revision())
		}
		return lines, err
	case "in":
		return inside(c.snapshots[s.next()], s)
	default:
		return c.read(word, s)
	}
	return nil, nil
}

func (c *core) make(words step) error {
	s := &words
	config := watchcore.Config{Prefix: "/"}
	field := func(field watchcore.Attribute) { config.Fields = append(config.Fields, field) }
	s.options(map[string]func(){
		"prefix":    func() { config.Prefix = s.key() },
		"name":      func() { config.Name = s.next() },
		"load":      func() { config.ExpectLoad = true },
		"capacity":  func() { config.Capacity = int(s.number()) },
		"bytes":     func() { config.CapacityBytes = int64(s.number()) },
		"max-key":   func() { config.MaxKeyBytes = int(s.number()) },
		"max-value": func() { config.MaxValueBytes = int(s.number()) },
		"labels":    func() { config.Labels = watchcore.LabelsJSON(s.next()) },
		"field":     func() { field(watchcore.AttributeJSON(s.next(), s.next())) },
		"segment":   func() { field(watchcore.AttributeKeySegment(s.next(), int(s.number()))) },
		"index":     func() { config.Indexes = append(config.Indexes, s.index()) },
	})
	cache, err := watchcore.New(config)
	if err == nil {
		c.cache, c.writers = cache, nil
	}
	return err
}

// made is the cache of the case: one without options, where nothing made another.
func (c *core) made() *watchcore.Cache {
	if c.cache == nil {
		if err := c.make(nil); err != nil {
			panic(err)
		}
	}
	return c.cache
}

func (c *core) takeWriter() error {
	writer, err := c.made().Writer()
	if err == nil {
		c.writers = append(c.writers, writer)
	}
	return err
}

func (c *core) writer() *watchcore.Writer {
	if len(c.writers) == 0 {
		if err := c.takeWriter(); err != nil {
			panic(err)
		}
	}
	return c.writers[0]
}

func (c *core) subscribe(words step) error {
	s := &words
	name, options := s.next(), watchcore.SubscribeOptions{}
	switch start := s.next(); start {
	case "now":
		options.Start = watchcore.StartNow()
	case "state":
		options.Start = watchcore.StartState()
	case "state-at-least":
		options.Start = watchcore.StartStateAtLeast(s.number())
	case "after":
		options.Start = watchcore.StartAfterPosition(s.position(c.made()))
	default:
		panic(start + "?")
	}
	s.options(map[string]func(){
		"types":          func() { options.Types = eventTypes(s.next()) },
		"name":           func() { options.Name = s.next() },
		"raw":            func() { options.RawTypes = true },
		"lag":            func() { options.OnLag = lagPolicies[s.next()] },
		"max-lag":        func() { options.MaxLagEvents = s.number() },
		"bookmarks":      func() { options.Bookmarks, options.BookmarkInterval = true, s.duration() },
		"whole":          func() { options.WholeRevisions = true },
		"stop-on-resync": func() { options.StopOnResync = true },
		"timeout":        func() { options.StartTimeout = s.duration() },
	}, s.filter(&options.Range, &options.LabelSelector, &options.FieldSelector))
	sub, err := c.made().Subscribe(context.Background(), options)
	if err == nil {
		c.subs[name] = &rowSubscription{Subscription: sub}
	}
	return err
}

// poll is what a wait has taken, or a poll.
func (r *rowSubscription) poll(most int) (*watchcore.Batch, error) {
	if r.ahead != nil || r.behind != nil {
		batch, err := r.ahead, r.behind
		r.ahead, r.behind = nil, nil
		return batch, err
	}
	return r.Poll(most)
}

// taken is what a subscription gives.
func (r *rowSubscription) taken(how string, s step) (lines []string, err error) {
	if how == "wait" {
		return r.wait(s)
	}
	most, full := 1000, false
	for len(s) > 0 {
		if word := s.next(); word == "full" {
			full = true
		} else {
			most = int(rows.Number(word))
		}
	}
	for {
		batch, err := r.poll(most)
		if err != nil {
			return lines, err
		}
		length, continues := batch.Len(), batch.Continues()
		switch {
		case how == "batches" && length > 0:
			text := fmt.Sprint(length, " events at ", batch.Position().Revision)
			if continues {
				text += " continues"
			}
			lines = append(lines, text)
		default:
			for e := range batch.Events() {
				lines = append(lines, eventLine(e, full))
			}
		}
		batch.Release()
		if how == "poll" && continues {
			lines = append(lines, "continues")
		}
		if how == "poll" || length == 0 {
			return lines, nil
		}
	}
}

// wait keeps what it has taken for the next poll; what a poll of another language would be told, too.
func (r *rowSubscription) wait(s step) ([]string, error) {
	ctx, cancel := s.limit(context.Background())
	defer cancel()
	r.ahead, r.behind = r.Next(ctx)
	switch {
	case errors.Is(r.behind, context.DeadlineExceeded):
		r.behind = nil
		return line("nothing"), nil
	case errors.Is(r.behind, watchcore.ErrClosed):
		err := r.behind
		r.behind = nil
		return nil, err
	}
	return line("ready"), nil
}

func (c *core) page(list *rowList) ([]string, error) {
	page, err := c.made().List(context.Background(), list.keys, list.ListOptions)
	var e *watchcore.Error
	if errors.As(err, &e) {
		list.Continue = e.Continue
	}
	if err != nil {
		return nil, err
	}
	defer page.Release()
	list.Continue = page.Continue()
	lines := line("at ", page.Revision())
	for kv := range page.All() {
		lines = append(lines, objectOf(kv, list.full))
	}
	switch count := page.Remaining(); {
	case count > 0:
		lines = append(lines, fmt.Sprint("more, ", count, " remain"))
	case page.More():
		// How many of those that follow match a filter is not known.
		lines = append(lines, "more")
	}
	return lines, nil
}

// read is what a cache answers by itself.
func (c *core) read(word string, s step) ([]string, error) {
	cache, ctx := c.made(), bounded.Context(c.t)
	switch word {
	case "ready":
		ctx, cancel := s.limit(ctx)
		defer cancel()
		return nil, cache.WaitReady(ctx)
	case "state":
		return line(cache.Status().State), nil
	case "oldest", "current", "objects":
		return line(statistic(cache, word)), nil
	case "get":
		key := s.key()
		list, _ := s.list(cache)
		kv, revision, err := cache.Get(ctx, key, list.read())
		return line(found(kv, revision, list.full)), err
	case "get-many":
		keys := s.keys()
		list, _ := s.list(cache)
		page, err := cache.GetMany(ctx, keys, list.read())
		return many(page, err, list.full)
	case "count":
		list, _ := s.list(cache)
		count, revision, err := cache.Count(ctx, list.keys, list.read())
		return line(revision, ": ", count), err
	case "diff":
		from, to := s.position(cache), s.position(cache)
		list, _ := s.list(cache)
		batch, err := cache.Diff(from, to, watchcore.DiffOptions{Range: list.keys,
			LabelSelector: list.LabelSelector, FieldSelector: list.FieldSelector, Types: list.types})
		var lines []string
		for e := range batch.Events() {
			lines = append(lines, eventLine(e, list.full))
		}
		return lines, err
	case "until":
		revision := s.number()
		if len(s) > 0 {
			s.after("timeout")
		}
		ctx, cancel := s.limit(ctx)
		defer cancel()
		return line(revision), cache.WaitUntil(ctx, revision)
	case "consistent":
		revision, err := cache.ConsistentRevision(ctx)
		return line(revision), err
	}
	panic(word + " is no step")
}

// inside is what a snapshot answers.
func inside(snapshot *watchcore.Snapshot, s step) ([]string, error) {
	word := s.next()
	if word == "get" {
		kv, err := snapshot.Get(s.key())
		return line(found(kv, snapshot.Revision(), false)), err
	}
	if word == "get-many" {
		page, err := snapshot.GetMany(s.keys())
		return many(page, err, false)
	}
	if word == "epoch" {
		return line(snapshot.Position().Epoch & (1<<32 - 1)), nil
	}
	list, _ := s.list(nil)
	filter := watchcore.SelectOptions{LabelSelector: list.LabelSelector, FieldSelector: list.FieldSelector}
	if word == "count" {
		count, err := snapshot.Count(list.keys, filter)
		return line(snapshot.Revision(), ": ", count), err
	}
	lines := line("at ", snapshot.Revision())
	for kv, err := range snapshot.Range(list.keys, filter) {
		if err != nil {
			return nil, err
		}
		lines = append(lines, objectOf(kv, list.full))
	}
	return lines, nil
}
