//go:build cgo

package watchcore

import (
	"errors"
	"testing"
)

// What a listing has copied goes back at once, also where the writer was closed before.
func TestRefusedFinishClosesTheLoading(t *testing.T) {
	cache, err := New(Config{ExpectLoad: true})
	if err != nil {
		t.Fatal(err)
	}
	defer cache.Close()
	writer, err := cache.Writer()
	if err != nil {
		t.Fatal(err)
	}
	loading, err := writer.BeginLoad(7)
	if err != nil {
		t.Fatal(err)
	}
	writer.Close()
	if err := loading.Finish(); !errors.Is(err, ErrClosed) {
		t.Fatalf("finish: %v", err)
	}
	if loading.handle.gate.state.Load()&gateFreed == 0 {
		t.Error("the loading is still open")
	}
}
