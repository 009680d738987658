//go:build cgo

package watchcore

import (
	"regexp"
	"strings"
)

// The library writes its messages for C: they name C's functions, constants and fields. Every message that
// reaches a Go program as an error or in a status passes through inGo, which replaces these names by Go's. A
// test checks this for every text of the C interface. Log lines do not pass through it: the C interface makes
// none of them (the same test), and they repeat the program's names without quotes.

// foreignNames matches names that Go does not have: of a function or type, of constants (only the
// first of several is complete, the others lack their beginning), of a field.
var foreignNames = regexp.MustCompile(`\bwatchcore_\w+|\bWATCHCORE_\w+(?:(?:,| to) _[A-Z_]+)*|\b(?:options|read|filter)\.[a-z_]+`)

// foreignName matches one of these names.
var foreignName = regexp.MustCompile(`[\w.]+[^ ,]`)

// quoted matches text of the program that a message repeats: a key, a name, a value. The text may be cut.
var quoted = regexp.MustCompile(`"(?:[^"\\]|\\.)*(?:"|$)`)

// foreignPhrases replaces the other words that are specific to C or Rust.
var foreignPhrases = strings.NewReplacer(
	"from State", "with StartState",
	"the mode of the read at Any", "ListOptions.Read at ReadAny",
	"with the builder's decoder", "with NewDecoder",
	"a handle for one consumer is in use", "what is for one goroutine at a time is in use",
	"The handle is poisoned: free it", "It is of no further use: close it",
	"and the handle is poisoned", "and what it was in is of no further use",
	"was poisoned by a panic in an earlier call. Free it", "is of no further use since a panic in an earlier call. Close it",
	"by another thread", "by another goroutine",
	"Set no log function", "Set no logger",
	"called by the log function", "called by the log handler",
	"The log function has not", "The log handler has not",
	"is NULL", "is absent",
	"Initialise it with its _INIT macro", "Report this as a bug",
)

// goNames maps the names that do not follow from those of C by goName's rule.
var goNames = map[string]string{
	"watchcore_cache_new":            "New",
	"watchcore_loading_new":          "Writer.BeginLoad",
	"watchcore_log_set":              "SetLogger",
	"watchcore_iterator":             "loop over Snapshot.Range",
	"watchcore_waiter":               "wait",
	"watchcore_wakeset":              "wait",
	"watchcore_cache_options":        "Config",
	"watchcore_etcd_options":         "EtcdConfig",
	"watchcore_subscription_options": "SubscribeOptions",

	"WATCHCORE_MASK":             "an EventType",
	"WATCHCORE_ON_LAG_STOP":      "LagStop",
	"WATCHCORE_RESYNC_COMPACTED": "ReasonCompacted",

	"filter.types":                 "DiffOptions.Types",
	"options.bookmarks":            "SubscribeOptions.Bookmarks",
	"options.ca_file":              "TLSConfig.CAFile",
	"options.ca_pem":               "TLSConfig.CA",
	"options.capacity":             "Config.Capacity",
	"options.cert_file":            "TLSConfig.CertFile",
	"options.endpoints":            "EtcdConfig.Endpoints",
	"options.expect_load":          "Config.ExpectLoad",
	"options.fields":               "Config.Fields",
	"options.indexes":              "Config.Indexes",
	"options.keep_events":          "Config.KeepEvents",
	"options.keep_ms":              "Config.KeepAge",
	"options.key_file":             "TLSConfig.KeyFile",
	"options.labels_from":          "Config.Labels",
	"options.max_buckets":          "Config.MaxBuckets",
	"options.max_key_bytes":        "Config.MaxKeyBytes",
	"options.max_value_bytes":      "Config.MaxValueBytes",
	"options.min_tls_version":      "TLSConfig.MinVersion",
	"options.name":                 "SubscribeOptions.Name",
	"options.no_progress_requests": "EtcdConfig.NoProgressRequests",
	"options.on_lag":               "SubscribeOptions.OnLag",
	"options.password":             "EtcdConfig.Password",
	"options.per_subscription":     "MetricsOptions.PerSubscription",
	"options.raw_types":            "SubscribeOptions.RawTypes",
	"options.revision":             "SubscribeOptions.Start",
	"options.start":                "SubscribeOptions.Start",
	"options.stop_after_listing":   "EtcdConfig.StopAfterListing",
	"options.stop_on_resync":       "SubscribeOptions.StopOnResync",
	"options.user":                 "EtcdConfig.Username",
	"options.whole_revisions":      "SubscribeOptions.WholeRevisions",
	"read.continue_token":          "ListOptions.Continue",
	"read.epoch":                   "ReadOptions.Read",
	"read.limit":                   "ListOptions.Limit",
	"read.mode":                    "ReadOptions.Read",
	"read.reserved":                "ReadOptions",
	"read.revision":                "ReadOptions.Read",
}

// inGo translates a message into Go's terms.
func inGo(message string) string {
	var said strings.Builder
	for at := 0; at < len(message); {
		own := quoted.FindStringIndex(message[at:])
		if own == nil {
			own = []int{len(message) - at, len(message) - at}
		}
		text := foreignNames.ReplaceAllStringFunc(message[at:at+own[0]], func(names string) string {
			return foreignName.ReplaceAllStringFunc(names, goName)
		})
		said.WriteString(foreignPhrases.Replace(text))
		said.WriteString(message[at+own[0] : at+own[1]])
		at += own[1]
	}
	return said.String()
}

// goName translates a name: watchcore_writer_apply becomes Writer.Apply, WATCHCORE_READ_ANY becomes ReadAny.
func goName(name string) string {
	if known, ok := goNames[name]; ok {
		return known
	}
	if name == "to" {
		return name
	}
	words := strings.FieldsFunc(name, func(r rune) bool { return r == '_' || r == '.' })
	separator := ""
	if words[0] == "watchcore" {
		separator = "."
	}
	if strings.EqualFold(words[0], "watchcore") {
		words = words[1:]
	}
	text := ""
	for i, word := range words {
		if i == 1 {
			text += separator
		}
		text += strings.ToUpper(word[:1]) + strings.ToLower(word[1:])
	}
	return text
}
