package apiserver

import (
	"path"
	"reflect"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"
)

// process are the caches of the functions that name none.
var process = NewCaches(Config{})

// Decorator is the StorageDecorator over the caches of this process, in the place of genericregistry.StorageWithCacher.
func Decorator() generic.StorageDecorator { return process.Decorator() }

// RESTOptionsGetter wraps the RESTOptionsGetter of a server: resources that would have got the watch cache of k8s.io/apiserver get
// the caches of this process. Resources without a watch cache (--watch-cache=false, --watch-cache-sizes=events#0) stay as they are.
func RESTOptionsGetter(inner generic.RESTOptionsGetter) generic.RESTOptionsGetter {
	return process.RESTOptionsGetter(inner)
}

// Decorator is a StorageDecorator over these caches. Any goroutine.
func (c *Caches) Decorator() generic.StorageDecorator {
	return func(config *storagebackend.ConfigForResource, resourcePrefix string, _ func(runtime.Object) (string, error),
		newFunc, newListFunc func() runtime.Object, getAttrs storage.AttrFunc, _ storage.IndexerFuncs, _ *cache.Indexers,
	) (storage.Interface, factory.DestroyFunc, error) {
		writes, destroy, err := generic.NewRawStorage(config, newFunc, newListFunc, resourcePrefix)
		if err != nil {
			return nil, nil, err
		}
		kept, giveBack, err := c.get(&config.Config)
		if err != nil {
			destroy()
			return nil, nil, err
		}
		s, err := newStore(options{
			cache: kept.Cache, writes: writes, prefix: pathPrefix(config.Prefix), resourcePrefix: resourcePrefix,
			resource: config.GroupResource, codec: config.Codec, transformer: config.Transformer,
			newFunc: newFunc, newListFunc: newListFunc, attributes: getAttrs, decoded: c.config.Decoded, decodedBytes: c.config.DecodedBytes,
			slow: slowLook, quiet: quietPeriod,
		})
		if err != nil {
			giveBack()
			destroy()
			return nil, nil, err
		}
		uncount := kept.meter.add(config.GroupResource, pathPrefix(path.Join(config.Prefix, resourcePrefix)))
		return s, func() { // called again by subresources
			s.stop()
			uncount()
			giveBack()
			destroy()
		}, nil
	}
}

// RESTOptionsGetter wraps the RESTOptionsGetter of a server, as the package's function does, over these caches.
func (c *Caches) RESTOptionsGetter(inner generic.RESTOptionsGetter) generic.RESTOptionsGetter {
	return optionsGetter{inner, c.Decorator()}
}

type optionsGetter struct {
	inner     generic.RESTOptionsGetter
	decorator generic.StorageDecorator
}

func (g optionsGetter) GetRESTOptions(resource schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	options, err := g.inner.GetRESTOptions(resource, example)
	if err == nil && isCached(options) {
		options.Decorator = g.decorator
	}
	return options, err
}

// isCached says whether a resource is to have a watch cache.
func isCached(options generic.RESTOptions) bool {
	undecorated := reflect.ValueOf(generic.UndecoratedStorage).Pointer()
	return options.Decorator != nil && reflect.ValueOf(options.Decorator).Pointer() != undecorated
}
