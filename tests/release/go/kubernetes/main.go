// A stranger's program: a list of pods by client-go's types, from a cache that it fills itself.
package main

import (
	"encoding/json"
	"fmt"
	"log"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	watchcore "github.com/watchcore/watchcore/go"
	"github.com/watchcore/watchcore/go/kubernetes"
)

func names() ([]string, error) {
	cache, err := watchcore.New(watchcore.Config{Prefix: "/registry/pods/"})
	if err != nil {
		return nil, err
	}
	defer cache.Close()
	writer, err := cache.Writer()
	if err != nil {
		return nil, err
	}
	defer writer.Close()
	if err := writer.Apply(1, watchcore.Put("/registry/pods/default/web", `{"metadata":{"namespace":"default","name":"web"}}`)); err != nil {
		return nil, err
	}
	pods, err := kubernetes.New(cache, kubernetes.Config{
		Prototype: &corev1.Pod{},
		NewList:   func() runtime.Object { return &corev1.PodList{} },
		Decode: func(_ string, value []byte) (runtime.Object, error) {
			pod := &corev1.Pod{}
			return pod, json.Unmarshal(value, pod)
		},
	})
	if err != nil {
		return nil, err
	}
	found, err := pods.List(metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var names []string
	for _, pod := range found.(*corev1.PodList).Items {
		names = append(names, pod.Name)
	}
	return names, nil
}

func main() {
	names, err := names()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("pods:", names)
}
