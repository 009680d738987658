use super::*;
use crate::cli::serve::flags::GivenResource;

/// A file with every key.
const WHOLE: &str = r#"
etcd = ["http://file:1", "http://file:2"]
listen = "127.0.0.1:18080"
insecure_listen = false
bookmark_interval = "1m30s"
grace_period = "3s"
stale_limit = "5s"
history = 4000
audit_interval = "30m"
hosts = ["watch.example"]
origins = ["https://ops.example", "http://localhost:3000"]

[tls]
certificate = "server.crt"
key = "/run/server.key"
key_passphrase_file = "passphrase"
client_ca = "ca.crt"
client_crl = "ca.crl"

[auth]
tokens = "tokens"

[limits]
watches = 7
watches_per_connection = 6
connections = 5
header_bytes = 10000
url_bytes = 2000
queued_bytes = 3
frame_bytes = 2
header_timeout = "4s"
handshake_timeout = "3s"
idle = "2s"
stall = "1s"
list = "5s"
watch = "6s"
connection_age = "7s"
idle_unknown = "8s"
unread_bytes = 9
unread_bytes_per_client = 8

[[cache]]
prefix = "/registry/"
capacity = 1000

[[cache]]
prefix = "/registry/large/"

[[resource]]
group = "matrix.test"
version = "v1"
plural = "widgets"
singular = "widget"
kind = "Widget"
namespaced = true
prefix = "/registry/matrix.test/widgets/"
short_names = ["wd"]
labels = "/metadata/labels"
fields = { "spec.color" = "/spec/color", "spec.size" = "/spec/size" }
columns = [ { name = "Color", type = "string", pointer = "/spec/color" } ]

[[resource]]
version = "v1"
plural = "things"
kind = "Thing"
prefix = "/registry/large/things/"
"#;

fn common() -> CommonOptions {
    CommonOptions { labels: "/metadata/labels".to_owned(), ..CommonOptions::default() }
}

fn merged(
    text: Option<&str>,
    flags: Flags,
    common: CommonOptions,
    environment: &[(&str, &str)],
) -> Result<Settings, String> {
    let document = text.map(|text| Document::new("/etc/watchcore/x.toml", text));
    let variable = |name: &str| environment.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).into());
    let merge = Merge { document: document.as_ref(), flags: &flags, common };
    merge.settings(&variable).map_err(|failure| {
        assert_eq!(failure.exit(), crate::cli::exit::USAGE);
        failure.message
    })
}

fn of_file(text: &str) -> Result<Settings, String> {
    merged(Some(text), Flags::default(), common(), &[])
}

fn given(plural: &str, prefix: &str) -> GivenResource {
    GivenResource {
        group: String::new(),
        version: "v1".to_owned(),
        plural: plural.to_owned(),
        kind: "Kind".to_owned(),
        namespaced: false,
        prefix: prefix.to_owned(),
    }
}

/// The caches with the resources in each, in their order.
fn shown(settings: &Settings) -> Vec<String> {
    let shown = |cache: &CacheSettings| {
        let resources: Vec<String> = cache.resources.iter().map(ToString::to_string).collect();
        format!("{} {} {}", String::from_utf8_lossy(&cache.prefix), cache.capacity, resources.join(" "))
    };
    settings.caches.iter().map(shown).collect()
}

