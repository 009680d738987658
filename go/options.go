package watchcore

// #include "abi.h"
import "C"

import (
	"math"
	"runtime"
	"slices"
	"strings"
	"time"
	"unsafe"
)

// Option says what a cache is to be, and for Open and StartFeeder where its content
// comes from.
type Option func(*cacheConfig)

type cacheConfig struct {
	prefix, name              string
	capacity, capacityBytes   uint64
	keepEvents                uint64
	keepAge                   time.Duration
	maxKeyBytes, maxValueSize uint64
	expectLoad                bool
	fields                    []fieldConfig
	labelsFrom                *string
	indexes                   []indexConfig
	maxBuckets                uint64
	etcd                      *etcdConfig
	noWait                    bool
	err                       error
}

type fieldConfig struct {
	kind          uint32
	name, pointer string
	depth         uint32
	protobuf      []uint32
}

type indexConfig struct {
	kind  uint32
	name  string
	depth uint32
}

type etcdConfig struct {
	endpoints                          []string
	user, password                     string
	tls                                TLSConfig
	startRevision, pageSize, tooFar    uint64
	progressInterval, dial, perRequest time.Duration
	followCompaction                   time.Duration
	onlyKey                            string
	stopAfterListing, noProgress       bool
	pace                               *Subscription
}

// named says whether a server is named at all.
func (c *etcdConfig) named() bool { return c != nil && len(c.endpoints) > 0 }

// size refuses a negative number; 0 is the default.
func (c *cacheConfig) size(option string, number int64) uint64 {
	if number < 0 && c.err == nil {
		c.err = newError(ErrInvalidArgument, "%s(%d): a size cannot be negative. Leave it away for the default", option, number)
	}
	return uint64(number)
}

// depth refuses what C has no room for.
func (c *cacheConfig) depth(option string, number int) uint32 {
	if int64(number) > math.MaxUint32 && c.err == nil {
		c.err = newError(ErrInvalidArgument, "%s: depth %d; a key has no so many segments", option, number)
	}
	return uint32(c.size(option, int64(number)))
}

func etcdOption(set func(*etcdConfig)) Option {
	return func(c *cacheConfig) {
		if c.etcd == nil {
			c.etcd = &etcdConfig{}
		}
		set(c.etcd)
	}
}

// Prefix is the key range: keys that start with it. Without it, every key.
func Prefix(prefix string) Option { return func(c *cacheConfig) { c.prefix = prefix } }

// Name is for messages and statistics. Without it, the prefix.
func Name(name string) Option { return func(c *cacheConfig) { c.name = name } }

// Capacity is the log's length in events, at most. Without it, 65536.
func Capacity(events int) Option {
	return func(c *cacheConfig) { c.capacity = c.size("Capacity", int64(events)) }
}

// CapacityBytes is the log's length in bytes, at most. Without it, 256 MiB.
func CapacityBytes(bytes int64) Option {
	return func(c *cacheConfig) { c.capacityBytes = c.size("CapacityBytes", int64(bytes)) }
}

// Keep sizes the log by age: what is older leaves, as long as so many events stay, and
// what is younger stays, as long as Capacity and CapacityBytes allow. Without it, those
// two alone decide.
func Keep(events int, age time.Duration) Option {
	return func(c *cacheConfig) {
		c.keepEvents, c.keepAge = c.size("Keep", int64(events)), age
		if age < time.Millisecond && c.err == nil {
			c.err = newError(ErrInvalidArgument, "Keep: an age of %v. Give a millisecond or more", age)
		}
	}
}

// MaxKeyBytes is the longest key that is accepted. Without it, 64 KiB.
func MaxKeyBytes(bytes int) Option {
	return func(c *cacheConfig) { c.maxKeyBytes = c.size("MaxKeyBytes", int64(bytes)) }
}

// MaxValueBytes is the longest value that is accepted. Without it, 16 MiB.
func MaxValueBytes(bytes int) Option {
	return func(c *cacheConfig) { c.maxValueSize = c.size("MaxValueBytes", int64(bytes)) }
}

