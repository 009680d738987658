//! The examples below the help of each command.

pub(crate) const ALL: &str = "\
Examples:
  watchcore watch --prefix /registry/pods/             what is there, then each change
  watchcore list --prefix /registry/ --keys-only       which keys there are
  watchcore get /registry/pods/default/web             one value
  watchcore diff --prefix /registry/ 1200 1300         what changed between two revisions
  watchcore demo                                       a tour; needs no etcd

etcd is looked for at http://127.0.0.1:2379; --etcd or WATCHCORE_ETCD name another. Where neither does, etcdctl's variables are taken: ETCDCTL_ENDPOINTS and its others.

Exit codes: 0 done, 1 error, 2 usage, 3 not found, 4 timeout, 5 compacted or lagged, 130 and 143 interrupted.";

pub(crate) const WATCH: &str = "\
Examples:
  watchcore watch --prefix /registry/pods/                   the state, then each change, until Ctrl-C
  watchcore watch --key /registry/pods/default/web           one key
  watchcore watch --prefix /a/ --start now --format json     changes from now on, one JSON object a line
  watchcore watch --prefix /a/ --start after:1200            goes on where a watch ended at revision 1200
  watchcore watch --prefix /pods/ --labels app=web --fields spec.nodeName=node-7";

pub(crate) const LIST: &str = "\
Examples:
  watchcore list --prefix /registry/pods/
  watchcore list --prefix \"\" --keys-only                     every key of etcd
  watchcore list --prefix /a/ --revision 1200                as it was then
  watchcore list --prefix /a/ --limit 100                    a page; it says how to go on";

pub(crate) const GET: &str = "\
Examples:
  watchcore get /registry/pods/default/web
  watchcore get /registry/pods/default/web --revision 1200   as it was then
  watchcore get /config --format json | jq -r .value         the value alone";

pub(crate) const COUNT: &str = "\
Examples:
  watchcore count --prefix /registry/pods/
  watchcore count --prefix /pods/ --fields status.phase=Running
  watchcore count --prefix \"\" --revision 1200                as it was then";

pub(crate) const DIFF: &str = "\
Examples:
  watchcore diff --prefix /registry/ 1200 1300
  watchcore diff --prefix /registry/ 1200                    up to now
  watchcore diff --prefix \"\" 1200 --keys-only

Each step in between is shown by: watchcore watch --prefix P --start after:R1 --until-revision R2";

pub(crate) const STATUS: &str = "\
Examples:
  watchcore status --prefix \"\"
  watchcore status --prefix \"\" --format json --timeout 5s    whether etcd can be reached and read, for scripts";

pub(crate) const SERVE: &str = "\
Examples:
  watchcore serve --prefix /registry/                        keys and values, at /v1/keys
  watchcore serve --resource apps/v1/deployments:Deployment:namespaced=/registry/deployments/
  watchcore serve --config watchcore.toml                    everything else: TLS, tokens, columns, limits
  kubectl --server http://127.0.0.1:8080 get deployments --all-namespaces --watch

An option goes before the file, and so does WATCHCORE_ETCD; paths in the file are relative to it. --field and --labels-from are for the resources of --resource. Exit codes: 0 after SIGTERM, 130 after Ctrl-C, 2 where options or the file are wrong.";

pub(crate) const BENCH: &str = "\
Examples:
  watchcore bench
  watchcore bench --subscribers 1000 --selective";

pub(crate) const DEMO: &str = "\
Examples:
  watchcore demo                                             without etcd
  watchcore demo --etcd http://127.0.0.1:2379                writes there, below /watchcore-demo/";

pub(crate) const COMPLETIONS: &str = "\
Install:
  bash        watchcore completions bash > ~/.local/share/bash-completion/completions/watchcore
  zsh         watchcore completions zsh > \"${fpath[1]}/_watchcore\"
  fish        watchcore completions fish > ~/.config/fish/completions/watchcore.fish
  powershell  watchcore completions powershell >> $PROFILE
  elvish      watchcore completions elvish >> ~/.config/elvish/rc.elv";

pub(crate) const MANUAL: &str = "\
Example:
  watchcore manual ~/.local/share/man/man1                   then: man watchcore, man watchcore-watch";
