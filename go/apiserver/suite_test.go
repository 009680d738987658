package apiserver

import (
	"context"
	"fmt"
	"testing"

	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/etcd3"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
)

// Kubernetes' own suite for a storage.Interface: all that its cacher's tests call, in the forms in which they call it.

func TestStorage(t *testing.T) {
	noCalls := func(*testing.T, uint64, uint64) {}
	noInvariants := func(context.Context, *testing.T, string) {}
	for name, run := range map[string]func(context.Context, *testing.T, storage.Interface){
		"Create": func(ctx context.Context, t *testing.T, s storage.Interface) {
			storagetesting.RunTestCreate(ctx, t, s, noInvariants)
		},
		"CreateWithTTL":                              storagetesting.RunTestCreateWithTTL,
		"CreateWithKeyExist":                         storagetesting.RunTestCreateWithKeyExist,
		"Get":                                        storagetesting.RunTestGet,
		"UnconditionalDelete":                        storagetesting.RunTestUnconditionalDelete,
		"ConditionalDelete":                          storagetesting.RunTestConditionalDelete,
		"DeleteWithSuggestion":                       storagetesting.RunTestDeleteWithSuggestion,
		"DeleteWithSuggestionAndConflict":            storagetesting.RunTestDeleteWithSuggestionAndConflict,
		"DeleteWithSuggestionOfDeletedObject":        storagetesting.RunTestDeleteWithSuggestionOfDeletedObject,
		"ValidateDeletionWithSuggestion":             storagetesting.RunTestValidateDeletionWithSuggestion,
		"ValidateDeletionWithOnlySuggestionValid":    storagetesting.RunTestValidateDeletionWithOnlySuggestionValid,
		"DeleteWithConflict":                         storagetesting.RunTestDeleteWithConflict,
		"PreconditionalDeleteWithSuggestion":         storagetesting.RunTestPreconditionalDeleteWithSuggestion,
		"PreconditionalDeleteWithOnlySuggestionPass": storagetesting.RunTestPreconditionalDeleteWithOnlySuggestionPass,
		"ListPaging":                                 storagetesting.RunTestListPaging,
		"GetListRecursivePrefix":                     storagetesting.RunTestGetListRecursivePrefix,
		"ListContinuation": func(ctx context.Context, t *testing.T, s storage.Interface) {
			storagetesting.RunTestListContinuation(ctx, t, s, noCalls)
		},
		"ListPaginationRareObject": func(ctx context.Context, t *testing.T, s storage.Interface) {
			storagetesting.RunTestListPaginationRareObject(ctx, t, s, noCalls)
		},
		"ListContinuationWithFilter": func(ctx context.Context, t *testing.T, s storage.Interface) {
			storagetesting.RunTestListContinuationWithFilter(ctx, t, s, noCalls)
		},
		"NamespaceScopedList":                    storagetesting.RunTestNamespaceScopedList,
		"GuaranteedUpdateWithTTL":                storagetesting.RunTestGuaranteedUpdateWithTTL,
		"GuaranteedUpdateWithConflict":           storagetesting.RunTestGuaranteedUpdateWithConflict,
		"GuaranteedUpdateWithSuggestionConflict": storagetesting.RunTestGuaranteedUpdateWithSuggestionAndConflict,
		"KeySchema":                              storagetesting.RunTestKeySchema,
		"Watch":                                  storagetesting.RunTestWatch,
		"DeleteTriggerWatch":                     storagetesting.RunTestDeleteTriggerWatch,
		"WatchFromNonZero":                       storagetesting.RunTestWatchFromNonZero,
		"DelayedWatchDelivery":                   storagetesting.RunTestDelayedWatchDelivery,
		"WatcherTimeout":                         storagetesting.RunTestWatcherTimeout,
		"WatchDeleteEventObjectHaveLatestRV":     storagetesting.RunTestWatchDeleteEventObjectHaveLatestRV,
		"WatchInitializationSignal":              storagetesting.RunTestWatchInitializationSignal,
		"WatchContextCancel":                     storagetesting.RunTestWatchContextCancel,
		"ClusterScopedWatch":                     storagetesting.RunTestClusterScopedWatch,
		"NamespaceScopedWatch":                   storagetesting.RunTestNamespaceScopedWatch,
		"WatchDispatchBookmarkEvents": func(ctx context.Context, t *testing.T, s storage.Interface) {
			storagetesting.RunTestWatchDispatchBookmarkEvents(ctx, t, s, true)
		},
		"WatchBookmarksWithCorrectResourceVersion": storagetesting.RunTestOptionalWatchBookmarksWithCorrectResourceVersion,
		"SendInitialEventsBackwardCompatibility":   storagetesting.RunSendInitialEventsBackwardCompatibility,
		"DeleteWithSuggestionAndMissingExpectedTransformOrDecodeError": func(ctx context.Context, t *testing.T, s storage.Interface) {
			featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.AllowUnsafeMalformedObjectDeletion, true)
			storagetesting.RunTestDeleteWithSuggestionAndMissingExpectedTransformOrDecodeError(ctx, t, s)
		},
	} {
		t.Run(name, func(t *testing.T) { run(context.Background(), t, newWorld(t)) })
	}
	for name, run := range map[string]func(context.Context, *testing.T, storage.Interface){
		"WatchSemantics":                     storagetesting.RunWatchSemantics,
		"WatchSemanticInitialEventsExtended": storagetesting.RunWatchSemanticInitialEventsExtended,
		"WatchListMatchSingle":               storagetesting.RunWatchListMatchSingle,
	} {
		t.Run(name, func(t *testing.T) { run(context.Background(), t, seen{newWorld(t)}) })
	}
}

