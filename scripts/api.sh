#!/usr/bin/env bash
# The public interface of the crates, compared with what was decided: api/*.txt,
# an item a line. What is gone or changed there breaks programs; what is new waits
# to be decided. Both fail.
#
#   scripts/api.sh          compares; 77 where neither this Rust nor rustup's can
#   scripts/api.sh bless    writes the lists anew, for a change that is meant
#
# rustdoc writes the interface as JSON, whose form goes with the compiler, and
# tools/api reads that of one Rust. Where the machine has a Rust of another form,
# rustup brings that one.
set -euo pipefail
export LC_ALL=C
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
rust=1.95.0
crates=(watchcore watchcore-etcd watchcore-toolkit watchcore-http)
mode=${1:-compare}
case $mode in
compare | bless) ;;
*) echo "usage: scripts/api.sh [bless]" >&2; exit 2 ;;
esac

tools=$PWD/target/tools
new=$tools/lists
mkdir -p "$new" api
env -u RUSTFLAGS -u RUSTDOCFLAGS CARGO_TARGET_DIR="$tools/api" cargo build --quiet --locked --manifest-path tools/api/Cargo.toml
# Only a nightly rustdoc writes JSON, unless it is told otherwise. Cargo, told so, would build every dependency anew.
# shellcheck disable=SC2016
printf '#!/bin/sh\nRUSTC_BOOTSTRAP=1 exec rustdoc "$@"\n' >"$tools/rustdoc-json"
chmod +x "$tools/rustdoc-json"

# lists DIRECTORY [+TOOLCHAIN]: those of all crates into $new. 3 where the form is another.
lists() {
    local directory=$1 crate
    shift
    # But for the form of the output these are the arguments of the step doc: what that has built is taken.
    RUSTDOC=$tools/rustdoc-json RUSTDOCFLAGS="-Z unstable-options --output-format json" \
        cargo "$@" doc --quiet --no-deps --workspace --all-features --target-dir "$directory" || return 1
    for crate in "${crates[@]}"; do
        "$tools/api/debug/api" "$directory/doc/${crate//-/_}.json" >"$new/$crate.txt" || return 3
    done
}

status=0
lists target || status=$?
if [ $status = 3 ]; then
    echo "the JSON of $(rustdoc --version) has another form: asking rustup for Rust $rust"
    if ! command -v rustup >/dev/null || ! { rustup run $rust rustdoc --version >/dev/null 2>&1 ||
        rustup toolchain install $rust --profile minimal --no-self-update; }; then
        echo "not compared: install Rust $rust (rustup toolchain install $rust), or raise public-api in tools/api and bless"
        exit 77
    fi
    status=0
    lists target/api-$rust +$rust || status=$?
fi
[ $status = 0 ] || exit 1

for crate in "${crates[@]}"; do
    # Nothing found would be nothing lost.
    [ "$(wc -l <"$new/$crate.txt")" -ge 50 ] || { echo "only $(wc -l <"$new/$crate.txt") items were found in $crate"; exit 1; }
    if [ "$mode" = bless ]; then
        cp -- "$new/$crate.txt" "api/$crate.txt"
        continue
    fi
    diff <(sort "api/$crate.txt") <(sort "$new/$crate.txt") >"$new/changes" && continue
    status=1
    if grep '^<' "$new/changes"; then echo "$crate: these items are gone or are others: a break for programs"; fi
    if grep '^>' "$new/changes"; then echo "$crate: these items are not in api/$crate.txt"; fi
done
if [ $status = 0 ]; then
    echo "the interface is that of api/: $(cat api/*.txt | wc -l) items"
else
    echo "If that is meant: make api-bless, and say it in CHANGELOG.md"
fi
exit $status
