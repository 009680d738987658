//go:build musl && !watchcore_system

package watchcore

// static.go, for a C compiler of musl, such as Alpine's: the objects differ, and Go chooses an object
// by the name of its file alone, so these lie in a package of their own.
//
// The object has an unwinder, which finds its tables by a header that musl-gcc, unlike Alpine's gcc, has
// to be told to write: CGO_LDFLAGS=-Wl,--eh-frame-hdr, a flag that Go takes from nowhere else. Without it
// a panic inside the library ends the program.

// #cgo CFLAGS: -DWATCHCORE_MUSL
// #cgo LDFLAGS: -static-libgcc
import "C"

import (
	"runtime"

	_ "github.com/watchcore/watchcore/go/internal/musl"
)

const (
	linkage  = "static " + runtime.GOOS + "/" + runtime.GOARCH + " musl"
	isStatic = true
)
