#!/usr/bin/env bash
# Everything calls downwards only: fails and names the line where a room of the core, of its wake/, or of watchcore-http, uses one
# that stands above it. Looks at `use crate::...` and at paths inside the code, not at comments and tests. The picture is in ARCHITECTURE.md.
set -uo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

# hold DIRECTORY STOREYS [PATH]: the rooms of that directory, from the ground up, below the module PATH of the crate. `root` is its
# lib.rs or mod.rs: what it re-exports is for users.
hold() {
    find "$1" -name '*.rs' ! -name '*tests.rs' ! -path '*/tests/*' ! -path '*/loom*' | sort | xargs awk -v directory="$1/" -v storeys="$2" -v above="crate::${3:-}" '
        BEGIN { count = split(storeys, order, " "); for (i = 1; i <= count; i++) rank[order[i]] = i }
        FNR == 1 {
            room = substr(FILENAME, length(directory) + 1); sub("[./].*", "", room); if (room == "lib" || room == "mod") room = "root"
            tests = 0
            if (!(room in rank)) { print FILENAME ": no storey of the list"; bad = 1 }
        }
        /^#\[cfg\((all\()?test/ { guarded = 1; next }
        # A module of tests ends its file; anything else that is for tests is one item.
        guarded && /^mod [a-z_]+ \{/ { tests = 1 }
        !/^#\[/ { guarded = 0 }
        tests { next }
        {
            sub("//.*", "")
            for (rest = $0; match(rest, "[^A-Za-z0-9_$]" above "[A-Za-z_]+"); rest = substr(rest, RSTART + RLENGTH)) {
                called = substr(rest, RSTART + 1 + length(above), RLENGTH - 1 - length(above))
                if (!(called in rank)) called = "root"
                if (rank[called] > rank[room]) {
                    printf "%s:%d: %s calls up to %s\n", FILENAME, FNR, room, called; bad = 1
                }
            }
        }
        END { exit bad }'
}

wrong=0
hold src "sync backoff position error foreign sys worker heap reclaim data store json attribute filter log batch wake cache writer read subscription text metrics process raw root" || wrong=1
# docs/internals/waking.md has the picture.
hold src/wake "sleep tables notify root" wake:: || wrong=1
# docs/internals/http.md has the picture.
hold watchcore-http/src "digest files status clients counters request_record access json object frame catalog limits request watch viewers lines transport state list resources keys page operate api server fuzz root" || wrong=1
exit $wrong
