#!/usr/bin/env bash
# Everything calls downwards only. Fails and names the imports where files of a crate form a circle, and where a room (a file or
# directory of src) of the core or of watchcore-http uses one that stands above it. The picture is in ARCHITECTURE.md.
#
# Looks at the paths of the code (`crate::`, `super::`, `self::`, and those that begin with a module below the file), not at comments,
# tests and models. A name that a module passes on by `pub use` counts as a name of the file that it is from. What lib.rs passes on
# is for users.
set -uo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

# hold DIRECTORY [ROOMS]: the rooms from the ground up; `root` is lib.rs.
hold() {
    find "$1" -name '*.rs' ! -name '*tests.rs' ! -path '*/loom*' | sort | xargs awk -v directory="$1/" -v rooms="${2:-}" '
        # The text, without the braces of use trees: `a::{b, c::d}` becomes `a::b, a::c::d`.
        function spread(text,    from, inside, names, count, i, list) {
            while (match(text, /[A-Za-z0-9_:]+::\{[^{}]*\}/)) {
                from = substr(text, RSTART, RLENGTH - 1); inside = index(from, "{")
                count = split(substr(from, inside + 1), names, ","); list = ""
                for (i = 1; i <= count; i++) { gsub(/^ +| +$/, "", names[i]); if (names[i] != "") list = list substr(from, 1, inside - 1) names[i] "," }
                text = substr(text, 1, RSTART - 1) list substr(text, RSTART + RLENGTH)
            }
            return text
        }
        # The module whose file defines the name of a path.
        function defined(module, path,    at, name, below) {
            at = module
            if (sub(/^crate::/, "", path)) at = "root"
            while (sub(/^super::/, "", path)) if (!sub("/[^/]*$", "", at)) at = "root"
            sub(/^self::/, "", path)
            while (match(path, /^[A-Za-z0-9_]+/)) {
                name = substr(path, 1, RLENGTH); path = substr(path, RLENGTH + 3)
                below = (at == "root" ? "" : at "/") name
                if (!(below in file)) return (at, name) in passed ? defined(at, passed[at, name]) : at
                at = below
            }
            return at
        }
        function add(module, path,    to) {
            to = defined(module, path)
            if (to != module && to in file && !index(uses[module] " ", " " to " ")) uses[module] = uses[module] " " to
        }
        # Records all that a module uses, and what that uses.
        function visit(from,    all, last, i, j, some, count) {
            all[last = 1] = from
            for (i = 1; i <= last; i++) {
                count = split(uses[all[i]], some, " ")
                for (j = 1; j <= count; j++) if (!((from, some[j]) in reached)) { reached[from, some[j]]; all[++last] = some[j] }
            }
        }
        function room(module) { sub("/.*", "", module); return module }

        FNR == 1 {
            module = substr(FILENAME, length(directory) + 1); sub("(/mod)?[.]rs$", "", module); sub("^(lib|main)$", "root", module)
            file[module] = FILENAME; tests = guarded = passing = 0
        }
        /^ *#\[cfg\((all\()?(test|loom|toolkit_loom|fuzzing|any\(test)/ { guarded = 1; next }
        # A module of tests ends its file; anything else that is for tests or models is one item.
        guarded && /^mod [a-z_]+ \{/ { tests = 1 }
        guarded && !/^ *#\[/ { guarded = 0; if (/;$/) next; passing = /use .*\{$/ }
        passing { if (/;$/) passing = 0; next }
        tests { next }
        # In a module inside the file.
        /^ +(pub )?use super::/ { sub("super::", "self::") }
        { sub("//.*", ""); gsub(/[$]crate::|in crate::[a-z_:]+|in super::[a-z_:]+/, ""); text[module] = text[module] " " $0 }

        END {
            for (module in file) {
                count = split(text[module], statements, ";"); text[module] = ""
                for (i = 1; i <= count; i++) {
                    rest = spread(statements[i])
                    if (module != "root" && match(rest, /pub(\([a-z]+\))? use /)) {
                        names = split(substr(rest, RSTART + RLENGTH), paths, ","); rest = substr(rest, 1, RSTART - 1)
                        for (j = 1; j <= names; j++) {
                            name = path = paths[j]; sub(/.*[: ]/, "", name); sub(/ as .*/, "", path)
                            if (path ~ /::/) passed[module, name] = path; gives[module] = gives[module] " " name
                        }
                    }
                    text[module] = text[module] ";" rest
                }
            }
            for (module in file) {
                rest = text[module]
                while (match(rest, /[a-z_][A-Za-z0-9_]*(::[A-Za-z0-9_]+)+/)) {
                    path = substr(rest, RSTART, RLENGTH); rest = substr(rest, RSTART + RLENGTH)
                    add(module, path)
                }
                # What a file passes on and uses itself.
                count = split(gives[module], given, " ")
                for (i = 1; i <= count; i++)
                    if (text[module] ~ "[^A-Za-z0-9_:]" given[i] "[^A-Za-z0-9_]") add(module, "self::" given[i])
            }
            for (module in file) visit(module)
            count = split(rooms, order, " "); for (i = 1; i <= count; i++) rank[order[i]] = i
            for (module in file) {
                if (rooms != "" && !(room(module) in rank)) { print file[module] ": no storey of the list"; bad = 1 }
                count = split(uses[module], used, " ")
                for (i = 1; i <= count; i++) {
                    to = used[i]
                    circle = (to, module) in reached
                    if (circle) print file[module] ": in a circle with " file[to]
                    upwards = rank[room(to)] > rank[room(module)]
                    if (upwards) print file[module] ": " room(module) " calls up to " room(to)
                    bad = bad || circle || upwards
                }
            }
            exit bad
        }'
}

wrong=0
hold src "sync backoff position error foreign sys worker heap reclaim data store json attribute filter log batch wake cache writer read subscription text metrics process raw root" || wrong=1
# docs/internals/http.md has the picture.
hold watchcore-http/src "digest files status clients counters request_record access json object frame catalog limits request watch viewers lines transport state list resources keys page operate api server fuzz root" || wrong=1
for crate in cli toolkit etcd capi; do hold watchcore-$crate/src || wrong=1; done
exit $wrong
