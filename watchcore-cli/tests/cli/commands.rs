//! The command line against a real etcd: what each command prints, and how it ends.

use crate::run::{Running, TIMEOUT, command, members, run, words};
use crate::support::etcd::{Ctl, Etcd};
use crate::support::proxy::Proxy;
use crate::support::tls::Authority;
use etcd_client::TxnOp;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// An etcd of its own, and a client for it.
fn etcd() -> (Etcd, Ctl) {
    let etcd = Etcd::start();
    let client = etcd.ctl();
    (etcd, client)
}

/// Puts in one revision.
fn puts(client: &Ctl, puts: &[(&str, &str)]) {
    client.txn(puts.iter().map(|(key, value)| TxnOp::put(*key, *value, None)).collect());
}

#[test]
fn watch_prints_the_state_the_mark_and_the_changes_to_the_letter() {
    let (etcd, client) = etcd();
    client.put("/elsewhere", "0"); // 2
    client.put("/a/x", "1"); // 3
    let lease = client.grant(600);
    client.put_leased("/a/y", "", lease); // 4
    let endpoint = etcd.url();
    let mut watch = Running::start(command(&words(&endpoint, &["watch", "--prefix", "/a/", "--until-revision", "8"])));
    assert_eq!(
        watch.line(),
        r#"{"type":"ADDED","revision":3,"key":"/a/x","value":"1","create_revision":3,"mod_revision":3,"version":1}"#
    );
    assert_eq!(
        watch.line(),
        format!(
            r#"{{"type":"ADDED","revision":4,"key":"/a/y","value":"","create_revision":4,"mod_revision":4,"version":1,"lease":{lease}}}"#
        )
    );
    assert_eq!(watch.line(), r#"{"type":"BOOKMARK","revision":4,"initial_state_end":true}"#);
    client.put("/a/x", "2"); // 5
    assert_eq!(
        watch.line(),
        r#"{"type":"MODIFIED","revision":5,"key":"/a/x","value":"2","prev_value":"1","create_revision":3,"mod_revision":5,"version":2}"#
    );
    client.delete("/a/y"); // 6
    assert_eq!(
        watch.line(),
        format!(
            r#"{{"type":"DELETED","revision":6,"key":"/a/y","prev_value":"","create_revision":4,"mod_revision":4,"version":1,"lease":{lease}}}"#
        )
    );
    client.put(b"/a/\xff", b"\x00\xfe"); // 7
    assert_eq!(
        watch.line(),
        r#"{"type":"ADDED","revision":7,"key_base64":"L2Ev/w==","value_base64":"AP4=","create_revision":7,"mod_revision":7,"version":1}"#
    );
    client.put("/elsewhere", "1"); // 8: it ends although nothing of the prefix changes
    let ended = watch.end().is(0);
    assert_eq!(ended.out, "");
    assert_eq!(ended.summed("events"), 5);
    assert_eq!((ended.summed("resyncs"), ended.summed("lagged"), ended.summed("reconnects")), (0, 0, 0));
}

#[test]
fn until_ends_a_replay_and_a_compaction_says_where_to_begin() {
    let (etcd, client) = etcd();
    for value in ["1", "2", "3", "4"] {
        client.put("/a/x", value); // 2 to 5
    }
    let endpoint = etcd.url();
    let watch = |start: &str, until: &str| {
        run(&words(&endpoint, &["watch", "--prefix", "/a/", "--start", start, "--until-revision", until]))
    };
    assert_eq!(watch("after:0", "5").is(0).lines().len(), 4);
    assert_eq!(watch("after:3", "4").is(0).lines().len(), 1, "nothing above the last revision is printed");
    assert_eq!(watch("after:4", "3").is(0).lines().len(), 0);

    client.compact(4);
    let gone = watch("after:3", "5").is(5);
    gone.error("COMPACTED");
    assert_eq!(gone.err.matches("Begin at 4 or later").count(), 1, "said once: {gone:?}");
    gone.summary();
}

/// No etcd is asked for a revision that no cache reaches: there is none at this endpoint.
#[test]
fn revision_that_is_too_large_ends_at_once() {
    let large = (watchcore::MAX_REVISION + 1).to_string();
    let (after, least) = (format!("after:{large}"), format!("state-at-least:{large}"));
    let tasks = [
        &["watch", "--prefix", "/a/", "--start", &after][..],
        &["watch", "--prefix", "/a/", "--start", &least],
        &["watch", "--prefix", "/a/", "--until-revision", &large],
        &["list", "--prefix", "/a/", "--revision", &large],
        &["count", "--prefix", "/a/", "--revision", &large],
        &["get", "/a/x", "--revision", &large],
        &["diff", "--prefix", "/a/", &large],
    ];
    for task in tasks {
        let ended = run(&words("http://127.0.0.1:1", task)).is(4);
        let says = format!("Too large resource version: {large}, current: 0");
        assert!(ended.err.contains(&says), "{task:?}: {ended:?}");
    }
}

#[test]
fn a_future_revision_is_exit_4() {
    let (etcd, client) = etcd();
    client.put("/a/x", "1"); // 2
    let endpoint = etcd.url();
    let tasks = [
        &["watch", "--prefix", "/a/", "--start", "after:99"][..],
        &["watch", "--prefix", "/a/", "--start", "state-at-least:99"],
        &["list", "--prefix", "/a/", "--revision", "99"],
        &["get", "/a/x", "--revision", "99"],
    ];
    for (timeout, least) in [(None, 3.0), (Some("700ms"), 0.7)] {
        // All at once: what each does is wait.
        let start = |task: &&[&str]| {
            let mut words = words(&endpoint, task);
            words.extend(timeout.iter().flat_map(|time| ["--timeout", time]));
            Running::start(command(&words))
        };
        for (task, running) in tasks.iter().zip(tasks.iter().map(start).collect::<Vec<_>>()) {
            // Exit 1 would be an etcd out of reach.
            let ended = running.end().is(4);
            let last = ended.out.lines().last().unwrap_or_default();
            // A timeout may be over before etcd has said that it does not have it.
            let known = last.contains("\"FUTURE_REVISION\"") || timeout.is_some() && last.contains("\"TIMEOUT\"");
            assert!(known, "{task:?}: {ended:?}");
            assert!(ended.err.matches("Wait for it").count() <= 1, "warned of once: {ended:?}");
            assert!(timeout.is_some() || ended.err.contains("is at 2. Ask"), "it says where etcd is: {ended:?}");
            assert!(ended.time.as_secs_f64() >= least, "{task:?} waits: {ended:?}");
        }
    }
}

#[test]
fn count_ends_in_the_middle_of_a_revision_and_of_the_state() {
    let (etcd, client) = etcd();
    puts(&client, &[("/a/1", "x"), ("/a/2", "x"), ("/a/3", "x")]); // 2
    let endpoint = etcd.url();
    let ended = run(&words(&endpoint, &["watch", "--prefix", "/a/", "--count", "2"])).is(0);
    assert_eq!(ended.lines().len(), 2);
    assert_eq!(ended.summed("events"), 2);
    let ended = run(&words(&endpoint, &["watch", "--prefix", "/a/", "--start", "after:1", "--count", "2"])).is(0);
    assert_eq!(ended.lines().len(), 2, "{ended:?}");
}

#[test]
fn until_below_the_state_ends_after_the_mark() {
    let (etcd, client) = etcd();
    client.put("/a/x", "1"); // 2
    client.put("/elsewhere", "1"); // 3
    let endpoint = etcd.url();
    let ended = run(&words(&endpoint, &["watch", "--prefix", "/a/", "--until-revision", "1"])).is(0);
    assert_eq!(ended.lines().len(), 2);
    assert_eq!(ended.lines()[1], r#"{"type":"BOOKMARK","revision":3,"initial_state_end":true}"#);
}

#[test]
fn without_bookmarks_there_are_none() {
    let (etcd, client) = etcd();
    let endpoint = etcd.url();
    let mut watch = Running::start(command(&words(&endpoint, &["watch", "--prefix", "/a/", "--until-revision", "4"])));
    assert!(watch.line().contains("initial_state_end"));
    client.put("/elsewhere", "1"); // 2
    client.put("/elsewhere", "2"); // 3
    client.put("/elsewhere", "3"); // 4
    assert_eq!(watch.end().is(0).out, "");
}

#[test]
fn bookmarks_come_while_events_do_and_never_inside_a_revision() {
    let (etcd, client) = etcd();
    let endpoint = etcd.url();
    let mut watch = Running::start(command(&words(&endpoint, &["watch", "--prefix", "/a/", "--bookmarks"])));
    assert!(watch.line().contains("initial_state_end"));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Also ends where an assertion below has failed.
            let begin = Instant::now();
            while !over.load(Ordering::Relaxed) && begin.elapsed() < TIMEOUT {
                puts(&client, &[("/a/1", "x"), ("/a/2", "x"), ("/a/3", "x")]);
            }
        });
        let (mut marks, mut revision, mut events) = (0, 1, 0);
        while marks < 3 {
            let line: serde_json::Value = serde_json::from_str(&watch.line()).expect("JSON");
            let at = line["revision"].as_u64().expect("a revision");
            if line["type"] == "BOOKMARK" {
                assert!(at >= revision && events % 3 == 0, "inside revision {revision}: {line}");
                marks += 1;
            } else {
                assert!(at > revision || events % 3 != 0, "{line} after a mark or an event of {revision}");
                events += 1;
            }
            revision = at;
        }
        over.store(true, Ordering::Relaxed);
    });
    watch.signal("TERM");
    watch.end().is(143);
}

