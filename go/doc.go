// Package watchcore is the Kubernetes watch cache as a library: one log of
// versioned events and a versioned keyed store, kept up to date from etcd by one
// thread of its own, read by as many goroutines as one likes.
//
//	cache, err := watchcore.Open(ctx, watchcore.EtcdConfig{Endpoints: endpoints}, watchcore.Config{Prefix: "/registry/"})
//
// [Open] follows etcd; [New] makes an embedded cache that a [Writer] fills, or that
// [Cache.StartFeeder] lets follow etcd once its subscriptions are there.
// [Cache.Subscribe] opens a [Subscription], a cursor with a filter: it costs
// neither a goroutine nor a thread, cannot slow the writer or another reader, and
// learns exactly what it lost where it falls behind. [Cache.Get], [Cache.List]
// and [Cache.Snapshot] read the newest state or that of any revision of the
// window. [Cache.Status], [Cache.Stats] and [Cache.Subscriptions] say how it stands,
// and how each of its consumers does.
//
// # Events
//
// A subscription is read in one of three ways, by one goroutine at a time:
//
//	for batch, err := range sub.Batches(ctx)   // waits; releases each batch by itself
//	batch, err := sub.Next(ctx)                // waits; the batch is to be released
//	for result := range sub.ResultChan()       // single events; copies
//
// What [Event.Key], [Event.Value] and [Event.PrevValue] return is the program's own:
// it may be kept and written to. An event that is asked after its batch was released
// panics; [Batch.Clone] and [Event.Clone] copy. So do items of pages and snapshots.
//
// [Event.KeyView], [Event.ValueView] and the like return the library's memory, without
// a copy, for who counts nanoseconds: read-only, and valid until the batch is released.
// With the build tag debug the bytes of a view kept too long read as 0xDB.
//
// # Waiting
//
// A goroutine that waits for events, for a revision or for the first listing waits in Go,
// not inside the library, and costs no thread. (Where the system cannot poll the library's
// descriptor, one thread waits for all of them.) [Cache.Close] and [Cache.StopFeeder] of a
// cache that etcd feeds, and [Open] where it fails, do wait inside, for at most 2 s: until
// no call to etcd is under way.
//
// A cancelled context ends a wait at once; nothing is lost by that, and the error is the
// context's. A read with [ReadAtLeast] or [ReadExact] waits for its revision as long as
// ReadOptions.WaitTimeout says, beside its context: then it is [ErrFutureRevision], with
// the revision that was asked for and the one that the cache has.
//
// # Options
//
// What a call can be asked beyond its arguments is a struct with fields: [Config],
// [EtcdConfig], [SubscribeOptions], [ReadOptions], [ListOptions], [SelectOptions],
// [DiffOptions], [MetricsOptions]. The zero value of each, and of each field, is what most
// programs want. Write them with the names of the fields: fields are added. What is one
// of several things is a value made by a function that is named after its type:
// [StartAfter] makes a [Start], [ReadExact] a [Read], [RangePrefix] a [Range].
//
// # Errors
//
// Every error of the library is an [*Error] with the numbers, and is its [Code]:
//
//	if errors.Is(err, watchcore.ErrCompacted) { … }
//	var e *watchcore.Error
//	if errors.As(err, &e) { log.Print(e.LostFrom, e.LostTo) }
//
// What the library has to say beside that goes to log/slog: see [SetLogger].
//
// # What is to be released
//
// Close caches, subscriptions, snapshots and writers, and release batches and
// pages. What was not is released by the garbage collector some time
// after the last use, but for batches and pages of which a view was taken: the
// collector cannot see who still looks at it. [Stats] counts what was not released, and what can no longer be; the
// log says the latter, too, and where it was taken in a build with the tag debug.
//
// A program whose caches and subscriptions are closed has no goroutine of this package: those that wake and log end
// with the last one, soon after its Close, and begin again with the next. Tests with goleak need no rule for them.
// [Shutdown] waits for that, and ends the library's threads, too.
//
// # Building
//
// The package uses cgo. It links the static library inside the module, where `make lib`
// puts that of the machine and `make go-dist` those of others: the module can be copied
// and vendored then, and the program needs no shared library but C's own. With the build
// tag watchcore_system it links what pkg-config finds under the name watchcore after
// `make install`, and has no library inside.
package watchcore
