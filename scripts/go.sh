#!/usr/bin/env bash
# The go command in go/, with what it cannot see by itself: a changed archive.
#
#   scripts/go.sh test ./...
#
# Go does not look at target/watchcore/libwatchcore.a when it decides whether a
# result is still good: a define with its hash makes a new archive a new build.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../go"
archive=../target/watchcore/libwatchcore.a
[ -f $archive ] || { echo "target/watchcore/libwatchcore.a is missing: run 'make lib'" >&2; exit 1; }
hash=$(sha256sum $archive | cut -c1-16)
export CGO_CPPFLAGS="${CGO_CPPFLAGS:-} -DWATCHCORE_ARCHIVE_$hash"
exec go "$@"