#[test]
fn every_key_of_the_file_is_taken() {
    let settings = of_file(WHOLE).expect("it makes sense");
    assert_eq!(settings.access.endpoints, ["http://file:1", "http://file:2"]);
    assert_eq!(settings.listen, "127.0.0.1:18080".parse().expect("an address"));
    assert!(!settings.insecure_listen);
    assert_eq!(settings.bookmark_interval, Some(Duration::from_secs(90)));
    assert_eq!(settings.grace_period, Duration::from_secs(3));
    assert_eq!(
        (settings.stale_limit, &*settings.hosts),
        (Some(Duration::from_secs(5)), &["watch.example".to_owned()][..])
    );
    assert_eq!((settings.history, settings.audit_interval), (4000, Some(Duration::from_secs(1800))));
    assert_eq!(settings.origins, ["https://ops.example", "http://localhost:3000"]);
    let beside = |name: &str| PathBuf::from(format!("/etc/watchcore/{name}"));
    let tls = settings.tls.as_ref().expect("TLS");
    assert_eq!((&tls.certificate, &tls.key), (&beside("server.crt"), &PathBuf::from("/run/server.key")));
    assert_eq!((&tls.client_ca, &tls.client_crl), (&Some(beside("ca.crt")), &Some(beside("ca.crl"))));
    assert_eq!(tls.key_passphrase, Some(beside("passphrase")));
    assert_eq!(settings.tokens, Some(beside("tokens")));
    let limits = &settings.limits;
    let counts = [limits.watches, limits.watches_per_connection, limits.connections, limits.header_bytes];
    assert_eq!(counts, [7, 6, 5, 10_000]);
    assert_eq!([limits.url_bytes, limits.queued_bytes, limits.frame_bytes], [2000, 3, 2]);
    assert_eq!([limits.unread_bytes, limits.unread_bytes_per_client], [9, 8]);
    let times = [limits.header_timeout, limits.handshake_timeout, limits.idle, limits.stall, limits.list];
    assert_eq!(times.map(|time| time.as_secs()), [4, 3, 2, 1, 5]);
    let times = [limits.watch, limits.connection_age, limits.idle_unknown];
    assert_eq!(times.map(|time| time.as_secs()), [6, 7, 8]);
    assert_eq!(
        shown(&settings),
        ["/registry/ 1000 widgets.matrix.test/v1", "/registry/large/ 65536 things/v1"],
        "a resource lies in the cache of the longest prefix"
    );
    let resource = format!("{:?}", settings.caches[0].resources[0]);
    for word in [
        r#"singular: "widget""#,
        r#"kind: "Widget""#,
        "namespaced: true",
        r#"short_names: ["wd"]"#,
        r#"labels: "/metadata/labels""#,
        r#"Field { name: "spec.color", pointer: "/spec/color" }, Field { name: "spec.size", pointer: "/spec/size" }"#,
        r#"Column { name: "Color", kind: "string", pointer: "/spec/color" }"#,
    ] {
        assert!(resource.contains(word), "{word} is missing in {resource}");
    }
}

/// The installed configuration is valid, and so are its commented-out lines.
#[test]
fn the_packaged_configuration_makes_sense() {
    let packaged = include_str!("../../../../packaging/watchcore.toml");
    let settings = of_file(packaged).expect("it makes sense");
    assert_eq!(shown(&settings), ["/registry/ 65536 widgets.matrix.test/v1"]);
    assert_eq!(settings.listen, LISTEN);
    let is_key = |line: &str| line.starts_with('[') || line.contains(" = ");
    let whole: String = packaged
        .lines()
        .map(|line| line.strip_prefix("# ").filter(|rest| is_key(rest)).unwrap_or(line))
        .map(|line| format!("{line}\n"))
        .collect();
    let settings = of_file(&whole).expect("what is commented out is right too");
    assert!(settings.tls.is_some_and(|tls| tls.client_ca.is_some()) && settings.tokens.is_some());
}

#[test]
fn defaults_stand_where_nothing_is_said() {
    let settings = of_file("[[cache]]\nprefix = \"\"\n").expect("it makes sense");
    assert_eq!(settings.access, Access::default());
    assert_eq!(settings.listen, "127.0.0.1:8080".parse().expect("an address"));
    assert_eq!((settings.insecure_listen, settings.tls.is_none(), settings.tokens), (false, true, None));
    assert_eq!((settings.bookmark_interval, settings.grace_period), (None, Duration::from_secs(10)));
    assert_eq!((settings.stale_limit, settings.hosts.len(), settings.origins.len()), (None, 0, 0));
    assert_eq!((settings.history, settings.limits), (10_000, Limits::default()));
    assert_eq!((settings.caches.len(), settings.caches[0].prefix.len(), settings.caches[0].capacity), (1, 0, 65_536));
}

