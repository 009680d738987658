#!/usr/bin/env bash
# An image of `watchcore serve`, in DIRECTORY, as `podman load -i` and `skopeo copy oci-archive:` take it. It is built by
# packaging/Containerfile as everybody builds it, but without a registry: its base image is a Debian root with this machine's Rust.
#
#   scripts/release/image.sh DIRECTORY        VERSION and OUT are set, and OUT has notices/THIRD-PARTY
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.."
. scripts/release/lib.sh

directory=$1 name=watchcore-$VERSION-linux-$(uname -m | sed 's/x86_64/amd64/; s/aarch64/arm64/') cargo_home=${CARGO_HOME:-$HOME/.cargo}
[ -f "$OUT/notices/THIRD-PARTY" ] || fail "$OUT/notices/THIRD-PARTY is missing: run 'scripts/release.sh $VERSION notices'"
need buildah buildah
# Such as docker.io/library/rust:1-trixie.
from=$(sed -n 's/^FROM \([^ ]*\) AS build$/\1/p' packaging/Containerfile) suite=${from##*-}
base=$(root "build-$suite" "$suite" gcc libc6-dev)
cargo fetch --quiet --locked --target "$(uname -m)-unknown-linux-gnu"

work=$(mktemp -d "$PWD/target/release-image.XXXXXX")
export BUILDAH_ISOLATION=chroot
storage() { buildah --storage-driver vfs --root "$work/storage" --runroot "$work/run" "$@"; }
trap 'storage rm --all >/dev/null 2>&1; rm -rf -- "$work"' EXIT

printf '%s\n' 'FROM scratch' 'COPY . /' 'ENV PATH=/opt/rust/bin:/usr/sbin:/usr/bin:/sbin:/bin CARGO_HOME=/opt/cargo CARGO_NET_OFFLINE=true' >"$work/base"
printf '%s\n' dev proc sys var/cache var/lib/apt >"$work/ignored"
storage bud --quiet --ignorefile "$work/ignored" -t "$from" -f "$work/base" "$base"

git clone --quiet --shared . "$work/source"
cp -- "$OUT/notices/THIRD-PARTY" "$work/source/"
mkdir -p target/release-image
storage bud --pull-never --timestamp "$SOURCE_DATE_EPOCH" --label "org.opencontainers.image.version=$VERSION" \
    --label "org.opencontainers.image.revision=$(git rev-parse HEAD)" -t "localhost/watchcore:$VERSION" \
    -v "$(rustc --print sysroot):/opt/rust:ro" -v "$cargo_home/registry:/opt/cargo/registry:ro" -v "$PWD/target/release-image:/source/target" \
    -f packaging/Containerfile "$work/source"
storage push --quiet "localhost/watchcore:$VERSION" "oci:$work/oci:$VERSION"
tar --create --directory "$work/oci" --format=gnu --sort=name --owner=0 --group=0 --numeric-owner --mode=u+rw,a+rX,go-w \
    --mtime="@$SOURCE_DATE_EPOCH" --file "$directory/$name.oci.tar" blobs index.json oci-layout
