//go:build !cgo && linux

package watchcore

// Without cgo there is no library. The compiler's error message shows this sentence.
var _ int = "watchcore needs cgo. Set CGO_ENABLED=1 and install a C compiler, such as gcc"
