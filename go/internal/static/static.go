// Package static contains the library inside the module, as an object file per platform, which Go
// links by its name: libwatchcore_GOOS_GOARCH.syso. `make lib` puts the machine's own here, `make
// go-dist` those of other platforms.
//
// The objects lie in an imported package, so that `go mod vendor` copies them, and a changed object
// leads to a new build.
package static