// Field declares an attribute for field selectors and indexes: the scalar at an RFC
// 6901 pointer of a JSON value, such as "/spec/nodeName". A string is taken as it is,
// a number or a boolean by its JSON text; arrays, objects and null are absent. The
// numbers say where it is in a value of Kubernetes' protobuf storage form: a pod's
// spec.nodeName is 2, 10; without them only "/metadata/name" and
// "/metadata/namespace" are known there. At most 64 attributes; each is extracted
// once, when a change is written. A value that cannot be read has none of them and
// is counted (Stats.ExtractFailures).
func Field(name, pointer string, protobufPath ...uint32) Option {
	return fieldOption(fieldConfig{kind: C.WATCHCORE_ATTRIBUTE_JSON, name: name, pointer: pointer, protobuf: slices.Clone(protobufPath)})
}

// KeySegment declares a segment of the key as an attribute. The key is split at
// '/', where a leading '/' does not count: of "/registry/pods/ns/x", segment 2 is
// "ns".
func KeySegment(name string, depth int) Option {
	return func(c *cacheConfig) {
		fieldOption(fieldConfig{kind: C.WATCHCORE_ATTRIBUTE_KEY_SEGMENT, name: name, depth: c.depth("KeySegment", depth)})(c)
	}
}

func fieldOption(field fieldConfig) Option {
	return func(c *cacheConfig) { c.fields = append(c.fields, field) }
}

// LabelsFrom says where the labels of a JSON value are, for label selectors and
// indexes: the members of the object at this RFC 6901 pointer, for Kubernetes'
// objects "/metadata/labels" (in their protobuf storage form always
// metadata.labels). Without it a label selector is refused.
func LabelsFrom(pointer string) Option {
	return func(c *cacheConfig) { c.labelsFrom = &pointer }
}

// IndexByKey lets subscriptions of one key read only the events of that key. A
// cache has at most 8 indexes; each costs the writer one lookup an event, and 16
// bytes (IndexByField and IndexByLabel 32) in each slot of the log.
func IndexByKey() Option { return indexOption(indexConfig{kind: C.WATCHCORE_INDEX_KEY}) }

// IndexByPrefix gathers by the first segments of the key, split as KeySegment says:
// at depth 3 "/registry/pods/ns/a" is in the bucket "/registry/pods/ns/".
func IndexByPrefix(depth int) Option {
	return func(c *cacheConfig) {
		indexOption(indexConfig{kind: C.WATCHCORE_INDEX_PREFIX, depth: c.depth("IndexByPrefix", depth)})(c)
	}
}

// IndexByField gathers by a declared attribute, for field selectors name=value.
func IndexByField(name string) Option {
	return indexOption(indexConfig{kind: C.WATCHCORE_INDEX_FIELD, name: name})
}

// IndexByLabel gathers by a label, for label selectors name=value.
func IndexByLabel(name string) Option {
	return indexOption(indexConfig{kind: C.WATCHCORE_INDEX_LABEL, name: name})
}

func indexOption(index indexConfig) Option {
	return func(c *cacheConfig) { c.indexes = append(c.indexes, index) }
}

// MaxBuckets is the most buckets of all indexes together; subscriptions beyond
// them scan. Without it, 65536.
func MaxBuckets(buckets int) Option {
	return func(c *cacheConfig) { c.maxBuckets = c.size("MaxBuckets", int64(buckets)) }
}

// ExpectLoad makes an embedded cache wait for Writer.Load or Loading.Finish before
// it is ready.
func ExpectLoad() Option { return func(c *cacheConfig) { c.expectLoad = true } }

// WithoutWaiting lets Open return before the first listing: see Cache.WaitReady.
func WithoutWaiting() Option { return func(c *cacheConfig) { c.noWait = true } }

// Etcd names the servers that the cache follows, such as "http://127.0.0.1:2379".
func Etcd(endpoints ...string) Option {
	return etcdOption(func(c *etcdConfig) { c.endpoints = append(c.endpoints, endpoints...) })
}

// User is the name and password for etcd.
func User(name, password string) Option {
	return etcdOption(func(c *etcdConfig) { c.user, c.password = name, password })
}

