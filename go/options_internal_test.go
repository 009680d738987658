package watchcore

import (
	"reflect"
	"runtime"
	"slices"
	"testing"
	"time"
)

// Every field of a struct of options in C is set by some field of the one in Go: no option is forgotten on the way.
func TestEveryOptionReachesC(t *testing.T) {
	position := Position{Epoch: 1, Revision: 1}
	for _, options := range []struct {
		name  string
		fill  any      // the method
		given []any    // together they set every field
		rest  []string // what is set elsewhere, or never
	}{
		{"Config", (*Config).fill, []any{&Config{
			Prefix: "p", Name: "n", Capacity: 1, CapacityBytes: 1, KeepAge: time.Second, KeepEvents: 1, MaxKeyBytes: 1, MaxValueBytes: 1,
			Fields: []Attribute{AttributeKeySegment("a", 1)}, Labels: LabelsJSON("/l"), Indexes: []Index{IndexByKey()}, MaxBuckets: 1, ExpectLoad: true,
		}}, nil},
		{"EtcdConfig", (*EtcdConfig).fill, []any{&EtcdConfig{
			Endpoints: []string{"http://e"}, Username: "u", Password: "p", TLS: TLSConfig{
				CAFile: "f", CA: []byte("c"), CertFile: "f", KeyFile: "f", Cert: []byte("c"), Key: []byte("k"), ServerName: "s", MinVersion: versionTLS13,
			},
			DialTimeout: time.Second, RequestTimeout: time.Second, OnlyKey: "k", StartRevision: 1, History: 1, StopAfterListing: true,
			PageSize: 1, TooFarBehind: 1, FollowCompaction: time.Second, ProgressInterval: time.Second, NoProgressRequests: true, AuditInterval: time.Second,
		}}, []string{"pace"}},
		{"SubscribeOptions", (*SubscribeOptions).fill, []any{&SubscribeOptions{
			Name: "n", Start: StartAfterPosition(position), StartTimeout: time.Second, Range: RangeBetween("a", "b"),
			LabelSelector: "l", FieldSelector: "f=1", Types: []EventType{EventAdded}, RawTypes: true, WholeRevisions: true,
			Bookmarks: true, BookmarkInterval: time.Second, OnLag: LagConflate, MaxLagEvents: 1, MaxLagAge: time.Second, StopOnResync: true,
		}, &SubscribeOptions{Range: RangeNone()}}, nil},
		{"ListOptions", (*ListOptions).fill, []any{&ListOptions{
			Read: ReadExactPosition(position), LabelSelector: "l", FieldSelector: "f=1", Limit: 1, Continue: "c",
		}}, []string{"timeout_ms", "nothing"}},
		{"DiffOptions", (*DiffOptions).fill, []any{&DiffOptions{
			Range: RangeBetween("a", "b"), LabelSelector: "l", FieldSelector: "f=1", Types: []EventType{EventAdded},
		}, &DiffOptions{Range: RangeNone()}}, nil},
	} {
		fill := reflect.ValueOf(options.fill)
		inC := fill.Type().In(1).Elem()
		set := map[string]bool{}
		for _, given := range options.given {
			var pin runtime.Pinner
			o := reflect.New(inC)
			fill.Call([]reflect.Value{reflect.ValueOf(given), o, reflect.ValueOf(&pin)})
			for i := range inC.NumField() {
				set[inC.Field(i).Name] = set[inC.Field(i).Name] || !o.Elem().Field(i).IsZero()
			}
			pin.Unpin()
		}
		for name, is := range set {
			if name != "_" && name != "reserved" && is == slices.Contains(options.rest, name) {
				t.Errorf("%s: %s of C is set: %v", options.name, name, is)
			}
		}
	}
}
