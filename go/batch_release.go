//go:build !debug

package watchcore

const debug = false

func (b *Batch) poisonable() {}
