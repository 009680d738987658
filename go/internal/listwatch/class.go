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
	// wrong is everything else: the request or the stream is wrong, and repeating it does not help.
	wrong class = iota
	// gone is 410: the revision has left the source's window, so no watch from it can be opened.
	gone
	// busy is 429, 503, and a connection that breaks or does not come about: nothing about the revision. The same request is
	// made again later.
	busy
	// failed is any other 5xx: the server or a gateway has failed, and another watch may succeed. 504 also says that the
	// revision is not there yet, as after a restored backup.
	failed
	// refused is 401 and 403.
	refused
)

func classOf(err error) class {
	switch code := codeOf(err); {
	case code == 410:
		return gone
	case code == 429, code == 503:
		return busy
	case code == 401, code == 403:
		return refused
	case code >= 500 && code <= 599:
		return failed
	case code == 0 && (IsEndOfStream(err) || isNoConnection(err)):
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

// lacksRevision: a list at a revision failed because the source does not have that revision, not any more or not yet.
func lacksRevision(err error) bool {
	code := codeOf(err)
	return code == 410 || code == 504
}

// codeOf is the status of HTTP that an error has, as a watch.Status and a watchcore.Error do; 0 where it has none.
func codeOf(err error) int {
	var coded interface {
		error
		HTTPStatus() int
	}
	if errors.As(err, &coded) {
		return coded.HTTPStatus()
	}
	return 0
}

func isNoConnection(err error) bool {
	var connection net.Error
	return errors.Is(err, syscall.ECONNREFUSED) || errors.As(err, &connection)
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
