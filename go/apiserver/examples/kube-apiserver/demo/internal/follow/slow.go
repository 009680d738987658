package follow

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/watchcore/watchcore/go/apiserver/examples/kube-apiserver/demo/internal/check"
)

// wireEvent is an event as it is sent.
type wireEvent struct {
	Type   check.Type      `json:"type"`
	Object json.RawMessage `json:"object"`
}

func (e wireEvent) event(r Resource, v check.View) (check.Event, error) {
	event := check.Event{Type: e.Type}
	if e.Type == "ERROR" {
		status := &apierrors.StatusError{}
		if err := json.Unmarshal(e.Object, &status.ErrStatus); err != nil {
			return event, err
		}
		return event, status
	}
	if e.Type == check.Bookmark {
		var of struct{ Metadata metav1.ObjectMeta }
		if err := json.Unmarshal(e.Object, &of); err != nil {
			return event, err
		}
		var err error
		event.Revision, err = strconv.ParseInt(of.Metadata.ResourceVersion, 10, 64)
		return event, err
	}
	decoded, err := r.stored(e.Object)
	if err != nil {
		return event, err
	}
	o, err := object(decoded)
	if err != nil {
		return event, err
	}
	event.Key, event.Revision, event.Digest = o.Key, o.Revision, o.Whole
	return event, nil
}

// Slow is a watch over a connection of its own that is read only where Read says so.
type Slow struct {
	check.Log
	Resource Resource

	connection net.Conn
	events     *json.Decoder
}

// OpenSlow lists, and opens a watch behind that; it reads no more than the head of the answer. Nothing but TCP limits what the server can
// send, so the buffer of the connection is small.
func OpenSlow(ctx context.Context, clients *Clients, r Resource, name string, view check.View, difference bool) (*Slow, error) {
	s := &Slow{Resource: r}
	s.Name, s.View, s.Difference = name, view, difference
	if err := s.List(ctx, clients); err != nil {
		return nil, err
	}
	config := clients.Config
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(config.CAData)
	host := strings.TrimPrefix(config.Host, "https://")
	plain, err := (&net.Dialer{}).DialContext(ctx, "tcp", host)
	if err != nil {
		return nil, err
	}
	if err := plain.(*net.TCPConn).SetReadBuffer(64 << 10); err != nil {
		return nil, err
	}
	s.connection = tls.Client(plain, &tls.Config{RootCAs: roots, ServerName: "127.0.0.1"})
	query := url.Values{"watch": {"1"}, "resourceVersion": {strconv.FormatInt(s.Reached(), 10)}, "timeoutSeconds": {"3600"}}
	path := "/api/v1/namespaces/" + view.Namespace + "/" + r.Resource
	fmt.Fprintf(s.connection, "GET %s?%s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nAccept: application/json\r\n\r\n",
		path, query.Encode(), host, config.BearerToken)
	response, err := http.ReadResponse(bufio.NewReader(s.connection), nil)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", path, response.Status)
	}
	s.events = json.NewDecoder(response.Body)
	return s, nil
}

// Read reads until the watch is at a revision, or an error ends it.
func (s *Slow) Read(ctx context.Context, revision int64) error {
	stop := context.AfterFunc(ctx, func() { _ = s.connection.Close() })
	defer stop()
	if err := s.connection.SetReadDeadline(time.Now().Add(3 * time.Minute)); err != nil {
		return err
	}
	for s.Reached() < revision {
		var e wireEvent
		if err := s.events.Decode(&e); err != nil {
			return fmt.Errorf("the watch ended at %d, before %d: %w", s.Reached(), revision, err)
		}
		event, err := e.event(s.Resource, s.View)
		if err != nil {
			return err
		}
		s.Add(event)
	}
	return nil
}

// Close ends it.
func (s *Slow) Close() { _ = s.connection.Close() }

// List adds a list: the first one, and the one of a client that received 410.
func (s *Slow) List(ctx context.Context, clients *Clients) error {
	session, err := list(ctx, clients.source(s.Resource, JSON, s.View), s.View, s.Resource)
	if err == nil {
		s.Begin(session)
	}
	return err
}
