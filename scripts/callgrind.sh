#!/usr/bin/env bash
# Instructions of the writer an event, with one armed subscription and with 10,000 whose filters
# never match, scanning and with a bucket each: repeatable also on a noisy machine.
set -euo pipefail
cd "$(dirname "$0")/.."

command -v valgrind >/dev/null || { echo "valgrind is missing: install the package valgrind" >&2; exit 1; }
cargo build --quiet --profile bench --example armed
program=$(cargo build --quiet --profile bench --example armed --message-format json |
    sed -n 's/.*"executable":"\([^"]*armed[^"]*\)".*/\1/p' | tail -n 1)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# Enough of them that what the allocator does now and then is spread.
events=${EVENTS:-4000}
for how in "0" "1" "10000" "0 indexed" "1 indexed" "10000 indexed"; do
    read -r subscriptions index <<<"$how"
    valgrind --tool=callgrind --callgrind-out-file="$scratch/out" --toggle-collect='armed::count_this*' \
        "$program" "$subscriptions" "$events" $index >/dev/null 2>"$scratch/log" || { cat "$scratch/log" >&2; exit 1; }
    total=$(sed -n 's/^summary: *//p;s/^totals: *//p' "$scratch/out" | tail -n 1)
    echo "$how armed: $((total / events)) instructions an event"
done
