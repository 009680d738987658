//! `watch` with several subscribers, and what it prints when it has fallen behind, against a real etcd.

use crate::run::{Ended, Running, command, json, members, run};
use crate::support::etcd::{Ctl, Etcd};
use crate::support::proxy::Proxy;
use crate::support::wait_for;
use etcd_client::{DeleteOptions, TxnOp};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::process::ChildStdout;

/// The words of a watch of `/a/` with a small log, in JSON.
fn watch<'a>(endpoint: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let mut words = vec!["watch", "--prefix", "/a/", "--capacity", "128", "--format", "json", "--etcd", endpoint];
    words.extend(more);
    words
}

/// A watch whose standard output nobody reads, beyond the first lines.
struct Stalled {
    running: Running,
    reader: BufReader<ChildStdout>,
    /// Between the watch and its etcd.
    proxy: Proxy,
}

impl Stalled {
    fn start(etcd: &Etcd, more: &[&str], mut enough: impl FnMut(&str) -> bool) -> Stalled {
        let proxy = Proxy::to(etcd.address());
        let (running, stdout) = Running::start_unread(command(&watch(&proxy.url(), more)));
        let mut reader = BufReader::new(stdout);
        let mut line = String::new();
        loop {
            line.clear();
            assert!(reader.read_line(&mut line).expect("readable") > 0, "it ended");
            if enough(&line) {
                return Stalled { running, reader, proxy };
            }
        }
    }

    /// Waits until it writes a line that no pipe takes whole: from here on it stands still.
    fn is_stuck(&mut self) {
        assert!(!self.reader.fill_buf().expect("readable").is_empty(), "it ended");
    }

    /// Waits until its feeder has applied what etcd holds now: etcd answers a request for progress after
    /// the events before it, and the feeder asks again when it has taken the answer. One request more
    /// than that, for a watch that was opened anew meanwhile.
    fn settle(&self) {
        let asked = self.proxy.asked();
        wait_for("requests for progress", || self.proxy.asked() >= asked + 3);
    }

    /// Reads on, to the end.
    fn end(self) -> Ended {
        let lines: Vec<String> = self.reader.lines().map(|line| line.expect("readable")).collect();
        let mut ended = self.running.end();
        ended.out = lines.join("\n") + "\n";
        ended
    }
}

/// A put that no pipe takes whole, and then more than the log holds.
fn flood<'a>(client: &Ctl, key: &str, watches: impl IntoIterator<Item = &'a mut Stalled>) {
    client.put(key, "v".repeat(300_000));
    watches.into_iter().for_each(Stalled::is_stuck);
    for number in 0..FLOOD {
        client.put(key, number.to_string());
    }
}

const FLOOD: u64 = 500;

/// Lines up to the loss: one MODIFIED of each revision. The last revision.
#[track_caller]
fn before_the_loss<'a>(lines: &mut impl Iterator<Item = &'a str>, is_loss: impl Fn(&Value) -> bool) -> (u64, Value) {
    let mut last = None;
    for line in lines {
        let line = json(line);
        if is_loss(&line) {
            return (last.expect("some lines fit the pipe"), line);
        }
        let revision = line["revision"].as_u64().expect("a revision");
        assert_eq!(line["type"], "MODIFIED", "{line}");
        assert!(last.is_none_or(|last| revision == last + 1), "{line} behind {last:?}");
        last = Some(revision);
    }
    panic!("nothing was lost");
}

