package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/watchcore/watchcore/go/apiserver/examples/kube-apiserver/demo/internal/follow"
)

const (
	widgetNamespace = "widgets"
	widgetName      = "widgets.demo.example.com"
	widgetCount     = 30
)

// definitions lets a custom resource appear, get a second version and go, twice by the same name.
func (d *demo) definitions(ctx context.Context) error {
	if err := d.createNamespace(ctx, widgetNamespace); err != nil {
		return err
	}
	for round := 1; round <= 2; round++ {
		served, err := d.define(ctx)
		if err != nil {
			return err
		}
		say("custom resource, round %d: list and watch are served %v after it was established", round, served.Round(time.Millisecond))
		if err := d.makeWidgets(ctx, widgets1, "old"); err != nil {
			return err
		}
		ended, err := d.secondVersion(ctx)
		if err != nil {
			return err
		}
		say("custom resource, round %d: a second version is stored, all objects are read in both; %d watches ended within %v and resumed", round, ended.count, ended.within.Round(time.Millisecond))
		if ended, err = d.undefine(ctx); err != nil {
			return err
		}
		say("custom resource, round %d: gone, its %d objects too; %d watches ended within %v", round, 2*widgetCount, ended.count, ended.within.Round(time.Millisecond))
	}
	return nil
}

