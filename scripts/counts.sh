#!/usr/bin/env bash
# Instructions, and misses of the first-level data cache and of the last level, of one step of each hot path,
# as callgrind counts them: the same on a busy machine as on an idle one.
#
#   scripts/counts.sh          compares with benches/counts.txt: 1 where a path costs over 5 % more instructions
#   scripts/counts.sh --write  writes that file anew
#   scripts/counts.sh [--write] get park
#                              only these; the rest of the file stays as it is
#
# A comparison takes the least of three runs and the file has the greatest, so what is within 5 % and their spread is not
# seen.
#
# The caches that are simulated are named below, so that the counts are those of no machine. Compilers, C libraries
# and the copying that they choose for a processor differ: the file names those that it was made with, and others
# are not compared.
set -euo pipefail
cd "$(dirname "$0")/.."

file=benches/counts.txt
write=no
if [ "${1:-}" = --write ]; then
    write=yes
    shift
fi
all=(overwrite insert get list initial poll scan park publish)
paths=("${all[@]}")
if [ $# -gt 0 ]; then paths=("$@"); fi
for path in "${paths[@]}"; do
    [[ " ${all[*]} " == *" $path "* ]] || { echo "counts: $path is none of: ${all[*]}" >&2; exit 2; }
done

if ! command -v valgrind >/dev/null; then
    echo "counts: skipped: valgrind is missing (install the package valgrind)"
    exit 0
fi
wide=$(grep -qw avx2 /proc/cpuinfo && echo "with AVX2" || echo "without AVX2")
compiler="$(rustc --version | cut -d' ' -f1,2), $(getconf GNU_LIBC_VERSION 2>/dev/null || uname -s), $(uname -m) $wide, $(valgrind --version)"
if [ $write = yes ] && [ ${#paths[@]} -lt ${#all[@]} ] && ! grep -qxF "# $compiler" "$file"; then
    echo "counts: the rest of $file was made with other programs than these ($compiler): write all of it" >&2
    exit 2
fi
if [ $write = no ] && ! grep -qxF "# $compiler" "$file"; then
    echo "counts: skipped: $file was made with $(sed -n 's/^# \(rustc.*\)/\1/p' "$file"), this is $compiler"
    exit 0
fi

cargo build --quiet --profile bench --example counts
program=$(cargo build --quiet --profile bench --example counts --message-format json |
    sed -n 's/.*"executable":"\([^"]*counts[^"]*\)".*/\1/p' | tail -n 1)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# count PATH TIMES: instructions, L1 misses and last-level misses a step, of one of three runs, compared the least: hashes are
# drawn anew in each, and what other threads do meanwhile differs.
count() {
    local run running=()
    for run in 1 2 3; do
        count_once "$run" "$@" &
        running+=($!)
    done
    for run in "${running[@]}"; do wait "$run" || return 1; done
    # A list that need not be copied where it grows is cheaper, and not in each run: the file has the greatest of three.
    if [ $write = yes ]; then sort -rn "$scratch"/count.?; else sort -n "$scratch"/count.?; fi | head -n 1
}
count_once() {
    local out=$scratch/out.$1 log=$scratch/log.$1
    valgrind --tool=callgrind --callgrind-out-file="$out" --toggle-collect='counts::counted*' \
        --cache-sim=yes --I1=32768,8,64 --D1=32768,8,64 --LL=1048576,16,64 \
        "$program" "$2" "$3" >/dev/null 2>"$log" || { cat "$log" >&2; return 1; }
    # Ir Dr Dw I1mr D1mr D1mw ILmr DLmr DLmw
    sed -n 's/^summary: *//p;s/^totals: *//p' "$out" | tail -n 1 |
        awk -v n="$3" '{ printf "%.0f %.1f %.2f\n", $1 / n, ($5 + $6) / n, ($8 + $9) / n }' >"$scratch/count.$1"
}

{
    echo "# Of one step: instructions, L1 data misses, last-level data misses. By scripts/counts.sh --write."
    echo "# $compiler"
    for path in "${all[@]}"; do
        if [[ " ${paths[*]} " == *" $path "* ]]; then
            counts=$(count "$path" 4096)
            echo "$path $counts"
        elif [ $write = yes ]; then
            grep "^$path " "$file"
        fi
    done
} >"$scratch/counts"

if [ $write = yes ]; then
    cp "$scratch/counts" "$file"
    cat "$file"
    exit 0
fi
failed=0
while read -r path now l1 ll; do
    read -r _ before l1_before ll_before < <(grep "^$path " "$file" || echo "$path 0 0 0")
    line="$path: $now instructions ($before), $l1 L1 misses ($l1_before), $ll last-level misses ($ll_before)"
    if [ "$before" -eq 0 ]; then
        line+="; not in $file"
        failed=1
    elif [ $((now * 100)) -gt $((before * 105)) ]; then
        line+="; over 5 % more"
        failed=1
    elif [ $((now * 105)) -lt $((before * 100)) ]; then
        line+="; over 5 % less: write it with scripts/counts.sh --write"
    fi
    echo "$line"
done < <(grep -v '^#' "$scratch/counts")
exit $failed
