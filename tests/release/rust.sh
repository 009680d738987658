#!/usr/bin/env bash
# A Rust user on Debian with a toolchain and a C compiler, without protoc and without a network: the crates come by name from
# crates/vendor, in place of a registry. The lines and programs are those of the README files.
set -uo pipefail
. scripts/release/lib.sh
root=$PWD tmp=$(mktemp -d)
trap 'rm -rf -- "$tmp"' EXIT
path=$(root rust-bookworm bookworm gcc libc6-dev pkg-config) || exit
etcd=$(scripts/etcd.sh) || exit
rust=$(rustc --print sysroot)
cd -- "$tmp" || exit
. "$root/tests/outside/lib.sh"

mkdir -p home/.cargo
cat >home/.cargo/config.toml <<'TOML'
[source.crates-io]
replace-with = "release"
[source.release]
directory = "/crates/vendor"
[net]
offline = true
TOML
# stranger TEXT: a shell runs it in the root. What is built stays for the next; nobody debugs it.
stranger() {
    inside "$path" --bind "$tmp/home" /root --ro-bind "$rust" /opt/rust --ro-bind "$OUT/crates" /crates --ro-bind "$etcd" /opt/etcd \
        --setenv PATH /root/.cargo/bin:/opt/rust/bin:/opt/etcd:/usr/bin:/bin --setenv CARGO_TARGET_DIR /root/target \
        --setenv CARGO_PROFILE_DEV_DEBUG 0 --setenv CARGO_PROFILE_RELEASE_OPT_LEVEL 0 -- bash -euo pipefail -c "$1"
}
names='watchcore watchcore-etcd watchcore-toolkit watchcore-http'
must 'cargo add by name' stranger "cargo new --vcs none shop && cd shop && cargo add $names && cargo add tokio --features macros,rt-multi-thread,signal"
versions() { [ "$(grep -cE "^watchcore(-[a-z]+)? = (\"|\{ version = \")$VERSION\"" home/shop/Cargo.toml)" = 4 ] || { cat home/shop/Cargo.toml; return 1; }; }
check "they have the version $VERSION" versions

mkdir home/shop/src/bin
# program FILE DIRECTORY: the first program of the README.md there.
program() { root=$root/$2 snippet rust,no_run 1 >"home/shop/src/bin/$1.rs"; }
must 'README.md has a program' program follow .
must "watchcore-http's has one" program serve watchcore-http
cp -- "$root/tests/outside/rust-workspace/service.rs" home/shop/src/main.rs

line=$(sed -n '/^```sh$/,/^```$/{/^cargo install/p}' "$root/watchcore-etcd/README.md")
refused() {
    local said
    said=$(stranger 'cd shop && cargo build' 2>&1) && { echo "it builds"; return 1; }
    printf '%s\n' "$said"
    grep -qF -- "$line" <<<"$said"
}
check 'without protoc the build says how to get it' refused
must "$line" stranger "$line"
must 'the programs build offline' stranger "${line##*&& }; cd shop && cargo build"
check 'the service on the toolkit runs' prints 'handled 100, heard 100, running 50' stranger target/debug/shop

# The program names an address; this network has nothing else.
cat >home/follow.sh <<'SH'
client=http://127.0.0.1:2379 peer=http://127.0.0.1:2380
etcd --name one --data-dir data --unsafe-no-fsync --log-level error --listen-client-urls $client --advertise-client-urls $client \
    --listen-peer-urls $peer --initial-advertise-peer-urls $peer --initial-cluster one=$peer &
until etcdctl put /registry/pods/one first 2>/dev/null; do kill -0 $!; sleep 0.05; done
target/debug/follow >events &
until grep -q first events; do kill -0 $!; sleep 0.05; done
etcdctl put /registry/pods/two second
until grep -q second events; do kill -0 $!; sleep 0.05; done
sed 's/^[0-9]* //' events
SH
check 'the program of README.md follows a real etcd' prints 'ADDED Some("/registry/pods/two") Some("second")' \
    stranger 'timeout 60 bash -euo pipefail follow.sh'

# Its own Cargo.lock, as README.md of the crate says; without optimization.
install=$(sed -n '/^```sh$/,/^```$/{/^cargo install.*watchcore-cli/p}' "$root/watchcore-cli/README.md")
must "$install" stranger "${line##*&& }; $install --debug"
check 'watchcore --version' prints "watchcore $VERSION" stranger 'watchcore --version'
c_library() { stranger "${line##*&& }; cp -R /crates/vendor/watchcore-capi-$VERSION capi && cd capi && cargo build --locked && readelf -d ../target/debug/libwatchcore.so"; }
soname() { grep -q 'SONAME.*\[libwatchcore\.so\.0\]' <<<"$(c_library | tee /dev/stderr)"; }
check 'the package of the C library builds, with its soname' soname
summary
