#!/usr/bin/env bash
# A later version takes the place of this one, under programs that were built with this one and under clients that watch.
#
# The later version is this one with another number, in whose C interface every struct that a caller hands in is longer
# (grow.pl). It is built in target/upgrade without optimization.
root=$PWD
. scripts/release/lib.sh
. tests/outside/lib.sh
need zstd zstd
need perl perl
work=$(mktemp -d) checks_log=$work/log
trap 'rm -rf -- "$work"' EXIT
later=${VERSION%.*}.$((${VERSION##*.} + 1))
# Those of the C tests that ask nothing of the library's own inside, and feed no struct that is longer than its header's.
programs=(tour errors loading handles threads fork outlive room filters history lag subscriptions shutdown cancel codes examples
    rows feeder wakeset)

unpack() { mkdir "$work/old" && tar -C "$work/old" --strip-components=1 -xf "$OUT"/archives/watchcore-"$VERSION"-*.tar.zst; }
build_later() {
    git clone -q "$root" "$work/later" && cd "$work/later" && sed -i "0,/^## /s//## $later (unreleased)\n\n&/" CHANGELOG.md &&
        scripts/release/version.sh "$later" &&
        perl tests/release/grow.pl watchcore-capi/src/*.rs watchcore-capi/src/frame/*.rs &&
        cargo build --target-dir "$root/target/upgrade" -p watchcore-capi --lib -p watchcore-cli --bin watchcore
}
built_with_old() {
    make -C ffi-tests -j"$(nproc)" NO_BUILD=1 LIB="$work/old/lib" OUT="$work/programs" "${programs[@]/#/$work/programs/shared/}"
}
# Each program with the library at whose place it was linked.
run() { (cd ffi-tests && "$root/scripts/with-etcd.sh" timeout 300 "$work/programs/shared/$1"); }
put_later() { cp target/upgrade/debug/libwatchcore.so "$work/.new" && mv "$work/.new" "$work/old/lib/libwatchcore.so.0"; }
library_says() {
    printf '#include <stdio.h>\n#include <watchcore.h>\nint main(void) { puts(watchcore_version()); }\n' >"$work/version.c" &&
        cc -I"$work/old/include" "$work/version.c" -o "$work/version" "$work/old/lib/libwatchcore.so" -Wl,-rpath,"$work/old/lib" &&
        prints "$1" "$work/version"
}
served() {
    HTTP_TESTS_WATCHCORE=$work/old/bin/watchcore HTTP_TESTS_NEXT=$root/target/upgrade/debug/watchcore \
        scripts/demo-http.sh -objects 1000 -changes 3000
}

must 'the archive of this version' unpack
must 'a later version is built' build_later
must 'programs are built with the header and the shared library of this one' built_with_old
check "it is $VERSION" library_says "$VERSION"
for program in "${programs[@]}"; do check "$program" run "$program"; done
must 'the later library takes its place' put_later
check "it is $later" library_says "$later"
export WATCHCORE_LATER=$later
for program in "${programs[@]}"; do check "$program, as it was built, with the later library" run "$program"; done
check "the command line is $later" prints "watchcore $later" target/upgrade/debug/watchcore --version
check 'clients of serve lose nothing when a later server takes its place' served
summary