// TLSConfig is how to trust the server, and who the client is. All PEM.
type TLSConfig struct {
	CA         []byte // the authority's certificate; needed for https
	Cert, Key  []byte // the client's certificate and key
	ServerName string // the name that the server's certificate must have; without it, the endpoint's host
}

// TLS is for endpoints with https.
func TLS(config TLSConfig) Option {
	return etcdOption(func(c *etcdConfig) { c.tls = config })
}

// StartRevision begins with etcd's own history from a revision on, not at the newest.
func StartRevision(revision uint64) Option {
	return etcdOption(func(c *etcdConfig) { c.startRevision = revision })
}

// StopAfterListing lists once and does not follow.
func StopAfterListing() Option {
	return etcdOption(func(c *etcdConfig) { c.stopAfterListing = true })
}

// PageSize is the most keys per page of a listing. Without it, a listing is one stream where etcd has them (3.7 and
// newer); elsewhere its pages are as long as some 32 MiB allow. etcd counts the rest of the range for each page, so short
// ones make a listing of many keys slow.
func PageSize(keys int) Option {
	return func(c *cacheConfig) {
		size := c.size("PageSize", int64(keys))
		etcdOption(func(e *etcdConfig) { e.pageSize = size })(c)
	}
}

// FollowCompaction asks etcd every so often (15 s is a good interval) whether
// the oldest revision of the window is still there; where it was compacted, the
// cache purges it too. Off unless asked for.
func FollowCompaction(interval time.Duration) Option {
	return etcdOption(func(c *etcdConfig) { c.followCompaction = interval })
}

// OnlyKey lists and watches this one key of the cache's prefix, so that read
// access to it alone is enough.
func OnlyKey(key string) Option {
	return etcdOption(func(c *etcdConfig) { c.onlyKey = key })
}

// Pace, with StartRevision: the feeder stays at most half a window ahead of this
// subscription of the cache while it replays etcd's history, so that one longer
// than the log is seen whole. The subscription is opened before the feeder starts:
//
//	cache, err := watchcore.New(watchcore.ExpectLoad())
//	sub, err := cache.Subscribe(ctx, watchcore.After(revision))
//	err = cache.StartFeeder(watchcore.Etcd(endpoint), watchcore.StartRevision(revision), watchcore.Pace(sub))
//
// One that was closed since holds nothing up.
func Pace(sub *Subscription) Option {
	return etcdOption(func(c *etcdConfig) { c.pace = sub })
}

// TooFarBehind: list instead of replaying where more than so many revisions
// were missed. Without it, 20000.
func TooFarBehind(revisions uint64) Option {
	return etcdOption(func(c *etcdConfig) { c.tooFar = revisions })
}

// ProgressInterval: ask for progress after so long without news. Without it, 1 s.
func ProgressInterval(interval time.Duration) Option {
	return etcdOption(func(c *etcdConfig) { c.progressInterval = interval })
}

// NoProgressRequests sends none.
func NoProgressRequests() Option {
	return etcdOption(func(c *etcdConfig) { c.noProgress = true })
}

// DialTimeout is the longest that connecting may take. Without it, 5 s.
func DialTimeout(timeout time.Duration) Option {
	return etcdOption(func(c *etcdConfig) { c.dial = timeout })
}

// RequestTimeout is the longest that one request may take. Without it, 10 s.
func RequestTimeout(timeout time.Duration) Option {
	return etcdOption(func(c *etcdConfig) { c.perRequest = timeout })
}

// ---- for C --------------------------------------------------------------------

// milliseconds rounds up, so that a short time does not become "the default".
func milliseconds(d time.Duration) C.int64_t {
	if d > 0 {
		d += time.Millisecond - 1
	}
	return C.int64_t(d / time.Millisecond)
}

func bit(on bool) C.uint32_t {
	if on {
		return 1
	}
	return 0
}

// absent is NULL where the text is empty.
func absent(pin *runtime.Pinner, text string) C.watchcore_bytes {
	if text == "" {
		return C.watchcore_bytes{}
	}
	data := unsafe.StringData(text)
	pin.Pin(data)
	return C.watchcore_bytes{data: unsafe.Pointer(data), length: C.size_t(len(text))}
}

