#!/usr/bin/env bash
# The repository as it is published: DIRECTORY/watchcore.git, a bare one with main and the tags of VERSION. v0.1.0 is main's
# commit; go/v0.1.0, go/kubernetes/v0.1.0 and go/apiserver/v0.1.0 are commits behind it that no branch has, with what the Go
# modules contain beside their sources. Everything is made in a clone: the checkout's branches and tags stay as they are.
#
#   scripts/release/git.sh DIRECTORY
#
# GO_TARGETS: the platforms whose libraries the module has, as scripts/go-dist.sh takes them.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.."
. scripts/release/lib.sh

directory=$(cd -- "$1" && pwd) notices=$OUT/notices/THIRD-PARTY
: "${GO_TARGETS:=linux/amd64 linux/arm64 linux/amd64/musl}"
[ -s "$notices" ] || fail "$notices is missing: run 'scripts/release.sh $VERSION notices'"
read -ra targets <<<"$GO_TARGETS"
# No place of this machine in the objects: what panics says where in the sources.
RUSTFLAGS="${RUSTFLAGS:-} --remap-path-prefix=$PWD=/watchcore --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}/registry/src=/crates" \
    scripts/go-dist.sh "${targets[@]}" >&2
objects=()
for target in "${targets[@]}"; do objects+=("$(scripts/go-dist.sh --object "$target")"); done

work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
git clone --quiet --shared . "$work/clone"
# No setting of this machine's, and the names and the time of the released commit: a second run makes the same commits.
GIT_AUTHOR_NAME=$(git log -1 --format=%an) GIT_AUTHOR_EMAIL=$(git log -1 --format=%ae)
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null GIT_AUTHOR_NAME GIT_AUTHOR_EMAIL \
    GIT_COMMITTER_NAME="$GIT_AUTHOR_NAME" GIT_COMMITTER_EMAIL="$GIT_AUTHOR_EMAIL" \
    GIT_AUTHOR_DATE="$SOURCE_DATE_EPOCH +0000" GIT_COMMITTER_DATE="$SOURCE_DATE_EPOCH +0000"
tag() { git -C "$work/clone" tag -a -m "watchcore $VERSION" "$1"; }

git -C "$work/clone" checkout --quiet -B main
git -C "$work/clone" tag -l | xargs -r git -C "$work/clone" tag -d >/dev/null
tag "v$VERSION"

# The library's header and objects. A LICENSE with both texts, because pkg.go.dev shows only modules whose LICENSE is one that it
# knows, and the one in the root points to the two. They are here alone so that main has each text once. go.work stays behind: it
# names directories that the module's zip has not.
git -C "$work/clone" rm --quiet go/go.work go/go.work.sum
cp -- "$notices" "$work/clone/go/THIRD-PARTY"
for module in "${go_modules[@]}"; do
    { printf 'watchcore is licensed under MIT OR Apache-2.0: take either of the two, as you prefer.\n\n'; cat LICENSE-MIT; echo; cat LICENSE-APACHE; } \
        >"$work/clone/$module/LICENSE"
done
cp --parents -- go/libwatchcore.h "${objects[@]}" "$work/clone"
git -C "$work/clone" add --force go
git -C "$work/clone" commit --quiet -m "go/v$VERSION: the library for ${targets[*]}"
tag "go/v$VERSION"

# The sums of the other modules have those of the first.
(cd tools/goproxy && GOWORK=off GOFLAGS=-buildvcs=false go build -o "$work/goproxy" .)
"$work/goproxy" "$work/clone" "$work/proxy" "go/v$VERSION" >"$work/sums"
for module in "${go_modules[@]:1}"; do
    cat "$work/sums" "$module/go.sum" | LC_ALL=C sort -s -k 1,1 >"$work/clone/$module/go.sum"
done
git -C "$work/clone" commit --quiet -a -m "${go_modules[*]:1}, v$VERSION: the sum of go/v$VERSION"
for module in "${go_modules[@]:1}"; do tag "$module/v$VERSION"; done

git init --quiet --bare -b main "$directory/watchcore.git"
git -C "$work/clone" push --quiet "$directory/watchcore.git" "v$VERSION^{commit}:refs/heads/main" --tags
say "$(cat "$work/sums")"
