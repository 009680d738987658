//! The command line without any etcd: usage, and how it ends when nobody answers.

use crate::run::{NOBODY, Running, command, run};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

const COMMANDS: [&str; 11] =
    ["watch", "list", "get", "count", "diff", "status", "serve", "bench", "demo", "completions", "manual"];

#[test]
fn help_and_version_are_no_errors() {
    let help = run(&["--help"]).is(0);
    for command in COMMANDS {
        assert!(help.out.contains(&format!("\n  {command} ")), "{}", help.out);
        assert_eq!(run(&["help", command]).is(0).out, run(&[command, "--help"]).is(0).out);
    }
    assert_eq!(run(&["--version"]).is(0).out.trim(), concat!("watchcore ", env!("CARGO_PKG_VERSION")));
}

#[test]
fn completions_of_each_shell() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = run(&["completions", shell]).is(0).out;
        for word in ["watch", "until-revision", "keys-only", "completions"] {
            assert!(script.contains(word), "{word} is missing for {shell}");
        }
    }
    assert!(run(&["completions", "tcsh"]).is(2).err.contains("bash"));
    assert!(run(&["completions"]).is(2).err.contains("<SHELL>"));
}

/// bash itself completes a command, an option and a value.
#[test]
fn bash_completes_with_the_script() {
    let script = run(&["completions", "bash"]).is(0).out;
    let file = std::env::temp_dir().join(format!("watchcore-completions-{}.bash", std::process::id()));
    std::fs::write(&file, script).expect("a temporary file");
    let completed = |words: &str, at: usize| {
        let asked = format!(
            "source {}; COMP_WORDS=({words}); COMP_CWORD={at}; _watchcore watchcore \"${{COMP_WORDS[{at}]}}\" \"${{COMP_WORDS[{}]}}\"; echo \"${{COMPREPLY[@]}}\"",
            file.display(),
            at - 1
        );
        let said = std::process::Command::new("bash").args(["-c", &asked]).output().expect("bash runs");
        String::from_utf8(said.stdout).expect("UTF-8").trim().to_owned()
    };
    assert_eq!(completed("watchcore wat", 1), "watch");
    assert_eq!(completed("watchcore list --keys", 2), "--keys-only");
    assert_eq!(completed("watchcore watch --lag con", 3), "conflate");
    let _ = std::fs::remove_file(&file);
}

/// Each command has a page, and groff, where it is installed, has nothing to say about it.
#[test]
fn manual_has_a_page_of_each_command() {
    let directory = std::env::temp_dir().join(format!("watchcore-manual-{}", std::process::id()));
    let name = directory.to_str().expect("UTF-8").to_owned();
    assert!(run(&["manual", &name]).is(1).err.contains(&name), "the directory is missing");
    std::fs::create_dir(&directory).expect("a temporary directory");
    assert_eq!(run(&["manual", &name]).is(0).out, "");
    let mut commands = COMMANDS.map(|command| format!("watchcore-{command}.1")).to_vec();
    commands.push("watchcore.1".to_owned());
    let pages = std::fs::read_dir(&directory).expect("readable").map(|entry| entry.expect("readable").path());
    let mut pages: Vec<_> = pages.collect();
    pages.sort();
    commands.sort();
    let names: Vec<_> = pages.iter().map(|page| page.file_name().and_then(OsStr::to_str).expect("a name")).collect();
    assert_eq!(names, commands);
    let page = std::fs::read_to_string(directory.join("watchcore-watch.1")).expect("readable");
    assert!(page.contains("until\\-revision") && page.contains("Examples:"), "{page}");
    let groff = std::process::Command::new("groff").args(["-k", "-man", "-Tutf8", "-ww", "-z"]).args(&pages).output();
    if let Ok(said) = groff {
        assert_eq!(String::from_utf8_lossy(&said.stderr), "");
    }
    std::fs::remove_dir_all(&directory).expect("removable");
}

