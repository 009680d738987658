//go:build cgo && !debug

package watchcore

const debug = false

func poisonable(events []rawEvent) ([]rawEvent, lentCopies) { return events, lentCopies{} }

func poisonableItems(items []*keyValue) ([]*keyValue, lentCopies) { return items, lentCopies{} }

// lentCopies is what is shown in place of the library's memory: nothing is.
type lentCopies struct{}

func (lentCopies) poison() {}

func (d *Decoder[T]) call(key, value []byte) (T, error) { return d.decode(key, value) }
