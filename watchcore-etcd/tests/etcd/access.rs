//! The feeder and etcd's access control: passwords, permissions, and old servers.

use crate::support::etcd::{Ctl, Etcd};
use crate::support::history::assert_same;
use crate::support::proxy::Proxy;
use crate::support::tls::Authority;
use crate::support::{BOUND, wait_for};
use etcd_client::{ConnectOptions, Permission};
use std::fmt::{self, Write as _};
use std::sync::{Mutex, Once};
use std::time::{Duration, Instant};
use watchcore::{Cache, Code, Read, ResyncReason, State};
use watchcore_etcd::{Feeder, FeederBuilder};

/// All log lines of the library.
static LOG: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Logger;

struct Line(String);

impl tracing::field::Visit for Line {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn fmt::Debug) {
        let _ = write!(self.0, " {field}={value:?}");
    }
}

impl tracing::Subscriber for Logger {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with("watchcore")
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        LOG.lock().unwrap().push(line.0);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

fn log_everything() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| tracing::subscriber::set_global_default(Logger).expect("the only logger"));
}

const PASSWORD: &str = "swordfish-4711";

fn feeder(url: &str) -> FeederBuilder {
    log_everything();
    Feeder::new([url])
        .backoff(Duration::from_millis(5), Duration::from_millis(100))
        .refused_retry(Duration::from_millis(50))
}

fn start(builder: FeederBuilder, prefix: &str) -> (Cache, Feeder) {
    let cache = Cache::builder(prefix).build().unwrap();
    let feeder = builder.start(cache.writer().unwrap()).unwrap();
    (cache, feeder)
}

/// An etcd with authentication on, a user "root", and a user "app" who may read /a/.
fn guarded() -> (Etcd, Ctl) {
    guarded_by(&[])
}

fn guarded_by(extra: &[&str]) -> (Etcd, Ctl) {
    let etcd = Etcd::with(extra);
    etcd.ctl().enable_auth("root-password", PASSWORD, &[Permission::read("/a/").with_prefix()]);
    let root = ConnectOptions::new().with_user("root", "root-password").with_auto_token_refresh(true);
    let root = Ctl::connect(&etcd.url(), root);
    (etcd, root)
}

#[track_caller]
fn failure(cache: &Cache, code: Code) -> String {
    let error = cache.wait_ready(BOUND).expect_err("refused");
    assert_eq!(error.code(), code, "{error}");
    assert_eq!(cache.status().state, State::Failed);
    error.message().to_owned()
}

#[test]
fn a_user_reads_what_it_may() {
    let (etcd, root) = guarded();
    root.put("/a/x", "0");
    let proxy = Proxy::to(etcd.address());
    let (cache, feeder) = start(feeder(&proxy.url()).user("app", PASSWORD), "/a/");
    cache.wait_ready(BOUND).unwrap();
    root.put("/a/x", "1");
    assert_same(&cache, &root);

    // The token becomes invalid; the connections stay open.
    root.run(async |mut client| client.user_change_password("app", PASSWORD).await.map(drop));
    let newest = root.put("/a/x", "2");
    assert!(cache.consistent_revision(BOUND).unwrap() >= newest);
    assert_same(&cache, &root);

    // The connections end as well.
    root.run(async |mut client| client.user_change_password("app", PASSWORD).await.map(drop));
    let before = feeder.counters().connects;
    proxy.cut();
    wait_for("the reconnect", || feeder.counters().connects > before);
    root.put("/a/x", "3");
    assert_same(&cache, &root);
    assert_eq!(feeder.counters().resyncs(), 0);
}

