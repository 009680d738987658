# For the `run` of a program of tests/outside, which sources it:
#
#   root=$1
#   . "$root/tests/outside/lib.sh"
#   check 'it builds' cargo build
#   check 'it says hello' prints 'hello' ./program
#   summary

set -uo pipefail
checks_passed=0 checks_failed=0
checks_log=$PWD/.checks.log

# check NAME COMMAND...: one line, and what the command said if it failed. The command has a shell of its own.
check() {
    local name=$1
    shift
    if ("$@") >"$checks_log" 2>&1 </dev/null; then
        checks_passed=$((checks_passed + 1))
        printf 'ok     %s\n' "$name"
    else
        checks_failed=$((checks_failed + 1))
        printf 'FAILED %s: %s\n' "$name" "$*"
        tail -n 60 "$checks_log"
        return 1
    fi
}

# must NAME COMMAND...: as check, and nothing after it makes sense if it fails.
must() { check "$@" || summary; }

# enter DIRECTORY: must, for cd.
enter() {
    cd -- "$1" && return
    checks_failed=$((checks_failed + 1))
    summary
}

# prints LINE COMMAND...: the command ends with status 0 and has printed that line.
prints() {
    local line=$1 output
    shift
    output=$("$@") || { printf '%s\n' "$output"; return 1; }
    printf '%s\n' "$output"
    grep -qxF -- "$line" <<<"$output"
}

# until_printed LINE COMMAND...: the command runs on; it is ended as soon as it has printed that line.
until_printed() {
    local line=$1 output command found=1
    shift
    output=$checks_log.command
    "$@" >"$output" 2>&1 </dev/null &
    command=$!
    for _ in {1..1200}; do
        if grep -qxF -- "$line" "$output"; then
            found=0
            break
        fi
        kill -0 "$command" 2>/dev/null || break
        sleep 0.05
    done
    # It may have ended between the two looks.
    grep -qxF -- "$line" "$output" && found=0
    kill -KILL "$command" 2>/dev/null
    wait "$command" 2>/dev/null
    cat "$output"
    rm -f -- "$output"
    return $found
}

# snippet LANGUAGE NUMBER: that block of code of README.md.
snippet() {
    awk -v fence="\`\`\`$1" -v number="$2" '
        /^```$/ { inside = 0 }
        inside && found == number { print; lines++ }
        $0 == fence { inside = 1; found++ }
        END { exit lines == 0 }' "$root/README.md" || { echo "README.md has no block $2 of $1" >&2; return 1; }
}

# packages DIRECTORY CRATE...: what a registry would have of these crates, unpacked, each below the name of its package.
packages() {
    local directory=$1 crate archive arguments=()
    shift
    for crate in "$@"; do arguments+=(-p "$crate"); done
    rm -rf -- "$OUTSIDE_BUILD/packages" && mkdir -p -- "$directory" &&
        cargo package --manifest-path "$root/Cargo.toml" --target-dir "$OUTSIDE_BUILD/packages" --no-verify --allow-dirty \
            "${arguments[@]}" || return 1
    for archive in "$OUTSIDE_BUILD"/packages/package/*.crate; do
        crate=$(basename -- "$archive" .crate)
        # As of now: cargo writes one old date for all files, and would take what an earlier run built of others.
        tar -xzmf "$archive" -C "$directory" && mv -- "$directory/$crate" "$directory/${crate%-[0-9]*}" || return 1
    done
}

# readme_line PATTERN: the command between backticks of README.md that matches.
readme_line() { grep -o '`[^`]*`' "$root/README.md" | tr -d '`' | grep -m 1 -- "$1"; }

# The last line of `run`: the sum.
summary() {
    printf '%d passed, %d failed\n' "$checks_passed" "$checks_failed"
    [ $checks_failed = 0 ]
    exit
}
