//go:build cgo && !debug

package watchcore

const debug = false

func poisonable(events []rawEvent) ([]rawEvent, lentCopies) { return events, lentCopies{} }

func poisonableItems(items []*keyValue) ([]*keyValue, lentCopies) { return items, lentCopies{} }

// lentCopies is what is shown in place of the library's memory: nothing is.
type lentCopies struct{}

func (lentCopies) poison() {}

// origin is where a loan was taken: not known, for it costs more than the loan.
type origin struct{}

func origins() origin { return origin{} }

func (origin) String() string {
	return "The build tag debug says where it was taken"
}

func (d *Decoder[T]) call(key, value []byte) (T, error) { return d.decode(key, value) }
