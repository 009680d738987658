#!/usr/bin/env bash
# Makes the Go module whole: header and libraries inside it, so that go/ builds wherever it is copied to, vendored too.
#
#   scripts/go-dist.sh [GOOS/GOARCH...]    libraries for these (this machine's)
#   scripts/go-dist.sh --object [TARGET]   prints where the library of TARGET is
#
# For another machine than this: `rustup target add` its triple, and have its C compiler, ld and nm, such as
# aarch64-linux-gnu-gcc (Debian: gcc-aarch64-linux-gnu). CARGO names cargo.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

fail() { printf 'go-dist.sh: %s\n' "$*" >&2; exit 1; }
# describe TARGET: the triple of rustc, and the object, which Go links by its name. go/abi.h has the same list.
describe() {
    case $1 in
    linux/amd64) triple=x86_64-unknown-linux-gnu ;;
    linux/arm64) triple=aarch64-unknown-linux-gnu ;;
    *) fail "no library for '$1'; known: linux/amd64 linux/arm64; others link the system's with -tags watchcore_system" ;;
    esac
    object=go/internal/static/libwatchcore_${1/\//_}.syso
}
host=$(uname -sm | sed 's|Linux x86_64|linux/amd64|; s|Linux aarch64|linux/arm64|')

if [ "${1:-}" = --object ]; then
    describe "${2:-$host}"
    echo "$object"
    exit
fi

build=(env -u CARGO_TARGET_DIR -u CARGO_BUILD_TARGET "${CARGO:-cargo}" build -p watchcore-capi --lib --profile dist --target-dir target)
[ $# -gt 0 ] || set -- "$host"
for target in "$@"; do
    describe "$target"
    built=target/dist to=()
    if [ "$target" != "$host" ]; then
        tools=${triple/-unknown/}
        linker=CARGO_TARGET_$(tr 'a-z-' 'A-Z_' <<<"$triple")_LINKER
        export "$linker=${!linker:-$tools-gcc}"
        command -v "${!linker}" >/dev/null || fail "${!linker} is missing: install gcc and binutils for $tools (Debian: gcc-${tools//_/-})"
        to=(--target "$triple") built=target/$triple/dist
    fi
    "${build[@]}" "${to[@]}"
    (
        [ "$target" = "$host" ] || export LD="${LD:-$tools-ld}" NM="${NM:-$tools-nm}"
        scripts/static-archive.sh "$built" "target/go-dist/$triple/libwatchcore.a" "$object"
    )
    printf 'go-dist.sh: %s\n' "$object"
done
cmp -s include/watchcore.h go/libwatchcore.h || cp include/watchcore.h go/libwatchcore.h
