package apiserver

import (
	"bytes"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"

	watchcore "github.com/watchcore/watchcore/go"
)

// statistics are watchcore's own metrics of all caches of the process, in the registry that the server's /metrics shows.
var statistics collector

type collector struct {
	register sync.Once
	mu       sync.Mutex
	caches   []*watchcore.Cache // in the order in which they were made: the second of equal names is name#2
}

func (c *collector) add(cache *watchcore.Cache) {
	c.register.Do(func() { legacyregistry.Registerer().MustRegister(c) })
	c.mu.Lock()
	defer c.mu.Unlock()
	c.caches = append(c.caches, cache)
}

func (c *collector) remove(cache *watchcore.Cache) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.caches = slices.DeleteFunc(c.caches, func(one *watchcore.Cache) bool { return one == cache })
}

// Describe names nothing: which metrics there are, the library says when it is asked for them.
func (c *collector) Describe(chan<- *prometheus.Desc) {}

// Collect reads the text that watchcore writes.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	c.mu.Lock()
	caches := slices.Clone(c.caches)
	c.mu.Unlock()
	var text bytes.Buffer
	err := watchcore.WriteMetrics(&text, watchcore.MetricsOptions{}, caches...)
	var families map[string]*dto.MetricFamily
	if err == nil {
		parser := expfmt.NewTextParser(model.LegacyValidation)
		families, err = parser.TextToMetricFamilies(&text)
	}
	if err != nil {
		klog.ErrorS(err, "watchcore: its metrics cannot be read")
		return
	}
	for name, family := range families {
		for _, m := range family.Metric {
			labels := prometheus.Labels{}
			for _, label := range m.Label {
				labels[label.GetName()] = label.GetValue()
			}
			kind, value := prometheus.GaugeValue, m.GetGauge().GetValue()
			if family.GetType() == dto.MetricType_COUNTER {
				kind, value = prometheus.CounterValue, m.GetCounter().GetValue()
			}
			one, err := prometheus.NewConstMetric(prometheus.NewDesc(name, family.GetHelp(), nil, labels), kind, value)
			if err != nil {
				one = prometheus.NewInvalidMetric(prometheus.NewInvalidDesc(err), err)
			}
			out <- one
		}
	}
}
