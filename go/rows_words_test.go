package watchcore_test

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"watchcore"
	"watchcore/internal/bounded"
	"watchcore/internal/rows"
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

func (s *step) duration() time.Duration { return rows.Duration(s.next()) }

// keys is a range that begins with this word, if it does.
func (s *step) keys(word string, keys *watchcore.Range) bool {
	switch word {
	case "key":
		*keys = watchcore.RangeKey(s.key())
	case "prefix":
		*keys = watchcore.RangePrefix(s.key())
	case "path":
		*keys = watchcore.RangePath(s.key())
	case "from":
		from := s.key()
		s.next()
		*keys = watchcore.RangeBetween(from, s.key())
	case "none":
		*keys = watchcore.RangeNone()
	default:
		return false
	}
	return true
}

// selected is a selector that begins with this word, if it does.
func (s *step) selected(word string, labels, fields *string) {
	switch word {
	case "where-labels":
		*labels = s.next()
	case "where-fields":
		*fields = s.next()
	default:
		panic(word + "?")
	}
}

// position is a revision, and "in E" where that follows: the lower half of an epoch counts, the upper is the cache's.
func (s *step) position(cache *watchcore.Cache) watchcore.Position {
	position := watchcore.Position{Revision: s.number()}
	if len(*s) > 0 && (*s)[0] == "in" {
		s.next()
		position.Epoch = cache.Position().Epoch&^(1<<32-1) | s.number()
	}
	return position
}

func (s *step) list(cache *watchcore.Cache) (list *rowList, name string) {
	list = &rowList{ListOptions: watchcore.ListOptions{WaitTimeout: bounded.Bound}}
	for len(*s) > 0 {
		switch word := s.next(); word {
		case "any":
		case "at-least":
			list.Read = watchcore.ReadAtLeastPosition(s.position(cache))
		case "exact":
			list.Read = watchcore.ReadExactPosition(s.position(cache))
		case "limit":
			list.Limit = int(s.number())
		case "timeout":
			list.WaitTimeout = s.duration()
		case "full":
			list.full = true
		case "as":
			name = s.next()
		default:
			if !s.keys(word, &list.keys) {
				s.selected(word, &list.LabelSelector, &list.FieldSelector)
			}
		}
	}
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

func items(words []string) (all []watchcore.KeyValue) {
	for _, word := range words {
		kv, _ := item(word)
		all = append(all, kv)
	}
	return all
}

// refused is the code, with its numbers.
func refused(err error) string {
	var e *watchcore.Error
	if !errors.As(err, &e) {
		panic(err)
	}
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

// found is what a get answers.
func found(kv *watchcore.KeyValue, revision uint64, full bool) string {
	if kv == nil {
		return fmt.Sprint(revision, ": none")
	}
	line := object(string(kv.Key), kv.Value, kv.CreateRevision, kv.ModRevision, kv.Version, kv.Lease, full)
	return fmt.Sprint(revision, ": ", line)
}

func reasonOf(word string) watchcore.ResyncReason {
	for reason := watchcore.ReasonCompacted; reason <= watchcore.ReasonLagged; reason++ {
		if reason.String() == word {
			return reason
		}
	}
	panic(word + " is no reason")
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

func typeOf(name string) watchcore.EventType {
	for kind := watchcore.EventAdded; kind <= watchcore.EventDelete; kind++ {
		if kind.String() == name {
			return kind
		}
	}
	panic(name + " is no type")
}

func line(values ...any) []string {
	var text strings.Builder
	for _, value := range values {
		fmt.Fprint(&text, value)
	}
	return []string{text.String()}
}