#[test]
fn one_key_is_fed_to_whoever_may_read_that_alone() {
    let (etcd, root) = guarded();
    for key in ["/k/one", "/k/one/below", "/k/one2", "/k/other"] {
        root.put(key, "0");
    }
    root.run(async |mut client| client.role_grant_permission("reader", Permission::read("/k/one")).await.map(drop));
    let (cache, _feeder) = start(feeder(&etcd.url()).user("app", PASSWORD), "/k/one");
    failure(&cache, Code::PermissionDenied);

    let proxy = Proxy::to(etcd.address());
    let (cache, feeder) = start(feeder(&proxy.url()).user("app", PASSWORD).only_key("/k/one"), "/k/");
    cache.wait_ready(BOUND).unwrap();
    let value = || cache.get("/k/one", Read::Any).unwrap().kv.map(|kv| kv.value().unwrap().to_vec());
    assert_eq!(value().as_deref(), Some(&b"0"[..]));
    let written = root.put("/k/one", "1");
    let newest = root.put("/k/one2", "1");
    assert!(cache.consistent_revision(BOUND).unwrap() >= written);
    cache.wait_until(newest, BOUND).unwrap();
    assert_eq!(value().as_deref(), Some(&b"1"[..]));
    assert_eq!(cache.snapshot().unwrap().len(), 1, "nothing else of the prefix");

    // The permission is also used after a reconnect.
    let before = feeder.counters().connects;
    proxy.cut();
    wait_for("the reconnect", || feeder.counters().connects > before);
    let newest = root.delete("/k/one");
    cache.wait_until(newest, BOUND).unwrap();
    assert_eq!(value(), None);
    assert_eq!(feeder.counters().resyncs(), 0);
}

/// etcd sends the whole stream, and only then reports that the permissions have changed meanwhile.
#[test]
fn permission_lost_under_a_stream() {
    let (etcd, root) = guarded();
    for i in 0..40 {
        root.put(format!("/a/{i}"), vec![b'x'; 500_000]);
    }
    let proxy = Proxy::to(etcd.address());
    proxy.stall_after(2_000_000);
    let (cache, _feeder) = start(feeder(&proxy.url()).user("app", PASSWORD), "/a/");
    wait_for("the middle of the listing", || proxy.is_stalled());
    root.run(async |mut client| client.user_revoke_role("app", "reader").await.map(drop));
    proxy.stall(false);
    failure(&cache, Code::PermissionDenied);
}

/// Waits until no token issued earlier is accepted any more. Each witness is asked once: a use may extend a token's
/// life.
fn all_tokens_expire(etcd: &Etcd) {
    let witness = || Ctl::connect(&etcd.url(), ConnectOptions::new().with_user("app", PASSWORD));
    let mut witnesses: Vec<Ctl> = (0..60).map(|_| witness()).collect();
    let mut asked = Instant::now();
    wait_for("the end of a token", || {
        if asked.elapsed() < Duration::from_millis(250) {
            return false;
        }
        asked = Instant::now();
        let witness = witnesses.pop().expect("a token ends before");
        let answer = witness.attempt(async |mut client| client.get("/a/x", None).await);
        answer.is_err_and(|error| error.to_string().contains("invalid auth token"))
    });
}

fn outlives_its_tokens(extra: &[&str]) {
    let (etcd, root) = guarded_by(extra);
    root.put("/a/x", "0");
    let proxy = Proxy::to(etcd.address());
    // Without progress requests a starved server is not mistaken for a silent one: the test counts connections.
    let patient = feeder(&proxy.url()).progress_requests(false);
    let (cache, feeder) = start(patient.user("app", PASSWORD), "/a/");
    cache.wait_ready(BOUND).unwrap();
    wait_for("the watch", || feeder.counters().connects == 1);

    // A read on the connection that was used for the listing.
    all_tokens_expire(&etcd);
    let newest = root.put("/a/x", "1");
    assert!(cache.consistent_revision(BOUND).unwrap() >= newest);
    assert_same(&cache, &root);
    assert_eq!(feeder.counters().connects, 1, "the watch lives on");

    // A listing on the same connection.
    all_tokens_expire(&etcd);
    root.put("/elsewhere", "1");
    feeder.request_resync();
    wait_for("the listing", || feeder.counters().resyncs_for(ResyncReason::Requested) == 1);
    root.put("/a/x", "2");
    assert_same(&cache, &root);

    // A reconnect.
    all_tokens_expire(&etcd);
    let before = feeder.counters().connects;
    proxy.cut();
    wait_for("the reconnect", || feeder.counters().connects > before);
    root.put("/a/x", "3");
    assert_same(&cache, &root);
    assert_eq!(feeder.counters().resyncs(), 1);
}