#[test]
fn options_go_before_the_file() {
    let flags = Flags {
        listen: Some("127.0.0.1:1".parse().expect("an address")),
        insecure_listen: true,
        tls_certificate: Some("other.crt".into()),
        tls_key: Some("other.key".into()),
        tls_client_ca: Some("other-ca.crt".into()),
        tls_client_crl: Some("other-ca.crl".into()),
        tls_key_passphrase_file: Some("other-passphrase".into()),
        tokens: Some("other-tokens".into()),
        bookmark_interval: Some(Duration::from_secs(1)),
        grace_period: Some(Duration::from_secs(2)),
        stale_limit: Some(Duration::from_secs(3)),
        history: Some(0),
        audit_interval: Some(Duration::ZERO),
        host: vec!["other.example".to_owned()],
        origin: vec!["https://other.example".to_owned()],
        max_watches: Some(9),
        ..Flags::default()
    };
    let access = Given { etcd: Some(vec!["http://option:1".to_owned()]), ..Given::default() };
    let common = CommonOptions { access, capacity: Some(5000), ..common() };
    let settings = merged(Some(WHOLE), flags, common, &[]).expect("it makes sense");
    assert_eq!(settings.access.endpoints, ["http://option:1"]);
    assert_eq!((settings.listen.port(), settings.insecure_listen), (1, true));
    let tls = settings.tls.as_ref().expect("TLS");
    let here = |name: &str| PathBuf::from(name);
    assert_eq!((&tls.certificate, &tls.key), (&here("other.crt"), &here("other.key")), "beside the process");
    assert_eq!((&tls.client_crl, &tls.key_passphrase), (&Some(here("other-ca.crl")), &Some(here("other-passphrase"))));
    assert_eq!((&tls.client_ca, &settings.tokens), (&Some(here("other-ca.crt")), &Some(here("other-tokens"))));
    assert_eq!((settings.bookmark_interval, settings.grace_period.as_secs()), (Some(Duration::from_secs(1)), 2));
    assert_eq!((settings.stale_limit, settings.history), (Some(Duration::from_secs(3)), 0));
    assert_eq!(settings.audit_interval, Some(Duration::ZERO), "0 is never, not the default");
    assert_eq!(
        (&*settings.hosts, &*settings.origins),
        (&["other.example".to_owned()][..], &["https://other.example".to_owned()][..])
    );
    assert_eq!((settings.limits.watches, settings.limits.watches_per_connection), (9, 6));
    assert_eq!(
        shown(&settings),
        ["/registry/ 5000 widgets.matrix.test/v1", "/registry/large/ 5000 things/v1"],
        "--capacity is of every cache"
    );
}

#[test]
fn of_the_environment_only_two_go_before_the_file() {
    let etcd = |environment: &[(&str, &str)]| {
        merged(Some(WHOLE), Flags::default(), common(), environment).expect("it makes sense").access
    };
    assert_eq!(etcd(&[("WATCHCORE_ETCD", "http://own:1")]).endpoints, ["http://own:1"]);
    assert_eq!(etcd(&[("ETCDCTL_ENDPOINTS", "http://theirs:1")]).endpoints, ["http://file:1", "http://file:2"]);
    let access = Given { user: Some("app".to_owned()), ..Given::default() };
    let with_user = CommonOptions { access, ..common() };
    let settings = merged(Some(WHOLE), Flags::default(), with_user, &[("WATCHCORE_PASSWORD", "secret")]);
    assert_eq!(settings.expect("it makes sense").access.user, Some(("app".to_owned(), "secret".to_owned())));
    let settings = merged(
        Some(WHOLE),
        Flags::default(),
        common(),
        &[("WATCHCORE_LISTEN", "127.0.0.1:9"), ("WATCHCORE_CONFIG", "y.toml"), ("WATCHCORE_PREFIX", "/else/")],
    );
    let settings = settings.expect("it makes sense");
    assert_eq!((settings.listen.port(), settings.caches.len()), (18080, 2));
}

