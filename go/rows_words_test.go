package watchcore_test

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	watchcore "github.com/watchcore/watchcore/go"
	"github.com/watchcore/watchcore/go/internal/bounded"
	"github.com/watchcore/watchcore/go/internal/rows"
)

// The words of the rows of contract/core as values of Go, and what is printed of values.

// step is the words of one that are left.
type step []string

func (s *step) next() string {
	if len(*s) == 0 {
		panic("one more word")
	}
	first := (*s)[0]
	*s = (*s)[1:]
	return first
}

func (s *step) number() uint64 { return rows.Number(s.next()) }

func (s *step) key() string { return string(rows.Bytes(s.next())) }

// keys is keys between commas; "-" is none.
func (s *step) keys() (keys []string) {
	if word := s.next(); word != "-" {
		for _, key := range strings.Split(word, ",") {
			keys = append(keys, string(rows.Bytes(key)))
		}
	}
	return keys
}

func (s *step) duration() time.Duration { return rows.Duration(s.next()) }

// limit is a context that ends after the duration that follows, or the bound.
func (s *step) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	limit := bounded.Bound
	if len(*s) > 0 {
		limit = s.duration()
	}
	return context.WithTimeout(ctx, limit)
}

// options are the words that are left: each is in one of the tables, and what it does takes those that belong to it.
func (s *step) options(tables ...map[string]func()) {
	for len(*s) > 0 {
		word, known := s.next(), false
		for _, table := range tables {
			if set := table[word]; set != nil {
				set()
				known = true
			}
		}
		if !known {
			panic(word + "?")
		}
	}
}

// filter is the options of a range and of selectors.
func (s *step) filter(keys *watchcore.Range, labels, fields *string) map[string]func() {
	return map[string]func(){
		"key":          func() { *keys = watchcore.RangeKey(s.key()) },
		"prefix":       func() { *keys = watchcore.RangePrefix(s.key()) },
		"path":         func() { *keys = watchcore.RangePath(s.key()) },
		"from":         func() { *keys = watchcore.RangeBetween(s.key(), s.after("to").key()) },
		"none":         func() { *keys = watchcore.RangeNone() },
		"where-labels": func() { *labels = s.next() },
		"where-fields": func() { *fields = s.next() },
	}
}

// after takes this word.
func (s *step) after(word string) *step {
	if came := s.next(); came != word {
		panic(came + " in place of " + word)
	}
	return s
}

// position is a revision, and "in E" where that follows: the lower half of an epoch counts, the upper is the cache's.
func (s *step) position(cache *watchcore.Cache) watchcore.Position {
	position := watchcore.Position{Revision: s.number()}
	if len(*s) > 0 && (*s)[0] == "in" {
		s.next()
		birth, of, other := strings.Cut(s.next(), "/")
		if other {
			position.Epoch = rows.Number(birth)<<32 | rows.Number(of)
		} else {
			position.Epoch = cache.Position().Epoch&^(1<<32-1) | rows.Number(birth)
		}
	}
	return position
}

func (s *step) list(cache *watchcore.Cache) (list *rowList, name string) {
	list = &rowList{ListOptions: watchcore.ListOptions{WaitTimeout: bounded.Bound}}
	s.options(map[string]func(){
		"any":      func() { list.Read = watchcore.ReadAny() },
		"at-least": func() { list.Read = watchcore.ReadAtLeastPosition(s.position(cache)) },
		"exact":    func() { list.Read = watchcore.ReadExactPosition(s.position(cache)) },
		"continue": func() { list.Continue = s.next() },
		"limit":    func() { list.Limit = int(s.number()) },
		"timeout":  func() { list.WaitTimeout = s.duration() },
		"full":     func() { list.full = true },
		"types":    func() { list.types = eventTypes(s.next()) },
		"as":       func() { name = s.next() },
	}, s.filter(&list.keys, &list.LabelSelector, &list.FieldSelector))
	return list, name
}

