//go:build !watchcore_system && !musl

package watchcore

// The module contains the library, and this flag links gcc's unwinder statically: without it the
// program would need libgcc_s.so.1 on each machine.

// #cgo linux LDFLAGS: -static-libgcc -lm -ldl -lpthread
import "C"

import (
	"runtime"

	_ "github.com/watchcore/watchcore/go/internal/static"
)

const (
	linkage  = "static " + runtime.GOOS + "/" + runtime.GOARCH + " glibc"
	isStatic = true
)
