package main

import (
	"strings"
	"sync"

	"github.com/google/btree"
)

// lockedMap is a map under an RWMutex: it has no order, so it answers no lists.
type lockedMap struct {
	mutex    sync.RWMutex
	objects  map[string]*version
	revision uint64
}

func fillMap(objects int) store {
	m := &lockedMap{objects: make(map[string]*version, objects)}
	for number := range objects {
		m.put(key(number), value)
	}
	return m
}

func (m *lockedMap) put(key string, value []byte) {
	m.revision++
	v := copied(m.revision, key, value)
	m.mutex.Lock()
	m.objects[v.key] = v
	m.mutex.Unlock()
}

func (m *lockedMap) get(key string) uint64 {
	m.mutex.RLock()
	v := m.objects[key]
	m.mutex.RUnlock()
	return touched(v.value)
}

// lockedTree is google's B-tree under an RWMutex.
type lockedTree struct {
	mutex    sync.RWMutex
	tree     *btree.BTreeG[*version]
	revision uint64
}

func fillTree(objects int) store {
	t := &lockedTree{tree: btree.NewG(32, func(a, b *version) bool { return a.key < b.key })}
	for number := range objects {
		t.put(key(number), value)
	}
	return t
}

func (t *lockedTree) put(key string, value []byte) {
	t.revision++
	v := copied(t.revision, key, value)
	t.mutex.Lock()
	t.tree.ReplaceOrInsert(v)
	t.mutex.Unlock()
}

func (t *lockedTree) get(key string) uint64 {
	t.mutex.RLock()
	v, _ := t.tree.Get(&version{key: key})
	t.mutex.RUnlock()
	return touched(v.value)
}

// list walks a clone, which is lazy: writers do not wait.
func (t *lockedTree) list(prefix string, touch bool) (count int) {
	t.mutex.Lock()
	tree := t.tree.Clone()
	t.mutex.Unlock()
	var sum uint64
	tree.AscendGreaterOrEqual(&version{key: prefix}, func(v *version) bool {
		if !strings.HasPrefix(v.key, prefix) {
			return false
		}
		if touch {
			sum += touched(v.value)
		}
		count++
		return true
	})
	sink.Store(sum)
	return count
}

func (t *lockedTree) takeState(int) int { return t.list(prefix, true) }
