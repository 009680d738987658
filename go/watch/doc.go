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
// [Interface] is a watch: Stop and ResultChan. Its events are of type [Event]: a type, the object,
// the old object if it is known, the position after the event, and how much was lost directly
// before it. The rules:
//
//   - An event of type Error is the last one (except of a Broadcaster or a fake, which publish what they are
//     given, and of a Recorder of these). Synced says that the initial state is complete, Bookmark
//     carries only a position.
//   - Stop may be called at any time, any number of times, from any goroutine, also by a consumer inside
//     its loop. It does not wait. It ends the wait of the consumer and of a producer that
//     waits for this consumer, and stops the watches from which the watch was made.
//   - After Stop the consumer may read the remaining events up to the end, but need not.
//
// The watches of this package also have the interface [Puller]: Next(ctx) takes one event. It needs no
// goroutine and no channel. The function [Next] takes an event from any watch, [All] loops over one.
//
// # Slow watchers
//
// A watcher of a [Broadcaster] is a position in one log that all watchers share. Its queue is
// computed, not stored: with DropIfChannelFull the watcher gets exactly the events that a channel
// of that capacity would have accepted; the others are counted (Watcher.Dropped) and reported with
// the next event (Event.Lost). With WaitIfChannelFull publishers wait for the watcher. An unread
// watcher costs the same after ten million events as after one.
//
//	| who waits                   | for what                   | who ends it                                    |
//	| --------------------------- | -------------------------- | ---------------------------------------------- |
//	| Action, Publish             | a free slot                | the slowest Wait watcher takes or stops;       |
//	|                             |                            | Shutdown; for PublishContext its context       |
//	| Next, a channel's goroutine | an event                   | a publisher; Shutdown, after the last event;   |
//	|                             |                            | its Stop; for Next its context                 |
//	| a channel's goroutine       | its consumer               | the consumer; its Stop                         |
//	| a method of FakeWatcher     | its reader                 | the reader; Stop; Reset                        |
//	| RetryWatcher                | its source, a delay,       | these; Stop and its context, also where the    |
//	|                             | its consumer               | source does not return                         |
//	| Until and its relatives     | an event                   | the watch, its end, the context                |
//
// # From apimachinery and client-go
//
//	| there                                    | here                                                                   |
//	| ---------------------------------------- | ---------------------------------------------------------------------- |
//	| watch.Interface, Event, EventType        | Interface[T], Event[T], EventType; Event has Old, Revision, Lost, Err  |
//	| metav1.Status, apierrors.IsGone, …       | Status, StatusOf, IsGone, IsRefused, RetryAfter; in Event.Err          |
//	| NewEmptyWatch                            | NewEmptyWatch[T]                                                       |
//	| FakeWatcher, NewFake…                    | the same; methods return an error: ErrStopped after Stop, and no       |
//	|                                          | panic; Reset keeps the size of the channel; Error takes an error       |
//	| RaceFreeFakeWatcher                      | the same; a full channel is ErrFull, and no panic; Stopped is          |
//	|                                          | IsStopped                                                              |
//	| ProxyWatcher, MockWatcher                | the same                                                               |
//	| NewBroadcaster, NewLongQueueBroadcaster  | the same; Shutdown waits for nobody; a watcher can have its own queue  |
//	|                                          | (WatchOptions) and begin in the past (WatchAfter)                      |
//	| Filter, FilterFunc                       | the same, and types are right at the filter's boundary; FilterByKey    |
//	|                                          | for sources that do not report old states; called for objects only     |
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
