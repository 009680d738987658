//go:build !watchcore_shared

package watchcore

// The static library that `make lib` builds beside this package. "cannot find
// -l:libwatchcore.a" means that it has not run yet.

// #cgo CFLAGS: -I${SRCDIR}/../include
// #cgo LDFLAGS: -L${SRCDIR}/../target/watchcore -l:libwatchcore.a -lm -ldl -lpthread
import "C"
