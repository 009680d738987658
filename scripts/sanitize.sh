#!/usr/bin/env bash
# The core's unit, model, stress and contract tests, and the C ABI's unit tests, under sanitizers.
#
#   scripts/sanitize.sh                   AddressSanitizer, ThreadSanitizer, Miri
#   scripts/sanitize.sh address|thread|miri...
#   scripts/sanitize.sh short             AddressSanitizer, unit tests and a short model run: a step of `make test`
#
# A missing tool fails by its name, with what to install; Miri alone is skipped, in so many words,
# because only nightly toolchains have it. docs/internals/sanitizers.md tells what each one sees.
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
features=async,json
suppressions=$PWD/scripts/sanitize
names=() results=()

missing() {
    printf '%s: MISSING: %s: %s\n' "$1" "$2" "$3" >&2
    return 1
}

# tests OF COMMAND...: one run of `cargo test` with these arguments; a failure is told and the next one runs.
failed=0
tests() {
    local title=$1
    shift
    printf '\n---- %s ----\n' "$title"
    "$@" || { printf 'sanitize.sh: %s FAILED\n' "$title"; failed=1; }
}

address() {
    local host sysroot runtime
    host=$(rustc -vV | sed -n 's/^host: //p')
    sysroot=$(rustc --print sysroot) || return 1
    runtime=$(find "$sysroot/lib/rustlib/$host/lib" -name 'librustc*_rt.asan.*' 2>/dev/null | head -n 1)
    [ -n "$runtime" ] ||
        { missing address "the runtime librustc_rt.asan of $(rustc --version)" "install Rust by rustup, whose toolchains bring it"; return 1; }
    # Without slabs, and so without the heap's own tests: each block is an allocation, whose end is seen.
    export RUSTFLAGS="-Zsanitizer=address --cfg watchcore_plain_heap"
    export LSAN_OPTIONS="suppressions=$suppressions/leaks.txt:print_suppressions=0"
    # A use after return and a stack use after scope are looked for too.
    export ASAN_OPTIONS="detect_stack_use_after_return=1:strict_init_order=1"
    local build=(--no-default-features --target "$host" --target-dir target/asan)
    local run=(cargo test "${build[@]}" --features "$features")
    failed=0
    tests "AddressSanitizer: unit tests" "${run[@]}" --lib
    tests "AddressSanitizer: unit tests of the C ABI" cargo test "${build[@]}" -p watchcore-capi --features json --lib
    WATCHCORE_CASES=$cases tests "AddressSanitizer: model, $cases histories" "${run[@]}" --test model
    [ "$1" = short ] && return $failed
    WATCHCORE_STEPS=$steps tests "AddressSanitizer: stress, $steps steps" "${run[@]}" --test stress
    tests "AddressSanitizer: contract" "${run[@]}" --test contract
    return $failed
}

