#!/usr/bin/env bash
# The Go modules as two strangers take them: one from goproxy/, one with GOPROXY=direct from git/, which lies where the address
# points. Both are on a Debian with this machine's Go and gcc, and without Rust; Kubernetes' modules come from what this machine
# has downloaded. Where target/etcd has one, the installed examples follow it.
. scripts/release/lib.sh
. tests/outside/lib.sh
work=$(mktemp -d)
checks_log=$work/checks.log
trap 'rm -rf -- "$work"' EXIT

module=github.com/watchcore/watchcore/go
zip=$OUT/goproxy/$module/@v/v$VERSION.zip
etcd=$(scripts/etcd.sh 2>/dev/null) || etcd=
need unzip unzip
need readelf binutils
debian=$(root go-bookworm bookworm gcc libc6-dev musl-tools git ca-certificates) || exit

# ---- the zips --------------------------------------------------------------

small() { [ "$(wc -c <"$1")" -lt $((20 << 20)) ]; }
# of FILE: that file of the module.
of() { unzip -p "$zip" "$module@v$VERSION/$1"; }
has() {
    local file listed
    listed=$(unzip -Z1 "$zip") || return
    for file in LICENSE THIRD-PARTY go.mod abi.h libwatchcore.h internal/static/libwatchcore_linux_amd64.syso; do
        grep -qxF "$module@v$VERSION/$file" <<<"$listed" || { echo "$file is missing"; return 1; }
    done
    # It would name directories that are not there.
    ! grep -F /go.work <<<"$listed"
}
# licensed MODULE: LICENSE has both texts whole, and little else: pkg.go.dev wants three quarters.
licensed() {
    local text licence
    text=$(unzip -p "$OUT/goproxy/$1/@v/v$VERSION.zip" "$1@v$VERSION/LICENSE") || return
    for licence in LICENSE-MIT LICENSE-APACHE; do
        [[ $text = *"$(cat "$licence")"* ]] || { echo "LICENSE has not the text of $licence"; return 1; }
    done
    [ ${#text} -lt $(($(cat LICENSE-MIT LICENSE-APACHE | wc -c) + 200)) ]
}
notices() { of THIRD-PARTY | cmp - "$OUT/notices/THIRD-PARTY"; }
# The object's name says a machine, and its head.
machines() {
    local object head
    for object in $(unzip -Z1 "$zip" '*.syso'); do
        unzip -p "$zip" "$object" >"$work/object"
        head=$(readelf -h "$work/object")
        case $object in
        *_linux_amd64.syso) grep -q 'Machine:.*X86-64' <<<"$head" ;;
        *_linux_arm64.syso) grep -q 'Machine:.*AArch64' <<<"$head" ;;
        *) false ;;
        esac && grep -q 'Type:.*REL ' <<<"$head" || { echo "$object: $head"; return 1; }
    done
}
# A second run makes the same of the same commit.
again() {
    local bare=$OUT/git/watchcore.git
    [ "$(git rev-parse HEAD)" = "$(git -C "$bare" rev-parse main)" ] || { echo "the release is of another commit than this checkout"; return 1; }
    GO_TARGETS=$(git -C "$bare" log -1 --format=%s "go/v$VERSION" | sed 's/.* for //')
    export GO_TARGETS
    mkdir -p "$work/again"/{git,goproxy} && ln -s "$OUT/notices" "$work/again/notices" &&
        scripts/release/git.sh "$work/again/git" && OUT=$work/again scripts/release/goproxy.sh "$work/again/goproxy" || return
    diff -r --exclude=.commit "$OUT/goproxy" "$work/again/goproxy" &&
        diff <(git -C "$bare" show-ref) <(git -C "$work/again/git/watchcore.git" show-ref)
}
check 'the zip of go is below 20 MB' small "$zip"
check 'it has header, library and texts' has
for each in "${go_modules[@]}"; do check "both licences are in that of $each" licensed "${module%/go}/$each"; done
check 'the notices are in it' notices
check 'each object is of its machine' machines
check 'a second run makes the same zips and commits' again

# ---- the strangers ---------------------------------------------------------

# in_debian COMMAND: a shell's. The home is a directory of this run's: nothing is written into the root.
in_debian() {
    inside "$debian" --bind "$work/home" /root --ro-bind "$(go env GOROOT)" /usr/local/go \
        --ro-bind "$(go env GOMODCACHE)/cache/download" /downloads --ro-bind "$OUT/goproxy" /goproxy --ro-bind "$OUT/git" /git \
        ${etcd:+--ro-bind "$etcd" /opt} --setenv PATH /usr/local/go/bin:/usr/bin:/bin --setenv GOSUMDB off \
        --setenv GOFLAGS -modcacherw --setenv GOTOOLCHAIN local -- bash -euc "$1"
}
proxied() { in_debian "export GOPROXY=file:///goproxy,file:///downloads GOMODCACHE=/root/proxied/cache; cd proxied; $1"; }
direct() { in_debian "export GOPROXY=file:///downloads GONOPROXY=github.com/watchcore GOMODCACHE=/root/direct/cache; cd direct; $1"; }
for stranger in proxied direct; do
    mkdir -p "$work/home/$stranger"/{follow,pods}
    cp -- tests/outside/go-program/main.go tests/release/go/linked.go "$work/home/$stranger/follow"
    cp -- tests/release/go/kubernetes/main.go "$work/home/$stranger/pods"
