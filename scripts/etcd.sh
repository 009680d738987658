#!/usr/bin/env bash
# Prints the directory that holds etcd, etcdctl and etcdutl, and builds them
# if need be. Everything else goes to stderr.
#
#   scripts/etcd.sh              $WATCHCORE_ETCD, else the pinned version
#   scripts/etcd.sh --path-ok    also takes an etcd from PATH, if new enough
#
# WATCHCORE_ETCD may name the directory or the etcd binary in it. A value with
# "://" is an endpoint for the command line tool, not a place of binaries, and
# is passed over.
#
# Exit status: 0 found, 2 usage, 3 no etcd (the reason is on stderr).
set -euo pipefail

path_minimum=3.6.6
tools=(etcd etcdctl etcdutl)
packages=(server etcdctl etcdutl) # in the order of tools, below go.etcd.io/etcd

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
module=$root/tools/etcd

say() { printf 'etcd.sh: %s\n' "$*" >&2; }
fail() { say "$@"; exit 3; }

path_ok=no
for argument in "$@"; do
    case $argument in
    --path-ok) path_ok=yes ;;
    *) say "unknown argument: $argument (only --path-ok is known)"; exit 2 ;;
    esac
done

# The number behind "etcd Version:", or nothing if the program does not run.
version_of() {
    "$1" --version 2>/dev/null </dev/null | sed -n 's/^etcd Version: *//p' | head -n 1
}

# at_least A B: A is B or newer. A pre-release counts as older than its release.
at_least() {
    local a=${1/-/\~} b=${2/-/\~}
    [ "$(printf '%s\n%s\n' "$a" "$b" | sort -V | head -n 1)" = "$b" ]
}

complete() {
    local tool
    for tool in "${tools[@]}"; do
        [ -f "$1/$tool" ] && [ -x "$1/$tool" ] || return 1
    done
}

given=${WATCHCORE_ETCD:-}
case $given in
*://*)
    say "WATCHCORE_ETCD is an endpoint ($given): not used as a directory"
    given=
    ;;
esac
if [ -n "$given" ]; then
    directory=$given
    if [ -f "$directory" ]; then
        [ "$(basename -- "$directory")" = etcd ] ||
            fail "WATCHCORE_ETCD=$given is a file but not one named etcd"
        directory=$(dirname -- "$directory")
    fi
    [ -d "$directory" ] ||
        fail "WATCHCORE_ETCD=$given does not exist; unset it to have etcd built"
    directory=$(cd -- "$directory" && pwd -P)
    [ -f "$directory/etcd" ] && [ -x "$directory/etcd" ] ||
        fail "WATCHCORE_ETCD=$given holds no executable named etcd; unset it to have etcd built"
    [ -n "$(version_of "$directory/etcd")" ] ||
        fail "$directory/etcd does not run or is no etcd ('etcd --version' gave no version)"
    for tool in etcdctl etcdutl; do
        [ -x "$directory/$tool" ] || say "note: no $tool beside $directory/etcd"
    done
    printf '%s\n' "$directory"
    exit 0
fi

if [ $path_ok = yes ] && found=$(type -P etcd); then
    version=$(version_of "$found" || true)
    if [ -n "$version" ] && at_least "$version" "$path_minimum"; then
        say "using etcd $version from PATH"
        cd -- "$(dirname -- "$found")" && pwd -P
        exit 0
    fi
    say "etcd in PATH (${version:-no version}) is older than $path_minimum: not used"
fi

version=$(sed -n 's|^[[:space:]]*go\.etcd\.io/etcd/server/v3 v||p' "$module/go.mod" | head -n 1)
version=${version%% *}
[ -n "$version" ] || fail "tools/etcd/go.mod names no version of go.etcd.io/etcd/server/v3"
cache=$root/target/etcd
directory=$cache/$version

if complete "$directory"; then
    printf '%s\n' "$directory"
    exit 0
fi

command -v go >/dev/null ||
    fail "go is missing: the tests build etcd $version from source. Install Go 1.26 or newer (Debian: golang-go," \
        "if it is new enough) and put go in PATH, or set WATCHCORE_ETCD to a directory that holds etcd, etcdctl and etcdutl"
command -v flock >/dev/null || fail "flock is missing: install util-linux"

mkdir -p "$cache"
exec 9>"$cache/lock"
if ! flock --nonblock 9; then
    say "waiting for another build of etcd"
    flock 9
fi
if complete "$directory"; then
    printf '%s\n' "$directory"
    exit 0
fi

building=$(mktemp -d "$cache/building.XXXXXX")
trap 'rm -rf -- "$building"' EXIT
# A signal must run the trap above too.
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

say "building etcd $version (a minute or two, once)"
started=$SECONDS
for i in "${!tools[@]}"; do
    (
        cd -- "$module"
        # The build must not depend on what the caller set for its own Go work.
        unset GOOS GOARCH GOEXPERIMENT CGO_CPPFLAGS CGO_CFLAGS CGO_LDFLAGS
        GOFLAGS=-buildvcs=false GOWORK=off CGO_ENABLED=0 \
            go build -trimpath -ldflags='-s -w' -o "$building/${tools[$i]}" \
            "go.etcd.io/etcd/${packages[$i]}/v3" >&2 9>&-
    ) || fail "building ${tools[$i]} $version failed (see above); Go here: $(go version 2>&1 || true)"
done
built=$(version_of "$building/etcd" || true)
[ "$built" = "$version" ] || fail "the built etcd says version '${built:-none}', not $version"

chmod 755 "$building"
rm -rf -- "$directory"
mv -- "$building" "$directory"
say "built etcd $version in $((SECONDS - started)) s"
printf '%s\n' "$directory"
