#!/usr/bin/env bash
# Makes the Go module whole: header and libraries inside it, so that go/ builds
# wherever it is copied to, vendored too.
#
#   scripts/go-dist.sh [GOOS/GOARCH...]    libraries for these (this machine's)
#   scripts/go-dist.sh --object [TARGET]   prints where the library of TARGET is
#
# For another machine than this: `rustup target add` its triple, and have its C
# compiler, ld and nm, such as aarch64-linux-gnu-gcc (Debian: gcc-aarch64-linux-gnu).
# CARGO names cargo.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

fail() { printf 'go-dist.sh: %s\n' "$*" >&2; exit 1; }

# The target of this machine, in Go's words.
host() {
    local os arch
    case $(uname -s) in
    Linux) os=linux ;;
    *) fail "no library for $(uname -s) yet: link the system's with -tags watchcore_system" ;;
    esac
    case $(uname -m) in
    x86_64 | amd64) arch=amd64 ;;
    aarch64 | arm64) arch=arm64 ;;
    *) fail "no library for $(uname -m) yet: link the system's with -tags watchcore_system" ;;
    esac
    printf '%s/%s' "$os" "$arch"
}

# The target of rustc. go/abi.h has the same list.
triple() {
    case $1 in
    linux/amd64) printf x86_64-unknown-linux-gnu ;;
    linux/arm64) printf aarch64-unknown-linux-gnu ;;
    *) fail "unknown target '$1'; known: linux/amd64 linux/arm64" ;;
    esac
}

# The object of a target, which Go links by its name.
object() { printf 'go/internal/static/libwatchcore_%s.syso' "${1/\//_}"; }

if [ "${1:-}" = --object ]; then
    target=${2:-$(host)}
    triple "$target" >/dev/null
    object "$target"
    echo
    exit
fi

build=(env -u CARGO_TARGET_DIR -u CARGO_BUILD_TARGET "${CARGO:-cargo}" build -p watchcore-capi --lib --profile dist --target-dir target)
[ $# -gt 0 ] || set -- "$(host)"
for target in "$@"; do
    name=$(triple "$target")
    if [ "$target" = "$(host)" ]; then
        "${build[@]}"
        scripts/static-archive.sh target/dist target/go-dist/"$name"/libwatchcore.a "$(object "$target")"
    else
        tools=${name/-unknown/}
        linker=CARGO_TARGET_$(tr 'a-z-' 'A-Z_' <<<"$name")_LINKER
        export "$linker=${!linker:-$tools-gcc}"
        command -v "${!linker}" >/dev/null || fail "${!linker} is missing: install gcc and binutils for $tools (Debian: gcc-${tools//_/-})"
        "${build[@]}" --target "$name"
        LD=${LD:-$tools-ld} NM=${NM:-$tools-nm} scripts/static-archive.sh \
            target/"$name"/dist target/go-dist/"$name"/libwatchcore.a "$(object "$target")"
    fi
    printf 'go-dist.sh: %s\n' "$(object "$target")"
done
cmp -s include/watchcore.h go/libwatchcore.h || cp include/watchcore.h go/libwatchcore.h
