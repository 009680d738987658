package kubernetes_test

import (
	"bytes"
	"maps"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/cache"

	watchcore "github.com/watchcore/watchcore/go"
	"github.com/watchcore/watchcore/go/internal/bounded"
	"github.com/watchcore/watchcore/go/internal/etcdtest"
	"github.com/watchcore/watchcore/go/kubernetes"
)

// Informers over a cache that follows a real etcd, decoded by Kubernetes' own serializer from its
// protobuf storage form: they see every write, also over a restart and a compaction of etcd.
func TestKU16InformersFollowARealEtcd(t *testing.T) {
	bounded.LeavesNothing(t)
	s := etcdtest.New(t, "http")
	s.Start()
	config := declared()
	config.Prefix = prefix
	config.Fields[2] = watchcore.AttributeJSON("spec.nodeName", "/spec/nodeName", 2, 10)
	c, err := watchcore.Open(bounded.Context(t), watchcore.EtcdConfig{Endpoints: []string{s.Client}}, config)
	check(t, err)
	t.Cleanup(func() { c.Close() })
	pods := kubernetes.Config{
		Prototype: &corev1.Pod{},
		Decode:    kubernetes.DecodeWith(scheme.Codecs.UniversalDeserializer(), &corev1.Pod{}),
	}
	l, err := kubernetes.New(c, pods)
	check(t, err)
	informers := map[string]cache.SharedIndexInformer{}
	for _, node := range []string{"", "n0", "n1"} {
		var lw cache.ListerWatcher = l
		if node != "" {
			lw = selected{l, "spec.nodeName=" + node}
		}
		informers[node] = newInformer(lw)
		runs(t, informers[node])
	}
	encoder := scheme.Codecs.EncoderForVersion(protobufOf(t), corev1.SchemeGroupVersion)
	expected := map[string]map[string]bool{"": {}, "n0": {}, "n1": {}}
	for number := range 90 {
		name, node := "pod"+strconv.Itoa(number%30), "n"+strconv.Itoa(number%4)
		pod := &corev1.Pod{Spec: corev1.PodSpec{NodeName: node}}
		pod.Namespace, pod.Name = "ns", name
		var value bytes.Buffer
		check(t, encoder.Encode(pod, &value))
		s.Ask("kv/put", map[string]any{"key": []byte(podKey("ns", name)), "value": value.Bytes()})
		for _, of := range expected {
			delete(of, "ns/"+name)
		}
		expected[""]["ns/"+name] = true
		if of := expected[node]; of != nil {
			of["ns/"+name] = true
		}
		switch number {
		case 40:
			s.Kill()
			s.Start()
		case 60:
			s.Ask("kv/deleterange", map[string]any{"key": []byte(podKey("ns", "pod5"))})
			for _, of := range expected {
				delete(of, "ns/pod5")
			}
			revision, err := c.ConsistentRevision(bounded.Context(t))
			check(t, err)
			s.Ask("kv/compaction", map[string]any{"revision": revision})
		}
	}
	for node, informer := range informers {
		bounded.Eventually(t, "the informer of the node "+node, func() bool {
			got := map[string]bool{}
			for name := range stateOf(t, informer.GetStore().List()) {
				got[name] = true
			}
			return maps.Equal(got, expected[node])
		})
	}
}
