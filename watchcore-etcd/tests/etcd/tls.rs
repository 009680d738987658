//! Certificates: which are trusted, how they are replaced while a feeder runs, and the messages of failures.

use crate::support::etcd::{Ctl, Etcd};
use crate::support::history::assert_same;
use crate::support::proxy::Proxy;
use crate::support::tls::Authority;
use crate::support::{BOUND, wait_for};
use etcd_client::{Certificate, ConnectOptions, Identity, TlsOptions};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};
use watchcore::{Cache, Code, State};
use watchcore_etcd::{Feeder, FeederBuilder, Tls, TlsVersion};

type Pair = (Vec<u8>, Vec<u8>);

const DAY: Duration = Duration::from_secs(86_400);

fn feeder(url: &str) -> FeederBuilder {
    Feeder::new([url]).backoff(Duration::from_millis(5), Duration::from_millis(100)).refused_retry(BOUND)
}

fn start(builder: FeederBuilder) -> (Cache, Feeder) {
    let cache = Cache::builder("/a/").build().unwrap();
    let feeder = builder.start(cache.writer().unwrap()).unwrap();
    (cache, feeder)
}

/// The error of the first wait for a cache.
#[track_caller]
fn refusal(builder: FeederBuilder, code: Code) -> String {
    let (cache, _feeder) = start(builder);
    let error = cache.wait_ready(BOUND).expect_err("refused");
    assert_eq!(error.code(), code, "{error}");
    assert_eq!(cache.status().state, State::Failed);
    error.message().to_owned()
}

fn https(proxy: &Proxy) -> String {
    proxy.url().replace("http://", "https://")
}

fn ctl(etcd: &Etcd, authority: &Authority, client: Option<&Pair>) -> Ctl {
    Ctl::connect(&etcd.url(), connect(authority, client))
}

fn connect(authority: &Authority, client: Option<&Pair>) -> ConnectOptions {
    let mut options = TlsOptions::new().ca_certificate(Certificate::from_pem(authority.pem()));
    if let Some((certificate, key)) = client {
        options = options.identity(Identity::from_pem(certificate, key));
    }
    ConnectOptions::new().with_tls(options)
}

#[test]
fn certificates_on_both_sides() {
    let authority = Authority::new("both");
    let etcd = authority.server(&["127.0.0.1", "localhost"], true);
    let client = authority.sign(&["client"]);
    let ctl = ctl(&etcd, &authority, Some(&client));
    ctl.put("/a/x", "0");
    let tls = Tls::new().ca_pem(authority.pem());
    let (cache, _feeder) = start(feeder(&etcd.url()).tls(tls.clone().client_pem(client.0, client.1)));
    cache.wait_ready(BOUND).unwrap();
    ctl.put("/a/x", "1");
    assert_same(&cache, &ctl);

    let text = refusal(feeder(&etcd.url()).tls(tls.clone()), Code::Unauthenticated);
    assert!(text.contains(&etcd.url()) && text.contains("asks for a client certificate"), "{text}");

    let (certificate, key) = Authority::new("other-client").sign(&["client"]);
    let files = (authority.file("other.pem", &certificate), authority.file("other.key", &key));
    let foreign = tls.client_files(&files.0, &files.1);
    let text = refusal(feeder(&etcd.url()).tls(foreign), Code::Unauthenticated);
    let file = files.0.display();
    assert!(text.contains(&format!("refused the client certificate {file}")), "{text}");
}

