#!/usr/bin/env bash
# The binary interface of the header, compared with what was decided: functions
# and structs with abi-N.xml, constants with abi-N.txt. What is gone or changed
# there breaks programs compiled before; what is new waits to be decided. Both fail.
#
#   ffi-tests/abi.sh          compares; 77 where abidiff is not installed
#   ffi-tests/abi.sh bless    writes both anew, for a change that is meant
#
# The shared library carries no types of C, so a stand-in with the same
# functions and empty bodies is compiled from the header with full debug
# information. That the library exports the header's functions is tested apart.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")"
header=../include/watchcore.h
compiler=${CC:-cc}

for tool in abidiff abidw; do
    command -v $tool >/dev/null || { echo "not compared: $tool is missing: install libabigail (Debian: apt-get install abigail-tools)"; exit 77; }
done
[ "$(uname -sm)" = 'Linux x86_64' ] || { echo "not compared: the baseline is that of Linux on x86_64"; exit 77; }
tmp=$(mktemp -d)
trap 'rm -rf -- "$tmp"' EXIT
{
    printf '#define WATCHCORE_NO_INLINE\n#include "watchcore.h"\n'
    "$compiler" -E -P -DWATCHCORE_NO_INLINE "$header" | tr '\n' ' ' | tr ';' '\n' |
        sed -n '/typedef/d; /[^a-z_]watchcore_[a-z_]*(/ s/$/ { __builtin_trap(); }/p'
} >"$tmp/stand-in.c"
"$compiler" -std=c11 -g -O0 -w -fPIC -shared -I../include "$tmp/stand-in.c" -o "$tmp/libwatchcore.so"
nm -D --defined-only "$tmp/libwatchcore.so" | awk '$3 ~ /^watchcore_/ { print $3 }' | sort >"$tmp/names"
[ "$(wc -l <"$tmp/names")" -ge 70 ] || { echo "only $(wc -l <"$tmp/names") functions were found in $header"; exit 1; }

abi=$(sed -n 's/^ABI := //p' ../Makefile)
baseline=abi-$abi.xml constants=abi-$abi.txt
# Numbers only: an initialiser grows with its struct, and the version with each release.
"$compiler" -E -dM "$header" |
    awk '/^#define WATCHCORE_/ && !/^#define WATCHCORE_(VERSION|NO_)/ && NF == 3 && $3 ~ /^[-(0-9]/ { print $2, $3 }' |
    LC_ALL=C sort >"$tmp/constants"
[ "$(wc -l <"$tmp/constants")" -ge 50 ] || { echo "only $(wc -l <"$tmp/constants") constants were found in $header"; exit 1; }
if [ "${1:-}" = bless ]; then
    abidw --no-corpus-path --no-comp-dir-path --short-locs --no-show-locs --out-file "$baseline" "$tmp/libwatchcore.so"
    cp -- "$tmp/constants" "$constants"
    exit
fi
status=0 wrong=0
abidiff "$baseline" "$tmp/libwatchcore.so" || status=$?
# Bits: 1 and 2 an error, 4 a change, 8 one that breaks.
if [ $((status & 3)) != 0 ]; then
    echo "abidiff could not compare ($status)"
    exit 1
elif [ $((status & 8)) != 0 ]; then
    echo "programs compiled before would break: see above"
    wrong=1
elif [ $status != 0 ]; then
    echo "the header has what ffi-tests/$baseline has not: see above"
    wrong=1
fi
if ! diff "$constants" "$tmp/constants" >"$tmp/changes"; then
    if grep '^<' "$tmp/changes"; then echo "these constants are gone or are others: programs compiled before would break"; fi
    if grep '^>' "$tmp/changes"; then echo "these constants are not in ffi-tests/$constants"; fi
    wrong=1
fi
if [ $wrong = 0 ]; then
    echo "the interface is that of ffi-tests/$baseline and $constants: $(wc -l <"$tmp/names") functions, $(wc -l <"$constants") constants"
else
    echo "If that is meant: make api-bless, and say it in CHANGELOG.md"
fi
exit $wrong
