package apiserver

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/apis/example"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"

	watchcore "github.com/watchcore/watchcore/go"
)

// failed is what a client sees of an error.
func failed(err error) string {
	return fmt.Sprintf("%s, too large: %v: %v", apierrors.ReasonForError(err), storage.IsTooLargeResourceVersion(err), err)
}

// followed collects what a watch gives until it ends.
type followed struct {
	mu   sync.Mutex
	text []string
}

func (f *followed) String() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.Join(f.text, "; ")
}

func (f *followed) follow(ctx context.Context, s storage.Interface, opts storage.ListOptions, all *sync.WaitGroup) {
	w, err := s.Watch(ctx, "/pods/", opts)
	if err != nil {
		f.text = append(f.text, failed(err))
		return
	}
	all.Go(func() {
		for e := range w.ResultChan() {
			text := string(e.Type)
			if status, ok := e.Object.(*metav1.Status); ok {
				text += " " + failed(&apierrors.StatusError{ErrStatus: *status})
			} else if cacheable, ok := e.Object.(apiruntime.CacheableObject); ok {
				text += describe(cacheable.GetObject())
			} else {
				text += describe(e.Object)
			}
			f.mu.Lock()
			f.text = append(f.text, text)
			f.mu.Unlock()
		}
	})
}

func describe(o apiruntime.Object) string {
	m, _ := meta.Accessor(o)
	return fmt.Sprint(" ", m.GetName(), " at ", m.GetResourceVersion(), m.GetAnnotations())
}

// Every resourceVersion of 64 bits, and every text that is none, is answered as the cacher of k8s.io/apiserver answers it, in gets, lists
// and watches of each form. Both have the same etcd.
func TestRevisionsAreAnsweredAsTheCacherDoes(t *testing.T) {
	k := newKinds(t, Config{})
	ours, destroy := k.kind(t, "pods")
	defer destroy()
	keyOf := func(o apiruntime.Object) (string, error) {
		m, err := meta.Accessor(o)
		return "/pods/" + m.GetNamespace() + "/" + m.GetName(), err
	}
	theirs, destroyTheirs, err := genericregistry.StorageWithCacher()(k.config.ForResource(schema.GroupResource{Resource: "pods"}), "/pods/", keyOf,
		func() apiruntime.Object { return &example.Pod{} }, func() apiruntime.Object { return &example.PodList{} }, podAttributes, nil, &cache.Indexers{})
	must(t, err)
	defer destroyTheirs()
	must(t, k.caches.Wait(t.Context()))
	until(t, "the cacher is ready", func() bool { return theirs.ReadinessCheck() == nil })
	both := []storage.Interface{ours, theirs}
	first := ours.put(t, "a", &example.Pod{})
	last := ours.put(t, "b", &example.Pod{})
	for _, s := range both { // both have everything
		must(t, s.GetList(t.Context(), "/pods/", storage.ListOptions{ResourceVersion: last, Predicate: storage.Everything, Recursive: true}, &example.PodList{}))
	}

	yes, no := true, false
	var all, watches, answered sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	open := map[string][2]*followed{}
	for _, revision := range []string{
		"", "0", first, last, fmt.Sprint(1 << 52), fmt.Sprint(math.MaxInt64), fmt.Sprint(uint64(math.MaxInt64) + 1), fmt.Sprint(uint64(math.MaxUint64)),
		"18446744073709551616", "-1", "+1", "01", "x", " ",
	} {
		for form, opts := range map[string]storage.ListOptions{
			"":                  {},
			"not older":         {ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan},
			"exactly":           {ResourceVersionMatch: metav1.ResourceVersionMatchExact},
			"page":              {Predicate: storage.SelectionPredicate{Limit: 1}},
			"page, not older":   {Predicate: storage.SelectionPredicate{Limit: 1}, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan},
			"with the state":    {SendInitialEvents: &yes, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan},
			"without the state": {SendInitialEvents: &no, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan},
		} {
			what := fmt.Sprintf("%s, revision %q", form, revision)
			opts.ResourceVersion, opts.Recursive = revision, true
			opts.Predicate.Label, opts.Predicate.Field, opts.Predicate.GetAttrs = storage.Everything.Label, storage.Everything.Field, podAttributes
			if form == "" || opts.SendInitialEvents != nil {
				opts.Predicate.AllowWatchBookmarks = opts.SendInitialEvents != nil
				pair := [2]*followed{{}, {}}
				for i, s := range both {
					watches.Go(func() { pair[i].follow(ctx, s, opts, &all) })
				}
				open["watch "+what] = pair
			}
			if opts.SendInitialEvents != nil {
				continue
			}
			for which, read := range map[string]func(s storage.Interface) string{
				"list": func(s storage.Interface) string {
					list := &example.PodList{}
					if err := s.GetList(ctx, "/pods/", opts, list); err != nil {
						return failed(err)
					}
					return fmt.Sprint(len(list.Items), " at ", list.ResourceVersion, " ", list.Continue)
				},
				"list of one": func(s storage.Interface) string {
					list, one := &example.PodList{}, opts
					one.Recursive = false
					if err := s.GetList(ctx, "/pods/default/a", one, list); err != nil {
						return failed(err)
					}
					return fmt.Sprint(len(list.Items), " at ", list.ResourceVersion, " ", list.Continue)
				},
				"get": func(s storage.Interface) string {
					pod := &example.Pod{}
					if err := s.Get(ctx, "/pods/default/a", storage.GetOptions{ResourceVersion: revision}, pod); err != nil {
						return failed(err)
					}
					return describe(pod)
				},
			} {
				if which == "get" && form != "" {
					continue
				}
				answered.Go(func() {
					answers := make([]string, 2)
					var reads sync.WaitGroup
					for i, s := range both {
						reads.Go(func() { answers[i] = read(s) })
					}
					reads.Wait()
					if answers[0] != answers[1] {
						t.Errorf("%s %s: %s\nthe cacher: %s", which, what, answers[0], answers[1])
					}
				})
			}
		}
	}
	watches.Wait()  // all are open, or refused after three seconds
	answered.Wait() // errors name the revision that a cache has
	touched, err := ours.versioner.ParseResourceVersion(ours.touch(t, "a"))
	must(t, err)
	until(t, "all watches have polled the change", func() bool {
		return !slices.ContainsFunc(ours.cache.Subscriptions(), func(sub watchcore.SubscriptionInfo) bool { return sub.Position.Revision < touched })
	})
	for what, pair := range open {
		until(t, what+" is as the cacher's", func() bool { return pair[0].String() == pair[1].String() })
	}
	cancel()
	all.Wait()
	for what, pair := range open {
		if pair[0].String() != pair[1].String() {
			t.Errorf("%s: %s\nthe cacher: %s", what, pair[0], pair[1])
		}
	}
}
