#!/usr/bin/env bash
# Looks at the live page in a real browser: check.py. Skipped, with a sentence, where there is no Chromium or no Python.
# check.sh [--screenshot FILE]
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.."

command -v python3 >/dev/null || { echo "skipped: there is no python3 here, which talks to the browser"; exit 0; }
cargo build --quiet -p watchcore-http --example live_page
exec python3 http-tests/browser/check.py "$@"
