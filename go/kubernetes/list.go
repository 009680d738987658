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

	"watchcore"
)

// List is ListWithContext without a context. It ends all the same: by timeoutSeconds, and by
// Config.WaitTimeout where it has to wait.
func (l *ListWatch) List(options metav1.ListOptions) (runtime.Object, error) {
	return l.ListWithContext(context.Background(), options)
}

// ListWithContext lists the objects that the selectors let pass in the order of their keys, all
// of one revision, which is the list's resourceVersion: a watch from there misses nothing.
// O(objects), and each is decoded (with Config.Share, once).
//
// Which state it is follows Kubernetes' API: resourceVersion unset is as new as the source now, "0"
// what the cache has, N at least that (resourceVersionMatch=Exact, or a limit: exactly that). It
// waits for a revision and for the cache's first listing as long as Config.WaitTimeout. With a limit the list's
// continue is the token of the next page of the same revision. Where that has left the window it is 410
// Expired, with a token that continues in the newest state.
//
// Errors are *apierrors.StatusError (see StatusError), but for that of a context that has ended: it
// is the context's.
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
		if !selective { // otherwise it is not known how many of the rest match
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
