#!/usr/bin/env bash
# One name, one type: fails and names the places where two types, traits or aliases of
# one crate have the same name, those of tests included. Two that are never compiled
# together are one: items and modules below a cfg in one file (std's and loom's, with
# and without a feature), and loom_twin.rs, which stands in for another file.
set -uo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

# The files of one crate, relative to the root.
sources() {
    case $1 in
    watchcore-cli) find watchcore-cli/src -name '*.rs' ! -path '*/demo/*' ;;
    demo) find watchcore-cli/src/demo -name '*.rs' ;;
    watchcore) find src -name '*.rs' ! -name loom_twin.rs ;;
    *) find "$1/src" -name '*.rs' ;;
    esac | sort
}

wrong=0
for crate in watchcore watchcore-toolkit watchcore-etcd watchcore-http watchcore-capi watchcore-cli demo; do
    sources $crate | xargs awk '
        FNR == 1 { guarded = 0; inside = 0 }
        /^ *#\[cfg\(/ { guarded = 1; next }
        /^ *(#\[|\/\/)/ { next }
        /^}/ { inside = 0 }
        guarded && /^(pub(\([a-z]+\))? )?mod [a-z_]+ \{/ { inside = 1 }
        # An item of a file or of a module in it. An associated type has the indentation of the latter.
        /^(    )?(pub(\([a-z]+\))? )?(unsafe )?(struct|enum|union|trait|type) [A-Z]/ && !/^    type / {
            match($0, /(struct|enum|union|trait|type) [A-Za-z0-9]+/)
            name = substr($0, RSTART, RLENGTH); sub(/.* /, "", name)
            twin = (guarded || inside) && cfgs[name] && file[name] == FILENAME
            if (name in place && !twin) { printf "%s:%d: %s is also at %s\n", FILENAME, FNR, name, place[name]; bad = 1 }
            if (!(name in place)) { place[name] = FILENAME ":" FNR; file[name] = FILENAME; cfgs[name] = guarded || inside }
        }
        { guarded = 0 }
        END { exit bad }' || wrong=1
done
exit $wrong
