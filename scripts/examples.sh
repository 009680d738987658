#!/usr/bin/env bash
# What is public is documented, and every public type of Rust has an example: fails and names the types whose documentation
# has no block of code, and what is hidden from the documentation beside two modules: `raw`, for this repository alone, and
# `lines`, for the command line alone.
set -uo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

wrong=0
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
    END { exit bad }' || wrong=1
git ls-files '*.rs' | xargs awk '
    FNR == 1 { hidden = 0 }
    /doc\(hidden\)/ { hidden = FNR }
    hidden && FNR == hidden + 1 && !/^pub mod (raw|lines);$/ { print FILENAME ":" FNR ": hidden from the documentation"; bad = 1 }
    END { exit bad }' || wrong=1
exit $wrong
