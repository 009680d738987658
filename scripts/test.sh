#!/usr/bin/env bash
# The test suite: every step in order, none left out after a failure, and a
# table at the end. The last line is "N passed, N failed", counted in steps.
#
#   scripts/test.sh                    everything
#   scripts/test.sh rust loom c go     only these groups
#
# Output goes to the terminal and to target/test-logs/STEP.log.
# WATCHCORE_STEP_TIMEOUT   seconds a step may take (default 2400)
# WATCHCORE_ETCD           directory of etcd, if not the one scripts/etcd.sh builds
# WATCHCORE_FAKE_ETCD      the fake etcd, if not the one scripts/fake-etcd.sh builds
set -uo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
cd -- "$root"
unset MAKEFLAGS MFLAGS MAKELEVEL
logs=$root/target/test-logs

# The loom models. Under `--cfg loom` every crate is another build: own directory.
loom_command=(cargo test --release --no-default-features --lib --target-dir target/loom loom_)
# Those of the toolkit: a cfg of its own, see watchcore-toolkit/src/sync.rs.
toolkit_loom_command=(cargo test --release -p watchcore-toolkit --lib --target-dir target/toolkit-loom loom_)
loom_preemptions=${LOOM_MAX_PREEMPTIONS:-3}

# The oldest Rust that builds the crates: the first release with what they are written in (chains of `let`).
minimum_rust() { sed -n 's/^rust-version *= *"\(.*\)"/\1/p' Cargo.toml | head -n 1; }

# ---- the steps -------------------------------------------------------------

# need TOOL WHAT-TO-INSTALL: 1 and a message if TOOL is not there.
need() {
    if command -v "$1" >/dev/null; then
        printf '  %-12s %s\n' "$1" "$(command -v "$1")"
    else
        printf '  %-12s MISSING: %s\n' "$1" "$2"
        return 1
    fi
}

step_tools() {
    local missing=0
    need cargo "install Rust $(minimum_rust) or newer by rustup" || missing=1
    need cc "install a C compiler (Debian: gcc libc6-dev)" || missing=1
    need make "install GNU make (Debian: make)" || missing=1
    need go "install Go 1.26 or newer; it builds the etcd of the tests too" || missing=1
    if wants c; then
        need c++ "install a C++ compiler (Debian: g++)" || missing=1
    fi
    if wants c || wants go; then
        need pkg-config "install pkg-config (Debian: pkgconf)" || missing=1
    fi
    if wants rust; then
        need cargo-fmt "rustup component add rustfmt" || missing=1
        need cargo-clippy "rustup component add clippy" || missing=1
    fi
    return $missing
}

step_etcd() { scripts/etcd.sh; }
# The server that breaks rules, for the tests in C and Go.
step_fake-etcd() { scripts/fake-etcd.sh; }

step_fmt() { cargo fmt --all --check; }
step_storeys() { scripts/storeys.sh; }
# docs/OPERATIONS.md names every figure and every message.
step_operations() { scripts/operations.sh; }
# Before an hour of tests: the rows of the core, the tables that are printed from contract/, and whether the mutants apply.
step_rows() { cargo test --test rows && scripts/mutants.sh --apply; }
step_names() { scripts/names.sh && scripts/examples.sh; }
step_clippy() { cargo clippy --workspace --all-targets --all-features -- -D warnings; }
# The core alone, and the C ABI without the feeder.
step_no-features() { cargo build --no-default-features && cargo build -p watchcore-capi --no-default-features; }
# The Rust that Cargo.toml promises, where rustup has it or can get it.
step_msrv() {
    local minimum
    minimum=$(minimum_rust).0
    if ! command -v rustup >/dev/null; then
        echo "not checked with Rust $minimum: there is no rustup here to get it"
    elif ! rustup run "$minimum" rustc --version 2>/dev/null &&
        ! rustup toolchain install "$minimum" --profile minimal --no-self-update; then
        echo "not checked: rustup could not install Rust $minimum"
        [ -z "${CI:-}" ]
    else
        # Not its lints: clippy of the newest Rust has those.
        RUSTFLAGS="${RUSTFLAGS:-} --cap-lints allow" \
            cargo "+$minimum" check --workspace --all-features --target-dir target/msrv
    fi
}
# Library, binary, integration tests and examples; the header test is among them.
step_rust() { cargo test --workspace --all-features --no-fail-fast --lib --bins --tests --examples; }
# The documentation's examples, and its links.
step_doc() {
    cargo test --workspace --all-features --doc &&
        RUSTDOCFLAGS="${RUSTDOCFLAGS:-} -D warnings" cargo doc --no-deps --workspace --all-features
}

