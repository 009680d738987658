package watchcore_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	watchcore "github.com/watchcore/watchcore/go"
	"github.com/watchcore/watchcore/go/internal/bounded"
)

// The codes and what they say are row 9.1.
func TestCodes(t *testing.T) {
	for code := watchcore.Code(1); code < 100; code++ {
		if code.Name() == "UNKNOWN" {
			continue
		}
		var taken *watchcore.Error
		wrapped := fmt.Errorf("mine: %w", &watchcore.Error{Code: code, Message: "m"})
		if !errors.As(wrapped, &taken) {
			t.Fatalf("%s is no *watchcore.Error", code.Name())
		}
		want(t, "an error's retryable "+code.Name(), taken.Retryable(), code.Retryable())
		want(t, "an error's fatal "+code.Name(), taken.Fatal(), code.Fatal())
		want(t, "its text", taken.Error(), "watchcore: m")
		if text := code.Error(); !strings.HasPrefix(text, "watchcore: ") || len(text) < 20 {
			t.Errorf("text of %s: %q", code.Name(), text)
		}
		wantError(t, code.Name(), wrapped, code)
		if errors.Is(wrapped, watchcore.Code(1000)) {
			t.Errorf("%s is any code", code.Name())
		}
	}
}

// What an error says is in Go's words: no name of another language, no sentence's end,
// wherever in the library it was made.
func TestMessagesAreGos(t *testing.T) {
	foreign := regexp.MustCompile(`[A-Za-z0-9]_[A-Za-z0-9]|::|options|NULL|WATCHCORE|UINT|from State|at Any|builder|[Hh]andle\b|another thread|\.$`)
	ctx, nobody := bounded.Context(t), []string{"http://127.0.0.1:1"}
	cache, writer := podCache(t, watchcore.Config{Prefix: "/", Capacity: 128, MaxKeyBytes: 100, MaxValueBytes: 1000})
	check(t, writer.Apply(5, watchcore.Put("/a", "1")))
	check(t, writer.Apply(6, watchcore.Put("/a", "2"), watchcore.Put("/b", "2")))
	check(t, writer.Compact(5))
	waiting, waitingWriter := embedded(t, watchcore.Config{ExpectLoad: true})
	snapshot, err := cache.Snapshot()
	check(t, err)
	defer snapshot.Close()
	dead, _ := unreachable(t)
	bounded.Eventually(t, "the server is out of reach", func() bool { return dead.Status().LastError != nil })
	stopped, _ := unreachable(t)
	check(t, stopped.StopFeeder())
	closed := mustNew(t)
	closed.Close()
	loaded, loadedWriter := embedded(t, watchcore.Config{ExpectLoad: true})
	check(t, loadedWriter.Load(3, nil))
	open := subscribe(t, mustNew(t))
	withOpen := mustNew(t)
	subscribe(t, withOpen)
	decoder := watchcore.NewDecoder(func([]byte, []byte) (int, error) { return 0, nil }, 1)
	kv := func(create, mod, version uint64) watchcore.KeyValue {
		return watchcore.KeyValue{Key: []byte("/x"), Value: []byte("x"), CreateRevision: create, ModRevision: mod, Version: version}
	}
	make := func(config watchcore.Config) error { _, err := watchcore.New(config); return err }
	attribute := func(attributes ...watchcore.Attribute) error { return make(watchcore.Config{Fields: attributes}) }
	index := func(indexes ...watchcore.Index) error { return make(watchcore.Config{Indexes: indexes}) }
	feed := func(etcd watchcore.EtcdConfig) error { return mustNew(t).StartFeeder(etcd) }
	get := func(key string, options watchcore.ReadOptions) error {
		_, _, err := cache.Get(ctx, key, options)
		return err
	}
	list := func(keys watchcore.Range, options watchcore.ListOptions) error {
		_, err := cache.List(ctx, keys, options)
		return err
	}
	paged, err := cache.List(ctx, watchcore.RangeAll(), watchcore.ListOptions{Limit: 1})
	check(t, err)
	token := paged.Continue()
	paged.Release()
	sub := func(options watchcore.SubscribeOptions) error { _, err := cache.Subscribe(ctx, options); return err }
	diff := func(from, to uint64) error {
		_, err := cache.Diff(watchcore.Position{Revision: from}, watchcore.Position{Revision: to}, watchcore.DiffOptions{})
		return err
	}
	lagging := func(options watchcore.SubscribeOptions) error {
		cache, writer := embedded(t, watchcore.Config{Capacity: 128})
		options.Start = watchcore.StartNow()
		s := subscribe(t, cache, options)
		writeOn(t, cache, writer, 1000)
		_, err := s.Next(ctx)
		return err
	}
	const short = time.Millisecond
	for name, err := range map[string]error{
		"capacity":           make(watchcore.Config{Capacity: 1}),
		"capacity in bytes":  make(watchcore.Config{CapacityBytes: 1}),
		"longest key":        make(watchcore.Config{MaxKeyBytes: 1 << 40}),
		"longest value":      make(watchcore.Config{MaxValueBytes: 1 << 40}),
		"long prefix":        make(watchcore.Config{Prefix: strings.Repeat("p", 1<<17)}),
		"name":               make(watchcore.Config{Name: "\xff"}),
		"window":             make(watchcore.Config{Capacity: 200, KeepEvents: 300, KeepAge: time.Second}),
		"events without age": make(watchcore.Config{KeepEvents: 5}),
		"buckets":            make(watchcore.Config{MaxBuckets: -1}),
		"labels":             make(watchcore.Config{Labels: watchcore.LabelsJSON("x")}),
		"attribute":          attribute(watchcore.Attribute{}),
		"attribute's name":   attribute(watchcore.AttributeJSON("", "/a")),
		"same attribute":     attribute(watchcore.AttributeJSON("a", "/a"), watchcore.AttributeJSON("a", "/b")),
		"no text":            attribute(watchcore.AttributeJSON("\xff", "/a")),
		"pointer":            attribute(watchcore.AttributeJSON("a", "a")),
		"escape":             attribute(watchcore.AttributeJSON("a", "/a~2")),
		"pointer's text":     attribute(watchcore.AttributeJSON("a", "/\xff")),
		"path":               attribute(watchcore.AttributeJSON("a", "/a", 0)),
		"long path":          attribute(watchcore.AttributeJSON("a", "/a", append([]uint32{100: 1}, 2)...)),
		"depth":              attribute(watchcore.AttributeKeySegment("a", -1)),
		"attributes":         attribute(append([]watchcore.Attribute{}, append([]watchcore.Attribute{70: {}}, watchcore.Attribute{})...)...),
		"index":              index(watchcore.Index{}),
		"index's name":       index(watchcore.IndexByField("")),
		"index of no field":  index(watchcore.IndexByField("a")),
		"index of no label":  index(watchcore.IndexByLabel("a")),
		"index's depth":      index(watchcore.IndexByPrefix(0)),
		"index's text":       index(watchcore.IndexByLabel("\xff")),
		"same index":         index(watchcore.IndexByKey(), watchcore.IndexByKey()),
		"indexes": index(watchcore.IndexByPrefix(1), watchcore.IndexByPrefix(2), watchcore.IndexByPrefix(3), watchcore.IndexByPrefix(4),
			watchcore.IndexByPrefix(5), watchcore.IndexByPrefix(6), watchcore.IndexByPrefix(7), watchcore.IndexByPrefix(8), watchcore.IndexByKey()),

		"no server":        feed(watchcore.EtcdConfig{}),
		"no url":           feed(watchcore.EtcdConfig{Endpoints: []string{"not a url"}}),
		"empty server":     feed(watchcore.EtcdConfig{Endpoints: []string{""}}),
		"two in one":       feed(watchcore.EtcdConfig{Endpoints: []string{"http://a:1,http://b:1"}}),
		"scheme":           feed(watchcore.EtcdConfig{Endpoints: []string{"ftp://a:1"}}),
		"user in a url":    feed(watchcore.EtcdConfig{Endpoints: []string{"http://u:p@a:1"}}),
		"server's text":    feed(watchcore.EtcdConfig{Endpoints: []string{"http://\xff:1"}}),
		"password":         feed(watchcore.EtcdConfig{Endpoints: nobody, Password: "p"}),
		"page":             feed(watchcore.EtcdConfig{Endpoints: nobody, PageSize: -1}),
		"start":            feed(watchcore.EtcdConfig{Endpoints: nobody, StartRevision: 1 << 60}),
		"time":             feed(watchcore.EtcdConfig{Endpoints: nobody, DialTimeout: -1}),
		"one key":          feed(watchcore.EtcdConfig{Endpoints: nobody, OnlyKey: strings.Repeat("k", 1<<20)}),
		"another's pace":   feed(watchcore.EtcdConfig{Endpoints: nobody, Pace: open}),
		"certificate":      feed(watchcore.EtcdConfig{Endpoints: []string{"https://127.0.0.1:1"}, TLS: watchcore.TLSConfig{Cert: []byte("x")}}),
		"no subscriptions": withOpen.StartFeeder(watchcore.EtcdConfig{Endpoints: nobody}),
		"not fed":          cache.Compact(5),
		"not resynced":     cache.RequestResync(),
		"compact":          dead.Compact(1 << 60),
		"compact stopped":  stopped.Compact(5),
		"out of reach":     dead.Status().LastError,
		"fed":              dead.StartFeeder(watchcore.EtcdConfig{Endpoints: nobody}),
		"two writers":      func() error { _, err := cache.Writer(); return err }(),
		"closed":           func() error { _, err := closed.Snapshot(); return err }(),
		"closed's writer":  func() error { _, err := stopped.Writer(); return err }(),
		"closed wait":      stopped.WaitUntil(ctx, 99),
		"open": func() error {
			ctx, cancel := context.WithTimeout(ctx, 100*short)
			defer cancel()
			_, err := watchcore.Open(ctx, watchcore.EtcdConfig{Endpoints: nobody}, watchcore.Config{})
			return err
		}(),

		"empty key":       get("", watchcore.ReadOptions{}),
		"foreign key":     get("x", watchcore.ReadOptions{}),
		"future":          get("/a", watchcore.ReadOptions{Read: watchcore.ReadAtLeast(99), WaitTimeout: short}),
		"exact future":    get("/a", watchcore.ReadOptions{Read: watchcore.ReadExact(99), WaitTimeout: short}),
		"past":            get("/a", watchcore.ReadOptions{Read: watchcore.ReadExact(4)}),
		"no revision":     get("/a", watchcore.ReadOptions{Read: watchcore.ReadExact(1 << 60)}),
		"label selector":  get("/a", watchcore.ReadOptions{LabelSelector: "a in (b"}),
		"field selector":  get("/a", watchcore.ReadOptions{FieldSelector: "phase"}),
		"unknown field":   get("/a", watchcore.ReadOptions{FieldSelector: "nobody=1"}),
		"selector's text": get("/a", watchcore.ReadOptions{FieldSelector: "phase=\xff"}),
		"no labels": func() error {
			_, _, err := loaded.Get(ctx, "/a", watchcore.ReadOptions{LabelSelector: "a"})
			return err
		}(),
		"not ready":        func() error { _, _, err := waiting.Get(ctx, "/a", watchcore.ReadOptions{}); return err }(),
		"why not ready":    func() error { _, _, err := dead.Get(ctx, "/a", watchcore.ReadOptions{}); return err }(),
		"outside":          list(watchcore.RangePrefix("x"), watchcore.ListOptions{}),
		"reversed":         list(watchcore.RangeBetween("/b", "/a"), watchcore.ListOptions{}),
		"limit":            list(watchcore.RangeAll(), watchcore.ListOptions{Limit: -1}),
		"token":            list(watchcore.RangeAll(), watchcore.ListOptions{Continue: "x"}),
		"token and read":   list(watchcore.RangeAll(), watchcore.ListOptions{Continue: token, Read: watchcore.ReadExact(6)}),
		"token's text":     list(watchcore.RangeAll(), watchcore.ListOptions{Continue: "\xff"}),
		"diff's order":     diff(6, 5),
		"diff of the past": diff(3, 6),
		"diff of future":   diff(5, 9),
		"count": func() error {
			_, err := snapshot.Count(watchcore.RangePrefix("x"), watchcore.SelectOptions{})
			return err
		}(),

		"start of the past": sub(watchcore.SubscribeOptions{Start: watchcore.StartAfter(3)}),
		"start too high":    sub(watchcore.SubscribeOptions{Start: watchcore.StartAfter(1 << 60)}),
		"type":              sub(watchcore.SubscribeOptions{Types: []watchcore.EventType{99}}),
		"policy":            sub(watchcore.SubscribeOptions{OnLag: 99}),
		"start's time":      sub(watchcore.SubscribeOptions{StartTimeout: -1}),
		"interval":          sub(watchcore.SubscribeOptions{BookmarkInterval: 5}),
		"negative interval": sub(watchcore.SubscribeOptions{Bookmarks: true, BookmarkInterval: -5}),
		"age":               sub(watchcore.SubscribeOptions{MaxLagAge: -5}),
		"batch":             sub(watchcore.SubscribeOptions{MaxBatch: -5}),
		"subscription":      sub(watchcore.SubscribeOptions{Name: "\xff"}),
		"range":             sub(watchcore.SubscribeOptions{Range: watchcore.RangeKey("x")}),
		"empty range":       sub(watchcore.SubscribeOptions{Range: watchcore.RangeKey("")}),
		"lagged":            lagging(watchcore.SubscribeOptions{Name: "mine"}),
		"too far":           lagging(watchcore.SubscribeOptions{OnLag: watchcore.LagConflate, MaxLagEvents: 3}),
		"start that is late": func() error {
			_, err := subscribe(t, cache, watchcore.SubscribeOptions{Start: watchcore.StartStateAtLeast(99), StartTimeout: short}).Next(ctx)
			return err
		}(),
		"closed one": func() error { s := subscribe(t, cache); s.Close(); _, err := s.Poll(0); return err }(),

		"same revision":   writer.Apply(6, watchcore.Put("/c", "")),
		"revision":        writer.Apply(1<<60, watchcore.Put("/c", "")),
		"absent":          writer.Apply(7, watchcore.Delete("/c")),
		"twice":           writer.Apply(7, watchcore.Put("/c", ""), watchcore.Put("/c", "")),
		"long key":        writer.Apply(7, watchcore.Put(strings.Repeat("/", 200), "")),
		"long value":      writer.Apply(7, watchcore.Put("/c", strings.Repeat("v", 2000))),
		"no key":          writer.Apply(7, watchcore.Put("", "")),
		"no key of two":   writer.Apply(7, watchcore.Put("/c", ""), watchcore.Put("", "")),
		"elsewhere":       writer.Apply(7, watchcore.Put("x", "")),
		"numbers":         writer.Apply(7, watchcore.PutExact(kv(9, 7, 1))),
		"progress":        writer.Progress(1),
		"compaction":      writer.Compact(99),
		"second listing":  loadedWriter.Load(9, nil),
		"no listing":      waitingWriter.Apply(3, watchcore.Put("/c", "")),
		"listing":         waitingWriter.Load(3, []watchcore.KeyValue{kv(9, 9, 1)}),
		"listing's twice": waitingWriter.Load(3, []watchcore.KeyValue{kv(1, 1, 1), kv(1, 1, 1)}),
		"resync":          func() error { _, err := writer.Resync(9, nil, watchcore.ReasonLagged); return err }(),
		"resync's reason": func() error { _, err := writer.Resync(9, nil, 99); return err }(),
		"resynced": func() error {
			_, err := writer.Resync(9, []watchcore.KeyValue{kv(9, 10, 1)}, watchcore.ReasonRequested)
			return err
		}(),
		"begun": func() error { _, err := loadedWriter.BeginLoad(9); return err }(),

		"nothing to decode": func() error { _, err := decoder.KeyValue(nil); return err }(),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
			continue
		}
		text := err.Error()
		if found := foreign.FindString(text); found != "" {
			t.Errorf("%s: %q in %q", name, found, text)
		}
	}
	// The codes themselves.
	for code := watchcore.Code(0); code < 100; code++ {
		if found := foreign.FindString(strings.TrimSuffix(code.Error(), ".")); found != "" {
			t.Errorf("code %d: %q in %q", code, found, code.Error())
		}
	}
}

