//! Selectors, pages and single keys of the command line, against a real etcd.

use crate::run::{Ended, Running, command, members, run};
use crate::support::etcd::{Ctl, Etcd};
use etcd_client::{ConnectOptions, Permission, TxnOp};
use serde_json::Value;

/// The words of a command with its endpoint, in JSON.
fn words<'a>(endpoint: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let mut words = more.to_vec();
    words.extend(["--etcd", endpoint, "--format", "json"]);
    words
}

fn json(line: &str) -> Value {
    serde_json::from_str(line).unwrap_or_else(|_| panic!("{line} is no JSON"))
}

/// Type, key, value and previous value of a line.
fn event(line: &str) -> [String; 4] {
    let line = json(line);
    ["type", "key", "value", "prev_value"].map(|name| line[name].as_str().unwrap_or("-").to_owned())
}

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

const WEB: &str = r#"{"metadata":{"labels":{"app":"web"}},"spec":{"node":"n1"}}"#;
const WEB_2: &str = r#"{"metadata":{"labels":{"app":"web","tier":"2"}},"spec":{"node":"n2"}}"#;
const DB: &str = r#"{"metadata":{"labels":{"app":"db"}},"spec":{"node":"n1"}}"#;

#[test]
fn a_watch_with_selectors_shows_what_enters_and_leaves() {
    let etcd = Etcd::start();
    let client = etcd.ctl();
    client.put("/a/db", DB); // 2
    client.put("/a/web", WEB); // 3
    client.put("/a/none", "no JSON"); // 4
    let endpoint = etcd.url();
    let start = |selectors: &[&str]| {
        let task = [&["watch", "--prefix", "/a/", "--until-revision", "9"], selectors].concat();
        Running::start(command(&words(&endpoint, &task)))
    };
    let mut labels = start(&["--labels", "app=web"]);
    let mut fields = start(&["--fields", "spec.node=n1"]);
    let mut both = start(&["--labels", "app", "--fields", "spec.node!=n1"]);
    let mark = r#"{"type":"BOOKMARK","revision":4,"initial_state_end":true}"#;
    assert_eq!(event(&labels.line()), ["ADDED", "/a/web", WEB, "-"]);
    assert_eq!(event(&fields.line()), ["ADDED", "/a/db", DB, "-"]);
    assert_eq!(event(&fields.line()), ["ADDED", "/a/web", WEB, "-"]);
    assert_eq!([labels.line(), fields.line(), both.line()], [mark; 3]);
    client.put("/a/web", WEB_2); // 5
    client.put("/a/db", WEB); // 6
    client.put("/a/web", DB); // 7
    client.delete("/a/db"); // 8
    client.put("/elsewhere", "x"); // 9
    let rest = |watch: Running| -> Vec<[String; 4]> { watch.end().is(0).lines().into_iter().map(event).collect() };
    let expected = |rows: &[[&str; 4]]| -> Vec<[String; 4]> { rows.iter().map(|row| row.map(str::to_owned)).collect() };
    assert_eq!(
        rest(labels),
        expected(&[
            ["MODIFIED", "/a/web", WEB_2, WEB],
            ["ADDED", "/a/db", WEB, DB],
            ["DELETED", "/a/web", "-", WEB_2],
            ["DELETED", "/a/db", "-", WEB],
        ])
    );
    assert_eq!(
        rest(fields),
        expected(&[
            ["DELETED", "/a/web", "-", WEB],
            ["MODIFIED", "/a/db", WEB, DB],
            ["ADDED", "/a/web", DB, WEB_2],
            ["DELETED", "/a/db", "-", WEB],
        ])
    );
    assert_eq!(rest(both), expected(&[["ADDED", "/a/web", WEB_2, WEB], ["DELETED", "/a/web", "-", WEB_2]]));
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
fn pages_are_of_one_revision_whatever_is_written_between_the_processes() {
    let etcd = Etcd::start();
    let client = etcd.ctl();
    numbered(&client, 7); // 2
    let endpoint = etcd.url();
    let page = |more: &[&str]| run(&words(&endpoint, &[&["list", "--prefix", "/a/"], more].concat()));
    let (keys, end) = listed(&page(&["--limit", "3"]).is(0));
    assert_eq!((keys, end["revision"].as_u64()), (vec!["/a/0".into(), "/a/1".into(), "/a/2".into()], Some(2)));
    let mut token = end["continue"].as_str().expect("there is more").to_owned();
    let mut rest = Vec::new();
    loop {
        client.delete("/a/4");
        client.put("/a/4", "later");
        client.put("/a/55", "later");
        let ended = page(&["--limit", "2", "--continue", &token]).is(0);
        assert!(!ended.out.contains("later"), "{ended:?}");
        let (keys, end) = listed(&ended);
        assert_eq!(end["revision"], 2, "{ended:?}");
        rest.extend(keys);
        match end["continue"].as_str() {
            Some(next) => token = next.to_owned(),
            None => break,
        }
    }
    assert_eq!(rest, ["/a/3", "/a/4", "/a/5", "/a/6"]);
    // A page of an older revision continues at that; a limit that is not reached gives no token; 0 is all.
    let (_, end) = listed(&page(&["--limit", "3", "--revision", "3"]).is(0));
    let ended = page(&["--continue", end["continue"].as_str().expect("there is more")]).is(0);
    let (keys, end) = listed(&ended);
    assert_eq!((keys.as_slice(), &end["revision"]), (&["/a/3".into(), "/a/5".into(), "/a/6".into()][..], &3.into()));
    for limit in ["0", "8", "100"] {
        assert_eq!(members(page(&["--limit", limit]).is(0).lines()[8]), ["type", "revision", "count"], "{limit}");
    }
    let end = page(&["--limit", "7"]).is(0);
    assert_eq!(members(end.lines()[7]), ["type", "revision", "count", "continue"]);

    // Whoever reads text through a pipe is no person.
    let text = run(&["list", "--prefix", "/a/", "--limit", "2", "--etcd", &endpoint]).is(0);
    assert_eq!((text.lines().len(), text.err.as_str()), (2, ""), "{text:?}");
}

#[test]
fn a_page_whose_revision_is_compacted_says_how_to_go_on() {
    let etcd = Etcd::start();
    let client = etcd.ctl();
    numbered(&client, 5); // 2
    let endpoint = etcd.url();
    let page = |more: &[&str]| run(&words(&endpoint, &[&["list", "--prefix", "/a/"], more].concat()));
    let (_, end) = listed(&page(&["--limit", "2"]).is(0));
    let token = end["continue"].as_str().expect("there is more");
    client.delete("/a/1"); // 3
    client.delete("/a/3"); // 4
    client.put("/a/5", "new"); // 5
    client.compact(2);
    let border = page(&["--continue", token]).is(0);
    assert_eq!(listed(&border).0, ["/a/2", "/a/3", "/a/4"], "the border: the state at 2 is still there");

    client.compact(4);
    let gone = page(&["--limit", "2", "--continue", token]).is(5);
    assert_eq!(gone.lines().len(), 1, "{gone:?}");
    assert_eq!(members(gone.lines()[0]), ["type", "code", "message", "oldest", "continue"]);
    let error = gone.error("COMPACTED");
    assert_eq!(error["oldest"], 5, "{error}");
    let next = error["continue"].as_str().expect("a token");
    let message = error["message"].as_str().expect("a text");
    assert!(message.contains("revision 2") && message.contains(&format!("--continue {next}")), "{message}");
    assert!(message.contains("list from the start"), "{message}");
    // From there on at the newest revision, and at that whatever is written.
    let (keys, end) = listed(&page(&["--limit", "1", "--continue", next]).is(0));
    assert_eq!((keys.as_slice(), &end["revision"]), (&["/a/2".to_owned()][..], &5.into()));
    client.put("/a/6", "newer"); // 6
    let (keys, end) = listed(&page(&["--continue", end["continue"].as_str().expect("there is more")]).is(0));
    assert_eq!((keys.as_slice(), &end["revision"]), (&["/a/4".to_owned(), "/a/5".to_owned()][..], &5.into()));
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
