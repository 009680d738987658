// Package informer keeps the decoded objects of a [watchcore.Cache], or of anything that can be
// listed and watched, and calls handlers for what changes in them.
//
//	pods, err := informer.New(cache, decodePod, informer.Options[*Pod]{})
//	defer pods.Stop()
//	reg, err := pods.AddHandler(informer.HandlerFuncs[*Pod]{Add: added, Update: updated, Delete: deleted}, informer.HandlerOptions{})
//	err = informer.WaitForSync(ctx, pods, reg)
//	pod, found := pods.Lister().Get("/registry/pods/default/a")
//
// An [Informer] has one goroutine, which reads a subscription and decodes each value once. A
// [Lister] reads the newest state without a lock; [Informer.Current] one that stays, and
// [SameRevision] several informers of one cache at one revision. Indexes by functions
// ([Indexers]) are part of each state.
//
// [CacheSource] is a cache for programs that want a watch and no informer: a source of watch.RetryWatcher and
// watch.Until.
//
// # Handlers
//
// Each [Handler] runs on a goroutine of its own, from a place of its own in the informer's
// journal of changes: one that is slow delays no other. It is given the state first, then what
// changes, in the order of the revisions. One that is further behind than the journal goes back
// ([Options].Window) is given the difference between what it was given and the state now; what
// was not given is not kept, so a handler that never returns costs one old state, however much
// happens. Its [Registration] says how it stands, and why it is not synced where it is not.
//
// # The life of a change
//
//  1. The source's goroutine decodes the value, and makes the next state: a tree that shares with
//     the one before it all but some six small nodes.
//  2. At the end of its revision the state is published: listers and indexes show it.
//  3. The change goes into the journal, together with the state after it.
//  4. Each handler's goroutine wakes, reads the journal from its own place, and calls the handler.
//     What this handler was given is that state, which it shares with all that were given the same.
//  5. The journal forgets the change when as many have followed as its window holds; the garbage
//     collector frees an object that no state has any more.
package informer
