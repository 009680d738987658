package apiserver

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/klog/v2"

	watchcore "github.com/watchcore/watchcore/go"
)

// Config says how much a cache keeps. The zero Config has the default of each field.
type Config struct {
	// WindowEvents and WindowBytes limit the history that a cache keeps beside the state: the changes that a watch can resume
	// behind. 0 is 1,048,576 events and 512 MiB. Within these, events stay for the EventsHistoryWindow of the storage's
	// configuration, 75 s by default.
	WindowEvents int
	WindowBytes  int64
	// History is how many of etcd's newest revisions a cache takes in when it starts, so that the watches of a server that was restarted
	// resume where they were. 0 is 10,000, a negative number none.
	History int
	// Decoded and DecodedBytes limit the decoded objects of each resource that are kept for those who need them next: their number,
	// and their length in etcd, of which a decoded object takes some four times as much. 0 is 16,384 objects and 48 MiB.
	Decoded      int
	DecodedBytes int
}

const (
	defaultWindowEvents = 1 << 20
	defaultWindowBytes  = 512 << 20
	defaultDecoded      = 16 << 10
	defaultDecodedBytes = 48 << 20
	defaultHistory      = 10_000
	// compactionPoll is how often a cache asks etcd what was compacted, as the cacher of k8s.io/apiserver does.
	compactionPoll = 15 * time.Second
)

// Caches are the caches of one process: one for each etcd and storage prefix, shared by all resources that are stored there. A cache
// is made for the first resource, and closed with the last.
type Caches struct {
	config Config

	mu   sync.Mutex
	open map[string]*shared
}

// NewCaches makes an empty set of caches. Decorator and RESTOptionsGetter of the package have one of their own.
func NewCaches(config Config) *Caches {
	if config.WindowEvents <= 0 {
		config.WindowEvents = defaultWindowEvents
	}
	if config.WindowBytes <= 0 {
		config.WindowBytes = defaultWindowBytes
	}
	if config.Decoded <= 0 {
		config.Decoded = defaultDecoded
	}
	if config.DecodedBytes <= 0 {
		config.DecodedBytes = defaultDecodedBytes
	}
	if config.History == 0 {
		config.History = defaultHistory
	}
	return &Caches{config: config, open: map[string]*shared{}}
}

// shared is a cache, what counts its events, and the number of resources that use it.
type shared struct {
	*watchcore.Cache
	meter *meter
	users int
}

// pathPrefix is what etcd's keys begin with: that of k8s.io/apiserver's storage for the same configuration.
func pathPrefix(prefix string) string {
	prefix = path.Join("/", prefix)
	if !strings.HasSuffix(prefix, "/") {
		prefix += "/"
	}
	return prefix
}

// get returns the cache of an etcd and a prefix, and what gives it back: call that once.
func (c *Caches) get(backend *storagebackend.Config) (*shared, func(), error) {
	t := backend.Transport
	if len(t.ServerList) == 0 {
		return nil, nil, errors.New("watchcore: the storage has no servers: give --etcd-servers")
	}
	prefix := pathPrefix(backend.Prefix)
	id := fmt.Sprintf("%q", append([]string{prefix, t.CertFile, t.KeyFile, t.TrustedCAFile}, t.ServerList...))
	c.mu.Lock()
	defer c.mu.Unlock()
	one := c.open[id]
	if one == nil {
		cache, err := c.start(prefix, backend)
		if err != nil {
			return nil, nil, fmt.Errorf("watchcore: the cache of %s in %v: %w", prefix, t.ServerList, err)
		}
		one = &shared{Cache: cache, meter: newMeter(cache, prefix, c.config.WindowEvents)}
		statistics.add(cache)
		c.open[id] = one
	}
	one.users++
	return one, sync.OnceFunc(func() { c.giveBack(id, one) }), nil
}

func (c *Caches) giveBack(id string, one *shared) {
	c.mu.Lock()
	one.users--
	last := one.users == 0
	if last {
		delete(c.open, id)
	}
	c.mu.Unlock()
	if last {
		one.meter.stop()
		statistics.remove(one.Cache)
		_ = one.Close() // never fails
	}
}

func (c *Caches) start(prefix string, backend *storagebackend.Config) (*watchcore.Cache, error) {
	t := backend.Transport
	if t.EgressLookup != nil {
		klog.Warning("watchcore: the cache connects to etcd directly, also where an egress selector is configured")
	}
	kept := watchcore.Config{
		Prefix:        prefix,
		Capacity:      c.config.WindowEvents,
		CapacityBytes: c.config.WindowBytes,
		KeepAge:       max(backend.EventsHistoryWindow, storagebackend.DefaultEventsHistoryWindow),
		ExpectLoad:    true,
	}
	declare(&kept)
	cache, err := watchcore.New(kept)
	if err != nil {
		return nil, err
	}
	err = cache.StartFeeder(watchcore.EtcdConfig{
		Endpoints:        t.ServerList,
		TLS:              watchcore.TLSConfig{CAFile: t.TrustedCAFile, CertFile: t.CertFile, KeyFile: t.KeyFile},
		FollowCompaction: compactionPoll,
		History:          uint64(max(c.config.History, 0)),
	})
	if err != nil {
		_ = cache.Close()
		return nil, err
	}
	return cache, nil
}

// Wait waits until every cache has its first listing.
func (c *Caches) Wait(ctx context.Context) error {
	c.mu.Lock()
	var waiting []*watchcore.Cache
	for _, one := range c.open {
		waiting = append(waiting, one.Cache)
	}
	c.mu.Unlock()
	for _, cache := range waiting {
		if err := cache.WaitReady(ctx); err != nil {
			return err
		}
	}
	return nil
}
