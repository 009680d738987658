// Package musl is package static for the build tag musl: its objects are linked with the C library of
// that name. `make go-dist GO_TARGETS=linux/amd64/musl` puts one here.
package musl
