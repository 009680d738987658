#!/usr/bin/env bash
# Makes the small static library: one object, only watchcore_* symbols.
#
#   scripts/static-archive.sh DIRECTORY OUT.a [OBJECT]
#
# DIRECTORY holds cargo's libwatchcore.a and libwatchcore.so. OBJECT is where the one object goes by itself, which is what Go
# links. The names to keep are what the shared library exports. Unused code and debug information go, and every other name
# becomes local, so that two Rust libraries can live in one C program. OUT and OBJECT are replaced only when their content
# changes. LD and NM name the tools for another machine than this, UNWINDER an archive to take in where libgcc is none for this C
# library. KEEP_DEBUG=1 keeps the line tables, for valgrind and the sanitizers.
#
# OUT keeps a section per function, so that a C program's linker can drop what the program does not call (-Wl,--gc-sections).
# Go's package calls everything: OBJECT has the sections merged, and is smaller by their 22,000 names and headers.
set -euo pipefail

say() { printf 'static-archive.sh: %s\n' "$*" >&2; }
fail() { say "$@"; exit 1; }

[ $# -eq 2 ] || [ $# -eq 3 ] || { say "usage: static-archive.sh DIRECTORY OUT.a [OBJECT]"; exit 2; }
directory=$1 out=$2 object=${3:-} LD=${LD:-ld} NM=${NM:-nm}
for tool in "$NM" "$LD" ar awk; do command -v "$tool" >/dev/null || fail "$tool is missing: install binutils (and awk)"; done
for file in libwatchcore.a libwatchcore.so; do
    [ -f "$directory/$file" ] || fail "$directory/$file is missing: run 'make lib' (the crate types staticlib and cdylib are needed)"
done
tmp=$(mktemp -d)
trap 'rm -rf -- "$tmp"' EXIT

# Not from the archive: GNU nm may load an LLVM plug-in there that cannot read the newer bitcode in Rust's objects, and abort.
"$NM" -D --defined-only "$directory/libwatchcore.so" | awk '$3 ~ /^watchcore_/ { print "--undefined=" $3 }' >"$tmp/roots"
[ -s "$tmp/roots" ] || fail "$directory/libwatchcore.so exports no watchcore_* symbol: is it that of watchcore-capi?"
"$LD" -r --gc-sections @"$tmp/roots" -o "$tmp/watchcore.o" --start-group "$directory/libwatchcore.a" ${UNWINDER:+"$UNWINDER"} --end-group

# Candidates for objcopy: rustc's own; what the caller names; LLVM's, newest first; GNU's last, because of that plug-in.
sysroot=$(rustc --print sysroot 2>/dev/null || true)
host=$(rustc -vV 2>/dev/null | sed -n 's/^host: //p' || true)
mapfile -t candidates < <(printf '%s\n' "$sysroot/lib/rustlib/$host/bin/rust-objcopy" ${OBJCOPY:+"$OBJCOPY"}
    compgen -c llvm-objcopy | sort -uVr; echo objcopy)
strip=(--strip-debug)
[ "${KEEP_DEBUG:-}" != 1 ] || strip=()
hide() {
    cp -- "$tmp/watchcore.o" "$tmp/hidden.o"
    # rust-objcopy needs the sysroot's libraries.
    LD_LIBRARY_PATH=$sysroot/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} "$1" --wildcard --keep-global-symbol='watchcore_*' \
        --remove-section=.llvmbc --remove-section=.llvmcmd "${strip[@]}" "$tmp/hidden.o" >"$tmp/log" 2>&1 || return 1
    # Believe the result only.
    "$NM" --defined-only --extern-only "$tmp/hidden.o" 2>>"$tmp/log" |
        awk '$3 ~ /^watchcore_/ { good++ } $3 !~ /^watchcore_/ { bad++ } END { exit !(good && !bad) }'
}
done_with=
for candidate in "${candidates[@]}"; do
    command -v "$candidate" >/dev/null 2>&1 || continue
    if hide "$candidate"; then done_with=${candidate##*/}; break; fi
    say "$candidate did not work: $(head -n 1 "$tmp/log")"
done
if [ -n "$done_with" ]; then
    ar crsD "$tmp/out.a" "$tmp/hidden.o"
else
    say "WARNING: no objcopy that works, so $out is cargo's archive as it is: large, and all its names are global." \
        "Looked for rust-objcopy in ${sysroot:-(rustc is missing)}/lib/rustlib/${host:-HOST}/bin, \$OBJCOPY, llvm-objcopy, objcopy." \
        "Install the Rust toolchain by rustup (it brings rust-objcopy) or LLVM's tools (Debian: llvm)."
    cp -- "$directory/libwatchcore.a" "$tmp/out.a"
    cp -- "$tmp/watchcore.o" "$tmp/hidden.o"
fi

# COMDAT groups cannot outlive their sections. `.init_array.00099` is not named and so keeps its priority.
cat >"$tmp/merge.lds" <<'SCRIPT'
FORCE_GROUP_ALLOCATION
SECTIONS
{
    .text 0 : { *(.text .text.*) }
    .rodata 0 : { *(.rodata .rodata.*) }
    .data.rel.ro 0 : { *(.data.rel.ro .data.rel.ro.*) }
    .data 0 : { *(.data .data.*) }
    .bss 0 : { *(.bss .bss.*) }
    .tdata 0 : { *(.tdata .tdata.*) }
    .tbss 0 : { *(.tbss .tbss.*) }
    .gcc_except_table 0 : { *(.gcc_except_table .gcc_except_table.*) }
}
SCRIPT

# put FILE OUT: in two steps, for the rename is within one file system, so readers see old or new.
put() {
    ! cmp -s "$1" "$2" || return 0
    mkdir -p "$(dirname -- "$2")"
    cp -- "$1" "$2.new.$$"
    mv -- "$2.new.$$" "$2"
}
put "$tmp/out.a" "$out"
if [ -n "$object" ]; then
    "$LD" -r -T "$tmp/merge.lds" "$tmp/hidden.o" -o "$tmp/merged.o"
    put "$tmp/merged.o" "$object"
fi
say "$out: $(wc -c <"$out") bytes, $(wc -l <"$tmp/roots") functions${done_with:+ (by $done_with)}"
