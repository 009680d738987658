package kubernetes

import (
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

// Enqueue is a handler for client-go's informers that adds the name of each object that was added,
// changed or deleted to client-go's queue: what a controller begins with. The queue merges names that
// wait, so that it holds at most one of each object however slow the controller is. An object that has
// no name is left out. From any goroutine.
func Enqueue(queue workqueue.TypedInterface[cache.ObjectName]) cache.ResourceEventHandler {
	add := func(object any) {
		if name, err := cache.DeletionHandlingObjectToName(object); err == nil {
			queue.Add(name)
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    add,
		UpdateFunc: func(_, object any) { add(object) },
		DeleteFunc: add,
	}
}
