package watchcore

// #include "abi.h"
import "C"

import (
	"math"
	"runtime"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
	"unsafe"
)

// Config is the configuration of a cache. The zero Config is a cache of every key, with the default
// of each field.
type Config struct {
	// Prefix is the key range: the keys that start with it. "" is every key.
	Prefix string
	// Name is used in messages, logs and metrics. "" is the prefix.
	Name string

	// Capacity is the maximum length of the log in events. 0 is 65536.
	Capacity int
	// CapacityBytes is the maximum length of the log in bytes. 0 is 256 MiB.
	CapacityBytes int64
	// KeepAge, a millisecond or more, sizes the log by age: older events are evicted as long as
	// KeepEvents events stay, and younger ones stay as long as Capacity and CapacityBytes allow. 0:
	// Capacity and CapacityBytes alone decide.
	KeepAge time.Duration
	// KeepEvents is the number of events that KeepAge does not evict, however old they are.
	KeepEvents int

	// MaxKeyBytes is the longest key that is accepted. 0 is 64 KiB.
	MaxKeyBytes int
	// MaxValueBytes is the longest value that is accepted. 0 is 16 MiB.
	MaxValueBytes int

	// Fields declares attributes for field selectors and for indexes: at most 64. Each attribute is
	// extracted once, when a change is written. A value that cannot be parsed has no attributes and
	// is counted (Stats.ExtractFailures).
	Fields []Attribute
	// Labels says where the labels of a value are. Without it the cache refuses label selectors.
	Labels LabelSource
	// Indexes lets subscriptions with a fitting range or selector read only their own events: at
	// most 8. Each index costs the writer one lookup per event, and 16 bytes in each slot of the
	// log (32 for an index by field or label).
	Indexes []Index
	// MaxBuckets is the maximum number of buckets of all indexes together; further subscriptions
	// scan. 0 is 65536.
	MaxBuckets int

	// ExpectLoad makes a cache of New wait for its first listing before it is ready: Writer.Load,
	// Loading.Finish or StartFeeder provides the listing. Open implies it.
	ExpectLoad bool
}

// Attribute is a part of a key-value that field selectors and indexes refer to.
type Attribute struct {
	kind          uint32
	name, pointer string
	depth         int
	protobuf      []uint32
}

// AttributeJSON is the scalar at an RFC 6901 pointer of a JSON value, such as "/spec/nodeName". A string is
// taken as it is, a number or a boolean as its JSON text; arrays, objects and null count as absent.
// protobufPath is the path of field numbers to the same attribute in Kubernetes' protobuf storage form: a
// pod's spec.nodeName is 2, 10. Without it, only "/metadata/name" and "/metadata/namespace" are found there.
func AttributeJSON(name, pointer string, protobufPath ...uint32) Attribute {
	return Attribute{kind: C.WATCHCORE_ATTRIBUTE_JSON, name: name, pointer: pointer, protobuf: slices.Clone(protobufPath)}
}

// AttributeKeySegment is a segment of the key. The key is split at '/', and a leading '/' is
// ignored: segment 2 of "/registry/pods/ns/x" is "ns".
func AttributeKeySegment(name string, depth int) Attribute {
	return Attribute{kind: C.WATCHCORE_ATTRIBUTE_KEY_SEGMENT, name: name, depth: depth}
}

// LabelSource says where the labels of a value are. The zero LabelSource is none.
type LabelSource struct {
	pointer string
	given   bool
}

// LabelsJSON takes the members of the object at an RFC 6901 pointer of a JSON value as labels:
// "/metadata/labels" for Kubernetes' objects. (In their protobuf storage form the labels are always
// metadata.labels.)
func LabelsJSON(pointer string) LabelSource { return LabelSource{pointer, true} }

// Index groups the events of a cache by an attribute, a label or a part of the key. A subscription
// that fits an index reads the events of its own bucket only.
type Index struct {
	kind  uint32
	name  string
	depth int
}