func TestOptionsOfCaches(t *testing.T) {
	for name, config := range map[string]watchcore.Config{
		"negative":            {Capacity: -1},
		"negative bytes":      {CapacityBytes: -1},
		"negative key":        {MaxKeyBytes: -1},
		"negative value":      {MaxValueBytes: -1},
		"no attribute":        {Fields: []watchcore.Attribute{{}}},
		"no index":            {Indexes: []watchcore.Index{{}}},
		"events without age":  {KeepEvents: 5},
		"an age that is none": {KeepAge: time.Microsecond},
	} {
		cache, err := watchcore.New(config)
		wantError(t, name, err, watchcore.ErrInvalidArgument)
		want(t, name, cache, nil)
	}
	nobody := []string{"http://127.0.0.1:1"}
	for name, etcd := range map[string]watchcore.EtcdConfig{
		"Open without etcd":    {},
		"Open of no endpoint":  {Username: "a", Password: "b"},
		"Open of a bad one":    {Endpoints: []string{"not a url"}},
		"Open with a bad page": {Endpoints: nobody, PageSize: -1},
		"Open with bad times":  {Endpoints: nobody, DialTimeout: -5e9},
	} {
		cache, err := watchcore.Open(bounded.Context(t), etcd, watchcore.Config{})
		wantError(t, name, err, watchcore.ErrInvalidArgument)
		want(t, name, cache, nil)
	}
	if watchcore.Version() == "" {
		t.Fatal("no version")
	}
}
