package informer

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync/atomic"

	watchcore "github.com/watchcore/watchcore/go"
)

// New makes an informer of a cache, and starts it: one goroutine reads a subscription, and calls decode once
// for each value. The slice is the cache's memory: it is valid only during the call and must not be modified,
// so decode must copy the parts that it keeps. A value that decode refuses, by an error or a panic, is not a
// deletion: the object's last good value stays, and the error is reported and counted.
//
// The informer may be made before the cache has its first listing. The informer ends with the cache, after
// the handlers have received all remaining events. If the subscription cannot be made, for example
// because a selector does not parse, New returns the reason.
func New[T any](cache *watchcore.Cache, decode func(key string, value []byte) (T, error), options Options[T]) (*Informer[T], error) {
	if cache == nil || decode == nil {
		return nil, invalid("New without a cache or a decoder. Give both")
	}
	name := cache.Name()
	if name == "" {
		name = "informer"
	}
	in, err := newInformer(name, options)
	if err != nil {
		return nil, err
	}
	sub, err := cache.Subscribe(in.ctx, watchcore.SubscribeOptions{
		Name: in.name, Range: options.Range, LabelSelector: options.LabelSelector, FieldSelector: options.FieldSelector,
		OnLag: watchcore.LagResnapshot,
	})
	if err != nil {
		in.cancel()
		return nil, err
	}
	r := &reader[T]{in: in, cache: cache, sub: sub, decode: decode}
	r.renew()
	in.start(r)
	return in, nil
}

// reader reads a cache's subscription into a store. All of its state is in this struct and not on the stack,
// because the decoder may end its goroutine: then a new goroutine continues after the value that was refused.
type reader[T any] struct {
	in     *Informer[T]
	cache  *watchcore.Cache
	sub    *watchcore.Subscription
	decode func(key string, value []byte) (T, error)

	batch  *watchcore.Batch
	at     int
	epoch  uint64              // of the next event; 0: not known yet
	inside bool                // between the marks of a resync, whose events are one revision
	owed   *watchcore.Position // the initial state is complete at this position, and not published yet

	asked bool // somebody waits for a position: publish the present one
	first bool // but wait for events before that

	sleep atomic.Pointer[sleep]
}

// sleep is a wait for events that another goroutine can interrupt, without losing an event.
type sleep struct {
	ctx  context.Context
	wake context.CancelFunc
}

func (r *reader[T]) renew() {
	ctx, wake := context.WithCancel(r.in.ctx)
	r.sleep.Store(&sleep{ctx, wake})
}

func (r *reader[T]) run() error {
	for {
		if r.batch != nil {
			r.read()
		} else if ended, err := r.next(); ended {
			_ = r.sub.Close()
			return err
		}
	}
}

// next takes the next batch. If it was woken to publish the position, it does so.
func (r *reader[T]) next() (ended bool, err error) {
	if r.asked && !r.first {
		return r.catchUp()
	}
	r.first = false
	wait := r.sleep.Load().ctx
	b, err := r.sub.Next(wait)
	switch {
	case err == nil:
		r.batch, r.at = b, 0
		return false, nil
	case r.in.ctx.Err() != nil:
		return true, r.in.stopped()
	case errors.Is(err, watchcore.ErrLagged):
		r.in.lagged.Add(1)
		r.in.report(fmt.Errorf("informer %q: %w", r.in.name, err))
		return false, nil
	case errors.Is(err, watchcore.ErrResynced):
		return false, nil
	case wait.Err() != nil:
		return r.catchUp()
	}
	return true, err
}

// catchUp takes the available events without waiting. If there are none, it publishes the position
// up to which no further event matches.
func (r *reader[T]) catchUp() (ended bool, err error) {
	r.asked = true
	if r.sleep.Load().ctx.Err() != nil {
		r.renew() // before Poll: a request that comes from now on interrupts the next wait
	}
	switch b, err := r.sub.Poll(0); {
	case b != nil:
		r.batch, r.at = b, 0
	case errors.Is(err, watchcore.ErrLagged):
		r.in.lagged.Add(1)
		r.in.report(fmt.Errorf("informer %q: %w", r.in.name, err))
	case err != nil && !errors.Is(err, watchcore.ErrResynced):
		if r.in.ctx.Err() != nil {
			err = r.in.stopped()
		}
		return true, err
	case r.in.HasSynced() && !r.inside && len(r.in.store.pending) == 0:
		r.asked = false
		r.in.store.commit(r.in.goroutine.Load(), r.sub.Position())
	default: // inside the initial state or a revision: its rest must come first
		r.first = true
	}
	return false, nil
}

