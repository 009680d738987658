#!/usr/bin/env bash
# docs/OPERATIONS.md names every statistic, metric and message of the core and the feeder, docs/SERVER.md those of the server: fails
# and names those that they lack. Statistics are the public fields of the structs below and the feeder's counters; messages are the
# texts of the log, up to the first of their values.
set -uo pipefail
export LC_ALL=C.UTF-8
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
wrong=0

# How a page names one.
statistic() { grep -qF -- "\`$1\`" $page; }
metric() { grep -qE "(watchcore_$1|…_${1#subscription_})(_total)?[\`{]" $page; }
# Behind three dots where the prefix is that of the metric before.
counter() { statistic "$1" && grep -qE "(watchcore_feeder_|…_)$1(_total)?[\`{]" $page; }
server_metric() { grep -qE "watchcore_http_$1(_total)?[\`{]" $page; }
message() { grep -qF -- "$1" $page; }
# all KIND LEAST: each line of the input. A list that comes out short is a pattern that no longer fits the code.
all() {
    local names name count
    names=$(sort -u)
    count=$(grep -c . <<<"$names")
    [ "$count" -ge "$2" ] || { echo "only these were found of the kind $1: $names"; wrong=1; }
    while IFS= read -r name; do
        "$1" "$name" || { echo "$page lacks the ${1/_/ } '$name'"; wrong=1; }
    done <<<"$names"
    echo "$page: $count of the kind $1"
}
# The first text of each call of these functions, on the same line or the next.
first_texts() { tr -d '\n' | grep -oE "$1"'\( *"[a-z_]+"' | sed -E 's/.*"(.*)"/\1/'; }
# messages DIRECTORY...: the whole of each call of a log macro on one line, then its last text.
messages() {
    find "$@" -name '*.rs' ! -path 'src/loom*' ! -name '*tests.rs' | sort | xargs awk '
        FNR == 1 { tests = 0; call = "" }
        /^#\[cfg\((all\()?test/ { tests = 1 }
        tests { next }
        call == "" && /(^|[^a-z_])(log|tracing::(error|warn|info|debug|trace))!\(/ && !/macro_rules|^ *\/\// { call = " "; depth = 0 }
        call != "" {
            call = call $0
            depth += gsub(/\(/, "(") - gsub(/\)/, ")")
            if (depth <= 0) { print call; call = "" }
        }
    ' | sed -nE 's/.*"([^"]+)"[^"]*$/\1/p' | sed -E 's/[;:]? *\{.*//; s/;.*//' | grep -E '.{4}'
}

page=docs/OPERATIONS.md
all statistic 45 < <(find src -name '*.rs' | sort | xargs awk -v structs=" Status Stats SourceReport SubscriptionInfo Lag " '
    /^ *pub struct [A-Za-z]+ \{/ { name = $0; sub(/.*pub struct /, "", name); sub(/ .*/, "", name); inside = index(structs, " " name " ") }
    /^ *\}/ { inside = 0 }
    inside && /^ *pub [a-z_]+:/ { field = $2; sub(":", "", field); print field }')
all counter 19 < <(sed -nE '/^counters! \{/,/^\}/ s/^ *(counter|gauge) ([a-z_]+),$/\2/p' watchcore-etcd/src/counters.rs)
all metric 40 < <(first_texts '(gauge|counter|with|once|add)' <src/metrics/mod.rs)
all message 25 < <(messages src watchcore-etcd/src)
page=docs/SERVER.md
all server_metric 15 < <(cat watchcore-http/src/counters.rs watchcore-http/src/operate/metrics.rs | first_texts '[^a-z_](gauge|counter|seconds|histogram)')
all message 10 < <(messages watchcore-http/src watchcore-cli/src/cli/serve)
exit $wrong
