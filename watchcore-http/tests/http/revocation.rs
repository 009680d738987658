//! Open watches end when their user no longer exists or may no longer watch; those of others continue.

use crate::support::certificates::{Authority, Files, Pair, client, connect, install, later};
use crate::support::ground::{SHOP, ServerKind, WIDGETS};
use crate::support::{Ground, Watching, eventually, metric_in, request, within};
use futures_util::StreamExt as _;
use http::request::Parts;
use serde_json::Value;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_tungstenite::connect_async;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::protocol::Message;
use watchcore_http::{
    ApiBuilder, Asked, Authenticator, Authorizer, Decision, HookFuture, Refusal, Server, Tls, Tokens, User,
};

/// Short enough for a test, and long enough for a hook to answer within a third.
const INTERVAL: Duration = Duration::from_millis(150);

/// A watch of each form over HTTP, and the name of the form in which its end is reported.
const FORMS: [(&str, &str, &str); 5] = [
    ("/apis/matrix.test/v1/widgets?watch=1&resourceVersion=1&timeoutSeconds=9223372036854775807", "*/*", "resource"),
    (
        "/apis/matrix.test/v1/widgets?watch=1&resourceVersion=1",
        "application/json;as=Table;v=v1;g=meta.k8s.io",
        "resource",
    ),
    ("/v1/keys?prefix=/registry/&watch=1&after=1", "*/*", "line"),
    ("/v1/keys?prefix=/registry/&watch=1&after=1", "text/event-stream", "event"),
    ("/events", "text/event-stream", "event"),
];

/// A hook that takes the user from the header X-User, and denies what the test says; each behavior can be changed.
#[derive(Clone, Default)]
struct Hook(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    gone: BTreeSet<String>,
    denied: BTreeSet<String>,
    /// Hang, panic or fail for this user.
    hangs: Option<String>,
    panics: Option<String>,
    fails: Option<String>,
    /// The recorded questions: the users, and the paths.
    heads: Vec<String>,
    decisions: Vec<String>,
    names_its_header: bool,
}

impl Hook {
    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.0.lock().unwrap());
    }
}

impl Authenticator for Hook {
    fn authenticate<'a>(&'a self, head: &'a Parts) -> HookFuture<'a, Result<Option<User>, Refusal>> {
        let name = head.headers.get("x-user").map(|name| name.to_str().unwrap().to_owned());
        let mut state = self.0.lock().unwrap();
        state.heads.push(format!("{} {}", head.uri, name.clone().unwrap_or_default()));
        let is = |who: &Option<String>| name.is_some() && *who == name;
        let (hangs, panics, fails) = (is(&state.hangs), is(&state.panics), is(&state.fails));
        let known = name.clone().filter(|name| !state.gone.contains(name)).map(User::new);
        Box::pin(async move {
            if hangs {
                std::future::pending::<()>().await;
            }
            assert!(!panics, "a bug of the hook");
            if fails { Err(Refusal::new(503, "ServiceUnavailable", "the directory is away")) } else { Ok(known) }
        })
    }

    fn reads(&self) -> Option<&[http::HeaderName]> {
        const X_USER: http::HeaderName = http::HeaderName::from_static("x-user");
        static READS: [http::HeaderName; 1] = [X_USER];
        self.0.lock().unwrap().names_its_header.then_some(&READS)
    }
}

impl Authorizer for Hook {
    fn authorize<'a>(&'a self, user: &'a User, asked: &'a Asked) -> HookFuture<'a, Decision> {
        let mut state = self.0.lock().unwrap();
        state.decisions.push(format!("{} {} {}", user.name(), asked.verb, asked.path));
        let denied = state.denied.contains(user.name());
        Box::pin(async move { if denied { Decision::Deny("it is closed".into()) } else { Decision::Allow } })
    }
}

async fn hooked(face: ServerKind, hook: &Hook) -> Ground {
    let (authenticator, authorizer) = (hook.clone(), hook.clone());
    let service =
        move |api: ApiBuilder| api.authenticator(authenticator).authorizer(authorizer).recheck_interval(INTERVAL);
    let ground = Ground::builder().face(face).api(service).start().await;
    ground.put_widget("shop/a", "red");
    ground
}

async fn watching(ground: &Ground, (target, accept, _): (&str, &str, &str), header: (&str, &str)) -> Watching {
    Watching::open_with(ground.address, target, &[("Accept", accept), header]).await
}

/// Reads a watch of a form to its end, which must report this code.
async fn ends_with(mut watch: Watching, (target, _, form): (&str, &str, &str), code: u16) {
    let (reason, name) = match code {
        401 => ("Unauthorized", "UNAUTHENTICATED"),
        403 => ("Forbidden", "PERMISSION_DENIED"),
        _ => ("ServiceUnavailable", "UNAVAILABLE"),
    };
    let mut said = String::new();
    let read = async {
        while let Some(line) = watch.line().await {
            said.push_str(&String::from_utf8(line).unwrap());
        }
    };
    within("the end", read).await;
    assert!(!watch.client.is_closed(), "a clean end: {said}");
    let last = said.trim_end().lines().last().unwrap_or_default();
    let error: Value = serde_json::from_str(last.strip_prefix("data: ").unwrap_or(last)).expect(target);
    assert_eq!(error["type"], "ERROR", "{target}: {said}");
    match form {
        "resource" => {
            assert_eq!((&error["object"]["code"], &error["object"]["reason"]), (&code.into(), &reason.into()))
        }
        _ => assert_eq!(error["code"], name, "{target}"),
    }
    assert!(form != "event" || said.contains("event: ERROR\n"), "{target}: {said}");
}

