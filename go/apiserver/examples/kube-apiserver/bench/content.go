package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes/scheme"
)

const (
	group      = "bench.example.com"
	namespaces = 10 // of the pods, which also have one of ten labels
	nodes      = 1000
	writers    = 32
	// marker stands before the number of a change in a pod's annotation.
	marker       = "change-"
	markerDigits = 8
)

// stored is an object as the API server has it in etcd.
func stored(object runtime.Object) (string, error) {
	var out bytes.Buffer
	err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(object, &out)
	return out.String(), err
}

// template makes a pod through the API, which sets its defaults, and completes it as a kubelet does.
func (b *bench) template(ctx context.Context, s *server) (*corev1.Pod, error) {
	container := func(name string) map[string]any {
		return map[string]any{
			"name": name, "image": "registry.example.com/team/" + name + ":v1.42.7", "args": []string{"--listen=:8080", "--log-level=info", "--config=/etc/app/config.yaml"},
			"ports": []any{map[string]any{"name": "http", "containerPort": 8080}},
			"env": []any{
				map[string]any{"name": "POD_NAME", "valueFrom": map[string]any{"fieldRef": map[string]any{"fieldPath": "metadata.name"}}},
				map[string]any{"name": "REGION", "value": "eu-central-1"}, map[string]any{"name": "GOMEMLIMIT", "value": "450MiB"},
			},
			"resources":      map[string]any{"requests": map[string]any{"cpu": "100m", "memory": "256Mi"}, "limits": map[string]any{"memory": "512Mi"}},
			"volumeMounts":   []any{map[string]any{"name": "config", "mountPath": "/etc/app"}},
			"readinessProbe": map[string]any{"httpGet": map[string]any{"path": "/ready", "port": "http"}, "periodSeconds": 5},
		}
	}
	text, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Pod",
		"metadata": map[string]any{
			"name": "template", "namespace": "default",
			"labels":          map[string]string{"app": "app-0", "pod-template-hash": "7d4b9c6f5d", "tier": "backend"},
			"annotations":     map[string]string{"prometheus.io/scrape": "true", "checksum/config": strings.Repeat("0123456789abcdef", 4)},
			"ownerReferences": []any{map[string]any{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "app-7d4b9c6f5d", "uid": uuid.NewUUID(), "controller": true}},
		},
		"spec": map[string]any{
			"containers": []any{container("app"), container("sidecar")},
			"volumes":    []any{map[string]any{"name": "config", "configMap": map[string]any{"name": "app-config"}}},
		},
	})
	if err != nil {
		return nil, err
	}
	const path = "/api/v1/namespaces/default/pods"
	answer, err := s.request(ctx, s.client, http.MethodPost, path, "", bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	answer.Body.Close()
	key := "/registry/pods/default/template"
	kept, err := b.client.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	if len(kept.Kvs) != 1 {
		return nil, errors.New("etcd has no " + key)
	}
	decoded, _, err := scheme.Codecs.UniversalDeserializer().Decode(kept.Kvs[0].Value, nil, nil)
	if err != nil {
		return nil, err
	}
	pod := decoded.(*corev1.Pod)
	now := metav1.NewTime(time.Now().Truncate(time.Second))
	for _, t := range []corev1.PodConditionType{corev1.PodInitialized, corev1.PodReady, corev1.ContainersReady, corev1.PodScheduled} {
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: t, Status: corev1.ConditionTrue, LastTransitionTime: now})
	}
	pod.Status.Phase, pod.Status.HostIP, pod.Status.PodIP, pod.Status.StartTime = corev1.PodRunning, "10.1.2.3", "10.244.17.5", &now
	for _, c := range pod.Spec.Containers {
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{
			Name: c.Name, Ready: true, Image: c.Image, ImageID: c.Image + "@sha256:" + strings.Repeat("0123456789abcdef", 4),
			ContainerID: "containerd://" + strings.Repeat("fedcba9876543210", 4), State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
		})
	}
	_, err = b.client.Delete(ctx, key)
	return pod, err
}

// pod is the pod of a number, as of the change of a number. The pods of a namespace have all labels, and those of a label are in all
// namespaces.
func (b *bench) pod(number, change int) (key string, pod *corev1.Pod) {
	pod = b.pods.DeepCopy()
	pod.Name, pod.Namespace = fmt.Sprintf("app-7d4b9c6f5d-%06d", number), fmt.Sprintf("bench-%d", number%namespaces)
	pod.UID = types.UID(fmt.Sprintf("%08x-3b1c-4e6f-9d2a-%012x", number, number))
	pod.Labels["app"] = fmt.Sprintf("app-%d", number/namespaces%10)
	pod.Spec.NodeName = fmt.Sprintf("node-%d", number%nodes)
	pod.Annotations["bench.example.com/change"] = fmt.Sprintf("%s%0*d", marker, markerDigits, change)
	return "/registry/pods/" + pod.Namespace + "/" + pod.Name, pod
}

