#!/usr/bin/env bash
# Runs Kubernetes' own integration tests over go/apiserver: an API server in the test's process, and the etcd of scripts/etcd.sh.
#
#   scripts/integration-apiserver.sh [--only PACKAGE]... [--run REGEX] [--upstream]
#
# --only PACKAGE   a package below k8s.io/kubernetes/test/integration, such as controlplane; PACKAGE/... takes those below it too
# --run REGEX      only tests whose names match
# --upstream       with the watch cache of k8s.io/apiserver instead, to see what that one does
#
# The tests are those of the module cache, unchanged. In a copy of k8s.io/apiserver one file is changed, the one that makes the watch
# cache of each resource: it takes watchcore's, or with WATCHCORE_CACHER=upstream its own. Each test runs in a process and with an etcd of
# its own. A test that fails runs with the upstream cache too, and if it passes there, once more with watchcore's.
# KUBE_WATCHCACHE_CONSISTENCY_CHECKER ends a process whose cache differs from etcd; every cache is compared each two seconds.
#
# Without --only these are the packages of `default` below: some 25 minutes on two processors, and three of compiling before.
# Everything is made in target/integration-apiserver, where logs/ has what the tests print. Exit status: 0 if no test failed with
# watchcore alone.
# WATCHCORE_TEST_TIMEOUT   seconds that a test may take (default 600)
# WATCHCORE_TEST_JOBS      how many tests run at once (default 2: they mostly wait)
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
work=$root/target/integration-apiserver
example=$root/go/apiserver/examples/kube-apiserver
tests=k8s.io/kubernetes/test/integration
limit=${WATCHCORE_TEST_TIMEOUT:-600} jobs=${WATCHCORE_TEST_JOBS:-2}
default=(namespace garbagecollector apiserver controlplane/... apimachinery staleness)

fail() { printf 'integration-apiserver.sh: %s\n' "$*" >&2; exit 2; }
packages=() pattern=. side=watchcore
while [ $# -gt 0 ]; do
    case $1 in
    --only) packages+=("${2:?--only needs a package}"); shift 2 ;;
    --run) pattern=${2:?--run needs an expression}; shift 2 ;;
    --upstream) side=upstream; shift ;;
    *) fail "unknown argument $1; see the head of this file" ;;
    esac
done
[ ${#packages[@]} -gt 0 ] || packages=("${default[@]}")
[ -f "$root/$("$root/scripts/go-dist.sh" --object)" ] || fail "the library is missing: run 'make lib'"
etcd=$("$root/scripts/etcd.sh") || exit

# The module: that of the example, with our modules by path and the changed k8s.io/apiserver.
mkdir -p "$work/bin" "$work/logs"
export GOWORK=off GOFLAGS='-mod=mod -buildvcs=false'
sed -e 's|^module .*|module integration|' -e '/^replace k8s.io\/apiserver =>/d' "$example/go.mod" >"$work/go.mod"
cat >>"$work/go.mod" <<EOF
replace (
	k8s.io/apiserver => ./apiserver
	github.com/watchcore/watchcore/go => $root/go
	github.com/watchcore/watchcore/go/apiserver => $root/go/apiserver
)
EOF
cp "$example/go.sum" "$work/go.sum"
echo 'package integration' >"$work/module.go"
original=$(cd -- "$example" && GOWORK=off go mod download -json k8s.io/apiserver | sed -n 's/^.*"Dir": "\(.*\)".*/\1/p')
rm -rf -- "$work/apiserver"
cp -r -- "$original" "$work/apiserver"
chmod -R u+w -- "$work/apiserver"
file=pkg/registry/generic/registry/storage_factory.go
sed -i -e 's|^import ($|&\n\t"k8s.io/apiserver/pkg/storage/cacher/consistency"\n\twatchcore "github.com/watchcore/watchcore/go/apiserver"\n\t"os"\n\t"time"|' \
    -e 's|^func StorageWithCacher() generic.StorageDecorator {$|&\n\tif os.Getenv("WATCHCORE_CACHER") != "upstream" {\n\t\treturn watchcore.Decorator()\n\t}|' \
    "$work/apiserver/$file"
# Most tests end before the five minutes after which the checker looks for the first time.
printf '\nfunc init() { consistency.CheckPeriod = 2 * time.Second }\n' >>"$work/apiserver/$file"
changed=$(diff -r -- "$original" "$work/apiserver" | grep -c '^> ' || true)
[ "$changed" = 9 ] || fail "$file of k8s.io/apiserver is not as expected: $changed lines were added, not 9"

directory=$(mktemp -d)
trap 'chmod -R u+w -- "$directory"; rm -rf -- "$directory"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
export TMPDIR=$directory PATH=$etcd:$PATH KUBE_WATCHCACHE_CONSISTENCY_CHECKER=true
unset "${!ETCD_@}" "${!KUBE_INTEGRATION_@}"

# once SIDE PACKAGE TEST: runs a test, and says pass, skip or fail.
once() {
    local log=$work/logs/${2//\//-}.$3.$1
    if (cd -- "$source" && WATCHCORE_CACHER=$1 exec timeout --kill-after=10 $((limit + 30)) \
        "$binary" -test.v -test.run "^$3\$" -test.timeout "${limit}s") >"$log" 2>&1 </dev/null; then
        if grep -q "^--- SKIP: $3 " "$log"; then echo skip; else echo pass; fi
    else
        cp -- "$log" "$log.failed"
        echo fail
    fi
}

# judge PACKAGE TEST: runs it with each cache as needed, prints what it does, and adds that to the results.
judge() {
    local result since=$SECONDS
    result=$(once $side "$1" "$2")
    if [ "$result" = fail ] && [ $side = watchcore ]; then
        if [ "$(once upstream "$1" "$2")" = fail ]; then
            result=both
        elif [ "$(once watchcore "$1" "$2")" = pass ]; then
            result=unsteady
        else
            result=ours
        fi
    fi
    printf '  %-10s %4d s  %s.%s\n' "$result" $((SECONDS - since)) "$1" "$2"
    echo "$result $1.$2" >>"$results"
}

began=$SECONDS results=$directory/results
: >"$results"
cd -- "$work"
for package in $(go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' "${packages[@]/#/$tests/}"); do
    source=$(go list -f '{{.Dir}}' "$package")
    package=${package#"$tests/"} binary=$work/bin/${package//\//-}.test
    go test -c -o "$binary" "$tests/$package"
    start=$SECONDS at_once=$jobs
    # These tests listen on sockets whose names they share.
    [ "$package" != controlplane/transformation ] || at_once=1
    for test in $(cd -- "$source" && "$binary" -test.list "$pattern" 2>/dev/null | grep '^Test'); do
        while [ "$(jobs -pr | wc -l)" -ge "$at_once" ]; do wait -n; done
        judge "$package" "$test" &
    done
    wait
    printf '%s: %d of %d passed in %d s\n' "$package" "$(grep -c "^pass $package\." "$results")" "$(grep -c " $package\." "$results")" \
        $((SECONDS - start))
done

# summary TEXT RESULT: how many, and which.
summary() {
    printf '%s: %d\n' "$1" "$(grep -c "^$2 " "$results")"
    [ "$2" = pass ] || sed -n "s/^$2 /  /p" "$results"
}
echo
summary passed pass
summary skipped skip
if [ $side = upstream ]; then
    summary failed fail
else
    summary 'failed with both caches' both
    summary 'failed with watchcore, then passed' unsteady
    summary 'failed with watchcore alone' ours
fi
printf 'time: %d s\n' $((SECONDS - began))
! grep -q '^ours ' "$results"