/// A reconnect uses the present content of the files; an open connection does not need them.
#[test]
fn a_client_certificate_is_replaced() {
    let authority = Authority::new("replaced");
    let etcd = authority.server(&["127.0.0.1"], true);
    let ctl = ctl(&etcd, &authority, Some(&authority.sign(&["ctl"])));
    let proxy = Proxy::to(etcd.address());
    let files = (authority.file("client.pem", b""), authority.file("client.key", b""));
    let write = |pair: &Pair| {
        authority.file("client.pem", &pair.0);
        authority.file("client.key", &pair.1);
    };
    let tls = Tls::new().ca_file(authority.file("ca.pem", &authority.pem())).client_files(&files.0, &files.1);
    let (cache, feeder) = start(feeder(&https(&proxy)).tls(tls));

    // A certificate that is valid just long enough to connect.
    let follows = || feeder.counters().connects > 0 && cache.status().state == State::Ready;
    let mut lives = Duration::from_secs(2);
    let short_lived = loop {
        let end = SystemTime::now() + lives;
        let pair = authority.sign_for(&["client"], SystemTime::now() - DAY, end);
        write(&pair);
        wait_for("a connection, or the certificate's end", || follows() || SystemTime::now() > end);
        if follows() {
            break pair;
        }
        lives *= 2;
    };
    let refused = || Ctl::try_connect(&etcd.url(), connect(&authority, Some(&short_lived)).with_user("a", "b"));
    let ran_out = |error: etcd_client::Error| !error.to_string().contains("authentication is not enabled");
    wait_for("etcd refuses the certificate that ran out", || refused().err().is_some_and(ran_out));
    ctl.put("/a/x", "the connection stands");
    assert_same(&cache, &ctl);
    assert_eq!(cache.status().state, State::Ready);

    proxy.cut();
    wait_for("the refusal", || cache.status().state == State::Failed);
    let error = cache.status().last_error.unwrap();
    assert_eq!(error.code(), Code::Unauthenticated, "{error}");
    assert!(error.message().contains(&files.0.display().to_string()), "{error}");
    ctl.put("/a/y", "missed for a while");

    write(&authority.sign(&["client"]));
    wait_for("the feeder follows again", || cache.status().state == State::Ready);
    ctl.put("/a/z", "new");
    assert_same(&cache, &ctl);
    assert!(feeder.counters().certificate_reloads > 0);
    assert_eq!(feeder.counters().resyncs(), 0, "nothing was listed anew");
}

/// Files that are being written, or are missing, do not break a working feeder.
#[test]
fn the_last_good_certificates_serve() {
    let authority = Authority::new("half");
    let etcd = authority.server(&["127.0.0.1"], true);
    let client = authority.sign(&["client"]);
    let ctl = ctl(&etcd, &authority, Some(&client));
    let proxy = Proxy::to(etcd.address());
    let ca = authority.file("ca.pem", &authority.pem());
    let files = (authority.file("client.pem", &client.0), authority.file("client.key", &client.1));
    let tls = Tls::new().ca_file(&ca).client_files(&files.0, &files.1);
    let (cache, feeder) = start(feeder(&https(&proxy)).tls(tls));
    cache.wait_ready(BOUND).unwrap();
    wait_for("the watch", || feeder.counters().connects == 1);
    assert_eq!(cache.status().source.warning, "");
    let expires = "watchcore_feeder_client_certificate_expires_timestamp_seconds{cache=\"/a/\"} ";
    let text = watchcore::metrics::text([&cache]);
    let at: u64 = text.lines().find_map(|line| line.strip_prefix(expires)).expect("there").parse().unwrap();
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
    assert!((now + 80_000..now + 90_000).contains(&at), "it is signed for a day: {at}");

    let reconnects = |says: &[&str]| {
        let before = feeder.counters();
        proxy.cut();
        wait_for("the reconnect", || feeder.counters().connects > before.connects);
        wait_for("the status", || {
            let warning = cache.status().source.warning;
            says.iter().all(|part| warning.contains(part)) && warning.is_empty() == says.is_empty()
        });
        ctl.put("/a/x", format!("{says:?}"));
        assert_same(&cache, &ctl);
        assert_eq!(cache.status().state, State::Ready);
        feeder.counters().certificate_failures - before.certificate_failures
    };
    let name = |path: &Path| path.display().to_string();
    assert_eq!(reconnects(&[]), 0);
    authority.file("client.pem", &client.0[..client.0.len() / 2]);
    assert!(reconnects(&[&name(&files.0), "ends in the middle of a certificate", "what was read before"]) > 0);
    std::fs::remove_file(&files.0).unwrap();
    assert!(reconnects(&[&name(&files.0), "does not exist"]) > 0);
    let other = authority.sign(&["client"]);
    authority.file("client.pem", &other.0);
    assert!(reconnects(&[&name(&files.1), "is not the key of", &name(&files.0)]) > 0);
    authority.file("ca.pem", b"garbage");
    assert!(reconnects(&[&name(&ca), "holds no certificate in PEM"]) > 0);
    authority.file("ca.pem", &authority.pem());
    authority.file("client.key", &other.1);
    let before = feeder.counters().certificate_reloads;
    assert_eq!(reconnects(&[]), 0);
    assert!(feeder.counters().certificate_reloads > before);
}

