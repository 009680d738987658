//go:build cgo && !debug

package watchcore

import "testing"

// A buffer that has had all its generations is not reused, because an event of one generation would pass for one of another.
func TestTurnsEnd(t *testing.T) {
	cache, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer cache.Close()
	writer, err := cache.Writer()
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	sub, err := cache.Subscribe(t.Context(), SubscribeOptions{Start: StartNow()})
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	var places []*buffer
	for revision := uint64(1); revision <= 4; revision++ {
		if err := writer.Apply(revision, Put("/a", "value")); err != nil {
			t.Fatal(err)
		}
		batch, err := sub.Poll(0)
		if err != nil || batch.Len() != 1 || batch.At(0).Key() != "/a" {
			t.Fatalf("a poll gave %v, %v", batch, err)
		}
		batch.Release()
		places = append(places, batch.buffer)
		if revision == 2 {
			state := &batch.buffer.borrow.gate.state
			state.Store(state.Load() | generationBits)
		}
	}
	if places[0] != places[1] || places[2] == places[1] || places[3] != places[2] {
		t.Fatalf("the places of four batches: %p", places)
	}
}
