use super::*;
use crate::cli::access::DEFAULT_ENDPOINT;

fn read_with(environment: &[(&str, &str)], words: &[&str]) -> Result<Options, String> {
    let words = std::iter::once("watchcore").chain(words.iter().copied()).map(OsString::from);
    let variable = |name: &str| environment.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).into());
    read(words, variable).map_err(|error| {
        assert_eq!(error.exit_code(), 2, "{error}");
        error.to_string()
    })
}

fn given(words: &[&str]) -> Result<Options, String> {
    read_with(&[], words)
}

fn plain() -> Watch {
    Watch {
        key: None,
        start: StartMode::State,
        until: None,
        count: None,
        subscribers: 1,
        filter: Filter::any(),
        lag: OnLag::Stop,
        bookmarks: false,
    }
}

#[test]
fn the_command_line_is_consistent() {
    CommandLine::command().debug_assert();
}

#[test]
fn defaults() {
    let options = given(&["watch", "--prefix", "/a/"]).unwrap();
    assert_eq!(options.access.endpoints, [DEFAULT_ENDPOINT]);
    assert!(!options.access.asked);
    assert_eq!(options.prefix.as_deref(), Some(&b"/a/"[..]));
    assert_eq!((options.capacity, options.format, options.timeout, options.verbosity), (65_536, Format::Text, None, 0));
    assert_eq!(options.attributes, Attributes::default(), "nothing is extracted unless it is looked at");
    assert_eq!(options.task, Task::Watch(plain()));
    let list = given(&["list", "--prefix", "/a/"]).unwrap().task;
    assert_eq!(list, Task::List { revision: None, limit: 0, token: None, filter: Filter::any() });
}

#[test]
fn common_options_stand_before_or_after_the_command() {
    let before =
        given(&["--etcd", "http://a:1,b:2", "--prefix", "", "--format", "json", "--timeout", "5s", "-vv", "watch"]);
    let after = given(&["watch", "-v", "-v", "--timeout=5s", "--format=json", "--prefix=", "--etcd=http://a:1,b:2"]);
    assert_eq!(before, after);
    let options = after.unwrap();
    assert_eq!(options.access.endpoints, ["http://a:1", "b:2"]);
    assert_eq!(options.prefix.as_deref(), Some(&b""[..]), "an empty prefix is everything, not nothing");
    assert_eq!(options.verbosity, 2);
}

#[test]
fn the_environment_goes_second() {
    let environment = [("WATCHCORE_ETCD", "http://e:1"), ("WATCHCORE_PASSWORD", "secret")];
    let from_environment = read_with(&environment, &["get", "k", "--user", "app"]).unwrap();
    assert_eq!(from_environment.access.endpoints, ["http://e:1"]);
    assert!(!from_environment.access.asked, "only the option itself asks");
    assert_eq!(from_environment.access.user, Some(("app".into(), "secret".into())));
    let from_option = read_with(&environment, &["get", "k", "--user", "app:x", "--etcd", "http://o:1"]).unwrap();
    assert_eq!(from_option.access.endpoints, ["http://o:1"]);
    assert_eq!(from_option.access.user, Some(("app".into(), "x".into())));
    let directory = read_with(&[("WATCHCORE_ETCD", "/opt/etcd")], &["get", "k"]).unwrap();
    assert_eq!(directory.access.endpoints, [DEFAULT_ENDPOINT], "a directory of binaries is not an endpoint");
}

