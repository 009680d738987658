// Package apiserver puts a watchcore cache in the place of the watch cache of an API server that is built on
// k8s.io/apiserver. One line replaces it, without a fork:
//
//	config.RESTOptionsGetter = apiserver.RESTOptionsGetter(config.RESTOptionsGetter)
//
// All resources of one etcd then share one cache, with one watch and one copy of each object, as the bytes that etcd has, outside
// of Go's heap. Objects are decoded when somebody needs them, once for all who do. Reads and watches are answered
// as the cacher of k8s.io/apiserver answers them, from the cache or from etcd by the same rules; writes go to etcd.
//
// What differs: a watcher that does not read for long is not ended. It continues with the newest version of each object that has
// changed meanwhile, in the order of their revisions. A resource that is declared later is served at once.
//
// The package needs cgo. Everything below the storage prefix is kept, also resources whose watch cache is switched off.
package apiserver
