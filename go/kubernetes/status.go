package kubernetes

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"watchcore"
)

// retryAfterSeconds is what answers say that can be asked for again.
const retryAfterSeconds = 1

// errPreviousLost is a deletion without the last value. Watches that a ListWatch opens have
// none of these.
var errPreviousLost = &watchcore.Error{
	Code:    watchcore.ErrLagged,
	Message: "the last value of a deleted key has left the window. List again",
}

// errNotKnown is a watch that cannot say whether its consumer has an object of a key: see translator.ofRefused.
func errNotKnown(key string) error {
	return &watchcore.Error{
		Code: watchcore.ErrLagged,
		Message: fmt.Sprintf("the value of %q before this change cannot be decoded, and whether an earlier one was given is "+
			"not known to this watch. List again", key),
	}
}

// StatusError is an error of this package or of watchcore as an API server answers it, so that
// apierrors.IsResourceExpired and the like, and client-go's reflectors, know what to do. One that is
// a status already stays as it is; nil is nil. Its message is the error's.
//
//	COMPACTED, LAGGED, RESYNCED                   410 Expired; a list's token to continue with is in its metadata
//	TIMEOUT                                       504 Timeout
//	FUTURE_REVISION                               504 Timeout, with the cause ResourceVersionTooLarge
//	RESOURCE_EXHAUSTED                            429 TooManyRequests, after a second again
//	NOT_READY, UNAVAILABLE, CLOSED                503 ServiceUnavailable, after a second again
//	PERMISSION_DENIED, UNAUTHENTICATED            403 Forbidden, 401 Unauthorized
//	INVALID_ARGUMENT                              400 BadRequest
//	everything else                               500 InternalError
//
// The end of a context is 504 where it was the time, and 500 where it was cancelled.
func StatusError(err error) *apierrors.StatusError {
	return statusError(err, schema.GroupResource{})
}

// StatusError is the function of that name, and names Config.Resource.
func (l *ListWatch) StatusError(err error) *apierrors.StatusError {
	return statusError(err, l.config.Resource)
}

func statusError(err error, resource schema.GroupResource) *apierrors.StatusError {
	if err == nil {
		return nil
	}
	var already *apierrors.StatusError
	if errors.As(err, &already) {
		return already
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return apierrors.NewTimeoutError(err.Error(), retryAfterSeconds)
	}
	var e *watchcore.Error
	if !errors.As(err, &e) {
		return apierrors.NewInternalError(err)
	}
	switch e.Code {
	case watchcore.ErrCompacted, watchcore.ErrLagged, watchcore.ErrResynced:
		status := apierrors.NewResourceExpired(err.Error())
		status.ErrStatus.ListMeta.Continue = e.Continue
		return status
	case watchcore.ErrTimeout:
		return apierrors.NewTimeoutError(err.Error(), retryAfterSeconds)
	case watchcore.ErrFutureRevision:
		return tooLarge(e, err)
	case watchcore.ErrResourceExhausted:
		return apierrors.NewTooManyRequests(err.Error(), retryAfterSeconds)
	case watchcore.ErrNotReady, watchcore.ErrUnavailable, watchcore.ErrClosed:
		status := apierrors.NewServiceUnavailable(err.Error())
		status.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: retryAfterSeconds}
		return status
	case watchcore.ErrPermissionDenied:
		return apierrors.NewForbidden(resource, "", err)
	case watchcore.ErrUnauthenticated:
		return apierrors.NewUnauthorized(err.Error())
	case watchcore.ErrInvalidArgument:
		return apierrors.NewBadRequest(err.Error())
	}
	return apierrors.NewInternalError(err)
}

// tooLarge has the words and the cause that clients of Kubernetes look for.
func tooLarge(e *watchcore.Error, err error) *apierrors.StatusError {
	const words = "Too large resource version"
	status := apierrors.NewTimeoutError(fmt.Sprintf("%s: %d, current: %d: %v", words, e.Asked, e.Current, err), retryAfterSeconds)
	status.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge, Message: words}}
	return status
}