# models CFG COMMAND...: the models that this command runs.
models() {
    export RUSTFLAGS="${RUSTFLAGS:-} --cfg $1" LOOM_MAX_PREEMPTIONS=$loom_preemptions
    shift
    local list
    list=$("$@" -- --list) || return 1
    # A filter that matches nothing would pass.
    grep -q ': test$' <<<"$list" || { echo "no test of that name: $*"; return 1; }
    # More than cores: a few models take most of the time, and begin late in the order of their names.
    "$@" -- --test-threads $((2 * $(getconf _NPROCESSORS_ONLN)))
}
step_loom() { (models loom "${loom_command[@]}"); }
step_toolkit-loom() { (models toolkit_loom "${toolkit_loom_command[@]}"); }

# Wake sets with a pipe, as where there is no eventfd. A cfg is another build: own directory.
step_pipe() {
    RUSTFLAGS="${RUSTFLAGS:-} --cfg watchcore_pipe" cargo test --no-default-features --features async \
        --target-dir target/pipe --lib --test contract --test stress --test process
}

# AddressSanitizer over the unit tests and a short model run; `make sanitize` has the rest.
step_address() { scripts/sanitize.sh short; }

step_lib() { make lib; }
step_lib-test() { make lib-test; }
step_c() { make -C ffi-tests NO_BUILD=1; }
# The rows from a language that has no package: what its own machine lacks is no failure of ours.
step_python() {
    python3 -c 'import cffi' 2>/dev/null || { echo 'skipped: Python has no cffi (Debian: python3-cffi)'; return 0; }
    python3 contract/python/rows.py
}