#[test]
fn simple_tokens_that_expire_are_renewed() {
    outlives_its_tokens(&["--auth-token-ttl", "2", "--bcrypt-cost", "4"]);
}

#[test]
fn signed_tokens_that_expire_are_renewed() {
    let authority = Authority::new("tokens");
    let secret = authority.file("secret", b"a secret of the test, long enough");
    let token = format!("jwt,priv-key={},sign-method=HS256,ttl=2s", secret.display());
    outlives_its_tokens(&["--auth-token", &token, "--bcrypt-cost", "4"]);
}

#[test]
fn a_wrong_password_is_told_and_tried_again() {
    let (etcd, root) = guarded();
    root.put("/a/x", "0");
    let (cache, feeder) = start(feeder(&etcd.url()).user("app", "wrong-password"), "/a/");
    let text = failure(&cache, Code::Unauthenticated);
    assert!(text.contains("\"app\"") && text.contains(&etcd.url()), "{text}");
    assert!(!text.contains("wrong-password"), "{text}");
    root.run(async |mut client| client.user_change_password("app", "wrong-password").await.map(drop));
    wait_for("ready", || cache.status().state == State::Ready);
    assert_same(&cache, &root);
    assert!(feeder.last_error().is_none());
    let log = LOG.lock().unwrap().join("\n");
    assert!(log.contains("refused the user"), "it is logged");
    assert!(!log.contains("wrong-password") && !log.contains(PASSWORD), "passwords are not");
    assert!(!format!("{feeder:?}").contains("wrong-password"));
}

#[test]
fn a_missing_user_is_told() {
    let (etcd, _root) = guarded();
    let (cache, _feeder) = start(feeder(&etcd.url()), "/a/");
    let text = failure(&cache, Code::Unauthenticated);
    assert!(text.contains("asks for a user"), "{text}");
}

#[test]
fn a_denied_range_is_told_and_tried_again() {
    let (etcd, root) = guarded();
    root.put("/b/x", "0");
    let (cache, _feeder) = start(feeder(&etcd.url()).user("app", PASSWORD), "/b/");
    let text = failure(&cache, Code::PermissionDenied);
    assert!(text.contains("\"app\"") && text.contains("[\"/b/\", \"/b0\")"), "{text}");
    root.run(async |mut client| {
        client.role_grant_permission("reader", Permission::read("/b/").with_prefix()).await.map(drop)
    });
    wait_for("ready", || cache.status().state == State::Ready);
    assert_same(&cache, &root);
}

#[test]
fn a_user_where_authentication_is_off_is_not_needed() {
    let etcd = Etcd::start();
    let ctl = etcd.ctl();
    ctl.put("/a/x", "0");
    let (cache, _feeder) = start(feeder(&etcd.url()).user("app", PASSWORD), "/a/");
    cache.wait_ready(BOUND).unwrap();
    ctl.put("/a/x", "1");
    assert_same(&cache, &ctl);
}

#[test]
fn an_old_server_is_used_with_a_warning() {
    let etcd = Etcd::start();
    let ctl = etcd.ctl();
    let version = crate::support::etcd::version();
    let old = format!("3.4.{}", &"11111"[..version.len() - 4]);
    let proxy = Proxy::forging(etcd.address(), &version, &old);
    let (cache, feeder) = start(feeder(&proxy.url()), "/a/");
    wait_for("the watch", || feeder.counters().connects == 1);
    proxy.cut();
    wait_for("the reconnect", || feeder.counters().connects > 1);
    ctl.put("/a/x", "0");
    assert_same(&cache, &ctl);
    assert_eq!(cache.status().source.server_version, old);
    // The warning is logged once, not at each reconnect.
    let warned = |line: &&String| line.starts_with("WARN") && line.contains(&old) && line.contains("3.4.38");
    let log = LOG.lock().unwrap().clone();
    let ours: Vec<&String> = log.iter().filter(|line| line.contains(&proxy.url())).filter(warned).collect();
    assert_eq!(ours.len(), 1, "{log:?}");
}
