#!/usr/bin/env bash
# In a clone: another version and another address are set everywhere, all of it builds, and setting them back leaves no difference.
set -uo pipefail
. scripts/release/lib.sh
root=$PWD tmp=$(mktemp -d)
trap 'rm -rf -- "$tmp"' EXIT
cd -- "$tmp" || exit
. "$root/tests/outside/lib.sh"
version=0.98.7 host=forge.test/team
address=$host/watchcore

must 'a clone' git clone --quiet --no-hardlinks "$root" clone
enter clone
export CARGO_TARGET_DIR=$tmp/target
old_version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml) old_address=$(sed -n 's|^repository = "https://\(.*\)"|\1|p' Cargo.toml)
unchanged() { git diff --exit-code --stat; }
check 'a version without a part in CHANGELOG.md is refused' bash -c "! scripts/release/version.sh $version"
check 'then nothing is changed' unchanged
check 'the version of now changes nothing' scripts/release/version.sh "$old_version"
check 'in no file' unchanged

sed -i "s/^## $old_version/## $version (unreleased)\n\n&/" CHANGELOG.md && git commit --quiet --all --message 'a part for the version'
must 'another version and address' scripts/release/version.sh $version $address
check 'the part of CHANGELOG.md has its day' grep -qE "^## $version \(20[0-9]{2}-[0-9]{2}-[0-9]{2}\)$" CHANGELOG.md
# Code has versions as examples, packaging/debian those that brought a symbol, docs/PERFORMANCE.md and the others those of other projects.
left() { ! git grep -nE "$@"; }
check 'no file names the old version' left "(^|[^0-9.])${old_version//./\\.}([^0-9]|$)" -- ':!CHANGELOG.md' ':!docs/PERFORMANCE.md' \
    ':!*.sum' ':!*Cargo.lock' ':!*.go' ':!*.sh' ':!*.yml' ':!*.symbols'
check 'no file names the old address' left "${old_address//./\\.}" -- ':!CHANGELOG.md'
check 'Cargo.lock has the version' cargo metadata --locked --offline --format-version 1 --no-deps
check 'the core builds' cargo check --locked --offline -p watchcore
header() { grep -qx "#define WATCHCORE_VERSION \"$version\"" include/watchcore.h; }
check 'the header has it' header
library() {
    local object
    object=$(scripts/go-dist.sh --object) && cp -- "$root/$object" "$object" && cp -- include/watchcore.h go/libwatchcore.h
}
must "the library of 'make lib' is there" library
vet() { cd "$1" && go vet ./...; }
check 'the Go module builds' vet go
check 'go/kubernetes builds' vet go/kubernetes

git commit --quiet --all --message 'the version'
scripts/release/version.sh $version $address && check 'set again, nothing changes' unchanged
must 'the version and the address of before' scripts/release/version.sh "$old_version" "$old_address"
back() { git diff --exit-code HEAD~1 -- ':!CHANGELOG.md'; }
check 'all is as it was' back
summary