#[test]
fn nothing_is_coloured_where_colours_are_forced() {
    let mut help = command(&["--help"]);
    let mut wrong = command(&["wacth"]);
    for command in [&mut help, &mut wrong] {
        command.env("CLICOLOR_FORCE", "1").env("TERM", "xterm-256color");
    }
    let said = [Running::start(help).end().is(0), Running::start(wrong).end().is(2)];
    assert!(said.iter().all(|ended| !ended.out.contains('\x1b') && !ended.err.contains('\x1b')), "{said:?}");
}

#[test]
fn usage_errors_are_exit_2_and_say_nothing_on_standard_output() {
    for arguments in [
        &[][..],
        &["wach"],
        &["watch"],
        &["list"],
        &["status", "--format", "json"],
        &["get"],
        &["watch", "--prefix", "/a/", "--key", "/b"],
        &["get", "/b", "--prefix", "/a/"],
        &["watch", "--prefix", "/a/", "--start", "yesterday"],
        &["watch", "--prefix", "/a/", "--start", "after:18446744073709551616"],
        &["watch", "--prefix", "/a/", "--key", ""],
        &["watch", "--prefix", "/a/", "--count", "0"],
        &["watch", "--prefix", "/a/", "--subscribers", "0"],
        &["watch", "--prefix", "/a/", "--capacity", "1"],
        &["watch", "--prefix", "/a/", "--capacity", "18446744073709551615"],
        &["list", "--prefix", "/a/", "--limit", "18446744073709551616"],
        &["list", "--prefix", "/a/", "--limit", "-1"],
        &["list", "--prefix", "/a/", "--revision", "18446744073709551616"],
        &["get", ""],
        &["get", "/a", "--revision", "0"],
        &["watch", "--prefix", "/a/", "--timeout", "5"],
        &["watch", "--prefix", "/a/", "--format", "yaml"],
        &["list", "--prefix", "/a/", "--etcd", "ftp://x"],
        &["list", "--prefix", "/a/", "--user", "nobody"],
        &["list", "--prefix", "/a/", "--etcd", "https://a:1", "--cacert", "/no/such/file.pem"],
        &["list", "--prefix", "/a/", "--etcd", "https://a:1,http://b:1"],
        &["count"],
        &["diff", "--prefix", "/a/"],
        &["diff", "--prefix", "/a/", "7", "3"],
        &["diff", "3", "7"],
        &["watch", "/a/"],
        &["bench", "--objects", "none"],
        &["bench", "--value-size", "2147483648"],
    ] {
        let ended = run(arguments).is(2);
        assert!(ended.out.is_empty(), "{arguments:?}: {ended:?}");
        assert!(ended.err.contains("error: ") || ended.err.contains("Usage"), "{arguments:?}: {ended:?}");
        assert!(!ended.err.contains("summary: "), "{arguments:?}: {ended:?}");
    }
}

#[test]
fn keys_and_prefixes_are_any_bytes_and_text_is_utf_8() {
    let bytes = OsStr::from_bytes(b"/\xff");
    let of = |words: &[&str], last: &OsStr| {
        let mut command = command(words);
        command.arg(last);
        Running::start(command).end()
    };
    let ended = of(&["get", "--timeout", "1ms", "--etcd", NOBODY], bytes).is(4);
    assert!(ended.err.contains("error: "), "{ended:?}");
    for option in ["--labels", "--fields", "--continue", "--timeout", "--etcd"] {
        let ended = of(&["list", "--prefix", "/", option], bytes).is(2);
        assert!(ended.err.contains("error: invalid UTF-8") && ended.out.is_empty(), "{ended:?}");
    }
}

