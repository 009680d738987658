// Package goroutine tells goroutines apart.
package goroutine

import (
	"bytes"
	"runtime"
	"strconv"
)

// ID is the number of the goroutine that calls it, which no other one ever has; 0
// where it cannot be found out.
//
// Go has no call for it. The first line of a goroutine's stack trace has said "goroutine 7
// [running]:" since Go 1, and a test holds that. It serves one purpose: to refuse a call that would
// wait for its own caller. Where the number were 0 that call would wait for its context.
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
