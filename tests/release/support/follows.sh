#!/usr/bin/env bash
# Run in a root by tests/release, as /opt/support/follows.sh: a program follows a real etcd, from the state that it finds to a change.
#
#   follows.sh STATUS PROGRAM [ARGUMENT...]
#
# ENDPOINT in an argument stands for etcd's address. The program is ended by SIGINT, after which STATUS is expected of it.
set -euo pipefail
[ -n "${WATCHCORE_TEST_ENDPOINT:-}" ] || exec /opt/scripts/with-etcd.sh "$0" "$@"
status=$1 output=$(mktemp)
shift
put() { "$WATCHCORE_TEST_ETCDCTL" --endpoints "$WATCHCORE_TEST_ENDPOINT" put "$@"; }
printed() {
    for _ in {1..600}; do
        ! grep -q -- "$1" "$output" || return 0
        kill -0 "$program" || break
        sleep 0.05
    done
    echo "it has not printed $1, but:"
    cat "$output"
    return 1
}

put /release/a before
# SIGINT is ignored in what a shell without job control starts in the background.
set -m
"${@//ENDPOINT/$WATCHCORE_TEST_ENDPOINT}" >"$output" 2>&1 &
program=$!
set +m
printed '/release/a.*before'
put /release/b after
printed '/release/b.*after'
kill -INT "$program"
ended=0
wait "$program" || ended=$?
[ $ended -eq "$status" ] || { echo "it ended with status $ended"; cat "$output"; exit 1; }