#[test]
fn schemes_and_certificates_fit_each_other() {
    assert!(given(&["get", "k", "--etcd=https://a:1,b:2", "--cacert=ca.pem"]).is_ok());
    assert!(given(&["get", "k", "--etcd=https://a:1", "--cacert=c", "--cert=c", "--key-file=k"]).is_ok());
    assert!(given(&["get", "k", "--etcd=https://a:1"]).is_ok(), "by the system's authorities");
    assert!(given(&["get", "k", "--etcd=https://a:1", "--cert=c", "--key-file=k"]).is_ok());
    for (words, says) in [
        (&["get", "k", "--etcd=https://a:1,http://b:2", "--cacert=ca.pem"][..], "--cacert asks for TLS: write https"),
        (&["get", "k", "--etcd=https://a:1,http://b:2"], "http://b:2 is http, but https://a:1 is https"),
        (&["get", "k", "--cacert=ca.pem"], "write https"),
        (&["get", "k", "--cert=c", "--key-file=k"], "--cert asks for TLS: write https"),
    ] {
        let error = given(words).unwrap_err();
        assert!(error.contains(says), "{words:?}: {error}");
    }
    let environment = [("WATCHCORE_ETCD", "http://e:1,https://e:2")];
    assert!(read_with(&environment, &["list", "--prefix="]).is_err());
    assert!(read_with(&environment, &["bench"]).is_ok(), "it needs no etcd");
    assert!(read_with(&environment, &["demo"]).is_ok());
}

#[test]
fn the_prefix_is_required_where_a_range_is_shown() {
    for command in [&["watch"][..], &["list"], &["status"], &["count"], &["diff", "1", "2"]] {
        let error = given(command).unwrap_err();
        assert!(error.contains("--prefix is required"), "{error}");
        assert!(error.contains(&format!("Usage: watchcore {}", command[0])), "of the command itself: {error}");
    }
    assert!(given(&["watch"]).unwrap_err().contains("--key"), "there is another way");
    assert!(given(&["get", "k"]).is_ok());
    assert!(given(&["completions", "bash"]).is_ok());
    assert!(given(&["bench"]).is_ok());
    assert!(given(&["demo"]).is_ok());
}

#[test]
fn a_key_is_a_range_of_its_own() {
    for words in [&["watch", "--key", "/a/b"][..], &["get", "/a/b"]] {
        assert_eq!(given(words).unwrap().prefix.as_deref(), Some(&b"/a/b"[..]));
    }
    let both = given(&["watch", "--key", "/a/b", "--prefix", "/a/"]).unwrap();
    assert_eq!(both.prefix.as_deref(), Some(&b"/a/"[..]));
}

#[test]
fn a_range_without_its_option_is_told_how_it_is_named() {
    for words in [&["watch", "/a/"][..], &["list", "--keys-only", "/a/"], &["diff", "1", "2", "/a/"]] {
        let error = given(words).unwrap_err();
        assert!(error.contains("--prefix /a/"), "{error}");
    }
    assert!(!given(&["bench", "/a/"]).unwrap_err().contains("--prefix"));
    assert!(given(&["list", "--prefx", "/a/"]).unwrap_err().contains("--prefix"), "a similar option exists");
    assert!(given(&["lst"]).unwrap_err().contains("'list'"), "a similar command exists");
}

#[test]
fn diff_takes_one_revision_or_two() {
    let task = |words: &[&str]| given(&[&["diff", "--prefix="], words].concat()).map(|options| options.task);
    assert_eq!(task(&["3", "7"]), Ok(Task::Diff { from: 3, to: Some(7), filter: Filter::any() }));
    assert_eq!(task(&["7", "7"]), Ok(Task::Diff { from: 7, to: Some(7), filter: Filter::any() }));
    assert_eq!(task(&["3"]), Ok(Task::Diff { from: 3, to: None, filter: Filter::any() }));
    assert!(task(&["7", "3"]).unwrap_err().contains("diff 3 7"), "it says how to go on");
    assert!(task(&["0", "3"]).is_err() && task(&["x"]).is_err() && task(&[]).is_err());
}

#[test]
fn keys_only_is_of_what_prints_values() {
    for words in [&["watch", "--prefix="][..], &["list", "--prefix="], &["diff", "--prefix=", "1"]] {
        assert!(!given(words).unwrap().keys_only);
        assert!(given(&[words, &["--keys-only"]].concat()).unwrap().keys_only);
    }
    assert!(given(&["get", "k", "--keys-only"]).is_err());
}