func (l *rowList) read() watchcore.ReadOptions {
	return watchcore.ReadOptions{Read: l.Read, WaitTimeout: l.WaitTimeout,
		LabelSelector: l.LabelSelector, FieldSelector: l.FieldSelector}
}

// item is /k=v, and the numbers after an @.
func item(word string) (kv watchcore.KeyValue, exact bool) {
	key, value, _ := strings.Cut(word, "=")
	value, numbers, exact := strings.Cut(value, "@")
	kv.Key, kv.Value = rows.Bytes(key), rows.Bytes(value)
	if !exact {
		return kv, false
	}
	parts := strings.Split(numbers, ",")
	kv.CreateRevision, kv.ModRevision, kv.Version = rows.Number(parts[0]), rows.Number(parts[min(1, len(parts)-1)]), 1
	if len(parts) > 2 {
		kv.Version = rows.Number(parts[2])
	}
	if len(parts) > 3 {
		kv.Lease = int64(rows.Number(parts[3]))
	}
	return kv, true
}

func changes(words []string) (all []watchcore.Change) {
	for _, word := range words {
		kv, exact := item(word)
		switch {
		case word[0] == '-':
			all = append(all, watchcore.Delete(rows.Bytes(word[1:])))
		case exact:
			all = append(all, watchcore.PutExact(kv))
		default:
			all = append(all, watchcore.Put(kv.Key, kv.Value))
		}
	}
	return all
}

func items(words []string) (all []watchcore.KeyValue) {
	for _, word := range words {
		kv, _ := item(word)
		all = append(all, kv)
	}
	return all
}

// refused is the code, with its numbers.
func refused(e *watchcore.Error) string {
	switch name := e.Code.Name(); e.Code {
	case watchcore.ErrCompacted:
		return fmt.Sprint(name, " asked ", e.Asked, " oldest ", e.Oldest, " current ", e.Current)
	case watchcore.ErrFutureRevision:
		return fmt.Sprint(name, " asked ", e.Asked, " current ", e.Current)
	case watchcore.ErrLagged:
		return fmt.Sprint(name, " lost ", e.LostFrom, "..", e.LostTo, " oldest ", e.Oldest, " current ", e.Current)
	default:
		return name
	}
}

// codes are all codes, with what Go says of each.
func codes() (all []string) {
	for code := watchcore.Code(1); code < 200; code++ {
		if code.Name() == "UNKNOWN" {
			continue
		}
		line := strings.TrimSpace(fmt.Sprint(int(code), " ", code.Name(), " ", code.HTTPStatus(), " ", code.Reason()))
		if code.Retryable() {
			line += " retryable"
		}
		if code.Fatal() {
			line += " fatal"
		}
		if after := code.RetryAfter(); after > 0 {
			line += fmt.Sprint(" after ", after)
		}
		all = append(all, line)
	}
	return all
}

// statistic is a number that a cache says of itself.
func statistic(cache *watchcore.Cache, name string) uint64 {
	status, stats := cache.Status(), cache.Stats()
	value, known := map[string]uint64{
		"current": cache.Revision(), "events": stats.Events, "extract-failures": stats.ExtractFailures, "lagged": stats.Lagged,
		"overrun": status.Overrun, "max-lag": status.MaxLagEvents, "max-lag-seen": status.MaxLagSeen, "objects": stats.Objects,
		"oldest": cache.Oldest(), "pages": stats.Pages, "revisions": stats.Revisions, "snapshots": stats.Snapshots,
		"subscriptions": status.Subscriptions, "tombstones": stats.Tombstones, "tombstone-bytes": stats.TombstoneBytes,
		"window-bytes": stats.WindowBytes, "window-segments": stats.WindowSegments,
	}[name]
	if !known {
		panic(name + " is no statistic")
	}
	return value
}

// subscriptionLine is how a subscription stands.
func subscriptionLine(info watchcore.SubscriptionInfo) string {
	path, polled := "scan", "polled"
	if info.ReadPath == watchcore.ReadPathChain {
		path = "chain by " + info.Index
	}
	if info.LastPoll.IsZero() {
		polled = "never polled"
	}
	return fmt.Sprint(info.ID, " ", cmp.Or(rows.Word([]byte(info.Name)), "-"), " ", info.State, " at ", info.Position.Revision,
		" behind ", info.Lag.Events, " events ", info.Lag.Revisions, " revisions, ", path, ", ", polled,
		", handed out ", info.HandedOut, ", lost ", info.Lagged)
}

