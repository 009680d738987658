#!/usr/bin/env bash
# The core's unit, model, stress and contract tests, and the C ABI's unit tests, under sanitizers.
#
#   scripts/sanitize.sh                   AddressSanitizer, ThreadSanitizer, Miri
#   scripts/sanitize.sh address|thread|miri...
#   scripts/sanitize.sh short             AddressSanitizer, unit tests and a short model run: a step of `make test`
#
# A missing tool fails by its name, with what to install; Miri alone is skipped, in so many words, because only nightly toolchains
# have it. docs/internals/sanitizers.md tells what each one sees.
#
# WATCHCORE_CASES     histories of the model (default: address 2000, thread 150, short 300)
# WATCHCORE_STEPS     steps of the stress tests' writers (default 3000)
# WATCHCORE_TSAN_BIN  directory of the rustc and cargo whose own std source can be built (default /usr/bin)
# WATCHCORE_CLANG     the clang that links ThreadSanitizer's runtime (default: clang-22, clang)
set -uo pipefail

cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
unset MAKEFLAGS MFLAGS MAKELEVEL CARGO_TARGET_DIR CARGO_BUILD_TARGET CARGO_ENCODED_RUSTFLAGS
# Sanitizers are unstable options; a stable compiler takes them with this.
export RUSTC_BOOTSTRAP=1 CARGO_TERM_COLOR=never
suppressions=$PWD/scripts/sanitize
failed=0

# needs WHAT-IS-MISSING WHAT-TO-DO COMMAND...: ends this sanitizer where the command fails.
needs() { "${@:3}" >/dev/null 2>&1 || { echo "sanitize.sh: MISSING: $1: $2" >&2; exit 1; }; }
# tests TITLE COMMAND...: a failure is told and the next one runs.
tests() {
    printf '\n---- %s ----\n' "$1"
    "${@:2}" || { printf 'sanitize.sh: %s FAILED\n' "$1"; failed=1; }
}
# suite NAME CASES COMMAND...: what AddressSanitizer and ThreadSanitizer have in common; `skipped` is of the unit tests. One set of
# packages and features, so that every crate is built once.
suite() {
    local name=$1 all=("${@:3}" -p watchcore -p watchcore-capi --features watchcore/async,watchcore/json,watchcore-capi/json)
    tests "$name: unit tests" "${all[@]}" --lib -- "${skipped[@]}"
    WATCHCORE_CASES=${WATCHCORE_CASES:-$2} tests "$name: model" "${all[@]}" --test model
    [ "$what" != short ] || return 0
    WATCHCORE_STEPS=${WATCHCORE_STEPS:-3000} tests "$name: stress" "${all[@]}" --test stress
    tests "$name: contract" "${all[@]}" --test contract
}

address() {
    local host
    host=$(rustc -vV | sed -n 's/^host: //p')
    needs "the runtime librustc_rt.asan of $(rustc --version)" "install Rust by rustup, whose toolchains bring it" \
        compgen -G "$(rustc --print sysroot)/lib/rustlib/$host/lib/librustc*_rt.asan.*"
    # Without slabs, and so without the heap's own tests: each block is an allocation, whose end is seen.
    export RUSTFLAGS="-Zsanitizer=address --cfg watchcore_plain_heap"
    export LSAN_OPTIONS="suppressions=$suppressions/leaks.txt:print_suppressions=0"
    # A use after return and a stack use after scope are looked for too.
    export ASAN_OPTIONS="detect_stack_use_after_return=1:strict_init_order=1"
    skipped=()
    suite AddressSanitizer "$1" cargo test --no-default-features --target "$host" --target-dir target/asan
}

thread() {
    local bin=${WATCHCORE_TSAN_BIN:-/usr/bin} clang symbolizer
    local debian="apt-get install --no-install-recommends rustc-web cargo-web rust-web-src clang-22 libclang-rt-22-dev llvm-22"
    needs "$bin/rustc and $bin/cargo" "$debian (or name another directory in WATCHCORE_TSAN_BIN)" test -x "$bin/rustc" -a -x "$bin/cargo"
    needs "the source of std of $("$bin/rustc" --version)" "$debian" \
        test -e "$("$bin/rustc" --print sysroot)/lib/rustlib/src/rust/library/std/Cargo.toml"
    clang=${WATCHCORE_CLANG:-$(command -v clang-22 || command -v clang)}
    needs clang "$debian (or name one in WATCHCORE_CLANG)" command -v "$clang"
    # Reports and suppressions are by function: they need the names.
    symbolizer=$(command -v llvm-symbolizer-22 || command -v llvm-symbolizer-23)
    needs llvm-symbolizer-22 "$debian" test -n "$symbolizer"
    # std is built with instrumentation: without it every lock and channel of std is a false report.
    export RUSTFLAGS="-Zsanitizer=thread -Zexternal-clangrt -Clinker=$clang -Clink-arg=-fsanitize=thread"
    export TSAN_OPTIONS="suppressions=$suppressions/races.txt:external_symbolizer_path=$symbolizer:history_size=7:second_deadlock_stack=1"
    # Parsers and the tree have one thread each: nothing to see, and most of the time. So have hints, and this allocator
    # puts blocks of different sizes too far from each other for them.
    skipped=(--skip attribute:: --skip filter:: --skip store::tree:: --skip writer::tests::hints_lead)
    suite ThreadSanitizer 150 env PATH="$bin:$PATH" RUSTC="$bin/rustc" "$bin/cargo" test -Zbuild-std --no-default-features \
        --target "$("$bin/rustc" -vV | sed -n 's/^host: //p')" --target-dir target/tsan
}

miri() {
    cargo +nightly miri --version >/dev/null 2>&1 || {
        echo "miri: SKIPPED: no toolchain here has the component miri (rustup toolchain install nightly --component miri rust-src)"
        exit 3
    }
    # The clock and the descriptors of wake sets are the machine's. crossbeam-epoch keeps to tree borrows, and makes
    # pointers of integers. The library's threads, and what they keep, go with the process. Parsers and filters have no
    # unsafe code; random histories, and the writer's panics at each of its steps, are too slow here.
    export MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-tree-borrows -Zmiri-permissive-provenance -Zmiri-ignore-leaks"
    # One draw of each random test of the C ABI takes a quarter of a minute.
    PROPTEST_CASES=1 tests "Miri: unit tests of the C ABI" cargo +nightly miri test -p watchcore-capi --target-dir target/miri --lib
    tests "Miri: unit tests" cargo +nightly miri test --no-default-features --target-dir target/miri --lib -- \
        batch:: cache:: data:: foreign:: heap:: log:: read::tests reclaim:: store:: subscription:: sync:: sys:: wake::
}

{
[ $# -gt 0 ] || set -- address thread miri
summary= status=0
for what in "$@"; do
    case $what in
    short) run=(address 300) ;;
    address) run=(address 2000) ;;
    thread | miri) run=("$what") ;;
    *) echo "sanitize.sh: unknown '$what'; known: address thread miri short" >&2; exit 2 ;;
    esac
    ("${run[@]}"; exit $failed)
    case $? in
    0) result=passed ;;
    3) result=skipped ;;
    *) result=FAILED status=1 ;;
    esac
    summary+=$(printf '%-10s %s' "$what" "$result")$'\n'
done
printf '\n%s' "$summary"
exit $status
}
