#!/usr/bin/env bash
# Writes DIRECTORY/*.crate, the packages as a registry has them, and DIRECTORY/vendor, a cargo directory source with these packages,
# all that Cargo.lock names, and the protoc whose installation watchcore-etcd/README.md tells.
#
#   scripts/release/crates.sh DIRECTORY
set -euo pipefail
directory=$(cd -- "${1:?usage: crates.sh DIRECTORY}" && pwd)
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.."
. scripts/release/lib.sh

tmp=$(mktemp -d)
trap 'rm -rf -- "$tmp"' EXIT
# tests/release/rust.sh builds them.
cargo package --quiet --no-verify --locked --workspace --exclude watchcore-benches --exclude watchcore-readme --target-dir "$tmp"
mv -- "$tmp"/package/*.crate "$directory"

# protoc's package has a Cargo.lock of its own, which `cargo install --locked` takes. A registry's archive is in cargo's cache.
protoc=$(sed -n 's/^cargo install --locked \([a-z]*@[0-9.]*\) .*/\1/p' watchcore-etcd/README.md)
cargo init --quiet --vcs none --name fetch "$tmp/fetch"
(cd -- "$tmp/fetch" && cargo add --quiet "${protoc/@/@=}" && cargo fetch --quiet)
archives=("${CARGO_HOME:-$HOME/.cargo}"/registry/cache/*/"${protoc/@/-}.crate" "$directory"/*.crate)
[ -f "${archives[0]}" ] || fail "cargo has fetched no ${archives[0]}"
tar -xzf "${archives[0]}" -C "$tmp"
cargo vendor --quiet --locked --versioned-dirs --sync "$tmp/${protoc/@/-}/Cargo.toml" "$directory/vendor" >/dev/null

# entry ARCHIVE NAME: the archive of a package as an entry of the directory source.
entry() {
    mkdir -- "$directory/vendor/$2"
    tar -xzf "$1" -C "$directory/vendor/$2" --strip-components 1
    (
        cd -- "$directory/vendor/$2"
        files=$(find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sed 's|^\(.*\)  \./\(.*\)|"\2":"\1"|' | paste -sd,)
        printf '{"files":{%s},"package":"%s"}' "$files" "$(sha256sum "$1" | cut -d' ' -f1)" >.cargo-checksum.json
    )
}
for archive in "${archives[@]}"; do entry "$archive" "$(basename -- "$archive" .crate)"; done
