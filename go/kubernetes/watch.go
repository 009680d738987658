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

	"watchcore"
)

// ahead is how many events are decoded before the consumer takes them; what it does not take
// stays in the cache's log, where it costs nothing.
const ahead = 32

// batchSize is how many events are copied out of the log at a time.
const batchSize = 128

// Watch is WatchWithContext without a context.
func (l *ListWatch) Watch(options metav1.ListOptions) (watch.Interface, error) {
	return l.WatchWithContext(context.Background(), options)
}

// WatchWithContext watches the objects that the selectors let pass, in the order of their revisions.
// Where it begins follows Kubernetes' API and is fixed when this returns: resourceVersion unset or "0" is
// the state and then what follows; N is after N; sendInitialEvents asks for the state, which a bookmark with
// the annotation k8s.io/initial-events-end ends, or for none. Only sendInitialEvents without a resourceVersion
// waits here, for the source to say its newest revision, as long as Config.WaitTimeout.
//
// Events are Added, Modified and Deleted by what the selectors let pass: an object that leaves them is
// Deleted. A Deleted has the last value, with the deletion's revision as resourceVersion. With
// allowWatchBookmarks a Bookmark comes every Config.BookmarkInterval where the position has moved without an
// event, and at the end by timeoutSeconds where everything before it was given.
//
// What is wrong with the options is an error of this call. Everything that happens later, or depends
// on the cache, is an event of type Error with a *metav1.Status (see StatusError), and the end: 410 where the
// revision has left the window, the consumer fell behind it, or the history was replaced; then list again.
// Stop, the context, timeoutSeconds and nothing else end it without an event.
//
// Stop it, or cancel the context: it has a goroutine from the first ResultChan on, and a subscription
// from the beginning. Stop returns at once, may be called again, and from any goroutine; the channel is closed
// soon after, also while nobody reads. A consumer that does not read delays nobody.
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
		s.Stop() // by the time, before it began
	default:
		s.fail(err)
	}
	return s, nil
}

// subscribe opens the watch. An error that is a status says what is wrong with the options; any other depends on
// the cache.
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
		// Who goes on from the revision of the last event has to have all of it: a watch ends between
		// revisions, and that is behind a batch.
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

// Over makes a watch of a subscription of the cache, for programs that choose its options themselves. It
// takes the subscription over: Stop closes it, and nobody else may read it. A resync ends it with
// 410, also where the subscription would continue: objects of a resync are not in the order of their
// revisions, and who resumed from the last one would miss others.
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
	bookmarks bool // the consumer wants them
	endMark   bool // the one that ends the initial state has the annotation

	open  context.Context // ends by stop, or the caller's context
	ctx   context.Context // ends by the time, too
	stop  context.CancelFunc
	begin sync.Once // by the first ResultChan, or by Stop
}

// How a watch ends that was not ended by an error. Only behind the second one the position says what the consumer
// was given: everything up to it.
var (
	errUnwanted    = errors.New("the watch has ended while there was an event to give")
	errNothingLeft = errors.New("the watch has ended while it waited for events")
)

func (l *ListWatch) stream(ctx context.Context, timeout time.Duration) *stream {
	s := &stream{translator: translator{l: l}, out: make(chan watch.Event, ahead)}
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

// fail ends a watch that has not begun, with an error as its only event.
func (s *stream) fail(err error) {
	s.out <- s.l.errorEvent(err)
	s.Stop()
}

// Stop ends the watch.
func (s *stream) Stop() {
	s.stop()
	if s.sub != nil {
		_ = s.sub.Close()
	}
	s.begin.Do(func() { close(s.out) })
}

// ResultChan is where the events come; every call returns the same channel.
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

// forward gives events until there are no more, and says why.
//
// The time ends it between two revisions: of one of which the consumer has a part, it gets the rest.
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
		batch.Release() // the consumer may take its time
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

// event is what the consumer gets for one of the cache's; of type "" where it gets nothing.
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

// send waits for the consumer; false: nobody wants it any more.
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

// end gives the last event, if there is one to give: an error, or where the time has ended a wait for events
// the bookmark of what the consumer has. Neither is waited for longer than the watch lasts: who misses an error asks again
// from the last event, and meets it again.
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

// offer does not wait for the consumer; false: it has no place.
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

// errResync is a resync mark, which only a subscription that somebody else opened can have.
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