#[test]
fn what_needs_no_etcd_does_not_ask_how_it_is_reached() {
    let broken = [("WATCHCORE_ETCD", "ftp://x"), ("WATCHCORE_CERT", "c")];
    for words in [&["bench"][..], &["demo"], &["completions", "zsh"], &["manual", "."]] {
        assert!(read_with(&broken, words).is_ok(), "{words:?}");
    }
    assert!(read_with(&broken, &["get", "k"]).unwrap_err().contains("WATCHCORE_ETCD"));
}

#[test]
fn the_log_is_asked_for_by_the_environment_too() {
    assert_eq!(read_with(&[("RUST_LOG", "h2=debug")], &["bench"]).unwrap().log.as_deref(), Some("h2=debug"));
    assert_eq!(read_with(&[("RUST_LOG", " ")], &["bench"]).unwrap().log, None);
    assert_eq!(given(&["bench", "--verbose", "-v"]).unwrap().verbosity, 2);
}

/// Each command shows how it is used.
#[test]
fn every_help_has_an_example() {
    let mut all = CommandLine::command();
    all.build();
    for command in all.get_subcommands_mut().filter(|command| command.get_name() != "help") {
        let name = command.get_name().to_owned();
        let help = command.render_help().to_string();
        assert!(help.contains(&format!("\n  watchcore {name}")) || name == "completions", "{help}");
        assert!(help.lines().all(|line| line.chars().count() <= 120), "{help}");
        for argument in command.get_arguments() {
            assert!(argument.get_help().is_some(), "{name} {argument}");
        }
    }
}

/// Each example of the help is accepted as a command line.
#[test]
fn every_example_is_taken() {
    let mut all = CommandLine::command();
    all.build();
    let helps: Vec<String> = std::iter::once(all.clone())
        .chain(all.get_subcommands().cloned())
        .filter_map(|command| command.get_after_help().map(ToString::to_string))
        .collect();
    let mut count = 0;
    for line in helps.iter().flat_map(|help| help.lines()).filter(|line| line.starts_with("  watchcore ")) {
        let example = line.trim_start().split("   ").next().unwrap_or_default();
        let words: Vec<&str> = example.split('|').next().unwrap_or_default().split_whitespace().skip(1).collect();
        let words: Vec<&str> = words.iter().map(|word| if *word == "\"\"" { "" } else { word }).collect();
        assert!(given(&words).is_ok(), "{example}: {:?}", given(&words).err());
        count += 1;
    }
    assert!(count > 20, "{count} examples");
}

#[test]
fn a_key_lies_inside_the_prefix() {
    assert!(given(&["watch", "--prefix", "/a/", "--key", "/a/b"]).is_ok());
    for words in
        [["watch", "--prefix=/a/", "--key=/b"], ["get", "--prefix=/a/", "/b"], ["watch", "--prefix=/a/", "--key=b"]]
    {
        let error = given(&words).unwrap_err();
        assert!(error.contains("outside the prefix"), "{error}");
    }
    assert!(given(&["get", ""]).unwrap_err().contains("empty"));
}

#[test]
fn watch_options() {
    let words = [
        "watch",
        "--prefix=/a/",
        "--start",
        "after:7",
        "--until-revision",
        "9",
        "--count",
        "3",
        "--bookmarks",
        "--lag",
        "conflate",
        "--key",
        "/a/k",
        "--subscribers=2",
    ];
    let task = given(&words).unwrap().task;
    let watch = Watch {
        key: Some(b"/a/k".to_vec()),
        start: StartMode::After(7),
        until: Some(9),
        count: Some(3),
        subscribers: 2,
        lag: OnLag::Conflate,
        bookmarks: true,
        ..plain()
    };
    assert_eq!(task, Task::Watch(watch));
    let policies = [
        ("stop", OnLag::Stop),
        ("skip", OnLag::SkipToOldest),
        ("resnapshot", OnLag::Resnapshot),
        ("conflate", OnLag::Conflate),
    ];
    for (name, lag) in policies {
        let task = given(&["watch", "--prefix=", "--lag", name]).unwrap().task;
        assert_eq!(task, Task::Watch(Watch { lag, ..plain() }), "{name}");
    }
    for wrong in [
        ["--start", "later"],
        ["--until-revision", "0"],
        ["--count", "0"],
        ["--lag", "drop"],
        ["--count", "x"],
        ["--subscribers", "0"],
        ["--subscribers", "x"],
    ] {
        assert!(given(&["watch", "--prefix=/a/", wrong[0], wrong[1]]).is_err(), "{wrong:?} was taken");
    }
}

