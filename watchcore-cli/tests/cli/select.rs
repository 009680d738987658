//! Selectors, pages and single keys of the command line, against a real etcd.

use crate::run::{Ended, json, members, run, words};
use crate::support::etcd::{Ctl, Etcd};
use etcd_client::{ConnectOptions, Permission, TxnOp};
use serde_json::Value;

/// The keys that a list has printed, and its END line.
#[track_caller]
fn listed(ended: &Ended) -> (Vec<String>, Value) {
    let lines = ended.lines();
    let (end, keys) = lines.split_last().expect("an END line");
    let keys: Vec<String> = keys.iter().map(|line| json(line)["key"].as_str().expect("a key").to_owned()).collect();
    let end = json(end);
    assert_eq!((&end["type"], end["count"].as_u64()), (&"END".into(), Some(keys.len() as u64)), "{ended:?}");
    (keys, end)
}

#[test]
fn selectors_of_a_list_look_where_they_are_told() {
    let etcd = Etcd::start();
    let client = etcd.ctl();
    let value = |inside: &str| format!(r#"{{"own":{{"l":"1"}},"metadata":{{"labels":{{"l":"2"}}}},"s":{{{inside}}}}}"#);
    for (key, inside) in [
        ("/a/array", r#""x":[1]"#),
        ("/a/dot", r#""x.y":"dotted""#),
        ("/a/false", r#""x":false"#),
        ("/a/nested", r#""x":{"y":"nested"}"#),
        ("/a/null", r#""x":null"#),
        ("/a/number", r#""x":1.50"#),
        ("/a/string", r#""x":"1.50""#),
    ] {
        client.put(key, value(inside));
    }
    let endpoint = etcd.url();
    let keys = |more: &[&str]| {
        let ended = run(&words(&endpoint, &[&["list", "--prefix", "/a/"], more].concat())).is(0);
        let (keys, end) = listed(&ended);
        assert_eq!((members(&end.to_string()).len(), &end["revision"]), (3, &8.into()), "{end}");
        keys.iter().map(|key| key.trim_start_matches("/a/").to_owned()).collect::<Vec<_>>()
    };
    let all = ["array", "dot", "false", "nested", "null", "number", "string"];
    // Scalars by their text; arrays, objects and null are absent, which is the empty string.
    assert_eq!(keys(&["--fields", "s.x=1.50"]), ["number", "string"]);
    assert_eq!(keys(&["--fields", "s.x=false"]), ["false"]);
    assert_eq!(keys(&["--fields", "s.x="]), ["array", "dot", "nested", "null"]);
    assert_eq!(keys(&["--fields", "s.x!=,s.x!=false"]), ["number", "string"]);
    // A dot in a name is a step, unless --field says otherwise.
    assert_eq!(keys(&["--fields", "s.x.y=dotted"]), [""; 0]);
    assert_eq!(keys(&["--fields", "s.x.y=nested"]), ["nested"]);
    assert_eq!(keys(&["--fields", "s.x.y=dotted", "--field", "s.x.y=/s/x.y"]), ["dot"]);
    assert_eq!(
        keys(&["--field", "n=/s/x", "--field", "d=/s/x.y", "--fields", "d!=dotted,n="]),
        ["array", "nested", "null"]
    );
    // Labels are at /metadata/labels, unless --labels-from says otherwise.
    assert_eq!(keys(&["--labels", "l=2"]), all);
    assert_eq!(keys(&["--labels", "l=1"]), [""; 0]);
    assert_eq!(keys(&["--labels", "l=1", "--labels-from", "/own"]), all);
    assert_eq!(keys(&["--labels", "x in (false)", "--labels-from", "/s", "--fields", "own.l=1"]), ["false"]);
    assert_eq!(keys(&["--labels", "", "--fields", ""]), all);
}

fn numbered(client: &Ctl, count: usize) {
    client.txn((0..count).map(|number| TxnOp::put(format!("/a/{number}"), "1", None)).collect());
}

#[test]
fn a_page_whose_revision_is_compacted_says_how_to_go_on() {
    let etcd = Etcd::start();
    let client = etcd.ctl();
    numbered(&client, 5); // 2
    let endpoint = etcd.url();
    let page = |more: &[&str]| run(&words(&endpoint, &[&["list", "--prefix", "/a/", "--limit", "2"], more].concat()));
    let (_, end) = listed(&page(&[]).is(0));
    client.compact(client.put("/a/5", "new")); // 3
    let gone = page(&["--continue", end["continue"].as_str().expect("there is more")]).is(5);
    let error = gone.error("COMPACTED");
    let next = error["continue"].as_str().expect("a token");
    let message = error["message"].as_str().expect("a text");
    assert!(message.contains("revision 2") && message.contains(&format!("--continue {next}")), "{message}");
    assert!(message.contains("list from the start"), "{message}");
}

#[test]
fn a_token_is_good_only_for_the_list_that_gave_it() {
    let etcd = Etcd::start();
    let client = etcd.ctl();
    numbered(&client, 3); // 2
    let endpoint = etcd.url();
    let list = |more: &[&str]| run(&words(&endpoint, &[&["list", "--limit", "1"], more].concat()));
    let (_, end) = listed(&list(&["--prefix", "/a/", "--fields", "x=", "--labels", "!y"]).is(0));
    let token = end["continue"].as_str().expect("there is more");
    let same = list(&["--prefix", "/a/", "--labels", "!y", "--fields", "x==", "--continue", token]).is(0);
    assert_eq!(listed(&same).0, ["/a/1"]);
    for (compacted, wrong) in [false, true].into_iter().flat_map(|compacted| {
        [
            &["--prefix", "/a/"][..],
            &["--prefix", "/a", "--fields", "x=", "--labels", "!y"],
            &["--prefix", "/a/", "--fields", "x=", "--labels", "y"],
            &["--prefix", "/a/", "--fields", "x!=", "--labels", "!y"],
        ]
        .map(|wrong| (compacted, wrong))
    }) {
        if compacted {
            client.compact(client.put("/a/x", "1"));
        }
        let ended = list(&[wrong, &["--continue", token]].concat()).is(2);
        assert!(ended.out.is_empty(), "{wrong:?}: {ended:?}");
        assert!(ended.err.contains("continue token: it is of another"), "{wrong:?}: {ended:?}");
    }
    let mut damaged = token.to_owned();
    damaged.replace_range(5..6, if &token[5..6] == "A" { "B" } else { "A" });
    let ended = list(&["--prefix", "/a/", "--continue", &damaged]).is(2);
    assert!(ended.err.contains("continue token"), "{ended:?}");
    // The revision is not there yet: another etcd.
    let other = Etcd::start();
    let task = ["list", "--prefix", "/a/", "--continue", token, "--timeout", "500ms", "--etcd", &other.url()];
    run(&task).is(4);
    numbered(&other.ctl(), 3); // 2
    let ended = run(&task).is(2);
    assert!(ended.err.contains("another cache"), "{ended:?}");
}

#[test]
fn get_asks_for_its_key_alone() {
    let etcd = Etcd::start();
    let client = etcd.ctl();
    for (key, value) in [("/a/key", "1"), ("/a/key2", "1"), ("/a/other", "1"), ("/a/key", "2")] {
        client.put(key, value); // 2 to 5
    }
    client.enable_auth("secret", "secret", &[Permission::read("/a/key"), Permission::read("/a/absent")]);
    let endpoint = etcd.url();
    let get = |more: &[&str]| run(&words(&endpoint, &[&["get", "--user", "app:secret"], more].concat()));
    let new = r#"{"key":"/a/key","value":"2","create_revision":2,"mod_revision":5,"version":2}"#;
    let old = r#"{"key":"/a/key","value":"1","create_revision":2,"mod_revision":2,"version":1}"#;
    assert_eq!(get(&["/a/key"]).is(0).lines(), [new]);
    assert_eq!(get(&["/a/key", "--prefix", "/a/"]).is(0).lines(), [new]);
    assert_eq!(get(&["/a/key", "--revision", "3"]).is(0).lines(), [old]);
    get(&["/a/absent"]).is(3);
    for refused in ["/a/key2", "/a/ke", "/a/other"] {
        get(&[refused]).is(1).error("PERMISSION_DENIED");
    }
    let root = Ctl::connect(&endpoint, ConnectOptions::new().with_user("root", "secret"));
    root.compact(4);
    get(&["/a/key", "--revision", "3"]).is(5).error("COMPACTED");
}