// version is one of a definition's.
func version(name string, stored bool) map[string]any {
	return map[string]any{"name": name, "served": true, "storage": stored, "schema": map[string]any{"openAPIV3Schema": map[string]any{
		"type": "object", "properties": map[string]any{"spec": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
	}}}
}

// define makes the resource, and says how long after it was established a list and a watch were served.
func (d *demo) define(ctx context.Context) (time.Duration, error) {
	all := d.clients.Dynamic.Resource(definitions.GroupVersionResource)
	definition := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": widgetName},
		"spec": map[string]any{
			"group": widgets1.Group, "scope": "Namespaced", "names": map[string]any{"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
			"versions": []any{version("v1", true)},
		},
	}}
	if _, err := all.Create(ctx, definition, metav1.CreateOptions{}); err != nil {
		return 0, err
	}
	if err := until(ctx, "the definition is established", func(ctx context.Context) error {
		got, err := all.Get(ctx, widgetName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		conditions, _, err := unstructured.NestedSlice(got.Object, "status", "conditions")
		if err != nil {
			return err
		}
		for _, one := range conditions {
			if c := one.(map[string]any); c["type"] == "Established" && c["status"] == "True" {
				return nil
			}
		}
		return fmt.Errorf("its conditions are %v", conditions)
	}); err != nil {
		return 0, err
	}
	established := time.Now()
	if err := until(ctx, "the new resource is served", func(ctx context.Context) error {
		list, err := d.clients.Dynamic.Resource(widgets1.GroupVersionResource).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		open, err := d.clients.Dynamic.Resource(widgets1.GroupVersionResource).Watch(ctx, metav1.ListOptions{ResourceVersion: list.GetResourceVersion()})
		if err == nil {
			open.Stop()
		}
		return err
	}); err != nil {
		return 0, err
	}
	served := time.Since(established)
	if served > time.Second {
		return served, fmt.Errorf("the new resource was served %v after it was established", served)
	}
	return served, nil
}

// makeWidgets makes objects in a version, and changes each.
func (d *demo) makeWidgets(ctx context.Context, r follow.Resource, prefix string) error {
	all := d.clients.Dynamic.Resource(r.GroupVersionResource).Namespace(widgetNamespace)
	for i := range widgetCount {
		name := fmt.Sprintf("%s-%d", prefix, i)
		widget := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": r.GroupVersion().String(), "kind": "Widget",
			"metadata": map[string]any{"name": name, "labels": map[string]any{"tier": string("ab"[i%2])}}, "spec": map[string]any{"number": int64(i)},
		}}
		if _, err := all.Create(ctx, widget, metav1.CreateOptions{}); err != nil {
			return err
		}
		patch := fmt.Sprintf(`{"metadata":{"labels":{"tier":%q}},"spec":{"changed":true}}`, string("abc"[i%3]))
		if _, err := all.Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// ending says of the watches of a resource that all of them ended.
type ending struct {
	count  int
	within time.Duration
}

// watchesEnd does what ends the watches of a version, and waits until each has ended.
func (d *demo) watchesEnd(ctx context.Context, r follow.Resource, do func() error) (ending, error) {
	before := map[*follow.Watcher]int{}
	for _, w := range d.watchers {
		if w.Resource.GroupVersionResource == r.GroupVersionResource {
			before[w] = w.Ends()["ended"]
		}
	}
	if err := do(); err != nil {
		return ending{}, err
	}
	began := time.Now()
	err := until(ctx, "the watches of the old definition end", func(context.Context) error {
		open := 0
		for w, ended := range before {
			if w.Ends()["ended"] == ended {
				open++
			}
		}
		if open > 0 {
			return fmt.Errorf("%d of %d are open", open, len(before))
		}
		return nil
	})
	return ending{len(before), time.Since(began)}, err
}

// secondVersion adds v2 and stores it from then on. The watches of the first definition end, and resume.
func (d *demo) secondVersion(ctx context.Context) (ending, error) {
	ended, err := d.watchesEnd(ctx, widgets1, func() error {
		patch, err := json.Marshal(map[string]any{"spec": map[string]any{"versions": []any{version("v1", false), version("v2", true)}}})
		if err == nil {
			_, err = d.clients.Dynamic.Resource(definitions.GroupVersionResource).Patch(ctx, widgetName, types.MergePatchType, patch, metav1.PatchOptions{})
		}
		return err
	})
	if err != nil {
		return ended, err
	}
	if err := until(ctx, "the second version is served", func(ctx context.Context) error {
		_, err := d.clients.Dynamic.Resource(widgets2.GroupVersionResource).List(ctx, metav1.ListOptions{})
		return err
	}); err != nil {
		return ended, err
	}
	if err := d.makeWidgets(ctx, widgets2, "new"); err != nil {
		return ended, err
	}
	// A change stores an old object in the new version.
	_, err = d.clients.Dynamic.Resource(widgets1.GroupVersionResource).Namespace(widgetNamespace).
		Patch(ctx, "old-0", types.MergePatchType, []byte(`{"spec":{"moved":true}}`), metav1.PatchOptions{})
	if err != nil {
		return ended, err
	}
	for name, want := range map[string]string{"old-0": "v2", "old-1": "v1", "new-1": "v2"} {
		if err := d.isStoredAs(ctx, name, want); err != nil {
			return ended, err
		}
	}
	return ended, d.readInBoth(ctx)
}

// isStoredAs asks etcd for an object's version.
func (d *demo) isStoredAs(ctx context.Context, name, want string) error {
	response, err := d.Client.Get(ctx, follow.Prefix+widgets1.Directory+"/"+widgetNamespace+"/"+name)
	if err != nil || len(response.Kvs) != 1 {
		return fmt.Errorf("etcd has no %s: %w", name, err)
	}
	var got metav1.TypeMeta
	if err := json.Unmarshal(response.Kvs[0].Value, &got); err != nil {
		return err
	}
	if got.APIVersion != widgets1.Group+"/"+want {
		return fmt.Errorf("etcd has %s as %s, not as %s", name, got.APIVersion, want)
	}
	return nil
}

// readInBoth lists all objects in both versions.
func (d *demo) readInBoth(ctx context.Context) error {
	var seen [2][]string
	for i, r := range []follow.Resource{widgets1, widgets2} {
		list, err := d.clients.Dynamic.Resource(r.GroupVersionResource).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, item := range list.Items {
			if item.GetAPIVersion() != r.GroupVersion().String() {
				return fmt.Errorf("a list of %s has %s as %s", r.Version, item.GetName(), item.GetAPIVersion())
			}
			seen[i] = append(seen[i], fmt.Sprint(item.GetName(), item.GetResourceVersion(), item.Object["spec"]))
		}
	}
	if len(seen[0]) != 2*widgetCount || !slices.Equal(seen[0], seen[1]) {
		return fmt.Errorf("v1 has %d objects and v2 %d, of %d, or others", len(seen[0]), len(seen[1]), 2*widgetCount)
	}
	return nil
}

// undefine deletes the resource, and waits until nothing is left.
func (d *demo) undefine(ctx context.Context) (ending, error) {
	all := d.clients.Dynamic.Resource(definitions.GroupVersionResource)
	ended, err := d.watchesEnd(ctx, widgets2, func() error {
		if err := all.Delete(ctx, widgetName, metav1.DeleteOptions{}); err != nil {
			return err
		}
		return until(ctx, "the definition goes", func(ctx context.Context) error {
			if _, err := all.Get(ctx, widgetName, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return fmt.Errorf("it is still there: %v", err)
			}
			return nil
		})
	})
	if err != nil {
		return ended, err
	}
	if err := until(ctx, "the resource is not served", func(ctx context.Context) error {
		if _, err := d.clients.Dynamic.Resource(widgets1.GroupVersionResource).List(ctx, metav1.ListOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("a list: %v", err)
		}
		return nil
	}); err != nil {
		return ended, err
	}
	for _, name := range []string{widgets1.Group, widgetName} {
		keys, err := d.keysOf(ctx, name)
		// The group's APIService goes a moment later, by another controller.
		if err != nil || len(keys) > 0 {
			return ended, fmt.Errorf("etcd still has %d keys of the resource (%v): %v", len(keys), err, keys)
		}
	}
	return ended, nil
}
