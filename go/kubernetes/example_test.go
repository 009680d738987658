package kubernetes_test

import (
	"context"
	"fmt"
	"log"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/cache"
	toolswatch "k8s.io/client-go/tools/watch"
	"k8s.io/client-go/util/workqueue"

	watchcore "github.com/watchcore/watchcore/go"
	"github.com/watchcore/watchcore/go/kubernetes"
)

// filled is the cache of the examples: two pods.
func filled() (*watchcore.Cache, *watchcore.Writer) {
	c, err := watchcore.New(watchcore.Config{Prefix: "/registry/pods/", Labels: watchcore.LabelsJSON("/metadata/labels")})
	if err != nil {
		log.Fatal(err)
	}
	writer, err := c.Writer()
	if err != nil {
		log.Fatal(err)
	}
	for revision, change := range []watchcore.Change{
		watchcore.Put("/registry/pods/default/web", `{"metadata":{"namespace":"default","name":"web","labels":{"app":"web"}}}`),
		watchcore.Put("/registry/pods/default/db", `{"metadata":{"namespace":"default","name":"db","labels":{"app":"db"}}}`),
	} {
		if err := writer.Apply(uint64(revision+1), change); err != nil {
			log.Fatal(err)
		}
	}
	return c, writer
}

func pods(c *watchcore.Cache) *kubernetes.ListWatch {
	l, err := kubernetes.New(c, kubernetes.Config{
		Prototype: &corev1.Pod{},
		Decode:    kubernetes.DecodeWith(scheme.Codecs.UniversalDeserializer(), &corev1.Pod{}),
	})
	if err != nil {
		log.Fatal(err)
	}
	return l
}

// A controller: client-go's informer on the cache, and client-go's queue of names.
func Example() {
	c, writer := filled()
	defer c.Close()
	defer writer.Close()

	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	informer := cache.NewSharedIndexInformer(pods(c), &corev1.Pod{}, 0, cache.Indexers{})
	queue := workqueue.NewTyped[cache.ObjectName]()
	defer queue.ShutDown()
	if _, err := informer.AddEventHandler(kubernetes.Enqueue(queue)); err != nil {
		log.Fatal(err)
	}
	go informer.RunWithContext(ctx)
	cache.WaitForCacheSync(ctx.Done(), informer.HasSynced)

	reconcile := func() {
		name, _ := queue.Get() // waits
		defer queue.Done(name)
		object, there, err := informer.GetStore().GetByKey(name.String())
		if err != nil {
			log.Fatal(err)
		}
		if !there {
			fmt.Println(name, "is gone")
			return
		}
		fmt.Println(name, "at", object.(*corev1.Pod).ResourceVersion)
	}
	reconcile()
	reconcile()
	if err := writer.Apply(3, watchcore.Delete("/registry/pods/default/web")); err != nil {
		log.Fatal(err)
	}
	reconcile()
	// Unordered output:
	// default/db at 2
	// default/web at 1
	// default/web is gone
}

// A list is of one revision, and a watch from there misses nothing.
func ExampleListWatch() {
	c, writer := filled()
	defer c.Close()
	defer writer.Close()
	l := pods(c)

	list, err := l.List(metav1.ListOptions{LabelSelector: "app=web"})
	if err != nil {
		log.Fatal(err)
	}
	m, err := meta.ListAccessor(list)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(meta.LenList(list), "at", m.GetResourceVersion())

	w, err := l.Watch(metav1.ListOptions{LabelSelector: "app=web", ResourceVersion: m.GetResourceVersion()})
	if err != nil {
		log.Fatal(err)
	}
	defer w.Stop()
	if err := writer.Apply(3, watchcore.Put("/registry/pods/default/web", `{"metadata":{"namespace":"default","name":"web"}}`)); err != nil {
		log.Fatal(err)
	}
	e := <-w.ResultChan() // it has left the selector
	pod := e.Object.(*corev1.Pod)
	fmt.Println(e.Type, pod.Name, pod.Labels, "at", pod.ResourceVersion)
	// Output:
	// 1 at 2
	// DELETED web map[app:web] at 3
}