thread() {
    local bin=${WATCHCORE_TSAN_BIN:-/usr/bin} clang=${WATCHCORE_CLANG:-} host
    local debian="apt-get install --no-install-recommends rustc-web cargo-web rust-web-src clang-22 libclang-rt-22-dev llvm-22"
    local symbolizer
    [ -x "$bin/rustc" ] && [ -x "$bin/cargo" ] ||
        { missing thread "$bin/rustc and $bin/cargo" "$debian (or name another directory in WATCHCORE_TSAN_BIN)"; return 1; }
    [ -e "$("$bin/rustc" --print sysroot)/lib/rustlib/src/rust/library/std/Cargo.toml" ] ||
        { missing thread "the source of std of $("$bin/rustc" --version)" "$debian"; return 1; }
    [ -n "$clang" ] || clang=$(command -v clang-22 || command -v clang) ||
        { missing thread "clang" "$debian (or name one in WATCHCORE_CLANG)"; return 1; }
    # Reports and suppressions are by function: they need the names.
    symbolizer=$(command -v llvm-symbolizer-22 || command -v llvm-symbolizer-23) ||
        { missing thread "llvm-symbolizer-22" "$debian"; return 1; }
    host=$("$bin/rustc" -vV | sed -n 's/^host: //p')
    # std is built with instrumentation: without it every lock and channel of std is a false report.
    export RUSTFLAGS="-Zsanitizer=thread -Zexternal-clangrt -Clinker=$clang -Clink-arg=-fsanitize=thread"
    export TSAN_OPTIONS="suppressions=$suppressions/races.txt:external_symbolizer_path=$symbolizer:history_size=7:second_deadlock_stack=1"
    local build=(env PATH="$bin:$PATH" RUSTC="$bin/rustc" "$bin/cargo" test -Zbuild-std
        --no-default-features --target "$host" --target-dir target/tsan)
    local run=("${build[@]}" --features "$features")
    failed=0
    # Parsers and the tree have one thread each: nothing to see, and most of the time. So have hints, and this allocator
    # puts blocks of different sizes too far from each other for them.
    tests "ThreadSanitizer: unit tests" "${run[@]}" --lib -- --skip attribute:: --skip filter:: --skip store::tree:: \
        --skip writer::tests::hints_lead
    tests "ThreadSanitizer: unit tests of the C ABI" "${build[@]}" -p watchcore-capi --features json --lib
    WATCHCORE_CASES=$cases tests "ThreadSanitizer: model, $cases histories" "${run[@]}" --test model
    WATCHCORE_STEPS=$steps tests "ThreadSanitizer: stress, $steps steps" "${run[@]}" --test stress
    tests "ThreadSanitizer: contract" "${run[@]}" --test contract
    return $failed
}

# 3: skipped.
miri() {
    if ! cargo +nightly miri --version >/dev/null 2>&1; then
        echo "miri: SKIPPED: no toolchain here has the component miri" \
            "(rustup toolchain install nightly --component miri rust-src)"
        return 3
    fi
    failed=0
    # The clock and the descriptors of wake sets are the machine's. crossbeam-epoch keeps to tree borrows, and makes
    # pointers of integers. The library's threads, and what they keep, go with the process. Parsers and filters have no
    # unsafe code; random histories, and the writer's panics at each of its steps, are too slow here.
    export MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-tree-borrows -Zmiri-permissive-provenance -Zmiri-ignore-leaks"
    # One draw of each random test of the C ABI takes a quarter of a minute.
    PROPTEST_CASES=1 tests "Miri: unit tests of the C ABI" \
        cargo +nightly miri test -p watchcore-capi --target-dir target/miri --lib
    tests "Miri: unit tests" cargo +nightly miri test --no-default-features --target-dir target/miri --lib -- \
        batch:: cache:: data:: foreign:: heap:: log:: read::tests reclaim:: store:: subscription:: sync:: sys:: wake::
    return $failed
}

one() {
    local status=0
    (set -o pipefail; "$@") || status=$?
    names+=("$1")
    case $status in
    0) results+=(passed) ;;
    3) results+=(skipped) ;;
    *) results+=(FAILED) ;;
    esac
}

{
[ $# -gt 0 ] || set -- address thread miri
steps=${WATCHCORE_STEPS:-3000}
for what in "$@"; do
    case $what in
    short) cases=${WATCHCORE_CASES:-300} one address short ;;
    address | miri) cases=${WATCHCORE_CASES:-2000} one "$what" all ;;
    thread) cases=${WATCHCORE_CASES:-150} one thread ;;
    *)
        echo "sanitize.sh: unknown '$what'; known: address thread miri short" >&2
        exit 2
        ;;
    esac
done
printf '\n'
status=0
for i in "${!names[@]}"; do
    printf '%-10s %s\n' "${names[$i]}" "${results[$i]}"
    [ "${results[$i]}" != FAILED ] || status=1
done
exit $status
}
