#!/usr/bin/env bash
# Runs what the Makefile built and adds up: "N passed, N failed". Called by it.
set -uo pipefail
out=$1 bound=$2 valgrind=$3 ways=$4 programs=$5 header=$6 lib=$7 lib_test=$8
compilers=$9 c_standards=${10} cxx_compilers=${11} cxx_standards=${12} shared=${13}
passed=0 failed=0
warn=(-Wall -Wextra -Wpedantic -Werror -I"$(dirname "$header")")

good() { passed=$((passed + 1)); printf 'ok     %s\n' "$1"; }
bad() { failed=$((failed + 1)); printf 'FAILED %s\n' "$1"; }
check() { local name=$1; shift; if "$@" >"$out/log" 2>&1; then good "$name"; else bad "$name"; head -n 20 "$out/log"; fi; }

echo '== what the libraries export is what the header declares, in every form of them'
"${compilers%% *}" -E -P -DWATCHCORE_NO_INLINE "$header" | grep -o '\bwatchcore_[a-z_]*(' | tr -d '(' | sort -u >"$out/declared"
exports() { awk '$3 !~ /^watchcore_debug_/ && NF == 3 { print $3 }' | sort -u | diff "$out/declared" -; }
if [ "$(wc -l <"$out/declared")" -lt 70 ]; then bad "only $(wc -l <"$out/declared") functions found in $header"; fi
for directory in "$lib" "$lib_test"; do
    nm -D --defined-only "$directory/libwatchcore.so" >"$out/symbols"
    check "$(basename "$directory"): the shared library" exports <"$out/symbols"
    nm --defined-only --extern-only "$directory/libwatchcore.a" >"$out/symbols" 2>/dev/null
    check "$(basename "$directory"): the static library" exports <"$out/symbols"
done

echo '== the header alone and twice'
for compiler in $compilers; do
    for standard in $c_standards; do
        check "$(basename "$compiler") -std=$standard" "$compiler" -std="$standard" "${warn[@]}" -x c -c unit.c -o "$out/unit.o"
    done
done
for compiler in $cxx_compilers; do
    for standard in $cxx_standards; do
        check "$(basename "$compiler") -std=$standard" "$compiler" -std="$standard" "${warn[@]}" -x c++ -c unit.c -o "$out/unit.o"
    done
done
check 'without inline functions' "${compilers%% *}" -std=c99 "${warn[@]}" -DWATCHCORE_NO_INLINE -c unit.c -o "$out/unit.o"

# $1 name, rest the command: adds the program's own sums; a crash, a hang or a missing sum is one failure.
run() {
    local name=$1 status sums
    shift
    timeout --kill-after=5 "$bound" "$@" >"$out/log" 2>&1
    status=$?
    sums=$(sed -n 's/^[a-z]*: \([0-9]*\) passed, \([0-9]*\) failed$/\1 \2/p' "$out/log")
    if [ "$(wc -w <<<"$sums")" != 2 ]; then
        bad "$name: ended with $status before its sum"
        tail -n 30 "$out/log"
        return
    fi
    passed=$((passed + ${sums% *})) failed=$((failed + ${sums#* }))
    if [ "$status" = 0 ]; then
        printf 'ok     %s: %s tests\n' "$name" "${sums% *}"
    else
        [ "${sums#* }" != 0 ] || failed=$((failed + 1))
        printf 'FAILED %s: ended with %s\n' "$name" "$status"
        grep -v '^ok ' "$out/log" | head -n 40
    fi
}

counts=$out/counts
rm -f "$counts"
for way in $ways; do
    echo "== $way"
    for program in $programs; do
        [ "$way" != shared ] || [[ " $shared " == *" $program "* ]] || continue
        # The rows call what the other programs call, in a quarter of the time that all of C takes.
        [ "$way/$program" != valgrind/rows ] || continue
        built=$out/$way/$program
        [ "$way" != valgrind ] || built=$out/static/$program
        if [ ! -x "$built" ]; then
            bad "$way/$program was not built"
            continue
        fi
        beside=()
        case $program in
        # An etcd for each: one compacts it, and others want its history from the beginning.
        feeder) beside=(../scripts/with-etcd.sh) ;;
        wrong)
            if ! fake=$(../scripts/fake-etcd.sh); then bad "$way/$program: no fake etcd"; continue; fi
            beside=(env "WATCHCORE_FAKE_ETCD=$fake")
            ;;
        esac
        case $way in
            counted) WATCHCORE_COUNTS=$counts run "$way/$program" "${beside[@]}" "$built" ;;
            valgrind)
                kinds=definite
                # Nothing may be left, reachable or not, but for what that file names.
                [ "$program" != shutdown ] || kinds=all
                watch=("$valgrind" --quiet --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=$kinds
                    --show-leak-kinds=$kinds --fair-sched=yes --child-silent-after-fork=yes
                    --suppressions=../watchcore-capi/watchcore.supp)
                few=()
                [ "$program" != wrong ] || few=(few)
                run "$way/$program" "${beside[@]}" "${watch[@]}" "$built" "${few[@]}"
                if [ "$program" = shutdown ]; then
                    timeout --kill-after=5 "$bound" "${watch[@]}" "$built" without >"$out/log" 2>&1
                    if [ $? = 9 ] && grep -q 'still reachable' "$out/log"; then
                        good "$way/$program: without the call something is left"
                    else
                        bad "$way/$program: without the call nothing is left"
                    fi
                fi
                ;;
            asan) ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1 run "$way/$program" "${beside[@]}" "$built" ;;
            *) run "$way/$program" "${beside[@]}" "$built" ;;
        esac
    done
