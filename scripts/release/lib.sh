# What the scripts of a release share. They source it in the repository's root.
#
# VERSION and OUT are the release's number and directory. A root is a directory with a Debian system, made once in target/roots.

say() { printf '%s: %s\n' "$(basename -- "$0")" "$*" >&2; }
fail() { say "$@"; exit 1; }
# need TOOL PACKAGE: PACKAGE is Debian's.
need() { command -v "$1" >/dev/null || fail "$1 is missing: install it (Debian: apt-get install $2)"; }

# The Go modules; the others require the first.
go_modules=(go go/kubernetes go/apiserver)

# The commit's time: what is packed has no other.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH

# root NAME SUITE [PACKAGE...]: the path of a root of this Debian SUITE with these packages.
root() {
    local name=$1 suite=$2 path=$PWD/target/roots/$1
    shift 2
    if [ ! -d "$path" ]; then
        need mmdebstrap mmdebstrap
        say "making the root $name: $suite $*"
        rm -rf -- "$path.new"
        mkdir -p -- "$(dirname -- "$path")"
        mmdebstrap --quiet --variant=minbase ${1:+--include="$(IFS=,; echo "$*")"} "$suite" "$path.new" >&2
        mv -- "$path.new" "$path"
    fi
    echo "$path"
}

# inside ROOT [bwrap's options...] -- COMMAND...: runs it in the root, with loopback as its only network unless --share-net is
# among the options. It sees nothing of this machine but what an option binds, and no variable but these.
inside() {
    local path=$1 options=()
    shift
    while [ "$1" != -- ]; do options+=("$1"); shift; done
    shift
    need bwrap bubblewrap
    bwrap --bind "$path" / --proc /proc --dev /dev --tmpfs /tmp --unshare-all --die-with-parent --new-session \
        --clearenv --setenv PATH /usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin --setenv HOME /root \
        --setenv LC_ALL C.UTF-8 --chdir /root "${options[@]}" "$@"
}