/// Checks that a watch is open by waiting for a change.
async fn goes_on(ground: &Ground, watch: &mut Watching, change: &str) {
    ground.put_widget(&format!("shop/{change}"), "red");
    let read = async {
        loop {
            let line = String::from_utf8(watch.line().await.expect("it goes on")).unwrap();
            assert!(!line.contains("ERROR"), "{line}");
            if line.contains(change) {
                return;
            }
        }
    };
    within("an event", read).await;
}

#[tokio::test]
async fn user_who_is_gone_is_told_401() {
    for face in [ServerKind::Own, ServerKind::Nested] {
        for names_its_header in [true, false] {
            let hook = Hook::default();
            hook.change(|state| state.names_its_header = names_its_header);
            let ground = hooked(face, &hook).await;
            let mut of_bob = watching(&ground, FORMS[0], ("X-User", "bob")).await;
            let mut open = Vec::new();
            for form in FORMS {
                open.push((watching(&ground, form, ("X-User", "alice")).await, form));
            }
            hook.change(|state| _ = state.gone.insert("alice".to_owned()));
            for (watch, form) in open {
                ends_with(watch, form, 401).await;
            }
            goes_on(&ground, &mut of_bob, "after").await;
            let metrics = request(ground.address, "GET", "/metrics", &[("X-User", "bob")]).await.text();
            assert_eq!(metric_in(&metrics, "watchcore_http_watches_revoked_total"), Some(5.0));
        }
    }
}

#[tokio::test]
async fn user_who_may_not_any_more_is_told_403() {
    for face in [ServerKind::Own, ServerKind::Nested] {
        let hook = Hook::default();
        let ground = hooked(face, &hook).await;
        let mut of_bob = watching(&ground, FORMS[0], ("X-User", "bob")).await;
        let mut open = Vec::new();
        for form in FORMS {
            open.push((watching(&ground, form, ("X-User", "alice")).await, form));
        }
        hook.change(|state| _ = state.denied.insert("alice".to_owned()));
        for (watch, form) in open {
            ends_with(watch, form, 403).await;
        }
        goes_on(&ground, &mut of_bob, "after").await;
    }
}

#[tokio::test]
async fn websocket_is_closed_with_1008() {
    let hook = Hook::default();
    let ground = hooked(ServerKind::Own, &hook).await;
    for (user, reason) in [("alice", "Unauthorized"), ("carol", "Forbidden")] {
        let mut request = format!("ws://{}{SHOP}?watch=1", ground.address).into_client_request().unwrap();
        request.headers_mut().insert("x-user", user.parse().unwrap());
        let (mut socket, _) = within("a WebSocket", connect_async(request)).await.unwrap();
        hook.change(|state| match reason {
            "Unauthorized" => _ = state.gone.insert(user.to_owned()),
            _ => _ = state.denied.insert(user.to_owned()),
        });
        let mut last = String::new();
        let frame = loop {
            match within("a message", socket.next()).await.expect("a close frame").unwrap() {
                Message::Text(text) => last = text.to_string(),
                Message::Close(frame) => break frame.expect("a code"),
                _ => {}
            }
        };
        assert_eq!((u16::from(frame.code), frame.reason.as_str()), (1008, reason));
        assert!(last.contains("\"ERROR\""), "{last}");
    }
}

/// Uses the token file that the command line uses.
#[tokio::test]
async fn token_that_leaves_the_file_ends_its_watches() {
    let files = Files::new();
    let tokens = Tokens::from_file(files.write("tokens", "secret,alice\nmoved,carol\nother,bob\n")).unwrap();
    let service = move |api: ApiBuilder| api.authenticator(tokens).recheck_interval(INTERVAL);
    let ground = Ground::builder().api(service).start().await;
    ground.put_widget("shop/a", "red");
    let open = async |token| watching(&ground, FORMS[0], ("Authorization", token)).await;
    let (alice, carol, mut bob) = (open("Bearer secret").await, open("Bearer moved").await, open("Bearer other").await);
    files.write("tokens", "moved,dave\nother,bob\n");
    ends_with(alice, FORMS[0], 401).await;
    // The token now belongs to another user, so the user who opened the watch has lost it.
    ends_with(carol, FORMS[0], 401).await;
    goes_on(&ground, &mut bob, "after").await;
    files.write("tokens", "# nobody any more\n");
    ends_with(bob, FORMS[0], 401).await;
}

