#!/usr/bin/env bash
# Proves that the tests notice: applies the patches of tests/mutants one by one
# to a copy of the tree and expects of each that its test fails.
#
#   scripts/mutants.sh [NAME...]
#   scripts/mutants.sh --apply   only whether each applies to the tree, and whether its test or row is there
#
# The first line of a patch names the row of docs/CONTRACT.md, docs/HTTP.md or docs/TOOLKIT.md that it breaks and
# the command that must fail, and, where a test may hang instead, says so:
#
#   # row 1.3; cargo test --no-default-features --test contract guarantees::x
#   # row HW-13; cargo test -p watchcore-http --test http watch::x
#   # row SI-09; cargo test -p watchcore-toolkit --test toolkit indexes::x
#   # row 6.2; may hang; scripts/go.sh test -run TestX ./...
#
# Commands: cargo test ..., scripts/go.sh test ..., make -C ffi-tests run-PROGRAM.
# Each must pass on the copy as it is. Then, with the patch, everything must
# build, and the command must run a test that fails. The last line counts; the
# exit status is 0 if all were caught. Output goes to target/mutants/NAME.log.
# WATCHCORE_MUTANT_TIMEOUT   seconds a command may take (default 300)
set -uo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
cd -- "$root"
unset MAKEFLAGS MFLAGS MAKELEVEL CARGO_TARGET_DIR CARGO_BUILD_TARGET
work=$root/target/mutants
tree=$work/tree
limit=${WATCHCORE_MUTANT_TIMEOUT:-300}
# The library for C and Go is built for a quick build, not for a quick library.
export CARGO_INCREMENTAL=1 CARGO_PROFILE_DIST_LTO=off CARGO_PROFILE_DIST_OPT_LEVEL=1 CARGO_PROFILE_DIST_CODEGEN_UNITS=64
export CARGO_TERM_COLOR=never RUST_BACKTRACE=0 PROPTEST_FAILURE_PERSISTENCE=off
# The copy is no repository: git must not take it for a part of this one.
export GIT_CEILING_DIRECTORIES=$work

if [ "${1-}" = --apply ]; then
    status=0
    known=$(git grep -hoE '(fn|func|mod) [A-Za-z0-9_]+' '*.rs' '*.go' | sed 's/.* //')
    for patch in tests/mutants/*.patch; do
        git apply --check -p1 "$patch" || { echo "$patch does not apply"; status=1; }
        # The last words of its command that look like a name: a row's id, a function, the path of one, or a C program.
        named=$(head -n 1 "$patch" | grep -oE "(TestRows/|rows |ROW=)[0-9A-Za-z.-]+|[A-Za-z_][A-Za-z0-9_]*[$']*( \.(/[a-z/]+)?)?$|run-[a-z]+" | head -n 1 | tr -d "$' ")
        case $named in
        TestRows/* | rows* | ROW=*) named=${named#TestRows/} named=${named#rows} && compgen -G "contract/*/${named#ROW=}*.txt" ;;
        run-*) compgen -G "ffi-tests/${named#run-}.c*" ;;
        # Loom's models get the prefix of their names from a macro.
        *) named=${named%.*} && grep -q "^${named#loom_}" <<<"$known" ;;
        esac >/dev/null || { echo "$patch names a test that is not there: $named"; status=1; }
    done
    exit $status
fi

