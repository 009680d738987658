//go:build debug

package watchcore_test

import (
	"testing"

	"watchcore"
)

func TestDebugPoisonsReleasedBatches(t *testing.T) {
	cache, writer := embedded(t)
	sub := subscribe(t, cache, watchcore.FromNow())
	check(t, writer.Apply(1, watchcore.Put("/a", "value")))
	batch := oneBatch(t, sub)
	kept, event := batch.At(0).Value(), batch.At(0)
	want(t, "value", string(kept), "value")
	batch.Release()
	want(t, "bytes kept too long", string(kept), "\xdb\xdb\xdb\xdb\xdb")
	want(t, "key of an event kept too long", event.KeyString(), "\xdb\xdb")
	for name, use := range map[string]func(){
		"Len":    func() { batch.Len() },
		"At":     func() { batch.At(0) },
		"Events": func() { batch.Events()(func(watchcore.Event) bool { return true }) },
		"Clone":  func() { batch.Clone() },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s of a released batch did not panic", name)
				}
			}()
			use()
		}()
	}
	batch.Release() // still allowed
	want(t, "batches held", cache.Stats().UnreleasedBatches, 0)
}

func TestDebugPoisonsWhatADecoderKeeps(t *testing.T) {
	cache, writer := embedded(t)
	sub := subscribe(t, cache, watchcore.FromNow())
	check(t, writer.Apply(1, watchcore.Put("/a", "value")))
	batch := oneBatch(t, sub)
	defer batch.Release()
	kept, err := watchcore.NewDecoder(func(_, value []byte) ([]byte, error) { return value, nil }, 1).Value(batch.At(0))
	check(t, err)
	want(t, "bytes kept too long", string(kept), "\xdb\xdb\xdb\xdb\xdb")
	want(t, "the event's own", string(batch.At(0).Value()), "value")
}