/// A file whose opening hangs, as on a disk that went away.
#[test]
fn a_file_that_hangs_leaves_the_last_good() {
    let authority = Authority::new("hangs");
    let etcd = authority.server(&["127.0.0.1"], false);
    let ctl = ctl(&etcd, &authority, None);
    let proxy = Proxy::to(etcd.address());
    let ca = authority.file("trusted.pem", &authority.pem());
    let (cache, feeder) = start(feeder(&https(&proxy)).tls(Tls::new().ca_file(&ca)));
    wait_for("the watch", || feeder.counters().connects == 1);
    std::fs::remove_file(&ca).unwrap();
    assert!(Command::new("mkfifo").arg(&ca).status().unwrap().success());
    proxy.cut();
    wait_for("the reconnect", || feeder.counters().connects > 1);
    wait_for("the warning", || cache.status().source.warning.contains("were not read"));
    ctl.put("/a/x", "1");
    assert_same(&cache, &ctl);
    // Ends the thread that still reads the file.
    drop(std::fs::File::create(&ca).unwrap());
}

/// etcd's own certificate, and its authority, are replaced.
#[test]
fn a_server_certificate_is_replaced() {
    let (authority, next) = (Authority::new("server"), Authority::new("next"));
    let etcd = authority.server(&["127.0.0.1"], false);
    let ctl = ctl(&etcd, &authority, None);
    ctl.put("/a/x", "0");
    let proxy = Proxy::to(etcd.address());
    let ca = authority.file("trusted.pem", &authority.pem());
    let (cache, feeder) = start(feeder(&https(&proxy)).tls(Tls::new().ca_file(&ca)));
    wait_for("the watch", || feeder.counters().connects == 1);

    let refused = |says: &[&str]| {
        wait_for("what is wrong", || {
            let error = cache.status().last_error.filter(|_| cache.status().state == State::Failed);
            error.is_some_and(|error| {
                error.code() == Code::Unavailable && says.iter().all(|part| error.message().contains(part))
            })
        });
    };
    let now = SystemTime::now();
    authority.renew(&authority.sign_for(&["127.0.0.1"], now - DAY * 9, now - DAY * 4));
    ctl.put("/a/x", "the connection stands");
    assert_same(&cache, &ctl);
    proxy.cut();
    refused(&[&https(&proxy), "the server's certificate expired at 20", "(4 days ago): renew it"]);
    authority.renew(&authority.sign_for(&["127.0.0.1"], now + DAY * 4, now + DAY * 9));
    refused(&["the server's certificate is not valid before 20", "clocks"]);
    authority.renew(&authority.sign(&["etcd.test", "10.0.0.1"]));
    refused(&["the server's certificate is for etcd.test, 10.0.0.1, not for 127.0.0.1"]);
    authority.renew(&next.sign(&["127.0.0.1"]));
    refused(&["the server's certificate is signed by no authority in the CA file", &ca.display().to_string()]);
    // Both authorities at once, as during a rotation.
    authority.file("trusted.pem", &[authority.pem(), next.pem()].concat());
    wait_for("the feeder follows again", || cache.status().state == State::Ready);
    assert_same(&cache, &ctl);
}

