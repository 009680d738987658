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
# Cargo and go get what it needs with the first build, which takes some minutes; no test needs it.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
out=$PWD/target/peers
for tool in cargo go; do command -v $tool >/dev/null || { echo "bench-peers: $tool is missing: install Rust 1.95 and Go 1.26, or newer" >&2; exit 1; }; done

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

# joins TAG VARIABLE MODULE: the module takes part where the variable names a checkout of it, as the version v0.0.0 or v3.0.0.
cp benches/peers/go/go.mod benches/peers/go/go.sum "$out/"
tags= checkouts=
joins() {
    local directory=${!2:-} version=v0.0.0
    [ -n "$directory" ] || { echo "bench-peers: without $1: $2 names no checkout of $3"; return 0; }
    [ -f "$directory/go.mod" ] || { echo "bench-peers: $2=$directory has no go.mod" >&2; exit 1; }
    directory=$(cd -- "$directory" && pwd)
    [[ $3 != */v3 ]] || version=v3.0.0
    go mod edit -require="$3@$version" -replace="$3=$directory" "$out/go.mod"
    tags+=,$1
    checkouts+="$3 $(git -C "$directory" describe --always --tags 2>/dev/null || echo of a checkout)"$'\n'
}
joins statedb STATEDB_DIR github.com/cilium/statedb
joins etcdcache ETCD_CACHE_DIR go.etcd.io/etcd/cache/v3
# The siblings of etcd's cache, as its own go.mod has them.
for sibling in ${ETCD_CACHE_DIR:+api client/pkg client}; do
    directory=$ETCD_CACHE_DIR/../$sibling
    [ $sibling != client ] || directory+=/v3
    go mod edit -replace="go.etcd.io/etcd/$sibling/v3=$(cd -- "$directory" && pwd)" "$out/go.mod"
done
scripts/go.sh -C ../benches/peers/go build -modfile="$out/go.mod" -mod=mod -tags "$tags" -ldflags "-X 'main.checkouts=$checkouts'" \
    -o "$out/peers-go" .

exec ${beside:+"$beside"} "$out/release/peers" run --go "$out/peers-go" ${QUICK:+--quick} ${MINUTES:+--minutes "$MINUTES"} "$@"
