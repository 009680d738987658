#!/usr/bin/env bash
# Makes the Go module whole: header and libraries inside it, so that go/ builds wherever it is copied to, vendored too.
#
#   scripts/go-dist.sh [TARGET...]         libraries for these (this machine's)
#   scripts/go-dist.sh --object [TARGET]   prints where the library of TARGET is
#
# A target is linux/amd64, linux/arm64, or one of the two with /musl behind it. Another one than this machine's needs Rust's
# standard library (`rustup target add`) and a C compiler for it, with ld and nm; the script says which. CARGO names cargo.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

fail() { printf 'go-dist.sh: %s\n' "$*" >&2; exit 1; }
# describe TARGET: the triple of rustc, the C compiler, and the object, which Go links by its name. go/abi.h has the same list.
describe() {
    local directory=static
    install=
    case $1 in
    linux/amd64) triple=x86_64-unknown-linux-gnu compiler=x86_64-linux-gnu-gcc install=gcc-x86-64-linux-gnu ;;
    linux/arm64) triple=aarch64-unknown-linux-gnu compiler=aarch64-linux-gnu-gcc install=gcc-aarch64-linux-gnu ;;
    linux/amd64/musl) triple=x86_64-unknown-linux-musl compiler=musl-gcc install=musl-tools directory=musl ;;
    linux/arm64/musl) triple=aarch64-unknown-linux-musl compiler=aarch64-linux-musl-gcc directory=musl ;;
    *) fail "no library for '$1'; known: linux/amd64 linux/arm64 linux/amd64/musl linux/arm64/musl;" \
        "others link the system's with -tags watchcore_system" ;;
    esac
    object=${1%/musl}
    object=go/internal/$directory/libwatchcore_${object/\//_}.syso
}
# cross TARGET: the settings for a build on another machine than the target.
cross() {
    local linker std
    linker=CARGO_TARGET_$(tr 'a-z-' 'A-Z_' <<<"$triple")_LINKER
    export "$linker=${!linker:-$compiler}"
    command -v "${!linker}" >/dev/null ||
        fail "$1 needs ${!linker}, which is missing: install a C compiler and binutils for ${triple/-unknown/}${install:+ (Debian: apt-get install $install)}"
    std=$(rustc --print sysroot)/lib/rustlib/$triple/lib
    [ -d "$std" ] ||
        fail "$1 needs Rust's standard library for $triple, which is missing: run 'rustup target add $triple'"
    if [[ $1 = */musl ]]; then
        # An object without musl, and with an unwinder: musl-gcc's would be that of glibc, which musl cannot link.
        export RUSTFLAGS="${RUSTFLAGS:+$RUSTFLAGS }-Ctarget-feature=-crt-static"
        export UNWINDER=$std/self-contained/libunwind.a
        mkdir -p target/go-dist/musl
        echo "INPUT($UNWINDER)" >target/go-dist/musl/libgcc_s.so
        flags=(-- "-Clink-arg=-L$PWD/target/go-dist/musl")
    fi
    [[ $1 = "$host"/* ]] || export LD="${LD:-${compiler%gcc}ld}" NM="${NM:-${compiler%gcc}nm}"
    to=(--target "$triple") built=target/$triple/dist
}
host=$(uname -sm | sed 's|Linux x86_64|linux/amd64|; s|Linux aarch64|linux/arm64|')

if [ "${1:-}" = --object ]; then
    describe "${2:-$host}"
    echo "$object"
    exit
fi

[ $# -gt 0 ] || set -- "$host"
for target in "$@"; do
    describe "$target"
    (
        built=target/dist to=() flags=()
        [ "$target" = "$host" ] || cross "$target"
        env -u CARGO_TARGET_DIR -u CARGO_BUILD_TARGET "${CARGO:-cargo}" rustc -p watchcore-capi --lib --profile dist \
            --target-dir target "${to[@]}" "${flags[@]}"
        scripts/static-archive.sh "$built" "target/go-dist/${triple}/libwatchcore.a" "$object"
    )
    printf 'go-dist.sh: %s\n' "$object"
done
cmp -s include/watchcore.h go/libwatchcore.h || cp include/watchcore.h go/libwatchcore.h
