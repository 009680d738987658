#!/usr/bin/env bash
# One name, one type: fails and names the places where two types, traits or aliases of one crate have the same name, those of tests
# included. Two that are never compiled together are one: items and modules below a cfg in one file (std's and loom's, with and
# without a feature), and loom_twin.rs, which stands in for another file.
set -uo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

wrong=0
for crate in src watchcore-{toolkit,etcd,http,capi}/src watchcore-cli/src/{cli,demo}; do
    find "$crate" -name '*.rs' ! -name loom_twin.rs | sort | xargs awk '
        FNR == 1 { guarded = inside = 0 }
        /^ *#\[cfg\(/ { guarded = 1; next }
        /^ *(#\[|\/\/)/ { next }
        /^}/ { inside = 0 }
        guarded && /^(pub(\([a-z]+\))? )?mod [a-z_]+ \{/ { inside = 1 }
        # An item of a file or of a module in it. An associated type has the indentation of the latter.
        match($0, /^(    )?(pub(\([a-z]+\))? )?(unsafe )?(struct|enum|union|trait|type) [A-Z][A-Za-z0-9]*/) && !/^    type / {
            name = substr($0, 1, RLENGTH); sub(/.* /, "", name)
            cfg = guarded || inside
            if (!(name in place)) { place[name] = FILENAME ":" FNR; file[name] = FILENAME; cfgs[name] = cfg }
            else if (!(cfg && cfgs[name] && file[name] == FILENAME)) { printf "%s:%d: %s is also at %s\n", FILENAME, FNR, name, place[name]; bad = 1 }
        }
        { guarded = 0 }
        END { exit bad }' || wrong=1
done
exit $wrong
