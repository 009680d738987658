package watchcore_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	watchcore "github.com/watchcore/watchcore/go"
)

// metricsOf parses what WriteMetrics writes: values by series.
func metricsOf(t *testing.T, options watchcore.MetricsOptions, caches ...*watchcore.Cache) map[string]float64 {
	t.Helper()
	var text bytes.Buffer
	check(t, watchcore.WriteMetrics(&text, options, caches...))
	values, types := map[string]float64{}, map[string]bool{}
	for _, line := range strings.Split(strings.TrimSuffix(text.String(), "\n"), "\n") {
		if rest, found := strings.CutPrefix(line, "# TYPE "); found {
			name, _, _ := strings.Cut(rest, " ")
			if types[name] {
				t.Fatalf("%s has two types", name)
			}
			types[name] = true
			continue
		}
		if strings.HasPrefix(line, "# HELP ") {
			continue
		}
		at := strings.LastIndexByte(line, ' ')
		name, _, _ := strings.Cut(line[:at], "{")
		if !types[name] {
			t.Fatalf("%s comes without a type", line)
		}
		if _, twice := values[line[:at]]; twice {
			t.Fatalf("%s comes twice", line)
		}
		value, err := strconv.ParseFloat(line[at+1:], 64)
		check(t, err)
		values[line[:at]] = value
	}
	return values
}

// Metrics of several caches, as their Status and Stats have them, while consumers come and go.
func TestWriteMetrics(t *testing.T) {
	t.Parallel()
	one, err := watchcore.New(watchcore.Config{Name: "one"})
	check(t, err)
	defer one.Close()
	other, err := watchcore.New(watchcore.Config{Name: "quote\"d"})
	check(t, err)
	defer other.Close()
	closed, err := watchcore.New(watchcore.Config{Name: "closed"})
	check(t, err)
	check(t, closed.Close())
	writer, err := one.Writer()
	check(t, err)
	check(t, writer.Apply(5, watchcore.Put("/a", "1")))
	sub, err := one.Subscribe(t.Context(), watchcore.SubscribeOptions{Name: "mine"})
	check(t, err)
	defer sub.Close()

	values := metricsOf(t, watchcore.MetricsOptions{}, one, nil, other, closed)
	want(t, "events", values[`watchcore_events_total{cache="one"}`], 1)
	want(t, "revision", values[`watchcore_revision{cache="one"}`], 5)
	want(t, "state", values[`watchcore_state{cache="quote\"d",state="Ready"}`], 1)
	stats := one.Stats()
	want(t, "versions", values[`watchcore_memory_bytes{cache="one",part="versions"}`], float64(stats.VersionBytes))
	for series := range values {
		if strings.Contains(series, "closed") && !strings.Contains(series, "Closed") || strings.Contains(series, "mine") {
			t.Fatalf("%s is there", series)
		}
	}
	values = metricsOf(t, watchcore.MetricsOptions{PerSubscription: true}, one)
	lag, there := values[`watchcore_subscription_lag_events{cache="one",subscription="mine",id="1"}`]
	want(t, "a series of the subscription's own", there, true)
	want(t, "lag", lag, float64(sub.Lag().Events))
	want(t, "none", len(metricsOf(t, watchcore.MetricsOptions{})), 1)

	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 50 {
				metricsOf(t, watchcore.MetricsOptions{PerSubscription: true}, one, other)
				more, err := other.Subscribe(t.Context(), watchcore.SubscribeOptions{})
				check(t, err)
				check(t, more.Close())
			}
		})
	}
	all.Wait()
	cause := errors.New("gone")
	if err := watchcore.WriteMetrics(failing{cause}, watchcore.MetricsOptions{}, one); !errors.Is(err, cause) {
		t.Fatalf("the writer's error is %v", err)
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

func ExampleWriteMetrics() {
	cache, err := watchcore.New(watchcore.Config{Name: "pods"})
	if err != nil {
		panic(err)
	}
	defer cache.Close()
	var text bytes.Buffer
	if err := watchcore.WriteMetrics(&text, watchcore.MetricsOptions{}, cache); err != nil {
		panic(err)
	}
	for line := range strings.Lines(text.String()) {
		if strings.Contains(line, "watchcore_objects") {
			fmt.Fprint(os.Stdout, line)
		}
	}
	// Output:
	// # HELP watchcore_objects Live keys.
	// # TYPE watchcore_objects gauge
	// watchcore_objects{cache="pods"} 0
}