#[test]
fn each_policy_follows_a_loss_in_its_own_way() {
    let etcd = Etcd::start();
    let client = etcd.ctl();
    for key in ["/a/gone", "/a/hot", "/a/kept", "/a/remade"] {
        client.put(key, "1"); // 2 to 5
    }
    let last = 6 + FLOOD + 5;
    let (until, middle) = (last.to_string(), "200");
    let start = |policy, until| {
        Stalled::start(&etcd, &["--lag", policy, "--until-revision", until], |line| line.contains("initial_state_end"))
    };
    let [mut skip, mut resnapshot, mut conflate] =
        ["skip", "resnapshot", "conflate"].map(|policy| start(policy, &until));
    let mut beyond = ["resnapshot", "conflate"].map(|policy| start(policy, middle));
    flood(&client, "/a/hot", [&mut skip, &mut resnapshot, &mut conflate].into_iter().chain(&mut beyond));
    client.delete("/a/gone");
    client.delete("/a/remade");
    client.put("/a/remade", "2");
    client.put("/a/new", "2");
    assert_eq!(client.put("/a/hot", "2"), last);
    for stalled in [&skip, &resnapshot, &conflate].into_iter().chain(&beyond) {
        stalled.settle();
    }
    let is_lagged = |line: &Value| line["type"] == "LAGGED";

    // Skip: what is lost is said, everything else is there.
    let ended = skip.end().is(0);
    let mut lines = ended.out.lines();
    let (before, lagged) = before_the_loss(&mut lines, is_lagged);
    assert_eq!(members(&lagged.to_string()).len(), 5);
    let [from, to, oldest, current] =
        ["lost_from", "lost_to", "oldest", "current"].map(|name| lagged[name].as_u64().expect("a revision"));
    assert_eq!((from, oldest, current), (before + 1, to + 1, last), "{lagged}");
    let rest: Vec<u64> = lines.map(|line| json(line)["revision"].as_u64().expect("a revision")).collect();
    assert_eq!(rest, (oldest..=last).collect::<Vec<u64>>());
    assert_eq!(ended.summed("lagged"), 1);

    // Both others: the difference to what was shown. The first value of /a/hot has left the log.
    let hot = format!(
        r#"{{"type":"MODIFIED","revision":{last},"synthetic":true,"key":"/a/hot","value":"2","create_revision":3,"mod_revision":{last},"version":{}}}"#,
        FLOOD + 3
    );
    let difference = [
        format!(
            r#"{{"type":"DELETED","revision":{last},"synthetic":true,"key":"/a/gone","prev_value":"1","create_revision":2,"mod_revision":2,"version":1}}"#
        ),
        hot,
        format!(
            r#"{{"type":"ADDED","revision":{last},"synthetic":true,"key":"/a/new","value":"2","create_revision":{0},"mod_revision":{0},"version":1}}"#,
            last - 1
        ),
        format!(
            r#"{{"type":"MODIFIED","revision":{last},"synthetic":true,"key":"/a/remade","value":"2","prev_value":"1","create_revision":{0},"mod_revision":{0},"version":1}}"#,
            last - 2
        ),
    ];
    let ended = resnapshot.end().is(0);
    let mut lines = ended.out.lines();
    let (before, lagged) = before_the_loss(&mut lines, is_lagged);
    assert_eq!(lagged["lost_from"], before + 1);
    let mark = |phase: &str| {
        format!(r#"{{"type":"RESYNC","phase":"{phase}","reason":"Lagged","from":{before},"to":{last},"epoch":1}}"#)
    };
    let rest: Vec<&str> = lines.collect();
    let expected = [&[mark("begin")][..], &difference, &[mark("end")]].concat();
    assert_eq!(rest, expected);
    assert_eq!((ended.summed("lagged"), ended.summed("resyncs")), (1, 0), "the feeder's resyncs are counted");

    let ended = conflate.end().is(0);
    assert!(!ended.out.contains("LAGGED") && !ended.out.contains("RESYNC"), "{}", ended.out);
    let mut lines = ended.out.lines();
    let (_, first) = before_the_loss(&mut lines, |line| line["synthetic"] == true);
    assert_eq!(first, json(&difference[0]));
    assert_eq!(lines.collect::<Vec<_>>(), difference[1..]);
    assert_eq!(ended.summed("lagged"), 0, "never");

    // What came up to the last revision cannot be shown alone any more.
    for (policy, stalled) in ["resnapshot", "conflate"].into_iter().zip(beyond) {
        let ended = stalled.end().is(5);
        let error = ended.error("LAGGED");
        assert!(error["message"].as_str().expect("a text").contains("--until-revision 200"), "{policy}: {error}");
        assert!(!ended.out.contains("synthetic"), "{policy}: nothing above the last revision: {}", ended.out);
        assert_eq!(ended.out.contains("\"LAGGED\",\"lost_from\""), policy == "resnapshot", "{policy}");
    }
}

/// The state that the lines describe.
fn shown<'a>(lines: impl Iterator<Item = &'a str>) -> BTreeMap<String, String> {
    let mut state = BTreeMap::new();
    for line in lines {
        let line = json(line);
        let text = |name: &str| line[name].as_str().map(str::to_owned);
        let old = match line["type"].as_str() {
            Some("ADDED") => state.insert(text("key").expect("a key"), text("value").expect("a value")),
            Some("MODIFIED") => {
                let old = state.insert(text("key").expect("a key"), text("value").expect("a value"));
                Some(old.unwrap_or_else(|| panic!("{line} was not shown before")))
            }
            Some("DELETED") => Some(state.remove(&text("key").expect("a key")).expect("was shown before")),
            _ => continue,
        };
        assert_eq!(old.is_some(), line["type"] != "ADDED", "{line}");
        if let Some(prev) = text("prev_value") {
            assert_eq!(old, Some(prev), "{line}");
        }
    }
    state
}

