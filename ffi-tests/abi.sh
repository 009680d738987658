#!/usr/bin/env bash
# The binary interface of the header, compared with the baseline abi-N.xml: a
# change that would break a program compiled before fails.
#
#   ffi-tests/abi.sh          compares; 77 where abidiff is not installed
#   ffi-tests/abi.sh bless    writes the baseline anew, for an intended change
#
# The shared library carries no types of C, so a stand-in with the same
# functions and empty bodies is compiled from the header with full debug
# information. That the library exports the header's functions is tested apart.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")"
header=../include/watchcore.h
compiler=${CC:-cc}

for tool in abidiff abidw; do
    command -v $tool >/dev/null || { echo "$tool is missing: install libabigail (Debian: abigail-tools)"; exit 77; }
done
[ "$(uname -sm)" = 'Linux x86_64' ] || { echo "the baseline is that of Linux on x86_64"; exit 77; }
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
baseline=abi-$abi.xml
if [ "${1:-}" = bless ]; then
    abidw --no-corpus-path --no-comp-dir-path --short-locs --no-show-locs --out-file "$baseline" "$tmp/libwatchcore.so"
    exit
fi
# What is new at the end is no break: functions and constants may be added.
status=0
abidiff --no-added-syms "$baseline" "$tmp/libwatchcore.so" || status=$?
if [ $status != 0 ]; then
    echo "the header is not what ffi-tests/$baseline says. If that is meant: ffi-tests/abi.sh bless"
    exit 1
fi
