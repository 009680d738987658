#!/usr/bin/env bash
# Holds docs/CONTRACT.md, docs/TOOLKIT.md and docs/HTTP.md against the test run: every row has a test
# that ran and passed, every surface or the reason why it lacks one, and, where a fault is
# silent, a mutation; and every mutation applies to the tree. A row of the toolkit
# has a test in Rust and one in Go, or "–" in place of one, with the reason in
# the row; a row of the server any tests at all. Names what does not hold, and fails.
#
#   scripts/contract.sh [GROUP...]     rust loom c go: whose logs are there (all)
#   scripts/contract.sh unrun          before any test ran: the tables by themselves
#
# The logs are those that scripts/test.sh wrote to target/test-logs. Tests of
# other groups than the named ones are not looked for. Before any test ran, a
# row's test is one whose name stands in a source.
set -uo pipefail
export LC_ALL=C.UTF-8
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
table=docs/CONTRACT.md
logs=target/test-logs
groups=" ${*:-rust loom c go} "
[ -f docs/TOOLKIT.md ] || { echo "docs/TOOLKIT.md is missing"; exit 1; }
[ -f $table ] || { echo "$table is missing"; exit 1; }
tmp=$(mktemp -d)
trap 'rm -rf -- "$tmp"' EXIT

# What passed, one name a line: as the table writes it.
: >"$tmp/passed"
log_of() { [ -f "$logs/$1.log" ] || return 1; cat "$logs/$1.log"; }
for step in rust doc; do
    log_of $step | awk '
        /^ *Running unittests src\/lib\.rs .*\/watchcore_etcd-/ { binary = "lib::etcd"; next }
        /^ *Running unittests src\/lib\.rs .*\/watchcore_toolkit-/ { binary = "lib::toolkit"; next }
        /^ *Running unittests src\/lib\.rs .*\/watchcore_http-/ { binary = "lib::http"; next }
        /^ *Running unittests src\/lib\.rs / { binary = "lib"; next }
        /^ *Running unittests src\/main\.rs / { binary = "bin"; next }
        /^ *Running unittests / { binary = $3; sub(/.*\//, "", binary); sub(/\.rs$/, "", binary); next }
        /^ *Running tests\// { binary = $2; sub(/^tests\//, "", binary); sub(/(\/main)?\.rs$/, "", binary); next }
        /^ *Doc-tests / { binary = "doc"; next }
        /^test .* \.\.\. ok$/ { name = $2; print binary "::" name }
    ' >>"$tmp/passed"
done
for step in loom toolkit-loom; do
    log_of $step | sed -nE 's/^test ([a-z]+::)?loom::([a-z]+::)?([a-z0-9_]+)( - should panic)? \.\.\. ok$/loom: \3/p' >>"$tmp/passed"
done
# The tests of a program stand below its line in the first way that it is run.
log_of c | awk '
    /^ok +counted\/[a-z]+: / { program = $2; sub(/^counted\//, "", program); sub(/:$/, "", program); print "c: " program; next }
    /^         [a-z0-9_]+$/ { if (program != "") print "c: " program "::" $1; next }
    { program = "" }
    /^ok +[a-z0-9.-]+$/ { print "c: " $2 }
' >>"$tmp/passed"
for step in go go-kubernetes http-tests installed; do
    log_of $step | sed -n 's/^ *--- PASS: \([^ ]*\) .*/go: \1/p' >>"$tmp/passed"
done

# What the tables name as a test and no source has.
nowhere=0
if [ "${1-}" = unrun ]; then
    grep -rhoE '[A-Za-z_][A-Za-z0-9_.-]*' --exclude-dir={target,.git,dist} \
        --include={'*.rs','*.go','*.c','*.cc','*.cpp','*.h','*.hpp','*.sh',Makefile} . |
        sed -E 's/^test_(.*)$/&\n\1/' | sort -u >"$tmp/words"
    while IFS=: read -r file name; do
        last=${name##*[: /]}
        grep -qxF -- "$last" "$tmp/words" || { echo "$file: no source has the test $name"; nowhere=1; }
    done < <(sed -n 's/^\(| *[0-9A-Z].*\)$/\1/p' $table | grep -oE '`(c|go|loom): [^`]+`|`[a-z_]+(::[A-Za-z0-9_]+)+`' | tr -d '`' | sed "s|^|$table:|"
        for file in docs/TOOLKIT.md docs/HTTP.md; do
            grep -E '^\| *[A-Z][A-Z]-' $file | cut -d'|' -f4- | grep -oE '`(c|go|loom): [^`]+`|`[a-z_]+(::[A-Za-z0-9_]+)+`' | tr -d '`' | sed "s|^|$file:|"
        done)
fi

# Which Go test stands in which file.
grep -HoE '^func (Test|Example|Fuzz)[A-Za-z0-9_]*' go/*_test.go 2>/dev/null | sed 's/:func / /' >"$tmp/gofiles"
# First lines of the patches.
for patch in tests/mutants/*.patch; do
    [ -e "$patch" ] || continue
    printf '%s %s\n' "$(basename "$patch" .patch)" "$(head -n 1 "$patch")"
done >"$tmp/patches"
stale=0
for patch in tests/mutants/*.patch; do
    git apply --check -p1 "$patch" 2>"$tmp/apply" || { echo "$patch: does not apply: $(head -n 1 "$tmp/apply")"; stale=1; }
done

awk -v groups="$groups" -v passed="$tmp/passed" -v gofiles="$tmp/gofiles" -v patches="$tmp/patches" '
    function trim(s) { gsub(/^[ \t]+|[ \t]+$/, "", s); return s }
    function complain(row, what) { printf "%s: %s\n", row, what; wrong++ }
    # The test file of a name, as far as it can be told from the name.
    function file_of(name, parts, n) {
        if (name ~ /^go: /) { sub(/^go: /, "", name); sub(/\/.*/, "", name); return name in gofile ? gofile[name] : "" }
        if (name ~ /^loom: /) return "loom"
        if (name ~ /^c: /) { sub(/::.*/, "", name); return name }
        n = split(name, parts, "::")
        if (parts[1] == "lib" || parts[1] == "bin") { sub(/::(tests::)?[a-z0-9_]+$/, "", name); return name }
        return n > 2 ? parts[1] "::" parts[2] : parts[1]
    }
    # The test that a command runs, where it runs one.
    function test_of_command(command, words, n, i, name) {
        n = split(command, words, " ")
        if (command ~ /ffi-tests run-/) { sub(/.*run-/, "", command); return "c: " command }
        if (command ~ /go\.sh /) { for (i = 1; i < n; i++) if (words[i] == "-run") { name = words[i + 1]; gsub(/[\^$"\047]/, "", name); return "go: " name } }
        if (command ~ /cfg loom/) { name = words[n]; sub(/.*::/, "", name); return "loom: " name }
        for (i = 1; i < n; i++) if (words[i] == "--test") return words[i + 1] "::" words[n]
        return (command ~ / --bin / ? "bin::" : command ~ / -p watchcore-etcd / ? "lib::etcd::" : "lib::") words[n]
    }
    function group_of(name) {
        return name ~ /^loom: / ? "loom" : name ~ /^c: / ? "c" : name ~ /^go: / ? "go" : "rust"
    }
    BEGIN {
        while ((getline line <passed) > 0) ran[line] = 1
        while ((getline line <gofiles) > 0) { split(line, f, " "); gofile[f[2]] = f[1] }
        while ((getline line <patches) > 0) {
            name = line; sub(/ .*/, "", name)
            head = substr(line, length(name) + 2)
            # Those of the server and of the toolkit are held below.
            if (head ~ /^# row [A-Z][A-Z]-[0-9]+; /) continue
            if (head !~ /^# row [0-9]+\.[0-9]+; /) { complain("tests/mutants/" name, "its first line is not \"# row N.N; COMMAND\""); continue }
            row = head; sub(/^# row /, "", row); sub(/;.*/, "", row)
            patch_row[name] = row
            sub(/^# row [0-9.]+; (may hang; )?/, "", head)
            patch_test[name] = test_of_command(head)
        }
        split("1 2 3 4 5 6 7 9 10", sections, " ")
        # Where a fault is silent: an event lost, doubled, torn, or told of another history; memory given
        # back too early; a wait that nobody ends. Each of these rows keeps a mutation.
        split("1.1 1.3 1.4 1.5 1.6 1.7 1.8 1.9 1.10 1.11 1.12 1.15 1.16 1.17 1.19 1.20 1.21 1.23 1.26 1.27 1.29 " \
            "1.30 1.31 2.2 3.2 3.8 3.9 5.4 5.14 5.18 5.23 5.25 5.28 5.30 6.1 6.2 6.4 6.7 6.8 6.9 6.10 6.13 6.15 " \
            "6.19 6.22 6.23 6.26 6.28 6.30 6.31 6.35 6.37 6.38 6.39 6.40 6.43 7.1 7.10 7.11 7.14 10.7 10.13 10.21", list, " ")
        for (i in list) hard[list[i]] = 1
    }
    /^\| *[0-9]+\.[0-9]+ *\|/ {
        n = split($0, cell, "|")
        row = trim(cell[2])
        if (n != 7) { complain("row " row, "has " n - 2 " cells, not 5"); next }
        if (row in seen) complain("row " row, "stands twice")
        seen[row] = 1
        section = row; sub(/\..*/, "", section)
        rows++; have[section]++
        # tests
        tests = cell[4]; count = 0; all_tests = " "
        while (match(tests, /`[^`]+`/)) {
            name = substr(tests, RSTART + 1, RLENGTH - 2)
            tests = substr(tests, 1, RSTART - 1) substr(tests, RSTART + RLENGTH)
            count++
            all_tests = all_tests name " "
            file = file_of(name)
            if (file == "") complain("row " row, "there is no test " name)
            group = group_of(name)
            if (index(groups, " " group " ") == 0) { passed_over[name] = 1; continue }
            if (!(name in ran)) complain("row " row, "did not run and pass: " name)
            else proven[name] = 1
        }
        gsub(/[ ,;]|<br>/, "", tests)
        if (tests ~ /TODO/) { complain("row " row, "its test is still to be written"); gsub(/TODO/, "", tests) }
        else if (count == 0) complain("row " row, "has no test")
        if (count > 0 && tests != "") complain("row " row, "text between its tests: " tests)
        # surfaces: the letters that have it; then "letters: reason", separated by semicolons
        parts = split(cell[5], part, ";")
        present = trim(part[1])
        reasons = ""
        for (i = 2; i <= parts; i++) {
            if (!match(part[i], /^ *[RCGL]( [RCGL])*: *[^ ]/)) complain("row " row, "not \"LETTERS: reason\": " trim(part[i]))
            else { letters = part[i]; sub(/:.*/, "", letters); reasons = reasons " " letters }
        }
        if (present !~ /^([RCGL]( [RCGL])*|–)$/) complain("row " row, "surfaces are letters of R C G L, not \"" present "\"")
        split("R C G L", all, " ")
        for (i = 1; i <= 4; i++) {
            here = index(" " present " ", " " all[i] " ") > 0
            reason = index(reasons, all[i]) > 0
            if (!here && !reason) complain("row " row, "lacks the surface " all[i] " and does not say why")
            if (here && reason) complain("row " row, "has the surface " all[i] " and says why it does not")
        }
        # mutations
        mutations = cell[6]; count = 0
        while (match(mutations, /`[^`]+`/)) {
            name = substr(mutations, RSTART + 1, RLENGTH - 2)
            mutations = substr(mutations, 1, RSTART - 1) substr(mutations, RSTART + RLENGTH)
            count++
            if (name in patch_row) {
                told[name] = told[name] " " row " "
                test = patch_test[name] (patch_test[name] ~ /^c: / ? "::" : " ")
                if (index(all_tests, " " test) == 0) complain("row " row, name ".patch must make one of its tests fail, not " patch_test[name])
            } else complain("row " row, "there is no tests/mutants/" name ".patch")
        }
        gsub(/[ ,]|–/, "", mutations)
        if (mutations ~ /TODO/) complain("row " row, "its mutation is still to be written")
        else if (mutations != "") complain("row " row, "its mutation is a name in backticks or –, not " mutations)
        else if (count == 0 && row in hard) complain("row " row, "has no mutation: a fault here is silent, so it needs one")
        next
    }
    /^\| *[0-9]/ { complain("line " NR, "not a row: " $0) }
    END {
        for (i in sections) if (!(sections[i] in have)) complain("section " sections[i], "has no rows")
        for (name in patch_row) if (index(told[name], " " patch_row[name] " ") == 0)
            complain("tests/mutants/" name, "row " patch_row[name] " does not name it")
        for (row in hard) if (!(row in seen)) complain("row " row, "is named in scripts/contract.sh, and is not there")
        for (name in proven) p++
        for (name in passed_over) o++
        printf "%d rows, %d tests ran and passed%s\n", rows, p, o ? ", " o " of other groups were not looked for" : ""
        if (wrong) printf "%d complaints about docs/CONTRACT.md\n", wrong
        exit wrong > 0
    }
' $table
contract=$?

awk -v groups="$groups" -v passed="$tmp/passed" -v patches="$tmp/patches" '
    function trim(s) { gsub(/^[ \t]+|[ \t]+$/, "", s); return s }
    function complain(row, what) { printf "%s: %s\n", row, what; wrong++ }
    BEGIN { while ((getline line <passed) > 0) ran[line] = 1 }
    function group_of(name) { return name ~ /^loom: / ? "loom" : name ~ /^c: / ? "c" : name ~ /^go: / ? "go" : "rust" }
    # One language: tests that ran and passed, or a dash. What begins with KU is about the Go module kubernetes alone. `names` says which names are its own.
    function check(row, language, cell, promise, names,    name, count) {
        cell = trim(cell)
        while (match(cell, /`[^`]+`/)) {
            name = substr(cell, RSTART + 1, RLENGTH - 2)
            cell = substr(cell, 1, RSTART - 1) substr(cell, RSTART + RLENGTH)
            if (name !~ names) { if (cell !~ /–/) complain(row, name " is no test of " language); continue }
            count++
            if (index(groups, " " group_of(name) " ") == 0) passed_over[name] = 1
            else if (!(name in ran)) complain(row, "did not run and pass: " name)
            else proven[name] = 1
        }
        if (count > 0) return
        if (cell !~ /^–/) complain(row, "has no test in " language ", and no –")
        else if (cell == "–" && row !~ /^KU-/ && promise !~ /[(–]/) complain(row, "has no test in " language ", and no reason why")
    }
    /^\| *[A-Z][A-Z]-[0-9]+(, [A-Z][A-Z]-[0-9]+)* *\|/ {
        n = split($0, cell, "|")
        row = trim(cell[2])
        if (n != 6) { complain(row, "has " n - 2 " cells, not 4"); next }
        rows++
        count = split(row, ids, ", ")
        for (i = 1; i <= count; i++) { if (ids[i] in seen) complain(ids[i], "stands twice"); seen[ids[i]] = 1; text[ids[i]] = $0 }
        if (trim(cell[3]) == "") complain(row, "promises nothing")
        check(row, "Rust", cell[4], cell[3], "^(toolkit::|lib::toolkit::|doc::|loom: )")
        check(row, "Go", cell[5], cell[3], "^go: ")
        next
    }
    /^\| *[A-Z][A-Z]-/ { complain("line " NR, "not a row: " $0) }
    END {
        # A mutation names its row, and makes one of the tests of that row fail.
        while ((getline line <patches) > 0) if (line ~ / # row [A-GI-Z][A-Z]-[0-9]+; /) {
            name = line; sub(/ .*/, "", name)
            test = line; sub(/.* /, "", test)
            test = line ~ /go\.sh / ? "go: " test : (line ~ / --lib / ? "lib::toolkit::" : "toolkit::") test
            sub(/.* # row /, "", line); sub(/;.*/, "", line)
            if (index(text[line], "`" test "`") == 0) complain("tests/mutants/" name, "row " line " has no test " test)
            mutations++
        }
        if (rows < 100) complain("docs/TOOLKIT.md", "only " rows + 0 " rows were found")
        for (name in proven) p++
        for (name in passed_over) o++
        printf "%d rows of the toolkit, %d tests ran and passed, %d mutations%s\n", rows, p, mutations, o ? ", " o " of other groups were not looked for" : ""
        if (wrong) printf "%d complaints about docs/TOOLKIT.md\n", wrong
        exit wrong > 0
    }
' docs/TOOLKIT.md
toolkit=$?

awk -v groups="$groups" -v passed="$tmp/passed" -v patches="$tmp/patches" '
    function trim(s) { gsub(/^[ \t]+|[ \t]+$/, "", s); return s }
    function complain(row, what) { printf "%s: %s\n", row, what; wrong++ }
    # As the logs have it: unit tests stand below their crate, those of the command line below its binary.
    function in_the_logs(name) {
        if (name ~ /^lib::/) { sub(/^lib::/, "lib::http::", name); return name }
        return name in ran ? name : "bin::cli::" name
    }
    BEGIN {
        while ((getline line <passed) > 0) ran[line] = 1
        while ((getline line <patches) > 0) if (line ~ / # row H[A-Z]-[0-9]+; /) {
            name = line; sub(/ .*/, "", name)
            test = line; sub(/.* /, "", test)
            patch_test[name] = (line ~ / --lib / ? "lib::" : "http::") test
            sub(/.* # row /, "", line); sub(/;.*/, "", line)
            patch_row[name] = line
        }
    }
    /^\| *H[A-Z]-[0-9]+ *\|/ {
        n = split($0, cell, "|")
        row = trim(cell[2]); rest = cell[4]; count = 0; rows++
        # A mutation, where the section has that column, breaks its row, and makes one of its tests fail.
        for (left = n == 6 ? cell[5] : ""; match(left, /`[^`]+`/); left = substr(left, RSTART + RLENGTH)) {
            name = substr(left, RSTART + 1, RLENGTH - 2)
            if (patch_row[name] != row) complain(row, "tests/mutants/" name ".patch is not there, or of another row")
            else if (index(rest, "`" patch_test[name] "`") == 0) complain(row, name ".patch must make one of its tests fail, not " patch_test[name])
            named[name] = 1; mutations++
        }
        if (row in seen) complain(row, "stands twice")
        seen[row] = 1
        while (match(rest, /`[^`]+`/)) {
            name = substr(rest, RSTART + 1, RLENGTH - 2)
            rest = substr(rest, RSTART + RLENGTH)
            count++
            # A script is a test by itself, which says where it was passed over.
            if (name ~ /\.sh$/) { if (system("test -x " name) != 0) complain(row, "is no script: " name); continue }
            group = name ~ /^go: / ? "go" : "rust"
            if (index(groups, " " group " ") == 0) passed_over[name] = 1
            else if (!(in_the_logs(name) in ran)) complain(row, "did not run and pass: " name)
            else proven[name] = 1
        }
        if (count == 0) complain(row, "has no test")
        next
    }
    /^\| *H[A-Z]-/ { complain("line " NR, "not a row: " $0) }
    END {
        if (rows < 150) complain("docs/HTTP.md", "only " rows + 0 " rows were found")
        for (name in patch_row) if (!(name in named)) complain("tests/mutants/" name, "row " patch_row[name] " does not name it")
        for (name in proven) p++
        for (name in passed_over) o++
        printf "%d rows of the server, %d tests ran and passed, %d mutations%s\n", rows, p, mutations, o ? ", " o " of other groups were not looked for" : ""
        if (wrong) printf "%d complaints about docs/HTTP.md\n", wrong
        exit wrong > 0
    }
' docs/HTTP.md
server=$?
[ $contract = 0 ] && [ $toolkit = 0 ] && [ $server = 0 ] && [ $stale = 0 ] && [ $nowhere = 0 ]
