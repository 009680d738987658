#!/usr/bin/env bash
# kube-apiserver as it is released beside kube-apiserver with watchcore's storage, over one etcd, in turns: `make bench-apiserver`.
# What each row is: go/apiserver/examples/kube-apiserver/bench.
#
# ROWS="ready memory lists latency slow reports resources leases"   which rows
# PODS=100000 WATCHERS=1000 RATE=20 SECONDS_EACH=20 ROUNDS=2        how much
# SERVERS="kubernetes watchcore"                                    which servers, in the order of their turns
# PROFILES=directory             processor profiles of both servers, which add to the figures
# FIGURES=file                   where the figures are appended; runs of some rows each make one table
# NO_BUILD=1                     takes the binaries as they are
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

etcd=$(scripts/etcd.sh)
out=$PWD/target/bench-apiserver
mkdir -p "$out"
if [ -z "${NO_BUILD:-}" ]; then
    # Eight processor minutes with empty caches of Go.
    build() { scripts/go.sh -C apiserver/examples/kube-apiserver build -o "$out/$1" "$2"; }
    build watchcore .
    build kubernetes k8s.io/kubernetes/cmd/kube-apiserver
    build bench ./bench
fi
# Sockets of the watchers that do not read.
ulimit -n "$(ulimit -Hn)"
[ -z "${PROFILES:-}" ] || mkdir -p "$PROFILES"
exec "$out/bench" -etcd "$etcd/etcd" -programs "$out" -servers "${SERVERS:-kubernetes watchcore}" -figures "${FIGURES:-$out/figures.tsv}" -profiles "${PROFILES:-}" \
    -rows "${ROWS:-ready memory lists latency slow reports resources leases}" -pods "${PODS:-100000}" -watchers "${WATCHERS:-1000}" \
    -rate "${RATE:-20}" -seconds "${SECONDS_EACH:-20}" -rounds "${ROUNDS:-2}"