/// A recorded refusal must not explain a later failure, once the certificate is good again.
#[test]
fn a_refusal_of_before_explains_nothing() {
    let authority = Authority::new("before");
    let etcd = authority.server(&["127.0.0.1"], false);
    let ctl = ctl(&etcd, &authority, None);
    ctl.put("/a/x", "0");
    let proxy = Proxy::to(etcd.address());
    let tls = Tls::new().ca_pem(authority.pem());
    // The session after the failing one begins late.
    let (cache, feeder) = start(feeder(&https(&proxy)).tls(tls).backoff(BOUND * 60, BOUND * 60));
    wait_for("the watch", || feeder.counters().connects == 1);
    let now = SystemTime::now();
    authority.renew(&authority.sign_for(&["127.0.0.1"], now - DAY * 9, now - DAY * 4));
    let before = (proxy.accepted(), feeder.counters().consistent_reads);
    proxy.cut_first();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| cache.consistent_revision(BOUND));
        wait_for("reads that were refused", || feeder.counters().consistent_reads >= before.1 + 3);
        authority.renew(&authority.sign(&["127.0.0.1"]));
        reader.join().unwrap().expect("the certificate is good again");
    });
    assert!(proxy.accepted() > before.0, "the test's own premise");
    assert_eq!((feeder.counters().failures, cache.status().state), (0, State::Ready), "the watch stands");
    proxy.refuse();
    wait_for("the end of the watch", || feeder.counters().failures == 1);
    wait_for("the state", || cache.status().state != State::Ready);
    let status = cache.status();
    assert!(matches!(status.state, State::Stale { .. }), "{status:?}");
    assert!(!status.last_error.clone().unwrap().message().contains("certificate"), "{status:?}");
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let authority = Authority::new("files");
    let (certificate, key) = authority.sign(&["client"]);
    let write = |name: &str, bytes: &[u8]| authority.file(name, bytes).to_str().unwrap().to_owned();
    let (good, good_key) = (write("good.pem", &certificate), write("good.key", &key));
    let ca = write("ca.pem", &authority.pem());
    let none = good.replace("good.pem", "none.pem");
    let empty = write("empty.pem", b"");
    let half = write("half.pem", &certificate[..certificate.len() / 2]);
    let locked =
        write("locked.key", b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIB\n-----END ENCRYPTED PRIVATE KEY-----\n");
    let other_key = write("other.key", &authority.sign(&["client"]).1);
    let directory = Path::new(&good).parent().unwrap().to_str().unwrap().to_owned();
    let big = write("big.pem", &vec![b'-'; 5 << 20]);
    for (ca, pair, says) in [
        (&none, None, &[&none[..], "does not exist"][..]),
        (&empty, None, &[&empty, "holds no certificate in PEM"]),
        (&half, None, &[&half, "ends in the middle of a certificate"]),
        (&directory, None, &[&directory, "cannot be read"]),
        (&big, None, &[&big, "is longer than"]),
        (&good_key, None, &[&good_key, "holds no certificate in PEM"]),
        (&ca, Some((&none, &good_key)), &["the client certificate", &none, "does not exist"]),
        (&ca, Some((&good, &none)), &["the client key", &none, "does not exist"]),
        (&ca, Some((&good, &empty)), &[&empty, "holds no private key in PEM"]),
        (&ca, Some((&good, &locked)), &[&locked, "passphrase"]),
        (&ca, Some((&good, &other_key)), &[&other_key, "is not the key of the client certificate", &good]),
    ] {
        let mut tls = Tls::new().ca_file(ca);
        if let Some((certificate, key)) = pair {
            tls = tls.client_files(certificate, key);
        }
        // No server listens: unusable files are reported before connecting.
        let url = "https://127.0.0.1:1";
        let text = refusal(feeder(url).tls(tls), Code::InvalidArgument);
        assert!(says.iter().all(|part| text.contains(part)) && text.contains(url), "{says:?}: {text}");
    }
}

/// The files may be mounted after the program has started.
#[test]
fn files_may_come_later() {
    let authority = Authority::new("later");
    let etcd = authority.server(&["127.0.0.1"], false);
    let path = authority.file("trusted.pem", b"");
    std::fs::remove_file(&path).unwrap();
    let (cache, _feeder) = start(feeder(&etcd.url()).tls(Tls::new().ca_file(&path)));
    wait_for("the refusal", || cache.status().state == State::Failed);
    authority.file("trusted.pem", &authority.pem());
    wait_for("the listing", || cache.wait_ready(BOUND).is_ok());
}

#[test]
fn a_server_name_replaces_the_host() {
    let authority = Authority::new("named");
    let etcd = authority.server(&["etcd.test"], false);
    let tls = Tls::new().ca_pem(authority.pem());
    let text = refusal(feeder(&etcd.url()).tls(tls.clone()), Code::Unavailable);
    assert!(text.contains("is for etcd.test, not for 127.0.0.1"), "{text}");
    let (cache, _feeder) = start(feeder(&etcd.url()).tls(tls.server_name("etcd.test")));
    cache.wait_ready(BOUND).unwrap();
}

