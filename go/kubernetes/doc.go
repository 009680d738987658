// Package kubernetes runs client-go's programs on a watchcore cache in their own process:
// reflectors, informers, RetryWatcher, Until and UntilWithSync, and controllers made of these, only
// need an object that they can list and watch, which is a [ListWatch].
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
// Lists and watches answer like an API server's cache: the semantics of resourceVersion,
// resourceVersionMatch, limit and continue, sendInitialEvents, allowWatchBookmarks and
// timeoutSeconds are those of the Kubernetes API concepts, and errors are Kubernetes statuses: see
// [ListWatch.ListWithContext], [ListWatch.WatchWithContext] and [StatusError].
//
// An API server that serves a resource from a cache passes its own options (apimachinery's internal
// version) through [OptionsOf], and uses [ListOf] to make lists that its scheme encodes.
//
// # Differences
//
// A list at exactly a revision, its pages, and a watch from a revision reach back as far as the cache's window
// (watchcore.Config.Capacity and KeepAge), and not to the source's last compaction.
//
// Each watch is a cursor in the cache's log, with at most 32 events decoded ahead. An unread watch
// costs nothing more, delays nobody, and gets 410 Expired when the log's window has passed it: then
// a reflector lists again, as it does with a server.
//
// The cache evaluates selectors whose labels and fields it has declared (watchcore.Config.Labels and Fields),
// and objects that do not match are never decoded. Other selectors are evaluated on the decoded object, with
// the same results except for values that the cache cannot parse, which have no attributes in the cache
// (Stats.ExtractFailures counts them). An object whose value becomes broken leaves a selector such as "app=a"
// as Deleted, without being decoded. If a broken value must become a status 500, or be reported, in every
// watch, leave its attributes undeclared, so that this package evaluates all selectors.
//
// A revision that has left the window is an event of the watch, and not an error of opening it,
// because a RetryWatcher ends at the former and repeats the latter for ever.
//
// # Resyncs
//
// When the cache has listed its source anew (watchcore.EventResync), watches end with 410 and the
// reflectors list from the cache, so that handlers get the difference: deletions come as
// DeletedFinalStateUnknown with the last value that the informer had. After a restored backup revisions are
// lower than before. A request for a revision that does not arrive gets 504 with the cause
// ResourceVersionTooLarge after Config.WaitTimeout, and client-go then retries without a revision.
package kubernetes
