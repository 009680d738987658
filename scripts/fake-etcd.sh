#!/usr/bin/env bash
# Prints the path of the fake etcd, the program of tests/support/fake_etcd.rs: $WATCHCORE_FAKE_ETCD, else what cargo builds.
# Everything else goes to stderr. Exit status: 0 found, 3 there is none (the reason is on stderr).
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
program=${WATCHCORE_FAKE_ETCD:-${CARGO_TARGET_DIR:-target}/debug/examples/fake_etcd}
# The features of the step "rust", which has built it with its dependencies then.
[ -n "${WATCHCORE_FAKE_ETCD:-}" ] ||
    env -u CARGO_BUILD_TARGET "${CARGO:-cargo}" build --quiet --workspace --all-features --example fake_etcd >&2 ||
    { echo 'fake-etcd.sh: the fake etcd does not build (see above)' >&2; exit 3; }
[ -f "$program" ] && [ -x "$program" ] || { echo "fake-etcd.sh: $program is no program" >&2; exit 3; }
realpath -- "$program"
