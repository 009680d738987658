// Package kubernetes lets client-go's programs run on a watchcore cache, in their own process: its
// reflectors, informers, RetryWatcher, Until and UntilWithSync, and controllers made of these, need nothing
// else than something to list and to watch, and a [ListWatch] is that.
//
//	cache, err := watchcore.Open(ctx, watchcore.EtcdConfig{Endpoints: endpoints}, watchcore.Config{
//		Prefix: "/registry/pods/",
//		Labels: watchcore.LabelsJSON("/metadata/labels"),
//		Fields: []watchcore.Attribute{watchcore.AttributeJSON("spec.nodeName", "/spec/nodeName", 2, 10)},
//	})
//	pods, err := kubernetes.New(cache, kubernetes.Config{
//		Prototype: &corev1.Pod{},
//		Decode:    kubernetes.DecodeWith(scheme.Codecs.UniversalDeserializer(), &corev1.Pod{}),
//	})
//	informer := toolscache.NewSharedIndexInformer(pods, &corev1.Pod{}, 0, toolscache.Indexers{})
//
// Lists and watches answer as an API server's cache does: the semantics of resourceVersion,
// resourceVersionMatch, limit and continue, sendInitialEvents, allowWatchBookmarks and timeoutSeconds
// are those of Kubernetes' API concepts, and errors are its statuses: see [ListWatch.ListWithContext],
// [ListWatch.WatchWithContext] and [StatusError].
//
// An API server that serves a resource from a cache gives its own options (apimachinery's internal version) to
// [OptionsOf], and lets [ListOf] make lists that its scheme encodes.
//
// # What is different
//
// A list at exactly a revision, its pages, and a watch from a revision reach back as far as the cache's window
// (watchcore.Config.Capacity and KeepAge), and not to the source's last compaction.
//
// Each watch is a cursor in the cache's log, with at most 32 decoded events before it. One that is not read
// costs nothing more, delays nobody, and gets 410 Expired when the log has moved on past it: then a reflector
// lists again, as it does with a server.
//
// Selectors are evaluated by the cache where it has declared what they ask for (watchcore.Config.Labels and
// Fields), and objects that do not match are never decoded. The others are evaluated on the decoded object,
// with the same results, but for values that the cache cannot read: for it these have no attributes
// (Stats.ExtractFailures counts them). An object whose value is broken leaves a selector such as "app=a"
// as Deleted, and nobody is asked to decode it. Where a broken value has to be a status 500, or reported, in every watch,
// leave its attributes undeclared, so that all selectors are evaluated here.
//
// A revision that has left the window is an event of the watch, and not an error of its opening, for a
// RetryWatcher ends at the first and repeats the second for ever.
//
// # Resyncs
//
// Where the cache had to list its source anew (watchcore.EventResync), watches end with 410 and the
// reflectors list from the cache, so that handlers get the difference: deletions come as
// DeletedFinalStateUnknown with the last value that the informer had. After a restored backup revisions are
// lower than before. Who asks for one that does not come is answered 504 with the cause
// ResourceVersionTooLarge after Config.WaitTimeout, and client-go asks without a revision then.
package kubernetes
