package main

import (
	"context"
	"fmt"
	"unsafe"

	watchcore "github.com/watchcore/watchcore/go"
)

// watchcorePublisher writes a cache; each watcher is a subscription.
type watchcorePublisher struct {
	cache    *watchcore.Cache
	writer   *watchcore.Writer
	revision uint64
}

func newWatchcore(config watchcore.Config) *watchcorePublisher {
	config.Prefix = "/"
	cache := must(watchcore.New(config))
	return &watchcorePublisher{cache: cache, writer: must(cache.Writer())}
}

func (p *watchcorePublisher) publish(key string, value []byte) {
	p.revision++
	check(p.writer.Apply(p.revision, watchcore.Put(key, value)))
}

// indexes are those that these watchers can use.
func indexes(interests []interest) []watchcore.Index {
	if len(interests) > 0 {
		switch interests[0].what {
		case oneKey, nothing:
			return []watchcore.Index{watchcore.IndexByKey()}
		case inNamespace:
			return []watchcore.Index{watchcore.IndexByPrefix(3)}
		}
	}
	return nil
}

func (i interest) keys() watchcore.Range {
	switch i.what {
	case everything:
		return watchcore.RangeAll()
	case inNamespace:
		return watchcore.RangePrefix(i.wanted())
	}
	return watchcore.RangeKey(i.wanted())
}

func openWatchcore(interests []interest) (publisher, []receiver) {
	p := newWatchcore(watchcore.Config{Indexes: indexes(interests)})
	return p, p.subscribe(interests)
}

func openWornWatchcore(interests []interest, opens func()) (publisher, []receiver) {
	p := newWatchcore(watchcore.Config{Indexes: indexes(interests)})
	const objects = 1000
	for at := range fillsALog {
		p.publish(fmt.Sprintf("/registry/before/%06d", at%objects), value)
	}
	opens()
	return p, p.subscribe(interests)
}

func (p *watchcorePublisher) subscribe(interests []interest) []receiver {
	receivers := make([]receiver, len(interests))
	for at, interest := range interests {
		options := watchcore.SubscribeOptions{Start: watchcore.StartNow(), Range: interest.keys()}
		sub := must(p.cache.Subscribe(context.Background(), options))
		receivers[at] = func(took func(int)) {
			for batch, err := range sub.Batches(context.Background()) {
				check(err)
				took(readHeads(batch))
			}
		}
	}
	return receivers
}

// warmUp has the writer answer all requests for buckets, 256 with each revision.
func (p *watchcorePublisher) warmUp(interests []interest) {
	if len(interests) > 0 && interests[0].what != everything {
		for range len(interests)/256 + 1 {
			p.publish("/outside", nil)
		}
	}
}

// readHeads reads the head of every event.
func readHeads(batch *watchcore.Batch) int {
	var sum uint64
	for event := range batch.Events() {
		sum += event.Revision + uint64(uintptr(unsafe.Pointer(unsafe.SliceData(event.KeyView()))))
	}
	sink.Store(sum)
	return batch.Len()
}

// pollWatchcore reads a window of 1024 events in such batches, a new subscription each
// time.
func pollWatchcore(size int) measured {
	const events = 1024
	p := newWatchcore(watchcore.Config{})
	for _, key := range keys(events) {
		p.publish(key, value)
	}
	return repeat(func(*section) (count uint64) {
		sub := must(p.cache.Subscribe(context.Background(), watchcore.SubscribeOptions{Start: watchcore.StartAfter(p.revision - events)}))
		defer sub.Close()
		for {
			batch := must(sub.Poll(size))
			if batch == nil {
				return count
			}
			count += uint64(readHeads(batch))
			batch.Release()
		}
	})
}

// watchcoreStore is a cache with objects, loaded as from a first listing.
type watchcoreStore struct{ *watchcorePublisher }

func fillWatchcore(objects int) store {
	p := newWatchcore(watchcore.Config{ExpectLoad: true})
	listing := make([]watchcore.KeyValue, objects)
	for number := range listing {
		revision := uint64(number + 1)
		listing[number] = watchcore.KeyValue{
			Key: []byte(key(number)), Value: value, CreateRevision: revision, ModRevision: revision, Version: 1,
		}
	}
	p.revision = uint64(max(objects, 1))
	check(p.writer.Load(p.revision, listing))
	return watchcoreStore{p}
}

func (s watchcoreStore) put(key string, value []byte) { s.publish(key, value) }

func (s watchcoreStore) get(key string) uint64 {
	kv, _, err := s.cache.Get(context.Background(), key, watchcore.ReadOptions{})
	check(err)
	return touched(kv.Value)
}

// getMany makes a page of views.
func (s watchcoreStore) getMany(keys []string) (sum uint64) {
	page := must(s.cache.GetMany(context.Background(), keys, watchcore.ReadOptions{}))
	defer page.Release()
	for item := range page.All() {
		sum += touched(item.ValueView())
	}
	return sum
}

// watchcoreInto gets into memory that it has.
type watchcoreInto struct {
	store
	cache *watchcore.Cache
	kv    *watchcore.KeyValue
}

func fillWatchcoreInto(objects int) store {
	filled := fillWatchcore(objects).(watchcoreStore)
	return watchcoreInto{filled, filled.cache, &watchcore.KeyValue{}}
}

func (s watchcoreInto) get(key string) uint64 {
	_, _, err := s.cache.GetInto(context.Background(), key, watchcore.ReadOptions{}, s.kv)
	check(err)
	return touched(s.kv.Value)
}

// list makes a page of views.
func (s watchcoreStore) list(prefix string, touch bool) (count int) {
	page := must(s.cache.List(context.Background(), watchcore.RangePrefix(prefix), watchcore.ListOptions{}))
	defer page.Release()
	var sum uint64
	for item := range page.All() {
		if touch {
			sum += touched(item.ValueView())
		}
		count++
	}
	sink.Store(sum)
	return count
}

// takeState reads to the mark that ends the initial state.
func (s watchcoreStore) takeState(int) (count int) {
	sub := must(s.cache.Subscribe(context.Background(), watchcore.SubscribeOptions{Start: watchcore.StartState()}))
	defer sub.Close()
	var sum uint64
	for batch, err := range sub.Batches(context.Background()) {
		check(err)
		for event := range batch.Events() {
			if event.EndsInitialState() {
				sink.Store(sum)
				return count
			}
			sum += touched(event.ValueView())
			count++
		}
	}
	return count
}
