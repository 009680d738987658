#!/usr/bin/env bash
# `watchcore serve` beside Kubernetes' own server over the same etcd, and beside a loop that only
# writes: `make bench-http`. What each row is: benches/http/main.rs.
#
# ROWS="fanout idle list latency deaf hostile"   which rows; WATCHERS="1000 10000" how many of them in fanout
# RATES="100 1000"                   events a second in latency
# ROWS=revoke WATCHERS=10000         half of the users lose their tokens
# ROWS=soak MINUTES=60 SOAKED=5000   watches through haproxy, for an hour
# NO_BUILD=1                             takes the binaries as they are
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

need() {
    command -v "$1" >/dev/null || { echo "bench-http: $1 is missing: $2" >&2; exit 1; }
}
need cargo "install Rust by rustup"
need go "install Go; it builds etcd and Kubernetes' server"

scripts/etcd.sh >/dev/null
apiserver=$PWD/target/http-tests/apiserver
if [ -z "${NO_BUILD:-}" ]; then
    cargo build --release -p watchcore-cli
    cargo bench -p watchcore-benches --bench http --profile release --no-run
    # Some minutes with empty caches of Go.
    mkdir -p target/http-tests
    (cd http-tests/go && go build -o "$apiserver" ./comparison/apiserver)
fi
# Sockets of ten thousand watchers.
ulimit -n "$(ulimit -Hn)"
if [ -x "$apiserver" ]; then
    export HTTP_APISERVER=$apiserver
fi
WATCHCORE_SERVER=$PWD/target/release/watchcore cargo bench -p watchcore-benches --bench http --profile release
