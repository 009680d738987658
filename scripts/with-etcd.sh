#!/usr/bin/env bash
# Runs a command beside a throw-away etcd, which ends with it and leaves nothing behind:
#
#   scripts/with-etcd.sh COMMAND [ARGUMENT...]
#
# The command finds its endpoint in WATCHCORE_TEST_ENDPOINT and etcdctl in WATCHCORE_TEST_ETCDCTL. The binaries are those of
# scripts/etcd.sh. The exit status is the command's; 3 if there is no etcd.
set -euo pipefail

fail() { printf 'with-etcd.sh: %s\n' "$*" >&2; exit 3; }
[ $# -gt 0 ] || { echo "usage: with-etcd.sh COMMAND [ARGUMENT...]" >&2; exit 2; }
binaries=$("$(dirname -- "${BASH_SOURCE[0]}")/etcd.sh") || exit 3
[ -x "$binaries/etcdctl" ] || fail "no etcdctl beside $binaries/etcd"

directory=$(mktemp -d)
server=
stop() {
    [ -z "$server" ] || kill -KILL "$server" 2>/dev/null || true
    [ -z "$server" ] || wait "$server" 2>/dev/null || true
    server=
}
trap 'stop; rm -rf -- "$directory"' EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# etcd takes each of its options from the environment, too.
unset "${!ETCD_@}" "${!ETCDCTL_@}"
# The ports lie below those that Linux gives to outgoing connections. A port that somebody has ends etcd at once.
starts() {
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
        ! grep -qs 'serving client traffic' "$directory/log" || return 0
        kill -0 "$server" 2>/dev/null || break
        sleep 0.05
    done
    stop
    return 1
}
tries=1
until starts; do [ $((tries++)) -lt 50 ] || fail "etcd does not start: $(tail -n 3 "$directory/log")"; done

status=0
WATCHCORE_TEST_ENDPOINT=$client WATCHCORE_TEST_ETCDCTL=$binaries/etcdctl "$@" || status=$?
exit $status
