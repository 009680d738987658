#!/usr/bin/env bash
# watchcore beside its peers, at the same work, in one run of ten minutes at most: `make bench-peers`.
#
#   scripts/bench-peers.sh              builds, measures, writes target/peers/results.json
#   scripts/bench-peers.sh --only ROW   one row again, in place of that row in the results
#
# QUICK=1          two minutes: the smaller sizes, shorter sections
# MINUTES=N        more rounds, or fewer: where other work runs on the machine, ten minutes are one round
# NO_BUILD=1       takes the library as `make lib` left it
# ETCD_CACHE_DIR   the directory `cache` of a checkout of etcd: it takes part, too
# STATEDB_DIR      a checkout of cilium/statedb: the same
#
# What it needs comes from the registries of Rust and Go with the first build, which takes
# some minutes; no test needs it.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
root=$PWD
out=$root/target/peers

need() {
    command -v "$1" >/dev/null || { echo "bench-peers: $1 is missing: $2" >&2; exit 1; }
}
need cargo "install Rust 1.95 or newer by rustup"
need go "install Go 1.26 or newer; the peers in Go are built with it"

# joins TAG VARIABLE MODULE@VERSION: the module takes part where the variable names a checkout of it.
# The version stands for the checkout's own, which `versions` says.
tags= checkouts=
joins() {
    local directory=${!2:-} module=${3%@*}
    if [ -z "$directory" ]; then
        echo "bench-peers: without $1: $2 names no checkout of $module"
        return
    fi
    [ -f "$directory/go.mod" ] || { echo "bench-peers: $2=$directory has no go.mod" >&2; exit 1; }
    directory=$(cd -- "$directory" && pwd)
    go mod edit -require="$3" -replace="$module=$directory" "$out/go.mod"
    tags+=,$1
    checkouts+="$module $(git -C "$directory" describe --always --tags 2>/dev/null || echo of a checkout)"$'\n'
}

# The first listing is measured where an etcd was built or is named: see scripts/etcd.sh.
features=kube beside=
if [ -n "${WATCHCORE_ETCD:-}" ] || compgen -G 'target/etcd/*/etcd' >/dev/null; then
    features+=,etcd beside=scripts/with-etcd.sh
else
    echo "bench-peers: without the first listing: no etcd was built, and WATCHCORE_ETCD names none"
fi
env -u CARGO_TARGET_DIR -u CARGO_BUILD_TARGET cargo build --release --locked --features "$features" \
    --manifest-path benches/peers/Cargo.toml --target-dir "$out"

[ -n "${NO_BUILD:-}" ] || make --no-print-directory lib
object=$(scripts/go-dist.sh --object)
[ -f "$object" ] || { echo "bench-peers: $object is missing: run 'make lib'" >&2; exit 1; }

cp benches/peers/go/go.mod benches/peers/go/go.sum "$out/"
joins statedb STATEDB_DIR github.com/cilium/statedb@v0.0.0
joins etcdcache ETCD_CACHE_DIR go.etcd.io/etcd/cache/v3@v3.0.0
if [ -n "${ETCD_CACHE_DIR:-}" ]; then
    # Its siblings, as its own go.mod has them.
    for directory in api client/pkg client/v3; do
        module=go.etcd.io/etcd/${directory%/v3}/v3
        go mod edit -replace="$module=$(cd -- "$ETCD_CACHE_DIR/../$directory" && pwd)" "$out/go.mod"
    done
fi
(
    cd benches/peers/go
    go build -modfile="$out/go.mod" -mod=mod \
        -tags "$tags" -ldflags "-X 'main.checkouts=$checkouts'" -o "$out/peers-go" .
)

exec ${beside:+"$beside"} "$out/release/peers" run --go "$out/peers-go" ${QUICK:+--quick} ${MINUTES:+--minutes "$MINUTES"} "$@"
