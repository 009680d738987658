#!/usr/bin/env bash
# Every public type of Rust has an example: fails and names those whose
# documentation has no block of code. Types of the doc(hidden) modules
# `raw`, for this repository alone, and `lines`, for the command line alone, are left out.
set -uo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

find src watchcore-etcd/src watchcore-toolkit/src watchcore-http/src -name '*.rs' ! -name '*tests.rs' ! -path '*/loom*' ! -path src/raw.rs ! -path watchcore-http/src/lines.rs | sort | xargs awk '
    FNR == 1 { block = 0 }
    /^ *\/\/\// { if (/```/) block = 1; next }
    # Attributes stand between the documentation and its type.
    /^ *#\[/ || /^ *\/\/ / { next }
    /^ *pub (struct|enum|trait|union) / {
        name = $3; sub(/[^A-Za-z0-9_].*/, "", name)
        if (!block && name != "RawBatch") { printf "%s:%d: %s has no example\n", FILENAME, FNR, name; bad = 1 }
    }
    { block = 0 }
    END { exit bad }'
