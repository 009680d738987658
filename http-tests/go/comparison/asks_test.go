package comparison

const (
	limitHolds     = "the limit holds also with resourceVersion 0"
	badVersionCode = "a resourceVersion that is none is the client's mistake: 400, not 500"
	wording        = "the message says it in other words"
	described      = "columns are described by their pointers"
	otherServer    = "Kubernetes' server for custom resources leaves other paths to another server"
	eachColumns    = "each Table of a watch has its columns, so that frames can be shared"
	unknownAge     = "a date that is not there is <unknown>, as in Kubernetes' own tables"
	began          = "each server's history begins where it began to watch"
	readOnly       = "it only reads"
	window         = "what the log of the cache no longer has is 410, also where etcd still has it"
	overAtOnce     = "a watch whose time is over is the client's mistake: 400, not an event of code 500"
)

var asks = []ask{
	{name: "list", target: "widgets"},
	{name: "list, namespace", target: "namespaces/default/widgets"},
	{name: "list, namespace that is empty", target: "namespaces/nobody/widgets"},
	{name: "list, cluster", target: "gizmos"},
	{name: "list at 0", target: "widgets" + query("resourceVersion", "0")},
	{name: "list at 0, limit", target: "widgets" + query("resourceVersion", "0", "limit", "3"), ours: map[string]string{"items*": limitHolds, "metadata*": limitHolds}},
	{name: "list, limit", target: "widgets" + query("limit", "3")},
	{name: "list, limit, selector", target: "widgets" + query("limit", "3", "labelSelector", "color=red")},
	{name: "list, not older", target: "widgets" + query("resourceVersion", "{OLD}", "resourceVersionMatch", "NotOlderThan")},
	{name: "list, at least", target: "widgets" + query("resourceVersion", "{OLD}")},
	{name: "list, exact", target: "widgets" + query("resourceVersion", "{OLD}", "resourceVersionMatch", "Exact")},
	{name: "list, exact by limit", target: "widgets" + query("resourceVersion", "{OLD}", "limit", "2")},
	{name: "list, compacted", target: "widgets" + query("resourceVersion", "1", "resourceVersionMatch", "Exact"), ours: map[string]string{"*": window}},
	{name: "list, future", target: "widgets" + query("resourceVersion", "{FUTURE}", "resourceVersionMatch", "NotOlderThan")},
	{name: "list, label", target: "widgets" + query("labelSelector", "color in (red,blue),shard!=1")},
	{name: "list, label that is absent", target: "widgets" + query("labelSelector", "!color")},
	{name: "list, field", target: "widgets" + query("fieldSelector", "spec.color=red")},
	{name: "list, field, not", target: "widgets" + query("fieldSelector", "spec.color!=red,spec.size=1")},
	{name: "list, name", target: "widgets" + query("fieldSelector", "metadata.name={NAME}")},
	{name: "list, namespace by field", target: "widgets" + query("fieldSelector", "metadata.namespace=lab")},
	{name: "list, unknown parameter", target: "gizmos" + query("unknown", "1")},

	{name: "refused: sendInitialEvents of a list", target: "widgets" + query("sendInitialEvents", "true", "resourceVersionMatch", "NotOlderThan")},
	{name: "refused: match without version", target: "widgets" + query("resourceVersionMatch", "Exact")},
	{name: "refused: unknown match", target: "widgets" + query("resourceVersion", "1", "resourceVersionMatch", "Newest")},
	{name: "refused: exact at 0", target: "widgets" + query("resourceVersion", "0", "resourceVersionMatch", "Exact")},
	{name: "refused: match with continue", target: "widgets" + query("continue", "abc", "resourceVersion", "1", "resourceVersionMatch", "Exact")},
	{name: "refused: version with continue", target: "widgets" + query("continue", "{TOKEN}", "resourceVersion", "1", "limit", "1")},
	{name: "refused: damaged token with a version", target: "widgets" + query("continue", "abc", "resourceVersion", "1", "limit", "1"), ours: map[string]string{"message": wording}},
	{name: "refused: token with initial events", target: "widgets" + query("continue", "abc", "resourceVersion", "1", "sendInitialEvents", "true")},
	{name: "list, token", target: "widgets" + query("continue", "{TOKEN}", "limit", "1")},
	{name: "list, token at 0", target: "widgets" + query("continue", "{TOKEN}", "resourceVersion", "0", "limit", "1"), ours: map[string]string{"items*": limitHolds, "metadata*": limitHolds}},
	{name: "list, negative numbers", target: "gizmos" + query("limit", "-1", "timeoutSeconds", "-1")},
	{name: "get, numbers that are none", target: "namespaces/default/widgets/{NAME}" + query("limit", "abc", "timeoutSeconds", "-1")},
	{name: "refused: namespace of a cluster's object", target: "gizmos" + query("fieldSelector", "metadata.namespace=default")},
	{name: "refused: watch, token", target: "gizmos" + query("watch", "1", "continue", "abc")},
	{name: "refused: watch, token at 0", target: "gizmos" + query("watch", "1", "continue", "abc", "resourceVersion", "0")},
	{name: "refused: watch, old path, initial events", target: "/apis/matrix.test/v1/watch/gizmos" + query("sendInitialEvents", "true", "resourceVersionMatch", "NotOlderThan")},
	{name: "refused: watch, old path, token", target: "/apis/matrix.test/v1/watch/gizmos" + query("watch", "1", "continue", "abc")},
	{name: "refused: watch, negative time", target: "gizmos" + query("watch", "1", "timeoutSeconds", "-1"), ours: map[string]string{"*": overAtOnce}},
	{name: "refused: damaged token", target: "widgets" + query("continue", "abc", "limit", "1"), ours: map[string]string{"message": wording}},
	{name: "refused: version of a list", target: "widgets" + query("resourceVersion", "abc"), ours: map[string]string{"message": wording}},
	{name: "refused: label selector", target: "widgets" + query("labelSelector", "color in red"), ours: map[string]string{"message": wording}},
	{name: "refused: field selector", target: "widgets" + query("fieldSelector", "color"), ours: map[string]string{"message": wording}},
	{name: "refused: field that is not declared", target: "widgets" + query("fieldSelector", "spec.unknown=1")},
	{name: "refused: watch, match alone", target: "widgets" + query("watch", "1", "resourceVersion", "1", "resourceVersionMatch", "NotOlderThan")},
	{name: "refused: watch, initial without match", target: "widgets" + query("watch", "1", "sendInitialEvents", "true")},
	{name: "refused: watch, initial exact", target: "widgets" + query("watch", "1", "sendInitialEvents", "true", "resourceVersion", "1", "resourceVersionMatch", "Exact")},
	{name: "refused: watch, version", target: "widgets" + query("watch", "1", "resourceVersion", "abc"), ours: map[string]string{"code": badVersionCode, "message": wording, "reason": badVersionCode}},
	{name: "refused: limit", target: "widgets" + query("limit", "abc"), ours: map[string]string{"message": wording}},
	{name: "refused: form", target: "widgets", accept: "application/cbor-unknown", ours: map[string]string{"message": wording}},

	{name: "get", target: "namespaces/default/widgets/{NAME}"},
	{name: "get at 0", target: "namespaces/default/widgets/{NAME}" + query("resourceVersion", "0")},
	{name: "get at least", target: "namespaces/default/widgets/{NAME}" + query("resourceVersion", "{OLD}")},
	{name: "get, future", target: "namespaces/default/widgets/{NAME}" + query("resourceVersion", "{FUTURE}")},
	{name: "get, version", target: "namespaces/default/widgets/{NAME}" + query("resourceVersion", "abc"), ours: map[string]string{"code": badVersionCode, "message": wording, "reason": badVersionCode}},
	{name: "get, absent", target: "namespaces/default/widgets/nobody"},
	{name: "get, absent, cluster", target: "gizmos/nobody"},
	{name: "get, metadata", target: "namespaces/default/widgets/{NAME}", accept: metadata},
	{name: "get, table", target: "namespaces/default/widgets/{NAME}", accept: tables, ours: map[string]string{"columnDefinitions*": described}},
	{name: "get, subresource", target: "namespaces/default/widgets/{NAME}/status"},
	{name: "get, subresource, cluster", target: "gizmos/nobody/scale/more"},
	{name: "unknown resource", target: "nothings", ours: map[string]string{"*": otherServer}},
	{name: "unknown version", target: "/apis/matrix.test/v9/widgets", ours: map[string]string{"*": otherServer}},

	{name: "list, table", target: "widgets", accept: tables, ours: map[string]string{"columnDefinitions*": described}},
	{name: "list, table, limit", target: "widgets" + query("limit", "2"), accept: tables, ours: map[string]string{"columnDefinitions*": described}},
	{name: "list, table, no object", target: "widgets" + query("includeObject", "None"), accept: tables, ours: map[string]string{"columnDefinitions*": described}},
	{name: "list, table, object", target: "gizmos" + query("includeObject", "Object"), accept: tables, ours: map[string]string{"columnDefinitions*": described}},
	{name: "list, metadata", target: "widgets", accept: partial},
	{name: "list, first form served", target: "gizmos" + query("limit", "1"), accept: "application/unknown," + tables + ",application/json", ours: map[string]string{"columnDefinitions*": described}},

	{name: "watch, state", target: "gizmos" + query("watch", "1"), events: 5},
	{name: "watch at 0", target: "gizmos" + query("watch", "1", "resourceVersion", "0"), events: 5},
	{name: "watch, history", target: "gizmos" + query("watch", "1", "resourceVersion", "{OLD}"), events: 5},
	{name: "watch, history by label", target: "gizmos" + query("watch", "1", "resourceVersion", "{OLD}", "labelSelector", "color=red"), events: 4},
	{name: "watch, history by field", target: "gizmos" + query("watch", "1", "resourceVersion", "{OLD}", "fieldSelector", "spec.color=red"), events: 4},
	{name: "watch, state with end mark", target: "widgets" + query("watch", "1", "sendInitialEvents", "true", "resourceVersionMatch", "NotOlderThan",
		"allowWatchBookmarks", "true", "fieldSelector", "metadata.name={NAME}"), events: 2},
	{name: "watch, state at least", target: "widgets" + query("watch", "1", "sendInitialEvents", "true", "resourceVersionMatch", "NotOlderThan",
		"allowWatchBookmarks", "true", "resourceVersion", "{OLD}", "fieldSelector", "metadata.name={NAME}"), events: 2},
	{name: "watch, table", target: "gizmos" + query("watch", "1", "resourceVersion", "{OLD}"), accept: tables, events: 2, ours: map[string]string{"event 0 object.columnDefinitions*": described, "event 1 object.columnDefinitions*": eachColumns}},
	{name: "watch, table, end mark", target: "widgets" + query("watch", "1", "sendInitialEvents", "true", "resourceVersionMatch", "NotOlderThan",
		"allowWatchBookmarks", "true", "fieldSelector", "metadata.name={NAME}"), accept: tables, events: 2, ours: map[string]string{
		"event 0 object.columnDefinitions*": described, "event 1 object.columnDefinitions*": eachColumns,
		"event 1 object.rows[0].cells[3]": unknownAge}},
	{name: "watch, metadata", target: "gizmos" + query("watch", "1", "resourceVersion", "{OLD}"), accept: metadata, events: 2},
	{name: "watch, metadata, end mark", target: "widgets" + query("watch", "1", "sendInitialEvents", "true", "resourceVersionMatch", "NotOlderThan",
		"allowWatchBookmarks", "true", "fieldSelector", "metadata.name={NAME}"), accept: metadata, events: 2},
	{name: "watch, compacted", target: "gizmos" + query("watch", "1", "resourceVersion", "1"), events: 1, ours: map[string]string{"event 0 object.message": began}},
	{name: "watch, state of the future", target: "gizmos" + query("watch", "1", "sendInitialEvents", "true", "resourceVersionMatch", "NotOlderThan", "resourceVersion", "{FUTURE}"), events: 1},
	{name: "watch, ends by itself", target: "gizmos" + query("watch", "1", "resourceVersion", "{R}", "timeoutSeconds", "1")},
	{name: "watch, old path", target: "/apis/matrix.test/v1/watch/gizmos" + query("resourceVersion", "{OLD}"), events: 2},

	{name: "discovery, version", target: "/apis/matrix.test/v1", ours: map[string]string{
		"resources[0].verbs*": readOnly, "resources[1].verbs*": readOnly, "resources[0].storageVersionHash": readOnly,
		"resources[1].storageVersionHash": readOnly}},
	{name: "discovery, group", target: "/apis/matrix.test"},
	{name: "discovery, unknown group", target: "/apis/unknown.test", ours: map[string]string{"*": otherServer}},
}