step_gofmt() {
    local unformatted
    unformatted=$(gofmt -l go) || return 1
    [ -z "$unformatted" ] || { printf 'not formatted by gofmt:\n%s\n' "$unformatted"; return 1; }
}
step_vet() { scripts/go.sh vet ./... && scripts/go.sh vet -tags debug ./... && scripts/go.sh -C kubernetes vet ./...; }
# -v names the tests that passed; their beginnings are left out. Beside an etcd, for the examples.
step_go() { scripts/with-etcd.sh scripts/go.sh test -v -race -count=1 ./... | grep --line-buffered -v '^=== '; }
# A module of its own, which alone needs Kubernetes' modules: go gets them from its proxy.
step_go-kubernetes() { scripts/go.sh -C kubernetes test -v -race -count=1 ./... | grep --line-buffered -v '^=== '; }
# Real clients against watchcore serve, and the comparison with Kubernetes' API server.
step_http-tests() { scripts/http-tests.sh -v ./... | grep --line-buffered -v '^=== '; }
# What README.md says to users of C and Go, and the Go tests with the shared library and the tag debug.
step_installed() { scripts/test-installed.sh; }
# Programs of strangers, built outside of the tree as the documentation says; the names begin with the group.
step_outside() {
    local group names=()
    for group in rust c go; do
        if wants $group && compgen -G "tests/outside/$group*/run" >/dev/null; then names+=("$group*"); fi
    done
    [ ${#names[@]} -eq 0 ] || tests/outside/run.sh "${names[@]}"
}

# ---- running them ----------------------------------------------------------

wants() { [[ " $WATCHCORE_TEST_GROUPS " == *" $1 "* ]]; }

# One step in its own process, so that it can have a time limit.
if [ "${1:-}" = --step ]; then
    # Asked for alone, it looks at all of them.
    : "${WATCHCORE_TEST_GROUPS:=rust loom c go}"
    "step_$2"
    exit
fi

# Read whole before it runs: the file may change meanwhile.
{
asked=no
if [ $# -gt 0 ]; then asked=yes; fi
for group in "$@"; do
    case $group in
    rust | loom | c | go) ;;
    *)
        echo "test.sh: unknown group '$group'; known: rust loom c go" >&2
        exit 2
        ;;
    esac
done
export WATCHCORE_TEST_GROUPS="${*:-rust loom c go}"

limit=${WATCHCORE_STEP_TIMEOUT:-2400}
mkdir -p "$logs"
rm -f "$logs"/*.log
names=() results=() seconds=()
passed=0 failed=0
running=
began=$SECONDS

stop() {
    [ -z "$running" ] || kill -TERM "$running" 2>/dev/null
    printf '\ntest.sh: interrupted\n' >&2
    exit "$1"
}
trap 'stop 130' INT
trap 'stop 143' TERM

record() {
    names+=("$1") results+=("$2") seconds+=("$3")
    case $2 in
    passed) passed=$((passed + 1)) ;;
    skipped*) ;;
    *) failed=$((failed + 1)) ;;
    esac
}

# step NAME: runs step_NAME.
step() {
    local name=$1 start=$SECONDS log=$logs/$1.log output tee_pid status waited
    printf '\n==== %s ====\n' "$name"
    exec {output}> >(exec tee "$log")
    tee_pid=$!
    # timeout makes its own process group, led by itself.
    timeout --kill-after=10 "$limit" "$root/scripts/test.sh" --step "$name" \
        </dev/null >&"$output" 2>&1 {output}>&- &
    running=$!
    wait "$running"
    status=$?
    # What a failed step left behind would hold the pipe and the machine.
    if kill -0 -- "-$running" 2>/dev/null; then
        echo "test.sh: step $name left processes behind; ending them" >&"$output"
        kill -TERM -- "-$running" 2>/dev/null
        sleep 1
        kill -KILL -- "-$running" 2>/dev/null
    fi
    running=
    exec {output}>&-
    waited=0
    while kill -0 "$tee_pid" 2>/dev/null && [ $waited -lt 50 ]; do
        sleep 0.1
        waited=$((waited + 1))
    done
    case $status in
    0) record "$name" passed $((SECONDS - start)) ;;
    124 | 137)
        echo "test.sh: step $name was ended after $limit s"
        record "$name" "FAILED (time)" $((SECONDS - start))
        ;;
    *) record "$name" "FAILED ($status)" $((SECONDS - start)) ;;
    esac
    return $status
}

# part GROUP FILE: is this group asked for, and is its part of the tree there?
part() {
    wants "$1" || return 1
    [ -e "$2" ] && return 0
    printf '\n==== %s ====\n%s is missing\n' "$1" "$2"
    if [ $asked = yes ]; then record "$1" "FAILED (no $2)" 0; else record "$1" "skipped (no $2)" 0; fi
    return 1
}

step tools
if wants rust || wants c || wants go; then
    if step etcd; then
        WATCHCORE_ETCD=$(scripts/etcd.sh 2>/dev/null)
        export WATCHCORE_ETCD
    fi
fi
if wants rust; then
    step fmt
    step storeys
    step operations
    step rows
    step names
    step clippy
    step no-features
    step msrv
    step rust
    step doc
    step pipe
    step address
fi
if wants loom; then
    step loom
    step toolkit-loom
fi
c=no go=no
if part c ffi-tests/Makefile; then c=yes; fi
if part go go/go.mod; then go=yes; fi
if [ $c = yes ] || [ $go = yes ]; then
    step lib
    if step fake-etcd; then
        WATCHCORE_FAKE_ETCD=$(scripts/fake-etcd.sh 2>/dev/null)
        export WATCHCORE_FAKE_ETCD
    fi
fi
if [ $c = yes ]; then
    step lib-test
    step c
    step python
fi
if [ $go = yes ]; then
    step gofmt
    step vet
    step go
    step go-kubernetes
    step http-tests
fi
if [ $c = yes ] || [ $go = yes ]; then
    step installed
fi
if wants rust || wants c || wants go; then
    step outside
fi

printf '\n==== summary ====\n%-14s %-24s %8s\n' step result seconds
for i in "${!names[@]}"; do
    printf '%-14s %-24s %8d\n' "${names[$i]}" "${results[$i]}" "${seconds[$i]}"
done
printf '%-14s %-24s %8d\n' all "" $((SECONDS - began))
printf '%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" -eq 0 ]
exit
}
