package clients

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
)

// Traffic counts what all clients of this process are answered.
type Traffic struct {
	below *http.Transport

	mutex   sync.Mutex
	watches int
	refused map[int]int // by code, also of those that a watch tells as its last event
	broken  int         // requests without an answer
}

// CountTraffic counts from now on, until the function that it returns is called. Each request has a connection of its own
// then, so that a balancer of connections sends it to the next server. The counter replaces http.DefaultTransport, which
// all clients have that are given nothing but an address, client-go's too.
func CountTraffic() (traffic *Traffic, stop func()) {
	before := http.DefaultTransport
	below := before.(*http.Transport).Clone()
	below.DisableKeepAlives = true
	traffic = &Traffic{below: below, refused: map[int]int{}}
	http.DefaultTransport = traffic
	return traffic, func() { http.DefaultTransport = before }
}

// Watches is how many watches were begun.
func (t *Traffic) Watches() int {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	return t.watches
}

// Refused is how many answers had a code, or were a watch that ended with it.
func (t *Traffic) Refused(code int) int {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	return t.refused[code]
}

func (t *Traffic) String() string {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	return fmt.Sprintf("%d watches begun; refused: %d times 410, %d 504, %d 503, %d 429; %d requests without an answer",
		t.watches, t.refused[http.StatusGone], t.refused[http.StatusGatewayTimeout], t.refused[http.StatusServiceUnavailable],
		t.refused[http.StatusTooManyRequests], t.broken)
}

// RoundTrip is that of http.RoundTripper.
func (t *Traffic) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := t.below.RoundTrip(request)
	t.mutex.Lock()
	defer t.mutex.Unlock()
	switch {
	case err != nil:
		t.broken++
	case response.StatusCode >= http.StatusBadRequest:
		t.refused[response.StatusCode]++
	case request.URL.Query().Get("watch") != "" && response.StatusCode == http.StatusOK:
		t.watches++
		response.Body = &watched{ReadCloser: response.Body, traffic: t}
	}
	return response, err
}

// watched finds the events of a watch that say why it ends.
type watched struct {
	io.ReadCloser
	traffic *Traffic
	line    []byte // the beginning of one that is not over
}

// Read is that of io.Reader.
func (w *watched) Read(b []byte) (int, error) {
	n, err := w.ReadCloser.Read(b)
	for rest := b[:n]; len(rest) > 0; {
		line, after, ended := bytes.Cut(rest, []byte("\n"))
		// An error is short, and an object need not be kept whole.
		w.line = append(w.line, line[:min(len(line), max(0, 4096-len(w.line)))]...)
		if ended {
			w.take()
		}
		rest = after
	}
	return n, err
}

func (w *watched) take() {
	line := bytes.TrimSpace(w.line)
	w.line = w.line[:0]
	if !bytes.HasPrefix(line, []byte(`{"type":"ERROR"`)) {
		return
	}
	var event struct{ Object struct{ Code int } }
	if json.Unmarshal(line, &event) == nil {
		w.traffic.mutex.Lock()
		w.traffic.refused[event.Object.Code]++
		w.traffic.mutex.Unlock()
	}
}
