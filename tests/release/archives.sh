#!/usr/bin/env bash
# The archive, unpacked by a stranger on the oldest Debian that a release supports: the command and C programs follow a real etcd, and
# no file asks for a newer glibc than docs/internals/release.md says.
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.."
. tests/release/support/lib.sh

distribution=watchcore-$VERSION-$(uname -m)-linux-gnu
must 'a root' fresh archives-bullseye bullseye gcc libc6-dev pkg-config man-db
must 'it unpacks' tar -xf "$OUT/archives/$distribution.tar.zst" -C archives-bullseye/opt
unpacked=archives-bullseye/opt/$distribution
in_root() { beside_etcd archives-bullseye --setenv P "/opt/$distribution" --setenv PKG_CONFIG_PATH "/opt/$distribution/lib/pkgconfig" -- "$@"; }
shell() { in_root bash -euo pipefail -c "$1"; }
follows() { in_root /opt/support/follows.sh "$@"; }

check 'the command runs' prints "watchcore $VERSION" in_root "/opt/$distribution/bin/watchcore" --version
check 'the command follows etcd' follows 130 "/opt/$distribution/bin/watchcore" watch --etcd ENDPOINT --prefix /release/
cp -- "$root/examples/follow.c" archives-bullseye/root
check 'shared: it builds' shell 'cc -o shared follow.c $(pkg-config --cflags --libs watchcore)'
check 'shared: it follows etcd' follows 0 env LD_LIBRARY_PATH="/opt/$distribution/lib" /root/shared ENDPOINT /release/
check 'static: it builds' shell 'cc -o static follow.c $(pkg-config --cflags --libs watchcore-static)'
check 'static: it needs no library of the archive' shell 'readelf -d static >needed && ! grep libwatchcore needed'
check 'static: it follows etcd' follows 0 /root/static ENDPOINT /release/
check 'the version is that of the release' shell "[ \"\$(pkg-config --modversion watchcore watchcore-static | uniq)\" = $VERSION ]"
check 'the manual is there' shell 'man -l "$P"/share/man/man1/watchcore-serve.1 | grep -q SYNOPSIS && man -l "$P"/share/man/man3/watchcore.3 | grep -q SYNOPSIS'
check 'the completions are there' shell 'cd "$P/share" && grep -q complete bash-completion/completions/watchcore && grep -q "#compdef watchcore" zsh/site-functions/_watchcore && grep -q complete fish/vendor_completions.d/watchcore.fish'
check 'unit and configuration are there' shell '[ -s "$P/lib/systemd/system/watchcore.service" ] && [ -s "$P/etc/watchcore/watchcore.toml" ]'
check 'the licences are there' shell 'cd "$P" && [ -s LICENSE-MIT ] && [ -s LICENSE-APACHE ]'
check 'so are those of others' cmp "$OUT/notices/THIRD-PARTY" "$unpacked/THIRD-PARTY"
check 'no path of the machine that built it is in it' bash -c "! grep -rlaE '$root|$HOME/\.(cargo|rustup)' $unpacked"

# newest FILE: the newest version of glibc that it asks for.
newest() { readelf -W --dyn-syms "$1" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1; }
promised=$(grep -o 'GLIBC_[0-9.]*' "$root/docs/internals/release.md" | head -n 1)
for file in bin/watchcore lib/libwatchcore.so.0; do
    check "$file asks for $promised, as the documents say" [ "$(newest "$unpacked/$file")" = "$promised" ]
done
check 'all of it moves elsewhere' shell 'mv "$P" moved && cc -o moved/program follow.c $(PKG_CONFIG_PATH=moved/lib/pkgconfig pkg-config --cflags --libs watchcore-static) && moved/program'
summary
