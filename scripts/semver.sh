#!/usr/bin/env bash
# cargo-semver-checks over the Rust crates: what compiled with an earlier revision
# compiles with this one. For before a release; `make test` has the lists of
# api/, which show every change and are there in seconds.
#
#   scripts/semver.sh [REVISION]   default: the one that api/baseline names
#
# The tool is that of PATH, else target/tools, where cargo installs it the first
# time: a good quarter of an hour of processor time.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
revision=${1:-$(cat api/baseline)}

PATH=$PWD/target/tools/bin:$PATH
command -v cargo-semver-checks >/dev/null ||
    env -u RUSTFLAGS cargo install --locked --debug --root target/tools cargo-semver-checks@0.51.0
# A shallow clone lacks it.
git cat-file -e "$revision^{commit}" 2>/dev/null || git fetch --quiet --depth 1 origin "$revision" || {
    echo "semver.sh: there is no revision $revision here, and origin has none: git fetch --unshallow" >&2
    exit 1
}
for crate in watchcore watchcore-etcd; do
    # The version of both is the same while nothing is released: what may change with the next one is asked for.
    cargo semver-checks --package $crate --baseline-rev "$revision" --release-type minor --all-features
done