#[test]
fn a_resource_of_the_options_takes_the_place_of_its_namesake() {
    let mut widgets = given("widgets", "/registry/other/");
    widgets.group = "matrix.test".to_owned();
    let flags = Flags { resource: vec![widgets, given("pods", "/registry/pods/")], ..Flags::default() };
    let fields = vec![("a".to_owned(), "/a".to_owned())];
    let settings = merged(Some(WHOLE), flags, CommonOptions { fields, ..common() }, &[]).expect("it makes sense");
    let names = ["/registry/ 1000 widgets.matrix.test/v1 pods/v1", "/registry/large/ 65536 things/v1"];
    assert_eq!(shown(&settings), names);
    let [widgets, pods] = &settings.caches[0].resources[..] else { panic!("two") };
    assert!(format!("{widgets:?}").contains("/registry/other/"));
    assert!(format!("{pods:?}").contains(r#"Field { name: "a", pointer: "/a" }"#), "--field is for them");
}

#[test]
fn prefix_takes_the_place_of_all_caches() {
    let all = CommonOptions { prefix: Some(b"/".to_vec()), ..common() };
    let settings = merged(Some(WHOLE), Flags::default(), all.clone(), &[]).expect("it makes sense");
    assert_eq!(shown(&settings), ["/ 65536 widgets.matrix.test/v1 things/v1"]);
    let alone = merged(None, Flags::default(), all, &[]).expect("it makes sense");
    assert_eq!(shown(&alone), ["/ 65536 "]);
}

#[test]
fn without_any_cache_each_resource_of_the_options_has_its_own() {
    let resources = [("pods", "/r/pods/"), ("ones", "/r/pods/ones/"), ("nodes", "/r/nodes/"), ("all", "/r/pods2/")];
    let resource = resources.map(|(plural, prefix)| given(plural, prefix)).to_vec();
    let settings = merged(None, Flags { resource, ..Flags::default() }, common(), &[]).expect("it makes sense");
    let expected = ["/r/nodes/ 65536 nodes/v1", "/r/pods/ 65536 pods/v1 ones/v1", "/r/pods2/ 65536 all/v1"];
    assert_eq!(shown(&settings), expected);
}

#[test]
fn what_two_keys_cannot_mean_together_is_refused_at_its_place() {
    let cache = "[[cache]]\nprefix = \"/r/\"\n";
    let resource = "[[resource]]\nversion = \"v1\"\nplural = \"x\"\nkind = \"X\"\nprefix = \"/r/x/\"\n";
    for (text, says) in [
        (
            format!("{cache}{}", resource.replace("/r/x/", "/s/")),
            "7:10: resource.prefix: \"/s/\" lies outside of every cache: they are of \"/r/\". Write a [[cache]] of prefix = \"/s/\"",
        ),
        (resource.to_owned(), "5:10: resource.prefix: \"/r/x/\" lies outside of every cache: there is none."),
        (format!("{cache}{resource}{resource}"), "10:10: resource.plural: the resource x/v1 is declared twice."),
        (format!("{cache}{cache}"), "4:10: cache.prefix: there is a cache of \"/r/\" already."),
        (format!("{cache}capacity = 1\n"), "3:12: cache.capacity: "),
        (
            format!("{cache}{resource}{}labels = \"/l\"\n", resource.replace("\"x\"", "\"y\"")),
            "13:10: resource.labels: labels at \"/l\", but another resource of the same cache has them at \"/metadata/labels\".",
        ),
        (
            format!("listen = \"0.0.0.0:1\"\n{cache}"),
            "1:10: listen: 0.0.0.0:1 is no loopback address, and is insecure: without TLS and authentication",
        ),
        (
            format!("listen = \"[::]:1\"\n[tls]\ncertificate = \"c\"\nkey = \"k\"\n{cache}"),
            "1:10: listen: [::]:1 is no loopback address, and is insecure: without authentication",
        ),
    ] {
        let error = of_file(&text).expect_err(&text);
        let place = format!("/etc/watchcore/x.toml:{says}");
        assert!(error.starts_with(&place), "{text}\n{error}\n{place}");
    }
}

#[test]
fn an_address_is_listened_at_where_it_is_safe_or_asked_for() {
    let taken = |listen: &str, more: &str| {
        of_file(&format!("listen = \"{listen}\"\n{more}[[cache]]\nprefix = \"/\"\n")).is_ok()
    };
    let tls = "[tls]\ncertificate = \"c\"\nkey = \"k\"\n";
    let (client_ca, tokens) = (format!("{tls}client_ca = \"ca\"\n"), format!("{tls}[auth]\ntokens = \"t\"\n"));
    for loopback in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
        assert!(taken(loopback, ""), "{loopback}");
    }
    for address in ["0.0.0.0:1", "[::]:1", "192.0.2.1:1", "[::ffff:192.0.2.1]:1"] {
        assert!(!taken(address, "") && !taken(address, tls), "{address}");
        assert!(!taken(address, "[auth]\ntokens = \"t\"\n"), "{address}: a token in clear text");
        assert!(taken(address, &client_ca) && taken(address, &tokens), "{address}");
        assert!(taken(address, "insecure_listen = true\n"), "{address}");
    }
    let flags = |insecure_listen| Flags { listen: Some(LISTEN_TO_ALL), insecure_listen, ..Flags::default() };
    let prefix = CommonOptions { prefix: Some(Vec::new()), ..common() };
    let error = merged(None, flags(false), prefix.clone(), &[]).expect_err("an option, too");
    assert!(error.starts_with("--listen: 0.0.0.0:1 is") && error.contains("insecure"), "{error}");
    assert!(merged(None, flags(true), prefix, &[]).is_ok());
}

const LISTEN_TO_ALL: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), 1);