#[test]
fn a_server_without_tls_is_told() {
    let etcd = Etcd::start();
    let url = etcd.url().replace("http://", "https://");
    let (cache, _feeder) = start(feeder(&url).tls(Tls::new().ca_pem(Authority::new("plain").pem())));
    wait_for("what is wrong", || cache.status().last_error.is_some());
    let text = cache.status().last_error.unwrap().message().to_owned();
    assert!(text.contains("ended the TLS handshake") && text.contains("write http://"), "{text}");
    assert!(text.contains(&url) && !text.contains("transport error"), "{text}");
}

#[test]
fn a_server_with_tls_is_told() {
    let authority = Authority::new("hint");
    let etcd = authority.server(&["127.0.0.1"], false);
    let url = etcd.url().replace("https://", "http://");
    let (cache, _feeder) = start(feeder(&url));
    wait_for("what is wrong", || cache.status().last_error.is_some());
    let text = cache.status().last_error.unwrap().message().to_owned();
    assert!(text.contains(&url) && text.contains("If it speaks TLS there, write https://"), "{text}");
}

#[test]
fn an_old_tls_is_refused() {
    let authority = Authority::new("old");
    let extra = ["--tls-min-version", "TLS1.2", "--tls-max-version", "TLS1.2"];
    let etcd = authority.server_with(&["127.0.0.1"], false, &extra);
    let tls = Tls::new().ca_pem(authority.pem());
    let (cache, _feeder) = start(feeder(&etcd.url()).tls(tls.clone()));
    cache.wait_ready(BOUND).unwrap();
    let text = refusal(feeder(&etcd.url()).tls(tls.min_version(TlsVersion::V1_3)), Code::Unavailable);
    assert!(text.contains("does not speak TLS 1.3 or newer"), "{text}");
}

/// A member with a bad certificate does not make the others unusable.
#[test]
fn another_endpoint_goes_on() {
    let authority = Authority::new("bad-member");
    let bad = authority.server(&["elsewhere.test"], false);
    let good_authority = Authority::new("good-member");
    let good = good_authority.server(&["127.0.0.1"], false);
    let both = authority.file("both.pem", &[authority.pem(), good_authority.pem()].concat());
    let endpoints = Feeder::new([bad.url(), good.url()]).backoff(Duration::from_millis(5), Duration::from_millis(100));
    let (cache, _feeder) = start(endpoints.tls(Tls::new().ca_file(both)));
    cache.wait_ready(BOUND).unwrap();
    assert_eq!(cache.status().source.endpoint, good.url());
}

/// The system's authorities are set by an environment variable, so the test runs in its own process.
#[test]
fn system_roots_are_the_default() {
    const URL: &str = "WATCHCORE_TEST_SYSTEM_ROOTS";
    if let Ok(url) = std::env::var(URL) {
        let (cache, _feeder) = start(feeder(&url));
        let ready = cache.wait_ready(BOUND);
        println!("READY {:?}", ready.map_err(|error| format!("{:?} {}", error.code(), error.message())));
        return;
    }
    let authority = Authority::new("system");
    let etcd = authority.server(&["127.0.0.1"], false);
    let ask = |file: &Path| {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "tls::system_roots_are_the_default", "--nocapture"]);
        let output = child.env(URL, etcd.url()).env("SSL_CERT_FILE", file).env_remove("SSL_CERT_DIR").output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let ca = authority.file("system.pem", &authority.pem());
    assert!(ask(&ca).contains("READY Ok"), "the system knows the authority");
    let other = authority.file("other.pem", &Authority::new("other-system").pem());
    let text = ask(&other);
    assert!(text.contains("Unavailable") && text.contains("no authority of this system: give the CA"), "{text}");
    let text = ask(&authority.file("none.pem", b""));
    assert!(text.contains("InvalidArgument") && text.contains("the system has no CA certificates"), "{text}");
    assert!(text.contains("ca-certificates") && text.contains("SSL_CERT_FILE"), "{text}");
}