// IndexByKey groups by the key, for subscriptions to one key.
func IndexByKey() Index { return Index{kind: C.WATCHCORE_INDEX_KEY} }

// IndexByPrefix groups by the first segments of the key, split as in AttributeKeySegment: at depth
// 3 "/registry/pods/ns/a" is in the bucket "/registry/pods/ns/".
func IndexByPrefix(depth int) Index { return Index{kind: C.WATCHCORE_INDEX_PREFIX, depth: depth} }

// IndexByField groups by an attribute of Config.Fields, for field selectors name=value.
func IndexByField(name string) Index { return Index{kind: C.WATCHCORE_INDEX_FIELD, name: name} }

// IndexByLabel groups by a label, for label selectors name=value.
func IndexByLabel(name string) Index { return Index{kind: C.WATCHCORE_INDEX_LABEL, name: name} }

// EtcdConfig says which etcd a cache follows, and how. Only Endpoints is needed.
type EtcdConfig struct {
	// Endpoints are the servers, such as "http://127.0.0.1:2379" or "unix:///run/etcd.sock". The cache uses one at a time, and
	// the next one when it fails.
	Endpoints []string
	// Username and Password are for an etcd with authentication.
	Username, Password string
	// TLS is for endpoints with https. Its zero value trusts the system's certificate authorities.
	TLS TLSConfig

	// DialTimeout limits how long connecting may take. 0 is 5 s.
	DialTimeout time.Duration
	// RequestTimeout limits how long one request may take. 0 is 10 s.
	RequestTimeout time.Duration

	// OnlyKey lists and watches this one key of the cache's prefix, so that read access to this key
	// is sufficient.
	OnlyKey string
	// StartRevision starts with etcd's own history from this revision on. 0 is the newest revision.
	StartRevision uint64
	// History starts this number of revisions below the newest one, or at the oldest revision that
	// etcd still has. A program that was at such a revision before a restart continues there with
	// StartAfter, without reading the state again. The cache becomes ready only after the history
	// is replayed, so that no reader sees an older state. 0 is the newest revision. StartRevision
	// takes precedence over History, and StopAfterListing ignores it.
	History uint64
	// Pace makes the feeder, with StartRevision, stay at most half a window ahead of this
	// subscription of the cache while it replays etcd's history: the subscription then sees all of
	// a history that is longer than the log. It must be opened before the feeder starts:
	//
	//	cache, err := watchcore.New(watchcore.Config{ExpectLoad: true})
	//	sub, err := cache.Subscribe(ctx, watchcore.SubscribeOptions{Start: watchcore.StartAfter(revision)})
	//	err = cache.StartFeeder(watchcore.EtcdConfig{Endpoints: endpoints, StartRevision: revision, Pace: sub})
	//
	// A subscription that is closed in the meantime delays nothing.
	Pace *Subscription
	// StopAfterListing lists once and does not watch.
	StopAfterListing bool

	// PageSize is the maximum number of keys per page of a listing. 0 lists in one stream where
	// etcd supports that (3.7 and newer), and otherwise in pages of about 32 MiB. etcd counts the
	// rest of the range for each page, so small pages make a listing of many keys slow.
	PageSize int
	// TooFarBehind is the number of missed revisions above which the feeder lists instead of
	// replaying. 0 is 20000.
	TooFarBehind uint64
	// FollowCompaction is the interval at which the feeder asks etcd whether the oldest revision of
	// the window still exists (15 s is a good value); if it was compacted, the cache compacts it
	// too. 0 is never. Programs that learn of compactions by themselves call Cache.Compact.
	FollowCompaction time.Duration
	// ProgressInterval is the time without messages after which the feeder requests progress. 0 is 1 s.
	ProgressInterval time.Duration
	// NoProgressRequests disables progress requests.
	NoProgressRequests bool
	// AuditInterval is how often the whole cache is compared with etcd, page by page and slowly, in
	// addition to after each reconnect. If a key differs twice, the cache is listed anew as a new
	// history. 0 is an hour, a negative value is never.
	AuditInterval time.Duration
}

