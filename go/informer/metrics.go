package informer

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Reporter is implemented by *Informer.
type Reporter interface {
	Status() Status
}

// WriteMetrics writes the status of informers and their handlers as text for Prometheus
// (watchcore.MetricsContentType). Pass all informers of a program in one call, so that each metric has its
// HELP and TYPE once. If several informers have the same name, such as that of their cache, the later ones
// become "NAME 2" and so on in the order of the arguments, so give them names. It costs O(handlers).
//
//	| name, after watchcore_informer_     | is                                                            |
//	| ----------------------------------- | ------------------------------------------------------------- |
//	| synced, objects, revision           | the lister                                                    |
//	| changes_total                       | since the initial state                                       |
//	| decode_failures_total               | values that were refused                                      |
//	| lagged_total, resyncs_total         | how often it lost events, or was given another history        |
//	| handler_synced                      | by handler: its initial state was handled                     |
//	| handler_lag_events, _lag_seconds    | what it was not given yet, and how old the oldest of it is    |
//	| handler_handled_total               | changes                                                       |
//	| handler_panics_total                | callbacks that panicked                                       |
//	| handler_resnapshots_total           | how often it was overtaken                                    |
//	| handler_lost_total                  | changes that SkipToOldest has skipped                         |
func WriteMetrics(w io.Writer, informers ...Reporter) error {
	out := bufio.NewWriter(w)
	var all []Status
	used := names{}
	for _, in := range informers {
		s := in.Status()
		s.Name = used.reserve(s.Name)
		all = append(all, s)
	}
	for _, f := range informerMetrics {
		family(out, f.name, f.help)
		for _, s := range all {
			fmt.Fprintf(out, "watchcore_informer_%s{informer=%s} %s\n", f.name, label(s.Name), number(f.of(s)))
		}
	}
	for _, f := range handlerMetrics {
		family(out, f.name, f.help)
		for _, s := range all {
			for _, h := range s.Handlers {
				fmt.Fprintf(out, "watchcore_informer_%s{informer=%s,handler=%s} %s\n", f.name, label(s.Name), label(h.Name), number(f.of(h)))
			}
		}
	}
	return out.Flush()
}

// names holds the names in use, each with the highest number that was tried for it.
type names map[string]int

// reserve takes a name, or the name with a number if it is in use.
func (used names) reserve(name string) string {
	free, n := name, used[name]
	for used[free] > 0 {
		n++
		free = fmt.Sprint(name, " ", n)
	}
	used[name] = max(n, 1)
	used[free] = max(used[free], 1)
	return free
}

type metric[S any] struct {
	name, help string
	of         func(S) float64
}

var informerMetrics = []metric[Status]{
	{"synced", "Whether the initial state is there.", func(s Status) float64 { return truth(s.Synced) }},
	{"objects", "Objects in the lister.", func(s Status) float64 { return float64(s.Objects) }},
	{"revision", "The lister's revision.", func(s Status) float64 { return float64(s.Position.Revision) }},
	{"changes_total", "Changes since the initial state.", func(s Status) float64 { return float64(s.Changes) }},
	{"decode_failures_total", "Values that the decoder refused.", func(s Status) float64 { return float64(s.DecodeFailures) }},
	{"lagged_total", "How often it was overtaken by the cache's window.", func(s Status) float64 { return float64(s.Lagged) }},
	{"resyncs_total", "How often the source's history was replaced.", func(s Status) float64 { return float64(s.Resyncs) }},
}

var handlerMetrics = []metric[HandlerStatus]{
	{"handler_synced", "Whether the initial state was handled.", func(h HandlerStatus) float64 { return truth(h.Synced) }},
	{"handler_lag_events", "Changes that were not given yet.", func(h HandlerStatus) float64 { return float64(h.LagEvents) }},
	{"handler_lag_seconds", "The age of the oldest change that was not given yet.", func(h HandlerStatus) float64 { return h.LagAge.Seconds() }},
	{"handler_handled_total", "Changes that were handled.", func(h HandlerStatus) float64 { return float64(h.Handled) }},
	{"handler_panics_total", "Callbacks that panicked.", func(h HandlerStatus) float64 { return float64(h.Panics) }},
	{"handler_resnapshots_total", "How often it was overtaken by the informer's window.", func(h HandlerStatus) float64 { return float64(h.Resnapshots) }},
	{"handler_lost_total", "Changes that were skipped.", func(h HandlerStatus) float64 { return float64(h.Lost) }},
}

func family(w io.Writer, name, help string) {
	kind := "gauge"
	if strings.HasSuffix(name, "_total") {
		kind = "counter"
	}
	fmt.Fprintf(w, "# HELP watchcore_informer_%s %s\n# TYPE watchcore_informer_%s %s\n", name, help, name, kind)
}

func label(text string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(text) + `"`
}

func number(value float64) string { return strconv.FormatFloat(value, 'g', -1, 64) }

func truth(holds bool) float64 {
	if holds {
		return 1
	}
	return 0
}
