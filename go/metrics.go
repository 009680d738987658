package watchcore

// #include "abi.h"
// #cgo noescape wc_metrics
// #cgo nocallback wc_metrics
import "C"

import (
	"io"
	"runtime"
)

// MetricsContentType is the Content-Type of an answer with what WriteMetrics writes.
const MetricsContentType = "text/plain; version=0.0.4; charset=utf-8"

// MetricsOptions says which figures WriteMetrics writes.
type MetricsOptions struct {
	// PerSubscription gives each open subscription series of its own, some ten of them, by
	// its name and number. They come and go with the subscriptions.
	PerSubscription bool
}

// WriteMetrics writes all figures of these caches, of what feeds them, and of the library
// as text for Prometheus: what Status, Stats, Subscriptions and Counters say.
//
// All caches of a program are given at once, so that each name has its HELP and TYPE once;
// of caches with equal names the second is name#2. The text can stand in one answer with
// other metrics. A closed cache is left out. It costs O(open subscriptions) and holds up
// neither writers nor consumers. From any goroutine. docs/OPERATIONS.md has a table of the
// names, and which to alert on.
//
//	http.HandleFunc("/metrics", func(w http.ResponseWriter, r *http.Request) {
//		w.Header().Set("Content-Type", watchcore.MetricsContentType)
//		watchcore.WriteMetrics(w, watchcore.MetricsOptions{}, pods, nodes)
//	})
func WriteMetrics(w io.Writer, options MetricsOptions, caches ...*Cache) error {
	defer runtime.KeepAlive(caches)
	var open []*C.watchcore_cache
	for _, cache := range caches {
		if cache != nil && cache.core.cache.acquire() {
			defer cache.core.cache.release()
			open = append(open, cache.core.c())
		}
	}
	given := C.watchcore_metrics_options{
		size:             C.sizeof_watchcore_metrics_options,
		per_subscription: bit(options.PerSubscription),
	}
	var first **C.watchcore_cache
	if len(open) > 0 {
		first = &open[0]
	}
	var text *C.watchcore_text
	if err := failed(C.wc_metrics(first, C.size_t(len(open)), &given, &text)); err != nil {
		return err
	}
	// A copy: what the writer keeps must not be the library's memory.
	bytes := C.watchcore_text_get(text)
	written := C.GoBytes(bytes.data, C.int(bytes.length))
	C.watchcore_text_free(text)
	_, err := w.Write(written)
	return err
}