// TLSConfig says how to trust the server and how to authenticate the client, in PEM, each from a
// file or from memory.
//
// Files are read again for each new connection, so they can be replaced while the cache runs; an
// established connection does not need them. If a file cannot be used at that moment, its former
// content is used, and Source.Warning reports this until it can. No field disables verification:
// give a self-signed server's certificate as CA, and the name in it as ServerName.
type TLSConfig struct {
	// CAFile or CA are the authorities that may sign the server's certificate. Without either, the
	// system's authorities count, or the files that SSL_CERT_FILE and SSL_CERT_DIR name.
	CAFile string
	CA     []byte
	// CertFile and KeyFile, or Cert and Key, are the client's certificate and its private key, if
	// etcd requires them.
	CertFile, KeyFile string
	Cert, Key         []byte
	// ServerName is the name that the server's certificate must be for. "" is the endpoint's host.
	ServerName string
	// MinVersion is tls.VersionTLS12 or tls.VersionTLS13 of crypto/tls. 0 is TLS 1.2.
	MinVersion uint16
}

// The versions are copied from crypto/tls, so that programs need not link it.
const versionTLS12, versionTLS13 = 0x0303, 0x0304

func (c *TLSConfig) check(check *checker) {
	files, bytes := c.CertFile != "" || c.KeyFile != "", len(c.Cert) > 0 || len(c.Key) > 0
	switch {
	case c.CAFile != "" && len(c.CA) > 0:
		check.refuse("TLSConfig.CAFile and CA. Give one of them")
	case files && bytes:
		check.refuse("TLSConfig has a client certificate or key both as a file and as bytes. Give CertFile and KeyFile, or Cert and Key")
	case (c.CertFile == "") != (c.KeyFile == ""):
		check.refuse("TLSConfig.CertFile without KeyFile, or the reverse. Give both")
	case (len(c.Cert) == 0) != (len(c.Key) == 0):
		check.refuse("TLSConfig.Cert without Key, or the reverse. Give both")
	case c.MinVersion != 0 && c.MinVersion != versionTLS12 && c.MinVersion != versionTLS13:
		check.refuse("TLSConfig.MinVersion is %#04x. Give tls.VersionTLS12 or tls.VersionTLS13", c.MinVersion)
	}
}

// checker keeps the first invalid setting that it finds.
type checker struct{ err error }

func (c *checker) refuse(format string, arguments ...any) {
	if c.err == nil {
		c.err = newError(ErrInvalidArgument, format, arguments...)
	}
}

// size refuses a negative number. 0 selects the default.
func (c *checker) size(name string, number int64) C.uint64_t {
	if number < 0 {
		c.refuse("%s is %d: it cannot be negative. Give 0 for the default", name, number)
	}
	return C.uint64_t(number)
}

// duration refuses a negative duration. 0 selects the default, so a fraction of a millisecond is rounded up.
func (c *checker) duration(name string, d time.Duration) C.int64_t {
	if d < 0 {
		c.refuse("%s is %v: it cannot be negative. Give 0 for the default", name, d)
	}
	if d > 0 {
		d += min(time.Millisecond-1, math.MaxInt64-d)
	}
	return C.int64_t(d / time.Millisecond)
}

// depth refuses a number that does not fit C's uint32_t.
func (c *checker) depth(name string, number int) C.uint32_t {
	if number < 0 || int64(number) > math.MaxUint32 {
		c.refuse("%s is of depth %d: a key has no such segment", name, number)
	}
	return C.uint32_t(number)
}

// text refuses invalid UTF-8. An empty text becomes NULL.
func (c *checker) text(name string, pin *runtime.Pinner, text string) C.watchcore_bytes {
	for at := 0; at < len(text); {
		r, size := utf8.DecodeRuneInString(text[at:])
		if r == utf8.RuneError && size == 1 {
			c.refuse("%s is not UTF-8 from byte %d on", name, at)
			break
		}
		at += size
	}
	return absent(pin, text)
}