#[test]
fn selectors_that_do_not_parse_are_exit_2_with_the_words_of_the_library() {
    let labels = watchcore::Filter::any().labels("app in (web").expect_err("not closed");
    let fields = watchcore::Filter::any().fields("phase").expect_err("no operator");
    for (option, selector, error) in [("--labels", "app in (web", labels), ("--fields", "phase", fields)] {
        for command in ["watch", "list"] {
            // Nobody is asked: no etcd is there.
            let words = [command, "--prefix", "/", option, selector, "--format", "json", "--etcd", NOBODY];
            let ended = run(&words).is(2);
            assert!(ended.err.contains(error.message()), "{ended:?}");
            assert!(ended.out.is_empty() && !ended.err.contains("summary: "), "{ended:?}");
        }
    }
}

#[test]
fn attributes_and_pages_that_make_no_sense_are_exit_2() {
    for (arguments, says) in [
        (&["watch", "--prefix", "/", "--labels-from", "m"][..], "JSON pointer"),
        (&["watch", "--prefix", "/", "--field", "a"], "NAME=POINTER"),
        (&["watch", "--prefix", "/", "--field", "a=/x", "--field", "a=/y"], "declared twice"),
        (&["list", "--prefix", "/", "--field", "a=/x", "--field", "a=/y"], "declared twice"),
        (&["list", "--prefix", "/", "--continue", "x"], "continue token"),
        (&["list", "--prefix", "/", "--limit", "few"], "0 is all"),
        (&["watch", "--prefix", "/", "--subscribers", "0"], "at least 1"),
        (&["watch", "--prefix", "/", "--lag", "drop"], "conflate"),
    ] {
        let ended = run(&[arguments, &["--etcd", NOBODY]].concat()).is(2);
        assert!(ended.err.contains(says), "{arguments:?}: {ended:?}");
        assert!(ended.out.is_empty() && !ended.err.contains("summary: "), "{ended:?}");
    }
}

#[test]
fn with_a_timeout_an_absent_etcd_is_exit_4() {
    for arguments in [&["list", "--prefix", "/"][..], &["get", "/k"], &["status", "--prefix", "/"]] {
        let arguments = [&["--etcd", NOBODY, "--timeout", "300ms", "--format", "json"], arguments].concat();
        let ended = run(&arguments).is(4);
        ended.error("TIMEOUT");
        assert_eq!(ended.lines().len(), 1, "{ended:?}");
        assert!(ended.err.contains(NOBODY), "it says where: {ended:?}");
    }
}

#[test]
fn without_a_timeout_an_absent_etcd_is_exit_1_after_10_seconds() {
    let tasks = [&["list", "--prefix", "/"][..], &["get", "/k"], &["status", "--prefix", "/"]];
    let start = |task: &[&str]| Running::start(command(&[&["--etcd", NOBODY, "--format", "json"], task].concat()));
    let running: Vec<Running> = tasks.iter().map(|task| start(task)).collect();
    for one in running {
        let ended = one.end().is(1);
        ended.error("UNAVAILABLE");
        assert!(ended.time.as_secs_f64() > 9.0, "it tries for 10 s: {ended:?}");
    }
}

