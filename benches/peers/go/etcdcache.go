//go:build etcdcache

package main

import (
	"context"
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/cache/v3"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// scripts/bench-peers.sh sets the tag where ETCD_CACHE_DIR names a checkout.
func init() {
	const note = "etcd's module cache over a client that is a channel"
	fanouts = append(fanouts, fanout{"etcd cache", note + "; it asks the filter of each watcher", true, window, 1000, openEtcd})
	stores = append(stores, keyed{"etcd cache", note, true, unlimited, fillEtcd})
}

// etcdCache is etcd's cache, and the client below it: a listing and a watch that are
// made here.
type etcdCache struct {
	*cache.Cache
	initial  []*mvccpb.KeyValue
	events   chan clientv3.WatchResponse
	revision int64
	known    map[string]*mvccpb.KeyValue
}

func newEtcd(objects, buffer int) *etcdCache {
	c := &etcdCache{events: make(chan clientv3.WatchResponse, room), known: map[string]*mvccpb.KeyValue{}}
	for number := range objects {
		c.initial = append(c.initial, c.next(key(number), value))
	}
	c.revision = max(c.revision, 1)
	client := &clientv3.Client{KV: etcdKV{c: c}, Watcher: etcdWatcher{c: c}}
	c.Cache = must(cache.New(client, prefix, cache.WithPerWatcherBufferSize(buffer), cache.WithHistoryWindowSize(65_536)))
	c.events <- clientv3.WatchResponse{Header: &pb.ResponseHeader{Revision: c.revision}, Created: true}
	check(c.WaitReady(context.Background()))
	return c
}

// next is the next version of a key, copied.
func (c *etcdCache) next(key string, value []byte) *mvccpb.KeyValue {
	c.revision++
	kv := &mvccpb.KeyValue{Key: []byte(key), Value: append([]byte(nil), value...), ModRevision: c.revision, CreateRevision: c.revision, Version: 1}
	if before := c.known[key]; before != nil {
		kv.CreateRevision, kv.Version = before.CreateRevision, before.Version+1
	}
	c.known[key] = kv
	return kv
}

func (c *etcdCache) publish(key string, value []byte) {
	event := &clientv3.Event{Type: clientv3.EventTypePut, Kv: c.next(key, value)}
	header := &pb.ResponseHeader{Revision: c.revision}
	c.events <- clientv3.WatchResponse{Header: header, Events: []*clientv3.Event{event}}
}

// wait waits until the cache has taken everything in.
func (c *etcdCache) wait() { check(c.WaitForRevision(context.Background(), c.revision)) }

func openEtcd(interests []interest) (publisher, []receiver) {
	c := newEtcd(0, room)
	receivers := make([]receiver, len(interests))
	for at, interest := range interests {
		var options []clientv3.OpOption
		if interest.what == everything || interest.what == inNamespace {
			options = append(options, clientv3.WithPrefix())
		}
		responses := c.Watch(context.Background(), interest.wanted(), options...)
		receivers[at] = func(took func(int)) {
			for response := range responses {
				check(response.Err())
				for _, event := range response.Events {
					sink.Store(uint64(event.Kv.ModRevision))
				}
				took(len(response.Events))
			}
			check(fmt.Errorf("a watch has ended"))
		}
	}
	return c, receivers
}

// Its own store is a watcher, too: it has room for all that is written before it is waited for.
func fillEtcd(objects int) store { return etcdStore{newEtcd(objects, 2048)} }

type etcdStore struct{ *etcdCache }

func (s etcdStore) put(key string, value []byte) { s.publish(key, value) }

func (s etcdStore) get(key string) uint64 {
	answer := must(s.Get(context.Background(), key, clientv3.WithSerializable()))
	return touched(answer.Kvs[0].Value)
}

func (s etcdStore) list(prefix string, touch bool) int {
	answer := must(s.Get(context.Background(), prefix, clientv3.WithPrefix(), clientv3.WithSerializable()))
	if touch {
		var sum uint64
		for _, kv := range answer.Kvs {
			sum += touched(kv.Value)
		}
		sink.Store(sum)
	}
	return len(answer.Kvs)
}

func (s etcdStore) takeState(int) int { return s.list(prefix, true) }

// etcdKV answers the first listing.
type etcdKV struct {
	clientv3.KV // nothing else is called
	c           *etcdCache
}

func (k etcdKV) Get(context.Context, string, ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	return &clientv3.GetResponse{Header: &pb.ResponseHeader{Revision: k.c.revision}, Kvs: k.c.initial}, nil
}

// etcdWatcher is the watch.
type etcdWatcher struct {
	clientv3.Watcher // nothing else is called
	c                *etcdCache
}

func (w etcdWatcher) Watch(context.Context, string, ...clientv3.OpOption) clientv3.WatchChan {
	return w.c.events
}

func (w etcdWatcher) RequestProgress(context.Context) error { return nil }
