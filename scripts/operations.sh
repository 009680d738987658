#!/usr/bin/env bash
# docs/OPERATIONS.md names every figure and every message, docs/SERVER.md those of the
# server: fails and names those that they lack. Figures are the public fields of the structs below and the feeder's
# counters; messages are the texts of the core's and the feeder's log, up to the
# first of their values.
set -uo pipefail
export LC_ALL=C.UTF-8
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
page=docs/OPERATIONS.md
wrong=0
lacks() { echo "$page lacks $1"; wrong=1; }

structs="Status Stats SourceReport SubscriptionInfo Lag"
figures=$(find src -name '*.rs' | sort | xargs awk -v structs=" $structs " '
    /^ *pub struct [A-Za-z]+ \{/ { name = $0; sub(/.*pub struct /, "", name); sub(/ .*/, "", name); inside = index(structs, " " name " ") }
    /^ *\}/ { inside = 0 }
    inside && /^ *pub [a-z_]+:/ { field = $2; sub(":", "", field); print field }
' | sort -u)
counters=$(awk '/^counters! \{/ { inside = 1; next } /^\}/ { inside = 0 } inside && /^ *(counter|gauge) [a-z_]+,$/ { sub(",", ""); print $2 }' watchcore-etcd/src/counters.rs)
# A list that comes out short is a pattern that no longer fits the code.
[ "$(wc -w <<<"$figures")" -ge 45 ] || { echo "only these figures were found: $figures"; wrong=1; }
[ "$(wc -w <<<"$counters")" -ge 19 ] || { echo "only these counters were found: $counters"; wrong=1; }
for figure in $figures $counters; do
    grep -qF "\`$figure\`" $page || lacks "the figure \`$figure\`"
done
# Names of metrics are the first text of these calls, on the same line or the next. Those of the feeder's counters are there by the
# counter's name, behind three dots where the prefix is that of the metric before.
metrics=$(tr -d '\n' <src/metrics/mod.rs | grep -oE '(gauge|counter|with|once|add)\( *"[a-z_]+"' | sed -E 's/.*"(.*)"/\1/' | sort -u)
[ "$(wc -w <<<"$metrics")" -ge 40 ] || { echo "only these metrics were found: $metrics"; wrong=1; }
for metric in $metrics; do
    grep -qE "(watchcore_$metric|…_${metric#subscription_})(_total)?[\`{]" $page || lacks "the metric watchcore_$metric"
done
for counter in $counters; do
    grep -qE "(watchcore_feeder_|…_)$counter(_total)?[\`{]" $page || lacks "the metric watchcore_feeder_$counter"
done

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
    ' | sed -nE 's/.*"([^"]+)"[^"]*$/\1/p' | sed -E 's/[;:]? *\{.*//; s/;.*//' | grep -E '.{4}' | sort -u
}
messages=$(messages src watchcore-etcd/src)
[ "$(wc -l <<<"$messages")" -ge 25 ] || { echo "only these messages were found: $messages"; wrong=1; }
while IFS= read -r message; do
    grep -qF -- "$message" $page || lacks "the message '$message'"
done <<<"$messages"
operations="$(wc -w <<<"$metrics") metrics, $(wc -w <<<"$figures $counters") figures and $(wc -l <<<"$messages") messages"

# The server's: what is registered, by its name behind the prefix of the registry; what is logged above debug.
page=docs/SERVER.md
metrics=$(cat watchcore-http/src/figures/mod.rs watchcore-http/src/operate/metrics.rs | tr -d '\n' |
    grep -oE '(register|[^a-z_]add)\( *"[a-z_]+"' | sed -E 's/.*"(.*)"/\1/' | sort -u)
[ "$(wc -w <<<"$metrics")" -ge 15 ] || { echo "only these metrics of the server were found: $metrics"; wrong=1; }
for metric in $metrics; do
    grep -qE "watchcore_http_$metric(_total)?[\`{]" $page || lacks "the metric watchcore_http_$metric"
done
messages=$(messages watchcore-http/src watchcore-cli/src/cli/serve)
[ "$(wc -l <<<"$messages")" -ge 10 ] || { echo "only these messages of the server were found: $messages"; wrong=1; }
while IFS= read -r message; do
    grep -qF -- "$message" $page || lacks "the message '$message'"
done <<<"$messages"

[ $wrong = 0 ] && echo "docs/OPERATIONS.md names $operations; $page $(wc -w <<<"$metrics") metrics and $(wc -l <<<"$messages") messages"
exit $wrong
