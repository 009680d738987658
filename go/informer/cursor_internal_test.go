package informer

import (
	"sync/atomic"
	"testing"

	watchcore "github.com/watchcore/watchcore/go"
)

// Who reads a handler's statistics while it turns to a list never finds it at the newest place with
// nothing left: a caller that waits for that would look at a state that was not given yet.
func TestFaultListIsThereBeforeItsPlace(t *testing.T) {
	s := newStore[string](8, nil, func() int64 { return 0 }, func(error) {})
	empty := s.current.Load()
	s.complete(0, watchcore.Position{Revision: 1})
	s.put(s.kinds.objects.Hash("/a"), &Object[string]{Key: "/a", Revision: 2}, watchcore.Position{Revision: 2})
	s.commit(0, watchcore.Position{Revision: 2})

	var shown atomic.Pointer[cursor[string]]
	failures := make(chan int)
	go func() {
		last, failed := (*cursor[string])(nil), 0
		for {
			c := shown.Load()
			if c == last {
				continue
			}
			if last = c; c.store == nil {
				failures <- failed
				return
			}
			for c.next.Load() == 0 {
			}
			if c.remaining.Load() == 0 {
				failed++
			}
		}
	}()
	for range 200_000 {
		c := &cursor[string]{store: s, known: empty}
		shown.Store(c)
		c.compare()
	}
	shown.Store(&cursor[string]{})
	if failed := <-failures; failed > 0 {
		t.Fatalf("%d times it had nothing left of a list that it was about to give", failed)
	}
}
