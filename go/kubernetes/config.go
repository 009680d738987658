package kubernetes

import (
	"fmt"
	"runtime/debug"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	watchcore "github.com/watchcore/watchcore/go"
)

// Decode makes a new object of a key and its value. Decode may keep the bytes. It need not set
// resourceVersion: ListWatch sets it from the key-value's revision. Decode is called from many
// goroutines at once. A panic counts as an error.
type Decode func(key string, value []byte) (runtime.Object, error)

// DecodeWith makes a Decode of a decoder of apimachinery, such as client-go's
// scheme.Codecs.UniversalDeserializer(), which reads the forms that an API server stores: JSON,
// YAML and protobuf. Values without a kind get the prototype's kind.
func DecodeWith(decoder runtime.Decoder, prototype runtime.Object) Decode {
	return func(_ string, value []byte) (runtime.Object, error) {
		object, _, err := decoder.Decode(value, nil, prototype.DeepCopyObject())
		return object, err
	}
}

// Config configures a ListWatch. Prototype and Decode are required.
type Config struct {
	// Prototype is an empty object of the type that Decode makes, such as &corev1.Pod{}. Bookmarks
	// are copies of it, because a reflector ignores bookmarks of another type.
	Prototype runtime.Object
	// Decode makes objects of key-values.
	Decode Decode
	// NewList makes an empty list, such as &corev1.PodList{}, for programs that need that type:
	// ListOf makes such a function from a scheme. nil: lists are *internalversion.List of
	// apimachinery, which reflectors read without copying an object.
	NewList func() runtime.Object

	// Range selects keys of the cache; the zero Range is all of them.
	Range watchcore.Range
	// Name is the name of watches in Cache.Subscriptions and in messages.
	Name string
	// Resource is the resource's name in errors about permissions.
	Resource schema.GroupResource

	// Attributes returns the labels and fields of an object, for selectors that the cache cannot
	// evaluate: see Config.Labels and Config.Fields of watchcore. For an empty object (the
	// prototype) it must return every field that it supports: selectors with other fields are
	// refused. A panic counts as an error. nil: metadata.labels, metadata.name and
	// metadata.namespace.
	Attributes func(runtime.Object) (labels.Set, fields.Set, error)

	// Share decodes each value once and uses the same object for all lists and watches: ten
	// informers of one ListWatch have each object in memory once. No consumer may then modify an
	// object, not even by an informer's transform function.
	Share bool
	// ShareSize is the number of objects that Share remembers. 0 is watchcore.DefaultDecoderSize.
	ShareSize int

	// Undecodable is called for each value that Decode refuses; lists and watches then continue. A
	// list, and the initial state of a watch, omits such a key: an informer that lists again (after
	// 410) has it deleted. A watcher that had an earlier value of the key keeps it until the key
	// has another value or is deleted. A watch that started after the refused value does not know
	// whether its consumer has an earlier one, and ends with 410 if that matters. Undecodable is
	// called on the goroutines of lists and watches, many at once. nil, or a panic: the list is
	// refused and the watch ends, with a status 500 that names the key.
	//
	// Objects that the cache's part of a selector excludes are not decoded, and so not refused: see
	// the package's documentation.
	Undecodable func(key string, revision uint64, err error)

	// BookmarkInterval is the interval of bookmarks, for watches that allow them and whose position
	// has advanced without an event. 0 is 10 s.
	BookmarkInterval time.Duration
	// WaitTimeout limits how long a list or the initial state of a watch waits for its revision,
	// for the first listing and for the source. 0 is watchcore.DefaultWaitTimeout.
	WaitTimeout time.Duration
	// NoWatchList tells reflectors to list and then watch, instead of requesting the initial state
	// by a watch.
	NoWatchList bool
}

const defaultBookmarkInterval = 10 * time.Second

// ListWatch lists and watches a cache for client-go's reflectors, informers and watchers: it is a
// cache.ListerWatcher and a cache.ListerWatcherWithContext. ListWatch stores only its configuration (and
// the objects of Config.Share). ListWatch may be used from any goroutine.
type ListWatch struct {
	cache  *watchcore.Cache
	config Config
	shared *watchcore.Decoder[*sharedObject] // nil without Share
	known  fields.Set                        // the fields that Attributes supports
}