func TestStorageFromZero(t *testing.T) {
	w := newWorld(t)
	storagetesting.RunTestWatchFromZero(t.Context(), t, w, w.compact)
}

func TestStorageLists(t *testing.T) {
	for _, snapshots := range []bool{true, false} {
		t.Run(fmt.Sprintf("ListFromCacheSnapshot=%v", snapshots), func(t *testing.T) {
			featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.ListFromCacheSnapshot, snapshots)
			t.Run("List", func(t *testing.T) {
				w := newWorld(t)
				storagetesting.RunTestList(t.Context(), t, w, w.compact, true, w.recorder)
			})
			t.Run("ConsistentList", func(t *testing.T) {
				w := newWorld(t)
				storagetesting.RunTestConsistentList(t.Context(), t, w, w.raise, true, true, snapshots)
			})
			t.Run("GetListNonRecursive", func(t *testing.T) {
				w := newWorld(t)
				storagetesting.RunTestGetListNonRecursive(t.Context(), t, w.raise, w)
			})
		})
	}
}

func TestStorageCompactRevision(t *testing.T) {
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.ListFromCacheSnapshot, true)
	w := newWorld(t)
	storagetesting.RunTestCompactRevision(t.Context(), t, w, w.raise, w.compact)
}

func TestStorageStats(t *testing.T) {
	for _, sizes := range []bool{true, false} {
		t.Run(fmt.Sprintf("SizeBasedListCostEstimate=%v", sizes), func(t *testing.T) {
			featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.SizeBasedListCostEstimate, sizes)
			storagetesting.RunTestStats(t.Context(), t, newWorld(t), protobufCodec, identity.NewEncryptCheckTransformer(), sizes)
		})
	}
}

func TestStorageOfUndecodableObjects(t *testing.T) {
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.AllowUnsafeMalformedObjectDeletion, true)
	etcd3.TestOnlySetFatalOnDecodeError(t, false)
	t.Run("DeleteWithConflictAndMissingExpectedTransformOrDecodeError", func(t *testing.T) {
		f := &failing{Transformer: identity.NewEncryptCheckTransformer()}
		storagetesting.RunTestDeleteWithConflictAndMissingExpectedTransformOrDecodeError(t.Context(), t, newWorld(t, withTransformer(f)), f.on.Store)
	})
	t.Run("DeleteWithConflictAndExpectedTransformError", func(t *testing.T) {
		f := &failing{Transformer: identity.NewEncryptCheckTransformer()}
		storagetesting.RunTestDeleteExpectedTransformOrDecodeError(t.Context(), t, newWorld(t, withTransformer(f)), f.on.Store)
	})
	t.Run("DeleteWithConflictAndExpectedDecodeError", func(t *testing.T) {
		f := &failing{Codec: testCodec()}
		storagetesting.RunTestDeleteExpectedTransformOrDecodeError(t.Context(), t, newWorld(t, withCodec(f)), f.on.Store)
	})
}

// Reads of objects that nobody can decode get the answer of the storage over etcd, which names them.
func TestReadsOfUndecodableObjects(t *testing.T) {
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.AllowUnsafeMalformedObjectDeletion, true)
	etcd3.TestOnlySetFatalOnDecodeError(t, false)
	transformer := &failing{Transformer: identity.NewEncryptCheckTransformer()}
	codec := &failing{Codec: testCodec()}
	for name, w := range map[string]*world{"transform": newWorld(t, withTransformer(transformer)), "decode": newWorld(t, withCodec(codec))} {
		w.create(t, "a")
		last := w.create(t, "b").ResourceVersion
		transformer.on.Store(true)
		codec.on.Store(true)
		for _, resourceVersion := range []string{"", "0", last} {
			list := func(s storage.Interface) error {
				return s.GetList(t.Context(), "/pods/", storage.ListOptions{ResourceVersion: resourceVersion, Predicate: storage.Everything, Recursive: true}, &example.PodList{})
			}
			get := func(s storage.Interface) error {
				return s.Get(t.Context(), podKey("a"), storage.GetOptions{ResourceVersion: resourceVersion}, &example.Pod{})
			}
			for _, read := range []func(storage.Interface) error{list, get} {
				if ours, theirs := read(w), read(w.writes); theirs == nil || fmt.Sprint(ours) != fmt.Sprint(theirs) {
					t.Errorf("%s at %q: %v, but etcd's storage: %v", name, resourceVersion, ours, theirs)
				}
			}
		}
		transformer.on.Store(false)
		codec.on.Store(false)
	}
}
