package trie

import (
	"runtime"
	"strconv"
	"sync"
	"testing"
)

var sizes = []int{10_000, 150_000}

func BenchmarkGet(b *testing.B) {
	for _, n := range sizes {
		m, items := filled(n)
		b.Run("trie/"+strconv.Itoa(n), func(b *testing.B) {
			b.ReportAllocs()
			for i := range b.N {
				if m.Get(items[i*101%n].key) == nil {
					b.Fatal("none")
				}
			}
		})
		byKey := map[string]*thing{}
		for _, item := range items {
			byKey[item.key] = item
		}
		var mu sync.RWMutex
		b.Run("map+RWMutex/"+strconv.Itoa(n), func(b *testing.B) {
			for i := range b.N {
				mu.RLock()
				item := byKey[items[i*101%n].key]
				mu.RUnlock()
				if item == nil {
					b.Fatal("none")
				}
			}
		})
	}
}

func BenchmarkSet(b *testing.B) {
	for _, n := range sizes {
		m, items := filled(n)
		b.Run("trie/"+strconv.Itoa(n), func(b *testing.B) {
			b.ReportAllocs()
			for i := range b.N {
				m = m.Set(items[i*101%n])
			}
		})
		byKey := map[string]*thing{}
		for _, item := range items {
			byKey[item.key] = item
		}
		var mu sync.RWMutex
		b.Run("map+RWMutex/"+strconv.Itoa(n), func(b *testing.B) {
			for i := range b.N {
				mu.Lock()
				byKey[items[i*101%n].key] = items[i*101%n]
				mu.Unlock()
			}
		})
	}
}

func BenchmarkWalk(b *testing.B) {
	m, _ := filled(150_000)
	b.Run("trie", func(b *testing.B) {
		for range b.N {
			count := 0
			for range m.All() {
				count++
			}
		}
	})
}

// BenchmarkBuild also says how many bytes of nodes a map has per item.
func BenchmarkBuild(b *testing.B) {
	_, items := filled(150_000)
	var m Map[thing]
	before := heap()
	for range b.N {
		builder := New(things()).Builder()
		for _, item := range items {
			builder.Set(item)
		}
		m = builder.Map()
	}
	b.StopTimer()
	b.ReportMetric(float64(heap()-before)/float64(m.Len()), "B/item")
	runtime.KeepAlive(m)
}

func heap() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}
