package main

import (
	"context"
	"fmt"
	"os/exec"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	extensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	extensions "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/watchcore/watchcore/go/apiserver/examples/kube-apiserver/demo/internal/check"
	"github.com/watchcore/watchcore/go/apiserver/examples/kube-apiserver/demo/internal/follow"
)

var (
	pods        = follow.Builtin("", "v1", "pods", "pods")
	configMaps  = follow.Builtin("", "v1", "configmaps", "configmaps")
	namespaces  = follow.Builtin("", "v1", "namespaces", "namespaces")
	deployments = follow.Builtin("apps", "v1", "deployments", "deployments")
	replicaSets = follow.Builtin("apps", "v1", "replicasets", "replicasets")
	widgets1    = follow.Custom("demo.example.com", "v1", "widgets")
	widgets2    = follow.Custom("demo.example.com", "v2", "widgets")
	definitions = decoded(follow.Builtin("apiextensions.k8s.io", "v1", "customresourcedefinitions", "apiextensions.k8s.io/customresourcedefinitions"), definition)
)

// resources are all that are watched.
var resources = []follow.Resource{
	pods, configMaps, namespaces, deployments, replicaSets, widgets1, definitions,
	follow.Builtin("", "v1", "nodes", "minions"),
	follow.Builtin("", "v1", "secrets", "secrets"),
	follow.Builtin("", "v1", "serviceaccounts", "serviceaccounts"),
	follow.Builtin("", "v1", "services", "services/specs"),
	follow.Builtin("", "v1", "endpoints", "services/endpoints"),
	follow.Builtin("", "v1", "events", "events"),
	follow.Builtin("apps", "v1", "controllerrevisions", "controllerrevisions"),
	follow.Builtin("coordination.k8s.io", "v1", "leases", "leases"),
	follow.Builtin("discovery.k8s.io", "v1", "endpointslices", "endpointslices"),
	follow.Builtin("rbac.authorization.k8s.io", "v1", "clusterroles", "clusterroles"),
	follow.Builtin("rbac.authorization.k8s.io", "v1", "clusterrolebindings", "clusterrolebindings"),
	follow.Builtin("rbac.authorization.k8s.io", "v1", "roles", "roles"),
	follow.Builtin("rbac.authorization.k8s.io", "v1", "rolebindings", "rolebindings"),
	follow.Builtin("scheduling.k8s.io", "v1", "priorityclasses", "priorityclasses"),
	follow.Builtin("flowcontrol.apiserver.k8s.io", "v1", "flowschemas", "flowschemas"),
	follow.Custom("apiregistration.k8s.io", "v1", "apiservices"),
}

func decoded(r follow.Resource, decode func([]byte) (runtime.Object, error)) follow.Resource {
	r.Decode = decode
	return r
}

// definition decodes a CustomResourceDefinition, which etcd has as v1beta1, as clients without its Go type receive it.
func definition(value []byte) (runtime.Object, error) {
	internal, err := runtime.Decode(extensions.Codecs.UniversalDecoder(), value)
	if err != nil {
		return nil, err
	}
	o, err := extensions.Scheme.ConvertToVersion(internal, extensionsv1.SchemeGroupVersion)
	if err != nil {
		return nil, err
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return nil, err
	}
	return follow.Unstructured(content)
}

const (
	trafficNamespace = "traffic"
	appsNamespace    = "apps"
)

