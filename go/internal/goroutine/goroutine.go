// Package goroutine distinguishes goroutines.
package goroutine

import (
	"bytes"
	"runtime"
	"strconv"
)

// ID returns the number of the calling goroutine, which is never used again; 0 if it is unknown.
//
// Go offers no function for it. The first line of a goroutine's stack trace has been "goroutine 7
// [running]:" since Go 1, and a test checks that. The number serves one purpose: to refuse a call
// that would wait for its own caller. With 0 such a call waits until its context is done.
func ID() uint64 {
	var buffer [40]byte
	line := buffer[:runtime.Stack(buffer[:], false)]
	number, _, _ := bytes.Cut(bytes.TrimPrefix(line, []byte("goroutine ")), []byte(" "))
	id, err := strconv.ParseUint(string(number), 10, 64)
	if err != nil {
		return 0
	}
	return id
}
