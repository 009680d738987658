package main

import (
	"context"
	"errors"
	"io"
	"os"
	"testing"

	"github.com/watchcore/watchcore/go/internal/bounded"
)

func Example() {
	if err := run(context.Background(), os.Stdout); err != nil {
		panic(err)
	}
	// Output:
	// waits: saw 1000 jobs, lost 0
	// drops: saw 8 jobs, lost 992, at first: ADDED@1: job 0 ADDED@2: job 1 …
	// late: saw 500 jobs, from ADDED@501: job 500
}

// A context that ends releases the publisher, which waits for the first watcher.
func TestBroadcasterExampleEndsWithItsContext(t *testing.T) {
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	ended := make(chan error, 1)
	go func() { ended <- run(cancelled, io.Discard) }()
	if err := bounded.Receive(t, "the end", ended); !errors.Is(err, context.Canceled) {
		t.Fatalf("it ended with %v", err)
	}
}