names=("$@")
if [ $# -eq 0 ]; then
    for file in tests/mutants/*.patch; do names+=("$(basename "$file" .patch)"); done
fi
for name in "${names[@]}"; do
    [ -f "tests/mutants/$name.patch" ] || { echo "mutants.sh: there is no tests/mutants/$name.patch" >&2; exit 2; }
done

caught=0 survived=0 broken=0
good() { caught=$((caught + 1)); printf 'caught         %s\n' "$1"; }
lives() { survived=$((survived + 1)); printf 'SURVIVED       %s: %s\n' "$1" "$2"; }
wrong() { broken=$((broken + 1)); printf '%-14s %s: %s\n' "$1" "$2" "$3"; }

# What the first line of a patch says.
head_of() { head -n 1 "$root/tests/mutants/$1.patch"; }
command_of() { head_of "$1" | sed -n 's/^# row [A-Z0-9.-]*; \(may hang; \)\{0,1\}//p'; }
may_hang() { head_of "$1" | grep -q '^# row [A-Z0-9.-]*; may hang; '; }

# The library for C and Go, where something that it is made of is newer.
library='if [ ! -e target/watchcore/libwatchcore.a ] || [ ! -e "$(scripts/go-dist.sh --object)" ] ||
    [ -n "$(find src watchcore-capi watchcore-etcd include Cargo.toml -newer target/watchcore/libwatchcore.a -print -quit)" ]; then make lib; fi'

# The same command, up to the point where the tests would run.
build_of() {
    case $1 in
    *'cargo test '*) printf '%s' "${1/cargo test /cargo test --no-run }" ;;
    # go test builds what it runs, and says apart what it could not build.
    'scripts/go.sh test '*) printf '%s' "$library" ;;
    'make -C ffi-tests run-'*) printf '%s && make -C ffi-tests build-%s' "$library" "${1#make -C ffi-tests run-}" ;;
    *) return 1 ;;
    esac
}

# bounded SECONDS COMMAND: in the copy, in a process group that ends with it.
child=
bounded() {
    local status
    (cd -- "$tree" && exec timeout --kill-after=5 "$1" bash -c "$2") </dev/null &
    child=$!
    wait "$child"
    status=$?
    child=
    return "$status"
}
trap '[ -z "$child" ] || kill -TERM "$child" 2>/dev/null; exit 130' INT
trap '[ -z "$child" ] || kill -TERM "$child" 2>/dev/null; exit 143' TERM

# Did a test fail, in the words of its runner, or was its process ended by a signal?
test_failed() {
    grep -qE '^test .* \.\.\. FAILED|^ *--- FAIL: |^FAILED +(test_|[0-9])|\(signal: [0-9]+|^(fatal error|panic|SIG[A-Z]+): |core dumped|^make: .* Error 13[24569]$' "$1"
}

# The tree as it is, with what is not committed; new times, so that everything of the crate is built anew.
mkdir -p "$tree"
find "$tree" -mindepth 1 -maxdepth 1 ! -name target -exec rm -rf {} +
git ls-files -z --cached --others --exclude-standard |
    while IFS= read -r -d '' file; do [ ! -e "$file" ] || printf '%s\0' "$file"; done |
    tar --null -T - -cf - | tar -C "$tree" -xmf - || exit 2
etcd=${WATCHCORE_ETCD:-$(scripts/etcd.sh)} || exit 2
export WATCHCORE_ETCD=$etcd

# Every command passes without a patch, or its failure would say nothing.
declare -A sound=()
for name in "${names[@]}"; do
    command=$(command_of "$name")
    [ -n "$command" ] && [ -z "${sound[$command]:-}" ] || continue
    if ! build=$(build_of "$command"); then
        sound[$command]="its command is none of those that are known: $command"
    elif ! bounded 3000 "$build" >"$work/clean.log" 2>&1; then
        tail -n 20 "$work/clean.log"
        sound[$command]="does not build without the patch: $build"
    elif ! bounded "$limit" "$command" >"$work/clean.log" 2>&1; then
        tail -n 20 "$work/clean.log"
        sound[$command]="fails without the patch: $command"
    elif ! grep -qE '^test .* \.\.\. ok|^ok ' "$work/clean.log" || grep -q '\[no tests to run\]' "$work/clean.log"; then
        sound[$command]="runs no test: $command"
    else
        sound[$command]=yes
    fi
done

for name in "${names[@]}"; do
    patch=$root/tests/mutants/$name.patch log=$work/$name.log
    command=$(command_of "$name")
    if [ -z "$command" ]; then
        wrong 'BROKEN PATCH' "$name" "its first line is not '# row N.N; COMMAND'"
        continue
    fi
    if [ "${sound[$command]}" != yes ]; then
        wrong 'BROKEN TEST' "$name" "${sound[$command]}"
        continue
    fi
    if ! (cd -- "$tree" && git apply -p1 "$patch") 2>"$log"; then
        wrong 'BROKEN PATCH' "$name" "does not apply any more: $(head -n 1 "$log")"
        continue
    fi
    if ! bounded 3000 "$(build_of "$command")" >"$log" 2>&1; then
        wrong 'BROKEN BUILD' "$name" "does not build, see target/mutants/$name.log"
    else
        bounded "$limit" "$command" >"$log" 2>&1
        status=$?
        # A C program has a bound of its own, which make tells.
        if [ $status = 124 ] || [ $status = 137 ] || grep -qE '^make: .* Error (124|137)$' "$log"; then
            if may_hang "$name"; then good "$name"; else wrong 'BROKEN TEST' "$name" "hangs for $limit s, and its first line does not say 'may hang'"; fi
        elif [ $status = 0 ]; then
            lives "$name" "$command"
        elif test_failed "$log"; then
            good "$name"
        else
            wrong 'BROKEN TEST' "$name" "ended with $status, but no test failed; see target/mutants/$name.log"
        fi
    fi
    (cd -- "$tree" && git apply -p1 -R "$patch") || { echo "mutants.sh: $name cannot be taken back" >&2; exit 2; }
done

printf '%d caught, %d survived, %d broken\n' "$caught" "$survived" "$broken"
[ $((survived + broken)) -eq 0 ]
