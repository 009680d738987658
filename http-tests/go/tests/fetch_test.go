package tests

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"testing"
	"time"

	"watchcore.test/http/internal/world"
)

// fetch asks for a URL and reads all of the answer.
func fetch(ctx context.Context, t *testing.T, url, accept string) (int, http.Header, []byte) {
	t.Helper()
	response := open(ctx, t, url, accept)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, response.Header, body
}

func open(ctx context.Context, t *testing.T, url, accept string) *http.Response {
	t.Helper()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if accept != "" {
		request.Header.Set("Accept", accept)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	return response
}

// stream asks for a watch and gives its lines as they come. It is closed with the watch, which ends with the test.
func stream(ctx context.Context, t *testing.T, url, accept string) <-chan []byte {
	t.Helper()
	response := open(ctx, t, url, accept)
	t.Cleanup(func() { response.Body.Close() })
	lines := make(chan []byte)
	go func() {
		defer close(lines)
		reader := bufio.NewReaderSize(response.Body, 64<<10)
		for {
			line, err := reader.ReadBytes('\n')
			if err != nil {
				return
			}
			select {
			case lines <- line:
			case <-t.Context().Done():
				return
			}
		}
	}()
	return lines
}

// next is the next line of a watch.
func next(t *testing.T, lines <-chan []byte) []byte {
	t.Helper()
	select {
	case line, open := <-lines:
		if !open {
			t.Fatal("the watch ended")
		}
		return line
	case <-time.After(world.Patience):
		t.Fatal("no event came")
	}
	return nil
}
