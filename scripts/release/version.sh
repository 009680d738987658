#!/usr/bin/env bash
# Writes the version of Cargo.toml wherever else a module or a text needs it, and dates its part of CHANGELOG.md. Where it is the
# version already and has a date, nothing changes.
#
#   scripts/release/version.sh VERSION [ADDRESS]
#
# ADDRESS is the repository's, as Go writes it, such as forge.example/team/watchcore. It is written into the modules' paths, their
# imports, the manifests and the documents.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.."
. scripts/release/lib.sh

version=${1:?usage: version.sh VERSION [ADDRESS]}
old=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
old_address=$(sed -n 's|^repository = "https://\(.*\)"|\1|p' Cargo.toml)
address=${2:-$old_address}
grep -q "^## $version (" CHANGELOG.md || fail "CHANGELOG.md has no part '## $version (unreleased)': write what is new"
sed -i "s/^## ${version//./\\.} (unreleased)/## $version ($(date -u +%F))/" CHANGELOG.md

# edit FILE... -- SED'S ARGUMENT...
edit() {
    local files=()
    while [ "$1" != -- ]; do files+=("$1"); shift; done
    shift
    [ ${#files[@]} -eq 0 ] || sed -i -E "$@" -- "${files[@]}"
}
files() { git ls-files -- "$@"; }

if [ "$old" != "$version" ]; then
    was=${old//./\\.}
    edit Cargo.toml -- -e "s/^version = \"$was\"/version = \"$version\"/" -e "/^watchcore[a-z-]* = /s/version = \"$was\"/version = \"$version\"/"
    edit $(files '*Cargo.lock') -- "/^name = \"watchcore/{n;s/^version = \"$was\"/version = \"$version\"/}"
    edit include/watchcore.h -- "/^#define WATCHCORE_VERSION /s/$was/$version/"
    edit $(files '*go.mod' '*go.work') -- "s|(${old_address//./\\.}/go[^ ]* v)$was\b|\1$version|"
    # docs/PERFORMANCE.md names versions of others, and what was measured once.
    edit $(files '*.md' ':!CHANGELOG.md' ':!docs/PERFORMANCE.md' Makefile) -- "s/(^|[^0-9.])$was([^0-9]|\$)/\1$version\2/g"
fi
if [ "$old_address" != "$address" ]; then
    need gofmt golang-go
    edit $(git grep -lF "$old_address" -- ':!CHANGELOG.md') -- "s|${old_address//./\\.}|$address|g"
    # gofmt sorts imports by their paths.
    gofmt -w $(files 'go/*.go')
fi