// read moves a batch into the store, and releases it.
func (r *reader[T]) read() {
	for r.publish(); r.at < r.batch.Len(); r.publish() {
		e := r.batch.At(r.at)
		r.at++ // before the decoder runs, because the decoder may end this goroutine
		r.handleEvent(e)
	}
	if !r.batch.Continues() && !r.inside && r.in.HasSynced() {
		// An index's function may end this goroutine: the next goroutine runs this again.
		r.in.store.commit(r.in.goroutine.Load(), r.batch.Position())
	}
	b := r.batch
	r.batch, r.epoch = nil, b.Position().Epoch
	b.Release()
}

// publish publishes the initial state once it is complete. An index's function may end this
// goroutine: the next goroutine runs this again.
func (r *reader[T]) publish() {
	if r.owed != nil {
		r.in.store.complete(r.in.goroutine.Load(), *r.owed)
		r.owed = nil
	}
}

func (r *reader[T]) handleEvent(e watchcore.Event) {
	s := r.in.store
	at := watchcore.Position{Epoch: r.epoch, Revision: e.Revision}
	if at.Epoch == 0 {
		at.Epoch = r.batch.Position().Epoch
	}
	switch e.Type {
	case watchcore.EventAdded, watchcore.EventModified:
		r.put(e, at)
	case watchcore.EventDeleted:
		key := e.Key()
		s.remove(s.kinds.objects.Hash(key), key, at)
	case watchcore.EventBookmark:
		if e.EndsInitialState() && !r.in.HasSynced() {
			r.owed = &at
		}
	case watchcore.EventResync:
		mark := e.Resync()
		r.epoch = mark.Epoch // earlier events of this batch belong to the former history
		if r.inside = mark.Phase == watchcore.ResyncBegin; r.inside && mark.Reason != watchcore.ReasonLagged {
			r.in.resyncs.Add(1)
		}
	}
}

// put decodes a value in place and stores the object.
func (r *reader[T]) put(e watchcore.Event, at watchcore.Position) {
	s := r.in.store
	bytes := e.KeyView()
	hash := s.kinds.objects.HashBytes(bytes)
	var key string
	if old := s.find(hash, bytes); old != nil {
		key = old.Key
	} else {
		key = string(bytes)
	}
	value, err := r.decoded(key, e.ValueView(), e.Revision)
	if err != nil {
		return
	}
	s.put(hash, &Object[T]{Key: key, Value: value, Revision: e.ModRevision(), CreateRevision: e.CreateRevision(), Version: e.Version()}, at)
}

func (r *reader[T]) decoded(key string, bytes []byte, revision uint64) (value T, err error) {
	returned := false
	defer func() {
		if !returned {
			why, trace := recover(), debug.Stack()
			if why == nil {
				why, trace = "it ended its goroutine, which runtime.Goexit and a test's FailNow do", nil
			}
			err = &watchcore.Error{Code: watchcore.ErrPanic, Message: fmt.Sprintf("the decoder panicked: %v\n%s", why, trace)}
		}
		if err != nil {
			r.in.refused.Add(1)
			r.in.report(&DecodeError{Key: key, Revision: revision, Err: err})
		}
	}()
	value, err = r.decode(key, bytes)
	returned = true
	r.in.decoded.Add(1)
	return value, err
}

func (r *reader[T]) await(ctx context.Context, revision uint64) error {
	if err := r.cache.WaitUntil(ctx, revision); err != nil {
		return err
	}
	r.sleep.Load().wake()
	return nil
}

func (r *reader[T]) explain() string {
	status := r.cache.Status()
	if status.Position.Revision > 0 || status.State == watchcore.StateReady {
		return fmt.Sprintf("it reads the initial state of cache %q, which has %d objects", status.Name, status.Objects)
	}
	if status.SourceError != nil {
		return fmt.Sprintf("cache %q is %v; its source is not followed: %v", status.Name, status.State, status.SourceError)
	}
	return fmt.Sprintf("cache %q is %v: it has no listing yet", status.Name, status.State)
}

// DecodeError is the error that Options.OnError receives when the decoder refused a value.
type DecodeError struct {
	Key      string
	Revision uint64 // of the change with the value
	Err      error  // the decoder's error; for a panic an error that is watchcore.ErrPanic
}

// Error names the key and the revision, with the decoder's error.
func (e *DecodeError) Error() string {
	return fmt.Sprintf("the value of %q at revision %d was refused: %v. The last good one stays", e.Key, e.Revision, e.Err)
}

// Unwrap returns the decoder's error.
func (e *DecodeError) Unwrap() error { return e.Err }