#[test]
fn a_resync_stands_between_its_marks_in_every_watch() {
    let (etcd, client) = etcd();
    let proxy = Proxy::to(etcd.address());
    puts(&client, &[("/a/changed", "1"), ("/a/gone", "1"), ("/a/kept", "1"), ("/a/remade", "1")]); // 2
    let endpoint = proxy.url();
    let start = |more: &[&str]| {
        let task = [&["watch", "--prefix", "/a/", "--until-revision", "10"], more].concat();
        Running::start(command(&words(&endpoint, &task)))
    };
    let (mut all, mut one) = (start(&[]), start(&["--key", "/a/kept"]));
    for (watch, lines) in [(&mut all, 5), (&mut one, 2)] {
        (0..lines).for_each(|_| drop(watch.line()));
    }
    client.put("/a/kept", "2"); // 3: the watches are open
    assert!(all.line().starts_with(r#"{"type":"MODIFIED","revision":3,"#));
    assert!(one.line().starts_with(r#"{"type":"MODIFIED","revision":3,"#));
    proxy.refuse();
    client.put("/a/changed", "2"); // 4
    client.delete("/a/gone"); // 5
    client.delete("/a/remade"); // 6
    client.put("/a/remade", "2"); // 7
    client.put("/a/new", "2"); // 8
    client.compact(8);
    proxy.allow();
    let begin = r#"{"type":"RESYNC","phase":"begin","reason":"Compacted","from":3,"to":8,"epoch":2}"#;
    let end = r#"{"type":"RESYNC","phase":"end","reason":"Compacted","from":3,"to":8,"epoch":2}"#;
    for line in [
        begin,
        r#"{"type":"DELETED","revision":8,"synthetic":true,"key":"/a/gone","prev_value":"1","create_revision":2,"mod_revision":2,"version":1}"#,
        r#"{"type":"DELETED","revision":8,"synthetic":true,"key":"/a/remade","prev_value":"1","create_revision":2,"mod_revision":2,"version":1}"#,
        r#"{"type":"MODIFIED","revision":8,"synthetic":true,"key":"/a/changed","value":"2","prev_value":"1","create_revision":2,"mod_revision":4,"version":2}"#,
        r#"{"type":"ADDED","revision":8,"synthetic":true,"key":"/a/new","value":"2","create_revision":8,"mod_revision":8,"version":1}"#,
        r#"{"type":"ADDED","revision":8,"synthetic":true,"key":"/a/remade","value":"2","create_revision":7,"mod_revision":7,"version":1}"#,
        end,
    ] {
        assert_eq!(all.line(), line);
    }
    assert_eq!([one.line(), one.line()], [begin, end], "also where nothing matches");
    client.put("/a/kept", "3"); // 9
    client.put("/elsewhere", "1"); // 10
    for (watch, events) in [(all, 11), (one, 3)] {
        let ended = watch.end().is(0);
        assert_eq!(ended.lines().len(), 1, "{ended:?}");
        assert!(ended.out.starts_with(r#"{"type":"MODIFIED","revision":9,"key":"/a/kept""#), "{ended:?}");
        assert_eq!((ended.summed("events"), ended.summed("resyncs"), ended.summed("lagged")), (events, 1, 0));
        assert!(ended.summed("reconnects") >= 1, "{ended:?}");
    }
}

/// A failure that is over is the reason of nothing: not of a revision that did not come.
#[test]
fn recovered_failure_is_no_reason() {
    let (etcd, client) = etcd();
    let proxy = Proxy::to(etcd.address());
    let task = ["watch", "--prefix", "/a/", "--until-revision", "1000", "--timeout", "15s"];
    let mut watch = Running::start(command(&words(&proxy.url(), &task)));
    client.put("/a/1", "x");
    while !watch.line().contains("/a/1") {}
    proxy.refuse();
    client.put("/a/2", "x");
    proxy.allow();
    // It is followed again.
    while !watch.line().contains("/a/2") {}
    let ended = watch.end().is(4);
    assert!(ended.err.contains("trying again"), "it was logged: {ended:?}");
    let error = ended.err.lines().find(|line| line.starts_with("error: ")).expect("an error");
    assert!(error.contains("within 15s") && !error.contains("trying again"), "{error}");
}

#[test]
fn quiet_prints_the_summary_only() {
    let (etcd, client) = etcd();
    puts(&client, &[("/a/1", "x"), ("/a/2", "x")]); // 2
    let endpoint = etcd.url();
    let quiet = |task: &[&str]| run(&[task, &["--etcd", &endpoint, "--format", "quiet"]].concat());
    let watch = quiet(&["watch", "--prefix", "/a/", "--until-revision", "2", "--bookmarks"]).is(0);
    assert_eq!((watch.out.as_str(), watch.summed("events")), ("", 2));
    assert_eq!(quiet(&["list", "--prefix", "/a/"]).is(0).out, "");
    assert_eq!(quiet(&["count", "--prefix", "/a/"]).is(0).out, "");
    assert_eq!(quiet(&["get", "/a/1"]).is(0).out, "");
    assert_eq!(quiet(&["get", "/a/3"]).is(3).out, "");
}

#[test]
fn text_is_for_people_and_logs_go_to_standard_error() {
    let (etcd, client) = etcd();
    client.put("/a/x", b"1\n\xff"); // 2
    let endpoint = etcd.url();
    let ended = run(&["watch", "--prefix", "/a/", "--until-revision", "2", "--etcd", &endpoint, "-v"]).is(0);
    assert_eq!(ended.out, "2 ADDED /a/x 1\\x0a\\xff\n2 BOOKMARK end of the initial state\n");
    assert!(ended.err.contains("listed"), "{ended:?}");
    let ended = run(&["list", "--prefix", "/a/", "--etcd", &endpoint]).is(0);
    assert_eq!((ended.out.as_str(), ended.err.as_str()), ("2 /a/x 1\\x0a\\xff\n", ""));
    // Whoever reads through a pipe is no person: there is no hint of more.
    client.put("/a/y", "2"); // 3
    let ended = run(&["list", "--prefix", "/a/", "--limit", "1", "--etcd", &endpoint]).is(0);
    assert_eq!((ended.lines().len(), ended.err.as_str()), (1, ""), "{ended:?}");
    assert_eq!(run(&["count", "--prefix", "/a/", "--etcd", &endpoint]).is(0).out, "2\n");
}

#[test]
fn certificates_are_shown_and_asked_for() {
    let authority = Authority::new("cli");
    let etcd = authority.server(&["127.0.0.1"], true);
    let (certificate, key) = authority.sign(&["client"]);
    let file = |name: &str, bytes: &[u8]| authority.file(name, bytes).to_str().expect("UTF-8").to_owned();
    let ca = file("ca-of-client.pem", &authority.pem());
    let (certificate, key) = (file("client.pem", &certificate), file("client.key", &key));
    let endpoint = etcd.url();
    let access = ["--etcd", &endpoint, "--cacert", &ca, "--cert", &certificate, "--key-file", &key];
    let tour = run(&[&["demo"], &access[..]].concat()).is(0);
    assert!(tour.out.contains("DELETED"), "{tour:?}");
    let list = run(&[&["list", "--prefix", "", "--format", "json"], &access[..]].concat()).is(0);
    assert!(list.lines()[0].starts_with(r#"{"type":"END","#), "the tour has cleaned up: {list:?}");
    let refused = run(&[&["list", "--prefix", ""], &access[..4]].concat()).is(1);
    assert!(refused.err.contains("asks for a client certificate"), "{refused:?}");
    let own = [&["list", "--prefix", ""], &access[..2], &access[4..]].concat();
    let mut of_system = command(&own);
    of_system.env("SSL_CERT_FILE", &ca).env_remove("SSL_CERT_DIR");
    Running::start(of_system).end().is(0);
    let missing = run(&["list", "--prefix", "", "--etcd", &endpoint, "--cacert", "/none.pem"]).is(2);
    assert!(missing.err.contains("the CA file /none.pem does not exist"), "{missing:?}");
}

#[test]
fn status_is_one_object_in_order() {
    let (etcd, client) = etcd();
    puts(&client, &[("/a/1", "x"), ("/a/2", "y")]); // 2
    let endpoint = etcd.url();
    let ended = run(&words(&endpoint, &["status", "--prefix", "/a/"])).is(0);
    assert_eq!(ended.lines().len(), 1);
    let names = ["revision", "oldest", "current", "objects", "bytes", "state", "last_error", "endpoint", "epoch"];
    assert_eq!(members(&ended.out), names);
    let status: serde_json::Value = serde_json::from_str(&ended.out).expect("JSON");
    assert_eq!(
        (&status["revision"], &status["objects"], &status["epoch"]),
        (&2.into(), &2.into(), &1.into()),
        "{status}"
    );
    assert_eq!((status["state"].as_str(), status["endpoint"].as_str()), (Some("Ready"), Some(endpoint.as_str())));
    let text = run(&["status", "--prefix", "/a/", "--etcd", &endpoint]).is(0);
    assert!(text.out.contains("objects        2\n"), "{}", text.out);
    assert!(text.out.contains("window         no change yet; from 3 on\n"), "{}", text.out);
    let etcd = format!("etcd           {}\n", crate::support::etcd::version());
    assert!(text.out.contains(&etcd), "{}", text.out);
}

#[test]
fn the_endpoint_may_come_from_the_environment() {
    let (etcd, client) = etcd();
    client.put("/k", "v");
    let mut command = command(&["get", "/k", "--format", "text"]);
    command.env("WATCHCORE_ETCD", etcd.url());
    assert_eq!(Running::start(command).end().is(0).out, "2 /k v\n");
}

#[test]
fn signals_end_a_watch_with_the_summary() {
    let (etcd, client) = etcd();
    client.put("/a/x", "1");
    let endpoint = etcd.url();
    for (signal, code) in [("INT", 130), ("TERM", 143)] {
        let mut watch = Running::start(command(&words(&endpoint, &["watch", "--prefix", "/a/"])));
        watch.line();
        assert!(watch.line().contains("initial_state_end"));
        watch.signal(signal);
        let ended = watch.end().is(code);
        assert_eq!(ended.summed("events"), 1);
        assert_eq!(ended.out, "", "no ERROR line: {ended:?}");
    }
}

#[test]
fn a_closed_pipe_ends_a_watch_quietly() {
    let (etcd, client) = etcd();
    client.put("/a/x", "1");
    let endpoint = etcd.url();
    let (watch, stdout) = Running::start_unread(command(&words(&endpoint, &["watch", "--prefix", "/a/"])));
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(stdout));
    assert!(lines.next().expect("a line").expect("readable").contains("ADDED"));
    drop(lines);
    client.put("/a/x", "2");
    let ended = watch.end().is(0);
    assert_eq!(ended.err, "", "quietly");
}

#[test]
fn a_closed_pipe_ends_a_watch_that_has_nothing_to_print() {
    let (etcd, client) = etcd();
    client.put("/a/x", "1");
    let endpoint = etcd.url();
    let (watch, stdout) = Running::start_unread(command(&words(&endpoint, &["watch", "--prefix", "/a/"])));
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(stdout));
    assert!(lines.any(|line| line.expect("readable").contains("initial_state_end")));
    drop(lines);
    let ended = watch.end().is(0);
    assert_eq!(ended.err, "", "quietly");
}

#[test]
fn a_watch_that_falls_behind_says_what_it_lost_and_stops() {
    let (etcd, client) = etcd();
    client.put("/a/x", "1");
    let endpoint = etcd.url();
    let words = words(&endpoint, &["watch", "--prefix", "/a/", "--capacity", "128"]);
    // Nobody reads: the pipe fills up, the watch stands still, the log continues.
    let (watch, stdout) = Running::start_unread(command(&words));
    let mut reader = std::io::BufReader::new(stdout);
    let mut line = String::new();
    while !line.contains("initial_state_end") {
        line.clear();
        std::io::BufRead::read_line(&mut reader, &mut line).expect("readable");
    }
    let value = "v".repeat(1000);
    let mut last = 0;
    for number in 0..2000 {
        last = client.put("/a/x", format!("{number}{value}"));
    }
    // The log holds the last one: everything it is to lose is lost.
    let lines: Vec<String> = std::io::BufRead::lines(reader).map(|line| line.expect("readable")).collect();
    let ended = watch.end().is(5);
    let [events @ .., lagged, error] = &lines[..] else { panic!("too few lines: {}", lines.len()) };
    // A watch that the machine did not let run has printed nothing since the state.
    let before = events.last().unwrap_or(&line);
    assert!(error.starts_with(r#"{"type":"ERROR","code":"LAGGED","message":""#), "{error}");
    assert_eq!(members(lagged), ["type", "lost_from", "lost_to", "oldest", "current"]);
    let json = |line: &str| serde_json::from_str::<serde_json::Value>(line).expect("JSON");
    let (before, lagged) = (json(before), json(lagged));
    assert_eq!(lagged["type"], "LAGGED");
    assert_eq!(
        lagged["lost_from"].as_u64(),
        before["revision"].as_u64().map(|last| last + 1),
        "none is missing before"
    );
    assert!(lagged["oldest"].as_u64() == lagged["lost_to"].as_u64().map(|to| to + 1), "{lagged}");
    assert!(lagged["current"].as_u64() <= Some(last));
    assert_eq!(ended.summed("lagged"), 1);
    assert!(ended.err.contains("error: "), "{ended:?}");
}

#[test]
fn a_wrong_password_or_a_missing_permission_is_told_at_once() {
    let (etcd, client) = etcd();
    client.enable_auth("secret", "secret", &[]);
    let endpoint = etcd.url();
    for task in [&["watch", "--prefix", "/a/"][..], &["list", "--prefix", "/a/"], &["get", "/a/x"]] {
        let mut wrong = words(&endpoint, task);
        wrong.extend(["--user", "root:wrong"]);
        let ended = run(&wrong).is(1);
        ended.error("UNAUTHENTICATED");
        let mut denied = words(&endpoint, task);
        denied.extend(["--user", "app:secret"]);
        run(&denied).is(1).error("PERMISSION_DENIED");
        let mut right = command(&words(&endpoint, &["list", "--prefix", "/a/", "--user", "root"]));
        right.env("WATCHCORE_PASSWORD", "secret");
        Running::start(right).end().is(0);
    }
}

#[test]
fn the_tour_through_etcd_leaves_nothing() {
    let (etcd, client) = etcd();
    client.put("/mine", "1");
    let ended = run(&["demo", "--etcd", &etcd.url()]).is(0);
    for word in ["ADDED", "MODIFIED", "DELETED", "BOOKMARK"] {
        assert!(ended.out.contains(word), "{word} is missing in {}", ended.out);
    }
    assert_eq!(client.list(b"/", 0).len(), 1, "only what was there before");
    let ended = run(&["demo", "--etcd", &etcd.url(), "--prefix", "/mi"]).is(2);
    assert!(ended.err.contains("keys below the prefix"), "{ended:?}");
    assert_eq!(client.list(b"/", 0).len(), 1);
}
