package apiserver

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher/consistency"
	cachermetrics "k8s.io/apiserver/pkg/storage/cacher/metrics"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/metrics"

	watchcore "github.com/watchcore/watchcore/go"
)

// freshTimeout is how long a read waits for a revision, as in the cacher of k8s.io/apiserver.
const freshTimeout = 3 * time.Second

// retrySeconds is what a client is told to wait where a revision has not come in that time, or the cache is not there yet.
const retrySeconds = 1

// options are what a store is made of.
type options struct {
	cache                  *watchcore.Cache
	writes                 storage.Interface // over etcd; also answers what the cache cannot
	prefix, resourcePrefix string            // of etcd's keys, and of this resource behind that
	resource               schema.GroupResource
	codec                  runtime.Codec
	transformer            value.Transformer
	newFunc, newListFunc   func() runtime.Object
	attributes             storage.AttrFunc
	decoded, decodedBytes  int
	slow, quiet            time.Duration // slowLook and quietPeriod, but in tests
}

// store is the storage of one resource: reads and watches come from the cache, writes go to etcd.
type store struct {
	options
	versioner storage.Versioner
	items     *watchcore.Decoder[*item]
	reads     *readable              // whether the cache can select
	handed    metrics.ObserverMetric // how long events wait until a watch takes them

	// suspect is the revision up to which the cache was found to differ from etcd: the states until then are read from etcd.
	suspect      atomic.Uint64
	inconsistent atomic.Bool

	deletions deletions

	seeding sync.Mutex // held while a slow watcher's keys are read

	open context.Context // ends with stop, and the watches with it
	stop func()
}

var _ storage.Interface = (*store)(nil)

func newStore(o options) (*store, error) {
	if o.resourcePrefix == "" || o.resourcePrefix == "/" || o.resourcePrefix[0] != '/' {
		return nil, fmt.Errorf("watchcore: the resource prefix of %v is %q: it has to begin with / and to name a directory", o.resource, o.resourcePrefix)
	}
	if o.transformer == nil {
		o.transformer = identity.NewEncryptCheckTransformer()
	}
	s := &store{options: o}
	s.versioner = o.writes.Versioner()
	s.items = watchcore.NewDecoder(s.decode, o.decoded).LimitBytes(o.decodedBytes)
	s.handed = cachermetrics.DispatchStageDuration.WithLabelValues(o.resource.Group, o.resource.Resource, "cache_to_watcher")
	open, end := context.WithCancel(context.Background())
	s.open = open
	all, err := s.prepare(o.resourcePrefix, true)
	if err != nil {
		end()
		return nil, err
	}
	s.reads = newReadable(open, &s.options, watchcore.RangePrefix(all))
	var running sync.WaitGroup
	s.stop = sync.OnceFunc(func() {
		end()
		running.Wait()
	})
	running.Go(func() { s.reads.run(open) })
	running.Go(func() { s.followDeletions(open) })
	if utilfeature.DefaultFeatureGate.Enabled(features.DetectCacheInconsistency) || consistency.PanicOnCacheInconsistency {
		checker := consistency.NewChecker(o.resourcePrefix, o.resource, o.newListFunc, cached{s}, o.writes)
		running.Go(func() { checker.Run(open.Done()) })
	}
	return s, nil
}

// prepare returns the key as etcd has it.
func (s *store) prepare(key string, recursive bool) (string, error) {
	key, err := storage.PrepareKey(s.resourcePrefix, key, recursive)
	if err != nil {
		return "", err
	}
	return s.prefix + strings.TrimPrefix(key, "/"), nil
}

// Versioner returns that of the storage below.
func (s *store) Versioner() storage.Versioner { return s.versioner }

// Create writes to etcd.
func (s *store) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	return s.writes.Create(ctx, key, obj, out, ttl)
}

// Delete deletes in etcd, and begins with the object that the cache has.
func (s *store) Delete(ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions,
	validate storage.ValidateObjectFunc, _ runtime.Object, opts storage.DeleteOptions) error {
	return s.writes.Delete(ctx, key, out, preconditions, validate, s.suggestion(ctx, key), opts)
}

// GuaranteedUpdate updates in etcd, and begins with the object that the cache has.
func (s *store) GuaranteedUpdate(ctx context.Context, key string, destination runtime.Object, ignoreNotFound bool,
	preconditions *storage.Preconditions, tryUpdate storage.UpdateFunc, _ runtime.Object) error {
	return s.writes.GuaranteedUpdate(ctx, key, destination, ignoreNotFound, preconditions, tryUpdate, s.suggestion(ctx, key))
}

// suggestion returns a copy of the cache's object; nil if there is none, or none that can be decoded.
func (s *store) suggestion(ctx context.Context, key string) runtime.Object {
	prepared, err := s.prepare(key, false)
	if err != nil {
		return nil // the storage below says so
	}
	object, _, err := s.object(ctx, prepared, watchcore.ReadAny())
	if err != nil || object == nil {
		return nil
	}
	return object.GetObject()
}

