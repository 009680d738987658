# For the programs of docs/GUIDE.md and README.md: their `run` sources this after lib.sh, with its own arguments.
# Beside a throw-away etcd, whose endpoint takes the place of the page's; likewise a port.

if [ -z "${WATCHCORE_TEST_ENDPOINT:-}" ]; then
    exec "$root/scripts/with-etcd.sh" "$0" "$root"
fi
export WATCHCORE=$root
# Nobody is there, and no client gets it for an outgoing connection: it lies below their range.
is_taken() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
guide_port=$((10000 + RANDOM % 22000))
while is_taken "$guide_port"; do guide_port=$((10000 + RANDOM % 22000)); done
shop_process=
trap '[ -z "$shop_process" ] || kill -KILL "$shop_process" 2>/dev/null' EXIT

# What stands on a page, with what is the user's filled in.
filled() {
    sed -e "s|http://127.0.0.1:2379|$WATCHCORE_TEST_ENDPOINT|" -e "s|127.0.0.1:8080|127.0.0.1:$guide_port|" -e "s|\$HOME/.local|$PWD/local|g"
}

# block LANGUAGE TEXT: the first block of code of the guide in that language that contains the text.
block() {
    awk -v fence="\`\`\`$1" -v text="$2" '
        /^```$/ { if (inside && index(block, text)) { printf "%s", block; found = 1; exit } inside = 0 }
        inside { block = block $0 "\n" }
        $0 == fence { inside = 1; block = "" }
        END { exit !found }' "$root/docs/GUIDE.md" | filled
    [ "${PIPESTATUS[0]}" = 0 ] || { echo "docs/GUIDE.md has no block of $1 with '$2'" >&2; return 1; }
}

put() { "$WATCHCORE_TEST_ETCDCTL" --endpoints "$WATCHCORE_TEST_ENDPOINT" put "$1" "$2"; }

# within COMMAND...: it succeeds some time; half a minute is the bound.
within() {
    for _ in {1..600}; do
        if "$@"; then return; fi
        kill -0 "$shop_process" 2>/dev/null || break
        sleep 0.05
    done
    "$@"
}

# soon COMMAND...: the same, whether the service lives or not.
soon() {
    for _ in {1..600}; do
        if "$@"; then return; fi
        sleep 0.05
    done
    "$@"
}

# begin COMMAND...: the service, in the background; what it says is in shop.log.
begin() {
    "$@" >shop.log 2>&1 </dev/null &
    shop_process=$!
}

asked() { curl -sS --max-time 10 "http://127.0.0.1:$guide_port$1" 2>/dev/null; }
answers() { [ "$(asked "$1")" = "$2" ]; }
status_of() { curl -sS --max-time 10 -o /dev/null -w '%{http_code}' "http://127.0.0.1:$guide_port$1"; }
has() { grep -qxF -- "$2" "$1"; }
ended() { ! kill -0 "$1" 2>/dev/null; }

# serves COMMAND...: a service of the guide that speaks HTTP does what the page says.
serves() {
    put /shop/items/apple red >/dev/null
    begin "$@"
    check 'an item is answered' within answers /items/apple red || tail -n 20 shop.log
    curl -sN "http://127.0.0.1:$guide_port/changes" >changes.log &
    local listener=$!
    check 'the state comes first' within has changes.log 'data: /shop/items/apple red'
    newer() {
        for value in green yellow brown black; do
            put /shop/items/apple $value >/dev/null && answers /items/apple $value || return
        done
    }
    check 'what was written is answered at once' newer
    put /shop/items/pear green >/dev/null
    check 'an item that comes is told' within has changes.log 'data: /shop/items/pear green'
    check 'each change was told' bash -c 'for value in green yellow brown black; do grep -qxF "data: /shop/items/apple $value" changes.log || exit; done'
    "$WATCHCORE_TEST_ETCDCTL" --endpoints "$WATCHCORE_TEST_ENDPOINT" del /shop/items/pear >/dev/null
    check 'one that goes is told' within has changes.log 'event: DELETED'
    check 'an item that is not there is 404' [ "$(status_of /items/pear)" = 404 ]
    kill -INT "$shop_process"
    check 'it ends by Ctrl-C, and its streams with it' soon ended "$listener"
    wait "$shop_process"
    check 'it ends well' [ $? = 0 ]
    shop_process=
}