func eventLine(e watchcore.Event, full bool) string {
	line := fmt.Sprint(e.Revision, " ", e.Type)
	if e.Type == watchcore.EventResync {
		mark := e.Resync()
		return fmt.Sprint(line, " ", strings.ToLower(mark.Phase.String()), " ", mark.Reason, " ", mark.From, "..", mark.To)
	}
	if key := e.Key(); key != "" {
		line += " " + rows.Word([]byte(key))
	}
	if value := e.Value(); value != nil {
		line += "=" + rows.Word(value)
	}
	if before := e.PrevValue(); before != nil {
		line += " was " + rows.Word(before)
	}
	if full && e.Key() != "" {
		line += numbers(e.CreateRevision(), e.ModRevision(), e.Version(), e.Lease())
	}
	if e.InitialState() {
		line += " initial"
	}
	if e.EndsInitialState() {
		line += " end-of-state"
	}
	if e.Synthetic() {
		line += " synthetic"
	}
	return line
}

func numbers(create, modified, version uint64, lease int64) string {
	line := fmt.Sprint(" create ", create, " modified ", modified, " version ", version)
	if lease != 0 {
		line += fmt.Sprint(" lease ", lease)
	}
	return line
}

func object(key string, value []byte, create, modified, version uint64, lease int64, full bool) string {
	line := rows.Word([]byte(key)) + "=" + rows.Word(value)
	if full {
		line += numbers(create, modified, version, lease)
	}
	return line
}

func objectOf(kv watchcore.KeyValueRef, full bool) string {
	return object(kv.Key(), kv.Value(), kv.CreateRevision(), kv.ModRevision(), kv.Version(), kv.Lease(), full)
}

// many is what a get of many answers.
func many(page *watchcore.Page, err error, full bool) ([]string, error) {
	if err != nil {
		return nil, err
	}
	defer page.Release()
	lines := line("at ", page.Revision())
	for kv := range page.All() {
		if kv.Found() {
			lines = append(lines, objectOf(kv, full))
		} else {
			lines = append(lines, "none")
		}
	}
	return lines, nil
}

// found is what a get answers.
func found(kv *watchcore.KeyValue, revision uint64, full bool) string {
	if kv == nil {
		return fmt.Sprint(revision, ": none")
	}
	line := object(string(kv.Key), kv.Value, kv.CreateRevision, kv.ModRevision, kv.Version, kv.Lease, full)
	return fmt.Sprint(revision, ": ", line)
}

// named is the one from the first to the last that has this name.
func named[T interface {
	~uint32
	fmt.Stringer
}](name string, first, last T) T {
	for one := first; one <= last; one++ {
		if one.String() == name {
			return one
		}
	}
	panic(name + " is no name")
}

func (s *step) index() watchcore.Index {
	switch kind := s.next(); kind {
	case "key":
		return watchcore.IndexByKey()
	case "prefix":
		return watchcore.IndexByPrefix(int(s.number()))
	case "label":
		return watchcore.IndexByLabel(s.next())
	default:
		return watchcore.IndexByField(s.next())
	}
}

var lagPolicies = map[string]watchcore.LagPolicy{"stop": watchcore.LagStop, "skip": watchcore.LagSkipToOldest,
	"resnapshot": watchcore.LagResnapshot, "conflate": watchcore.LagConflate}

func eventTypes(names string) (all []watchcore.EventType) {
	for name := range strings.SplitSeq(names, ",") {
		all = append(all, named(name, watchcore.EventAdded, watchcore.EventDelete))
	}
	return all
}

func line(values ...any) []string {
	var text strings.Builder
	for _, value := range values {
		fmt.Fprint(&text, value)
	}
	return []string{text.String()}
}
