#!/usr/bin/env bash
# The test suite: every step, none left out after a failure, and a table at the end. The last line is
# "N passed, N failed", counted in steps. Three lanes of steps run beside each other, so that one compiles while another
# waits. The output of a step is in target/test-logs/STEP.log, and is shown when the step has ended.
#
#   scripts/test.sh                    everything
#   scripts/test.sh rust loom c go     only these groups
#   scripts/test.sh --step NAME        only this step, without a limit and a log
#
# WATCHCORE_STEP_TIMEOUT   seconds a step may take (default 2400)
# WATCHCORE_ETCD           directory of etcd, if not the one scripts/etcd.sh builds
# WATCHCORE_FAKE_ETCD      the fake etcd, if not the one scripts/fake-etcd.sh builds
# WATCHCORE_COMPARISON     1: with the step `comparison`, which else runs where Go has compiled Kubernetes' API server before
# WATCHCORE_MSRV           1: with the step `msrv`, which else runs where rustup has that Rust
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
# docs/OPERATIONS.md names every statistic and every message.
step_operations() { scripts/operations.sh; }
# Before all other tests: the rows, the tables that are printed from contract/, and whether the mutants apply. The packages and
# features are those of `rust`, which takes the builds up.
step_rows() { cargo test --workspace --all-features --test rows && scripts/mutants.sh --apply; }
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
# The documentation's examples, and its links, with the flags of docs.rs, which has a nightly's rustdoc.
step_doc() {
    printf '#!/bin/sh\nRUSTC_BOOTSTRAP=1 exec rustdoc "$@"\n' >target/docs-rs && chmod +x target/docs-rs &&
        cargo test --workspace --all-features --doc &&
        RUSTDOC=$PWD/target/docs-rs RUSTDOCFLAGS="${RUSTDOCFLAGS:-} --cfg docsrs -D warnings" \
            cargo doc --no-deps --workspace --all-features
}

# models CFG ARGUMENT...: the models that cargo test with these arguments runs. Under a cfg every crate is another build, which has
# a directory of its own.
models() {
    local cfg=$1 list
    shift
    export RUSTFLAGS="${RUSTFLAGS:-} --cfg $cfg" LOOM_MAX_PREEMPTIONS=${LOOM_MAX_PREEMPTIONS:-3}
    list=$(cargo test --lib "$@" loom_ -- --list) || return 1
    # A filter that matches nothing would pass.
    grep -q ': test$' <<<"$list" || { echo "no test of that name: $*"; return 1; }
    # More than cores: a few models take most of the time, and begin late in the order of their names.
    cargo test --lib "$@" loom_ -- --test-threads $((2 * $(getconf _NPROCESSORS_ONLN)))
}
step_loom() { models loom --release --no-default-features --target-dir target/loom; }
# Those of the toolkit: a cfg of its own, see watchcore-toolkit/src/sync.rs. They are so short that optimization would take longer.
step_toolkit-loom() { models toolkit_loom -p watchcore-toolkit --target-dir target/toolkit-loom; }