#[test]
fn wrong_values_are_usage_errors() {
    for wrong in [
        &["--format", "xml"][..],
        &["--timeout", "5"],
        &["--capacity", "0"],
        &["--etcd", "ftp://x"],
        &["--etcd", ""],
        &["--user", "app"],
        &["--cert", "c.pem"],
        &["--no-such-option"],
    ] {
        let words: Vec<&str> = ["get", "k"].iter().chain(wrong).copied().collect();
        assert!(given(&words).is_err(), "{wrong:?} was taken");
    }
    assert!(given(&[]).is_err(), "a command is needed");
    assert!(given(&["get"]).is_err(), "get needs a key");
}

#[test]
fn selectors_make_a_filter_and_declare_what_they_look_at() {
    let words =
        ["--prefix=", "--labels", "a in (x)", "--fields", "spec.node=n,own!=,metadata.a/b=", "--field=own=/o.p"];
    let filter = Filter::any().labels("a=x").unwrap().fields("metadata.a/b=,own!=,spec.node=n").unwrap();
    let pair = |name: &str, pointer: &str| (name.to_owned(), pointer.to_owned());
    let fields = vec![pair("own", "/o.p"), pair("spec.node", "/spec/node"), pair("metadata.a/b", "/metadata/a~1b")];
    let watch = given(&[&["watch"], &words[..]].concat()).unwrap();
    assert_eq!(watch.task, Task::Watch(Watch { filter: filter.clone(), ..plain() }));
    let attributes = Attributes { labels: Some("/metadata/labels".into()), fields };
    assert_eq!(watch.attributes, attributes);
    let list = given(&[&["list", "--labels-from", "/l", "--limit=5"], &words[..]].concat()).unwrap();
    assert_eq!(list.task, Task::List { revision: None, limit: 5, token: None, filter });
    assert_eq!(list.attributes, Attributes { labels: Some("/l".into()), ..attributes });
}

#[test]
fn selectors_and_pointers_that_do_not_parse_are_refused() {
    for (words, says) in [
        (["--labels", "a in (b"], "byte 7: expected \",\" or \")\""),
        (["--fields", "a"], "byte 1: expected"),
        (["--fields", "=x"], "has no name"),
        (["--fields", "a=b, c=d"], "white space"),
        (["--labels-from", "labels"], "JSON pointer"),
        (["--field", "n"], "NAME=POINTER"),
        (["--field", "n=x"], "JSON pointer"),
    ] {
        for command in ["watch", "list", "count"] {
            let error = given(&[command, "--prefix=", words[0], words[1]]).unwrap_err();
            assert!(error.contains(says), "{words:?}: {error}");
        }
    }
    assert!(given(&["list", "--prefix=", "--limit", "-1"]).is_err());
    assert!(given(&["list", "--prefix=", "--continue", "x"]).unwrap_err().contains("continue token"));
    assert!(given(&["get", "k", "--labels", "a=b"]).is_err(), "of what shows a range");
}

#[test]
fn a_token_brings_its_own_revision() {
    let cache = watchcore::Cache::builder("").build().unwrap();
    let changes = [watchcore::Change::put("a", "1"), watchcore::Change::put("b", "1")];
    cache.writer().unwrap().apply(7, changes).unwrap();
    let page = cache.list(&watchcore::Range::all(), watchcore::Read::Any, 1).unwrap();
    let token = page.continue_token().unwrap();
    let list = given(&["list", "--prefix=", "--continue", token]).unwrap().task;
    assert_eq!(list, Task::List { revision: None, limit: 0, token: Some(token.to_owned()), filter: Filter::any() });
    let error = given(&["list", "--prefix=", "--continue", token, "--revision", "7"]).unwrap_err();
    assert!(error.contains("--revision"), "{error}");
}
