// Package watch is a toolkit for streams of events that can be stopped: a broadcaster, filters, a
// watch that survives its server, "wait until", and fakes for tests. It has the shapes of
// Kubernetes' apimachinery/pkg/watch and client-go/tools/watch, for any type of object, so that
// programs and tests written for those port line by line; it needs neither of them, nor cgo, nor
// the package watchcore.
//
//	b := watch.NewBroadcaster[Job](100, watch.DropIfChannelFull)
//	w, err := b.Watch()
//	b.Action(watch.Added, job)
//	for e := range w.All(ctx) { … }
//
// # A watch
//
// [Interface] is a watch: Stop and ResultChan. Its events are [Event]: a type, the object, the old
// object where that is known, the position behind the event, and how much was lost directly
// before it. The rules:
//
//   - An event of type Error is the last one (but of a Broadcaster, or a fake, which publish what they are
//     given, and of a Recorder of these). Synced says that the initial state was given, Bookmark
//     is a position and nothing else.
//   - Stop may be called at any time, any number of times, by anybody, also by a consumer in the middle
//     of its loop. It waits for nobody. It ends the wait of the consumer, of a producer that
//     waits for this consumer, and stops what the watch was made of.
//   - After a Stop the consumer may read what is still there, up to the end, and need not.
//
// What this package makes has a second face, [Puller]: Next(ctx) takes one event. It needs no
// goroutine and no channel. The function [Next] takes from any watch, [All] is a loop over it.
//
// # Who falls behind
//
// A watcher of a [Broadcaster] is a position in one log that all of them share. It has a queue, which
// is arithmetic: with DropIfChannelFull it is given exactly the events that a channel with as many
// places would have taken, and what the channel would have dropped is counted (Watcher.Dropped)
// and said with the next event (Event.Lost). With WaitIfChannelFull publishers wait for it. A
// watcher that nobody reads costs the same after ten million events as after one.
//
//	| who waits                   | for what                   | who ends it                                    |
//	| --------------------------- | -------------------------- | ---------------------------------------------- |
//	| Action, Publish             | a place                    | the slowest Wait watcher takes or stops;       |
//	|                             |                            | Shutdown; for PublishContext its context       |
//	| Next, a channel's goroutine | an event                   | a publisher; Shutdown, behind the last event;  |
//	|                             |                            | its Stop; for Next its context                 |
//	| a channel's goroutine       | its consumer               | the consumer; its Stop                         |
//	| a verb of FakeWatcher       | its reader                 | the reader; Stop; Reset                        |
//	| RetryWatcher                | its source, a delay,       | these; Stop and its context, also where the    |
//	|                             | its consumer               | source does not return                         |
//	| Until and its family        | an event                   | the watch, its end, the context                |
//
// # From apimachinery and client-go
//
//	| there                                    | here                                                                   |
//	| ---------------------------------------- | ---------------------------------------------------------------------- |
//	| watch.Interface, Event, EventType        | Interface[T], Event[T], EventType; Event has Old, Revision, Lost, Err  |
//	| metav1.Status, apierrors.IsGone, …       | Status, StatusOf, IsGone, IsRefused, RetryAfter; in Event.Err          |
//	| NewEmptyWatch                            | NewEmptyWatch[T]                                                       |
//	| FakeWatcher, NewFake…                    | the same; verbs return an error; after Stop it is ErrStopped, and no   |
//	|                                          | panic; Reset keeps the size of the channel; Error takes an error       |
//	| RaceFreeFakeWatcher                      | the same; a full channel is ErrFull, and no panic; Stopped is          |
//	|                                          | IsStopped                                                              |
//	| ProxyWatcher, MockWatcher                | the same                                                               |
//	| NewBroadcaster, NewLongQueueBroadcaster  | the same; Shutdown waits for nobody; a watcher can have its own queue  |
//	|                                          | (WatchOptions) and begin in the past (WatchAfter)                      |
//	| Filter, FilterFunc                       | the same, and types are right at the filter's boundary; FilterByKey    |
//	|                                          | for sources that do not know old states; asked about objects only      |
//	| Recorder                                 | the same                                                               |
//	| Decoder, Reporter, StreamWatcher         | the same; Reporter.AsObject is AsError; EventDecoder for revisions;    |
//	|                                          | Err says how the stream ended                                          |
//	| UntilWithoutRetry, Until, UntilWithSync, | the same; wait.Interrupted is Interrupted; Event.Revision is where the |
//	| ContextWithOptionalTimeout               | conditions held; UntilWithSync takes a SyncedSource                    |
//	| cache.ListerWatcher, cache.ListWatch     | ListerWatcher, ListWatch; a ListRequest has a revision, limit, token.  |
//	|                                          | informer.CacheSource is one of a watchcore cache                       |
//	| RetryWatcher                             | the same, over a ListerWatcher; 410 ends it wherever it comes, or is   |
//	|                                          | listed: RetryOptions.OnGone                                            |
//	| Event.DeepCopy                           | none: objects are shared by all consumers, and nobody may write to one |
package watch
