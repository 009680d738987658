#!/usr/bin/env bash
# SHA256SUMS names each file of a release and its sum; an entry of crates/vendor names its own, which cargo looks at.
set -uo pipefail
. scripts/release/lib.sh
root=$PWD
tmp=$(mktemp -d)
trap 'rm -rf -- "$tmp"' EXIT
cd -- "$tmp" || exit
. "$root/tests/outside/lib.sh"

sums() { cd -- "$OUT" && sha256sum --check --quiet --strict SHA256SUMS; }
check 'each file has the sum' sums
unlisted() {
    cd -- "$OUT" && LC_ALL=C comm -13 <(cut -c67- SHA256SUMS | LC_ALL=C sort) <(find . -type f ! -name .commit ! -name SHA256SUMS ! -path './.*' \
        ! -path './git/*' ! -path './notices/*' ! -path './crates/vendor/*' | LC_ALL=C sort)
}
listed() { ! unlisted | grep .; }
check 'each file is listed' listed
entries() { [ "$(grep -c '/\.cargo-checksum\.json$' "$OUT/SHA256SUMS")" = "$(ls "$OUT/crates/vendor" | wc -l)" ]; }
check 'and each entry of crates/vendor' entries
summary
