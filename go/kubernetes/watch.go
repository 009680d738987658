package kubernetes

import (
	"context"
	"errors"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	watchcore "github.com/watchcore/watchcore/go"
)

// decodedAhead is the number of events that are decoded before the consumer takes them. Further
// events stay in the cache's log, at no cost.
const decodedAhead = 32

// batchSize is the number of events that are copied out of the log at a time.
const batchSize = 128

// Watch is WatchWithContext without a context.
func (l *ListWatch) Watch(options metav1.ListOptions) (watch.Interface, error) {
	return l.WatchWithContext(context.Background(), options)
}

// WatchWithContext watches the objects that the selectors select, in the order of their revisions. The start
// follows Kubernetes' API and is fixed when the call returns: resourceVersion unset or "0" delivers the state
// and then the changes; N starts after N; sendInitialEvents requests the state, which a bookmark with the
// annotation k8s.io/initial-events-end ends, or suppresses it. Only sendInitialEvents without a
// resourceVersion makes the call wait, for the source's newest revision, at most for Config.WaitTimeout.
//
// Events are Added, Modified and Deleted with respect to the selectors: an object that leaves them is
// Deleted. A Deleted event has the last value, with the deletion's revision as resourceVersion. With
// allowWatchBookmarks a Bookmark comes every Config.BookmarkInterval if the position has advanced without an
// event, and when timeoutSeconds ends the watch after everything before was delivered.
//
// An error in the options is the error of this call. Every other failure, also one that depends on the cache,
// is an event of type Error with a *metav1.Status (see StatusError), which ends the watch: 410 if the
// revision has left the window, the consumer fell behind the window, or the history was replaced; then list
// again. Stop, the context and timeoutSeconds end the watch without an Error event.
//
// Stop the watch, or cancel the context: it has a goroutine from the first ResultChan on, and a subscription
// from the start. Stop returns at once, and may be called more than once and from any goroutine. The channel
// is closed soon after, even if nobody reads it. A consumer that does not read delays nobody.
func (l *ListWatch) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	if err := valid(&options, true); err != nil {
		return nil, err
	}
	s := l.stream(ctx, timeoutOf(&options))
	err := s.subscribe(&options)
	var wrong *apierrors.StatusError
	switch {
	case err == nil:
	case ctx.Err() != nil || errors.As(err, &wrong):
		s.Stop()
		return nil, err
	case errors.Is(err, s.ctx.Err()):
		s.Stop() // timeoutSeconds passed before the watch started
	default:
		s.fail(err)
	}
	return s, nil
}

// subscribe opens the watch. subscribe returns a *StatusError for invalid options; any other error depends
// on the cache.
func (s *stream) subscribe(options *metav1.ListOptions) error {
	l := s.l
	selected, err := l.query(options.LabelSelector, options.FieldSelector)
	if err != nil {
		return err
	}
	s.filter, s.bookmarks = selected.rest, options.AllowWatchBookmarks
	s.endMark = s.bookmarks && options.SendInitialEvents != nil && *options.SendInitialEvents
	subscribe := watchcore.SubscribeOptions{
		Name:          l.config.Name,
		StartTimeout:  l.config.WaitTimeout,
		Range:         l.config.Range,
		LabelSelector: selected.labels,
		FieldSelector: selected.fields,
		MaxBatch:      batchSize,
		// A consumer that resumes from the revision of its last event must have all of that
		// revision: the watch ends between batches, so batches must end between revisions.
		WholeRevisions: true,
		Bookmarks:      s.bookmarks,
		StopOnResync:   true,
	}
	if s.bookmarks {
		subscribe.BookmarkInterval = l.config.BookmarkInterval
	}
	if subscribe.Start, s.seesState, err = l.watchStart(s.ctx, options); err == nil {
		s.sub, err = l.cache.Subscribe(s.ctx, subscribe)
	}
	return err
}

// Over makes a watch of a subscription of the cache, for programs that choose its options themselves. The
// watch takes the subscription over: Stop closes it, and nobody else may read it. A resync ends the watch
// with 410, even if the subscription would continue: objects of a resync do not come in the order of their
// revisions, so a consumer that resumed from the last one would miss others.
func (l *ListWatch) Over(sub *watchcore.Subscription) watch.Interface {
	s := l.stream(context.Background(), 0)
	s.sub, s.bookmarks, s.endMark = sub, true, true
	if sub == nil {
		s.fail(apierrors.NewBadRequest("a watch over no subscription was asked for. Give one of Cache.Subscribe"))
	}
	return s
}

// stream is one watch.
type stream struct {
	translator
	sub       *watchcore.Subscription // nil: the start has failed
	out       chan watch.Event
	bookmarks bool // the consumer requested bookmarks
	endMark   bool // the bookmark that ends the initial state has the annotation

	open  context.Context // done by Stop, or with the caller's context
	ctx   context.Context // done also after timeoutSeconds
	stop  context.CancelFunc
	begin sync.Once // run by the first ResultChan, or by Stop
}

