package informer

import (
	"context"
	"fmt"
	"runtime"

	watchcore "github.com/watchcore/watchcore/go"
)

// Revision holds the states of several informers of one cache at one revision. SameRevision makes
// it, and Informer.At reads it.
type Revision struct {
	position watchcore.Position
	states   map[Participant]any
}

// Participant is implemented by an *Informer of a cache.
type Participant interface {
	// stateAt returns the state at a position that the informer has reached, and false if the state
	// is not kept any more.
	stateAt(p watchcore.Position) (any, bool)
	cacheOf() *watchcore.Cache
	WaitSynced(ctx context.Context) error
	waitFor(ctx context.Context, p watchcore.Position) error
}

// SameRevision waits until all informers have reached the cache's present revision, and returns
// their states at that revision, so that objects of different informers are consistent. The
// informers must be of one cache. SameRevision delays none of them.
func SameRevision(ctx context.Context, informers ...Participant) (*Revision, error) {
	var cache *watchcore.Cache
	for _, in := range informers {
		of := in.cacheOf()
		if of == nil || cache != nil && of != cache {
			return nil, invalid("SameRevision of informers that are not of one cache: their revisions cannot be compared. Give informers that New has made of the same *Cache")
		}
		cache = of
	}
	if cache == nil {
		return nil, invalid("SameRevision of no informer")
	}
	for _, in := range informers {
		if err := in.WaitSynced(ctx); err != nil {
			return nil, err
		}
	}
	for {
		v, whole := &Revision{cache.Position(), map[Participant]any{}}, true
		for _, in := range informers {
			if err := in.waitFor(ctx, v.position); err != nil {
				return nil, err
			}
			state, there := in.stateAt(v.position)
			if whole = there; !there {
				break
			}
			v.states[in] = state
		}
		if whole {
			return v, nil
		}
		// One informer is so far ahead that its window does not reach back to the revision, or the
		// history was replaced: try again at a newer revision.
		runtime.Gosched() // let the informers' goroutines run
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("informers at one revision: they move on faster than they can be read: %w", err)
		}
	}
}

// Position returns the cache's position of the states.
func (v *Revision) Position() watchcore.Position { return v.position }

// At returns a lister of the informer at the revision. The error is ErrInvalidArgument if the
// informer was not given to SameRevision.
func (in *Informer[T]) At(v *Revision) (*Lister[T], error) {
	now, there := v.states[in].(*state[T])
	if !there {
		return nil, invalid("informer %q is none of those of this revision. Give it to SameRevision", in.name)
	}
	return &Lister[T]{in, now}, nil
}

func (in *Informer[T]) stateAt(p watchcore.Position) (any, bool) {
	now, there := in.store.at(p)
	if !there {
		return nil, false
	}
	own := *now
	own.position = p
	return &own, true
}

func (in *Informer[T]) cacheOf() *watchcore.Cache {
	if r, ok := in.source.(*reader[T]); ok {
		return r.cache
	}
	return nil
}
