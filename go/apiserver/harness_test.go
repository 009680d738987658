package apiserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/api/apitesting"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/etcd3"
	etcd3testing "k8s.io/apiserver/pkg/storage/etcd3/testing"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/utils/clock"

	watchcore "github.com/watchcore/watchcore/go"
)

var (
	scheme        = runtime.NewScheme()
	codecs        = serializer.NewCodecFactory(scheme)
	protobufCodec runtime.Codec
)

func init() {
	metav1.AddToGroupVersion(scheme, metav1.SchemeGroupVersion)
	utilruntime.Must(example.AddToScheme(scheme))
	utilruntime.Must(examplev1.AddToScheme(scheme))
	form := protobuf.NewSerializer(scheme, scheme)
	protobufCodec = codecs.CodecForVersions(form, form, schema.GroupVersions{examplev1.SchemeGroupVersion}, nil)
}

// podAttributes are those that pods have in Kubernetes.
func podAttributes(object runtime.Object) (labels.Set, fields.Set, error) {
	pod, ok := object.(*example.Pod)
	if !ok {
		return nil, nil, fmt.Errorf("%T is not a pod", object)
	}
	return pod.Labels, fields.Set{
		"metadata.name": pod.Name, "metadata.namespace": pod.Namespace, "spec.nodeName": pod.Spec.NodeName,
		"spec.restartPolicy": string(pod.Spec.RestartPolicy), "status.phase": string(pod.Status.Phase),
	}, nil
}

// world is an etcd and the storage of pods over it.
type world struct {
	*store
	client   *clientv3.Client
	recorder *storagetesting.KubernetesRecorder
}

type setting func(*options, *watchcore.Config)

func withCodec(codec runtime.Codec) setting {
	return func(o *options, _ *watchcore.Config) { o.codec = codec }
}

func withTransformer(t value.Transformer) setting {
	return func(o *options, _ *watchcore.Config) { o.transformer = t }
}

func withCache(config watchcore.Config) setting {
	return func(_ *options, c *watchcore.Config) { *c = config }
}

func newWorld(t testing.TB, settings ...setting) *world {
	server, _ := etcd3testing.NewUnsecuredEtcd3TestClientServer(t)
	o := options{
		prefix: pathPrefix(etcd3testing.PathPrefix()), resourcePrefix: "/pods/", resource: schema.GroupResource{Resource: "pods"},
		codec: protobufCodec, transformer: identity.NewEncryptCheckTransformer(), attributes: podAttributes,
		newFunc: func() runtime.Object { return &example.Pod{} }, newListFunc: func() runtime.Object { return &example.PodList{} },
		slow: time.Millisecond, quiet: time.Millisecond,
	}
	var kept watchcore.Config
	for _, set := range settings {
		set(&o, &kept)
	}
	kept.Prefix = o.prefix
	declare(&kept)
	versioner := storage.APIObjectVersioner{}
	compactor := etcd3.NewCompactor(server.V3Client.Client, 0, clock.RealClock{}, nil)
	t.Cleanup(compactor.Stop)
	transformer, decoder := o.transformer, etcd3.NewDefaultDecoder(o.codec, versioner)
	if utilfeature.DefaultFeatureGate.Enabled(features.AllowUnsafeMalformedObjectDeletion) { // as a server does it
		transformer, decoder = etcd3.WithCorruptObjErrorHandlingTransformer(transformer), etcd3.WithCorruptObjErrorHandlingDecoder(decoder)
	}
	writes, err := etcd3.New(server.V3Client, compactor, o.codec, o.newFunc, o.newListFunc, etcd3testing.PathPrefix(), o.resourcePrefix, o.resource,
		transformer, etcd3.NewDefaultLeaseManagerConfig(), decoder, versioner)
	must(t, err)
	t.Cleanup(writes.Close)
	o.writes = writes
	o.cache, err = watchcore.Open(t.Context(), watchcore.EtcdConfig{Endpoints: server.V3Client.Endpoints()}, kept)
	must(t, err)
	t.Cleanup(func() { o.cache.Close() })
	s, err := newStore(o)
	must(t, err)
	t.Cleanup(s.stop)
	return &world{s, server.V3Client.Client, server.V3Client.Kubernetes.(*storagetesting.KubernetesRecorder)}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// raise makes a revision that concerns no pod.
func (w *world) raise(ctx context.Context, t *testing.T) int64 {
	answer, err := w.client.Put(ctx, "increaseRV", "ok")
	must(t, err)
	return answer.Header.Revision
}

// compact compacts etcd as an API server does, and waits until the cache knows.
func (w *world) compact(ctx context.Context, t *testing.T, resourceVersion string) {
	revision, err := w.versioner.ParseResourceVersion(resourceVersion)
	must(t, err)
	var version int64
	for range 2 { // the first one learns the version of the key
		if version, _, _, err = etcd3.Compact(ctx, w.client, version, int64(revision)); err == nil {
			break
		}
	}
	must(t, err)
	if !w.snapshots() {
		return // nobody looks
	}
	until(t, "the compaction is seen", func() bool { return w.CompactRevision() == int64(revision) })
	must(t, w.cache.Compact(revision))
	until(t, "the cache is compacted", func() bool { return w.cache.Oldest() > revision })
}

func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it did not happen: %s", what)
		}
	}
}

