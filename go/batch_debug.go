//go:build cgo && debug

package watchcore

import (
	"fmt"
	"reflect"
	"runtime"
	"strings"
)

const debug = true

// With the build tag debug a batch shows a copy, and its release overwrites the copy: views that
// are kept too long read 0xDB. This does not depend on when the library reuses the original memory.

func poisonable(events []rawEvent) ([]rawEvent, shownCopies) {
	_, copies, bytes := cloneEvents(0, events)
	return copies, bytes
}

func poisonableItems(items []*keyValue) ([]*keyValue, shownCopies) {
	length := 0
	for _, kv := range items {
		length += kv.copySize()
	}
	bytes := make([]byte, length)
	c := cloner{make([]keyValue, 0, len(items)), bytes[:0]}
	copies := make([]*keyValue, len(items))
	for i, kv := range items {
		copies[i] = c.keyValue(kv)
	}
	return copies, bytes
}

func poison(bytes []byte) {
	for i := range bytes {
		bytes[i] = 0xDB
	}
}

// shownCopies is the copy that the program reads instead of the library's memory.
type shownCopies []byte

func (c shownCopies) poison() { poison(c) }

// packagePath is what the names of this package's functions begin with.
var packagePath = reflect.TypeFor[Cache]().PkgPath()

// origin is the call stack by which the program obtained a batch or page.
type origin [16]uintptr

func origins() (o origin) {
	runtime.Callers(2, o[:])
	return o
}

func (o origin) String() string {
	var text strings.Builder
	text.WriteString("It was taken here:")
	frames := runtime.CallersFrames(o[:])
	for more, ours := true, true; more; {
		var frame runtime.Frame
		frame, more = frames.Next()
		if ours = ours && strings.HasPrefix(frame.Function, packagePath+"."); !ours && frame.Function != "" {
			fmt.Fprintf(&text, "\n%s\n\t%s:%d", frame.Function, frame.File, frame.Line)
		}
	}
	return text.String()
}

// call gives the decoder a copy, and overwrites it afterwards.
func (d *Decoder[T]) call(key, value []byte) (T, error) {
	bytes := append(append(make([]byte, 0, len(key)+len(value)), key...), value...)
	defer poison(bytes)
	return d.decode(bytes[:len(key):len(key)], bytes[len(key):])
}
