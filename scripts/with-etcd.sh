#!/usr/bin/env bash
# Runs a command beside a throw-away etcd, which ends with it and leaves
# nothing behind:
#
#   scripts/with-etcd.sh COMMAND [ARGUMENT...]
#
# The command finds its endpoint in WATCHCORE_TEST_ENDPOINT and etcdctl in
# WATCHCORE_TEST_ETCDCTL. The binaries are those of scripts/etcd.sh. The exit
# status is the command's; 3 if there is no etcd.
set -euo pipefail

fail() { printf 'with-etcd.sh: %s\n' "$*" >&2; exit 3; }
[ $# -gt 0 ] || { echo "usage: with-etcd.sh COMMAND [ARGUMENT...]" >&2; exit 2; }
binaries=$("$(dirname -- "${BASH_SOURCE[0]}")/etcd.sh") || exit 3
[ -x "$binaries/etcdctl" ] || fail "no etcdctl beside $binaries/etcd"

directory=$(mktemp -d)
server=
finish() {
    if [ -n "$server" ]; then
        kill -KILL "$server" 2>/dev/null || true
        wait "$server" 2>/dev/null || true
    fi
    rm -rf -- "$directory"
}
trap finish EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# etcd takes each of its options from the environment, too.
for name in ${!ETCD_*} ${!ETCDCTL_*}; do unset "$name"; done

# A port that somebody has ends etcd at once: then others are tried. They lie
# below those that Linux gives to outgoing connections.
ready=no
for _ in {1..50}; do
    client=http://127.0.0.1:$((10000 + RANDOM % 22000)) peer=http://127.0.0.1:$((10000 + RANDOM % 22000))
    rm -rf -- "$directory/data"
    "$binaries/etcd" --name s1 --data-dir "$directory/data" --unsafe-no-fsync --log-level info \
        --heartbeat-interval 10 --election-timeout 100 \
        --listen-client-urls "$client" --advertise-client-urls "$client" \
        --listen-peer-urls "$peer" --initial-advertise-peer-urls "$peer" --initial-cluster "s1=$peer" \
        >"$directory/log" 2>&1 </dev/null &
    server=$!
    for _ in {1..1200}; do
        # Its own words: another server may answer on the port.
        if grep -q 'serving client traffic' "$directory/log"; then
            ready=yes
            break 2
        fi
        kill -0 "$server" 2>/dev/null || break
        sleep 0.05
    done
    kill -KILL "$server" 2>/dev/null || true
    wait "$server" 2>/dev/null || true
    server=
done
[ $ready = yes ] || fail "etcd does not start: $(tail -n 3 "$directory/log")"

status=0
WATCHCORE_TEST_ENDPOINT=$client WATCHCORE_TEST_ETCDCTL=$binaries/etcdctl "$@" || status=$?
exit $status
