//! The command line at a terminal, which a pseudo-terminal is, and its surroundings.

use crate::run::{Running, TIMEOUT, command, run};
use crate::support::etcd::{Ctl, Etcd};
use std::fs::File;
use std::io::Read as _;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::process::{Command, Stdio};
use std::time::Instant;

/// Both ends of a pseudo-terminal.
fn terminal() -> (File, OwnedFd) {
    let (mut ours, mut theirs) = (-1, -1);
    let (none, size) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: both descriptors are places to write to; name, attributes and size may be NULL.
    let made = unsafe { libc::openpty(&mut ours, &mut theirs, none, std::ptr::null_mut(), size) };
    assert_eq!(made, 0, "a pseudo-terminal: {}", std::io::Error::last_os_error());
    // SAFETY: the descriptors are new, and nobody else's.
    unsafe { (File::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs)) }
}

/// What a command says on a terminal, both of its outputs together.
#[track_caller]
fn seen(mut command: Command) -> String {
    let (mut ours, theirs) = terminal();
    let error = theirs.try_clone().expect("a second descriptor");
    let mut child = command.stdout(theirs).stderr(error).spawn().expect("it starts");
    // The command holds the other end too: it goes with it, and then there is nothing more to read.
    drop(command);
    let reader = std::thread::spawn(move || {
        let (mut text, mut room) = (Vec::new(), [0; 4096]);
        while let Ok(length @ 1..) = ours.read(&mut room) {
            text.extend_from_slice(&room[..length]);
        }
        String::from_utf8_lossy(&text).replace("\r\n", "\n")
    });
    let deadline = Instant::now() + TIMEOUT;
    while child.try_wait().expect("a child").is_none() {
        if Instant::now() > deadline {
            let _ = child.kill();
            panic!("it does not end");
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    reader.join().expect("read")
}

/// On a terminal that cannot move its cursor, so that there is no progress.
fn at_terminal(words: &[&str]) -> Command {
    let mut command = command(words);
    command.env("TERM", "dumb");
    command
}

fn keys(client: &Ctl, count: usize) {
    for number in 0..count {
        client.put(format!("/a/{number}"), "v"); // from 2
    }
}

#[test]
fn a_page_on_a_terminal_says_the_command_of_the_next() {
    let etcd = Etcd::start();
    keys(&etcd.ctl(), 4);
    let endpoint = etcd.url();
    let page = ["list", "--prefix", "/a/", "--limit", "3", "--etcd", &endpoint];
    let said = seen(at_terminal(&page));
    let hint = said.lines().last().expect("a hint");
    assert_eq!(said.lines().count(), 4, "{said}");
    let next = hint.strip_prefix("there may be more; the next page: ").unwrap_or_else(|| panic!("{said}"));
    assert!(next.contains(" list --prefix /a/ --limit 3 ") && next.contains(" --continue "), "{said}");
    // A shell takes it as it stands.
    let mut shell = Command::new("sh");
    shell.args(["-c", next]).env_remove("WATCHCORE_ETCD").env("TERM", "dumb");
    assert_eq!(seen(shell), "5 /a/3 v\n");
    // Where one of the outputs is no terminal there is no hint.
    let (mut ours, theirs) = terminal();
    let mut half = at_terminal(&page);
    let mut child = half.stdout(Stdio::piped()).stderr(theirs).spawn().expect("it starts");
    drop(half);
    assert!(child.wait().expect("it ends").success());
    assert!(!matches!(ours.read(&mut [0; 100]), Ok(1..)), "standard output is a pipe");
    assert_eq!(run(&page).is(0).err, "");
}

#[test]
fn nothing_found_is_said_on_a_terminal() {
    let etcd = Etcd::start();
    keys(&etcd.ctl(), 2);
    let endpoint = etcd.url();
    let said = |task: &[&str]| seen(at_terminal(&[task, &["--etcd", &endpoint]].concat()));
    assert_eq!(said(&["list", "--prefix", "/none"]), "no key below /none at revision 3 is in what was asked for\n");
    assert_eq!(said(&["diff", "--prefix", "/none", "2"]), "nothing changed below /none between 2 and 3\n");
    assert_eq!(said(&["list", "--prefix", "/none", "--format", "json"]).lines().count(), 1);
}

#[test]
fn a_terminal_shows_the_beginning_of_a_long_value() {
    let etcd = Etcd::start();
    let long = "x".repeat(1000);
    etcd.ctl().put("/a/long", long.as_str()); // 2
    let endpoint = etcd.url();
    let said = |task: &[&str]| seen(at_terminal(&[task, &["--etcd", &endpoint]].concat()));
    let short = format!("2 /a/long {}\u{2026} (1000 bytes)\n", &long[..256]);
    assert_eq!(said(&["list", "--prefix", "/a/"]), short);
    assert_eq!(said(&["get", "/a/long"]), format!("2 /a/long {long}\n"), "who asks for one key gets its value");
    assert!(said(&["list", "--prefix", "/a/", "--format", "json"]).contains(&long));
    assert!(run(&["list", "--prefix", "/a/", "--etcd", &endpoint]).is(0).out.contains(&long), "a pipe gets all");
}

/// Neither colours nor a cursor that moves where the terminal cannot.
#[test]
fn a_dumb_terminal_gets_no_escapes() {
    let words = ["bench", "--objects", "50", "--events", "3000", "--value-size", "16", "--subscribers", "1"];
    let said = seen(at_terminal(&words));
    assert!(said.contains("deliver") && !said.contains('\x1b'), "{said:?}");
    for name in ["", "dumb"] {
        for words in [&["--help"][..], &["wacth"], &["list"]] {
            let mut command = command(words);
            command.env("TERM", name);
            let said = seen(command);
            assert!(!said.is_empty() && !said.contains('\x1b'), "{said:?}");
        }
    }
}

/// A wait says so after a moment, on a line of its own; what the log says meanwhile begins at a line's start.
#[test]
fn a_long_wait_is_shown_beside_the_log() {
    let mut waits = command(&["list", "--prefix", "/", "--etcd", crate::run::NOBODY, "--timeout", "3s", "-v"]);
    waits.env("TERM", "xterm");
    let said = seen(waits);
    assert!(said.contains(&format!("waiting for etcd {}", crate::run::NOBODY)), "{said:?}");
    assert!(said.contains("again: etcd"), "the log goes on: {said:?}");
    for line in said.split(['\n', '\r']).filter(|line| line.contains(" WARN ") || line.contains(" DEBUG ")) {
        assert!(line.trim_start_matches("\x1b[2K").starts_with("20"), "{line:?} in {said:?}");
    }
    assert!(said.ends_with("look with -v\n"), "{said:?}");
    let etcd = Etcd::start();
    let mut list = command(&["list", "--prefix", "/", "--etcd", &etcd.url(), "--format", "json"]);
    list.env("TERM", "xterm");
    let said = seen(list);
    assert!(said.ends_with("{\"type\":\"END\",\"revision\":1,\"count\":0}\n") && !said.contains("0/0"), "{said:?}");
}

#[test]
fn all_of_the_connection_comes_from_the_environment() {
    let authority = crate::support::tls::Authority::new("cli-environment");
    let etcd = authority.server(&["127.0.0.1"], true);
    let (certificate, key) = authority.sign(&["client"]);
    let file = |name: &str, bytes: &[u8]| authority.file(name, bytes).to_str().expect("UTF-8").to_owned();
    let ca = file("ca-of-client.pem", &authority.pem());
    let (certificate, key) = (file("client.pem", &certificate), file("client.key", &key));
    let (url, bare) = (etcd.url(), etcd.url().replace("https://", ""));
    let own = ["WATCHCORE_ETCD", "WATCHCORE_CACERT", "WATCHCORE_CERT", "WATCHCORE_KEY_FILE"];
    let of_etcdctl = ["ETCDCTL_ENDPOINTS", "ETCDCTL_CACERT", "ETCDCTL_CERT", "ETCDCTL_KEY"];
    for (names, url) in [(own, &url), (of_etcdctl, &bare)] {
        let mut command = command(&["count", "--prefix", ""]);
        command.envs(names.into_iter().zip([url, &ca, &certificate, &key]));
        assert_eq!(Running::start(command).end().is(0).out, "0\n");
    }
    // Without its certificate the server refuses.
    let mut without = command(&["count", "--prefix", ""]);
    without.envs(own[..2].iter().zip([&url, &ca]));
    let refused = Running::start(without).end().is(1);
    assert!(refused.err.contains("asks for a client certificate"), "{refused:?}");
}

#[test]
fn user_and_password_come_from_the_environment() {
    let etcd = Etcd::start();
    etcd.ctl().enable_auth("secret", "secret", &[]);
    let endpoint = etcd.url();
    let count = |environment: &[(&str, &str)], more: &[&str]| {
        let mut command = command(&[&["count", "--prefix", ""], more].concat());
        command.envs(environment.iter().copied());
        Running::start(command).end()
    };
    let name = ("WATCHCORE_USER", "root");
    let password = ("WATCHCORE_PASSWORD", "secret");
    let address = ["--etcd", &endpoint];
    count(&[name, password], &address).is(0);
    count(&[("WATCHCORE_USER", "root:secret")], &address).is(0);
    count(&[("WATCHCORE_USER", "root:wrong"), password], &["--etcd", &endpoint, "--user", "root"]).is(0);
    assert!(count(&[name], &address).is(2).err.contains("WATCHCORE_PASSWORD"));
    let theirs = [("ETCDCTL_ENDPOINTS", endpoint.as_str()), ("ETCDCTL_USER", "root:secret")];
    count(&theirs, &[]).is(0);
    // Another etcd is not shown the credentials of etcdctl's.
    count(&theirs, &address).is(1);
}

#[test]
fn the_log_is_quiet_about_its_transport_unless_it_is_asked_for() {
    let etcd = Etcd::start();
    let endpoint = etcd.url();
    let logged = |log: Option<&str>, more: &[&str]| {
        let mut command = command(&[&["count", "--prefix", "", "--etcd", &endpoint], more].concat());
        command.envs(log.map(|log| ("RUST_LOG", log)));
        let ended = Running::start(command).end().is(0);
        assert_eq!(ended.out, "0\n", "{ended:?}");
        ended.err
    };
    let transport = |text: &str| [" h2::", " hyper", " tower::"].iter().any(|name| text.contains(name));
    assert_eq!(logged(None, &[]), "");
    for verbose in ["-v", "-vv"] {
        let text = logged(None, &[verbose]);
        assert!(text.contains(" watchcore_etcd::") && !transport(&text), "{text}");
    }
    let text = logged(Some("h2=debug"), &["-vv"]);
    assert!(text.contains(" watchcore_etcd::") && text.contains(" h2::"), "{text}");
    let text = logged(Some("watchcore_etcd=info"), &[]);
    assert!(text.contains(" watchcore_etcd::") && !transport(&text), "{text}");
    let text = logged(Some("not=a=level"), &[]);
    assert!(text.starts_with("warning: RUST_LOG=not=a=level is ignored") && text.lines().count() == 1, "{text}");
}
