#!/usr/bin/env bash
# What README.md says to users of C and Go, done as it stands there: the library
# is installed into target/installed, the snippets are taken out of README.md,
# compiled and run against a throw-away etcd; and the Go package passes its
# tests with the shared library. The library is taken as `make lib` left it.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
root=$(pwd -P)

if [ -z "${WATCHCORE_TEST_ENDPOINT:-}" ]; then
    exec scripts/with-etcd.sh "$root/scripts/test-installed.sh"
fi
command -v pkg-config >/dev/null || { echo "pkg-config is missing: install it (Debian: pkgconf)"; exit 1; }

tmp=$(mktemp -d)
prefix=$root/target/installed
rm -rf -- "$prefix"
follower=
finish() {
    [ -z "$follower" ] || kill -KILL "$follower" 2>/dev/null || true
    rm -rf -- "$tmp"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
say() { printf '  %s\n' "$*"; }
fail() { printf 'FAILED: %s\n' "$*"; exit 1; }

# snippet LANGUAGE NUMBER: that code block of README.md, with what is the user's filled in.
snippet() {
    awk -v start="^\`\`\`$1\$" -v number="$2" '/^```$/ { inside = 0 } inside && found == number { print } $0 ~ start { inside = 1; found++ }' README.md |
        sed -e "s|http://127.0.0.1:2379|$WATCHCORE_TEST_ENDPOINT|" -e "s|\$HOME/.local|$prefix|g" -e "s|\$WATCHCORE|$root|" >"$tmp/snippet"
    [ -s "$tmp/snippet" ] || fail "README.md has no snippet $2 in $1"
    cat "$tmp/snippet"
}

# follows NAME LINE COMMAND...: the command runs until it has printed that line.
follows() {
    local name=$1 line=$2
    shift 2
    : >"$tmp/out"
    "$@" >"$tmp/out" 2>&1 </dev/null &
    follower=$!
    for _ in {1..1200}; do
        if grep -qxF -- "$line" "$tmp/out"; then
            kill -INT "$follower" 2>/dev/null || true
            kill -KILL "$follower" 2>/dev/null || true
            wait "$follower" 2>/dev/null || true
            follower=
            say "$name"
            return
        fi
        kill -0 "$follower" 2>/dev/null || break
        sleep 0.05
    done
    cat "$tmp/out"
    fail "$name did not print '$line'"
}

"$WATCHCORE_TEST_ETCDCTL" --endpoints "$WATCHCORE_TEST_ENDPOINT" put /registry/pods/a x >/dev/null
"$WATCHCORE_TEST_ETCDCTL" --endpoints "$WATCHCORE_TEST_ENDPOINT" put /registry/nodes/n y >/dev/null

echo "C, from README.md"
snippet sh 1 >"$tmp/commands.sh"
[ "$(grep -c . "$tmp/commands.sh")" = 4 ] || fail "the first shell snippet is not install, export, cc, ./follow"
export NO_BUILD=1
sed -n 1,3p "$tmp/commands.sh" | sed "s|-o follow|-o $tmp/follow|" >"$tmp/build.sh"
# shellcheck source=/dev/null
source "$tmp/build.sh" >/dev/null
say "make install, cc with pkg-config"
for page in man3/watchcore.3; do
    [ -s "$prefix/share/man/$page" ] || fail "make install brings no $page"
done
! command -v man >/dev/null || man -M "$prefix/share/man" -w 3 watchcore >/dev/null || fail "man does not find watchcore(3)"
say "man pages"
readelf -d "$tmp/follow" | grep -q 'NEEDED.*libwatchcore.so.0' || fail "./follow does not use the shared library"
run=$(sed -n 4p "$tmp/commands.sh")
read -r -a words <<<"$run"
follows "$run" '2 ADDED /registry/pods/a = x' "$tmp/follow" "${words[@]:1}"

{
    echo '#include <pthread.h>'
    echo '#include <sched.h>'
    echo '#include <stdio.h>'
    echo '#include <watchcore.h>'
    echo 'int32_t readme(watchcore_cache *cache);'
    echo 'int32_t readme(watchcore_cache *cache) {'
    snippet c 1
    echo 'return rc; }'
    cat <<'C'
/* What is written stays to be handed out by a subscription that is open when the cache is closed. */
static void *close_when_subscribed(void *cache)
{
    watchcore_stats stats = WATCHCORE_STATS_INIT;
    while (watchcore_cache_stats(cache, &stats, NULL) == WATCHCORE_OK && stats.subscriptions == 0) {
        sched_yield();
    }
    return watchcore_cache_close(cache, NULL) == WATCHCORE_OK ? cache : NULL;
}

int main(void)
{
    pthread_t thread;
    watchcore_cache *cache = NULL;
    watchcore_writer *writer = NULL;
    watchcore_change change = WATCHCORE_CHANGE_INIT;
    int32_t rc;
    change.op = WATCHCORE_CHANGE_PUT;
    change.key = watchcore_bytes_from_string("/a");
    change.value = watchcore_bytes_from_string("1");
    if (watchcore_cache_new(NULL, &cache, NULL) != 0 || watchcore_writer_new(cache, &writer, NULL) != 0 ||
        watchcore_writer_apply(writer, 17, &change, 1, NULL) != 0 ||
        pthread_create(&thread, NULL, close_when_subscribed, cache) != 0) {
        return 1;
    }
    rc = readme(cache);
    pthread_join(thread, NULL);
    watchcore_writer_free(writer);
    watchcore_cache_free(cache);
    return rc == WATCHCORE_CLOSED ? 0 : 2;
}
C
} >"$tmp/readme.c"
flags=(-std=c11 -D_GNU_SOURCE -Wall -Wextra -Wpedantic -Werror)
# shellcheck disable=SC2046
cc "${flags[@]}" "$tmp/readme.c" $(pkg-config --cflags --libs watchcore) -lpthread -o "$tmp/readme"
expected=$'17 ADDED /a\n17 BOOKMARK '
prints() { [ "$(timeout 60 "$@")" = "$expected" ]; }
prints "$tmp/readme" || fail "the C snippet does not print what it should"
say "the C snippet"
read -r -a private <<<"$(pkg-config --static --libs-only-l watchcore | sed 's/-lwatchcore//')"
cc "${flags[@]}" "$tmp/readme.c" "-I$prefix/include" "$prefix/lib/libwatchcore.a" "${private[@]}" -o "$tmp/readme-static"
prints env -u LD_LIBRARY_PATH "$tmp/readme-static" || fail "the C snippet, statically linked"
say "the same, statically linked with Libs.private"

echo "Go, from README.md"
# Go keeps what pkg-config said once, also when that is gone: another prefix must be another build.
CGO_CPPFLAGS="${CGO_CPPFLAGS:-} -DWATCHCORE_PREFIX_$(sha256sum <<<"$prefix" | cut -c1-16)"
export CGO_CPPFLAGS
mkdir "$tmp/module"
{
    printf 'package main\n\nimport (\n\t"context"\n\t"fmt"\n\t"os"\n\n\t"watchcore"\n)\n\nfunc follow(ctx context.Context) error {\n'
    snippet go 1 | sed 's/^./\t&/'
    printf '\treturn nil\n}\n\nfunc main() {\n\tif err := follow(context.Background()); err != nil {\n\t\tfmt.Println(err)\n\t\tos.Exit(1)\n\t}\n}\n'
} >"$tmp/module/main.go"
snippet sh 2 >"$tmp/module.sh"
[ "$(grep -c '^go ' "$tmp/module.sh")" = 4 ] || fail "the second shell snippet is not go mod edit, go build, go mod vendor, go build"
(
    cd "$tmp/module"
    unset GOFLAGS
    export GOWORK=off
    go mod init example.test/follow 2>/dev/null
    sed -n 1,2p "$tmp/module.sh" >"$tmp/static.sh"
    # shellcheck source=/dev/null
    source "$tmp/static.sh"
    mv follow static
    sed -n 4p "$tmp/module.sh" >"$tmp/shared.sh"
    # shellcheck source=/dev/null
    source "$tmp/shared.sh"
    mv follow shared
    [ -z "$(gofmt -l .)" ] || fail "the Go snippet is not formatted by gofmt"
    go vet .
)
readelf -d "$tmp/module/shared" | grep -q 'NEEDED.*libwatchcore.so.0' || fail "the tag watchcore_system does not link the shared library"
! readelf -d "$tmp/module/static" | grep -q 'libwatchcore' || fail "the default links the shared library"
follows "the Go snippet, static" '2 ADDED /registry/pods/a' "$tmp/module/static"
follows "the Go snippet, shared" '2 ADDED /registry/pods/a' "$tmp/module/shared"

echo "the Go package with the shared library"
scripts/go.sh test -count=1 -tags watchcore_system ./...
echo "the Go package that poisons released batches"
scripts/go.sh test -v -count=1 -tags debug ./... | grep --line-buffered -v '^=== '
