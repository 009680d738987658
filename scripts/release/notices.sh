#!/usr/bin/env bash
# Writes DIRECTORY/THIRD-PARTY, the licences of all that is linked into the C library and the command line, and DIRECTORY/SBOM, the
# list of it as CycloneDX JSON. Both are made of Cargo.lock with the features that are shipped; each Linux platform has the same crates.
#
#   scripts/release/notices.sh DIRECTORY
set -euo pipefail
directory=$(cd -- "${1:?usage: notices.sh DIRECTORY}" && pwd)
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.."
. scripts/release/lib.sh

need python3 python3
target=x86_64-unknown-linux-gnu
tmp=$(mktemp -d)
trap 'rm -rf -- "$tmp"' EXIT
cargo metadata --locked --format-version 1 --filter-platform $target >"$tmp/metadata"
# Each program by itself, as it is built: together, one would get features of the other.
for package in watchcore-capi watchcore-cli; do
    cargo tree --locked -p $package --target $target -e normal,no-proc-macro --prefix depth -f ' {p}'
done >"$tmp/tree"
python3 scripts/release/notices.py "$tmp/metadata" "$tmp/tree" Cargo.lock "$(rustc --print sysroot)/share/doc/rust" \
    "$(rustc --version | cut -d' ' -f2)" "$directory"
