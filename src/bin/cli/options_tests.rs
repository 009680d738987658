use super::*;

fn read_with(environment: &[(&str, &str)], words: &[&str]) -> Result<Options, String> {
    let words = std::iter::once("watchcore").chain(words.iter().copied()).map(OsString::from);
    let variable =
        |name: &str| environment.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
    read(words, variable).map_err(|error| {
        assert_eq!(error.exit_code(), 2, "{error}");
        error.to_string()
    })
}

fn given(words: &[&str]) -> Result<Options, String> {
    read_with(&[], words)
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
    let watch = Task::Watch { key: None, start: StartMode::State, until: None, count: None, bookmarks: false };
    assert_eq!(options.task, watch);
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
    for (words, says) in [
        (&["get", "k", "--etcd=https://a:1"][..], "--cacert"),
        (&["get", "k", "--etcd=https://a:1,http://b:2", "--cacert=ca.pem"], "write https"),
        (&["get", "k", "--cacert=ca.pem"], "write https"),
        (&["get", "k", "--etcd=https://a:1", "--cert=c", "--key-file=k"], "--cert without --cacert"),
    ] {
        let error = given(words).unwrap_err();
        assert!(error.contains(says), "{words:?}: {error}");
    }
    let environment = [("WATCHCORE_ETCD", "https://e:1")];
    assert!(read_with(&environment, &["list", "--prefix="]).is_err());
    assert!(read_with(&environment, &["bench"]).is_ok(), "it needs no etcd");
    assert!(read_with(&environment, &["demo"]).is_ok());
}

#[test]
fn the_prefix_is_required_but_for_get_bench_and_demo() {
    for command in ["watch", "list", "status"] {
        let error = given(&[command]).unwrap_err();
        assert!(error.contains("--prefix is required"), "{error}");
    }
    assert!(given(&["get", "k"]).is_ok());
    assert!(given(&["bench"]).is_ok());
    assert!(given(&["demo"]).is_ok());
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
        "stop",
        "--key",
        "/a/k",
    ];
    let task = given(&words).unwrap().task;
    let key = Some(b"/a/k".to_vec());
    assert_eq!(task, Task::Watch { key, start: StartMode::After(7), until: Some(9), count: Some(3), bookmarks: true });
    for wrong in
        [["--start", "later"], ["--until-revision", "0"], ["--count", "0"], ["--lag", "drop"], ["--count", "x"]]
    {
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
fn what_is_not_supported_says_so() {
    for (words, name) in [
        (&["watch", "--prefix=", "--labels", "a=b"][..], "--labels"),
        (&["watch", "--prefix=", "--fields", "a=b"], "--fields"),
        (&["list", "--prefix=", "--labels", "a=b"], "--labels"),
        (&["list", "--prefix=", "--fields", "a=b"], "--fields"),
        (&["list", "--prefix=", "--limit", "5"], "--limit"),
        (&["list", "--prefix=", "--continue", "x"], "--continue"),
        (&["watch", "--prefix=", "--subscribers", "2"], "--subscribers"),
        (&["watch", "--prefix=", "--labels-from", "/x"], "--labels-from"),
        (&["watch", "--prefix=", "--field", "a=/x"], "--field"),
        (&["watch", "--prefix=", "--lag", "skip"], "--lag skip"),
        (&["watch", "--prefix=", "--lag", "resnapshot"], "--lag resnapshot"),
        (&["watch", "--prefix=", "--lag", "conflate"], "--lag conflate"),
    ] {
        let error = given(words).unwrap_err();
        assert!(error.contains("not supported") && error.contains(name), "{words:?}: {error}");
    }
    assert!(given(&["bench", "--subscribers", "2"]).is_ok());
}
