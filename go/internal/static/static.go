// Package static is where the library lies inside the module, as an object of each
// platform that Go links by the name of its file: libwatchcore_GOOS_GOARCH.syso. `make
// lib` puts the one of the machine here, `make go-dist` those of other platforms.
//
// It is a package, and imported, so that `go mod vendor` takes the objects along, and a
// changed object is a new build.
package static
