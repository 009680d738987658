// Package listwatch decides what a list of a source, a watch from its revision, and each of their ends lead to: the table
// "List, watch, resume" of docs/internals/toolkit.md. A [Machine] has no source, no clock and no goroutine. Its driver, a
// reflector or a RetryWatcher, does what an [Action] says, and reports what came of it as an [Input].
package listwatch

import (
	"errors"
	"fmt"
	"io"
	"time"
)

// Kind is what a driver reports.
type Kind int

const (
	Due         Kind = iota // the wait is over; the first input of all
	Opened                  // the source gave a watch
	Synced                  // the whole state came by a list
	Newer                   // the watch has brought a newer revision than was known when it was asked for
	Failed                  // the list, the request for a watch, or the watch has failed by Err
	BrokenPages             // a page that is not the first is gone; the pages have no end, or are of several revisions
	Unplaced                // the watch brought an event behind which it cannot be resumed
	Ended                   // the watch has ended without an error
	Cut                     // the watch has ended inside a revision, or the source answered without a watch
	WentBack                // the watch has ended, and all that it said lies below what was known
)

// Input is what came of the last action.
type Input struct {
	Kind       Kind
	Err        error         // why; nil where nothing is wrong
	RetryAfter time.Duration // what the source asks to wait
}

// Do is what a driver does next.
type Do int

const (
	Wait  Do = iota // reports Err, if there is one, waits for Until, and reports Due
	List            // lists, and reports Synced, BrokenPages or Failed
	Watch           // opens a watch behind the resume point, and reports Opened, Cut or Failed
	Read            // reads the watch, and reports Newer, and one of Ended, Cut, WentBack, Unplaced and Failed
	End             // gives Err to the consumer, and ends
)

// Action is what to do next.
type Action struct {
	Do     Do
	Until  time.Time // Wait; the zero time has passed
	Err    error
	Newest bool // List: the newest state; or one that is not older than what is known
	Whole  bool // List: without pages
}

const (
	// PageSize is how many items of a list are asked for at a time.
	PageSize = 500
	// short: a watch that ended earlier and brought nothing newer is a fruitless one.
	short = time.Second
	// relistCalm: a list after a 410, or of a relay after fruitless watches, comes at once where none came so for this long.
	relistCalm = 30 * time.Second
	// mostFruitless watches in a row lead to a list: whatever keeps the source from going on, the state is known again, and no
	// error leaves it stale for ever.
	mostFruitless = 3
)

var (
	// ErrNoWatch and ErrInside are why a watch is Cut.
	ErrNoWatch = errors.New("the source gave neither a watch nor an error")
	ErrInside  = errors.New("the watch ended inside a revision")

	errShort = fmt.Errorf("the watch ended within a second without a change: %w", io.EOF)
)

// Machine is the state of a mirror or of a relay.
//
// A mirror fills a store. It never ends, and its pauses are a [Backoff]. A relay gives events to one consumer. It ends with
// an error that asking again cannot mend, and its pauses are a distance between the beginnings of attempts of one kind.
type Machine struct {
	backoff  *Backoff // nil: a relay
	distance time.Duration
	lists    bool // the source may be listed

	attempt   Action // List or Watch: under way, or to come behind a wait
	waiting   bool
	opened    bool            // the attempt is a watch that is open
	newer     bool            // and it has brought a newer revision
	began     [Read]time.Time // when the last attempt of each kind did; the zero time: there was none
	newest    bool            // until a list succeeds, all ask for the newest state
	fruitless int             // watches in a row without a newer revision
	gone      bool            // the list to come is due to a revision that is gone
	relisted  time.Time       // when the last list that came so began
}

// NewMirror begins with a list.
func NewMirror(backoff Backoff) *Machine {
	return &Machine{backoff: &backoff, lists: true, attempt: Action{Do: List}, waiting: true}
}

// NewRelay begins with a list or with a watch.
func NewRelay(distance time.Duration, lists bool, first Do) *Machine {
	return &Machine{distance: distance, lists: lists, attempt: Action{Do: first, Newest: true}, waiting: true}
}

func (m *Machine) isRelay() bool { return m.backoff == nil }

// Attempt is List or Watch: under way, or to come behind a wait.
func (m *Machine) Attempt() Do { return m.attempt.Do }

