#!/usr/bin/env bash
# The licences, the list of components and the crates are made again, in another time zone and locale: they have equal bytes.
set -uo pipefail
. scripts/release/lib.sh
root=$PWD tmp=$(mktemp -d)
trap 'rm -rf -- "$tmp"' EXIT
cd -- "$tmp" || exit
. "$root/tests/outside/lib.sh"

commit() { [ "$(cat "$OUT/$1/.commit")" = "$(git -C "$root" rev-parse HEAD)" ]; }
again() { mkdir "$1" && TZ=America/New_York LC_ALL=C "$root/scripts/release/$1.sh" "$1"; }
for part in notices crates; do
    must "$part is of this commit" commit $part
    must "$part again" again $part
    check "$part has equal bytes" diff -r --exclude=.commit "$OUT/$part" $part
done
summary
