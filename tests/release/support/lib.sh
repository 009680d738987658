# What the proofs of this directory share; they source it in the repository's root. Afterwards the working directory is one that is
# removed at the end, `root` is the repository, and what tests/outside/lib.sh has is there.
set -euo pipefail
. scripts/release/lib.sh
root=$PWD
etcd=$(scripts/etcd.sh)
work=$(mktemp -d "$root/target/test-release.XXXXXX")
trap 'rm -rf -- "$work"' EXIT

# fresh NAME SUITE [PACKAGE...]: a copy of that root in the working directory, as NAME, which a proof may change.
fresh() { (cd -- "$root" && cp -a "$(root "$@")" "$work/$1"); }

# beside_etcd ROOT [bwrap's options...] -- COMMAND...: as `inside`, with etcd and the scripts of support/ in /opt.
beside_etcd() {
    local path=$1
    shift
    inside "$path" --ro-bind "$etcd" /opt/etcd --setenv WATCHCORE_ETCD /opt/etcd --ro-bind "$root/scripts" /opt/scripts \
        --ro-bind "$root/tests/release/support" /opt/support "$@"
}

cd -- "$work"
. "$root/tests/outside/lib.sh"
set +e
