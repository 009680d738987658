package trie

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
)

type thing struct {
	key   string
	value int
}

func things() *Kind[thing] { return NewKind(func(t *thing) string { return t.key }) }

// weakly gives kinds whose keys collide.
func weakly(hash func(string) uint64) *Kind[thing] {
	k := things()
	k.weak = hash
	return k
}

// kinds is a good hash, and bad ones: each way that hashes can agree.
func kinds() map[string]*Kind[thing] {
	number := func(key string) uint64 { n, _ := strconv.ParseUint(key, 10, 64); return n }
	return map[string]*Kind[thing]{
		"good":       things(),
		"all equal":  weakly(func(string) uint64 { return 0 }),
		"two hashes": weakly(func(key string) uint64 { return -(number(key) % 2) }),
		"low bits":   weakly(number),
		"high bits":  weakly(func(key string) uint64 { return number(key) << 58 }),
		"both ends":  weakly(func(key string) uint64 { return number(key)%3<<61 | number(key)%4 }),
	}
}

// checked holds a map against what it should have, and its shape against that of the map
// that is built of the same items in another order.
func checked(t testing.TB, m Map[thing], want map[string]*thing) {
	t.Helper()
	if m.Len() != len(want) {
		t.Fatalf("%d items, want %d", m.Len(), len(want))
	}
	seen := map[string]*thing{}
	for item := range m.All() {
		seen[item.key] = item
	}
	if list := m.AppendTo(nil); !slices.Equal(list, slices.Collect(m.All())) {
		t.Fatalf("a list of %d items is no walk", len(list))
	}
	if !maps.Equal(seen, want) {
		t.Fatalf("a walk has other items: %d of %d", len(seen), len(want))
	}
	keys := slices.Sorted(maps.Keys(want))
	slices.Reverse(keys)
	b := New(m.kind).Builder()
	for _, key := range keys {
		b.Set(want[key])
	}
	if got, canonical := shape(m.root), shape(b.Map().root); got != canonical {
		t.Fatalf("the shape depends on the history:\n%s\n%s", got, canonical)
	}
}

func shape(r ref[thing]) string {
	if r.branch == nil {
		text := "("
		for _, s := range r.slots() {
			text += s.item.key + " "
		}
		return text + ")"
	}
	text := fmt.Sprintf("%d[", r.branch.count)
	for _, kid := range r.branch.kids {
		text += shape(kid)
	}
	return text + "]"
}

// A random history against Go's map: persistent changes and builders, and every older map
// stays what it was. Each step's difference is what a naive comparison finds.
func TestTrieEqualsMapOverRandomHistories(t *testing.T) {
	for name, kind := range kinds() {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(20) {
				history(t, kind, rand.New(rand.NewPCG(seed, 7)))
			}
		})
	}
}

type moment struct {
	m    Map[thing]
	want map[string]*thing
}

func history(t *testing.T, kind *Kind[thing], r *rand.Rand) {
	keys := 1 + r.IntN(120)
	now := moment{New(kind), map[string]*thing{}}
	past := []moment{now}
	for range 60 {
		now.want = maps.Clone(now.want)
		b := now.m.Builder()
		building := r.IntN(2) == 0
		for range r.IntN(30) {
			key := strconv.Itoa(r.IntN(keys))
			old := now.want[key]
			if r.IntN(3) == 0 {
				if delete(now.want, key); building {
					same(t, b.Delete(key), old)
				} else {
					now.m = now.m.Delete(key)
				}
			} else {
				item := &thing{key, r.Int()}
				if now.want[key] = item; building {
					same(t, b.Set(item), old)
				} else {
					now.m = now.m.Set(item)
				}
			}
			if building && r.IntN(10) == 0 {
				now.m = b.Map()
				past = append(past, moment{now.m, maps.Clone(now.want)})
			}
		}
		if building {
			now.m = b.Map()
		}
		past = append(past, now)
		for key := range keys {
			same(t, now.m.Get(strconv.Itoa(key)), now.want[strconv.Itoa(key)])
		}
		earlier := past[r.IntN(len(past))]
		compared(t, earlier, now)
	}
	for _, m := range past {
		checked(t, m.m, m.want)
	}
}

func same(t testing.TB, got, want *thing) {
	t.Helper()
	if got != want {
		t.Fatalf("got %v, want %v", got, want)
	}
}

