#!/usr/bin/env bash
# Prints the directory that holds etcd, etcdctl and etcdutl, and builds them if need be; everything else goes to stderr.
# WATCHCORE_ETCD names that directory, or the etcd in it. A value with "://" is an endpoint for the command line tool, and is
# passed over. Without it etcd is the version of tools/etcd, built once into target/etcd. Exit status: 0 found, 3 no etcd.
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
say() { printf 'etcd.sh: %s\n' "$*" >&2; }
fail() { say "$@"; exit 3; }
# The number behind "etcd Version:", or nothing if the program does not run.
version_of() { "$1" --version 2>/dev/null </dev/null | sed -n 's/^etcd Version: *//p' || true; }

given=${WATCHCORE_ETCD:-}
case $given in
*://*) say "WATCHCORE_ETCD is an endpoint ($given): not used as a directory" ;;
?*)
    [ ! -f "$given" ] || given=$(dirname -- "$given")
    [ -n "$(version_of "$given/etcd")" ] ||
        fail "WATCHCORE_ETCD=$WATCHCORE_ETCD: $given/etcd is missing or does not run; unset it to have etcd built"
    cd -- "$given" && pwd -P
    exit
    ;;
esac

version=$(sed -n 's|^[[:space:]]*go\.etcd\.io/etcd/server/v3 v\([^ ]*\).*|\1|p' "$root/tools/etcd/go.mod")
[ -n "$version" ] || fail "tools/etcd/go.mod names no version of go.etcd.io/etcd/server/v3"
directory=$root/target/etcd/$version
complete() { [ -x "$directory/etcd" ] && [ -x "$directory/etcdctl" ] && [ -x "$directory/etcdutl" ]; }
if ! complete; then
    command -v go >/dev/null || fail "go is missing: the tests build etcd $version from source. Install Go 1.26 or newer," \
        "or set WATCHCORE_ETCD to a directory that holds etcd, etcdctl and etcdutl"
    command -v flock >/dev/null || fail "flock is missing: install util-linux"
    mkdir -p "$root/target/etcd"
    exec 9>"$root/target/etcd/lock"
    # Another caller may be building the same.
    flock 9
fi
if ! complete; then
    building=$(mktemp -d "$root/target/etcd/building.XXXXXX")
    trap 'rm -rf -- "$building"' EXIT
    # A signal must run the trap above too.
    trap 'exit 129' HUP
    trap 'exit 130' INT
    trap 'exit 143' TERM
    say "building etcd $version (a minute or two, once)"
    (
        cd -- "$root/tools/etcd"
        # The build must not depend on what the caller set for its own Go work.
        unset GOOS GOARCH GOEXPERIMENT CGO_CPPFLAGS CGO_CFLAGS CGO_LDFLAGS
        GOFLAGS=-buildvcs=false GOWORK=off CGO_ENABLED=0 go build -trimpath -ldflags='-s -w' -o "$building/" \
            go.etcd.io/etcd/{server,etcdctl,etcdutl}/v3 >&2 9>&-
    ) || fail "building etcd $version failed (see above); Go here: $(go version 2>&1 || true)"
    mv -- "$building/server" "$building/etcd"
    built=$(version_of "$building/etcd")
    [ "$built" = "$version" ] || fail "the built etcd says version '${built:-none}', not $version"
    chmod 755 "$building"
    rm -rf -- "$directory"
    mv -- "$building" "$directory"
fi
printf '%s\n' "$directory"