// integer converts a handle to an integer, which cgo's pointer checks ignore.
func integer(handle unsafe.Pointer) C.uintptr_t { return C.uintptr_t(uintptr(handle)) }

func bit(on bool) C.uint32_t {
	if on {
		return 1
	}
	return 0
}

// absent passes an empty text as NULL.
func absent(pin *runtime.Pinner, text string) C.watchcore_bytes {
	if text == "" {
		return C.watchcore_bytes{}
	}
	data := unsafe.StringData(text)
	pin.Pin(data)
	return C.watchcore_bytes{data: unsafe.Pointer(data), length: C.size_t(len(text))}
}

var nothing byte

// present passes an empty text as a non-NULL pointer of length 0.
func present(pin *runtime.Pinner, text string) C.watchcore_bytes {
	bytes := absent(pin, text)
	if bytes.data == nil {
		bytes.data = unsafe.Pointer(&nothing)
	}
	return bytes
}

func (c *Config) fill(o *C.watchcore_cache_options, pin *runtime.Pinner) error {
	var check checker
	if c.KeepAge != 0 && c.KeepAge < time.Millisecond {
		check.refuse("Config.KeepAge is %v. Give a millisecond or more, or 0 for none", c.KeepAge)
	}
	if c.KeepEvents != 0 && c.KeepAge == 0 {
		check.refuse("Config.KeepEvents is %d without KeepAge. Give the age too, or Capacity alone", c.KeepEvents)
	}
	*o = C.watchcore_cache_options{
		size:            C.sizeof_watchcore_cache_options,
		expect_load:     bit(c.ExpectLoad),
		prefix:          absent(pin, c.Prefix),
		name:            check.text("Config.Name", pin, c.Name),
		capacity:        check.size("Config.Capacity", int64(c.Capacity)),
		capacity_bytes:  check.size("Config.CapacityBytes", c.CapacityBytes),
		max_key_bytes:   check.size("Config.MaxKeyBytes", int64(c.MaxKeyBytes)),
		max_value_bytes: check.size("Config.MaxValueBytes", int64(c.MaxValueBytes)),
		max_buckets:     check.size("Config.MaxBuckets", int64(c.MaxBuckets)),
		keep_events:     check.size("Config.KeepEvents", int64(c.KeepEvents)),
		keep_ms:         C.int64_t(c.KeepAge.Milliseconds()),
	}
	if c.Labels.given {
		check.text("the pointer of Config.Labels", pin, c.Labels.pointer)
		o.labels_from = present(pin, c.Labels.pointer)
	}
	if len(c.Fields) > 0 {
		fields := make([]C.watchcore_attribute, len(c.Fields))
		for i := range fields {
			c.Fields[i].fill(&fields[i], pin, &check)
		}
		pin.Pin(&fields[0])
		o.fields, o.field_count = &fields[0], C.size_t(len(fields))
	}
	if len(c.Indexes) > 0 {
		indexes := make([]C.watchcore_index, len(c.Indexes))
		for i, index := range c.Indexes {
			if index.kind == 0 {
				check.refuse("Config.Indexes[%d] is the zero Index. Make it with IndexByKey, IndexByPrefix, IndexByField or IndexByLabel", i)
			}
			indexes[i] = C.watchcore_index{
				size:  C.sizeof_watchcore_index,
				kind:  C.uint32_t(index.kind),
				name:  check.text("the name of an index", pin, index.name),
				depth: check.depth("IndexByPrefix", index.depth),
			}
			if index.name == "" && (index.kind == C.WATCHCORE_INDEX_FIELD || index.kind == C.WATCHCORE_INDEX_LABEL) {
				check.refuse("Config.Indexes[%d] has no name. Give that of the field or label", i)
			}
		}
		pin.Pin(&indexes[0])
		o.indexes, o.index_count = &indexes[0], C.size_t(len(indexes))
	}
	return check.err
}

const maxProtobufPath = 100

