package watch

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/watchcore/watchcore/go/internal/listwatch"
)

// Status is a server's answer as an error, which an event of type Error carries.
type Status struct {
	// Code is an HTTP status, such as 410.
	Code int
	// Message is for people.
	Message string
	// RetryAfter is how long the server asks its clients to wait before the next attempt.
	RetryAfter time.Duration
}

// Error returns the code with its name, and the message.
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

// HTTPStatus returns the code. Other errors with such a method count as a Status, too: see [StatusOf].
func (s *Status) HTTPStatus() int {
	if s == nil {
		return 0
	}
	return s.Code
}

// StatusOf finds the Status in an error: a *Status, or an error with a method HTTPStatus() int (and
// optionally RetryAfter() time.Duration), anywhere in its chain. A nil *Status does not count.
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

// explained sets the Err of an event of type Error that has only an object, from the object. In
// apimachinery a status is such an object.
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

// IsGone reports whether the revision is older than the server's history (410). Start again from a list.
func IsGone(err error) bool { return isCode(err, http.StatusGone) }

// IsRefused reports whether the server rejects the client (401) or the request (403). Trying again
// does not help.
func IsRefused(err error) bool {
	return isCode(err, http.StatusUnauthorized, http.StatusForbidden)
}

// IsTooManyRequests reports whether the server asks the client to wait (429), for [RetryAfter] if
// that is given.
func IsTooManyRequests(err error) bool { return isCode(err, http.StatusTooManyRequests) }

// IsTimeout reports whether the server, or a proxy on the way to it, gave up (504, 408).
func IsTimeout(err error) bool {
	return isCode(err, http.StatusGatewayTimeout, http.StatusRequestTimeout)
}

// RetryAfter returns how long an error asks to wait; 0 if it does not say.
func RetryAfter(err error) time.Duration {
	if s, ok := StatusOf(err); ok && s.RetryAfter > 0 {
		return s.RetryAfter
	}
	return 0
}