/// What the environment says of etcd is taken or refused; only a path, where the tests find their etcd, is passed over.
#[test]
fn variables_that_make_no_sense_are_exit_2() {
    for (name, value, says) in [
        ("WATCHCORE_ETCD", OsStr::new("etcd.prod"), "WATCHCORE_ETCD: \"etcd.prod\" has no port"),
        ("WATCHCORE_ETCD", OsStr::new("etcd.prod/"), "WATCHCORE_ETCD: \"etcd.prod/\" has no port"),
        ("ETCDCTL_ENDPOINTS", OsStr::new("etcd.prod"), "ETCDCTL_ENDPOINTS: \"etcd.prod\" has no port"),
        ("ETCDCTL_ENDPOINTS", OsStr::new("/usr/bin"), "ETCDCTL_ENDPOINTS: \"/usr/bin\" has no port"),
        ("WATCHCORE_ETCD", OsStr::from_bytes(b"http://\xff:1"), "WATCHCORE_ETCD is no UTF-8"),
        ("WATCHCORE_USER", OsStr::from_bytes(b"\xff:x"), "WATCHCORE_USER is no UTF-8"),
    ] {
        for task in ["count", "serve"] {
            let mut command = command(&[task, "--prefix", "/", "--timeout", "1s"]);
            if task == "serve" {
                command.args(["--listen", "127.0.0.1:0"]);
            }
            command.env(name, value);
            let ended = Running::start(command).end().is(2);
            assert!(ended.err.contains(says) && ended.out.is_empty(), "{task} {name} {value:?}: {ended:?}");
        }
    }
    let mut path = command(&["count", "--prefix", "/", "--etcd", "https://127.0.0.1:1"]);
    path.env("WATCHCORE_CACERT", OsStr::from_bytes(b"/none/\xff.pem"));
    assert!(Running::start(path).end().is(2).err.contains("the CA file /none/"), "a path is any bytes");
    let mut passed_over = command(&["count", "--prefix", "/", "--timeout", "1s"]);
    passed_over.env("WATCHCORE_ETCD", "/usr/bin").env("ETCDCTL_ENDPOINTS", NOBODY);
    assert!(Running::start(passed_over).end().is(4).err.contains(NOBODY));
}

#[test]
fn watch_goes_on_trying_until_its_timeout() {
    let ended = run(&["watch", "--etcd", NOBODY, "--prefix", "/", "--timeout", "1s", "--format", "json"]).is(4);
    ended.error("TIMEOUT");
    assert_eq!(ended.summed("events"), 0);
    assert!(ended.err.contains("WARN"), "it warns: {ended:?}");
    assert!(ended.time.as_secs_f64() >= 1.0);
    let text = run(&["watch", "--etcd", NOBODY, "--prefix", "/", "--timeout", "200ms"]).is(4);
    assert!(text.out.is_empty(), "ERROR lines are for JSON: {text:?}");
    let waiting =
        run(&["watch", "--etcd", NOBODY, "--prefix", "/", "--start", "state-at-least:5", "--timeout", "200ms"]);
    waiting.is(4).summary();
}

#[test]
fn signals_end_a_watch_that_waits_with_the_summary() {
    for (signal, code) in [("INT", 130), ("TERM", 143)] {
        for start in ["state", "now", "after:3", "state-at-least:3"] {
            // One that retries has said so before the signal comes, and says it once: with -v each attempt would.
            let mut command = command(&["watch", "--etcd", NOBODY, "--prefix", "/", "--start", start]);
            command.stderr(std::process::Stdio::piped()).stdout(std::process::Stdio::null());
            let mut child = command.spawn().expect("it starts");
            let (line, rest) = first_warning(child.stderr.take().expect("piped"));
            assert!(line.contains("WARN"), "{line}");
            let script = format!("kill -{signal} {}", child.id());
            assert!(std::process::Command::new("sh").args(["-c", &script]).status().expect("sh").success());
            assert_eq!(child.wait().expect("it ends").code(), Some(code), "{signal} {start}");
            let words = rest.join().expect("read");
            assert!(words.lines().last().unwrap_or_default().starts_with("summary: events=0 "), "{words}");
        }
    }
}

/// Everything up to the first warning, and what comes then.
fn first_warning(stderr: std::process::ChildStderr) -> (String, std::thread::JoinHandle<String>) {
    use std::io::{BufRead as _, Read as _};
    let mut reader = std::io::BufReader::new(stderr);
    let mut line = String::new();
    while !line.contains("WARN") {
        line.clear();
        assert!(reader.read_line(&mut line).expect("readable") > 0, "it ended without a warning");
    }
    let rest = std::thread::spawn(move || {
        let mut rest = String::new();
        let _ = reader.read_to_string(&mut rest);
        rest
    });
    (line, rest)
}