// fill writes many values, some at a time.
func (b *bench) fill(ctx context.Context, count int, make func(number int) (key, value string, err error)) error {
	writing, ctx := errgroup.WithContext(ctx)
	var next atomic.Int64
	for range writers {
		writing.Go(func() error {
			for {
				number := int(next.Add(1)) - 1
				if number >= count {
					return nil
				}
				key, value, err := make(number)
				if err == nil {
					_, err = b.client.Put(ctx, key, value)
				}
				if err != nil {
					return err
				}
			}
		})
	}
	return writing.Wait()
}

func (b *bench) fillPods(ctx context.Context) error {
	return b.fill(ctx, b.count, func(number int) (string, string, error) {
		key, pod := b.pod(number, 0)
		value, err := stored(pod)
		return key, value, err
	})
}

// change puts a pod of another annotation.
func (b *bench) change(ctx context.Context, number int) error {
	key, pod := b.pod(number%b.count, number)
	value, err := stored(pod)
	if err == nil {
		_, err = b.client.Put(ctx, key, value)
	}
	return err
}

// declare makes custom resources whose objects may have any fields, and waits until they are served.
func (s *server) declare(ctx context.Context, plural ...string) error {
	for _, name := range plural {
		text := fmt.Sprintf(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"%[1]s.%[2]s"},
			"spec":{"group":"%[2]s","scope":"Namespaced","names":{"plural":"%[1]s","singular":"%[3]s","kind":"%[4]s"},"versions":[{"name":"v1","served":true,
			"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`,
			name, group, strings.TrimSuffix(name, "s"), kind(name))
		answer, err := s.request(ctx, s.client, http.MethodPost, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "", strings.NewReader(text))
		if err != nil {
			return err
		}
		answer.Body.Close()
	}
	for _, name := range plural {
		if err := s.served(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// served waits until a custom resource is listed.
func (s *server) served(ctx context.Context, name string) error {
	return poll(ctx, time.Minute, name+" is served", func() bool {
		_, err := s.get(ctx, resourcePath(name)+"?limit=1", "")
		return err == nil
	})
}

func kind(plural string) string {
	return strings.ToUpper(plural[:1]) + strings.TrimSuffix(plural[1:], "s")
}

func resourcePath(plural string) string { return "/apis/" + group + "/v1/" + plural }

func customKey(plural, name string) string {
	return "/registry/" + group + "/" + plural + "/default/" + name
}

// report is a custom object of about so many bytes in many small parts, as a report on a container's packages has.
func report(number, size int) (key, value string, err error) {
	type part = map[string]any
	var parts []part
	for length := 0; length < size; {
		n := len(parts)
		one := part{
			"name": fmt.Sprintf("library-%d", n), "version": fmt.Sprintf("1.%d.%d", n%50, number), "purl": fmt.Sprintf("pkg:golang/example.com/library-%d@1.%d.%d", n, n%50, number),
			"licenses": []string{"Apache-2.0"}, "supplier": part{"name": "example", "contact": "packages@example.com"},
		}
		text, err := json.Marshal(one)
		if err != nil {
			return "", "", err
		}
		parts, length = append(parts, one), length+len(text)+1
	}
	name := fmt.Sprintf("report-%d", number)
	text, err := json.Marshal(part{
		"apiVersion": group + "/v1", "kind": kind(reports), "report": part{"components": parts},
		"metadata": part{"name": name, "namespace": "default", "uid": uuid.NewUUID(), "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z"},
	})
	return customKey(reports, name), string(text), err
}

// lease is one that a node renews.
func lease(number, renewed int) (key, value string, err error) {
	name, seconds, at := fmt.Sprintf("node-%d", number), int32(40), metav1.NewMicroTime(time.Now())
	value, err = stored(&coordinationv1.Lease{
		TypeMeta: metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"},
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: "kube-node-lease", UID: types.UID(fmt.Sprintf("%08x-3b1c-4e6f-9d2a-%012x", number, number)), CreationTimestamp: metav1.NewTime(at.Time),
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: name, UID: "1"}}, Annotations: map[string]string{"renewed": fmt.Sprint(renewed)},
		},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &name, LeaseDurationSeconds: &seconds, RenewTime: &at},
	})
	return "/registry/leases/kube-node-lease/" + name, value, err
}

func (b *bench) remove(ctx context.Context, prefix string) error {
	_, err := b.client.Delete(ctx, prefix, clientv3.WithPrefix())
	return err
}
