//! `bench` and `demo`, which need no etcd.

use crate::run::{Running, command, members, run};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

const SMALL: [&str; 7] = ["bench", "--objects", "50", "--events", "3000", "--value-size", "16"];

fn with<'a>(more: &[&'a str]) -> Vec<&'a str> {
    SMALL.iter().copied().chain(more.iter().copied()).collect()
}

#[test]
fn bench_prints_a_table() {
    let ended = run(&with(&["--subscribers", "3"])).is(0);
    assert!(
        ended.out.starts_with("50 objects, 3,000 changes, values of 16 bytes, 3 subscriptions (all keys each)"),
        "{}",
        ended.out
    );
    for row in ["load", "apply", "deliver", "get", "list", "snapshot", "wake p50", "wake p99"] {
        assert!(ended.lines().iter().any(|line| line.starts_with(row)), "{row} is missing in {}", ended.out);
    }
    assert!(ended.err.is_empty(), "no progress where standard error is no terminal: {ended:?}");
}

#[test]
fn bench_counts_every_delivery() {
    for (selective, deliveries) in [(false, 9000), (true, 3000)] {
        let mut arguments = with(&["--subscribers", "3", "--format", "json"]);
        arguments.extend(selective.then_some("--selective"));
        let ended = run(&arguments).is(0);
        let figures: serde_json::Value = serde_json::from_str(&ended.out).expect("one line of JSON");
        assert_eq!(figures["deliveries"], deliveries, "{}", ended.out);
        assert_eq!(figures["objects"], 50);
        assert_eq!(figures["indexed"].as_u64(), selective.then_some(3), "each through the index: {}", ended.out);
        assert!(members(&ended.out).starts_with(&[
            "objects".to_owned(),
            "events".to_owned(),
            "subscribers".to_owned()
        ]));
    }
}

#[test]
fn bench_with_more_subscribers_than_objects_and_a_small_log() {
    let ended = run(&with(&["--subscribers", "70", "--capacity", "128", "--selective", "--format", "json"])).is(0);
    let figures: serde_json::Value = serde_json::from_str(&ended.out).expect("one line of JSON");
    assert_eq!((&figures["deliveries"], &figures["indexed"]), (&3000.into(), &70.into()), "{}", ended.out);
}

/// The log has bytes too: what is written before it is read fits them.
#[test]
fn bench_reads_large_values_before_they_leave() {
    let words = ["--objects", "3", "--events", "500", "--subscribers", "1", "--value-size", "1000000"];
    let ended = run(&[&["bench", "--format", "json"], &words[..]].concat()).is(0);
    let figures: serde_json::Value = serde_json::from_str(&ended.out).expect("one line of JSON");
    assert_eq!(figures["deliveries"], 500, "{}", ended.out);
}

#[test]
fn bench_ends_at_its_timeout() {
    let ended = run(&["bench", "--events", "1000000000", "--timeout", "200ms", "--format", "json"]).is(4);
    ended.error("TIMEOUT");
}

#[test]
fn the_tour_ends_well_and_shows_each_type() {
    let ended = run(&["demo"]).is(0);
    for word in ["ADDED", "MODIFIED", "DELETED", "BOOKMARK"] {
        assert!(ended.out.contains(word), "{word} is missing in {}", ended.out);
    }
    assert!(ended.err.is_empty(), "{ended:?}");
}

/// The tour ends with what `watchcore status` says of its cache, and a line for each consumer.
#[test]
fn the_tour_lists_its_subscriptions() {
    let ended = run(&["demo"]).is(0);
    let lines = ended.lines();
    let from = lines.iter().position(|line| line.starts_with("subscriptions ")).expect("the status");
    assert_eq!(lines[from], "subscriptions  3, at most 6 events behind");
    let words: Vec<Vec<&str>> = lines[from + 1..].iter().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(words[0].join(" "), "id name state position lag read path last poll");
    let figures: Vec<String> = words[1..].iter().map(|row| row[..6].join(" ")).collect();
    assert_eq!(figures, ["1 all Live 4 0 scan", "2 idle Live 0 6 scan", "3 fruit Live 4 0 scan"]);
    let polled: Vec<bool> = words[1..].iter().map(|row| row[6..] != ["never"]).collect();
    assert_eq!(polled, [true, false, true]);
}

