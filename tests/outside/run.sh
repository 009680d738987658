#!/usr/bin/env bash
# Strangers' programs: each directory beside this script that has a `run` is
# copied to a place outside of the repository, and is built and run there as
# the documentation tells its users.
#
#   tests/outside/run.sh               all of them
#   tests/outside/run.sh rust 'go-*'   those whose names match
#
# A name begins with its group of scripts/test.sh: rust, c, go. `run` is called
# in the copy, with the repository's path as its argument; it passes if it ends
# with status 0 and has printed "N passed, 0 failed" as its last line. What
# lib.sh has makes that line. Of the environment, nothing reaches it that tells
# where this repository or a library of it is.
#
# OUTSIDE_BUILD names, for `run`, a directory of its group that stays: for what the
# next build can take up again (CARGO_TARGET_DIR, never what is tested).
#
# WATCHCORE_OUTSIDE_KEEP=1   leaves the copies of what failed
# WATCHCORE_OUTSIDE_TIMEOUT  seconds a program may take (default 1800)
set -uo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
root=$(cd -- "$here/../.." && pwd -P)
keep=${WATCHCORE_OUTSIDE_KEEP:-}
bound=${WATCHCORE_OUTSIDE_TIMEOUT:-1800}

programs=()
[ $# -gt 0 ] || set -- '*'
for pattern in "$@"; do
    found=no
    for directory in "$here"/*/; do
        name=$(basename -- "$directory")
        # shellcheck disable=SC2053
        if [ -x "$directory/run" ] && [[ $name == $pattern ]]; then
            programs+=("$name")
            found=yes
        fi
    done
    [ $found = yes ] || { echo "run.sh: no program in tests/outside is named $pattern" >&2; exit 2; }
done

copies=$(mktemp -d)
copies=$(cd -- "$copies" && pwd -P)
case $copies/ in
"$root"/*) echo "run.sh: $copies is inside of the repository: set TMPDIR" >&2; rmdir -- "$copies"; exit 2 ;;
esac
running=
finish() {
    [ -z "$running" ] || kill -TERM "$running" 2>/dev/null
    [ -n "$keep" ] || rm -rf -- "$copies"
    rmdir -- "$copies" 2>/dev/null
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# What a stranger's shell does not have.
while IFS= read -r name; do
    case $name in
    CARGO_HOME | CARGO_NET_* | CARGO_HTTP_* | CARGO_REGISTRY_* | CARGO_REGISTRIES_* | CARGO_SOURCE_* | WATCHCORE_ETCD) ;;
    CARGO | CARGO_* | RUSTC | RUSTC_* | RUSTFLAGS | RUSTDOC* | PROTOC | PROTOC_INCLUDE | WATCHCORE_* | \
        MAKEFLAGS | MFLAGS | MAKELEVEL | PKG_CONFIG_* | LD_LIBRARY_PATH | LIBRARY_PATH | CPATH | C_INCLUDE_PATH | \
        CFLAGS | CPPFLAGS | LDFLAGS | CGO_* | GOWORK | NO_BUILD)
        unset "$name"
        ;;
    esac
done < <(compgen -e)
# Each run has paths of its own: what cargo keeps for the next build of a path is of no use.
export CARGO_INCREMENTAL=0
# Nobody debugs these programs.
export CARGO_PROFILE_DEV_DEBUG=false

passed=() failed=()
for name in "${programs[@]}"; do
    printf '== outside/%s\n' "$name"
    cp -R -- "$here/$name" "$copies/$name"
    mkdir -p -- "$root/target/outside/${name%%-*}"
    began=$SECONDS
    exec {output}> >(exec tee "$copies/$name.log")
    tee=$!
    # In its own process group, led by timeout: what it leaves behind ends with it.
    (cd -- "$copies/$name" && OUTSIDE_BUILD=$root/target/outside/${name%%-*} \
        exec timeout --kill-after=10 "$bound" ./run "$root") </dev/null >&"$output" 2>&1 {output}>&- &
    running=$!
    wait "$running"
    status=$?
    kill -KILL -- "-$running" 2>/dev/null
    running=
    # Nobody writes to it any more: its file ends with what the program said last.
    exec {output}>&-
    wait "$tee"
    last=$(grep -v '^[[:space:]]*$' "$copies/$name.log" | tail -n 1)
    if [ $status = 0 ] && [[ $last =~ ^[1-9][0-9]*\ passed,\ 0\ failed$ ]]; then
        passed+=("$name")
        printf 'ok     outside/%s: %s, %d s\n' "$name" "$last" $((SECONDS - began))
        rm -rf -- "${copies:?}/$name"
    else
        failed+=("$name")
        case $status in
        124 | 137) why="ended after $bound s" ;;
        0) why="no sum of its own" ;;
        *) why="status $status" ;;
        esac
        printf 'FAILED outside/%s: %s, %d s\n' "$name" "$why" $((SECONDS - began))
        [ -z "$keep" ] || echo "       kept in $copies/$name"
    fi
    rm -f -- "$copies/$name.log"
done

echo "outside: ${#passed[@]} passed, ${#failed[@]} failed${failed[*]:+: ${failed[*]}}"
[ ${#failed[@]} -eq 0 ]
