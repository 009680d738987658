//! `diff` and `--keys-only`, and a watch of one key, against a real etcd.

use crate::run::{Running, command, members, run, words};
use crate::support::etcd::Etcd;
use etcd_client::{ConnectOptions, Permission, TxnOp};
use serde_json::Value;

#[test]
fn diff_is_the_net_change_of_each_key_to_the_letter() {
    let etcd = Etcd::start();
    let client = etcd.ctl();
    for (key, value) in [("/a/changed", "1"), ("/a/gone", "1"), ("/a/kept", "1"), ("/a/remade", "1")] {
        client.put(key, value); // 2 to 5
    }
    client.put("/b", "1"); // 6: outside
    client.put("/a/changed", "2"); // 7
    client.put("/a/changed", "3"); // 8
    client.delete("/a/gone"); // 9
    client.put("/a/passing", "1"); // 10
    client.delete("/a/passing"); // 11
    client.delete("/a/remade"); // 12
    client.put("/a/remade", "2"); // 13
    client.put("/a/new", b"\xff"); // 14
    client.put("/a/kept", "2"); // 15: later
    let endpoint = etcd.url();
    let diff = |more: &[&str]| run(&words(&endpoint, &[&["diff", "--prefix", "/a/"], more].concat()));
    let all = [
        r#"{"type":"MODIFIED","revision":8,"key":"/a/changed","value":"3","prev_value":"1","create_revision":2,"mod_revision":8,"version":3}"#,
        r#"{"type":"DELETED","key":"/a/gone","prev_value":"1","create_revision":3,"mod_revision":3,"version":1}"#,
        r#"{"type":"ADDED","revision":14,"key":"/a/new","value_base64":"/w==","create_revision":14,"mod_revision":14,"version":1}"#,
        r#"{"type":"MODIFIED","revision":13,"key":"/a/remade","value":"2","prev_value":"1","create_revision":13,"mod_revision":13,"version":1}"#,
        r#"{"type":"END","from":5,"to":14,"count":4}"#,
    ];
    assert_eq!(diff(&["5", "14"]).is(0).lines(), all);
    assert_eq!(diff(&["5", "14", "--capacity", "128"]).is(0).lines(), all);
    let newest = diff(&["5"]).is(0);
    assert_eq!(newest.lines().last(), Some(&r#"{"type":"END","from":5,"to":15,"count":5}"#));
    assert_eq!(diff(&["14", "14"]).is(0).lines(), [r#"{"type":"END","from":14,"to":14,"count":0}"#]);
    assert_eq!(diff(&["10", "11"]).is(0).lines().len(), 2);
    let keys = diff(&["5", "14", "--keys-only"]).is(0);
    assert_eq!(members(keys.lines()[0]), ["type", "revision", "key", "create_revision", "mod_revision", "version"]);
    assert_eq!(members(keys.lines()[1]), ["type", "key", "create_revision", "mod_revision", "version"]);
    let text = run(&["diff", "--prefix", "/a/", "5", "14", "--etcd", &endpoint]).is(0);
    assert_eq!(
        text.out,
        "8 MODIFIED /a/changed 3\n- DELETED /a/gone\n14 ADDED /a/new \\xff\n13 MODIFIED /a/remade 2\n"
    );

    client.compact(9);
    let gone = diff(&["5", "14"]).is(5);
    assert_eq!(gone.error("COMPACTED")["oldest"], 10);
    assert_eq!(diff(&["9", "14"]).is(0).lines().len(), 3, "the border: the state at 9 is still there");
    // The listing has to come within that, too: on a slow machine, within the longer ones.
    // No port has as many digits.
    let names_it = |timeout: &str| diff(&["9", "987654", "--timeout", timeout]).is(4).err.contains("987654");
    assert!(["500ms", "5s", "50s"].into_iter().any(names_it), "a timeout that names the revision");
}

/// The log holds far fewer changes than lie between, and than there are in the difference.
#[test]
fn diff_is_longer_than_the_log() {
    let etcd = Etcd::start();
    let client = etcd.ctl();
    let put = |from: usize, value: &str| {
        let puts = (from..from + 100).map(|number| TxnOp::put(format!("/a/{number:04}"), value, None));
        client.txn(puts.collect())
    };
    let puts = |from: usize, value: &str| (from..from + 1000).step_by(100).fold(0, |_, from| put(from, value));
    let (first, last) = (puts(0, "1"), puts(500, "2"));
    let (first, last, endpoint) = (first.to_string(), last.to_string(), etcd.url());
    let task = ["diff", "--prefix", "/a/", &first, &last, "--capacity", "128"];
    let ended = run(&words(&endpoint, &task)).is(0);
    let count = |kind: &str| ended.lines().iter().filter(|line| line.contains(kind)).count();
    assert_eq!((count("\"MODIFIED\""), count("\"ADDED\""), count("\"END\"")), (500, 500, 1));
}

#[test]
fn selectors_of_a_diff_show_what_enters_and_leaves() {
    let etcd = Etcd::start();
    let client = etcd.ctl();
    for key in ["/a/in", "/a/leaves", "/a/stays"] {
        client.put(key, r#"{"s":"x"}"#); // 2 to 4
    }
    client.put("/a/in", r#"{"s":"y"}"#); // 5
    client.put("/a/enters", r#"{"s":"y"}"#); // 6
    client.put("/a/leaves", "no JSON"); // 7
    let endpoint = etcd.url();
    let ended = run(&words(&endpoint, &["diff", "--prefix", "/a/", "4", "7", "--fields", "s!="])).is(0);
    let kinds: Vec<[String; 2]> = ended.lines()[..3]
        .iter()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON"))
        .map(|line| ["type", "key"].map(|name| line[name].as_str().unwrap_or_default().to_owned()))
        .collect();
    let expected = [["ADDED", "/a/enters"], ["MODIFIED", "/a/in"], ["DELETED", "/a/leaves"]];
    assert_eq!(kinds, expected.map(|row| row.map(str::to_owned)));
}

#[test]
fn keys_only_leaves_out_the_values() {
    let etcd = Etcd::start();
    let client = etcd.ctl();
    client.put("/a/1", "x"); // 2
    client.put("/a/1", "y"); // 3
    client.delete("/a/1"); // 4
    client.put("/a/2", "z"); // 5
    let endpoint = etcd.url();
    let key = r#"{"key":"/a/2","create_revision":5,"mod_revision":5,"version":1}"#;
    let list = run(&words(&endpoint, &["list", "--prefix", "/a/", "--keys-only"])).is(0);
    assert_eq!(list.lines(), [key, r#"{"type":"END","revision":5,"count":1}"#]);
    assert_eq!(run(&["list", "--prefix", "/a/", "--keys-only", "--etcd", &endpoint]).is(0).out, "5 /a/2\n");
    let task = ["watch", "--prefix", "/a/", "--keys-only", "--start", "after:1", "--until-revision", "5"];
    let watch = run(&words(&endpoint, &task)).is(0);
    let expected = [
        r#"{"type":"ADDED","revision":2,"key":"/a/1","create_revision":2,"mod_revision":2,"version":1}"#,
        r#"{"type":"MODIFIED","revision":3,"key":"/a/1","create_revision":2,"mod_revision":3,"version":2}"#,
        r#"{"type":"DELETED","revision":4,"key":"/a/1","create_revision":2,"mod_revision":3,"version":2}"#,
        r#"{"type":"ADDED","revision":5,"key":"/a/2","create_revision":5,"mod_revision":5,"version":1}"#,
    ];
    assert_eq!(watch.lines(), expected);
}

/// Permission to read the key is enough, and keys that begin with it are not shown.
#[test]
fn a_watch_of_a_key_asks_for_that_key_alone() {
    let etcd = Etcd::start();
    let client = etcd.ctl();
    for (key, value) in [("/a/key", "1"), ("/a/key2", "1"), ("/a/key", "2")] {
        client.put(key, value); // 2 to 4
    }
    client.enable_auth("secret", "secret", &[Permission::read("/a/key")]);
    let endpoint = etcd.url();
    let task = |more: &[&'static str]| {
        words(&endpoint, &[&["watch", "--key", "/a/key", "--user", "app:secret"], more].concat()).join(" ")
    };
    let start = |more: &[&'static str]| {
        let task = task(more);
        Running::start(command(&task.split(' ').collect::<Vec<_>>()))
    };
    let mut state = start(&["--until-revision", "6"]);
    let mut after = start(&["--start", "after:2", "--until-revision", "6"]);
    let second =
        r#"{"type":"ADDED","revision":4,"key":"/a/key","value":"2","create_revision":2,"mod_revision":4,"version":2}"#;
    assert_eq!(state.line(), second);
    assert_eq!(state.line(), r#"{"type":"BOOKMARK","revision":4,"initial_state_end":true}"#);
    let root = crate::support::etcd::Ctl::connect(&endpoint, ConnectOptions::new().with_user("root", "secret"));
    assert!(after.line().starts_with(r#"{"type":"MODIFIED","revision":4,"key":"/a/key","value":"2","prev_value":"1""#));
    root.put("/a/key", "3"); // 5
    root.put("/a/key2", "2"); // 6
    for watch in [state, after] {
        let ended = watch.end().is(0);
        assert_eq!(ended.lines().len(), 1, "{ended:?}");
        assert!(ended.out.starts_with(r#"{"type":"MODIFIED","revision":5,"key":"/a/key""#), "{ended:?}");
    }
}
