#!/usr/bin/env bash
# Real clients against watchcore serve, and the comparison with Kubernetes' API
# server: docs/HTTP.md, section HX.
#
#   scripts/http-tests.sh [ARGUMENT...]                 the clients; arguments go to `go test`
#   scripts/http-tests.sh --comparison [ARGUMENT...]    the comparison; Go compiles Kubernetes' API server for it
#   scripts/http-tests.sh --compiled                    whether Go has compiled that server before
#   scripts/http-tests.sh --run COMMAND                 builds, and runs COMMAND with what the tests find their programs by
#
# HTTP_TESTS_WATCHCORE names another watchcore than the checkout's, HTTP_TESTS_NEXT the one that takes the server's place at SIGTERM.
#
# It builds the command line (debug), http-tests/rust (a workspace of its own) and the programs of http-tests/go (a
# module of its own). go and cargo get what these need from their registries.
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
cd -- "$root"
# The programs are looked for in target/, whatever the caller's settings say.
unset CARGO_TARGET_DIR CARGO_BUILD_TARGET

missing=()
command -v go >/dev/null || missing+=("go: install Go 1.26 or newer (https://go.dev/dl)")
command -v "${CARGO:-cargo}" >/dev/null || missing+=("cargo: install Rust by rustup (https://rustup.rs)")
command -v flock >/dev/null || missing+=("flock: install util-linux (Debian: util-linux)")
if [ ${#missing[@]} -gt 0 ]; then
    printf 'http-tests.sh: missing: %s\n' "${missing[@]}" >&2
    exit 3
fi

# One line of Go's settings for all, so that one build of a package does for all. -trimpath is that of scripts/etcd.sh.
export GOFLAGS="-buildvcs=false -trimpath ${GOFLAGS:-}" GOWORK=off CGO_ENABLED=0
packages="./cmd/... ./internal/... ./tests"
case ${1:-} in
--comparison)
    shift
    packages=./comparison/...
    ;;
--compiled)
    cd http-tests/go
    # Without asking anybody for its source.
    [ "$(GOPROXY=off go list -f '{{.Stale}}' k8s.io/apiextensions-apiserver/pkg/cmd/server/options)" = false ]
    exit
    ;;
esac
etcd=$(scripts/etcd.sh)

out=$root/target/http-tests
mkdir -p "$out"
# Two runs at once would write the same programs.
exec 9>"$out/lock"
flock 9
# With the features of `cargo test`, whose builds of the dependencies are taken then: an example makes cargo choose them.
"${CARGO:-cargo}" build --quiet --workspace --all-features --bin watchcore --example fake_etcd
"${CARGO:-cargo}" build --quiet --locked --manifest-path http-tests/rust/Cargo.toml --target-dir "$out/rust"
cd http-tests/go
# kubectl refuses to compare a version that is none.
kubernetes=$(sed -n 's|^[[:space:]]*k8s\.io/kubectl v0\.\([0-9.]*\).*|v1.\1|p' go.mod)
go build -ldflags "-X k8s.io/component-base/version.gitVersion=$kubernetes -X k8s.io/client-go/pkg/version.gitVersion=$kubernetes" \
    -o "$out/" ./cmd/...
[ "$packages" != ./comparison/... ] || go build -o "$out/" ./comparison/apiserver
exec 9>&-

export HTTP_TESTS_ETCD=$etcd/etcd HTTP_TESTS_WATCHCORE=${HTTP_TESTS_WATCHCORE:-$root/target/debug/watchcore} HTTP_TESTS_KUBECTL=$out/kubectl \
    HTTP_TESTS_APISERVER=$out/apiserver HTTP_TESTS_KUBE_RUST=$out/rust/debug/kube-client
if [ "${1:-}" = --run ]; then
    shift
    cd -- "$root"
    exec "$@"
fi
unformatted=$(gofmt -l .)
[ -z "$unformatted" ] || { printf 'not formatted by gofmt:\n%s\n' "$unformatted" >&2; exit 1; }
"${CARGO:-cargo}" fmt --manifest-path ../rust/Cargo.toml --check
# shellcheck disable=SC2086
exec go test -vet=all -count=1 -timeout 6m "$@" $packages
