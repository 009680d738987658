//go:build !cgo && !linux

package watchcore

// The compiler's error message shows this sentence; with cgo abi.h has one.
var _ int = "watchcore contains its library for Linux only: set GOOS=linux, or CGO_ENABLED=1 and -tags watchcore_system, which links the library that pkg-config finds"
