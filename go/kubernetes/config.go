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

	"watchcore"
)

// Decode makes an object out of a key and its value, a new one at each call. The bytes are
// its own. It need not set resourceVersion: a ListWatch does, from the key-value's revision.
// It is called from many goroutines at once. A panic of it counts as its error.
type Decode func(key string, value []byte) (runtime.Object, error)

// DecodeWith is a Decode by a decoder of apimachinery, such as
// scheme.Codecs.UniversalDeserializer() of client-go, which reads what an API server has
// stored: JSON, YAML and its protobuf form. Values that do not name their kind are taken for
// the prototype's.
func DecodeWith(decoder runtime.Decoder, prototype runtime.Object) Decode {
	return func(_ string, value []byte) (runtime.Object, error) {
		object, _, err := decoder.Decode(value, nil, prototype.DeepCopyObject())
		return object, err
	}
}

// Config says what a ListWatch makes of a cache. Prototype and Decode are needed.
type Config struct {
	// Prototype is an empty object of the type that Decode makes, such as &corev1.Pod{}.
	// Bookmarks are copies of it: a reflector ignores those of another type than its own.
	Prototype runtime.Object
	// Decode makes objects out of key-values.
	Decode Decode
	// NewList makes an empty list, such as &corev1.PodList{}, for programs that want that
	// type: ListOf makes one by a scheme. nil: lists are *internalversion.List of apimachinery, which reflectors take
	// apart without copying an object.
	NewList func() runtime.Object

	// Range is which keys of the cache; the zero Range is all of them.
	Range watchcore.Range
	// Name is for people: watches have it in Cache.Subscriptions and in messages.
	Name string
	// Resource is what errors about permissions name.
	Resource schema.GroupResource

	// Attributes gives the labels and fields of an object, for those selectors that the cache
	// cannot evaluate: see Config.Labels and Config.Fields of watchcore. Of an empty object
	// (the prototype) it must give every field that it knows: a selector of another is
	// refused. A panic of it counts as its error. nil: metadata.labels, metadata.name and
	// metadata.namespace.
	Attributes func(runtime.Object) (labels.Set, fields.Set, error)

	// Share decodes each value once and gives the same object to all lists and watches: ten
	// informers of one ListWatch have each object in memory once. Nobody may change an
	// object then, not even by an informer's transform function.
	Share bool
	// ShareSize goes with Share: how many objects are remembered. 0 is
	// watchcore.DefaultDecoderSize.
	ShareSize int

	// Undecodable is called for each value that Decode refuses; whoever lists or watches goes
	// on then. A list, and the state by a watch, leaves such a key out: an informer that takes one
	// anew (after 410) has it deleted. Who watches and had an earlier value of the key keeps
	// that until the key has another one or is deleted. A watch that began behind the refused
	// value does not know whether its consumer has an earlier one, and ends with 410 where
	// that decides. Called on the goroutine of the list or the watch: from many at once. nil: the
	// list is refused and the watch ends, with a status 500 that names the key; so they do where it panics.
	//
	// What the cache's part of a selector leaves out is not decoded, and so not refused: see
	// the package's documentation.
	Undecodable func(key string, revision uint64, err error)

	// BookmarkInterval is how often a watch that allows bookmarks gets one, where its position
	// has moved without an event. 0 is 10 s.
	BookmarkInterval time.Duration
	// WaitTimeout is how long a list or the initial state of a watch waits for its revision,
	// for the first listing and for the source. 0 is watchcore.DefaultWaitTimeout.
	WaitTimeout time.Duration
	// NoWatchList says to reflectors that they are to list and then watch, instead of having
	// the initial state by a watch.
	NoWatchList bool
}

const defaultBookmarkInterval = 10 * time.Second

// ListWatch lists and watches a cache as client-go's reflectors, informers and watchers want
// it: it is a cache.ListerWatcher and a cache.ListerWatcherWithContext. It holds nothing but
// its configuration (and what Config.Share remembers). From any goroutine.
type ListWatch struct {
	cache  *watchcore.Cache
	config Config
	shared *watchcore.Decoder[*sharedObject] // nil without Share
	known  fields.Set                        // the fields that Attributes knows
}

// New makes a ListWatch over a cache, which the caller closes when it is done. An error
// says which field of the configuration is missing or wrong.
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

// IsWatchListSemanticsUnSupported is what client-go's reflectors ask: see Config.NoWatchList.
func (l *ListWatch) IsWatchListSemanticsUnSupported() bool { return l.config.NoWatchList }

func metadataAttributes(object runtime.Object) (labels.Set, fields.Set, error) {
	m, err := meta.Accessor(object)
	if err != nil {
		return nil, nil, err
	}
	return m.GetLabels(), fields.Set{"metadata.name": m.GetName(), "metadata.namespace": m.GetNamespace()}, nil
}

// sharedObject gets its resourceVersion from the first who asks: all who get it ask with the
// same revision.
type sharedObject struct {
	version sync.Once
	object  runtime.Object
	err     error
}

// guarded calls a function of the configuration. It sees values that somebody else wrote, so its panic is
// an error of the value, and does not end the program.
func guarded(name string, call func() error) (err error) {
	defer func() {
		if panicked := recover(); panicked != nil {
			err = fmt.Errorf("Config.%s panicked: %v\n%s", name, panicked, debug.Stack())
		}
	}()
	return call()
}

// decode calls the function of the configuration.
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

// attributes calls the function of the configuration.
func (l *ListWatch) attributes(object runtime.Object) (byLabel labels.Set, byField fields.Set, err error) {
	err = guarded("Attributes", func() error {
		byLabel, byField, err = l.config.Attributes(object)
		return err
	})
	return byLabel, byField, err
}

// refused reports a value that cannot be decoded. An error ends the list or the watch.
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

// present is the object of a value, with that value's revision.
func (l *ListWatch) present(key string, value []byte, revision uint64) (runtime.Object, error) {
	object, err := l.decode(key, value)
	if err == nil {
		err = stamp(object, revision)
	}
	return object, err
}

// versioned is the object that a decoder shares.
func versioned(s *sharedObject, revision uint64, err error) (runtime.Object, error) {
	if err != nil {
		return nil, err
	}
	s.version.Do(func() { s.err = stamp(s.object, revision) })
	return s.object, s.err
}

// item is the object of an item of a page.
func (l *ListWatch) item(kv watchcore.KeyValueRef) (runtime.Object, error) {
	if l.shared == nil {
		return l.present(kv.Key(), kv.Value(), kv.ModRevision())
	}
	s, err := l.shared.Item(kv)
	return versioned(s, kv.ModRevision(), err)
}

// newObject is the object of an event's value.
func (l *ListWatch) newObject(e watchcore.Event) (runtime.Object, error) {
	if l.shared == nil {
		return l.present(e.Key(), e.Value(), e.ModRevision())
	}
	s, err := l.shared.Value(e)
	return versioned(s, e.ModRevision(), err)
}

// oldObject is the object of the value before an event, always one of its own: its
// resourceVersion is going to be the event's.
func (l *ListWatch) oldObject(e watchcore.Event) (runtime.Object, error) {
	value := e.PrevValue()
	if value == nil {
		return nil, errPreviousLost
	}
	return l.decode(e.Key(), value)
}
