package apiserver

import (
	"context"
	"fmt"
	"reflect"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher/delegator"
	cachermetrics "k8s.io/apiserver/pkg/storage/cacher/metrics"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	watchcore "github.com/watchcore/watchcore/go"
)

// GetList reads from the cache or from etcd, by the rules of k8s.io/apiserver: delegator.ShouldDelegateList.
func (s *store) GetList(ctx context.Context, key string, opts storage.ListOptions, listObj runtime.Object) error {
	if _, _, err := storage.ValidateListOptions(s.resourcePrefix, s.versioner, opts); err != nil {
		return err
	}
	result, err := delegator.ShouldDelegateList(opts, s)
	if err != nil {
		return err
	}
	if result.ShouldDelegate || !s.cache.Ready() && servesPages(opts) {
		return s.writes.GetList(ctx, key, opts, listObj)
	}
	err = s.getList(ctx, key, opts, listObj)
	if apierrors.IsResourceExpired(err) && s.snapshots() || isCorrupt(err) {
		return s.writes.GetList(ctx, key, opts, listObj)
	}
	if !result.ConsistentRead {
		return err
	}
	fallback := "false"
	switch {
	case !storage.IsTooLargeResourceVersion(err):
	case utilfeature.DefaultFeatureGate.Enabled(features.ConsistentListFromCacheSkipTimeoutFallback):
		fallback, err = "skipped", apierrors.NewTooManyRequests(err.Error(), retrySeconds)
	default:
		fallback, err = "true", s.writes.GetList(ctx, key, opts, listObj)
	}
	cachermetrics.ConsistentReadTotal.WithLabelValues(s.resource.Group, s.resource.Resource, strconv.FormatBool(err == nil), fallback).Inc()
	return err
}

// servesPages says whether etcd may answer a list while the cache has no listing: only one that is cheap there.
func servesPages(opts storage.ListOptions) bool {
	return opts.Predicate.Empty() && opts.Predicate.Limit > 0
}

// cached reads lists from the cache alone: what the checker of k8s.io/apiserver compares with etcd.
type cached struct{ *store }

func (c cached) GetList(ctx context.Context, key string, opts storage.ListOptions, listObj runtime.Object) error {
	return c.getList(ctx, key, opts, listObj)
}

func (c cached) Ready() bool { return c.cache.Ready() }

// MarkConsistent says whether the cache has what etcd has. While it has not, and for the states of that time, exact reads go to etcd.
func (c cached) MarkConsistent(consistent bool) {
	c.inconsistent.Store(!consistent)
	c.suspect.Store(c.cache.Revision())
}

// snapshots says whether exact reads may come from the cache.
func (s *store) snapshots() bool {
	return utilfeature.DefaultFeatureGate.Enabled(features.ListFromCacheSnapshot)
}

// ShouldDelegateExactRV implements delegator.Helper.
func (s *store) ShouldDelegateExactRV(resourceVersion string, recursive bool) (delegator.Result, error) {
	if !recursive || !s.snapshots() {
		return delegator.Result{ShouldDelegate: true}, nil
	}
	revision, err := s.versioner.ParseResourceVersion(resourceVersion)
	if err != nil {
		return delegator.Result{}, err
	}
	return s.exact(revision), nil
}

// ShouldDelegateContinue implements delegator.Helper.
func (s *store) ShouldDelegateContinue(token string, recursive bool) (delegator.Result, error) {
	if !recursive || !s.snapshots() {
		return delegator.Result{ShouldDelegate: true}, nil
	}
	_, revision, err := storage.DecodeContinue(token, s.resourcePrefix)
	if err != nil {
		return delegator.Result{}, err
	}
	if revision > 0 {
		return s.exact(uint64(revision)), nil
	}
	return s.ShouldDelegateConsistentRead()
}

func (s *store) exact(revision uint64) delegator.Result {
	if revision > s.cache.Revision() { // not there yet
		return delegator.Result{ShouldDelegate: !delegator.ConsistentReadSupported()}
	}
	trusted := !s.inconsistent.Load() && revision > s.suspect.Load()
	return delegator.Result{ShouldDelegate: !trusted || revision+1 < s.cache.Oldest()}
}

// ShouldDelegateConsistentRead implements delegator.Helper.
func (s *store) ShouldDelegateConsistentRead() (delegator.Result, error) {
	return delegator.Result{ConsistentRead: true, ShouldDelegate: !delegator.ConsistentReadSupported()}, nil
}

// listing is what a list reads.
type listing struct {
	prepared string // the key as etcd has it
	keys     watchcore.Range
	read     watchcore.Read
	revision uint64 // that the read waits for
	limit    int64  // 0: all
}

