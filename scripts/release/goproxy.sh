#!/usr/bin/env bash
# The Go modules as a proxy serves them, made from the tags of git/: GOPROXY=file://DIRECTORY.
#
#   scripts/release/goproxy.sh DIRECTORY
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.."
. scripts/release/lib.sh

directory=$(cd -- "$1" && pwd)
[ -d "$OUT/git/watchcore.git" ] || fail "$OUT/git is missing: run 'scripts/release.sh $VERSION git'"
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
# What makes the zips takes no bare repository.
git clone --quiet --shared "$OUT/git/watchcore.git" "$work/clone"
(cd tools/goproxy && GOWORK=off GOFLAGS=-buildvcs=false go run . "$work/clone" "$directory" "${go_modules[@]/%//v$VERSION}") >&2
