#!/usr/bin/env bash
# The test suite: every step in order, none left out after a failure, and a table at the end. The last line is
# "N passed, N failed", counted in steps. Output goes to the terminal and to target/test-logs/STEP.log.
#
#   scripts/test.sh                    everything
#   scripts/test.sh rust loom c go     only these groups
#   scripts/test.sh --step NAME        only this step, without a limit and a log
#
# WATCHCORE_STEP_TIMEOUT   seconds a step may take (default 2400)
# WATCHCORE_ETCD           directory of etcd, if not the one scripts/etcd.sh builds
# WATCHCORE_FAKE_ETCD      the fake etcd, if not the one scripts/fake-etcd.sh builds
set -uo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
cd -- "$root"
unset MAKEFLAGS MFLAGS MAKELEVEL
logs=$root/target/test-logs

# The oldest Rust that builds the crates: the first release with what they are written in (chains of `let`).
minimum_rust() { sed -n 's/^rust-version *= *"\(.*\)"/\1/p' Cargo.toml | head -n 1; }

# ---- the steps -------------------------------------------------------------

# need TOOL WHAT-TO-INSTALL
need() { command -v "$1" || { printf '%s is MISSING: %s\n' "$1" "$2"; missing=1; }; }
step_tools() {
    local missing=0
    need cargo "install Rust $(minimum_rust) or newer by rustup"
    need cc "install a C compiler (Debian: gcc libc6-dev)"
    need make "install GNU make (Debian: make)"
    need go "install Go 1.26 or newer; it builds the etcd of the tests too"
    ! wants c || need c++ "install a C++ compiler (Debian: g++)"
    ! wants c go || need pkg-config "install pkg-config (Debian: pkgconf)"
    ! wants rust || need cargo-fmt "rustup component add rustfmt"
    ! wants rust || need cargo-clippy "rustup component add clippy"
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

# models CFG ARGUMENT...: the models that cargo test with these arguments runs. Under a cfg every crate is another build, which has
# a directory of its own.
models() {
    local cfg=$1 list
    shift
    export RUSTFLAGS="${RUSTFLAGS:-} --cfg $cfg" LOOM_MAX_PREEMPTIONS=${LOOM_MAX_PREEMPTIONS:-3}
    list=$(cargo test --release --lib "$@" loom_ -- --list) || return 1
    # A filter that matches nothing would pass.
    grep -q ': test$' <<<"$list" || { echo "no test of that name: $*"; return 1; }
    # More than cores: a few models take most of the time, and begin late in the order of their names.
    cargo test --release --lib "$@" loom_ -- --test-threads $((2 * $(getconf _NPROCESSORS_ONLN)))
}
step_loom() { models loom --no-default-features --target-dir target/loom; }
# Those of the toolkit: a cfg of its own, see watchcore-toolkit/src/sync.rs.
step_toolkit-loom() { models toolkit_loom -p watchcore-toolkit --target-dir target/toolkit-loom; }

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
# tested COMMAND...: -v names the tests that passed; their beginnings are left out.
tested() { "$@" | grep --line-buffered -v '^=== '; }
# Beside an etcd, for the examples.
step_go() { tested scripts/with-etcd.sh scripts/go.sh test -v -race -count=1 ./...; }
# With the shared library, as `make lib` left it, and with the tag that poisons released batches. Go keeps what pkg-config said
# once, also of another place: the flag makes this place a build of its own.
step_go-tags() {
    PKG_CONFIG_PATH=$root/target/watchcore LD_LIBRARY_PATH=$root/target/watchcore CGO_CPPFLAGS=-DWATCHCORE_OF_TARGET \
        scripts/go.sh test -count=1 -tags watchcore_system ./... && tested scripts/go.sh test -v -count=1 -tags debug ./...
}
# A module of its own, which alone needs Kubernetes' modules: go gets them from its proxy.
step_go-kubernetes() { tested scripts/go.sh -C kubernetes test -v -race -count=1 ./...; }
# Real clients against watchcore serve, and the comparison with Kubernetes' API server.
step_http-tests() { tested scripts/http-tests.sh -v ./...; }
# Programs of strangers, built outside of the tree as the documentation says; the names begin with the group.
step_outside() {
    local group names=()
    for group in rust c go; do ! wants $group || names+=("$group*"); done
    [ ${#names[@]} -eq 0 ] || tests/outside/run.sh "${names[@]}"
}

# ---- running them ----------------------------------------------------------

# wants GROUP...: whether one of them is asked for.
wants() {
    local one
    for one in "$@"; do [[ " $WATCHCORE_TEST_GROUPS " != *" $one "* ]] || return 0; done
    return 1
}

# One step in its own process, so that it can have a time limit.
if [ "${1:-}" = --step ]; then
    # Asked for alone, it looks at all of them.
    : "${WATCHCORE_TEST_GROUPS:=rust loom c go}"
    "step_$2"
    exit
fi

# Read whole before it runs: the file may change meanwhile.
{
for group in "$@"; do
    [[ " rust loom c go " == *" $group "* ]] || { echo "test.sh: unknown group '$group'; known: rust loom c go" >&2; exit 2; }
done
export WATCHCORE_TEST_GROUPS="${*:-rust loom c go}"

limit=${WATCHCORE_STEP_TIMEOUT:-2400}
mkdir -p "$logs"
rm -f "$logs"/*.log
passed=0 failed=0 summary=
running=

stop() {
    [ -z "$running" ] || kill -TERM "$running" 2>/dev/null
    printf '\ntest.sh: interrupted\n' >&2
    exit "$1"
}
trap 'stop 130' INT
trap 'stop 143' TERM

row() { printf '%-14s %-24s %8s' "$@"; }
# step NAME: runs step_NAME.
step() {
    local name=$1 start=$SECONDS log=$logs/$1.log status result left=
    printf '\n==== %s ====\n' "$name"
    : >"$log"
    # timeout makes its own process group, led by itself.
    timeout --kill-after=10 "$limit" "$root/scripts/test.sh" --step "$name" </dev/null >"$log" 2>&1 &
    running=$!
    tail --pid=$running -s 0.2 -n +1 -f "$log" &
    wait "$running"
    status=$?
    # What a failed step left behind would hold the machine.
    if kill -TERM -- "-$running" 2>/dev/null; then
        left="test.sh: step $name left processes behind; they were ended"
        sleep 1
        kill -KILL -- "-$running" 2>/dev/null
    fi
    running=
    # tail has shown everything, and has seen the end.
    wait
    [ -z "$left" ] || tee -a "$log" <<<"$left"
    case $status in
    0) result=passed ;;
    124 | 137) result="FAILED (time)"; echo "test.sh: step $name was ended after $limit s" ;;
    *) result="FAILED ($status)" ;;
    esac
    if [ $status = 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
    summary+=$(row "$name" "$result" $((SECONDS - start)))$'\n'
    return $status
}

step tools
if wants rust c go && step etcd; then
    WATCHCORE_ETCD=$(scripts/etcd.sh 2>/dev/null)
    export WATCHCORE_ETCD
fi
steps=()
! wants rust || steps+=(fmt storeys operations rows names clippy no-features msrv rust doc pipe address)
! wants loom || steps+=(loom toolkit-loom)
! wants c go || steps+=(lib fake-etcd)
! wants c || steps+=(lib-test c python)
! wants go || steps+=(gofmt vet go go-tags go-kubernetes http-tests)
! wants rust c go || steps+=(outside)
for name in "${steps[@]}"; do
    if step "$name" && [ "$name" = fake-etcd ]; then
        WATCHCORE_FAKE_ETCD=$(scripts/fake-etcd.sh 2>/dev/null)
        export WATCHCORE_FAKE_ETCD
    fi
done

printf '\n==== summary ====\n%s\n%s%s\n' "$(row step result seconds)" "$summary" "$(row all "" $SECONDS)"
printf '%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" -eq 0 ]
exit
}
