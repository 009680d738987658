package tests

import (
	"bufio"
	"context"
	"testing"
	"time"

	"watchcore.test/http/internal/suite"
	"watchcore.test/http/internal/world"
)

// stream asks for a watch and gives its lines as they come. It is closed with the watch, which ends with the test.
func stream(ctx context.Context, t *testing.T, url, accept string) <-chan []byte {
	t.Helper()
	response := suite.Open(ctx, t, url, accept)
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
	case <-time.After(world.Timeout):
		t.Fatal("no event came")
	}
	return nil
}
