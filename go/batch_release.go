//go:build cgo && !debug

package watchcore

const debug = false

func poisonable(events []rawEvent) ([]rawEvent, shownCopies) { return events, shownCopies{} }

func poisonableItems(items []*keyValue) ([]*keyValue, shownCopies) { return items, shownCopies{} }

// shownCopies is empty: without the build tag debug nothing is copied.
type shownCopies struct{}

func (shownCopies) poison() {}

// origin is empty: recording the call stack would cost more than the poll itself.
type origin struct{}

func origins() origin { return origin{} }

func (origin) String() string {
	return "The build tag debug says where it was taken"
}

func (d *Decoder[T]) call(key, value []byte) (T, error) { return d.decode(key, value) }
