#!/usr/bin/env bash
# Compares the public interface of the crates and of the C header with that of the release before: the newest tag v* that HEAD has
# behind it. It fails where a program that compiled with that release would not compile, or one that was linked with its C library not run.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

tag=$(git describe --tags --abbrev=0 --match 'v*' HEAD^ 2>/dev/null) || { echo "semver.sh: no tag v* is behind HEAD, so there is no release to compare with."; exit; }
needs() { command -v "$1" >/dev/null || { echo "semver.sh: $1 is missing: $2" >&2; exit 1; }; }
needs cargo-semver-checks "cargo install --locked cargo-semver-checks"
needs abidiff "install libabigail (Debian: apt-get install abigail-tools)"
tmp=$(mktemp -d)
trap 'rm -rf -- "$tmp"' EXIT
status=0

# The shared library carries no types of C: one with the functions of the header and empty bodies has them all.
# library NAME: from NAME.h to NAME.so, and the numbers that NAME.h defines, but for its version, to NAME.numbers.
library() {
    {
        printf '#define WATCHCORE_NO_INLINE\n#include "%s.h"\n' "$1"
        "${CC:-cc}" -E -P -DWATCHCORE_NO_INLINE "$1.h" | tr '\n' ' ' | tr ';' '\n' |
            sed -n '/typedef/d; /[^a-z_]watchcore_[a-z_]*(/ s/$/ { __builtin_trap(); }/p'
    } >"$1.c"
    "${CC:-cc}" -std=c11 -g -O0 -w -fPIC -shared -Wl,-soname,libwatchcore.so "$1.c" -o "$1.so"
    "${CC:-cc}" -E -dM "$1.h" | awk '/^#define WATCHCORE_/ && !/^#define WATCHCORE_(VERSION|NO_)/ && NF == 3 && $3 ~ /^[-(0-9]/' |
        LC_ALL=C sort >"$1.numbers"
    # Nothing found would be nothing lost.
    [ "$(nm -D --defined-only "$1.so" | grep -c ' watchcore_')" -ge 70 ] && [ "$(wc -l <"$1.numbers")" -ge 50 ] ||
        { echo "semver.sh: the functions and numbers of $1.h were not found" >&2; exit 1; }
}
git show "$tag:include/watchcore.h" >"$tmp/old.h"
cp include/watchcore.h "$tmp/new.h"
library "$tmp/old"
library "$tmp/new"
# A struct grows at its end: its first member is its size.
printf '[suppress_type]\ntype_kind = struct\nhas_data_member_inserted_at = end\nhas_size_change = yes\n' >"$tmp/grown"
echo "include/watchcore.h since $tag"
abidiff --no-added-syms --suppressions "$tmp/grown" "$tmp/old.so" "$tmp/new.so" || status=1
! LC_ALL=C comm -23 "$tmp/old.numbers" "$tmp/new.numbers" | sed 's/^/gone, or another number: /' | grep . || status=1

crates=(-p watchcore -p watchcore-etcd -p watchcore-toolkit -p watchcore-http)
cargo semver-checks "${crates[@]}" --baseline-rev "$tag" --release-type minor --all-features || status=1
exit $status
