#!/usr/bin/env bash
# Run in a root by tests/release, as /opt/support/serves.sh: a server with packaging/watchcore.toml as its configuration serves from a
# real etcd, and ends at SIGTERM with its watch drained.
#
#   serves.sh COMMAND [ARGUMENT...]
set -euo pipefail
[ -n "${WATCHCORE_TEST_ENDPOINT:-}" ] || exec /opt/scripts/with-etcd.sh "$0" "$@"
directory=$(mktemp -d) url=http://127.0.0.1:8080
fail() { echo "$*"; head -n 50 "$directory"/*; exit 1; }
put() {
    "$WATCHCORE_TEST_ETCDCTL" --endpoints "$WATCHCORE_TEST_ENDPOINT" put "/registry/matrix.test/widgets/shop/$1" \
        "{\"apiVersion\":\"matrix.test/v1\",\"kind\":\"Widget\",\"metadata\":{\"name\":\"$1\",\"namespace\":\"shop\"}}" >/dev/null
}
# soon PROCESS COMMAND...: the command succeeds within half a minute, unless the process ends before.
soon() {
    local process=$1
    shift
    for _ in {1..600}; do
        ! "$@" >/dev/null 2>&1 || return 0
        kill -0 "$process" 2>/dev/null || break
        sleep 0.05
    done
    fail "it did not come to pass: $*"
}

put bolt
WATCHCORE_ETCD=$WATCHCORE_TEST_ENDPOINT "$@" >"$directory/server" 2>&1 &
server=$!
soon $server curl --fail --silent "$url/readyz"
curl --fail --silent "$url/apis/matrix.test/v1/widgets" | grep -q '"name":"bolt"' || fail 'the list has no bolt'
curl --fail --silent --no-buffer "$url/apis/matrix.test/v1/widgets?watch=1" >"$directory/watch" &
watch=$!
soon $watch grep -q '"name":"bolt"' "$directory/watch"
put nut
soon $watch grep -q '"name":"nut"' "$directory/watch"

# A sandbox forwards no signal: its child is meant.
child=$(cat "/proc/$server/task/$server/children")
kill -TERM ${child:-$server}
wait $watch || fail "the watch was cut off: curl ended with status $?"
wait $server || fail "the server ended with status $?"
