package watchcore

// #include "abi.h"
import "C"

import (
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
)

// leaks counts batches and pages of one cache that are unreachable without having been released. A
// view of each was taken, so their memory may still be in use.
type leaks struct {
	batches, pages atomic.Int64
	reported       sync.Map // by leak: one report per stack, and without the build tag debug one per kind
}

type leak struct {
	kind  uint32
	taken origin
}

// leaked is called by the garbage collector, once for each batch or page.
func (s *coreState) leaked(kind uint32, taken origin) {
	what, views, count, field := "batch", "KeyView, ValueView, PrevValueView", &s.leaks.batches, "LeakedBatches"
	if kind != C.WC_BATCH {
		what, views, count, field = "page", "KeyView, ValueView", &s.leaks.pages, "LeakedPages"
	}
	count.Add(1)
	if _, before := s.leaks.reported.LoadOrStore(leak{kind, taken}, true); before {
		return
	}
	message := fmt.Sprintf("cache %q: a %s of which a view was taken (%s) was not released, and nobody can reach it any more. "+
		"Its memory, and the part of the log that it lies in, is held for ever, and so is that of each other one: Stats.%s counts them. "+
		"Release each %s, or take copies, as Key and Value are. %v", s.cache, what, views, field, what, taken)
	go theProcess.report(slog.LevelWarn, message) // the collector must not wait for the program's log handler
}