// seen is a storage whose Create returns when the cache has the object.
type seen struct{ *world }

func (s seen) Create(ctx context.Context, key string, object, out runtime.Object, ttl uint64) error {
	if err := s.world.Create(ctx, key, object, out, ttl); err != nil {
		return err
	}
	revision, err := s.versioner.ObjectResourceVersion(out)
	if err == nil {
		err = s.cache.WaitUntil(ctx, revision)
	}
	return err
}

var errSynthetic = errors.New("synthetic error")

// failing is a switch of what stands between the storage and the objects.
type failing struct {
	value.Transformer
	runtime.Codec
	on atomic.Bool
}

func (f *failing) TransformFromStorage(ctx context.Context, data []byte, about value.Context) ([]byte, bool, error) {
	if f.on.Load() {
		return nil, false, errSynthetic
	}
	return f.Transformer.TransformFromStorage(ctx, data, about)
}

func (f *failing) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	if f.on.Load() {
		return nil, nil, errSynthetic
	}
	return f.Codec.Decode(data, defaults, into)
}

func testCodec() runtime.Codec { return apitesting.TestCodec(codecs, examplev1.SchemeGroupVersion) }

// reversing stores the bytes in another order, as an encryption does.
type reversing struct{}

func (reversing) TransformFromStorage(_ context.Context, data []byte, _ value.Context) ([]byte, bool, error) {
	slices.Reverse(data)
	return data, false, nil
}

func (reversing) TransformToStorage(_ context.Context, data []byte, _ value.Context) ([]byte, error) {
	data = slices.Clone(data)
	slices.Reverse(data)
	return data, nil
}

// reloading stores objects as they are, until its configuration is loaded again; then as inner does. It reads both.
type reloading struct {
	value.Transformer
	inner  value.Transformer
	on     atomic.Bool
	stored atomic.Int64 // how many objects were stored
}

func (r *reloading) TransformFromStorage(ctx context.Context, data []byte, about value.Context) ([]byte, bool, error) {
	if bytes.HasPrefix(data, []byte("k8s\x00")) {
		return r.Transformer.TransformFromStorage(ctx, data, about)
	}
	return r.inner.TransformFromStorage(ctx, data, about)
}

func (r *reloading) TransformToStorage(ctx context.Context, data []byte, about value.Context) ([]byte, error) {
	r.stored.Add(1)
	if r.on.Load() {
		return r.inner.TransformToStorage(ctx, data, about)
	}
	return r.Transformer.TransformToStorage(ctx, data, about)
}
