package watchcore

// #include "abi.h"
// #cgo noescape wc_metrics
// #cgo nocallback wc_metrics
import "C"

import (
	"io"
	"runtime"
)

// MetricsContentType is the Content-Type of the text that WriteMetrics writes.
const MetricsContentType = "text/plain; version=0.0.4; charset=utf-8"

// MetricsOptions says which metrics WriteMetrics writes.
type MetricsOptions struct {
	// PerSubscription adds about ten series for each open subscription, by its name and number.
	// They come and go with the subscriptions.
	PerSubscription bool
}

// WriteMetrics writes all metrics of these caches, of their feeders, and of the library as text for
// Prometheus: the values of Status, Stats, Subscriptions and Counters.
//
// Pass all caches of a program in one call, so that each metric has its HELP and TYPE once; the second of two
// caches with equal names becomes name#2. The text may be combined in one answer with other metrics. A closed
// cache is skipped. WriteMetrics costs O(open subscriptions) and delays neither writers nor consumers. It may
// be called from any goroutine. docs/OPERATIONS.md has a table of the metrics, and which of them to alert on.
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
	// The bytes are copied, because the writer may keep them longer than the library's memory lives.
	bytes := C.watchcore_text_get(text)
	written := C.GoBytes(bytes.data, C.int(bytes.length))
	C.watchcore_text_free(text)
	_, err := w.Write(written)
	return err
}
