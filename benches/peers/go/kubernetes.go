package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	goruntime "runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"
)

// object is a version as Kubernetes keeps it: decoded, with its metadata.
type object struct {
	metav1.TypeMeta
	metav1.ObjectMeta
	Key   string
	Value []byte
}

func (o *object) DeepCopyObject() runtime.Object {
	c := &object{TypeMeta: o.TypeMeta, Key: o.Key, Value: bytes.Clone(o.Value)}
	o.ObjectMeta.DeepCopyInto(&c.ObjectMeta)
	return c
}

type objectList struct {
	metav1.TypeMeta
	metav1.ListMeta
	Items []object
}

func (l *objectList) DeepCopyObject() runtime.Object {
	c := &objectList{TypeMeta: l.TypeMeta, ListMeta: l.ListMeta, Items: make([]object, len(l.Items))}
	for at := range l.Items {
		c.Items[at] = *l.Items[at].DeepCopyObject().(*object)
	}
	return c
}

// newObject copies key and value.
func newObject(revision uint64, key string, value []byte) *object {
	key = strings.Clone(key)
	o := &object{Key: key, Value: bytes.Clone(value)}
	o.Namespace, o.Name = names(key)
	o.ResourceVersion = strconv.FormatUint(revision, 10)
	return o
}

// names are the namespace and the name that a key has: its last two parts.
func names(key string) (namespace, name string) {
	slash := strings.LastIndexByte(key, '/')
	front := key[:slash]
	return front[strings.LastIndexByte(front, '/')+1:], key[slash+1:]
}

// readObject reads the head of what a watcher got, which may be shared with others.
func readObject(event watch.Event) {
	meta, is := event.Object.(metav1.Object)
	if !is {
		check(errors.New("a watcher got " + string(event.Type)))
	}
	goruntime.KeepAlive(len(meta.GetResourceVersion()))
}

func openBroadcaster(interests []interest) (publisher, []receiver) {
	b := &broadcaster{watch.NewLongQueueBroadcaster(room, watch.WaitIfChannelFull), 0}
	receivers := make([]receiver, len(interests))
	for at := range interests {
		receivers[at] = received(must(b.Watch()))
	}
	return b, receivers
}

// broadcaster publishes by apimachinery's Broadcaster.
type broadcaster struct {
	*watch.Broadcaster
	revision uint64
}

func (b *broadcaster) publish(key string, value []byte) {
	b.revision++
	check(b.Action(watch.Modified, newObject(b.revision, key, value)))
}

func received(events watch.Interface) receiver {
	return func(took func(int)) {
		for first := range events.ResultChan() {
			took(drained(events.ResultChan(), first, readObject))
		}
		check(errors.New("a watch has ended: its watcher was too slow"))
	}
}

// kubernetes is apiserver's watch cache, by its public constructor, and the storage
// below it.
type kubernetes struct {
	*cacher.Cacher
	storage *channelStorage
	known   map[string]struct{}
}

const resource = "/registry/pods"

func newKubernetes(objects int) *kubernetes {
	s := &channelStorage{events: make(chan watch.Event, room)}
	k := &kubernetes{storage: s, known: make(map[string]struct{}, objects)}
	s.initial.Items = make([]object, objects)
	for number := range s.initial.Items {
		s.initial.Items[number] = *newObject(uint64(number+1), key(number), value)
		k.known[s.initial.Items[number].Key] = struct{}{}
	}
	s.revision.Store(uint64(max(objects, 1)))
	k.Cacher = must(cacher.NewCacherFromConfig(cacher.Config{
		Storage:             s,
		Versioner:           storage.APIObjectVersioner{},
		GroupResource:       schema.GroupResource{Resource: "pods"},
		EventsHistoryWindow: cacher.DefaultEventFreshDuration,
		ResourcePrefix:      resource,
		KeyFunc:             func(o runtime.Object) (string, error) { return o.(*object).Key, nil },
		GetAttrsFunc:        attributes,
		NewFunc:             func() runtime.Object { return &object{} },
		NewListFunc:         func() runtime.Object { return &objectList{} },
		Codec:               noCodec{},
	}))
	check(k.Wait(context.Background()))
	return k
}

// attributes are those that every resource has.
func attributes(o runtime.Object) (labels.Set, fields.Set, error) {
	one := o.(*object)
	return one.Labels, fields.Set{"metadata.name": one.Name, "metadata.namespace": one.Namespace}, nil
}

