package apiserver

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/value"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
)

// item is one version of one object, decoded. All readers share it, so nobody changes it.
type item struct {
	labels labels.Set
	fields fields.Set

	mu      sync.Mutex // held while the resourceVersion is set, and for copies
	object  *object
	version uint64             // 0: the object has no resourceVersion yet
	deleted map[uint64]*object // the object as the last one before that revision
}

// decode makes an item of a key and a value as etcd has them.
func (s *store) decode(key, stored []byte) (*item, error) {
	data, _, err := s.transformer.TransformFromStorage(context.Background(), bytes.Clone(stored), value.DefaultContext(key))
	if err != nil {
		return nil, corrupt{storage.NewInternalError(err)}
	}
	decoded, err := runtime.Decode(s.codec, data)
	if err != nil {
		return nil, corrupt{err}
	}
	i := &item{object: &object{shared: decoded}}
	i.labels, i.fields, err = s.attributes(decoded)
	return i, err
}

// corrupt is the error of an object that nobody can decode. The storage over etcd then answers reads, as it says which objects these are.
type corrupt struct{ error }

func (c corrupt) Unwrap() error { return c.error }

func isCorrupt(err error) bool { return errors.As(err, new(corrupt)) }

// at returns the object with the revision of its version. All callers name the same one.
func (i *item) at(revision uint64, versioner storage.Versioner) (*object, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.version == 0 {
		if err := versioner.UpdateObject(i.object.shared, revision); err != nil {
			return nil, err
		}
		i.version = revision
	}
	return i.object, nil
}

// deletedAt returns the object as a watcher gets it that has it no more since a revision: with that as its resourceVersion.
func (i *item) deletedAt(revision uint64, versioner storage.Versioner) (*object, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if o := i.deleted[revision]; o != nil {
		return o, nil
	}
	last := i.object.shared.DeepCopyObject()
	if err := versioner.UpdateObject(last, revision); err != nil {
		return nil, err
	}
	if i.deleted == nil {
		i.deleted = map[uint64]*object{}
	}
	o := &object{shared: last}
	i.deleted[revision] = o
	return o, nil
}

// matches says whether the predicate selects the item.
func (s *store) matches(p *storage.SelectionPredicate, i *item) (bool, error) {
	if within, err := s.within(p, i); err != nil || !within {
		return false, err
	}
	return p.MatchesObjectAttributes(i.labels, i.fields), nil
}

// within says whether the item is in the predicate's shard.
func (s *store) within(p *storage.SelectionPredicate, i *item) (bool, error) {
	if !s.sharded(p) {
		return true, nil
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	return p.MatchesSharding(i.object.shared)
}

func (s *store) sharded(p *storage.SelectionPredicate) bool {
	return utilfeature.DefaultFeatureGate.Enabled(features.ShardedListAndWatch) && p.ShardSelector != nil && !p.ShardSelector.Empty()
}

// object is a decoded object that many watchers give out. It is encoded once for each form that is asked for, whoever asks.
type object struct {
	shared runtime.Object

	mu      sync.Mutex
	encoded map[runtime.Identifier]*encoding
}

type encoding struct {
	once sync.Once
	data []byte
	err  error
}

var _ runtime.CacheableObject = (*object)(nil)

// cborForms is how many encodings an object has in CBOR. Kubernetes orders CBOR's maps at random, so that no client comes to depend on
// an order, and its tests want the answers for one event to differ.
const cborForms = 4

// CacheEncode writes the object as encode makes it, once for each identifier.
func (o *object) CacheEncode(id runtime.Identifier, encode func(runtime.Object, io.Writer) error, w io.Writer) error {
	if strings.Contains(string(id), "cbor") {
		id += runtime.Identifier(rune('0' + rand.IntN(cborForms)))
	}
	o.mu.Lock()
	e := o.encoded[id]
	if e == nil {
		if o.encoded == nil {
			o.encoded = map[runtime.Identifier]*encoding{}
		}
		e = &encoding{}
		o.encoded[id] = e
	}
	o.mu.Unlock()
	e.once.Do(func() {
		var out bytes.Buffer
		e.err = encode(o.GetObject(), &out) // an encoder may change what it encodes
		e.data = out.Bytes()
	})
	if e.err != nil {
		return e.err
	}
	if splice, ok := w.(runtime.Splice); ok {
		splice.Splice(e.data)
		return nil
	}
	_, err := w.Write(e.data)
	return err
}

// GetObject returns a copy, which the caller may change.
func (o *object) GetObject() runtime.Object { return o.shared.DeepCopyObject() }

// GetObjectKind returns the kind of the object, which is shared.
func (o *object) GetObjectKind() schema.ObjectKind { return o.shared.GetObjectKind() }

// GetObjectMeta returns the metadata of the object, which is shared: a caller that changes something takes GetObject.
func (o *object) GetObjectMeta() metav1.Object {
	m, err := meta.Accessor(o.shared)
	if err != nil {
		return nil
	}
	return m
}

// DeepCopyObject copies the object and what was encoded of it.
func (o *object) DeepCopyObject() runtime.Object {
	o.mu.Lock()
	defer o.mu.Unlock()
	return &object{shared: o.shared.DeepCopyObject(), encoded: maps.Clone(o.encoded)}
}
