#!/usr/bin/env bash
# The image, started by a stranger as its configuration says: by its own user, on a file system that is read-only. It serves from a
# real etcd and ends at SIGTERM with its watch drained.
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.."
. tests/release/support/lib.sh
need buildah buildah
export BUILDAH_ISOLATION=chroot

archive=$(echo "$OUT"/image/watchcore-"$VERSION"-linux-*.oci.tar)
storage() { buildah --storage-driver vfs --root "$work/storage" --runroot "$work/run" "$@"; }
says() { storage inspect --type image --format "{{$1}}" "$image"; }
label() { says "index .OCIv1.Config.Labels \"org.opencontainers.image.$1\""; }

must 'a root' fresh image-trixie trixie curl bubblewrap
must 'it is loaded' storage pull --quiet "oci-archive:$archive"
image=$(storage images --quiet) container=$(storage from --pull-never "$image")
files=$(storage mount "$container")

check 'its version is a label' [ "$(label version)" = "$VERSION" ]
check 'so is its commit' [ "$(label revision)" = "$(cat "$OUT/image/.commit")" ]
check 'its licence, too' [ "$(label licenses)" = 'MIT OR Apache-2.0' ]
check 'it ends by SIGTERM' [ "$(says .OCIv1.Config.StopSignal)" = SIGTERM ]
check 'it is not root' [ "$(says .OCIv1.Config.User)" = 65532:65532 ]
listing() { (cd -- "$files" && find . -type f | LC_ALL=C sort); }
check 'one program and licences are in it, and nothing else' [ "$(listing | xargs)" = \
    './licenses/LICENSE ./licenses/LICENSE-APACHE ./licenses/LICENSE-MIT ./licenses/THIRD-PARTY ./licenses/glibc ./watchcore' ]
check 'the licences of others are those of the release' cmp "$OUT/notices/THIRD-PARTY" "$files/licenses/THIRD-PARTY"

mapfile -t command < <(says 'range .OCIv1.Config.Entrypoint}}{{println .}}{{end}}{{range .OCIv1.Config.Cmd}}{{println .}}{{end' | sed '/^$/d')
user=$(says .OCIv1.Config.User)
# The outer sandbox has loopback and etcd, the inner one the image alone.
serves() {
    beside_etcd image-trixie --bind "$files" /image --dir /configuration \
        --ro-bind "$root/packaging/watchcore.toml" /configuration/watchcore.toml -- \
        /opt/support/serves.sh bwrap --unshare-user --uid "${user%:*}" --gid "${user#*:}" --cap-drop ALL \
        --bind /image / --dev /dev --ro-bind /configuration /etc/watchcore --remount-ro / -- "$@"
}
check 'it serves, and is drained at SIGTERM' serves "${command[@]}"
summary
