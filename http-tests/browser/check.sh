#!/usr/bin/env bash
# Looks at the live page: its script by itself (page.mjs, where there is node), and the whole in a real browser
# (check.py, where there are Chromium and Python). Each part that cannot run is skipped with a sentence.
# check.sh [--screenshot FILE]
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.."

if command -v node >/dev/null; then
    node http-tests/browser/page.mjs
else
    echo "skipped: there is no node here, which runs the page's script by itself"
fi
command -v python3 >/dev/null || { echo "skipped: there is no python3 here, which talks to the browser"; exit 0; }
cargo build --quiet -p watchcore-http --example live_page
exec python3 http-tests/browser/check.py "$@"
