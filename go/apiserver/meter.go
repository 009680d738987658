package apiserver

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	cachermetrics "k8s.io/apiserver/pkg/storage/cacher/metrics"
	etcd3metrics "k8s.io/apiserver/pkg/storage/etcd3/metrics"

	watchcore "github.com/watchcore/watchcore/go"
)

// meterPeriod is how old a resource_version may be that a scrape shows.
const meterPeriod = time.Second

// meter counts, by resource, what a cache takes in: in the metrics of the cacher of k8s.io/apiserver, which the server registers. It
// has one goroutine and one subscription for all resources of the cache. It looks at keys only.
type meter struct {
	cache  *watchcore.Cache
	prefix string // of all keys
	window int    // events
	stop   func()

	mu       sync.Mutex
	measured map[string]*measured // by the prefix of their keys
	ready    bool
	failures uint64 // of the feeder, counted so far
}

// measured is a resource that a meter counts.
type measured struct {
	schema.GroupResource
	since time.Time
	users int // a custom resource has a storage for each of its versions
}

func newMeter(cache *watchcore.Cache, prefix string, window int) *meter {
	m := &meter{cache: cache, prefix: prefix, window: window, measured: map[string]*measured{}}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { m.run(ctx) })
	m.stop = func() {
		cancel()
		running.Wait()
	}
	return m
}

// add begins to count a resource, whose keys begin with the prefix keys, and returns what ends that.
func (m *meter) add(resource schema.GroupResource, keys string) func() {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.measured[keys]
	if r == nil {
		r = &measured{GroupResource: resource, since: time.Now()}
		m.measured[keys] = r
		cachermetrics.WatchCacheCapacity.WithLabelValues(r.Group, r.Resource).Set(float64(m.window))
		if m.ready {
			r.initialized()
		}
	}
	r.users++
	return sync.OnceFunc(func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if r.users--; r.users == 0 {
			delete(m.measured, keys)
		}
	})
}

// initialized notes that the cache has the resource's first listing.
func (r *measured) initialized() {
	cachermetrics.WatchCacheInitializations.WithLabelValues(r.Group, r.Resource).Inc()
	cachermetrics.WatchCacheInitializationDuration.WithLabelValues(r.Group, r.Resource).Observe(time.Since(r.since).Seconds())
}

func (m *meter) run(ctx context.Context) {
	if !m.waitReady(ctx) {
		return
	}
	for ctx.Err() == nil {
		sub, err := m.cache.Subscribe(ctx, watchcore.SubscribeOptions{
			Name: "metrics", Start: watchcore.StartAfter(m.cache.Oldest() - 1), OnLag: watchcore.LagSkipToOldest,
		})
		if err == nil {
			m.follow(ctx, sub)
			_ = sub.Close()
		}
		pause(ctx, meterPeriod)
	}
}

// waitReady waits for the first listing. Each failure of the feeder until then is an error of every resource.
func (m *meter) waitReady(ctx context.Context) bool {
	for {
		waiting, cancel := context.WithTimeout(ctx, meterPeriod)
		err := m.cache.WaitReady(waiting)
		over := waiting.Err() != nil
		cancel()
		if ctx.Err() != nil {
			return false
		}
		m.mu.Lock()
		if counters, err := m.cache.FeederCounters(); err == nil {
			for _, r := range m.measured {
				cachermetrics.WatchCacheInitializationErrors.WithLabelValues(r.Group, r.Resource).Add(float64(counters.Failures - m.failures))
			}
			m.failures = counters.Failures
		}
		if m.ready = err == nil; m.ready {
			for _, r := range m.measured {
				r.initialized()
			}
		}
		m.mu.Unlock()
		if err == nil {
			return true
		}
		if !over { // the source refuses the feeder, which tries again
			pause(ctx, meterPeriod)
		}
	}
}

func pause(ctx context.Context, long time.Duration) {
	select {
	case <-time.After(long):
	case <-ctx.Done():
	}
}

// follow counts the events of a subscription until it ends, and shows the cache's revision once in each period.
func (m *meter) follow(ctx context.Context, sub *watchcore.Subscription) {
	counts := map[*measured]int{}
	var shown uint64
	due := time.Now()
	listed := false // between the marks of a resync
	for {
		if !time.Now().Before(due) {
			if revision := m.cache.Revision(); revision != shown {
				m.show(revision)
				shown = revision
			}
			due = time.Now().Add(meterPeriod)
		}
		waiting, cancel := context.WithDeadline(ctx, due)
		batch, err := sub.Next(waiting)
		over := waiting.Err() != nil
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && (over || errors.Is(err, watchcore.ErrLagged)): // events that are lost are not counted
			continue
		case err != nil:
			return
		}
		m.mu.Lock()
		for e := range batch.Events() {
			switch mark := e.Resync(); {
			case e.Type == watchcore.EventResync:
				if listed = mark.Phase == watchcore.ResyncBegin; !listed {
					for _, r := range m.measured {
						cachermetrics.WatchCacheInitializations.WithLabelValues(r.Group, r.Resource).Inc()
					}
				}
			case e.Type == watchcore.EventBookmark, listed:
			default:
				if r := m.resource(e.KeyView()); r != nil {
					counts[r]++
				}
			}
		}
		m.mu.Unlock()
		batch.Release()
		for r, count := range counts {
			cachermetrics.EventsReceivedCounter.WithLabelValues(r.Group, r.Resource).Add(float64(count))
			cachermetrics.EventsCounter.WithLabelValues(r.Group, r.Resource).Add(float64(count))
			for range count {
				etcd3metrics.RecordEtcdEvent(r.GroupResource)
			}
		}
		clear(counts)
	}
}

// resource returns whose key this is: the measured resource with the longest fitting prefix.
func (m *meter) resource(key []byte) (longest *measured) {
	for at := len(m.prefix); at < len(key); at++ {
		next := bytes.IndexByte(key[at:], '/')
		if next < 0 {
			break
		}
		at += next
		if r := m.measured[string(key[:at+1])]; r != nil {
			longest = r
		}
	}
	return longest
}

// show shows the cache's revision as that of each resource.
func (m *meter) show(revision uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.measured {
		cachermetrics.RecordResourceVersion(r.GroupResource, revision)
	}
}