#[tokio::test]
async fn certificate_that_holds_no_more_ends_its_watches() {
    let (authority, files) = (Authority::new("ca"), Files::new());
    let (certificate, key) = install(&files, &authority.sign("server", &[]));
    let ca = files.write("ca.crt", authority.pem());
    let crl = files.write("ca.crl", authority.revoke(&[], later()));
    let ground = Ground::builder().face(ServerKind::Nested).api(|api| api.recheck_interval(INTERVAL)).start().await;
    ground.put_widget("shop/a", "red");
    let tls = Tls::new(certificate, key).client_ca(ca).client_crl(crl);
    let server = Server::builder(ground.api.clone()).address("127.0.0.1:0").tls(tls).start().await.unwrap();
    let soon = SystemTime::now() + Duration::from_secs(2);
    let (short, alice, bob) =
        (authority.sign_until("short", &[], soon), authority.sign("alice", &[]), authority.sign("bob", &[]));
    let open = async |pair: &Pair| {
        let mut stream = connect(server.address(), &client(&authority, Some(pair), &[])).await.unwrap();
        let target = format!("{WIDGETS}?watch=1&resourceVersion=1");
        let head = format!("GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        stream
    };
    let (mut of_short, mut of_alice, mut of_bob) = (open(&short).await, open(&alice).await, open(&bob).await);
    let mut said = String::new();
    within("the end of a certificate", of_short.read_to_string(&mut said)).await.expect("a clean end");
    assert!(
        said.contains(r#"{"type":"ERROR""#) && said.contains(r#""code":401"#) && SystemTime::now() >= soon,
        "{said}"
    );
    files.write("ca.crl", authority.revoke(&[&alice], later()));
    said.clear();
    within("a revocation", of_alice.read_to_string(&mut said)).await.expect("a clean end");
    assert!(said.contains(r#"{"type":"ERROR""#) && said.contains(r#""code":401"#), "{said}");
    ground.put_widget("shop/after", "red");
    let mut bytes = Vec::new();
    while !bytes.windows(5).any(|word| word == b"after") {
        assert!(within("an event", of_bob.read_buf(&mut bytes)).await.unwrap() > 0);
    }
    assert!(!bytes.windows(5).any(|word| word == b"ERROR"));
}

/// A hook that gives no answer about a user ends that user's watches later, and no others.
#[tokio::test]
async fn hook_that_does_not_say_ends_watches_later() {
    for (name, change) in [
        ("hangs", (|state: &mut State| state.hangs = Some("alice".into())) as fn(&mut State)),
        ("panics", |state| state.panics = Some("alice".into())),
        ("fails", |state| state.fails = Some("alice".into())),
    ] {
        let hook = Hook::default();
        let ground = hooked(ServerKind::Own, &hook).await;
        let mut of_bob = watching(&ground, FORMS[0], ("X-User", "bob")).await;
        let of_alice = watching(&ground, FORMS[0], ("X-User", "alice")).await;
        let from = std::time::Instant::now();
        hook.change(change);
        ends_with(of_alice, FORMS[0], 503).await;
        assert!(from.elapsed() > 2 * INTERVAL, "{name}: a moment is forgiven");
        goes_on(&ground, &mut of_bob, name).await;
    }
}

/// Many watches with one credential cause one question, if the hook names the headers that it reads.
#[tokio::test]
async fn each_question_is_asked_once_a_pass() {
    let hook = Hook::default();
    hook.change(|state| state.names_its_header = true);
    let ground = hooked(ServerKind::Own, &hook).await;
    let mut open = Vec::new();
    for _ in 0..10 {
        open.push(watching(&ground, FORMS[0], ("X-User", "alice")).await);
        open.push(watching(&ground, FORMS[2], ("X-User", "alice")).await);
    }
    let counts = || {
        let state = hook.0.lock().unwrap();
        let of = |path: &str| state.decisions.iter().filter(|said| said.ends_with(path)).count();
        (state.heads.len(), of("/widgets"), of("/v1/keys"))
    };
    hook.change(|state| (state.heads.clear(), state.decisions.clear()).1);
    let (heads, widgets, keys) =
        eventually("three passes", async || Some(counts()).filter(|counts| counts.0 >= 3)).await;
    assert!(heads < 10 && widgets <= heads && keys <= heads, "{heads} {widgets} {keys}");
    let state = hook.0.lock().unwrap();
    assert!(state.heads.iter().all(|head| head == "/ alice"), "nothing but its header: {:?}", state.heads);
}

/// A hook that does not name its headers sees the whole head of the request at each recheck.
#[tokio::test]
async fn recheck_sees_the_same_head() {
    let hook = Hook::default();
    let ground = hooked(ServerKind::Own, &hook).await;
    let target = format!("{SHOP}?watch=1&resourceVersion=1");
    let _open = watching(&ground, (&target, "*/*", ""), ("X-User", "alice")).await;
    let seen = || hook.0.lock().unwrap().heads.clone();
    let heads = eventually("three looks", async || Some(seen()).filter(|heads| heads.len() >= 3)).await;
    assert!(heads.iter().all(|head| *head == format!("{target} alice")), "{heads:?}");
}
