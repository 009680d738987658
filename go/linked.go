package watchcore

// #include "abi.h"
import "C"

import (
	"fmt"
	"slices"
)

// Linked says which library the program links, and the version of the header that the package was
// compiled with: "static linux/amd64 glibc 0.1.0" for the library inside the module, with musl
// instead of glibc for the build tag musl, or "system 0.1.0" for the build tag watchcore_system.
//
// A program does not start with a library that the header does not fit: one inside the module must
// have exactly the header's version, one of the system at least that. [Version] returns the library's.
const Linked = linkage + " " + C.WATCHCORE_VERSION

func init() {
	if why := misfit(C.WATCHCORE_VERSION, Version(), isStatic); why != "" {
		panic(why)
	}
}

// misfit says why a package that was compiled with this header cannot call that library, or "".
func misfit(header, library string, static bool) string {
	if static && header != library {
		return fmt.Sprintf("watchcore: the module's header is of version %s, its library of %s: run 'make lib', or take a released module as it is", header, library)
	}
	if slices.Compare(numbers(library), numbers(header)) < 0 {
		return fmt.Sprintf("watchcore: the program was built for version %s of the library, and the system's libwatchcore.so.%d is %s: install that version or a newer one", header, ABIVersion(), library)
	}
	return ""
}

// numbers are those of a version, such as "0.1.0".
func numbers(version string) []int {
	n := make([]int, 3)
	fmt.Sscanf(version, "%d.%d.%d", &n[0], &n[1], &n[2])
	return n
}
