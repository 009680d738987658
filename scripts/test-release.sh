#!/usr/bin/env bash
# A stranger's proofs of a release: each script in tests/release takes up one part of target/release-VERSION on a clean root,
# without this checkout.
#
#   scripts/test-release.sh VERSION            all of them
#   scripts/test-release.sh VERSION NAME...    these
#   scripts/test-release.sh --parts NAME       prints which parts of a release that proof takes up
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
. scripts/release/lib.sh

if [ "${1:-}" = --parts ]; then
    case ${2:-} in
    go) printf '%s\n' notices git goproxy ;;
    rust) printf '%s\n' notices crates ;;
    archives | upgrade) printf '%s\n' notices archives ;;
    deb | image) printf '%s\n' notices "$2" ;;
    esac
    exit
fi
[ $# -ge 1 ] || { echo "usage: test-release.sh VERSION [NAME...]" >&2; exit 2; }
export VERSION=$1 OUT=$PWD/target/release-$1
shift
[ -d "$OUT" ] || fail "$OUT is missing: run 'make release VERSION=$VERSION'"
[ $# -gt 0 ] || set -- $(cd tests/release && printf '%s\n' *.sh | sed 's/\.sh$//')
passed=0 failed=()
for name; do
    [ -x "tests/release/$name.sh" ] || fail "tests/release/$name.sh is missing"
    printf '== release/%s\n' "$name"
    began=$SECONDS
    if "tests/release/$name.sh"; then passed=$((passed + 1)); else failed+=("$name"); fi
    printf '   release/%s took %d s\n' "$name" $((SECONDS - began))
done
echo "release: $passed passed, ${#failed[@]} failed${failed[*]:+: ${failed[*]}}"
[ ${#failed[@]} -eq 0 ]
