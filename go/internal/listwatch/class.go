package listwatch

import (
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
)

// class is what an error says about the requested revision: see the table "Lists, watches and
// errors" of docs/TOOLKIT.md.
type class int

const (
	wrong   class = iota // everything else: the request or the stream is invalid, and repeating it does not help
	gone                 // 410: the revision has left the source's window, so no watch can start there
	busy                 // 429, 503, a connection that breaks or cannot be made: says nothing about the revision
	failed               // any other 5xx: the server or a gateway has failed, and another watch may succeed
	refused              // 401, 403
)

func classOf(err error) class {
	var connection net.Error
	switch code := CodeOf(err); {
	case code == 410:
		return gone
	case code == 429, code == 503:
		return busy
	case code == 401, code == 403:
		return refused
	case code >= 500 && code <= 599:
		return failed
	case code == 0 && (IsEndOfStream(err) || errors.Is(err, syscall.ECONNREFUSED) || errors.As(err, &connection)):
		return busy
	}
	return wrong
}

// isFatal reports whether the error itself says that no further attempt can succeed, such as the
// error of a closed cache.
func isFatal(err error) bool {
	var fatal interface {
		error
		Fatal() bool
	}
	return errors.As(err, &fatal) && fatal.Fatal()
}

// CodeOf returns the HTTP status of an error such as a watch.Status or a watchcore.Error; 0 if it has none.
func CodeOf(err error) int {
	var coded interface {
		error
		HTTPStatus() int
	}
	if errors.As(err, &coded) {
		return coded.HTTPStatus()
	}
	return 0
}

// IsEndOfStream reports whether an error is the regular or irregular end of a connection, which
// does not invalidate the events before it.
func IsEndOfStream(err error) bool {
	if err == nil {
		return false
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, net.ErrClosed) || errors.Is(err, io.ErrClosedPipe) || errors.Is(err, syscall.ECONNRESET) {
		return true
	}
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return true
	}
	// net/http has no error values for these.
	text := err.Error()
	return strings.Contains(text, "http: can't write HTTP request on broken connection") ||
		strings.Contains(text, "http2: server sent GOAWAY and closed the connection")
}
