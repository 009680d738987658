#!/usr/bin/env bash
# A live demonstration of watchcore serve: curl, client-go, kubectl, kube-rs, a WebSocket and an EventSource follow
# 10,000 objects through 20,000 changes, while etcd is killed, its history compacted and the server restarted; at the
# end each client's state, and every event that it was told, is compared with what etcd has and what was written.
#
#   scripts/demo-http.sh [-objects N] [-changes N]
#   scripts/demo-http.sh -moving 10m [-haproxy /usr/sbin/haproxy]    clients that move between three servers instead:
#                                                                   docs/SERVER.md, "Several servers"
#
# Exit status: 0 all agree, 1 they do not, 3 something is missing.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
command -v curl >/dev/null || echo "demo-http.sh: curl is not there (Debian: curl); Go's own client takes its place" >&2
# What the demonstration makes lies below this directory, which goes also where it is killed.
directory=$(mktemp -d)
demo=
trap '[ -z "$demo" ] || { kill -TERM "$demo"; wait "$demo"; } 2>/dev/null || true; rm -rf -- "$directory"' EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

echo "building (the first time takes some minutes)" >&2
scripts/http-tests.sh --run true
TMPDIR=$directory scripts/http-tests.sh --run target/http-tests/demo "$@" &
demo=$! status=0
wait "$demo" || status=$?
demo=
exit $status
