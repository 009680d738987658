// Package watchcore is the Kubernetes watch cache as a library: a log of
// versioned events and a versioned store of keys, which one thread keeps up to
// date from etcd, for any number of reading goroutines.
//
//	cache, err := watchcore.Open(ctx, watchcore.EtcdConfig{Endpoints: endpoints}, watchcore.Config{Prefix: "/registry/"})
//
// [Open] follows etcd; [New] makes an embedded cache that a [Writer] fills, or that
// [Cache.StartFeeder] lets follow etcd once its subscriptions are there.
// [Cache.Subscribe] opens a [Subscription], a cursor with a filter: it costs
// neither a goroutine nor a thread, cannot slow the writer or another reader, and
// gets an exact report of its loss if it falls behind. [Cache.Get], [Cache.List]
// and [Cache.Snapshot] read the newest state or that of any revision of the
// window. [Cache.Status], [Cache.Stats] and [Cache.Subscriptions] describe the cache
// and its consumers.
//
// # Events
//
// A subscription is read in one of three ways, by one goroutine at a time:
//
//	for batch, err := range sub.Batches(ctx)   // waits; releases each batch by itself
//	batch, err := sub.Next(ctx)                // waits; the batch is to be released
//	for result := range sub.ResultChan()       // single events; copies
//
// [Event.Key], [Event.Value] and [Event.PrevValue] return copies, which the program may keep and
// modify. The methods of an event panic after its batch was released; [Batch.Clone] and
// [Event.Clone] copy. Items of pages and snapshots behave in the same way.
//
// [Event.KeyView], [Event.ValueView] and the like return the library's memory without a copy, for
// programs in which nanoseconds matter: read-only, and valid until the batch is released. With the
// build tag debug the bytes of a view that is kept too long read as 0xDB.
//
// # Waiting
//
// A goroutine that waits for events, for a revision or for the first listing is parked by Go's scheduler and
// costs no thread. (Where the system cannot poll the library's descriptor, one thread waits for all of them.)
// Three functions do block a thread, for at most 2 s, until no call to etcd is in progress: [Cache.Close] and
// [Cache.StopFeeder] of a cache that etcd feeds, and [Open] when it fails.
//
// A cancelled context ends a wait at once, without losing events, and the error is the context's. A read with
// [ReadAtLeast] or [ReadExact] waits for its revision until its context is done or ReadOptions.WaitTimeout is
// over: then the error is [ErrFutureRevision], with the requested revision and the cache's revision.
//
// # Options
//
// Options of a call are a struct with fields: [Config], [EtcdConfig], [SubscribeOptions],
// [ReadOptions], [ListOptions], [SelectOptions], [DiffOptions], [MetricsOptions]. The zero value of
// each struct and of each field suits most programs. Write them with field names, because fields
// are added. A choice between several things is a value that a function makes whose name begins
// with the type's: [StartAfter] makes a [Start], [ReadExact] a [Read], [RangePrefix] a [Range].
//
// # Errors
//
// Every error of the library is an [*Error] with the numbers, and is its [Code]:
//
//	if errors.Is(err, watchcore.ErrCompacted) { … }
//	var e *watchcore.Error
//	if errors.As(err, &e) { log.Print(e.LostFrom, e.LostTo) }
//
// The library logs everything else to log/slog: see [SetLogger].
//
// # Closing and releasing
//
// Close caches, subscriptions, snapshots and writers, and release batches and pages. The garbage collector
// releases a forgotten one some time after its last use, except a batch or page of which a view was taken:
// the collector cannot see whether the view is still used. [Stats] counts forgotten and leaked ones; the log
// reports leaks, with the stack that took the memory in a build with the tag debug.
//
// A program whose caches and subscriptions are closed runs no goroutine of this package: the goroutines that
// wake and log end soon after the last Close, and start again with the next cache. Tests with goleak need no
// exception for them. [Shutdown] waits for that, and also ends the library's threads.
//
// # Building
//
// The package uses cgo and is for Linux. A released version of the module contains the static library, so
// that the module can be copied and vendored, and the program needs no shared library except C's own. In a
// checkout `make lib` puts the machine's own library there, and `make go-dist` those of other platforms.
//
// With the build tag musl it is the library for C compilers of musl, such as Alpine's (with musl-gcc, set
// CGO_LDFLAGS=-Wl,--eh-frame-hdr), else that for glibc. With the build tag watchcore_system the package links
// the library that pkg-config finds under the name watchcore after `make install`. [Linked] says what a
// program has. Where there is no library, the compiler says what to do.
package watchcore