// What a program waits for, by client-go's own Until.
func ExampleListWatch_WatchWithContext() {
	c, writer := filled()
	defer c.Close()
	defer writer.Close()
	if err := writer.Apply(3, watchcore.Delete("/registry/pods/default/db")); err != nil {
		log.Fatal(err)
	}
	e, err := toolswatch.Until(context.Background(), "2", pods(c), func(e watch.Event) (bool, error) {
		return e.Type == watch.Deleted, nil
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(e.Object.(*corev1.Pod).Name, "was deleted")
	// Output: db was deleted
}

// A subscription with options of one's own, as a watch of apimachinery.
func ExampleListWatch_Over() {
	c, writer := filled()
	defer c.Close()
	defer writer.Close()
	sub, err := c.Subscribe(context.Background(), watchcore.SubscribeOptions{Range: watchcore.RangeKey("/registry/pods/default/web")})
	if err != nil {
		log.Fatal(err)
	}
	w := pods(c).Over(sub)
	defer w.Stop()
	for range 2 {
		e := <-w.ResultChan()
		fmt.Println(e.Type, e.Object.(*corev1.Pod).Name)
	}
	// Output:
	// ADDED web
	// BOOKMARK
}

func ExampleStatusError() {
	c, writer := filled()
	defer c.Close()
	defer writer.Close()
	if err := writer.Compact(2); err != nil {
		log.Fatal(err)
	}
	_, _, err := c.Get(context.Background(), "/registry/pods/default/web", watchcore.ReadOptions{Read: watchcore.ReadExact(1)})
	status := kubernetes.StatusError(err).Status()
	fmt.Println(status.Code, status.Reason)
	// Output: 410 Expired
}

// Objects that are not Kubernetes' own: whatever has metadata, made of key and value by the program.
func ExampleDecode() {
	c, err := watchcore.New(watchcore.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	writer, err := c.Writer()
	if err != nil {
		log.Fatal(err)
	}
	defer writer.Close()
	if err := writer.Apply(1, watchcore.Put("/config/color", "blue")); err != nil {
		log.Fatal(err)
	}
	decode := func(key string, value []byte) (runtime.Object, error) {
		entry := &corev1.ConfigMap{Data: map[string]string{"value": string(value)}}
		entry.Name = strings.TrimPrefix(key, "/config/")
		return entry, nil
	}
	l, err := kubernetes.New(c, kubernetes.Config{Prototype: &corev1.ConfigMap{}, Decode: decode})
	if err != nil {
		log.Fatal(err)
	}
	list, err := l.List(metav1.ListOptions{FieldSelector: "metadata.name=color"})
	if err != nil {
		log.Fatal(err)
	}
	items, err := meta.ExtractList(list)
	if err != nil {
		log.Fatal(err)
	}
	entry := items[0].(*corev1.ConfigMap)
	fmt.Println(entry.Name, entry.Data["value"], "at", entry.ResourceVersion)
	// Output: color blue at 1
}

// Fifty controllers of one process: one decoding of each object, and one object in memory for all.
func ExampleConfig() {
	c, writer := filled()
	defer c.Close()
	defer writer.Close()
	l, err := kubernetes.New(c, kubernetes.Config{
		Prototype: &corev1.Pod{},
		Decode:    kubernetes.DecodeWith(scheme.Codecs.UniversalDeserializer(), &corev1.Pod{}),
		NewList:   func() runtime.Object { return &corev1.PodList{} },
		Share:     true, // nobody changes them
		Undecodable: func(key string, revision uint64, err error) {
			log.Printf("%s of revision %d is left out: %v", key, revision, err)
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	list, err := l.List(metav1.ListOptions{})
	if err != nil {
		log.Fatal(err)
	}
	for _, pod := range list.(*corev1.PodList).Items {
		fmt.Println(pod.Namespace, pod.Name)
	}
	// Output:
	// default db
	// default web
}

func ExampleEnqueue() {
	queue := workqueue.NewTyped[cache.ObjectName]()
	handler := kubernetes.Enqueue(queue) // for informer.AddEventHandler
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}}
	handler.OnAdd(pod, false)
	handler.OnUpdate(pod, pod)
	handler.OnDelete(cache.DeletedFinalStateUnknown{Key: "default/web", Obj: pod})
	fmt.Println(queue.Len())
	name, _ := queue.Get()
	fmt.Println(name)
	// Output:
	// 1
	// default/web
}
