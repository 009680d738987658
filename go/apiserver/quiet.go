package apiserver

import (
	"context"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	watchcore "github.com/watchcore/watchcore/go"
)

// quietPeriod is how often the revision is noted up to which the deletions of a resource are known: far below the age of the window.
const quietPeriod = 10 * time.Second

// following is what the name of a subscription ends in that follows deletions.
const following = ", deletions"

// deletions says what is known of the deletions of a resource, also of those that have left the window. The watch cache of
// k8s.io/apiserver has a ring for each resource: a kind that changes seldom has its last events for hours. Here the changes of all
// kinds push each other out, so a client of such a kind would have to list again each time its watch ends.
type deletions struct {
	begun  atomic.Uint64 // those up to here are not known
	newest atomic.Uint64
	seen   atomic.Uint64 // those up to here are known; written last, read first
}

// followDeletions notes the deletions until the context ends.
func (s *store) followDeletions(ctx context.Context) {
	for s.cache.WaitReady(ctx) == nil {
		if err := s.followOnce(ctx); err != nil && ctx.Err() == nil {
			klog.V(2).InfoS("watchcore: the deletions are followed anew", "resource", s.resource, "err", err)
			pause(ctx, meterPeriod) // not again and again, whatever the reason
		}
	}
}

func (s *store) followOnce(ctx context.Context) error {
	all, err := s.prepare(s.resourcePrefix, true)
	if err != nil {
		return err
	}
	sub, err := s.cache.Subscribe(ctx, watchcore.SubscribeOptions{
		Name: s.resource.String() + following, Start: watchcore.StartNow(), Range: watchcore.RangePrefix(all),
		Types: []watchcore.EventType{watchcore.EventDeleted}, Bookmarks: true, BookmarkInterval: s.quiet, StopOnResync: true,
	})
	if err != nil {
		return err
	}
	defer sub.Close()
	s.deletions.begun.Store(sub.Position().Revision)
	s.deletions.seen.Store(sub.Position().Revision)
	for batch, err := range sub.Batches(ctx) {
		if err != nil {
			return err
		}
		for e := range batch.Events() {
			if e.Type != watchcore.EventBookmark {
				s.deletions.newest.Store(e.Revision)
			}
		}
		s.deletions.seen.Store(sub.Position().Revision)
	}
	return ctx.Err()
}

// edge: a 64th of the window may leave it between a look at the state there and the begin of a watch.
const edge = 64

// resumable returns a revision behind which a watch may begin in the place of one that has left the window, because nothing of the keys
// has changed in between; else the revision itself.
func (s *store) resumable(ctx context.Context, keys watchcore.Range, revision uint64) uint64 {
	seen, oldest := s.deletions.seen.Load(), s.cache.Oldest()
	if revision+1 >= oldest || oldest > seen || revision < s.deletions.begun.Load() || revision < s.deletions.newest.Load() {
		return revision
	}
	// What has changed since may have changed before, too: a state tells what had not changed until then. The newer one stays in the
	// window for long, and the older one may be older than the first change.
	for _, at := range []uint64{seen, oldest + (seen-oldest)/edge} {
		if s.unchanged(ctx, keys, revision, at) {
			return at
		}
	}
	return revision
}

// unchanged says whether no key has a version of after the revision in a later state.
func (s *store) unchanged(ctx context.Context, keys watchcore.Range, revision, at uint64) bool {
	page, err := s.cache.List(ctx, keys, watchcore.ListOptions{Read: watchcore.ReadExact(at)})
	if err != nil {
		return false
	}
	defer page.Release()
	for kv := range page.All() {
		if kv.ModRevision() > revision {
			return false
		}
	}
	return true
}
