package apiserver

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/apiserver/pkg/storage"
)

// defaulting is a codec of a version that has got a default since objects were stored.
func defaulting(t *testing.T) runtime.Codec {
	newer := runtime.NewScheme()
	must(t, example.AddToScheme(newer))
	must(t, examplev1.AddToScheme(newer))
	newer.AddTypeDefaultingFunc(&examplev1.Pod{}, func(o any) {
		if pod := o.(*examplev1.Pod); pod.Spec.SchedulerName == "" {
			pod.Spec.SchedulerName = "default"
		}
	})
	return serializer.NewCodecFactory(newer).LegacyCodec(examplev1.SchemeGroupVersion)
}

// The bytes in etcd are not those that clients get, also where both are JSON of one version: an object that was stored before a default
// was added, with a field that is no more, in another order. Gets, lists and watches have what the storage over etcd makes of it.
func TestStoredBytesAreNotServed(t *testing.T) {
	codec := defaulting(t)
	w := newWorld(t, withCodec(codec))
	from := w.create(t, "before").ResourceVersion
	stored := `{"kind":"Pod","spec":{"gone":1},"metadata":{"namespace":"default","name":"old"},"apiVersion":"example.apiserver.k8s.io/v1"}`
	answer, err := w.client.Put(t.Context(), w.prefix+"pods/default/old", stored)
	must(t, err)
	revision := fmt.Sprint(answer.Header.Revision)

	form := func(o runtime.Object) string {
		var out bytes.Buffer
		if cacheable, ok := o.(runtime.CacheableObject); ok {
			must(t, cacheable.CacheEncode("form", codec.Encode, &out))
		} else {
			must(t, codec.Encode(o, &out))
		}
		return out.String()
	}
	direct := &example.Pod{}
	must(t, w.writes.Get(t.Context(), podKey("old"), storage.GetOptions{}, direct))
	want := form(direct)
	if !strings.Contains(want, `"schedulername":"default"`) || strings.Contains(want, "gone") || !strings.Contains(want, `"resourceVersion":"`+revision+`"`) {
		t.Fatalf("etcd's storage has %s", want)
	}
	got := &example.Pod{}
	must(t, w.Get(t.Context(), podKey("old"), storage.GetOptions{ResourceVersion: revision}, got))
	list := &example.PodList{}
	must(t, w.GetList(t.Context(), podKey("old"), storage.ListOptions{ResourceVersion: revision, Predicate: storage.Everything}, list))
	for what, o := range map[string]runtime.Object{"get": got, "list": &list.Items[0], "watch": (<-w.follow(t, from).ResultChan()).Object} {
		if has := form(o); has != want {
			t.Errorf("the %s has\n%s, not\n%s", what, has, want)
		}
	}
}

// What it would save to give out stored bytes: decoding and encoding, against a copy with the resourceVersion put in.
func BenchmarkServedBytes(b *testing.B) {
	core := runtime.NewScheme()
	must(b, corev1.AddToScheme(core))
	form := protobuf.NewSerializer(core, core)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "pod", Labels: map[string]string{"app": "web", "tier": "front"}}}
	pod.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
	for i := 0; pod.Size() < 3000; i++ {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{
			Name: fmt.Sprint("container-", i), Image: "registry.example.com/team/image:v1", Args: []string{"--first=one", "--second=two"},
			Env:          []corev1.EnvVar{{Name: "NODE", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "spec.nodeName"}}}},
			VolumeMounts: []corev1.VolumeMount{{Name: "token", MountPath: "/var/run/secrets", ReadOnly: true}},
		})
	}
	custom := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Report", "metadata": map[string]any{"namespace": "default", "name": "report"},
	}}
	var items []any
	for i := range 130 { // 10 KB
		items = append(items, map[string]any{"name": fmt.Sprint("package-", i), "version": "1.2.3", "severity": "low", "score": int64(i), "fixed": false})
	}
	custom.Object["spec"] = map[string]any{"items": items}
	for _, c := range []struct {
		name   string
		object runtime.Object
		encode func(runtime.Object, io.Writer) error
		decode func([]byte, *schema.GroupVersionKind, runtime.Object) (runtime.Object, *schema.GroupVersionKind, error)
	}{
		{"pod", pod, form.Encode, form.Decode},
		{"custom", custom, unstructured.UnstructuredJSONScheme.Encode, unstructured.UnstructuredJSONScheme.Decode},
	} {
		var stored bytes.Buffer
		must(b, c.encode(c.object, &stored))
		var out bytes.Buffer
		b.Run(c.name+"/decoded", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				o, _, err := c.decode(stored.Bytes(), nil, nil)
				must(b, err)
				o.(metav1.Object).SetResourceVersion("123456789")
				out.Reset()
				must(b, c.encode(o, &out))
			}
			b.ReportMetric(float64(stored.Len()), "stored-bytes")
		})
		b.Run(c.name+"/copied", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				out.Reset()
				at := stored.Len() / 8
				out.Write(stored.Bytes()[:at])
				out.WriteString(`"resourceVersion":"123456789",`)
				out.Write(stored.Bytes()[at:])
			}
		})
	}
}
