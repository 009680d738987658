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
// [CacheSource] is for programs that want a watch and no informer: it makes a cache the source of a
// watch.RetryWatcher and of watch.Until.
//
// # Handlers
//
// Each [Handler] runs on its own goroutine with its own position in the informer's journal of
// changes, so a slow handler delays no other. It receives the state first, then the changes, in the
// order of the revisions. A handler that falls behind the journal's window ([Options].Window)
// receives the difference between the state that it knows and the current state. The informer does
// not queue undelivered changes, so a handler that never returns costs one old state, whatever
// happens. Its [Registration] reports its progress, and why it is not synced if it is not.
//
// # The life of a change
//
//  1. The source's goroutine decodes the value, and makes the next state: a tree that shares all
//     but about six small nodes with the previous one.
//  2. At the end of its revision the state is published: listers and indexes show it.
//  3. The change goes into the journal, together with the state after it.
//  4. Each handler's goroutine wakes, reads the journal from its own position, and calls the handler.
//     It then keeps that state as the one that the handler knows, shared with all handlers at the same position.
//  5. The journal drops the change when its window is full of newer ones; the garbage
//     collector frees an object that no state contains any more.
package informer