// Step takes an input, and says what to do next.
func (m *Machine) Step(now time.Time, in Input) Action {
	switch {
	case m.waiting:
		m.waiting, m.opened, m.newer = false, false, false
		if m.began[m.attempt.Do] = now; m.gone {
			m.gone, m.relisted = false, now
		}
		return m.attempt
	case in.Kind == Opened:
		m.opened = true
		return Action{Do: Read}
	case in.Kind == Newer:
		m.newer, m.fruitless = true, 0
		return Action{Do: Read}
	case in.Kind == Synced:
		m.newest, m.fruitless = false, 0
		return m.wait(Watch, time.Time{}, nil)
	case m.attempt.Do == List:
		return m.listFailed(now, in)
	case in.Kind == Failed || in.Kind == Unplaced:
		return m.watchFailed(now, in)
	}
	return m.watchEnded(now, in)
}

func (m *Machine) listFailed(now time.Time, in Input) Action {
	before, code := m.attempt, CodeOf(in.Err)
	isBroken := in.Kind == BrokenPages && !before.Whole
	switch {
	case isBroken, !before.Newest && (code == 410 || code == 504): // the source has not the revision, not any more or not yet
		m.newest = m.newest || !isBroken
		a := m.wait(List, time.Time{}, in.Err)
		m.attempt.Whole = isBroken || before.Whole
		return a
	case m.isRelay() && (isFatal(in.Err) || code == 401 || code == 403 || code == 405):
		return Action{Do: End, Err: in.Err}
	}
	return m.pause(now, List, in)
}

// watchFailed: a list of the whole state is what loads a server most, and no error leads to one that another watch would mend.
func (m *Machine) watchFailed(now time.Time, in Input) Action {
	switch class := classOf(in.Err); {
	case m.isRelay() && (in.Kind == Unplaced || isFatal(in.Err) || class == refused && !m.opened):
		return Action{Do: End, Err: in.Err}
	case class == gone:
		return m.relist(now, in)
	case class == busy:
		return m.pause(now, Watch, in)
	case class == failed, m.isRelay():
		return m.fruitlessWatch(now, in)
	}
	return m.pause(now, List, in)
}

// watchEnded counts a second from the request for the watch, because a server may answer with its first event.
func (m *Machine) watchEnded(now time.Time, in Input) Action {
	isShort := now.Sub(m.began[Watch]) < short
	switch {
	case m.newer, in.Kind == Ended && !isShort:
		m.fruitless = 0
		if m.isRelay() {
			return m.pause(now, Watch, Input{})
		}
		return m.wait(Watch, time.Time{}, nil)
	case in.Kind == WentBack && !isShort:
		return m.relist(now, in)
	case in.Kind == Ended:
		in.Err = errShort
	}
	return m.fruitlessWatch(now, in)
}

// relist: the source has another history, or not enough of this one. A mirror's list comes at once unless the last one came so a
// moment ago: a source that says so of what it has just listed would be listed without a pause.
func (m *Machine) relist(now time.Time, in Input) (a Action) {
	switch {
	case !m.lists:
		return Action{Do: End, Err: in.Err}
	case m.isRelay():
		return m.pause(now, List, in)
	case m.relisted.IsZero() || now.Sub(m.relisted) >= relistCalm:
		a = m.wait(List, time.Time{}, in.Err)
	default:
		a = m.pause(now, List, in)
	}
	m.gone = true
	return a
}

// fruitlessWatch: the watch has brought nothing newer.
func (m *Machine) fruitlessWatch(now time.Time, in Input) Action {
	m.fruitless++
	isCalm := !m.isRelay() || m.began[List].IsZero() || now.Sub(m.began[List]) >= relistCalm
	if m.fruitless >= mostFruitless && m.lists && isCalm {
		return m.pause(now, List, in)
	}
	return m.pause(now, Watch, in)
}

// pause waits for the backoff or for the rest of the distance, and for what the source asks for.
func (m *Machine) pause(now time.Time, next Do, in Input) Action {
	if !m.isRelay() {
		return m.wait(next, now.Add(m.backoff.next(now, in.RetryAfter)), in.Err)
	}
	var until time.Time
	if began := m.began[next]; !began.IsZero() {
		until = began.Add(m.distance)
	}
	if asked := now.Add(in.RetryAfter); asked.After(until) {
		until = asked
	}
	return m.wait(next, until, in.Err)
}

func (m *Machine) wait(next Do, until time.Time, err error) Action {
	m.attempt, m.waiting = Action{Do: next, Newest: m.newest || m.isRelay()}, true
	return Action{Do: Wait, Until: until, Err: err}
}
