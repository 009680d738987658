//go:build !debug

package watchcore

const debug = false

func poisonable(events []rawEvent) ([]rawEvent, []byte) { return events, nil }

func poisonableItems(items []*keyValue) ([]*keyValue, []byte) { return items, nil }

func poison([]byte) {}

func (d *Decoder[T]) call(key, value []byte) (T, error) { return d.decode(key, value) }
