package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	watchcore "github.com/watchcore/watchcore/go"
)

// errPreviousLost reports a deletion without the last value. Watches that a ListWatch opens never have it.
var errPreviousLost = &watchcore.Error{
	Code:    watchcore.ErrLagged,
	Message: "the last value of a deleted key has left the window. List again",
}

// errNotKnown reports a watch that cannot say whether its consumer has an object of a key: see
// translator.ofRefused.
func errNotKnown(key string) error {
	return &watchcore.Error{
		Code: watchcore.ErrLagged,
		Message: fmt.Sprintf("the value of %q before this change cannot be decoded, and whether an earlier one was given is "+
			"not known to this watch. List again", key),
	}
}

// StatusError converts an error of this package or of watchcore into the status with which an API server
// would answer, so that apierrors.IsResourceExpired and the like, and client-go's reflectors, recognize it.
// An error that is already a status stays unchanged; nil stays nil. The message is the error's.
//
// The status, the reason and the seconds to wait are those of the code ([watchcore.Code.HTTPStatus],
// [watchcore.Code.Reason], [watchcore.Code.RetryAfter]). For COMPACTED, the metadata has a list's token to
// continue; for FUTURE_REVISION, the cause is ResourceVersionTooLarge. Any other error is 500 InternalError.
//
// A context that is done is 504 after its deadline, and 500 after its cancellation.
func StatusError(err error) *apierrors.StatusError {
	return statusError(err, schema.GroupResource{})
}

// StatusError is the function StatusError, and names Config.Resource.
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
	var e *watchcore.Error
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		e = &watchcore.Error{Code: watchcore.ErrTimeout}
	case !errors.As(err, &e):
		e = &watchcore.Error{Code: watchcore.ErrInternal}
	}
	status := metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    int32(e.Code.HTTPStatus()),
		Reason:  metav1.StatusReason(e.Code.Reason()),
		Message: statusMessage(e, err),
		Details: &metav1.StatusDetails{
			Group:             resource.Group,
			Kind:              resource.Resource,
			RetryAfterSeconds: int32(e.Code.RetryAfter() / time.Second),
		},
	}
	status.Continue = e.Continue
	if e.Code == watchcore.ErrFutureRevision {
		status.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge, Message: tooLarge}}
	}
	return &apierrors.StatusError{ErrStatus: status}
}

// tooLarge is the text that clients of Kubernetes search for in a message and in its cause.
const tooLarge = "Too large resource version"

// statusMessage puts Kubernetes' text before the error's.
func statusMessage(e *watchcore.Error, err error) string {
	switch e.Code {
	case watchcore.ErrFutureRevision:
		return fmt.Sprintf("Timeout: %s: %d, current: %d: %v", tooLarge, e.Asked, e.Current, err)
	case watchcore.ErrTimeout:
		return fmt.Sprintf("Timeout: %v", err)
	case watchcore.ErrInternal, watchcore.ErrPanic:
		return fmt.Sprintf("Internal error occurred: %v", err)
	}
	return err.Error()
}