// addWatchers makes the watchers: each resource from a list and from the events of a stream, and the busy ones in all ways.
func (d *demo) addWatchers() {
	add := func(r follow.Resource, form follow.Form, streams bool, name string, view check.View) {
		way := "list, then watch"
		if streams {
			way = "streamed list"
		}
		w := &follow.Watcher{Resource: r, Form: form, Streams: streams, Started: &d.started, Clients: d.clients}
		w.Name, w.View = fmt.Sprintf("%s %s: %s, %s%s", r.Resource, r.Version, form, way, name), view
		d.watchers = append(d.watchers, w)
	}
	for _, r := range append(resources, widgets2) {
		other := follow.Protobuf
		if r.Custom || r.Decode != nil {
			other = follow.JSON
		}
		add(r, follow.JSON, false, "", check.View{})
		add(r, other, true, "", check.View{})
	}
	even := check.View{Labels: parse("tier=a")}
	for _, r := range []follow.Resource{configMaps, widgets1, widgets2} {
		add(r, follow.JSON, true, ", tier=a", even)
	}
	add(pods, follow.JSON, true, ", app=web", check.View{Labels: parse("app=web")})
	for _, r := range []follow.Resource{configMaps, pods, widgets1, widgets2} {
		add(r, follow.JSON, false, ", metadata only", check.View{Metadata: true})
	}
	add(configMaps, follow.Protobuf, false, ", tier!=a,round in (1,2,3)", check.View{Labels: parse("tier!=a,round in (1,2,3)")})
	add(configMaps, follow.Protobuf, false, ", in a namespace", check.View{Namespace: trafficNamespace})
	add(configMaps, follow.JSON, true, ", one object", check.View{Namespace: trafficNamespace, Fields: fields.OneTermEqualSelector("metadata.name", "c7")})
	add(pods, follow.Protobuf, true, ", of a node", check.View{Fields: fields.OneTermEqualSelector("spec.nodeName", "node-1")})
	add(pods, follow.JSON, false, ", without a node", check.View{Fields: fields.OneTermEqualSelector("spec.nodeName", "")})
	add(pods, follow.Protobuf, false, ", running", check.View{Fields: fields.ParseSelectorOrDie("status.phase=Running,spec.nodeName!=node-0")})
	add(pods, follow.JSON, true, ", in a namespace", check.View{Namespace: appsNamespace})
	add(widgets1, follow.JSON, true, ", in a namespace", check.View{Namespace: widgetNamespace})

	kubectl := func(r follow.Resource, name string, view check.View, arguments ...string) {
		k := &follow.Kubectl{Resource: r, Command: func(ctx context.Context) *exec.Cmd {
			return d.KubectlCommand(ctx, append([]string{"get", r.Resource, "--watch", "--output-watch-events", "--show-managed-fields", "--output=json"}, arguments...)...)
		}}
		k.Name, k.View = "kubectl get -w "+r.Resource+name, view
		d.kubectls = append(d.kubectls, k)
	}
	kubectl(namespaces, "", check.View{})
	kubectl(configMaps, " -A -l tier=a", even, "--all-namespaces", "--selector=tier=a")
	kubectl(pods, " -n "+appsNamespace, check.View{Namespace: appsNamespace}, "--namespace="+appsNamespace)
	kubectl(replicaSets, " -A", check.View{}, "--all-namespaces")
	kubectl(deployments, " -A", check.View{}, "--all-namespaces")
}

func parse(text string) labels.Selector {
	s, err := labels.Parse(text)
	if err != nil {
		panic(err)
	}
	return s
}

// watch starts everything that watches; the channel is closed when all have ended.
func (d *demo) watch(ctx context.Context) (<-chan struct{}, error) {
	d.addWatchers()
	for _, w := range d.watchers {
		if d.fault != "" && w.Resource.Resource == "pods" && w.View.Namespace == appsNamespace {
			w.Fault, w.Double = 100, d.fault == "double"
			say("fault: event 100 of %q: %s", w.Name, d.fault)
			break
		}
	}
	d.informers = []*follow.Informer{
		follow.NewInformer(ctx, d.clients, pods, &corev1.Pod{}),
		follow.NewInformer(ctx, d.clients, configMaps, &corev1.ConfigMap{}),
		follow.NewInformer(ctx, d.clients, namespaces, &corev1.Namespace{}),
		follow.NewInformer(ctx, d.clients, replicaSets, &appsv1.ReplicaSet{}),
	}
	var running sync.WaitGroup
	for _, w := range d.watchers {
		running.Go(func() { w.Run(ctx) })
	}
	for _, k := range d.kubectls {
		running.Go(func() { k.Run(ctx) })
	}
	ended := make(chan struct{})
	go func() {
		running.Wait()
		close(ended)
	}()
	return ended, nil
}