// These errors distinguish the ends of a watch without an error. Only after errNothingLeft does the
// position say what the consumer has: everything up to it.
var (
	errUnwanted    = errors.New("the watch has ended while there was an event to give")
	errNothingLeft = errors.New("the watch has ended while it waited for events")
)

func (l *ListWatch) stream(ctx context.Context, timeout time.Duration) *stream {
	s := &stream{translator: translator{l: l}, out: make(chan watch.Event, decodedAhead)}
	var end context.CancelFunc
	s.open, end = context.WithCancel(ctx)
	s.ctx, s.stop = s.open, end
	if timeout > 0 {
		var inTime context.CancelFunc
		s.ctx, inTime = context.WithTimeout(s.open, timeout)
		s.stop = func() { inTime(); end() }
	}
	return s
}

// fail ends a watch that has not started, with an error as its only event.
func (s *stream) fail(err error) {
	s.out <- s.l.errorEvent(err)
	s.Stop()
}

func (s *stream) Stop() {
	s.stop()
	if s.sub != nil {
		_ = s.sub.Close()
	}
	s.begin.Do(func() { close(s.out) })
}

// ResultChan returns the channel of the events; every call returns the same one.
func (s *stream) ResultChan() <-chan watch.Event {
	s.begin.Do(func() { go s.run() })
	return s.out
}

func (s *stream) run() {
	defer close(s.out)
	defer s.sub.Close()
	defer s.stop()
	s.end(s.forward())
}

// forward delivers events until there are no more, and returns the reason.
//
// timeoutSeconds ends the watch between two revisions: a revision that was delivered in part is
// completed first.
func (s *stream) forward() error {
	var last uint64
	for {
		batch, err := s.sub.Next(s.ctx)
		switch {
		case err == nil:
		case errors.Is(err, s.ctx.Err()):
			return errNothingLeft
		default:
			return err
		}
		own := batch.Clone()
		batch.Release() // the consumer may be slow
		for e := range own.Events() {
			given, err := s.event(e)
			if err != nil {
				return err
			}
			if given.Type == "" {
				continue
			}
			until := s.ctx
			if e.Revision == last {
				until = s.open
			}
			if last = e.Revision; !s.send(until, given) {
				return errUnwanted
			}
		}
	}
}

// event converts one event of the cache. The result has type "" if the consumer gets nothing for it.
func (s *stream) event(e watchcore.Event) (watch.Event, error) {
	switch e.Type {
	case watchcore.EventResync:
		return watch.Event{}, errResync(e)
	case watchcore.EventBookmark:
		end := s.endMark && e.EndsInitialState()
		if !end && !s.bookmarks {
			return watch.Event{}, nil
		}
		return s.bookmark(e.Revision, end)
	}
	return s.translate(e)
}

func (s *stream) bookmark(revision uint64, end bool) (watch.Event, error) {
	object := s.l.config.Prototype.DeepCopyObject()
	if err := stamp(object, revision); err != nil {
		return watch.Event{}, err
	}
	if end {
		m, err := meta.Accessor(object)
		if err != nil {
			return watch.Event{}, err
		}
		m.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	}
	return watch.Event{Type: watch.Bookmark, Object: object}, nil
}

// send waits for the consumer. send returns false if the watch has ended.
func (s *stream) send(until context.Context, e watch.Event) bool {
	if until.Err() != nil {
		return false
	}
	select {
	case s.out <- e:
		return true
	case <-until.Done():
		return false
	}
}

// end delivers the last event, if there is one: an error, or, if timeoutSeconds ended a wait for
// events, a bookmark of the consumer's position. end waits for the consumer no longer than the watch
// lasts: a consumer that misses an error resumes from its last event, and gets the error again.
func (s *stream) end(why error) {
	switch {
	case s.open.Err() != nil || why == errUnwanted:
	case why != errNothingLeft:
		if last := s.l.errorEvent(why); !s.offer(last) {
			s.send(s.ctx, last)
		}
	case s.bookmarks:
		if at := s.sub.Position().Revision; at > 0 {
			if last, err := s.bookmark(at, false); err == nil {
				s.offer(last)
			}
		}
	}
}

// offer sends without waiting. offer returns false if the channel is full.
func (s *stream) offer(e watch.Event) bool {
	select {
	case s.out <- e:
		return true
	default:
		return false
	}
}

func (l *ListWatch) errorEvent(err error) watch.Event {
	status := l.StatusError(err).Status()
	return watch.Event{Type: watch.Error, Object: &status}
}

// errResync converts a resync mark, which only a subscription that the program opened can deliver.
func errResync(e watchcore.Event) error {
	mark := e.Resync()
	return &watchcore.Error{
		Code:     watchcore.ErrResynced,
		Message:  "the history was replaced (" + mark.Reason.String() + "). List again",
		Position: mark.From,
		Current:  mark.To,
		Epoch:    mark.Epoch,
	}
}
