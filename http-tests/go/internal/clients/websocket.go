package clients

import (
	"context"
	"io"
	"net/http"
	"strings"

	"github.com/gorilla/websocket"
)

// WebSocket starts a client whose watches are WebSockets, with the loop of Curl: browsers have no other way to a watch
// that carries text.
func WebSocket(ctx context.Context, url, plural string) (*Client, error) {
	return loop(ctx, "WebSocket", url, plural, func(ctx context.Context, query string) (messages, error) {
		dialer := websocket.Dialer{}
		connection, response, err := dialer.DialContext(ctx, "ws"+strings.TrimPrefix(url, "http")+path(plural)+query, nil)
		if err == nil {
			stop := context.AfterFunc(ctx, func() { connection.Close() })
			return &socket{connection, stop}, nil
		}
		if response == nil {
			return nil, err
		}
		switch response.StatusCode {
		case http.StatusTooManyRequests, http.StatusServiceUnavailable:
			return nil, err
		}
		// A refusal, for the loop to read.
		return &refusal{response.Body}, nil
	}, byGo)
}

type socket struct {
	connection *websocket.Conn
	stop       func() bool
}

func (s *socket) Next() ([]byte, error) {
	_, message, err := s.connection.ReadMessage()
	return message, err
}

func (s *socket) Close() error {
	s.stop()
	return s.connection.Close()
}

// refusal is one message: all of a body.
type refusal struct{ io.ReadCloser }

func (l *refusal) Next() ([]byte, error) {
	message, err := io.ReadAll(l)
	if err == nil && len(message) == 0 {
		err = io.EOF
	}
	return message, err
}