// object reads one object; nil without an error if there is none.
func (s *store) object(ctx context.Context, key string, read watchcore.Read) (*object, uint64, error) {
	kv, at, err := s.cache.Get(ctx, key, watchcore.ReadOptions{Read: read, WaitTimeout: freshTimeout})
	if err != nil || kv == nil {
		return nil, at, err
	}
	i, err := s.items.KeyValue(kv)
	if err != nil {
		return nil, at, err
	}
	object, err := i.at(kv.ModRevision, s.versioner)
	return object, at, err
}

// Get reads from etcd where no resourceVersion is given, else from the cache, not older than that.
func (s *store) Get(ctx context.Context, key string, opts storage.GetOptions, objPtr runtime.Object) error {
	if opts.ResourceVersion == "" || !s.cache.Ready() {
		return s.writes.Get(ctx, key, opts, objPtr)
	}
	revision, err := s.versioner.ParseResourceVersion(opts.ResourceVersion)
	if err != nil {
		return err
	}
	prepared, err := s.prepare(key, false)
	if err != nil {
		return err
	}
	into, err := conversion.EnforcePtr(objPtr)
	if err != nil {
		return err
	}
	waited := s.waits(ctx, revision)
	object, at, err := s.object(ctx, prepared, notOlderThan(revision))
	waited()
	switch {
	case isCorrupt(err):
		return s.writes.Get(ctx, key, opts, objPtr)
	case err != nil:
		return s.statusError(err)
	case object != nil:
		into.Set(reflect.ValueOf(object.shared).Elem())
		return nil
	}
	into.SetZero()
	if opts.IgnoreNotFound {
		return nil
	}
	return storage.NewKeyNotFoundError(key, int64(at))
}

// Stats counts the objects as etcd has them now, and with the feature SizeBasedListCostEstimate says how long they are on average. It
// goes through all keys of the resource, and decodes nothing.
func (s *store) Stats(ctx context.Context) (stats storage.Stats, err error) {
	if !s.cache.Ready() {
		return s.writes.Stats(ctx)
	}
	revision, err := s.writes.GetCurrentResourceVersion(ctx)
	if err != nil {
		return stats, err
	}
	all, err := s.prepare(s.resourcePrefix, true)
	if err != nil {
		return stats, err
	}
	page, err := s.cache.List(ctx, watchcore.RangePrefix(all), watchcore.ListOptions{Read: notOlderThan(revision), WaitTimeout: freshTimeout})
	if err != nil {
		return stats, s.statusError(err)
	}
	defer page.Release()
	stats.ObjectCount = int64(page.Len())
	if page.Len() == 0 || !utilfeature.DefaultFeatureGate.Enabled(features.SizeBasedListCostEstimate) {
		return stats, nil
	}
	var bytes int64
	for kv := range page.All() {
		bytes += int64(len(kv.ValueView()))
	}
	stats.EstimatedAverageObjectSizeBytes = bytes / stats.ObjectCount
	return stats, nil
}

// ReadinessCheck says whether the cache has its first listing.
func (s *store) ReadinessCheck() error {
	if !s.cache.Ready() {
		return storage.ErrStorageNotReady
	}
	return nil
}

// RequestWatchProgress is for watches of the storage below.
func (s *store) RequestWatchProgress(ctx context.Context) error {
	return s.writes.RequestWatchProgress(ctx)
}

// GetCurrentResourceVersion asks etcd.
func (s *store) GetCurrentResourceVersion(ctx context.Context) (uint64, error) {
	return s.writes.GetCurrentResourceVersion(ctx)
}

// EnableResourceSizeEstimation is that of the storage below; Stats does not need it.
func (s *store) EnableResourceSizeEstimation(keys storage.KeysFunc) error {
	return s.writes.EnableResourceSizeEstimation(keys)
}

// CompactRevision is that of the storage below.
func (s *store) CompactRevision() int64 { return s.writes.CompactRevision() }

// waits begins to measure a read that waits for a revision, and returns what ends that.
func (s *store) waits(ctx context.Context, revision uint64) func() {
	if revision <= s.cache.Revision() {
		return func() {}
	}
	since := time.Now()
	return func() {
		cachermetrics.WatchCacheReadWait.WithContext(ctx).WithLabelValues(s.resource.Group, s.resource.Resource).Observe(time.Since(since).Seconds())
	}
}

// notOlderThan is the read of a resourceVersion; 0 is whatever the cache has.
func notOlderThan(revision uint64) watchcore.Read {
	if revision == 0 {
		return watchcore.ReadAny()
	}
	return watchcore.ReadAtLeast(revision)
}

// statusError makes the error that the cacher of k8s.io/apiserver answers for the same reason.
func (s *store) statusError(err error) error {
	var e *watchcore.Error
	if !errors.As(err, &e) {
		return err
	}
	switch e.Code {
	case watchcore.ErrCompacted, watchcore.ErrLagged, watchcore.ErrResynced:
		return apierrors.NewResourceExpired(fmt.Sprintf("too old resource version: %d (%d): %v", e.Asked, e.Oldest, err))
	case watchcore.ErrFutureRevision:
		return storage.NewTooLargeResourceVersionError(e.Asked, e.Current, retrySeconds)
	case watchcore.ErrNotReady, watchcore.ErrClosed, watchcore.ErrUnavailable:
		return apierrors.NewTooManyRequests("storage is (re)initializing: "+err.Error(), retrySeconds)
	}
	return storage.NewInternalError(err)
}
