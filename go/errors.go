package watchcore

// #include "abi.h"
// #cgo noescape watchcore_error_name
// #cgo nocallback watchcore_error_name
// #cgo nocallback wc_code
// #cgo noescape wc_error_free
// #cgo nocallback wc_error_free
import "C"

import (
	"fmt"
	"strings"
	"time"
)

// MaxRevision is the largest revision. Reading at a larger one, waiting for it or subscribing there
// returns ErrFutureRevision at once; writing at it returns ErrInvalidArgument.
const MaxRevision uint64 = 1<<52 - 1

// Code is the kind of an [Error]. Code is an error itself, for errors.Is(err, watchcore.ErrCompacted).
type Code int32

// The codes have the same numbers in every language.
const (
	// ErrInvalidArgument is a bad value, or a key outside the prefix. Correct the call.
	ErrInvalidArgument Code = 1
	// ErrNotFound is reserved: an absent key is no error.
	ErrNotFound Code = 2
	// ErrNotReady means that there is no listing yet. Try again, or wait: Cache.WaitReady.
	ErrNotReady Code = 3
	// ErrTimeout means that the time limit was reached; nothing is lost.
	ErrTimeout Code = 4
	// ErrClosed means that the cache, the subscription or the feeder was closed.
	ErrClosed Code = 5
	// ErrBusy means that another goroutine is inside a method for one goroutine at a time, or has the writer.
	ErrBusy Code = 6
	// ErrUnsupported means that this build, a forked child or an embedded cache cannot do it.
	ErrUnsupported Code = 7
	// ErrOutOfOrder means that a revision does not rise, or that a load comes at the wrong time.
	ErrOutOfOrder Code = 8
	// ErrCompacted means that the revision is older than the window. Start again from the state.
	ErrCompacted Code = 10
	// ErrLagged means that this reader has lost events, of the revisions Error.LostFrom to
	// Error.LostTo. SubscribeOptions.OnLag chooses how the subscription continues.
	ErrLagged Code = 11
	// ErrFutureRevision means that the revision did not arrive in time.
	ErrFutureRevision Code = 12
	// ErrResynced means that the history was replaced: the subscription has asked to stop at that
	// point, or the wait was for a revision of the former history.
	ErrResynced Code = 13
	// ErrUnauthenticated means that etcd refused the credentials.
	ErrUnauthenticated Code = 20
	// ErrPermissionDenied means that etcd denied access to the range.
	ErrPermissionDenied Code = 21
	// ErrUnavailable means that etcd is out of reach.
	ErrUnavailable Code = 22
	// ErrResourceExhausted means that etcd, or a limit, refused more.
	ErrResourceExhausted Code = 23
	// ErrPanic is a bug: a panic was caught inside the library, and the process continues.
	ErrPanic Code = 90
	// ErrInternal is a bug: an invariant is broken.
	ErrInternal Code = 91
)

// info asks C for all properties of the code, in one call.
func (c Code) info() C.watchcore_code_info {
	return C.wc_code(C.int32_t(c))
}

// Error returns one sentence about the code.
func (c Code) Error() string {
	return "watchcore: " + inGo(C.GoString(c.info().sentence))
}

// Name returns the code's name, which is the same in every language, such as "COMPACTED".
func (c Code) Name() string {
	return C.GoString(C.watchcore_error_name(C.int32_t(c)))
}

// Retryable reports whether the same call may succeed later without any other step.
func (c Code) Retryable() bool {
	return c.info().retryable != 0
}

// Fatal reports whether the object that returned the code is of no further use, whatever object that was. A subscription
// may have ended with another code, too: see Subscription.Poll.
func (c Code) Fatal() bool {
	return c.info().fatal != 0
}

// HTTPStatus returns the status with which an API server would answer.
func (c Code) HTTPStatus() int {
	return int(c.info().http_status)
}

// Reason returns Kubernetes' reason for that status (metav1.StatusReason), such as "Expired", or ""
// if there is none.
func (c Code) Reason() string {
	return C.GoString(c.info().reason)
}

// RetryAfter returns how long an API server would tell a client to wait before the same call; 0 if
// the call would not succeed then.
func (c Code) RetryAfter() time.Duration {
	return time.Duration(c.info().retry_after_ms) * time.Millisecond
}

// Error is an error of the library, with its numbers. A number that does not apply is 0. Extract it
// from a wrapped error with errors.As.
type Error struct {
	Code    Code
	Message string // the request, the state, the next step

	Asked    uint64 // the requested revision
	Oldest   uint64 // the oldest revision of the window: StartAfter(Oldest-1) is possible
	Current  uint64 // the cache's revision
	LostFrom uint64 // ErrLagged: the first revision of which events were lost
	LostTo   uint64 // ErrLagged: the last such revision
	Position uint64 // the revision up to which the subscription got everything
	Epoch    uint64 // the epoch of Position

	// Continue is set with ErrCompacted of a List with a token: a token that continues at the same
	// key in the newest state, whereas the earlier pages show an older revision.
	Continue string
}

// Error returns the message, after the package's name.
func (e *Error) Error() string {
	return "watchcore: " + e.Message
}

// Unwrap returns the code, for errors.Is.
func (e *Error) Unwrap() error {
	return e.Code
}

// Retryable reports whether the same call may succeed later without any other step.
func (e *Error) Retryable() bool { return e.Code.Retryable() }

// Fatal reports whether the object that returned the error is of no further use: see Code.Fatal.
func (e *Error) Fatal() bool { return e.Code.Fatal() }

// asError removes the final period, as Go's errors have none.
func asError(message string) string { return strings.TrimSuffix(inGo(message), ".") }

func newError(code Code, format string, arguments ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, arguments...)}
}

func errClosed(what string) error {
	return newError(ErrClosed, "%s is closed", what)
}

func errBusy(what string) error {
	return newError(ErrBusy, "%s is in use by another goroutine. Use it from one at a time", what)
}

// failed turns the library's error into a Go error and frees its memory.
func failed(e *C.watchcore_error) error {
	if e == nil {
		return nil
	}
	return taken(e)
}

func taken(e *C.watchcore_error) *Error {
	err := &Error{
		Code:     Code(e.code),
		Message:  asError(C.GoString(&e.message[0])),
		Asked:    uint64(e.asked),
		Oldest:   uint64(e.oldest),
		Current:  uint64(e.current),
		LostFrom: uint64(e.lost_from),
		LostTo:   uint64(e.lost_to),
		Position: uint64(e.position),
		Epoch:    uint64(e.epoch),
	}
	C.wc_error_free(e)
	return err
}
