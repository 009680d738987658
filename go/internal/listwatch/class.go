package listwatch

import (
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
)

// class is what an error says about the revision that was asked for: the table "Lists, watches and errors" of docs/TOOLKIT.md.
type class int

const (
	wrong   class = iota // all else: the request or the stream is wrong, and repeating it does not help
	gone                 // 410: the revision has left the source's window, so no watch from it can be opened
	busy                 // 429, 503, a connection that breaks or does not come about: nothing about the revision
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

// isFatal: the error says of itself that nothing can come of another attempt, as that of a cache that was closed does.
func isFatal(err error) bool {
	var fatal interface {
		error
		Fatal() bool
	}
	return errors.As(err, &fatal) && fatal.Fatal()
}

// CodeOf is the status of HTTP that an error has, as a watch.Status and a watchcore.Error do; 0 where it has none.
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

// IsEndOfStream says whether an error is the end of a connection, regular or not, and nothing that its events could be blamed for.
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
	// net/http has no values for these.
	text := err.Error()
	return strings.Contains(text, "http: can't write HTTP request on broken connection") ||
		strings.Contains(text, "http2: server sent GOAWAY and closed the connection")
}