// publish hands an event to the cacher as its storage does.
func (k *kubernetes) publish(key string, value []byte) {
	kind := watch.Modified
	if _, known := k.known[key]; !known {
		kind = watch.Added
		k.known[strings.Clone(key)] = struct{}{}
	}
	revision := k.storage.revision.Load() + 1
	o := newObject(revision, key, value)
	k.storage.revision.Store(revision)
	k.storage.events <- watch.Event{Type: kind, Object: o}
}

// wait waits until the cacher has taken everything in.
func (k *kubernetes) wait() {
	for must(k.LastSyncResourceVersion()) < k.storage.revision.Load() {
		time.Sleep(50 * time.Microsecond)
	}
}

// where is what an interest is in Kubernetes' words.
func (i interest) where() (key string, options storage.ListOptions) {
	options.Predicate = storage.Everything
	options.Recursive = true
	switch i.what {
	case oneKey, nothing:
		key = i.wanted()
		namespace, name := names(key)
		options.Recursive = false
		options.Predicate.Field = fields.SelectorFromSet(fields.Set{"metadata.namespace": namespace, "metadata.name": name})
	case inNamespace:
		key = i.wanted()
		namespace, _ := names(key)
		options.Predicate.Field = fields.SelectorFromSet(fields.Set{"metadata.namespace": namespace})
	default:
		key = resource
	}
	options.Predicate.GetAttrs = attributes
	return key, options
}

func openKubernetes(interests []interest) (publisher, []receiver) {
	k := newKubernetes(0)
	receivers := make([]receiver, len(interests))
	for at, interest := range interests {
		key, options := interest.where()
		options.ResourceVersion = strconv.FormatUint(k.storage.revision.Load(), 10)
		receivers[at] = received(must(k.Watch(context.Background(), key, options)))
	}
	return k, receivers
}

func fillKubernetes(objects int) store { return kubernetesStore{newKubernetes(objects)} }

type kubernetesStore struct{ *kubernetes }

func (k kubernetesStore) put(key string, value []byte) { k.publish(key, value) }

func (k kubernetesStore) get(key string) uint64 {
	var o object
	check(k.Get(context.Background(), key, storage.GetOptions{ResourceVersion: "0"}, &o))
	return touched(o.Value)
}

func (k kubernetesStore) list(prefix string, touch bool) int {
	options := storage.ListOptions{ResourceVersion: "0", Recursive: true, Predicate: storage.Everything}
	var page objectList
	check(k.GetList(context.Background(), prefix, options, &page))
	if touch {
		var sum uint64
		for at := range page.Items {
			sum += touched(page.Items[at].Value)
		}
		sink.Store(sum)
	}
	return len(page.Items)
}

// takeState lists: a watch from revision 0 is closed while it takes the state, since
// it has room for ten events beside that.
func (k kubernetesStore) takeState(int) int { return k.list(resource, true) }

// channelStorage is a storage whose watch is a channel: what the cacher costs without
// an etcd below it.
type channelStorage struct {
	storage.Interface // nothing else is called
	initial           objectList
	events            chan watch.Event
	revision          atomic.Uint64
	once              sync.Once
}

func (s *channelStorage) Versioner() storage.Versioner { return storage.APIObjectVersioner{} }

func (s *channelStorage) GetList(_ context.Context, _ string, _ storage.ListOptions, list runtime.Object) error {
	l := list.(*objectList)
	l.Items, s.initial.Items = s.initial.Items, nil
	l.ResourceVersion = strconv.FormatUint(s.revision.Load(), 10)
	return nil
}

func (s *channelStorage) Watch(context.Context, string, storage.ListOptions) (watch.Interface, error) {
	return s, nil
}

func (s *channelStorage) ResultChan() <-chan watch.Event                      { return s.events }
func (s *channelStorage) Stop()                                               { s.once.Do(func() { close(s.events) }) }
func (s *channelStorage) RequestWatchProgress(context.Context) error          { return nil }
func (s *channelStorage) EnableResourceSizeEstimation(storage.KeysFunc) error { return nil }
func (s *channelStorage) CompactRevision() int64                              { return 0 }
func (s *channelStorage) ReadinessCheck() error                               { return nil }
func (s *channelStorage) GetCurrentResourceVersion(context.Context) (uint64, error) {
	return s.revision.Load(), nil
}

// IsWatchListSemanticsUnSupported says that the first listing is a list.
func (s *channelStorage) IsWatchListSemanticsUnSupported() bool { return true }

// noCodec is what the constructor asks for; nothing is encoded or decoded.
type noCodec struct{}

func (noCodec) Encode(runtime.Object, io.Writer) error { return nil }
func (noCodec) Identifier() runtime.Identifier         { return "none" }

func (noCodec) Decode([]byte, *schema.GroupVersionKind, runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	return nil, nil, errors.New("nothing is decoded")
}
