package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	watchcore "github.com/watchcore/watchcore/go"
)

// valid refuses invalid options with the same errors as an API server: 422 Invalid.
func valid(o *metav1.ListOptions, watch bool) error {
	given := metainternalversion.ListOptions{
		Watch:                watch,
		ResourceVersion:      o.ResourceVersion,
		ResourceVersionMatch: o.ResourceVersionMatch,
		SendInitialEvents:    o.SendInitialEvents,
		Continue:             o.Continue,
		Limit:                o.Limit,
	}
	if errs := validation.ValidateListOptions(&given, true); len(errs) > 0 {
		return apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "ListOptions"}, "", errs)
	}
	if o.ShardSelector != "" {
		return apierrors.NewBadRequest("shardSelector is not supported. Watch a Range of the cache, or select by a label")
	}
	if o.Limit < 0 {
		return apierrors.NewBadRequest(fmt.Sprintf("limit is %d: it cannot be negative. Give 0 for all", o.Limit))
	}
	return nil
}

// versionOf parses a resourceVersion; 0 if there is none.
func versionOf(text string) (uint64, error) {
	if text == "" {
		return 0, nil
	}
	revision, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, apierrors.NewBadRequest(fmt.Sprintf("invalid resource version %q: it has to be a number, such as that of a list", text))
	}
	return revision, nil
}

// watchStart returns the start of a watch, by the semantics of Kubernetes' API:
//
//	resourceVersion   sendInitialEvents unset       true                              false
//	unset             the state that the cache has   the state, at least as new as the   after what the source has now
//	                                                 source at this moment
//	"0"               the state that the cache has   the state that the cache has        after what the cache has
//	N                 after N                       the state, N or newer               after N
//
// It also returns whether the watch starts with the state.
func (l *ListWatch) watchStart(ctx context.Context, o *metav1.ListOptions) (start watchcore.Start, state bool, err error) {
	revision, err := versionOf(o.ResourceVersion)
	if err != nil {
		return start, false, err
	}
	if o.SendInitialEvents == nil {
		if revision == 0 {
			return watchcore.StartState(), true, nil
		}
		return watchcore.StartAfter(revision), false, nil
	}
	unset, state := o.ResourceVersion == "", *o.SendInitialEvents
	switch {
	case unset:
		if revision, err = l.consistent(ctx); err != nil {
			return start, state, err
		}
	case revision == 0 && state:
		return watchcore.StartState(), true, nil
	case revision == 0:
		return watchcore.StartNow(), false, nil
	}
	if state {
		return watchcore.StartStateAtLeast(revision), true, nil
	}
	return watchcore.StartAfter(revision), false, nil
}

// listRead returns which state a list reads, and its limit, by the semantics of Kubernetes' API:
//
//	                   resourceVersion unset          "0"                N
//	no match           as new as the source now       what is there      N or newer; with a limit, exactly N
//	NotOlderThan       refused                        what is there      N or newer
//	Exact              refused                        refused            exactly N
//	continue           what the token says            what it says       refused
//
// As in Kubernetes' own cache, "0" ignores the limit: a reflector that received a page would
// conclude that there is no cache, and list in pages from then on.
func (l *ListWatch) listRead(ctx context.Context, o *metav1.ListOptions) (read watchcore.Read, limit int64, err error) {
	revision, err := versionOf(o.ResourceVersion)
	if err != nil {
		return read, 0, err
	}
	switch {
	case o.Continue != "" && revision != 0:
		return read, 0, apierrors.NewBadRequest("specifying resource version is not allowed when using continue: the token has its own")
	case o.Continue != "":
		return watchcore.ReadAny(), o.Limit, nil
	case o.ResourceVersionMatch == metav1.ResourceVersionMatchExact,
		o.ResourceVersionMatch == "" && o.Limit > 0 && revision != 0:
		return watchcore.ReadExact(revision), o.Limit, nil
	case o.ResourceVersion == "":
		if revision, err = l.consistent(ctx); err != nil {
			return read, 0, err
		}
		return watchcore.ReadAtLeast(revision), o.Limit, nil
	case revision == 0:
		return watchcore.ReadAny(), 0, nil
	}
	return watchcore.ReadAtLeast(revision), o.Limit, nil
}

// consistent returns a revision that includes every change completed before this call.
func (l *ListWatch) consistent(ctx context.Context) (revision uint64, err error) {
	err = l.bounded(ctx, "the source's newest revision", func(ctx context.Context) error {
		revision, err = l.cache.ConsistentRevision(ctx)
		return err
	})
	return revision, err
}

// ready waits for the first listing.
func (l *ListWatch) ready(ctx context.Context) error {
	if l.cache.Ready() {
		return nil
	}
	return l.bounded(ctx, "the cache's first listing", l.cache.WaitReady)
}

// bounded limits the caller's context by Config.WaitTimeout.
func (l *ListWatch) bounded(ctx context.Context, what string, wait func(context.Context) error) error {
	within, cancel := context.WithTimeout(ctx, l.config.WaitTimeout)
	defer cancel()
	err := wait(within)
	if err != nil && within.Err() != nil && ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
		return &watchcore.Error{
			Code:    watchcore.ErrUnavailable,
			Message: fmt.Sprintf("%s did not come within %v. Ask again", what, l.config.WaitTimeout),
		}
	}
	return err
}

// timeoutOf returns timeoutSeconds; 0 if it is not set.
func timeoutOf(o *metav1.ListOptions) time.Duration {
	if o.TimeoutSeconds == nil || *o.TimeoutSeconds <= 0 {
		return 0
	}
	return time.Duration(min(*o.TimeoutSeconds, int64(time.Duration(1<<63-1)/time.Second))) * time.Second
}
