package informer

// EnqueueKeys returns a handler that adds the key of each change to a queue, such as a
// workqueue.Queue[string]. The worker then reads the current object from the lister. A resync adds all keys.
func EnqueueKeys[T any](queue interface{ Add(key string) }) Handler[T] {
	return HandlerFuncs[T]{
		Add:    func(object *Object[T], _ bool) { queue.Add(object.Key) },
		Update: func(_, new *Object[T]) { queue.Add(new.Key) },
		Delete: func(last *Object[T]) { queue.Add(last.Key) },
	}
}
