#!/usr/bin/env bash
# A distribution's packager builds the package watchcore-capi with cargo-c: what `cargo cinstall` installs is what `make install` does,
# but for the differences that are named here. It needs cargo-c 0.10.24 or newer.
set -uo pipefail
. scripts/release/lib.sh
if ! command -v cargo-cinstall >/dev/null; then
    say "left out: cargo-cinstall is missing (cargo install --locked cargo-c)"
    exit 0
fi
need pkg-config pkg-config
root=$PWD tmp=$(mktemp -d)
trap 'rm -rf -- "$tmp"' EXIT
cd -- "$tmp" || exit
. "$root/tests/outside/lib.sh"

mkdir cargo
cat >cargo/config.toml <<TOML
[source.crates-io]
replace-with = "release"
[source.release]
directory = "$OUT/crates/vendor"
[net]
offline = true
TOML
made=$tmp/made/usr packaged=$tmp/packaged/usr
make_install() { make -C "$root" install PREFIX=/usr DESTDIR="$tmp/made"; }
must 'make install' make_install
export PROTOC=${PROTOC:-$root/tools/protoc}
must 'there is a protoc' "$PROTOC" --version
# Quickly: names, links and texts are those of a build with optimization.
cinstall() {
    cp -R -- "$OUT/crates/vendor/watchcore-capi-$VERSION" capi && cd capi &&
        CARGO_HOME=$tmp/cargo CARGO_PROFILE_DEV_DEBUG=0 cargo cinstall --locked --profile dev \
            --target-dir "$tmp/target" --prefix /usr --libdir lib --destdir "$tmp/packaged"
}
must 'cargo cinstall of the package' cinstall

listed() { (cd -- "$1" && find . ! -type d | LC_ALL=C sort); }
# The man page and the second pkg-config file are the Makefile's; cargo-c's libwatchcore.so.0 is a link to the whole version.
files() {
    diff <(listed "$made" | grep -vxF -e ./lib/pkgconfig/watchcore-static.pc -e ./share/man/man3/watchcore.3) \
        <(listed "$packaged" | grep -vxF "./lib/libwatchcore.so.$VERSION")
}
check 'the same files' files
check 'the same header' cmp "$made/include/watchcore.h" "$packaged/include/watchcore.h"
check 'the same suppressions of valgrind' cmp "$made/share/watchcore/watchcore.supp" "$packaged/share/watchcore/watchcore.supp"
soname() { readelf -d "$1/lib/libwatchcore.so.0" | grep -o 'SONAME.*\|NODELETE'; }
check 'the same soname, and no unloading' diff <(soname "$made") <(soname "$packaged")
symbols() { nm -D --defined-only "$1/lib/libwatchcore.so" | cut -d' ' -f2-; }
check 'the same symbols' diff <(symbols "$made") <(symbols "$packaged")
# Libs.private differs: rustc's list has libgcc_s, ours takes the unwinder out of libgcc_eh.a.
flags() {
    export PKG_CONFIG_LIBDIR=$1/lib/pkgconfig PKG_CONFIG_ALLOW_SYSTEM_CFLAGS=1 PKG_CONFIG_ALLOW_SYSTEM_LIBS=1
    pkg-config --modversion watchcore && pkg-config --cflags --libs watchcore
}
same_flags() { flags "$made" | grep -e -lwatchcore && diff <(flags "$made") <(flags "$packaged"); }
check 'the same answers of pkg-config' same_flags
program() {
    printf '#include <watchcore.h>\nint main(void) { return watchcore_abi_version() != 0; }\n' >program.c &&
        cc program.c -I"$packaged/include" -L"$packaged/lib" -lwatchcore -o program && LD_LIBRARY_PATH=$packaged/lib ./program
}
check 'a program builds and runs with it' program
summary
