#!/usr/bin/env bash
# example.sh HEADER N: the N-th program of the header, as it stands there in comments; each begins with an include.
set -euo pipefail
awk -v number="$2" '
    /^\/\/     #include/ && !inside { inside = 1; found++ }
    inside && /^\/\/ [^ ]/ { inside = 0 }
    inside && found == number { sub("^// ? ? ? ? ?", ""); print; lines++ }
    END { exit lines == 0 }' "$1"