done

echo '== every exported function was called, with success, with an error where it can fail, and with no code but its own'
# The fallible ones are those of the header that take a watchcore_error.
if [ -s "$counts" ]; then
    tr '\n' ' ' <"$header" | sed 's/;/;\n/g' | sed -n 's/.*int32_t \(watchcore_[a-z_]*\)(.*watchcore_error \*error);$/\1/p' |
        sort -u >"$out/fallible"
    awk '{ calls[$1] += $2; good[$1] += $3; bad[$1] += $4 } END { for (f in calls) print f, calls[f], good[f], bad[f] }' \
        "$counts" | sort >"$out/summed"
    if [ "$(wc -l <"$out/fallible")" -lt 40 ]; then bad "only $(wc -l <"$out/fallible") fallible functions found in $header"; fi
    while read -r name; do
        grep -q "^$name " "$out/summed" || bad "$name is in the header and not counted"
    done <"$out/declared"
    while read -r name calls successes errors; do
        why=
        [ "$calls" != 0 ] || why="was never called"
        [ -n "$why" ] || [ "$successes" != 0 ] || why="never succeeded"
        [ -n "$why" ] || ! grep -qx "$name" "$out/fallible" || [ "$errors" != 0 ] || why="never failed"
        if [ -n "$why" ]; then bad "$name $why"; else passed=$((passed + 1)); fi
    done <"$out/summed"
    # The codes of a comment, and those that any function may answer, by the head of the header.
    while read -r complaint; do bad "$complaint"; done < <(awk '
        FNR == NR && /^\/\// { comment = comment " " substr($0, 3); next }
        FNR == NR && match($0, /watchcore_[a-z_]+\(/) && !/^typedef/ {
            name = substr($0, RSTART, RLENGTH - 1)
            sub(/.*Codes:/, "", comment)
            gsub(/[^A-Z_]+/, " ", comment)
            listed[name] = comment " PANIC INTERNAL UNSUPPORTED "
            if (comment ~ / NOT_READY /) {
                listed[name] = listed[name] "UNAUTHENTICATED PERMISSION_DENIED UNAVAILABLE RESOURCE_EXHAUSTED INVALID_ARGUMENT CLOSED "
            }
        }
        FNR == NR { comment = ""; next }
        { for (i = 5; i <= NF; i++) if (index(listed[$1], " " $i " ") == 0) answered[$1 " answered " $i ", which its comment does not name"] }
        END { for (each in answered) print each }' "$header" "$counts")
    printf '%s functions, %s of them fallible\n' "$(wc -l <"$out/summed")" "$(wc -l <"$out/fallible")"
else
    bad "no counts: is $lib_test built with the feature debug?"
fi

echo '== the examples print what they say'
# example NAME: what stands below "Prints:" in its head, or the second argument.
example() {
    local expected=${2-} got
    [ -n "$expected" ] || expected=$(sed -n '/^ \* Prints:/,/\*\/$/ s/^ \*     \(.*[^ ]\) *$/\1/p' "../examples/$1.c" | sed 's| *\*/$||')
    if [ -x "$out/$1" ]; then
        got=$(timeout "$bound" "$out/$1" 2>&1)
        if [ -n "$expected" ] && [ "$got" = "$expected" ]; then good "$1"; else bad "$1"; printf '%s\n' "$got"; fi
    else
        bad "$1 was not built"
    fi
}
example follow $'0 BOOKMARK  (that was the state)\n17 ADDED /a = 1\n17 ADDED /b = 2\n18 MODIFIED /a = 3\n18 DELETED /b'
example broadcaster
example informer

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
