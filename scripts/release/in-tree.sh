#!/usr/bin/env bash
# Runs a command in a clone of this commit, on the oldest Debian that a release supports: what is built there asks for no newer
# glibc (docs/internals/release.md). The clone is target/release-tree, /source for the command. Its builds stay for the next call.
#
#   scripts/release/in-tree.sh COMMAND [ARGUMENT...]
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.."
. scripts/release/lib.sh

tree=$PWD/target/release-tree cargo_home=${CARGO_HOME:-$HOME/.cargo}
[ -d "$tree" ] || git clone --quiet --shared --no-checkout . "$tree"
# A checkout changes only the files that differ, and gives them the time of now, from which cargo knows them.
git -C "$tree" checkout --quiet --force --detach "$(git rev-parse HEAD)"
# mimalloc has the time of its compilation in it. That of the commit would have ring built again for each, and all that needs it.
path=$(root build-bullseye bullseye gcc libc6-dev make pkg-config debhelper)
cargo fetch --quiet --locked --target "$(uname -m)-unknown-linux-gnu"
inside "$path" --bind "$tree" /source --ro-bind "$(rustc --print sysroot)" /opt/rust --setenv PATH /opt/rust/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    --dir /opt/cargo --ro-bind "$cargo_home/registry" /opt/cargo/registry --setenv CARGO_HOME /opt/cargo --setenv CARGO_NET_OFFLINE true \
    --setenv SOURCE_DATE_EPOCH 0 -- env -C /source "$@"