#[test]
fn an_initial_state_that_is_lost_begins_again_or_ends() {
    let etcd = Etcd::start();
    let client = etcd.ctl();
    let value = "i".repeat(300);
    let keys: Vec<String> = (0..3000).map(|number| format!("/a/{number:04}")).collect();
    for some in keys.chunks(100) {
        client.txn(some.iter().map(|key| TxnOp::put(key.as_str(), value.as_str(), None)).collect()); // 2 to 31
    }
    let last = 31 + 600;
    // Below the revision of the state that is shown in the end.
    let until = (31 + 300).to_string();
    let start = |policy| Stalled::start(&etcd, &["--lag", policy, "--until-revision", &until], |_| true);
    let watches = ["stop", "skip", "resnapshot", "conflate"].map(|policy| (policy, start(policy)));
    for number in 0..600 {
        if number % 3 == 0 {
            client.delete(&keys[number * 5]);
        } else {
            client.put(&keys[number * 5], "new");
        }
    }
    assert_eq!(client.revision(), last);
    for (policy, stalled) in watches {
        stalled.settle();
        let ended = stalled.end();
        if matches!(policy, "stop" | "skip") {
            let ended = ended.is(5);
            ended.error("LAGGED");
            let lines = ended.lines();
            let [.., lagged, _] = &lines[..] else { panic!("too few lines") };
            let lagged = json(lagged);
            assert_eq!(
                (&lagged["type"], &lagged["lost_from"], &lagged["lost_to"]),
                (&"LAGGED".into(), &1.into(), &last.into())
            );
            assert_eq!(ended.summed("lagged"), 1, "{policy}");
            continue;
        }
        let ended = ended.is(0);
        let mark = format!(r#"{{"type":"BOOKMARK","revision":{last},"initial_state_end":true}}"#);
        assert_eq!(ended.lines().last(), Some(&&*mark), "{policy}");
        assert_eq!(ended.summed("lagged"), u64::from(policy == "resnapshot"), "{policy}");
        assert_eq!(ended.out.matches("RESYNC").count(), if policy == "resnapshot" { 2 } else { 0 });
        let first = format!("{}\n", r#"{"type":"ADDED","key":"/a/0000","value":"FIRST"}"#.replace("FIRST", &value));
        let shown = shown(first.lines().chain(ended.out.lines()));
        let held = client.list(b"/a/", 0).into_iter().map(|kv| {
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("UTF-8");
            (text(kv.key()), text(kv.value()))
        });
        assert_eq!(shown, held.collect::<BTreeMap<_, _>>(), "{policy}");
    }
}

#[test]
fn each_subscriber_prints_all_of_it_and_says_who_it_is() {
    let etcd = Etcd::start();
    let client = etcd.ctl();
    client.put("/a/x", "1"); // 2
    client.put("/a/y", "1"); // 3
    let endpoint = etcd.url();
    let ended = run(&watch(&endpoint, &["--subscribers", "3", "--until-revision", "3"])).is(0);
    let mut lines = ended.lines();
    lines.sort_unstable();
    let of = |subscriber: usize| {
        [
            format!(
                r#"{{"subscriber":{subscriber},"type":"ADDED","revision":2,"key":"/a/x","value":"1","create_revision":2,"mod_revision":2,"version":1}}"#
            ),
            format!(
                r#"{{"subscriber":{subscriber},"type":"ADDED","revision":3,"key":"/a/y","value":"1","create_revision":3,"mod_revision":3,"version":1}}"#
            ),
            format!(r#"{{"subscriber":{subscriber},"type":"BOOKMARK","revision":3,"initial_state_end":true}}"#),
        ]
    };
    assert_eq!(lines, [of(0), of(1), of(2)].concat());
    assert_eq!(ended.summed("events"), 6);

    // The count is of each.
    let mut running = Running::start(command(&watch(
        &endpoint,
        &["--subscribers", "2", "--start", "now", "--count", "2", "--bookmarks"],
    )));
    let mut begun = [running.line(), running.line()];
    begun.sort_unstable();
    assert_eq!(
        begun,
        [0, 1].map(|subscriber| format!(r#"{{"subscriber":{subscriber},"type":"BOOKMARK","revision":3}}"#))
    );
    for value in ["2", "3", "4"] {
        client.put("/a/x", value); // 4 to 6
    }
    let ended = running.end().is(0);
    for subscriber in ["0", "1"] {
        let own = format!(r#"{{"subscriber":{subscriber},"type":"MODIFIED""#);
        let revisions: Vec<u64> = ended
            .lines()
            .into_iter()
            .filter(|line| line.starts_with(&own))
            .map(|line| json(line)["revision"].as_u64().expect("a revision"))
            .collect();
        assert_eq!(revisions, [4, 5], "{ended:?}");
    }
    assert_eq!(ended.summed("events"), 4);

    // A revision longer than any batch: its lines stand together.
    let keys: Vec<String> = (0..3000).map(|number| format!("/a/many/{number:04}")).collect();
    for some in keys.chunks(100) {
        client.txn(some.iter().map(|key| TxnOp::put(key.as_str(), "1", None)).collect()); // 7 to 36
    }
    client.txn(vec![TxnOp::delete("/a/many/", Some(DeleteOptions::new().with_prefix()))]); // 37
    let task = ["--subscribers", "2", "--start", "after:36", "--until-revision", "37"];
    let deletion = run(&watch(&endpoint, &task)).is(0);
    let whose: Vec<u64> =
        deletion.lines().into_iter().map(|line| json(line)["subscriber"].as_u64().expect("a number")).collect();
    assert_eq!(whose.len(), 6000);
    assert_eq!(whose.windows(2).filter(|pair| pair[0] != pair[1]).count(), 1, "one after the other");

    // One is as without the option; people see whose a line is, too.
    let one = run(&watch(&endpoint, &["--subscribers", "1", "--until-revision", "3", "--key", "/a/x"])).is(0);
    assert!(!one.out.contains("subscriber"), "{one:?}");
    let words =
        ["watch", "--prefix", "/a/", "--key", "/a/x", "--subscribers", "2", "--count", "1", "--etcd", &endpoint];
    let mut text: Vec<String> = run(&words).is(0).out.lines().map(str::to_owned).collect();
    text.sort_unstable();
    assert_eq!(text, ["[0] 6 ADDED /a/x 4", "[1] 6 ADDED /a/x 4"]);
}

#[test]
fn a_subscriber_that_falls_behind_says_who_it_is_and_ends_all() {
    let etcd = Etcd::start();
    let client = etcd.ctl();
    client.put("/a/hot", "1");
    let mut marks = 0;
    let mut stalled = Stalled::start(&etcd, &["--subscribers", "2"], |line| {
        marks += usize::from(line.contains("initial_state_end"));
        marks == 2
    });
    flood(&client, "/a/hot", [&mut stalled]);
    stalled.settle();
    let ended = stalled.end().is(5);
    let lines = ended.lines();
    let [.., lagged, error] = &lines[..] else { panic!("too few lines") };
    assert_eq!(members(lagged), ["subscriber", "type", "lost_from", "lost_to", "oldest", "current"]);
    assert_eq!(members(error)[..3], ["subscriber", "type", "code"]);
    let (lagged, error) = (json(lagged), json(error));
    assert_eq!((&lagged["type"], &error["code"]), (&"LAGGED".into(), &"LAGGED".into()));
    assert_eq!(lagged["subscriber"], error["subscriber"]);
    assert_eq!(ended.summed("lagged"), 1);
}

#[test]
fn a_history_longer_than_the_log_is_replayed_to_every_subscriber() {
    let etcd = Etcd::start();
    let client = etcd.ctl();
    for number in 0..3000 {
        client.put(format!("/a/{}", number % 7), number.to_string()); // 2 to 3001
    }
    let endpoint = etcd.url();
    for filter in [&[][..], &["--key", "/a/3"]] {
        let task = [&["--start", "after:1", "--until-revision", "3001", "--subscribers", "4"], filter].concat();
        let ended = run(&watch(&endpoint, &task)).is(0);
        let each = if filter.is_empty() { 3000 } else { 429 };
        assert_eq!((ended.summed("events"), ended.summed("lagged")), (4 * each, 0));
        assert_eq!(ended.lines().len() as u64, 4 * each);
    }
}
