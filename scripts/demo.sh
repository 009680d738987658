#!/usr/bin/env bash
# A live demonstration: a real etcd feeds a Rust, a C and a Go program while several clients write and etcd is killed in the
# middle; at the end each program's events and state are compared with what etcd itself says. Without Go or a C compiler it says
# what is missing and shows `watchcore demo`, a tour that needs neither.
#
#   scripts/demo.sh              must pass
#   scripts/demo.sh drop         one event is dropped on the way: must fail (drop-c, drop-go: in the C, the Go program)
#
# Exit status: 0 passed, 1 failed, 2 usage, 3 a fault was asked for and something is missing.
set -euo pipefail

fault=${1:-}
case $fault in
'' | drop | drop-c | drop-go) ;;
*) echo "demo.sh: unknown FAULT '$fault' (drop, drop-c and drop-go are known)" >&2; exit 2 ;;
esac
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
say() { printf '%s\n' "$*" >&2; }
out=target/demo cargo=${CARGO:-cargo} compiler=${CC:-cc}
# The programs are looked for in target/, whatever the caller's settings say.
unset CARGO_TARGET_DIR CARGO_BUILD_TARGET

missing=
command -v go >/dev/null || missing+="  - Go (https://go.dev/dl), for the Go program"$'\n'
command -v "$compiler" >/dev/null || missing+="  - a C compiler (cc), for the C program"$'\n'
etcd=$(scripts/etcd.sh) || missing+="  - etcd, which Go builds"$'\n'
if [ -n "$missing" ]; then
    say "The live demonstration needs what is missing here:"$'\n'"$missing"
    [ -z "$fault" ] || { say "demo.sh: the fault '$fault' cannot be shown without that"; exit 3; }
    say "Here is the tour of an embedded cache instead (watchcore demo):"
    exec "$cargo" run --release --quiet -p watchcore-cli --bin watchcore -- demo
fi

say "building (the first time takes some minutes)"
mkdir -p $out
quiet=--quiet
[ ! -t 2 ] || quiet= # cargo shows there how far it is
# One build for all: `make lib` would compile every dependency once more.
"$cargo" build --release $quiet -p watchcore-capi -p watchcore-cli --lib --bins
# The Go module in a place of its own, with this library: that of `make lib` stays as it is.
rm -rf $out/go
cp -R go $out/go
cp include/watchcore.h $out/go/libwatchcore.h
scripts/static-archive.sh target/release $out/libwatchcore.a "$out/$(scripts/go-dist.sh --object)"
"$compiler" -std=c11 -O2 -Iinclude -o $out/consumer-c watchcore-cli/src/demo/consumer.c $out/libwatchcore.a -lpthread -lm -ldl
(cd $out/go && GOFLAGS="-buildvcs=false ${GOFLAGS:-}" go build -o ../consumer-go ./internal/demo)

exec target/release/watchcore-demo --etcd "$etcd/etcd" --watchcore target/release/watchcore \
    --c $out/consumer-c --go $out/consumer-go ${fault:+--fault "$fault"}
