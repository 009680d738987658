//go:build watchcore_system

package watchcore

// The library of the system: `make install`, and PKG_CONFIG_PATH where the prefix is
// not one that pkg-config looks at. Go keeps what pkg-config said: after the library
// has moved, `go clean -cache`.

// #cgo pkg-config: watchcore
// #cgo CFLAGS: -DWATCHCORE_SYSTEM
import "C"
