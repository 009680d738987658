//go:build watchcore_system

package watchcore

// This build links the library of the system: run `make install`, and set PKG_CONFIG_PATH if the
// prefix is not one that pkg-config searches. Go caches the output of pkg-config: after the library
// has moved, run `go clean -cache`.

// #cgo pkg-config: watchcore
// #cgo CFLAGS: -DWATCHCORE_SYSTEM
import "C"

const (
	linkage  = "system"
	isStatic = false
)