# Wake sets with a pipe, as where there is no eventfd: all tests but the unit tests of what lies below them. A cfg is another build,
# which has a directory of its own.
step_pipe() {
    piped() {
        RUSTFLAGS="${RUSTFLAGS:-} --cfg watchcore_pipe" cargo test --no-default-features --features async --target-dir target/pipe "$@"
    }
    piped --test contract --test stress --test process && piped --lib -- wake:: sys::
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
# tested COMMAND...: -v names the tests that passed; their beginnings are left out.
tested() { "$@" | grep -a --line-buffered -v '^=== '; }
# Beside an etcd, for the examples. All checks of vet are part of each go test here, on what that compiles anyway.
step_go() { tested scripts/with-etcd.sh scripts/go.sh test -vet=all -v -race -count=1 ./...; }
# With the shared library, as `make lib` left it: all tests are linked, and the examples run; the library's code is the same. With
# the tag that poisons released batches: the package, and the informers, which release batches. Go keeps what pkg-config said
# once, also of another place: the flag makes this place a build of its own. The tests of watch have a file that the race detector
# leaves out.
step_go-tags() {
    PKG_CONFIG_PATH=$root/target/watchcore LD_LIBRARY_PATH=$root/target/watchcore CGO_CPPFLAGS=-DWATCHCORE_OF_TARGET \
        tested scripts/go.sh test -vet=off -v -count=1 -tags watchcore_system -run Example . &&
        tested scripts/go.sh test -vet=off -v -count=1 -tags debug . ./informer &&
        scripts/go.sh vet -tags debug . ./watch
}
# A module of its own, which alone needs Kubernetes' modules: go gets them from its proxy.
step_go-kubernetes() { tested scripts/go.sh -C kubernetes test -vet=all -v -race -count=1 ./...; }
# Kubernetes' own suite for the storage of an API server, on a cache. A module of its own, likewise. The checker of `make demo-apiserver` is
# in the example's module; the demonstration itself is not run here, as Go compiles Kubernetes for it.
step_go-apiserver() {
    tested scripts/go.sh -C apiserver test -vet=all -v -race -count=1 ./... &&
        tested scripts/go.sh -C apiserver/examples/kube-apiserver test -vet=all -v -count=1 ./demo/internal/check
}
# Real clients against watchcore serve.
step_http-tests() { tested scripts/http-tests.sh -v; }
# Its answers beside those of Kubernetes' API server, which Go compiles for some minutes.
step_comparison() { tested scripts/http-tests.sh --comparison -v; }
# Programs of strangers, built outside of the tree as the documentation says.
step_outside-rust() { tests/outside/run.sh 'rust*'; }
step_outside-c() { tests/outside/run.sh 'c*'; }
step_outside-go() { tests/outside/run.sh 'go*'; }

# ---- running them ----------------------------------------------------------

# wants GROUP...: whether one of them is asked for.
wants() {
    local one
    for one in "$@"; do [[ " $WATCHCORE_TEST_GROUPS " != *" $one "* ]] || return 0; done
    return 1
}

# One step in its own process, so that it can have a time limit; it writes down the processor time of what it waited for.
if [ "${1:-}" = --step ]; then
    mkdir -p "$logs"
    # Asked for alone, it looks at all of them.
    : "${WATCHCORE_TEST_GROUPS:=rust loom c go}"
    "step_$2"
    status=$?
    times >"$logs/$2.times"
    exit $status
fi

# Read whole before it runs: the file may change meanwhile.
{
for group in "$@"; do
    [[ " rust loom c go " == *" $group "* ]] || { echo "test.sh: unknown group '$group'; known: rust loom c go" >&2; exit 2; }
done
export WATCHCORE_TEST_GROUPS="${*:-rust loom c go}"

limit=${WATCHCORE_STEP_TIMEOUT:-2400}
mkdir -p "$logs"
rm -f "$logs"/*.{log,times}
passed=0 failed=0 summary= reasons=
# By process: "LANE STEP BEGAN".
declare -A running=()

stop() {
    [ ${#running[@]} = 0 ] || kill -TERM "${!running[@]}" 2>/dev/null
    printf '\ntest.sh: interrupted\n' >&2
    exit "$1"
}
trap 'stop 130' INT
trap 'stop 143' TERM

row() { printf '%-14s %-24s %8s %10s' "$@"; }
# begin LANE: starts the next step of a lane, if there is one.
begin() {
    local name
    read -r name "lanes[$1]" <<<"${lanes[$1]}"
    [ -n "$name" ] || return
    printf '==== %s begins\n' "$name"
    # timeout makes its own process group, led by itself.
    timeout --kill-after=10 "$limit" "$root/scripts/test.sh" --step "$name" </dev/null >"$logs/$name.log" 2>&1 &
    running[$!]="$1 $name $SECONDS"
}
# why LOG: what it says of the tests and commands that failed; its last lines, if it names none.
why() {
    local named='^test .* FAILED|panicked at|^ *--- FAIL|^FAIL|^error|: error:|MISSING|^test\.sh: '
    { grep -a -A 1 -E "$named" "$1" || tail -n 5 "$1"; } | tr -d '\0' | grep -a -v '^--$' | head -n 12 | cut -c -200
}
# ended PROCESS STATUS: tells how a step ended, and starts the next one of its lane.
ended() {
    local lane name began result processor
    read -r lane name began <<<"${running[$1]}"
    unset "running[$1]"
    # What a failed step left behind would hold the machine.
    if kill -TERM -- "-$1" 2>/dev/null; then
        echo "test.sh: step $name left processes behind; they were ended" >>"$logs/$name.log"
        sleep 1
        kill -KILL -- "-$1" 2>/dev/null
    fi
    case $2 in
    0) result=passed ;;
    124 | 137) result="FAILED (time)"; echo "test.sh: step $name was ended after $limit s" >>"$logs/$name.log" ;;
    *) result="FAILED ($2)" ;;
    esac
    if [ "$2" = 0 ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        reasons+="$name failed:"$'\n'$(why "$logs/$name.log")$'\n'
    fi
    processor=$(sed -n '2s/[ms]/ /gp' "$logs/$name.times" 2>/dev/null | awk '{ printf "%d", $1 * 60 + $2 + $3 * 60 + $4 }')
    summary+=$(row "$name" "$result" $((SECONDS - began)) "${processor:--}")$'\n'
    printf '\n==== %s: %s, %d s ====\n' "$name" "$result" $((SECONDS - began))
    cat -- "$logs/$name.log"
    if [ "$name" = etcd ] && [ "$2" = 0 ]; then export WATCHCORE_ETCD; WATCHCORE_ETCD=$(scripts/etcd.sh 2>/dev/null); fi
    if [ "$name" = fake-etcd ] && [ "$2" = 0 ]; then
        export WATCHCORE_FAKE_ETCD
        WATCHCORE_FAKE_ETCD=$(scripts/fake-etcd.sh 2>/dev/null)
    fi
    begin "$lane"
}
# run: until all lanes are through.
run() {
    local lane process
    for lane in "${!lanes[@]}"; do begin "$lane"; done
    while [ ${#running[@]} -gt 0 ]; do
        wait -n -p process "${!running[@]}"
        ended "$process" $?
    done
}

lanes=("tools$(! wants rust c go || echo ' etcd')")
run
left_out=()
# optional STEP VARIABLE COMMAND...: `step` is the step where the variable is 1 or the command holds, else it is left out.
optional() {
    step=" $1"
    [ "${!2:-0}" = 1 ] || "${@:3}" >/dev/null 2>&1 || { step= left_out+=("$1 $2"); }
}
step=
! wants go || optional comparison WATCHCORE_COMPARISON scripts/http-tests.sh --compiled
comparison=$step step=
! wants rust || optional msrv WATCHCORE_MSRV rustup run "$(minimum_rust).0" rustc --version
msrv=$step
# Of about the same length. The third begins with the models, which need a core and nothing else: they fill what a link on one core and
# downloads leave. The builds that http-tests takes up are there then.
lanes=("" "" "")
! wants rust || lanes[0]+=" fmt storeys operations rows names clippy no-features rust doc outside-rust"
! wants c go || lanes[1]+=" lib fake-etcd"
! wants c || lanes[1]+=" lib-test c python outside-c"
! wants go || lanes[1]+=" gofmt go go-tags go-kubernetes go-apiserver outside-go"
! wants loom || lanes[2]+=" loom toolkit-loom"
! wants go || lanes[2]+=" http-tests$comparison"
! wants rust || lanes[2]+=" address$msrv pipe"
run

for one in "${left_out[@]}"; do summary+=$(row "${one% *}" "left out" - -)$'\n'; done
printf '\n==== summary ====\n%s\n%s%s\n' "$(row step result seconds processor)" "$summary" "$(row all "" $SECONDS "")"
for one in "${left_out[@]}"; do
    printf '%s was left out: %s=1 make test, or scripts/test.sh --step %s, runs it\n' "${one% *}" "${one#* }" "${one% *}"
done
# Again at the end: of a long output the end is what is kept.
printf '%s%d passed, %d failed\n' "$reasons" "$passed" "$failed"
[ "$failed" -eq 0 ]
exit
}