func (a *Attribute) fill(o *C.watchcore_attribute, pin *runtime.Pinner, check *checker) {
	if a.kind == 0 {
		check.refuse("Config.Fields has the zero Attribute. Make it with AttributeJSON or AttributeKeySegment")
	}
	if a.name == "" {
		check.refuse("Config.Fields has an attribute without a name. Give it one")
	}
	check.text("the pointer of an attribute", pin, a.pointer)
	*o = C.watchcore_attribute{
		size:  C.sizeof_watchcore_attribute,
		kind:  C.uint32_t(a.kind),
		name:  check.text("the name of an attribute", pin, a.name),
		depth: check.depth("AttributeKeySegment", a.depth),
	}
	if a.kind == C.WATCHCORE_ATTRIBUTE_JSON {
		o.pointer = present(pin, a.pointer)
	}
	if len(a.protobuf) > maxProtobufPath {
		check.refuse("attribute %q: a path of %d field numbers; %d are the most", a.name, len(a.protobuf), maxProtobufPath)
	}
	if len(a.protobuf) > 0 {
		pin.Pin(&a.protobuf[0])
		o.protobuf_path, o.protobuf_path_length = (*C.uint32_t)(&a.protobuf[0]), C.size_t(len(a.protobuf))
	}
}

func (c *EtcdConfig) fill(o *C.watchcore_etcd_options, pin *runtime.Pinner) error {
	var check checker
	if len(c.Endpoints) == 0 {
		check.refuse("EtcdConfig.Endpoints is empty. Name a server, such as \"http://127.0.0.1:2379\"")
	}
	if c.Username == "" && c.Password != "" {
		check.refuse("EtcdConfig.Password without Username. Give both")
	}
	c.TLS.check(&check)
	for i, endpoint := range c.Endpoints {
		if strings.Contains(endpoint, ",") || strings.TrimSpace(endpoint) == "" {
			check.refuse("EtcdConfig.Endpoints[%d] is %q. Name one server in each, such as \"http://127.0.0.1:2379\"", i, endpoint)
		}
	}
	*o = C.watchcore_etcd_options{
		size:                 C.sizeof_watchcore_etcd_options,
		stop_after_listing:   bit(c.StopAfterListing),
		endpoints:            check.text("EtcdConfig.Endpoints", pin, strings.Join(c.Endpoints, ",")),
		user:                 check.text("EtcdConfig.Username", pin, c.Username),
		password:             check.text("EtcdConfig.Password", pin, c.Password),
		ca_file:              check.text("TLSConfig.CAFile", pin, c.TLS.CAFile),
		cert_file:            check.text("TLSConfig.CertFile", pin, c.TLS.CertFile),
		key_file:             check.text("TLSConfig.KeyFile", pin, c.TLS.KeyFile),
		ca_pem:               absent(pin, string(c.TLS.CA)),
		cert_pem:             absent(pin, string(c.TLS.Cert)),
		key_pem:              absent(pin, string(c.TLS.Key)),
		server_name:          check.text("TLSConfig.ServerName", pin, c.TLS.ServerName),
		min_tls_version:      C.uint32_t(c.TLS.MinVersion),
		start_revision:       C.uint64_t(c.StartRevision),
		page_size:            check.size("EtcdConfig.PageSize", int64(c.PageSize)),
		too_far_behind:       C.uint64_t(c.TooFarBehind),
		progress_interval_ms: check.duration("EtcdConfig.ProgressInterval", c.ProgressInterval),
		dial_timeout_ms:      check.duration("EtcdConfig.DialTimeout", c.DialTimeout),
		request_timeout_ms:   check.duration("EtcdConfig.RequestTimeout", c.RequestTimeout),
		no_progress_requests: bit(c.NoProgressRequests),
		follow_compaction_ms: check.duration("EtcdConfig.FollowCompaction", c.FollowCompaction),
		only_key:             absent(pin, c.OnlyKey),
		history:              C.uint64_t(c.History),
		audit_interval_ms:    -1,
	}
	if c.AuditInterval >= 0 {
		o.audit_interval_ms = check.duration("EtcdConfig.AuditInterval", c.AuditInterval)
	}
	return check.err
}
