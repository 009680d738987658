//go:build debug

package watchcore

const debug = true

// With the build tag debug a batch is a copy, and Release overwrites it: bytes
// kept too long read as 0xDB, and a batch used too late panics. Nothing of this
// depends on when the library would have used its memory again.
func (b *Batch) poisonable() {
	copies := cloneEvents(b.events)
	b.raw.release()
	b.raw.owner = nil
	b.events = copies.events
	b.poison = func() {
		for i := range copies.bytes {
			copies.bytes[i] = 0xDB
		}
	}
}