// listing says which state is read, and from which key on: as storage.ListOptions has it.
func (s *store) listing(ctx context.Context, key string, opts storage.ListOptions) (l listing, err error) {
	prepared, err := s.prepare(key, opts.Recursive)
	if err != nil {
		return l, err
	}
	l.prepared = prepared
	revision, err := s.versioner.ParseResourceVersion(opts.ResourceVersion)
	if err != nil {
		return l, err
	}
	l.keys = keysOf(prepared, opts.Recursive)
	if opts.ResourceVersion != "0" {
		l.limit = opts.Predicate.Limit
	}
	exactly := opts.ResourceVersionMatch == metav1.ResourceVersionMatchExact
	if opts.ResourceVersionMatch == "" {
		switch {
		case opts.Predicate.Continue != "":
			from, at, err := storage.DecodeContinue(opts.Predicate.Continue, prepared)
			if err != nil {
				return l, apierrors.NewBadRequest(fmt.Sprintf("invalid continue token: %v", err))
			}
			l.keys = watchcore.RangeBetween(from, prefixEnd(prepared))
			if revision, exactly = uint64(max(at, 0)), at > 0; !exactly {
				if revision, err = s.writes.GetCurrentResourceVersion(ctx); err != nil {
					return l, err
				}
			}
		case opts.Predicate.Limit > 0 && revision > 0:
			exactly = true
		case opts.ResourceVersion == "":
			if revision, err = s.writes.GetCurrentResourceVersion(ctx); err != nil {
				return l, err
			}
		}
	}
	l.read, l.revision = notOlderThan(revision), revision
	if exactly {
		l.read = watchcore.ReadExact(revision)
	}
	return l, nil
}

// prefixEnd is the first key behind all with the prefix, which ends in /.
func prefixEnd(prefix string) string { return prefix[:len(prefix)-1] + "0" }

// getList reads from the cache.
func (s *store) getList(ctx context.Context, key string, opts storage.ListOptions, listObj runtime.Object) error {
	if !s.cache.Ready() {
		return apierrors.NewTooManyRequests("storage is (re)initializing", retrySeconds)
	}
	itemsPtr, err := meta.GetItemsPtr(listObj)
	if err != nil {
		return err
	}
	items, err := conversion.EnforcePtr(itemsPtr)
	if err != nil {
		return err
	}
	if items.Kind() != reflect.Slice {
		return fmt.Errorf("need a pointer to slice, got %v", items.Kind())
	}
	l, err := s.listing(ctx, key, opts)
	if err != nil {
		return err
	}
	waited := s.waits(ctx, l.revision)
	parts := s.split(ctx, &opts.Predicate)
	chosen, err := s.choose(ctx, parts, l, waited)
	if err == nil && parts.byCache() && !s.reads.all(ctx) { // what the cache could not read is missing
		chosen, err = s.choose(ctx, selected{rest: opts.Predicate}, l, func() {})
	}
	if err != nil {
		return s.statusError(err)
	}
	items.Set(reflect.MakeSlice(items.Type(), len(chosen.objects), len(chosen.objects)))
	for i, o := range chosen.objects {
		items.Index(i).Set(reflect.ValueOf(o.shared).Elem())
	}
	token, remaining, err := storage.PrepareContinueToken(chosen.last, l.prepared, int64(chosen.revision), chosen.visited, chosen.more, opts)
	if err != nil {
		return err
	}
	if err := s.versioner.UpdateList(listObj, chosen.revision, token, remaining); err != nil {
		return err
	}
	if s.sharded(&opts.Predicate) {
		opts.Predicate.SetShardInfoOnList(listObj)
	}
	cachermetrics.RecordListCacheMetrics(s.resource, "", chosen.read, len(chosen.objects))
	return nil
}

// chosen are the objects of a list.
type chosen struct {
	objects  []*object
	revision uint64
	last     string // the key of the last one
	visited  int64  // how many there are behind the beginning, selected or not
	read     int    // how many objects the cache gave
	more     bool   // there are keys behind the last one
}

// choose takes the selected objects page by page, until there are as many as the limit says.
func (s *store) choose(ctx context.Context, parts selected, l listing, waited func()) (c chosen, err error) {
	ask := watchcore.ListOptions{
		Read: l.read, WaitTimeout: freshTimeout, Limit: int(l.limit), LabelSelector: parts.labels, FieldSelector: parts.fields,
	}
	for {
		page, err := s.cache.List(ctx, l.keys, ask)
		if c.revision == 0 {
			waited()
		}
		if err != nil {
			return c, err
		}
		full, err := s.take(page, &parts.rest, l.limit, &c)
		ask.Continue, ask.Read = page.Continue(), watchcore.ReadAny()
		more := page.More()
		page.Release()
		if err != nil || full || !more {
			return c, err
		}
	}
}

// take takes the selected objects of a page, and says whether there are as many as the limit says.
func (s *store) take(page *watchcore.Page, rest *storage.SelectionPredicate, limit int64, c *chosen) (bool, error) {
	if c.revision == 0 {
		c.revision, c.visited = page.Revision(), int64(page.Len())+int64(page.Remaining())
	}
	for at := range page.Len() {
		kv := page.At(at)
		c.read++
		i, err := s.items.Item(kv)
		if err != nil {
			return false, err
		}
		if selected, err := s.matches(rest, i); err != nil || !selected {
			if err != nil {
				return false, err
			}
			continue
		}
		o, err := i.at(kv.ModRevision(), s.versioner)
		if err != nil {
			return false, err
		}
		c.objects, c.last = append(c.objects, o), kv.Key()
		if limit > 0 && int64(len(c.objects)) == limit {
			c.more = at+1 < page.Len() || page.More()
			return true, nil
		}
	}
	return false, nil
}
