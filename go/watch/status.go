package watch

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"watchcore/internal/listwatch"
)

// Status is an answer of a server as an error: what an event of type Error carries.
type Status struct {
	// Code is an HTTP status, such as 410.
	Code int
	// Message is for people.
	Message string
	// RetryAfter is how long the server asks its clients to wait before the next attempt.
	RetryAfter time.Duration
}

// Error is the code with its name, and the message.
func (s *Status) Error() string {
	if s == nil {
		return "no status"
	}
	name := http.StatusText(s.Code)
	if name == "" {
		name = "unknown status"
	}
	text := fmt.Sprintf("%d %s", s.Code, name)
	if s.Message != "" {
		text += ": " + s.Message
	}
	if s.RetryAfter > 0 {
		text += fmt.Sprintf(" (retry after %s)", s.RetryAfter)
	}
	return text
}

// HTTPStatus is the code. Other errors with such a method count as a Status, too: see [StatusOf].
func (s *Status) HTTPStatus() int {
	if s == nil {
		return 0
	}
	return s.Code
}

// StatusOf finds the Status in an error: a *Status, or an error with a method HTTPStatus() int
// (and, if it likes, RetryAfter() time.Duration), anywhere in its chain. A *Status that is nil is none.
func StatusOf(err error) (*Status, bool) {
	if s := (*Status)(nil); errors.As(err, &s) {
		return s, s != nil
	}
	var coded interface {
		error
		HTTPStatus() int
	}
	if !errors.As(err, &coded) {
		return nil, false
	}
	s := &Status{Code: coded.HTTPStatus(), Message: coded.Error()}
	if later, ok := coded.(interface{ RetryAfter() time.Duration }); ok {
		s.RetryAfter = later.RetryAfter()
	}
	return s, true
}

// explained is an event whose Err is set if it is of type Error: where its maker gave an object alone, by that.
// A status is such an object in apimachinery.
func explained[T any](e Event[T]) Event[T] {
	if e.Type != Error || e.Err != nil {
		return e
	}
	if err, is := any(e.Object).(error); is {
		e.Err = err
	} else {
		e.Err = &Status{Code: 500, Message: fmt.Sprintf("the watch failed: %v", e.Object)}
	}
	return e
}

func isCode(err error, codes ...int) bool {
	return slices.Contains(codes, listwatch.CodeOf(err))
}

// IsGone: the revision is older than what the server keeps (410). Begin from a list.
func IsGone(err error) bool { return isCode(err, http.StatusGone) }

// IsRefused: the server does not accept who asks (401), or what for (403). To try again does not help.
func IsRefused(err error) bool {
	return isCode(err, http.StatusUnauthorized, http.StatusForbidden)
}

// IsTooManyRequests: the server asks for patience (429), for [RetryAfter] if it says so.
func IsTooManyRequests(err error) bool { return isCode(err, http.StatusTooManyRequests) }

// IsTimeout: the server, or one on the way to it, gave up (504, 408).
func IsTimeout(err error) bool {
	return isCode(err, http.StatusGatewayTimeout, http.StatusRequestTimeout)
}

// RetryAfter is how long an error asks to wait; 0 where it does not say.
func RetryAfter(err error) time.Duration {
	if s, ok := StatusOf(err); ok && s.RetryAfter > 0 {
		return s.RetryAfter
	}
	return 0
}
