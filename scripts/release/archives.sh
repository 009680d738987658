#!/usr/bin/env bash
# An archive of this platform, in DIRECTORY: the command, the libraries, the header and what belongs to them, to be unpacked
# anywhere. Its pkg-config files find the rest from where they are.
#
#   scripts/release/archives.sh DIRECTORY        VERSION and OUT are set, and OUT has notices/THIRD-PARTY
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.."
. scripts/release/lib.sh

directory=$1 tree=target/release-tree name=watchcore-$VERSION-$(uname -m)-linux-gnu
[ -f "$OUT/notices/THIRD-PARTY" ] || fail "$OUT/notices/THIRD-PARTY is missing: run 'scripts/release.sh $VERSION notices'"
need zstd zstd

scripts/release/in-tree.sh make lib CARGO='cargo --locked'
scripts/release/in-tree.sh cargo build --locked --profile dist -p watchcore-cli --bin watchcore --target-dir target
scripts/release/in-tree.sh strip -o target/watchcore/watchcore target/dist/watchcore
scripts/release/in-tree.sh bash -c "rm -rf target/stage && make install install-command NO_BUILD=1 DESTDIR=target/stage \
    PREFIX=/$name COMMAND=target/watchcore/watchcore"
stage=$tree/target/stage/$name
sed -i -e "s|=/$name|=\${prefix}|" -e 's|^prefix=.*|prefix=${pcfiledir}/../..|' "$stage"/lib/pkgconfig/*.pc
install -d "$stage/lib/systemd/system" "$stage/etc/watchcore"
install -m 644 packaging/watchcore.service "$stage/lib/systemd/system/"
install -m 644 packaging/watchcore.toml "$stage/etc/watchcore/"
install -m 644 LICENSE LICENSE-APACHE LICENSE-MIT "$OUT/notices/THIRD-PARTY" "$stage/"
tar --create --directory "$tree/target/stage" --format=gnu --sort=name --owner=0 --group=0 --numeric-owner --mode=u+rw,a+rX,go-w \
    --mtime="@$SOURCE_DATE_EPOCH" "$name" | zstd --quiet -19 -o "$directory/$name.tar.zst"