func compared(t testing.TB, a, b moment) {
	t.Helper()
	type pair struct{ old, new *thing }
	got, want := map[string]pair{}, map[string]pair{}
	Diff(a.m, b.m, func(old, new *thing) bool {
		key := ""
		if old != nil {
			key = old.key
		}
		if new != nil {
			key = new.key
		}
		if _, twice := got[key]; twice {
			t.Fatalf("%s twice", key)
		}
		got[key] = pair{old, new}
		return true
	})
	for key, item := range a.want {
		if b.want[key] != item {
			want[key] = pair{item, b.want[key]}
		}
	}
	for key, item := range b.want {
		if a.want[key] == nil {
			want[key] = pair{nil, item}
		}
	}
	if !maps.Equal(got, want) {
		t.Fatalf("difference of %d and %d items: got %v, want %v", len(a.want), len(b.want), got, want)
	}
}

// The cost of a difference is that of what has changed: it asks for the keys of one leaf
// where one of 100,000 items has.
func TestTrieDiffSkipsWhatIsShared(t *testing.T) {
	asked := 0
	kind := NewKind(func(t *thing) string { asked++; return t.key })
	b := New(kind).Builder()
	for i := range 100_000 {
		b.Set(&thing{strconv.Itoa(i), i})
	}
	old := b.Map()
	item := &thing{"77", -1}
	new := old.Set(item)
	asked = 0
	found := 0
	Diff(old, new, func(a, b *thing) bool {
		found++
		if a.value != 77 || b != item {
			t.Fatalf("%v, %v", a, b)
		}
		return true
	})
	if found != 1 || asked > 2*most {
		t.Fatalf("%d differences, %d keys asked for", found, asked)
	}
	visits := 0
	if Diff(New(kind), old, func(_, _ *thing) bool { visits++; return visits < 10 }) || visits != 10 {
		t.Fatalf("a walk that is ended goes on: %d", visits)
	}
}

// A builder's later changes never show in the maps that it has handed out.
func TestTrieBuilderLeavesItsMapsAlone(t *testing.T) {
	b := New(things()).Builder()
	var made []moment
	want := map[string]*thing{}
	for i := range 2000 {
		item := &thing{strconv.Itoa(i * 7 % 500), i}
		b.Set(item)
		want[item.key] = item
		if i%3 == 0 {
			b.Delete(strconv.Itoa(i % 500))
			delete(want, strconv.Itoa(i%500))
		}
		if i%50 == 0 {
			made = append(made, moment{b.Map(), maps.Clone(want)})
		}
	}
	for _, m := range made {
		checked(t, m.m, m.want)
	}
}

// One change of 150,000 items copies few small nodes.
func TestTrieSetAllocatesLittle(t *testing.T) {
	m, items := filled(150_000)
	i := 0
	allocations := testing.AllocsPerRun(1000, func() {
		i += 101
		m = m.Set(items[i%len(items)])
	})
	if allocations > 9 {
		t.Fatalf("%v allocations", allocations)
	}
	if n := testing.AllocsPerRun(100, func() { m.Get("k77") }); n != 0 {
		t.Fatalf("a read allocates %v times", n)
	}
}

func filled(n int) (Map[thing], []*thing) {
	b := New(things()).Builder()
	items := make([]*thing, n)
	for i := range items {
		items[i] = &thing{"/registry/pods/namespace-" + strconv.Itoa(i%100) + "/pod-" + strconv.Itoa(i), i}
		b.Set(items[i])
	}
	return b.Map(), items
}

func FuzzTrie(f *testing.F) {
	f.Add([]byte("\x01\x02\x03\x81\x82"), uint8(3))
	f.Add([]byte("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ\xe1\xe2\xe3"), uint8(0))
	f.Fuzz(func(t *testing.T, steps []byte, hashBits uint8) {
		kind := weakly(func(key string) uint64 {
			return uint64(key[0]) % (1 << (hashBits % 8)) << (hashBits % 61)
		})
		m, want := New(kind), map[string]*thing{}
		start := moment{m, maps.Clone(want)}
		for i, step := range steps {
			key := string([]byte{step % 0x80})
			if step >= 0x80 {
				m = m.Delete(key)
				delete(want, key)
			} else {
				want[key] = &thing{key, i}
				m = m.Set(want[key])
			}
			if i == len(steps)/2 {
				start = moment{m, maps.Clone(want)}
			}
		}
		checked(t, m, want)
		compared(t, start, moment{m, want})
	})
}
