#!/usr/bin/env bash
# Makes one release from a clean checkout, in target/release-VERSION; docs/internals/release.md has the design. It can be run
# again at any point: a part that this commit has made already stands.
#
#   scripts/release.sh VERSION            sets the version where it stands, then makes every part
#   scripts/release.sh VERSION PART...    only these parts (notices git goproxy crates archives deb image)
#
# Where the version was another, it is set and nothing is built: look at the change, commit it, and run the script again. So it is
# with another address of the repository, after scripts/release/version.sh VERSION ADDRESS.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
. scripts/release/lib.sh

parts=(notices git goproxy crates archives deb image)
[[ ${1:-} =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || { echo "usage: release.sh VERSION [PART...]; a version is three numbers, the parts are ${parts[*]}" >&2; exit 2; }
export VERSION=$1 OUT=$PWD/target/release-$1
shift
for part; do [[ " ${parts[*]} " == *" $part "* ]] || fail "no part is called $part; the parts are ${parts[*]}"; done
[ $# -eq 0 ] || parts=("$@")

clean() { [ -z "$(git status --porcelain)" ] || fail "$1: $(git status --porcelain | head -n 3)"; }
clean "a release is made of a commit, and these differ from it"
scripts/release/version.sh "$VERSION"
clean "the version is $VERSION now; look at it with git diff, commit it, and run this again"

mkdir -p "$OUT"
commit=$(git rev-parse HEAD)
for part in "${parts[@]}"; do
    if [ "$(cat "$OUT/$part/.commit" 2>/dev/null)" = "$commit" ]; then
        say "$part stands"
        continue
    fi
    say "$part"
    began=$SECONDS
    rm -rf -- "$OUT/.$part.new" "${OUT:?}/$part"
    mkdir "$OUT/.$part.new"
    "scripts/release/$part.sh" "$OUT/.$part.new"
    echo "$commit" >"$OUT/.$part.new/.commit"
    mv -- "$OUT/.$part.new" "$OUT/$part"
    say "$part took $((SECONDS - began)) s"
done
(
    cd -- "$OUT"
    [ ! -d notices ] || cp -p -- notices/* .
    # An entry of crates/vendor has the sums of its files. The bare repository has sums of its own.
    find . -type f ! -name .commit ! -path './.*' ! -path './notices/*' ! -path './git/*' ! -name SHA256SUMS \
        \( ! -path './crates/vendor/*' -o -path './crates/vendor/*/.cargo-checksum.json' \) -print0 |
        LC_ALL=C sort -z | xargs -0 sha256sum >SHA256SUMS
)
say "$OUT has ${parts[*]}: next, 'make test-release VERSION=$VERSION'"