#[test]
fn the_tour_in_json_to_the_letter() {
    let ended = run(&["demo", "--format", "json", "--prefix", "/t/"]).is(0);
    let expected = [
        r#"{"type":"BOOKMARK","revision":0,"initial_state_end":true}"#,
        r#"{"type":"ADDED","revision":1,"key":"/t/fruit/apple","value":"green","create_revision":1,"mod_revision":1,"version":1}"#,
        r#"{"type":"ADDED","revision":2,"key":"/t/fruit/pear","value":"yellow","create_revision":2,"mod_revision":2,"version":1}"#,
        r#"{"type":"MODIFIED","revision":3,"key":"/t/fruit/apple","value":"red","prev_value":"green","create_revision":1,"mod_revision":3,"version":2}"#,
        r#"{"type":"ADDED","revision":3,"key":"/t/fruit/plum","value":"blue","create_revision":3,"mod_revision":3,"version":1}"#,
        r#"{"type":"ADDED","revision":3,"key":"/t/tree/oak","value":"tall","create_revision":3,"mod_revision":3,"version":1}"#,
        r#"{"type":"DELETED","revision":4,"key":"/t/fruit/pear","prev_value":"yellow","create_revision":2,"mod_revision":2,"version":1}"#,
        r#"{"key":"/t/fruit/pear","value":"yellow","create_revision":2,"mod_revision":2,"version":1}"#,
        r#"{"key":"/t/fruit/apple","value":"green","create_revision":1,"mod_revision":1,"version":1}"#,
        r#"{"key":"/t/fruit/pear","value":"yellow","create_revision":2,"mod_revision":2,"version":1}"#,
        r#"{"type":"MODIFIED","revision":3,"key":"/t/fruit/apple","value":"red","prev_value":"green","create_revision":1,"mod_revision":3,"version":2}"#,
        r#"{"type":"ADDED","revision":3,"key":"/t/fruit/plum","value":"blue","create_revision":3,"mod_revision":3,"version":1}"#,
        r#"{"type":"DELETED","revision":4,"key":"/t/fruit/pear","prev_value":"yellow","create_revision":2,"mod_revision":2,"version":1}"#,
    ];
    assert_eq!(ended.lines(), expected);
}

#[test]
fn quiet_prints_nothing() {
    assert_eq!(run(&["demo", "--format", "quiet"]).is(0).out, "");
}

#[test]
fn the_tour_takes_a_prefix_of_any_bytes() {
    let mut command = command(&["demo", "--format", "json", "--prefix"]);
    command.arg(OsStr::from_bytes(b"/\xff/"));
    let ended = Running::start(command).end().is(0);
    let usual = run(&["demo", "--format", "json"]).is(0);
    assert_eq!(ended.lines().len(), usual.lines().len());
    assert!(ended.out.contains("key_base64") && ended.err.is_empty(), "{ended:?}");
}

#[test]
fn a_load_that_no_machine_bears_is_an_error() {
    let most = u64::MAX.to_string();
    for words in [["bench", "--objects", &most], ["bench", "--subscribers", &most]] {
        let ended = run(&[&words[..], &["--format", "json"]].concat()).is(1);
        assert!(
            ended.error("RESOURCE_EXHAUSTED")["message"].as_str().is_some_and(|text| text.contains("Ask for less"))
        );
        assert!(ended.err.starts_with("error: the objects and subscriptions need about "), "{ended:?}");
    }
    let watch = ["watch", "--prefix", "/", "--subscribers", &most, "--etcd", "http://127.0.0.1:1"];
    assert!(run(&watch).is(1).err.starts_with("error: the subscribers need about "));
}

#[test]
fn a_closed_pipe_is_a_quiet_end() {
    let (running, stdout) = Running::start_unread(command(&["demo"]));
    drop(stdout);
    let ended = running.end().is(0);
    assert!(ended.err.is_empty(), "{ended:?}");
}

#[test]
fn a_full_disk_is_an_error() {
    let mut command = command(&["demo"]);
    let full = std::fs::File::options().write(true).open("/dev/full").expect("/dev/full");
    let output = command.stdout(full).output().expect("it runs");
    assert_eq!(output.status.code(), Some(1));
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(words.starts_with("error: writing to standard output failed"), "{words}");
}

#[test]
fn signals_end_a_bench() {
    for (signal, code) in [("INT", 130), ("TERM", 143)] {
        let running = Running::start(command(&["bench", "--events", "1000000000"]));
        wait_for_handlers(&running);
        running.signal(signal);
        running.end().is(code);
    }
}

/// Until the process catches SIGINT and SIGTERM, as the kernel says.
fn wait_for_handlers(running: &Running) {
    let path = format!("/proc/{}/status", running.id());
    let deadline = std::time::Instant::now() + crate::run::TIMEOUT;
    while std::time::Instant::now() < deadline {
        let status = std::fs::read_to_string(&path).expect("it runs");
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).expect("SigCgt");
        let caught = u64::from_str_radix(caught.trim(), 16).expect("a mask");
        if caught & (1 << 1) != 0 && caught & (1 << 14) != 0 {
            return;
        }
        std::thread::yield_now();
    }
    panic!("it never listens for signals");
}
