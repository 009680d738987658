package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	watchcore "github.com/watchcore/watchcore/go"
)

// List is ListWithContext without a context. timeoutSeconds, and Config.WaitTimeout for waits,
// still limit it.
func (l *ListWatch) List(options metav1.ListOptions) (runtime.Object, error) {
	return l.ListWithContext(context.Background(), options)
}

// ListWithContext lists the selected objects in the order of their keys, all of one revision, which
// is the list's resourceVersion: a watch from there misses nothing. ListWithContext costs O(objects), and
// decodes each object (with Config.Share, once).
//
// The listed state follows Kubernetes' API: resourceVersion unset is as new as the source now, "0" is the
// cache's present state, N is at least N (exactly N with resourceVersionMatch=Exact, or with a limit). The
// call waits for a revision and for the cache's first listing at most Config.WaitTimeout. With a limit, the
// list's continue is the token of the next page of the same revision. If that revision has left the window,
// the error is 410 Expired, with a token that continues in the newest state.
//
// Errors are *apierrors.StatusError (see StatusError), except that a context that is done returns
// its own error.
func (l *ListWatch) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	list, err := l.list(ctx, &options)
	switch {
	case err == nil:
		return list, nil
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		return nil, err
	}
	return nil, l.StatusError(err)
}

func (l *ListWatch) list(ctx context.Context, o *metav1.ListOptions) (runtime.Object, error) {
	if err := valid(o, false); err != nil {
		return nil, err
	}
	if timeout := timeoutOf(o); timeout > 0 {
		within, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		ctx = within
	}
	selected, err := l.query(o.LabelSelector, o.FieldSelector)
	if err != nil {
		return nil, err
	}
	if err := l.ready(ctx); err != nil {
		return nil, err
	}
	read, limit, err := l.listRead(ctx, o)
	if err != nil {
		return nil, err
	}
	page, err := l.cache.List(ctx, l.config.Range, watchcore.ListOptions{
		Read:          read,
		WaitTimeout:   l.config.WaitTimeout,
		LabelSelector: selected.labels,
		FieldSelector: selected.fields,
		Limit:         int(limit),
		Continue:      o.Continue,
	})
	if err != nil {
		return nil, err
	}
	defer page.Release()
	objects, err := l.objects(page, selected.rest)
	if err != nil {
		return nil, err
	}
	return l.listOf(objects, page, selected.selective())
}

// objects decodes a page.
func (l *ListWatch) objects(page *watchcore.Page, rest *filter) ([]runtime.Object, error) {
	objects := make([]runtime.Object, 0, page.Len())
	for kv := range page.All() {
		object, err := l.item(kv)
		if err != nil {
			if err := l.refused(kv.Key(), kv.ModRevision(), err); err != nil {
				return nil, err
			}
			continue
		}
		matches, err := rest.matches(object)
		if err != nil {
			return nil, errCorrupt(kv.Key(), kv.ModRevision(), err)
		}
		if matches {
			objects = append(objects, object)
		}
	}
	return objects, nil
}

func (l *ListWatch) listOf(objects []runtime.Object, page *watchcore.Page, selective bool) (runtime.Object, error) {
	list := l.config.NewList()
	if err := meta.SetList(list, objects); err != nil {
		return nil, fmt.Errorf("Config.NewList made a %T, which cannot hold the objects: %w", list, err)
	}
	m, err := meta.ListAccessor(list)
	if err != nil {
		return nil, fmt.Errorf("Config.NewList made a %T, which has no metadata: %w", list, err)
	}
	m.SetResourceVersion(strconv.FormatUint(page.Revision(), 10))
	if page.More() {
		m.SetContinue(page.Continue())
		if !selective { // otherwise the number of matching objects in the rest is unknown
			remaining := int64(page.Remaining())
			m.SetRemainingItemCount(&remaining)
		}
	}
	return list, nil
}

func errCorrupt(key string, revision uint64, err error) error {
	return apierrors.NewInternalError(fmt.Errorf("the value of %q of revision %d cannot be decoded: %w. "+
		"Correct or delete it, or set Config.Undecodable", key, revision, err))
}
