package apiserver

import (
	"bytes"
	"context"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"

	watchcore "github.com/watchcore/watchcore/go"
)

// nameless selects the objects that the cache cannot read, such as encrypted ones: it finds no name in them.
const nameless = "metadata.name="

// readable knows whether the cache can read all objects of a resource, so that it may select them. Once it cannot, it stays so: the
// window may have the object after it was deleted or decrypted.
type readable struct {
	cache *watchcore.Cache
	keys  watchcore.Range
	// encrypts: an encryption configuration has the resource. It may be loaded again at any time, and begin to encrypt.
	encrypts bool
	// ended is the context of watches and lists that the cache selects for: it ends when there is an object that the cache cannot read.
	ended context.Context
	end   context.CancelFunc

	mu       sync.Mutex
	looked   bool
	failures uint64             // of the cache with objects of all resources, when it was last looked
	at       watchcore.Position // up to which there was none
}

// newReadable is ended with the context open.
func newReadable(open context.Context, o *options, keys watchcore.Range) *readable {
	r := &readable{cache: o.cache, keys: keys, encrypts: o.transformer != identity.NewEncryptCheckTransformer()}
	r.ended, r.end = context.WithCancel(open)
	var encoded bytes.Buffer
	if err := o.codec.Encode(o.newFunc(), &encoded); err != nil || !isForm(encoded.Bytes()) {
		r.end()
	}
	return r
}

// isForm says whether an object is encoded in a form that the cache reads.
func isForm(text []byte) bool {
	return bytes.HasPrefix(text, []byte("{")) || bytes.HasPrefix(text, []byte("k8s\x00"))
}

// all says whether the cache could read all objects until now: in the present state, and in what it has given out before this call. The
// cache counts its failures for all resources together. Where there are new ones, this looks whether they are of this resource.
func (r *readable) all(ctx context.Context) bool {
	if r.ended.Err() != nil {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	failures, now := r.cache.Stats().ExtractFailures, r.cache.Position()
	if r.looked && failures == r.failures {
		return true
	}
	found, err := r.look(ctx)
	if err != nil {
		return false
	}
	if found {
		r.end()
		return false
	}
	r.looked, r.failures, r.at = true, failures, now
	return true
}

// look finds objects in the present state, and in the changes since it was last looked.
func (r *readable) look(ctx context.Context) (bool, error) {
	count, _, err := r.cache.Count(ctx, r.keys, watchcore.ReadOptions{FieldSelector: nameless})
	if err != nil || count > 0 {
		return count > 0, err
	}
	sub, err := r.follow(ctx)
	if err != nil {
		return false, err
	}
	defer sub.Close()
	for now := r.cache.Position(); ; {
		batch, err := sub.Poll(1)
		if err != nil || batch.Len() > 0 {
			batch.Release()
			return err == nil, err
		}
		if sub.Position().Revision >= now.Revision {
			return false, nil
		}
		if err := ctx.Err(); err != nil {
			return false, err
		}
	}
}

// follow subscribes to the objects behind the position of the last look, or all of the window where that is of another history or has left
// it.
func (r *readable) follow(ctx context.Context) (*watchcore.Subscription, error) {
	options := watchcore.SubscribeOptions{Start: watchcore.StartAfterPosition(r.at), Range: r.keys, FieldSelector: nameless, StopOnResync: true}
	if !r.looked || r.at.Epoch != r.cache.Position().Epoch || r.at.Revision+1 < r.cache.Oldest() {
		options.Start = watchcore.StartAfter(r.cache.Oldest() - 1)
	}
	return r.cache.Subscribe(ctx, options)
}

// run looks before an object that the cache cannot read is deleted, and so no longer found. Where there is an encryption configuration it
// waits for the first such object: a watch that would select it gets nothing of it.
func (r *readable) run(ctx context.Context) {
	if r.cache.WaitReady(ctx) != nil {
		return
	}
	for r.all(ctx); r.encrypts && r.ended.Err() == nil; r.all(ctx) {
		r.mu.Lock()
		sub, err := r.follow(ctx)
		r.mu.Unlock()
		if err == nil {
			var batch *watchcore.Batch
			if batch, err = sub.Next(r.ended); err == nil {
				r.end()
			}
			batch.Release()
			_ = sub.Close() // never fails
		}
		if err != nil && r.ended.Err() == nil { // the history was replaced, or the window moved on
			pause(ctx, meterPeriod)
		}
	}
}

// errUnreadable ends a watch in the middle of a state, of which the cache cannot select the rest.
func errUnreadable() error {
	return apierrors.NewResourceExpired("objects of the resource are encrypted since, or stored in a form that the cache cannot read")
}
