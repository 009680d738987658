#!/usr/bin/env bash
# The go command in go/, once the library is there.
#
#   scripts/go.sh test ./...
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../go"
object=$(../scripts/go-dist.sh --object)
[ -f "../$object" ] || { echo "$object is missing: run 'make lib'" >&2; exit 1; }
exec go "$@"
