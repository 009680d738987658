package clients

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"watchcore.test/http/internal/history"
	"watchcore.test/http/internal/world"
)

// EventSource starts a client that follows the plain keys of both resources by server-sent events, as a browser's
// EventSource does: when the stream ends it comes back with the last id it was given, and what came after that id is
// taken as not seen. A refusal ends an EventSource; the page then opens another, which knows nothing.
func EventSource(ctx context.Context, server string) (*Client, error) {
	log := history.NewLog("EventSource", "")
	c, ctx := start(ctx, log)
	source := &eventSource{url: server + "/v1/keys?watch=1&prefix=" + url.QueryEscape(world.Prefix), log: log}
	c.run(func() error {
		for {
			if err := source.open(ctx); err != nil {
				return err
			}
			if !pause(ctx) {
				return nil
			}
		}
	})
	return c, nil
}

type eventSource struct {
	url    string
	log    *history.Log
	lastID string
	// Came since the last id. nil outside of the initial state.
	waiting []keyEvent
	initial map[string]int64
}

type keyEvent struct {
	Type            string
	Revision        int64
	Key             string
	ModRevision     int64 `json:"mod_revision"`
	InitialStateEnd bool  `json:"initial_state_end"`
	Code            string
	Message         string
}

// open reads one stream to its end.
func (s *eventSource) open(ctx context.Context) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url, nil)
	if err != nil {
		return err
	}
	request.Header.Set("Accept", "text/event-stream")
	s.waiting, s.initial = nil, map[string]int64{}
	if s.lastID != "" {
		request.Header.Set("Last-Event-ID", s.lastID)
		s.initial = nil
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(response.Body, 1000))
		switch response.StatusCode {
		case http.StatusGone:
			s.lastID = ""
			return nil
		case http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
			return nil
		}
		return fmt.Errorf("the stream was refused: %s: %s", response.Status, body)
	}
	reader := bufio.NewReaderSize(response.Body, 64<<10)
	var id, data string
	hasID := false
	for {
		line, err := reader.ReadString('\n')
		if err != nil {
			return nil
		}
		field, value, _ := strings.Cut(strings.TrimRight(line, "\r\n"), ":")
		value = strings.TrimPrefix(value, " ")
		switch field {
		case "id":
			id, hasID = value, true
		case "data":
			data += value
		case "":
			if strings.TrimRight(line, "\r\n") != "" {
				continue // a comment
			}
			if hasID {
				s.lastID = id
			}
			if data != "" {
				done, err := s.take(data, hasID)
				if err != nil || done {
					return err
				}
			}
			id, data, hasID = "", "", false
		}
	}
}

// take reads one event: true when the stream is of no more use.
func (s *eventSource) take(data string, hasID bool) (bool, error) {
	var event keyEvent
	if err := json.Unmarshal([]byte(data), &event); err != nil {
		return false, fmt.Errorf("no event: %w: %.200s", err, data)
	}
	switch event.Type {
	case "ERROR", "LAGGED":
		if event.Code == "COMPACTED" || event.Code == "LAGGED" || event.Type == "LAGGED" {
			s.lastID = ""
			return true, nil
		}
		return true, fmt.Errorf("the stream failed: %s", data)
	case "BOOKMARK":
		if event.InitialStateEnd && s.initial != nil {
			s.log.List(event.Revision, s.initial)
			s.initial = nil
			return false, nil
		}
	}
	if s.initial != nil {
		s.initial[strings.TrimPrefix(event.Key, world.Prefix)] = event.ModRevision
		return false, nil
	}
	s.waiting = append(s.waiting, event)
	if !hasID {
		return false, nil
	}
	for _, event := range s.waiting {
		key := strings.TrimPrefix(event.Key, world.Prefix)
		switch event.Type {
		case "ADDED", "MODIFIED":
			s.log.Event(event.Type, key, event.ModRevision)
		case "DELETED":
			s.log.Event(event.Type, key, event.Revision)
		case "BOOKMARK":
			s.log.Bookmark(event.Revision)
		case "RESYNC":
		default:
			return true, fmt.Errorf("an event of another type: %s", data)
		}
	}
	s.waiting = nil
	return false, nil
}
