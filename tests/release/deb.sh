#!/usr/bin/env bash
# The Debian packages, installed by a stranger without a network on each Debian that is supported: a C program is built and follows
# a real etcd, the server that the unit starts serves from it, and a purge leaves nothing.
#
# systemd does not run in these roots: its unit is verified, and its command is run without it.
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.."
. tests/release/support/lib.sh

# in_root COMMAND..., shell TEXT: in the root of the suite that is being proved.
in_root() { beside_etcd "deb-$suite" --setenv DEBIAN_FRONTEND noninteractive -- "$@"; }
shell() { in_root bash -euo pipefail -c "$1"; }
apt() { in_root apt-get -o APT::Sandbox::User=root -y "$@"; }
silent() {
    local output
    output=$("$@" 2>&1) || { echo "status $?: $output"; return 1; }
    [ -z "$output" ] || { printf '%s\n' "$output"; return 1; }
}

# What the maintainer scripts ask of systemd, whose place a script takes that writes it down.
followed_by_systemd() {
    local asked=deb-$suite/root/asked systemctl=deb-$suite/usr/local/bin/systemctl
    mkdir -p "deb-$suite/run/systemd/system"
    printf '#!/bin/sh\necho "$@" >>/root/asked\n' >"$systemctl"
    chmod 755 "$systemctl"
    shell 'dpkg -i ./watchcore_*.deb' && cat "$asked" && grep -q 'try-restart watchcore.service$' "$asked" &&
        in_root dpkg -r watchcore && cat "$asked" && grep -q 'stop watchcore.service$' "$asked"
}

licences_named() {
    # A line of THIRD-PARTY is "NAME VERSION: EXPRESSION". One alternative of the expression has only licences of the file copyright.
    awk -F ': ' -v known="$(sed -n 's/^License: \([^ ]*\)$/\1/p' "$root/packaging/debian/copyright" | sed 's/Expat/MIT/')" '
        BEGIN { count = split(known, names, "\n"); for (i = 1; i <= count; i++) has[names[i]] = 1 }
        /^$/ { if (blocks++) exit }
        blocks == 1 && NF == 2 {
            good = 0
            for (a = split($2, alternatives, " OR "); a > 0; a--) {
                all = 1
                for (t = split(alternatives[a], terms, " AND "); t > 0; t--) if (!has[terms[t]]) all = 0
                good = good || all
            }
            if (!good) { print; bad = 1 }
            lines++
        }
        END { exit bad || !lines }' "$OUT/notices/THIRD-PARTY"
}
check 'debian/copyright has the licences of all that is linked' licences_named

for suite in bullseye bookworm trixie; do
    must "$suite: a root" fresh "deb-$suite" "$suite" gcc libc6-dev pkg-config systemd ca-certificates man-db curl
    cp -- "$OUT"/deb/*.deb "$root/examples/follow.c" "deb-$suite/root/"
    must "$suite: they install" apt install $(cd -- "$OUT/deb" && printf './%s ' *.deb)
    check "$suite: dpkg finds each file as it was packed" silent in_root dpkg -V libwatchcore0 libwatchcore-dev watchcore
    check "$suite: the command runs" prints "watchcore $VERSION" in_root watchcore --version
    check "$suite: a program builds" shell 'cc -o follow follow.c $(pkg-config --cflags --libs watchcore)'
    check "$suite: it needs the package's library" shell 'readelf -d follow | grep -q "NEEDED.*libwatchcore.so.0"'
    check "$suite: it follows etcd" in_root /opt/support/follows.sh 0 ./follow ENDPOINT /release/
    check "$suite: with the static library, too" shell 'cc -o static follow.c $(pkg-config --cflags --libs watchcore-static) && /opt/support/follows.sh 0 ./static ENDPOINT /release/'
    # That of bullseye wants a cgroup even for this.
    [ "$suite" = bullseye ] || check "$suite: the unit, verified by systemd-analyze and not started" silent in_root systemd-analyze verify watchcore.service
    check "$suite: the unit's command, without systemd, serves and is drained" \
        shell '/opt/support/serves.sh $(sed -n "s/^ExecStart=//p" /lib/systemd/system/watchcore.service)'
    check "$suite: nothing is enabled" shell '! systemctl is-enabled watchcore'
    check "$suite: it can be enabled" shell 'systemctl enable watchcore && [ -L /etc/systemd/system/multi-user.target.wants/watchcore.service ]'
    check "$suite: licences of others" shell 'for package in libwatchcore0 libwatchcore-dev watchcore; do cat /usr/share/doc/$package/THIRD-PARTY* >/dev/null && [ -s /usr/share/doc/$package/copyright ]; done'
    check "$suite: the manual" shell 'man watchcore-serve | grep -q SYNOPSIS && man 3 watchcore | grep -q SYNOPSIS'
    check "$suite: an upgrade restarts it where it runs, a removal stops it" followed_by_systemd
    check "$suite: it is purged" apt purge libwatchcore0 libwatchcore-dev watchcore
    check "$suite: the purge leaves nothing" silent find "deb-$suite" -iname '*watchcore*' ! -path "deb-$suite/root/*"
    rm -rf -- "deb-$suite"
done
summary
