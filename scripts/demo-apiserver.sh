#!/usr/bin/env bash
# Kubernetes on watchcore: kube-apiserver with watchcore's storage (go/apiserver/examples/kube-apiserver), kube-controller-manager and
# kubectl over a real etcd. Namespaces, custom resources and deployments come and go while etcd and then the API server are killed. At the
# end what each of the watchers received is compared with what etcd itself says.
#
#   scripts/demo-apiserver.sh                   must pass
#   scripts/demo-apiserver.sh -fault drop       one event of one watcher is dropped on the way: must fail (double: doubled)
#   scripts/demo-apiserver.sh -keep             leaves the logs
#
# Go compiles Kubernetes for it, once, in some ten minutes. Exit status: 0 passed, 1 failed, 2 usage, 3 something is missing.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

missing=()
command -v go >/dev/null || missing+=("go: install Go 1.26 or newer (https://go.dev/dl)")
command -v "${CARGO:-cargo}" >/dev/null || missing+=("cargo: install Rust by rustup (https://rustup.rs)")
command -v "${CC:-cc}" >/dev/null || missing+=("cc: a C compiler, for cgo")
if [ ${#missing[@]} -gt 0 ]; then
    printf 'demo-apiserver.sh: missing: %s\n' "${missing[@]}" >&2
    exit 3
fi
etcd=$(scripts/etcd.sh)
out=$PWD/target/demo-apiserver
mkdir -p "$out"

echo "building (the first time takes some ten minutes)" >&2
make --no-print-directory lib >&2
cd go/apiserver/examples/kube-apiserver
kubernetes=$(sed -n 's|^[[:space:]]*k8s\.io/kubernetes \(v[0-9.]*\)$|\1|p' go.mod)
# The workspace of this directory has the modules of this tree. kubectl refuses to compare a version that is none.
export GOFLAGS="-buildvcs=false ${GOFLAGS:-}" CGO_ENABLED=1
unset GOWORK
go build -ldflags "-X k8s.io/component-base/version.gitVersion=$kubernetes -X k8s.io/client-go/pkg/version.gitVersion=$kubernetes" \
    -o "$out/" . ./demo k8s.io/kubernetes/cmd/kube-controller-manager k8s.io/kubernetes/cmd/kubectl
exec "$out/demo" -etcd "$etcd/etcd" "$@"