#[test]
fn options_that_lack_one_another_are_refused() {
    let prefix = CommonOptions { prefix: Some(Vec::new()), ..common() };
    let some = |name: &str| Some(PathBuf::from(name));
    for (flags, says) in [
        (Flags { tls_certificate: some("c"), ..Flags::default() }, "--tls-certificate without --tls-key"),
        (Flags { tls_key: some("k"), ..Flags::default() }, "--tls-key without --tls-certificate"),
        (
            Flags { tls_client_ca: some("a"), ..Flags::default() },
            "--tls-client-ca without --tls-certificate and --tls-key",
        ),
        (
            Flags { tls_client_crl: some("a"), ..Flags::default() },
            "--tls-client-crl without --tls-certificate and --tls-key",
        ),
        (
            Flags { tls_key_passphrase_file: some("a"), ..Flags::default() },
            "--tls-key-passphrase-file without --tls-certificate and --tls-key",
        ),
        (
            Flags { resource: vec![given("a", "/a/"), given("a", "/b/")], ..Flags::default() },
            "--resource: the resource a/v1 is declared twice",
        ),
    ] {
        let error = merged(None, flags, prefix.clone(), &[]).expect_err(says);
        assert!(error.starts_with(says), "{error}");
    }
    let nothing = merged(None, Flags::default(), common(), &[]).expect_err("nothing to serve");
    assert!(nothing.contains("--prefix /registry/"), "{nothing}");
    let outside = Flags { resource: vec![given("a", "/a/")], ..Flags::default() };
    let b = CommonOptions { prefix: Some(b"/b/".to_vec()), ..common() };
    let error = merged(None, outside, b, &[]).expect_err("outside");
    assert!(
        error.starts_with(
            "--resource: \"/a/\" lies outside of every cache: they are of \"/b/\". Give a shorter --prefix"
        ),
        "{error}"
    );
}
