package main

import (
	"context"
	"sync/atomic"

	watchcore "github.com/watchcore/watchcore/go"
	"github.com/watchcore/watchcore/go/informer"
)

// ourInformer is go/informer over a cache. Its decoder finds the first objects made.
type ourInformer struct {
	*watchcorePublisher
	in   *informer.Informer[*object]
	made map[string]*object
	keys []string
}

func openOurInformer(objects []*object) informed {
	p := newWatchcore(watchcore.Config{ExpectLoad: true})
	i := &ourInformer{watchcorePublisher: p, made: make(map[string]*object, len(objects)), keys: make([]string, len(objects))}
	listing := make([]watchcore.KeyValue, len(objects))
	for number, o := range objects {
		i.made[o.Key], i.keys[number] = o, o.Key
		revision := uint64(number + 1)
		listing[number] = watchcore.KeyValue{Key: []byte(o.Key), Value: value, CreateRevision: revision, ModRevision: revision, Version: 1}
	}
	p.revision = uint64(len(objects))
	check(p.writer.Load(p.revision, listing))
	i.in = i.inform()
	return i
}

func (i *ourInformer) inform() *informer.Informer[*object] {
	var synced atomic.Bool
	in := must(informer.New(i.cache, func(key string, value []byte) (*object, error) {
		if !synced.Load() {
			if o := i.made[key]; o != nil {
				return o, nil
			}
		}
		return newObject(0, key, value), nil
	}, informer.Options[*object]{Indexers: informer.Indexers[*object]{informer.NamespaceIndex: informer.ByKeySegment[*object](2)}}))
	check(in.WaitSynced(context.Background()))
	synced.Store(true)
	return in
}

func (i *ourInformer) write(number int) { i.publish(i.keys[number], value) }

func (i *ourInformer) handle(changed func()) {
	r := must(i.in.AddHandler(informer.HandlerFuncs[*object]{
		Update: func(_, _ *informer.Object[*object]) { changed() },
	}, informer.HandlerOptions{}))
	check(r.WaitSynced(context.Background()))
}

// walkingInformer is ourInformer whose readers walk over the newest state without a list of it.
type walkingInformer struct{ *ourInformer }

func openWalkingInformer(objects []*object) informed {
	return walkingInformer{openOurInformer(objects).(*ourInformer)}
}

func (i walkingInformer) list() (count int) {
	for o := range i.in.Lister().All() {
		if o.Value != nil {
			count++
		}
	}
	return count
}

func (i *ourInformer) close() func() informed {
	check(i.in.StopAndWait(context.Background()))
	i.in = nil
	return func() informed {
		i.in = i.inform()
		return i
	}
}

func (i *ourInformer) list() (count int) {
	for _, o := range i.in.Lister().Namespace(oneNamespace) {
		if o.Value != nil {
			count++
		}
	}
	return count
}
