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

// A decoder is given copies, which are overwritten behind it.
func (d *Decoder[T]) call(key, value []byte) (T, error) {
	bytes := append(append(make([]byte, 0, len(key)+len(value)), key...), value...)
	defer func() {
		for i := range bytes {
			bytes[i] = 0xDB
		}
	}()
	return d.decode(bytes[:len(key):len(key)], bytes[len(key):])
}
