#!/usr/bin/env bash
# Prints the path of the fake etcd, the program of tests/support/fake_etcd.rs, and
# builds it if need be. Everything else goes to stderr.
#
#   scripts/fake-etcd.sh         $WATCHCORE_FAKE_ETCD, else what cargo builds
#
# Exit status: 0 found, 3 there is none (the reason is on stderr).
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

fail() { printf 'fake-etcd.sh: %s\n' "$*" >&2; exit 3; }

program=${WATCHCORE_FAKE_ETCD:-}
if [ -z "$program" ]; then
    # The features of the step "rust", which has built it with its dependencies then.
    env -u CARGO_BUILD_TARGET "${CARGO:-cargo}" build --quiet --workspace --all-features --example fake_etcd >&2 ||
        fail "the fake etcd does not build (see above)"
    program=${CARGO_TARGET_DIR:-target}/debug/examples/fake_etcd
fi
[ -f "$program" ] && [ -x "$program" ] || fail "$program is no program"
realpath -- "$program"
