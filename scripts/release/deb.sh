#!/usr/bin/env bash
# Three Debian packages, in DIRECTORY: libwatchcore0, libwatchcore-dev and watchcore. They install on Debian 11 and newer.
#
#   scripts/release/deb.sh DIRECTORY        VERSION and OUT are set, and OUT has notices/THIRD-PARTY
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.."
. scripts/release/lib.sh

directory=$1 tree=target/release-tree
[ -f "$OUT/notices/THIRD-PARTY" ] || fail "$OUT/notices/THIRD-PARTY is missing: run 'scripts/release.sh $VERSION notices'"
need lintian lintian

scripts/release/in-tree.sh bash -c 'rm -rf debian target/deb && mkdir target/deb'
# debhelper wants it at the top, where the repository has none.
cp -R "$tree/packaging/debian" "$tree/debian"
cp -- "$OUT/notices/THIRD-PARTY" "$tree/debian/"
cat >"$tree/debian/changelog" <<EOF
watchcore ($VERSION) unstable; urgency=medium

  * Release $VERSION. Its changes:
    https://github.com/watchcore/watchcore/blob/v$VERSION/CHANGELOG.md

 -- $(sed -n 's/^Maintainer: //p' packaging/debian/control)  $(date -R -u -d "@$SOURCE_DATE_EPOCH")
EOF
scripts/release/in-tree.sh env SOURCE_DATE_EPOCH="$SOURCE_DATE_EPOCH" DEB_BUILD_OPTIONS=noautodbgsym DEBS=target/deb debian/rules binary
cp -- "$tree"/target/deb/*.deb "$directory"
lintian --fail-on warning --allow-root "$directory"/*.deb