done
printf '[url "file:///git/watchcore.git"]\n\tinsteadOf = https://github.com/watchcore/watchcore\n' >"$work/home/.gitconfig"

linked="static linux/$(go env GOARCH) glibc $VERSION is $VERSION"
# In a copy, because Go notes the sums in go.work.sum.
downloaded() { cp --parents -- go/go.{work,work.sum,mod} go/*/go.{mod,sum} "$work" && cd "$work/go" && go mod download; }
no_rust() { in_debian '! command -v cargo && ! command -v rustc && ! command -v pkg-config'; }
only_libc() {
    local needed
    needed=$(proxied 'ldd follow/program') || return
    printf '%s\n' "$needed"
    ! grep -E 'libgcc_s|libwatchcore|not found' <<<"$needed"
}
# What is exported names no package that others cannot import.
no_internals() {
    proxied "cd follow
        internals=\$(go list $module/... | sed -n 's|.*/internal/||p' | tr '\n' '|')
        for package in \$(go list $module/... | grep -v -e /internal/ -e /examples/); do
            ! go doc -all \$package | grep -vE '^( |\t//)' | grep -nE \"(^|[^a-zA-Z/])(\${internals%|})\\.[A-Z]\" || { echo \$package; exit 1; }
        done"
}
same_sums() { cmp "$work/home/proxied/$1/go.sum" "$work/home/direct/$1/go.sum"; }
vendored_texts() {
    local directory=$work/home/proxied/follow/vendor/$module
    [ -s "$directory/LICENSE" ] && [ -s "$directory/THIRD-PARTY" ]
}

check 'no Rust and no pkg-config there' no_rust
must "Kubernetes' modules" downloaded
must 'go get, from the proxy' proxied "cd follow; go mod init example.test/follow; go get $module@v$VERSION"
must 'go build' proxied 'cd follow; go build -o program .'
check 'the library is that of the header' prints "$linked" proxied './follow/program'
check 'it runs' prints '17 ADDED /a 1' proxied './follow/program'
check 'it finds no server' prints 'no server: true' proxied './follow/program'
check 'ldd shows the C library alone' only_libc
if unzip -Z1 "$zip" | grep -q '/musl/.*amd64.syso$'; then
    must 'go build -tags musl' proxied 'cd follow; CC=musl-gcc CGO_LDFLAGS=-Wl,--eh-frame-hdr go build -tags musl -o musl .'
    check 'it runs, with musl' prints "${linked/glibc/musl}" proxied './follow/musl'
fi
check 'go vet' proxied 'cd follow; go vet .'
check 'go mod verify' prints 'all modules verified' proxied 'cd follow; go mod verify'
check 'no exported signature names an internal package' no_internals
must 'go mod vendor, and go build without a proxy' proxied 'cd follow; go mod vendor; GOPROXY=off GOMODCACHE=/root/none go build -o vendored .'
check 'it runs' prints '17 ADDED /a 1' proxied './follow/vendored'
check 'the texts of the licences are vendored' vendored_texts
check 'go install of an example' proxied "GOBIN=/root/bin go install $module/examples/{discovery,controller}@v$VERSION"
check 'it runs' prints 'web lost 10.0.0.2:80' proxied '/root/bin/discovery'
# Not built: Go would compile for minutes.
check 'go get of go/apiserver' proxied "mkdir server; cd server; go mod init example.test/server; go get $module/apiserver@v$VERSION; go list -deps $module/apiserver"
must 'go get of go/kubernetes' proxied "cd pods; go mod init example.test/pods; go get $module/kubernetes@v$VERSION; go mod tidy"
must 'go build' proxied 'cd pods; go build -o program .'
check 'it runs' prints 'pods: [web]' proxied './pods/program'
must 'go mod vendor, and go build without a proxy' proxied 'cd pods; go mod vendor; GOPROXY=off GOMODCACHE=/root/none go build -o vendored .'
check 'it runs' prints 'pods: [web]' proxied './pods/vendored'

must 'go get, from the repository' direct "cd follow; go mod init example.test/follow; go get $module@v$VERSION"
check 'go run' prints "$linked" direct 'cd follow; go run .'
must 'go get of go/kubernetes' direct "cd pods; go mod init example.test/pods; go get $module/kubernetes@v$VERSION; go mod tidy"
check 'the sums are the same' same_sums follow
check 'those of go/kubernetes, too' same_sums pods
check 'git clone, and its tags' prints "v$VERSION" in_debian "git clone -q https://github.com/watchcore/watchcore clone; cd clone; git tag --points-at main"
# By number: no name is known there.
on_etcd() {
    proxied "peer=http://127.0.0.1:2380 client=http://127.0.0.1:2379
        /opt/etcd --data-dir /tmp/etcd --log-level error --initial-advertise-peer-urls \$peer --listen-peer-urls \$peer \
            --initial-cluster default=\$peer --advertise-client-urls \$client --listen-client-urls \$client &
        /opt/etcdctl --endpoints \$client --dial-timeout 60s --command-timeout 60s get /none
        /root/bin/controller \$client"
}
[ -z "$etcd" ] || check 'an installed example works on a real etcd' prints 'the end: web-0' on_etcd
summary
