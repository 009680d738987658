package follow

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"

	"github.com/watchcore/watchcore/go/apiserver/examples/kube-apiserver/demo/internal/check"
)

// Watcher watches one resource the whole time: it resumes behind the last revision that it received, and lists anew where the server says
// that this is not possible.
type Watcher struct {
	check.Log
	Resource Resource
	Form     Form
	// Streams: the list comes as the events of the watch (sendInitialEvents).
	Streams bool
	// Fault drops this event, counted from 1, or doubles it.
	Fault  int
	Double bool
	// Started is etcd's revision when the API server was started.
	Started *atomic.Int64
	Clients *Clients

	source source
	resume int64 // 0: list
	count  int

	mutex    sync.Mutex
	open     bool
	ends     map[string]int
	expired  []string
	troubles []string
}

// Ends counts how sessions ended and requests failed.
func (w *Watcher) Ends() map[string]int {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return maps.Clone(w.ends)
}

// Watches says whether a watch is open.
func (w *Watcher) Watches() bool {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return w.open
}

func (w *Watcher) opened(open bool) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.open = open
}

// Expired says of each 410 what it was.
func (w *Watcher) Expired() []string {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return slices.Clone(w.expired)
}

// Troubles are the errors that have no explanation.
func (w *Watcher) Troubles() []string {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return slices.Clone(w.troubles)
}

// Run watches until the context ends.
func (w *Watcher) Run(ctx context.Context) {
	w.mutex.Lock()
	w.ends = map[string]int{}
	w.mutex.Unlock()
	w.source = w.Clients.source(w.Resource, w.Form, w.View)
	for ctx.Err() == nil {
		if err := w.session(ctx); err != nil && ctx.Err() == nil {
			w.failed(err)
			select {
			case <-ctx.Done():
			case <-time.After(50 * time.Millisecond):
			}
		}
	}
}

func selecting(v check.View) (o metav1.ListOptions) {
	if v.Labels != nil {
		o.LabelSelector = v.Labels.String()
	}
	if v.Fields != nil {
		o.FieldSelector = v.Fields.String()
	}
	return o
}

// session lists if need be, and watches until the stream ends.
func (w *Watcher) session(ctx context.Context) error {
	if w.resume == 0 && !w.Streams {
		return w.list(ctx)
	}
	o := selecting(w.View)
	o.TimeoutSeconds, o.AllowWatchBookmarks = ptr.To[int64](3600), true
	s := check.Session{Start: check.Resumed, Revision: w.resume}
	if w.resume == 0 {
		s.Start, o.SendInitialEvents, o.ResourceVersionMatch = check.Streamed, ptr.To(true), metav1.ResourceVersionMatchNotOlderThan
	} else {
		o.ResourceVersion = strconv.FormatInt(w.resume, 10)
	}
	open, err := w.source.watch(ctx, o)
	if err != nil {
		return err
	}
	defer open.Stop()
	w.Begin(s)
	w.opened(true)
	defer w.opened(false)
	err = w.read(ctx, open, s.Start == check.Streamed)
	if ctx.Err() == nil {
		w.End(fmt.Sprint(err))
	}
	return err
}

func (w *Watcher) list(ctx context.Context) error {
	s, err := list(ctx, w.source, w.View, w.Resource)
	if err != nil {
		return err
	}
	w.Begin(s)
	w.resume = s.Revision
	return nil
}

// list is a session that begins with a list.
func list(ctx context.Context, from source, view check.View, r Resource) (check.Session, error) {
	s := check.Session{Start: check.Listed, Items: check.State{}}
	within, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	got, err := from.list(within, selecting(view))
	if err != nil {
		return s, err
	}
	m, err := meta.ListAccessor(got)
	if err != nil {
		return s, err
	}
	if s.Revision, err = strconv.ParseInt(m.GetResourceVersion(), 10, 64); err != nil {
		return s, err
	}
	return s, meta.EachListItem(got, func(o runtime.Object) error {
		described, err := r.describe(o)
		if err == nil {
			s.Items[described.Key] = check.Version{Revision: described.Revision, Digest: view.Digest(described)}
		}
		return err
	})
}

// describe describes a received object, and takes it over.
func (r Resource) describe(o runtime.Object) (*check.Object, error) {
	if u, ok := o.(*unstructured.Unstructured); ok && u.GetAPIVersion() != r.GroupVersion().String() {
		return nil, fmt.Errorf("an object of the version %s came, not of %s", u.GetAPIVersion(), r.GroupVersion())
	}
	return object(o)
}

var errEnded = errors.New("the stream ended")

// read takes events until the stream ends. The error says how that was.
func (w *Watcher) read(ctx context.Context, open watch.Interface, listing bool) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case e, ok := <-open.ResultChan():
			if !ok {
				return errEnded
			}
			ended, err := w.take(e)
			if err != nil {
				return err
			}
			// A list that is cut off begins anew.
			if listing = listing && !ended; !listing {
				w.resume = w.Reached()
			}
		}
	}
}

// take adds an event to the log, and says whether it ends a list.
func (w *Watcher) take(e watch.Event) (bool, error) {
	if e.Type == watch.Error {
		return false, apierrors.FromObject(e.Object)
	}
	event := check.Event{Type: check.Type(e.Type)}
	if e.Type == watch.Bookmark {
		m, err := meta.Accessor(e.Object)
		if err != nil {
			return false, err
		}
		event.EndsList = m.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true"
		if event.Revision, err = strconv.ParseInt(m.GetResourceVersion(), 10, 64); err != nil {
			return false, err
		}
		w.Add(event)
		return event.EndsList, nil
	}
	o, err := w.Resource.describe(e.Object)
	if err != nil {
		return false, err
	}
	event.Key, event.Revision, event.Digest = o.Key, o.Revision, w.View.Digest(o)
	w.count++
	if w.count == w.Fault {
		if !w.Double {
			return false, nil
		}
		w.Add(event)
	}
	w.Add(event)
	return false, nil
}

// failed says what comes next: the same again, or a list.
func (w *Watcher) failed(err error) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	switch {
	case errors.Is(err, errEnded), isBroken(err):
		w.ends["ended"]++
	case apierrors.IsResourceExpired(err), apierrors.IsGone(err):
		w.ends["410"]++
		why := "unexplained"
		if w.resume <= w.Started.Load() {
			why = "the server was started since, and its window does not reach back"
		}
		w.expired = append(w.expired, fmt.Sprintf("%s: behind %d (%v)", why, w.resume, err))
		w.resume = 0
	case apierrors.IsNotFound(err) && w.Resource.Custom:
		w.ends["404"]++
		w.resume = 0
	case apierrors.IsTooManyRequests(err), apierrors.IsServiceUnavailable(err):
		w.ends["not ready"]++
	default:
		if status := apierrors.APIStatus(nil); errors.As(err, &status) || w.resume > 0 {
			w.troubles = append(w.troubles, err.Error())
		}
		w.ends["refused"]++
	}
}

// isBroken says whether the connection broke, or none could be made.
func isBroken(err error) bool {
	if apierrors.HasStatusCause(err, "ClientWatchDecoding") {
		return true
	}
	text := err.Error()
	for _, one := range []string{"connection refused", "connection reset", "EOF", "client connection lost", "broken pipe", "connection closed"} {
		if strings.Contains(text, one) {
			return true
		}
	}
	return false
}

// IsExplained says whether a 410 has an explanation.
func IsExplained(expired string) bool { return !strings.HasPrefix(expired, "unexplained") }
