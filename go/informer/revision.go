package informer

import (
	"context"
	"fmt"
	"runtime"

	"watchcore"
)

// Revision is several informers of one cache at one revision: SameRevision makes it, and At reads it.
type Revision struct {
	position watchcore.Position
	states   map[Participant]any
}

// Participant is an *Informer of a cache.
type Participant interface {
	// stateAt is the state at a position, which the informer has reached; false where it is not kept any more.
	stateAt(p watchcore.Position) (any, bool)
	cacheOf() *watchcore.Cache
	WaitSynced(ctx context.Context) error
	waitFor(ctx context.Context, p watchcore.Position) error
}

// SameRevision waits until all informers have reached the cache's present revision, and answers
// what each of them had at it: what one object says about another holds. They must
// be of one cache. It delays none of them.
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
		// One is so far ahead that its window does not go back to the revision, or the
		// history was replaced: a newer revision will do.
		runtime.Gosched() // the goroutines that move them on
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("informers at one revision: they move on faster than they can be read: %w", err)
		}
	}
}

// Position is the cache's position at which all are read.
func (v *Revision) Position() watchcore.Position { return v.position }

// At reads an informer at the revision. ErrInvalidArgument where it is none of those that
// SameRevision was given.
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