// New makes a ListWatch over a cache, which the caller closes in the end. The error names the field
// of the configuration that is missing or wrong.
func New(cache *watchcore.Cache, config Config) (*ListWatch, error) {
	switch {
	case cache == nil:
		return nil, fmt.Errorf("kubernetes: New without a cache. Make one with watchcore.Open or watchcore.New")
	case config.Prototype == nil:
		return nil, fmt.Errorf("kubernetes: Config.Prototype is nil. Give an empty object of the type that Decode makes")
	case config.Decode == nil:
		return nil, fmt.Errorf("kubernetes: Config.Decode is nil. Give a function, such as DecodeWith makes")
	case config.ShareSize != 0 && !config.Share:
		return nil, fmt.Errorf("kubernetes: Config.ShareSize is %d without Share. Set both, or neither", config.ShareSize)
	case config.ShareSize < 0 || config.BookmarkInterval < 0 || config.WaitTimeout < 0:
		return nil, fmt.Errorf("kubernetes: a size or time of Config is negative. Give 0 for the default")
	}
	if _, err := meta.Accessor(config.Prototype); err != nil {
		return nil, fmt.Errorf("kubernetes: Config.Prototype is %T, which has no metadata: %w", config.Prototype, err)
	}
	if config.Attributes == nil {
		config.Attributes = metadataAttributes
	}
	if config.BookmarkInterval == 0 {
		config.BookmarkInterval = defaultBookmarkInterval
	}
	if config.WaitTimeout == 0 {
		config.WaitTimeout = watchcore.DefaultWaitTimeout
	}
	if config.NewList == nil {
		config.NewList = func() runtime.Object { return &metainternalversion.List{} }
	}
	l := &ListWatch{cache: cache, config: config}
	var err error
	if _, l.known, err = l.attributes(config.Prototype.DeepCopyObject()); err != nil {
		return nil, fmt.Errorf("kubernetes: Config.Attributes refuses the prototype: %w. It has to give every field that it knows", err)
	}
	if config.Share {
		l.shared = watchcore.NewDecoder(func(key, value []byte) (*sharedObject, error) {
			object, err := l.decode(string(key), append([]byte{}, value...))
			return &sharedObject{object: object}, err
		}, config.ShareSize)
	}
	return l, nil
}

// IsWatchListSemanticsUnSupported is called by client-go's reflectors: see Config.NoWatchList.
func (l *ListWatch) IsWatchListSemanticsUnSupported() bool { return l.config.NoWatchList }

func metadataAttributes(object runtime.Object) (labels.Set, fields.Set, error) {
	m, err := meta.Accessor(object)
	if err != nil {
		return nil, nil, err
	}
	return m.GetLabels(), fields.Set{"metadata.name": m.GetName(), "metadata.namespace": m.GetNamespace()}, nil
}

// sharedObject gets its resourceVersion from the first request; all requests for it have the same revision.
type sharedObject struct {
	version sync.Once
	object  runtime.Object
	err     error
}

// guarded calls a function of the configuration. Foreign values may make it panic, so the panic is
// an error of the value, and does not end the program.
func guarded(name string, call func() error) (err error) {
	defer func() {
		if panicked := recover(); panicked != nil {
			err = fmt.Errorf("Config.%s panicked: %v\n%s", name, panicked, debug.Stack())
		}
	}()
	return call()
}

func (l *ListWatch) decode(key string, value []byte) (object runtime.Object, err error) {
	err = guarded("Decode", func() error {
		object, err = l.config.Decode(key, value)
		return err
	})
	switch {
	case err != nil:
		return nil, err
	case object == nil:
		return nil, fmt.Errorf("Config.Decode returned neither an object nor an error")
	}
	return object, nil
}

func (l *ListWatch) attributes(object runtime.Object) (byLabel labels.Set, byField fields.Set, err error) {
	err = guarded("Attributes", func() error {
		byLabel, byField, err = l.config.Attributes(object)
		return err
	})
	return byLabel, byField, err
}

// refused reports a value that cannot be decoded. If it returns an error, the list or the watch ends with it.
func (l *ListWatch) refused(key string, revision uint64, why error) error {
	if l.config.Undecodable == nil {
		return errCorrupt(key, revision, why)
	}
	err := guarded("Undecodable", func() error {
		l.config.Undecodable(key, revision, why)
		return nil
	})
	if err != nil {
		return errCorrupt(key, revision, err)
	}
	return nil
}

// stamp sets resourceVersion.
func stamp(object runtime.Object, revision uint64) error {
	m, err := meta.Accessor(object)
	if err != nil {
		return fmt.Errorf("Config.Decode made a %T, which has no metadata: %w", object, err)
	}
	m.SetResourceVersion(strconv.FormatUint(revision, 10))
	return nil
}

// present returns the object of a value, with that value's revision.
func (l *ListWatch) present(key string, value []byte, revision uint64) (runtime.Object, error) {
	object, err := l.decode(key, value)
	if err == nil {
		err = stamp(object, revision)
	}
	return object, err
}

// versioned returns the shared object of a decoder.
func versioned(s *sharedObject, revision uint64, err error) (runtime.Object, error) {
	if err != nil {
		return nil, err
	}
	s.version.Do(func() { s.err = stamp(s.object, revision) })
	return s.object, s.err
}

// item returns the object of an item of a page.
func (l *ListWatch) item(kv watchcore.KeyValueRef) (runtime.Object, error) {
	if l.shared == nil {
		return l.present(kv.Key(), kv.Value(), kv.ModRevision())
	}
	s, err := l.shared.Item(kv)
	return versioned(s, kv.ModRevision(), err)
}

// newObject returns the object of an event's value.
func (l *ListWatch) newObject(e watchcore.Event) (runtime.Object, error) {
	if l.shared == nil {
		return l.present(e.Key(), e.Value(), e.ModRevision())
	}
	s, err := l.shared.Value(e)
	return versioned(s, e.ModRevision(), err)
}

// oldObject returns the object of the value before an event. oldObject is never shared, because its
// resourceVersion will be the event's.
func (l *ListWatch) oldObject(e watchcore.Event) (runtime.Object, error) {
	value := e.PrevValue()
	if value == nil {
		return nil, errPreviousLost
	}
	return l.decode(e.Key(), value)
}
