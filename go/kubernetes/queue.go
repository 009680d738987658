package kubernetes

import (
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

// Enqueue returns a handler for client-go's informers that adds the name of each added, changed or
// deleted object to client-go's work queue, the first stage of a controller. The queue merges
// waiting names, so it holds at most one per object however slow the controller is. An object
// without a name is skipped. The handler may be used from any goroutine.
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
