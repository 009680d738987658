// Package verdict has the classes of a source's errors, for everything that lists and watches: the table "Lists, watches
// and errors" of docs/TOOLKIT.md.
package verdict

import "time"

// Verdict is what an error says about the revision that was asked for.
type Verdict int

const (
	// Wrong is everything else: the request or the stream is wrong, and repeating it does not help.
	Wrong Verdict = iota
	// Gone is 410: the revision has left the source's window, so no watch from it can be opened.
	Gone
	// Busy is 429, 503, and a connection that does not come about: nothing about the revision. The same request is made again
	// later.
	Busy
	// Failed is any other 5xx: the server or a gateway has failed, and another watch may succeed. 504 also says that the
	// revision is not there yet, as after a restored backup.
	Failed
	// Refused is 401 and 403.
	Refused
)

// Of is the verdict of a status.
func Of(code int) Verdict {
	switch {
	case code == 410:
		return Gone
	case code == 429, code == 503:
		return Busy
	case code == 401, code == 403:
		return Refused
	case code >= 500 && code <= 599:
		return Failed
	}
	return Wrong
}

// LacksRevision: a list at a revision failed because the source does not have that revision, not any more or not yet.
func LacksRevision(code int) bool { return code == 410 || code == 504 }

const (
	// Short: an attempt that ended earlier and brought nothing new is a fruitless one.
	Short = time.Second
	// RelistCalm: a list after a 410, or after fruitless attempts of a watch without a backoff, comes at once where none came
	// so for this long.
	RelistCalm = 30 * time.Second
)

// most fruitless attempts in a row lead to a list.
const most = 3

// Fruitless counts attempts in a row that brought no newer revision. From the third one on a list is due: whatever keeps
// the source from going on, the state is known again, and no error leaves it stale for ever.
type Fruitless struct{ count int }

// OneMore records one more; true: a list is due.
func (f *Fruitless) OneMore() bool {
	f.count++
	return f.count >= most
}

// Reset: a newer revision came, or a list.
func (f *Fruitless) Reset() { f.count = 0 }