var nothing byte

// present is not NULL where the text is empty.
func present(pin *runtime.Pinner, text string) C.watchcore_bytes {
	bytes := absent(pin, text)
	if bytes.data == nil {
		bytes.data = unsafe.Pointer(&nothing)
	}
	return bytes
}

func (c *cacheConfig) fill(o *C.watchcore_cache_options, pin *runtime.Pinner) {
	*o = C.watchcore_cache_options{
		size:            C.sizeof_watchcore_cache_options,
		expect_load:     bit(c.expectLoad),
		prefix:          absent(pin, c.prefix),
		name:            absent(pin, c.name),
		capacity:        C.uint64_t(c.capacity),
		capacity_bytes:  C.uint64_t(c.capacityBytes),
		max_key_bytes:   C.uint64_t(c.maxKeyBytes),
		max_value_bytes: C.uint64_t(c.maxValueSize),
		max_buckets:     C.uint64_t(c.maxBuckets),
		keep_events:     C.uint64_t(c.keepEvents),
		keep_ms:         C.int64_t(c.keepAge.Milliseconds()),
	}
	if c.labelsFrom != nil {
		o.labels_from = present(pin, *c.labelsFrom)
	}
	if len(c.fields) > 0 {
		fields := make([]C.watchcore_attribute, len(c.fields))
		for i := range fields {
			c.fields[i].fill(&fields[i], pin)
		}
		pin.Pin(&fields[0])
		o.fields, o.field_count = &fields[0], C.size_t(len(fields))
	}
	if len(c.indexes) > 0 {
		indexes := make([]C.watchcore_index, len(c.indexes))
		for i, index := range c.indexes {
			indexes[i] = C.watchcore_index{
				size:  C.sizeof_watchcore_index,
				kind:  C.uint32_t(index.kind),
				name:  absent(pin, index.name),
				depth: C.uint32_t(index.depth),
			}
		}
		pin.Pin(&indexes[0])
		o.indexes, o.index_count = &indexes[0], C.size_t(len(indexes))
	}
}

func (f *fieldConfig) fill(o *C.watchcore_attribute, pin *runtime.Pinner) {
	*o = C.watchcore_attribute{
		size:  C.sizeof_watchcore_attribute,
		kind:  C.uint32_t(f.kind),
		name:  absent(pin, f.name),
		depth: C.uint32_t(f.depth),
	}
	if f.kind == C.WATCHCORE_ATTRIBUTE_JSON {
		o.pointer = present(pin, f.pointer)
	}
	if len(f.protobuf) > 0 {
		pin.Pin(&f.protobuf[0])
		o.protobuf_path, o.protobuf_path_length = (*C.uint32_t)(&f.protobuf[0]), C.size_t(len(f.protobuf))
	}
}

func (c *etcdConfig) fill(o *C.watchcore_etcd_options, pin *runtime.Pinner) {
	*o = C.watchcore_etcd_options{
		size:                 C.sizeof_watchcore_etcd_options,
		stop_after_listing:   bit(c.stopAfterListing),
		endpoints:            absent(pin, strings.Join(c.endpoints, ",")),
		user:                 absent(pin, c.user),
		password:             absent(pin, c.password),
		ca_pem:               absent(pin, string(c.tls.CA)),
		cert_pem:             absent(pin, string(c.tls.Cert)),
		key_pem:              absent(pin, string(c.tls.Key)),
		domain:               absent(pin, c.tls.ServerName),
		start_revision:       C.uint64_t(c.startRevision),
		page_size:            C.uint64_t(c.pageSize),
		too_far_behind:       C.uint64_t(c.tooFar),
		progress_interval_ms: milliseconds(c.progressInterval),
		dial_timeout_ms:      milliseconds(c.dial),
		request_timeout_ms:   milliseconds(c.perRequest),
		no_progress_requests: bit(c.noProgress),
		follow_compaction_ms: milliseconds(c.followCompaction),
		only_key:             absent(pin, c.onlyKey),
	}
}
