// Package suite is what the packages of tests have in common.
package suite

import (
	"context"
	"io"
	"net/http"
	"testing"
	"time"

	"watchcore.test/http/internal/world"
)

// Bounded is a context that ends with the test, and after the longest that a test may take.
func Bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// NewWorld starts an etcd with objects, and watchcore serve over it.
func NewWorld(ctx context.Context, t *testing.T, programs world.Programs, objects int) *world.World {
	t.Helper()
	w, err := world.New(ctx, programs, t.TempDir(), objects, t.Logf)
	t.Cleanup(w.Close)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// Fetch asks for a URL and reads all of the answer.
func Fetch(ctx context.Context, t *testing.T, url, accept string) (int, http.Header, []byte) {
	t.Helper()
	response := Open(ctx, t, url, accept)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, response.Header, body
}

// Open asks for a URL; the caller closes the answer.
func Open(ctx context.Context, t *testing.T, url, accept string) *http.Response {
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
