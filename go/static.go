//go:build !watchcore_system

package watchcore

// The library inside the module, and gcc's unwinder with it: without the flag, the
// program would need libgcc_s.so.1 on each machine that it runs on.

// #cgo linux LDFLAGS: -static-libgcc -lm -ldl -lpthread
import "C"

import _ "watchcore/internal/static"
