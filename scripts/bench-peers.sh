#!/usr/bin/env bash
# watchcore beside its peers, at the same work, in one run of ten minutes at most: `make bench-peers`.
#
#   scripts/bench-peers.sh              builds, measures, writes target/peers/results.json
#   scripts/bench-peers.sh --only ROW   one row alone
#
# QUICK=1      two minutes: the smaller sizes, shorter sections
# NO_BUILD=1   takes target/watchcore/libwatchcore.a as it is
#
# What it needs comes from the registries of Rust and Go with the first build; no test needs it.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

need() {
    command -v "$1" >/dev/null || { echo "bench-peers: $1 is missing: $2" >&2; exit 1; }
}
need cargo "install Rust 1.95 or newer by rustup"

env -u CARGO_TARGET_DIR -u CARGO_BUILD_TARGET cargo build --release --locked \
    --manifest-path benches/peers/Cargo.toml --target-dir target/peers

exec target/peers/release/peers run ${QUICK:+--quick} "$@"
