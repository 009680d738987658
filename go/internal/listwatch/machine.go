// Package listwatch decides how to continue after a list of a source, a watch from its revision,
// and each of their ends: the table "List, watch, resume" of docs/internals/toolkit.md. A [Machine]
// has no source, no clock and no goroutine. Its driver, a reflector or a RetryWatcher, executes
// each [Action], and reports the result as an [Input].
package listwatch

import (
	"errors"
	"fmt"
	"io"
	"time"
)

// Kind is the kind of a driver's report.
type Kind int

const (
	Due         Kind = iota // the wait is over; always the first input
	Opened                  // the source gave a watch
	Synced                  // a list returned the whole state
	Newer                   // the watch has delivered a newer revision than was known when it was requested
	Failed                  // the list, the request for a watch, or the watch has failed with Err
	BrokenPages             // a page other than the first is gone; or the pages do not end, or belong to several revisions
	Unplaced                // the watch delivered an event without a position from which to resume
	Ended                   // the watch has ended without an error
	Cut                     // the watch has ended inside a revision, or the source returned no watch
	WentBack                // the watch has ended, and all its revisions were below the known one
)

// Input is the result of the last action.
type Input struct {
	Kind       Kind
	Err        error         // nil if nothing failed
	RetryAfter time.Duration // the delay that the source requests
}

// Do is the next operation of a driver.
type Do int

const (
	Wait  Do = iota // report Err, if there is one, wait for Until, and report Due
	List            // list, and report Synced, BrokenPages or Failed
	Watch           // open a watch after the resume point, and report Opened, Cut or Failed
	Read            // read the watch, and report Newer, and one of Ended, Cut, WentBack, Unplaced and Failed
	End             // deliver Err to the consumer, and end
)

// Action is the next operation, with its parameters.
type Action struct {
	Do     Do
	Until  time.Time // for Wait; the zero time has passed
	Err    error
	Newest bool // for List: request the newest state, instead of one that is not older than the known one
	Whole  bool // for List: without pages
}

const (
	// PageSize is the number of items per page of a list.
	PageSize = 500
	// A watch that ended within short and delivered nothing newer is fruitless.
	short = time.Second
	// A list after a 410, or of a relay after fruitless watches, comes at once if none came so
	// within relistCalm.
	relistCalm = 30 * time.Second
	// After mostFruitless such watches in a row the machine lists: whatever prevents the source
	// from continuing, the state is then known again, so no error leaves it stale for ever.
	mostFruitless = 3
)

var (
	// ErrNoWatch and ErrInside are reasons for Cut.
	ErrNoWatch = errors.New("the source gave neither a watch nor an error")
	ErrInside  = errors.New("the watch ended inside a revision")

	errShort = fmt.Errorf("the watch ended within a second without a change: %w", io.EOF)
)

// Machine is the state of a mirror or of a relay.
//
// A mirror fills a store. A mirror never ends, and its delays are a [Backoff]. A relay delivers events to
// one consumer. A relay ends with an error that repeating the request cannot mend, and it keeps a
// minimum distance between the starts of attempts of one kind.
type Machine struct {
	backoff  *Backoff // nil: a relay
	distance time.Duration
	lists    bool // the source may be listed

	attempt   Action // List or Watch: in progress, or after the wait
	waiting   bool
	opened    bool            // the attempt is an open watch
	newer     bool            // the open watch has delivered a newer revision
	began     [Read]time.Time // the start of the last attempt of each kind; the zero time: none
	newest    bool            // until a list succeeds, all lists request the newest state
	fruitless int             // watches in a row without a newer revision
	gone      bool            // the next list is due to a revision that is gone
	relisted  time.Time       // the start of the last such list
}

// NewMirror makes a mirror, which starts with a list.
func NewMirror(backoff Backoff) *Machine {
	return &Machine{backoff: &backoff, lists: true, attempt: Action{Do: List}, waiting: true}
}

// NewRelay makes a relay, which starts with a list or with a watch.
func NewRelay(distance time.Duration, lists bool, first Do) *Machine {
	return &Machine{distance: distance, lists: lists, attempt: Action{Do: first, Newest: true}, waiting: true}
}

func (m *Machine) isRelay() bool { return m.backoff == nil }

// Attempt returns List or Watch: the operation in progress, or the one after the wait.
func (m *Machine) Attempt() Do { return m.attempt.Do }

// Step takes an input, and returns the next action.
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
	case isBroken, !before.Newest && (code == 410 || code == 504): // the source does not have the revision, any more or yet
		m.newest = m.newest || !isBroken
		a := m.wait(List, time.Time{}, in.Err)
		m.attempt.Whole = isBroken || before.Whole
		return a
	case m.isRelay() && (isFatal(in.Err) || code == 401 || code == 403 || code == 405):
		return Action{Do: End, Err: in.Err}
	}
	return m.pause(now, List, in)
}

// watchFailed lists only if another watch cannot mend the error, because a list of the whole state
// is the most expensive request for a server.
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

// watchEnded measures the second from the request for the watch, because a server may answer only
// with its first event.
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

// relist handles a source that has another history, or not enough of this one. A mirror lists at
// once unless its last such list was recent: otherwise a source that rejects the revision which it
// has just listed would be listed without a pause.
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

// fruitlessWatch counts a watch that has delivered nothing newer.
func (m *Machine) fruitlessWatch(now time.Time, in Input) Action {
	m.fruitless++
	isCalm := !m.isRelay() || m.began[List].IsZero() || now.Sub(m.began[List]) >= relistCalm
	if m.fruitless >= mostFruitless && m.lists && isCalm {
		return m.pause(now, List, in)
	}
	return m.pause(now, Watch, in)
}

// pause waits for the backoff or for the rest of the distance, and for the delay that the source requests.
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
