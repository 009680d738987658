//go:build !debug

package watchcore

const debug = false

func (b *Batch) poisonable() {}

func (d *Decoder[T]) call(key, value []byte) (T, error) { return d.decode(key, value) }
