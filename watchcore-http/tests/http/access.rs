//! Authentication and authorization: tokens, hooks, host names and origins. Client certificates are tested in `tls`.

use crate::support::certificates::{Authority, Files, install};
use crate::support::ground::{NODES, SHOP, ServerKind, WIDGETS, node_key, widget, widget_key};
use crate::support::{Ground, Watching, eventually, get, metric, request, token_from};
use std::sync::{Arc, Mutex};
use watchcore_http::{ApiBuilder, Asked, Authorizer, Decision, HookFuture, Server, Tls, Tokens, User};

const BOTH: [ServerKind; 2] = [ServerKind::Own, ServerKind::Nested];

/// A path of each kind.
const PATHS: [&str; 14] = [
    "/",
    "/api",
    "/apis",
    "/apis/matrix.test",
    "/apis/matrix.test/v1",
    WIDGETS,
    "/apis/matrix.test/v1/namespaces/shop/widgets/a",
    "/apis/matrix.test/v1/watch/widgets",
    "/apis/matrix.test/v1/widgets?watch=1",
    "/version",
    "/openapi/v3",
    "/metrics",
    "/v1/keys?prefix=/registry/",
    "/nothing",
];

async fn with_tokens(face: ServerKind, files: &Files) -> Ground {
    let tokens = Tokens::from_file(files.write("tokens", "secret,alice\nother,bob\n")).unwrap();
    Ground::builder().face(face).api(move |api| api.authenticator(tokens)).start().await
}

#[tokio::test]
async fn everything_but_health_needs_a_token() {
    for face in BOTH {
        let files = Files::new();
        let ground = with_tokens(face, &files).await;
        ground.put_widget("shop/a", "red");
        for path in PATHS {
            for (headers, why) in [
                (&[][..], "none"),
                (&[("Authorization", "Bearer wrong")], "a wrong one"),
                (&[("Authorization", "Basic c2VjcmV0Og==")], "another scheme"),
                (&[("Authorization", "Bearer secret"), ("Authorization", "Bearer secret")], "two"),
            ] {
                let answer = request(ground.address, "GET", path, headers).await;
                assert_eq!(answer.status(), (401, "Unauthorized".into()), "{face:?} {path}: {why}");
                assert!(answer.header("www-authenticate").is_some_and(|value| value.starts_with("Bearer")), "{path}");
            }
            let answer = request(ground.address, "POST", path, &[]).await;
            assert_eq!(answer.code(), 401, "{face:?} {path}: whatever the method");
        }
        for path in ["/livez", "/readyz", "/healthz", "/readyz?verbose"] {
            assert_eq!(get(ground.address, path).await.code(), 200, "{face:?} {path}");
        }
        for (path, code) in [(WIDGETS, 200), ("/metrics", 200), ("/nothing", 404), ("/version", 200)] {
            let answer = request(ground.address, "GET", path, &[("Authorization", "bearer other")]).await;
            assert_eq!(answer.code(), code, "{face:?} {path}");
        }
    }
}

#[tokio::test]
async fn tokens_change_under_the_server() {
    let files = Files::new();
    let ground = with_tokens(ServerKind::Own, &files).await;
    let code = async |token: &str| {
        request(ground.address, "GET", WIDGETS, &[("Authorization", &format!("Bearer {token}"))]).await.code()
    };
    assert_eq!((code("secret").await, code("new").await), (200, 401));
    files.write("tokens", "new,alice\n");
    eventually("the new token", || async { (code("new").await == 200).then_some(()) }).await;
    assert_eq!(code("secret").await, 401, "the old one is gone");
    files.write("tokens", "a line without a comma\nnew,alice\nother,bob\n");
    eventually("the other token", || async { (code("other").await == 200).then_some(()) }).await;
    assert_eq!(code("new").await, 200, "a wrong line is lost alone");
    for less in ["", "# nobody any more\n", "new;alice\n", "new,\n"] {
        files.write("tokens", less);
        eventually(less, || async { (code("new").await == 401).then_some(()) }).await;
        files.write("tokens", "new,alice\n");
        eventually("the token again", || async { (code("new").await == 200).then_some(()) }).await;
    }
}

/// An authorizer that records its questions, and denies paths that the test names.
#[derive(Clone, Default)]
struct Noting(Arc<Mutex<Vec<String>>>);

impl Authorizer for Noting {
    fn authorize<'a>(&'a self, user: &'a User, asked: &'a Asked) -> HookFuture<'a, Decision> {
        let Asked { verb, group, version, resource, namespace, name, path, .. } = asked;
        let text = |part: &Option<String>| part.clone().unwrap_or("-".into());
        self.0.lock().unwrap().push(match resource.as_str() {
            "" => format!("{} {verb} {path}", user.name()),
            _ => format!("{} {verb} {group}/{version}/{resource} {} {}", user.name(), text(namespace), text(name)),
        });
        let denied = namespace.as_deref() == Some("vault") || path == "/metrics" || resource == "nodes";
        let decision = if denied { Decision::Deny("it is closed".into()) } else { Decision::Allow };
        Box::pin(async move {
            // Hooks may be slow.
            tokio::task::yield_now().await;
            decision
        })
    }
}

/// Denies one path.
struct Denies(&'static str);

impl Authorizer for Denies {
    fn authorize<'a>(&'a self, _: &'a User, asked: &'a Asked) -> HookFuture<'a, Decision> {
        let denied = asked.path == self.0;
        Box::pin(async move { if denied { Decision::Deny("no".into()) } else { Decision::Allow } })
    }
}

/// Several authorizers must all allow a request.
#[tokio::test]
async fn authorizers_given_twice_narrow() {
    let ground =
        Ground::builder().api(|api| api.authorizer(Denies("/version")).authorizer(Denies("/metrics"))).start().await;
    for (path, code) in [("/version", 403), ("/metrics", 403), ("/api", 200)] {
        assert_eq!(get(ground.address, path).await.code(), code, "{path}");
    }
}

#[tokio::test]
async fn authorizer_decides_on_each_request() {
    for face in BOTH {
        let files = Files::new();
        let tokens = Tokens::from_file(files.write("tokens", "secret,alice\n")).unwrap();
        let noting = Noting::default();
        let hook = noting.clone();
        let ground =
            Ground::builder().face(face).api(move |api| api.authenticator(tokens).authorizer(hook)).start().await;
        ground.put_widget("shop/a", "red");
        let vault = SHOP.replace("shop", "vault");
        let old_watch = vault.replace("/v1/", "/v1/watch/");
        for (path, code, noted) in [
            (WIDGETS.to_owned(), 200, "alice list matrix.test/v1/widgets - -"),
            (format!("{SHOP}/a"), 200, "alice get matrix.test/v1/widgets shop a"),
            (format!("{vault}/a"), 403, "alice get matrix.test/v1/widgets vault a"),
            (vault.clone(), 403, "alice list matrix.test/v1/widgets vault -"),
            (format!("{vault}?watch=true"), 403, "alice watch matrix.test/v1/widgets vault -"),
            (format!("{vault}?watch"), 403, "alice watch matrix.test/v1/widgets vault -"),
            (format!("{vault}?watch=0"), 403, "alice list matrix.test/v1/widgets vault -"),
            (format!("{vault}?%77atch=1"), 403, "alice watch matrix.test/v1/widgets vault -"),
            (format!("{vault}/a?watch=1"), 403, "alice watch matrix.test/v1/widgets vault a"),
            (old_watch, 403, "alice watch matrix.test/v1/widgets vault -"),
            (vault.replace("vault", "%76ault"), 403, "alice list matrix.test/v1/widgets vault -"),
            (NODES.to_owned(), 403, "alice list /v1/nodes - -"),
            ("/metrics".into(), 403, "alice get /metrics"),
            ("/%6detrics".into(), 403, "alice get /metrics"),
            ("/metrics/".into(), 403, "alice get /metrics"),
            ("/version".into(), 200, "alice get /version"),
            ("/v1/%6Beys/?prefix=/registry/".into(), 200, "alice get /v1/keys"),
            ("/".into(), 200, "alice get /"),
        ] {
            noting.0.lock().unwrap().clear();
            let answer = request(ground.address, "GET", &path, &[("Authorization", "Bearer secret")]).await;
            assert_eq!(answer.code(), code, "{face:?} {path}: {}", answer.text());
            assert_eq!(*noting.0.lock().unwrap(), [noted], "{face:?} {path}");
            if code == 403 {
                assert_eq!(answer.status().1, "Forbidden");
                assert!(answer.message().ends_with(": it is closed"), "{}", answer.message());
            }
        }
        let answer = request(ground.address, "GET", &format!("{vault}/a"), &[("Authorization", "Bearer secret")]).await;
        assert_eq!(
            answer.message(),
            r#"widgets.matrix.test "a" is forbidden: User "alice" cannot get resource "widgets" in API group "matrix.test" in the namespace "vault": it is closed"#
        );
        noting.0.lock().unwrap().clear();
        assert_eq!(get(ground.address, "/readyz").await.code(), 200);
        assert_eq!(get(ground.address, WIDGETS).await.code(), 401);
        assert!(noting.0.lock().unwrap().is_empty(), "neither health nor the unknown reach it");
    }
}

/// A token whose checksum was recomputed begins in the allowed namespace, or is refused.
#[tokio::test]
async fn token_reaches_no_other_namespace() {
    for face in BOTH {
        let ground = Ground::builder().face(face).api(|api| api.authorizer(Noting::default())).start().await;
        for name in ["vault/secret", "west/a", "west/b", "zoo/secret"] {
            ground.put_widget(name, "red");
        }
        assert_eq!(get(ground.address, &SHOP.replace("shop", "vault")).await.code(), 403);
        let west = SHOP.replace("shop", "west");
        let first = get(ground.address, &format!("{west}?limit=1")).await;
        let outside = [widget_key("vault/secret"), widget_key("west0"), "/registry/".into(), String::new()];
        for next in &outside {
            for limit in ["", "&limit=1"] {
                let path = format!("{west}?continue={}{limit}", token_from(&first, next));
                let answer = get(ground.address, &path).await;
                assert_eq!(answer.status(), (400, "BadRequest".into()), "{face:?} {next}: {}", answer.text());
                assert!(
                    answer.message().starts_with("invalid continue token: continue key is not valid"),
                    "{}",
                    answer.message()
                );
            }
        }
        let path = format!("{west}?continue={}", token_from(&first, &widget_key("west/")));
        assert_eq!(get(ground.address, &path).await.names(), ["west/a", "west/b"], "{face:?}");
    }
}

/// Authorizers decide by the key, so an object that states another name is sent with the name of its key, in each form.
#[tokio::test]
async fn objects_cannot_claim_another_namespace() {
    const TABLE: (&str, &str) = ("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io");
    const METADATA: (&str, &str) = ("Accept", "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io");
    for declared in [true, false] {
        let builder = Ground::builder().api(|api| api.authorizer(Noting::default()));
        let ground = if declared { builder } else { builder.undeclared() }.start().await;
        ground.put(&widget_key("shop/a"), widget("vault/claimed", "red").to_string().replace("uid-claimed", "uid"));
        for target in [SHOP.to_owned(), format!("{SHOP}/a"), format!("{SHOP}?watch=1"), WIDGETS.into()] {
            for accept in [("Accept", "application/json"), TABLE, METADATA] {
                let text = match target.contains("watch") {
                    true => Watching::open_with(ground.address, &target, &[accept]).await.event().await.to_string(),
                    false => request(ground.address, "GET", &target, &[accept]).await.text(),
                };
                let says = [r#""name":"a""#, r#""namespace":"shop""#];
                assert!(says.iter().all(|part| text.contains(part)), "{target} {accept:?}: {text}");
                assert!(!text.contains("vault") && !text.contains("claimed"), "{target} {accept:?}: {text}");
            }
        }
        let open = Ground::builder().start().await;
        open.put(&node_key("n1"), r#"{"metadata":{"name":"n2","namespace":"vault"}}"#);
        let metadata = &get(open.address, &format!("{NODES}/n1")).await.json()["metadata"];
        assert_eq!((&metadata["name"], &metadata["namespace"]), (&"n1".into(), &"".into()));
    }
}

/// An authorizer that panics in its call, or in the returned future.
struct Panicking;

impl Authorizer for Panicking {
    fn authorize<'a>(&'a self, _: &'a User, asked: &'a Asked) -> HookFuture<'a, Decision> {
        assert_ne!(asked.path, "/version", "at once");
        Box::pin(async move {
            tokio::task::yield_now().await;
            assert_ne!(asked.path, "/api", "later");
            Decision::Allow
        })
    }
}

/// A panic in a hook is a server error, reported as such, and affects no other request.
#[tokio::test]
async fn panic_of_a_hook_is_500() {
    for face in BOTH {
        let ground = Ground::builder().face(face).api(|api| api.authorizer(Panicking)).start().await;
        let mut client = crate::support::Client::connect(ground.address).await;
        for path in ["/version", "/api"] {
            let answer = client.answer("GET", path, &[]).await;
            assert_eq!(answer.status(), (500, "InternalError".into()), "{face:?} {path}");
            assert!(!answer.message().contains("at once"), "the client is not told why: {}", answer.message());
            assert_eq!(client.answer("GET", "/apis", &[]).await.code(), 200, "{face:?}: on the same connection");
        }
        let counted = r#"watchcore_http_requests_total{verb="get",group="",version="",resource="/version",code="500"}"#;
        assert_eq!(metric(ground.address, counted).await, 1.0);
    }
}

#[tokio::test]
async fn authorizer_alone_sees_the_anonymous() {
    let noting = Noting::default();
    let hook = noting.clone();
    let ground = Ground::builder().api(move |api| api.authorizer(hook)).start().await;
    assert_eq!(get(ground.address, WIDGETS).await.code(), 200);
    assert_eq!(get(ground.address, "/metrics").await.code(), 403);
    assert_eq!(noting.0.lock().unwrap()[0], "system:anonymous list matrix.test/v1/widgets - -");
}

/// A browser lets listed pages read answers, and sends a preflight without credentials before a request with a token.
#[tokio::test]
async fn pages_of_listed_origins_may_read() {
    const PAGE: (&str, &str) = ("Origin", "https://ops.example");
    for face in BOTH {
        let files = Files::new();
        let tokens = Tokens::from_file(files.write("tokens", "secret,alice\n")).unwrap();
        let service = |api: ApiBuilder| api.origin(PAGE.1).authenticator(tokens);
        let ground = Ground::builder().face(face).api(service).start().await;
        let asked =
            async |method: &str, headers: &[(&str, &str)]| request(ground.address, method, WIDGETS, headers).await;
        let readable = |answer: &crate::support::Answer| {
            assert_eq!(answer.header("vary"), Some("Origin"));
            answer.header("access-control-allow-origin") == Some(PAGE.1)
        };
        let answer = asked("GET", &[PAGE]).await;
        assert!(answer.code() == 401 && readable(&answer), "{}", answer.head.text);
        let answer = asked("GET", &[PAGE, ("Authorization", "Bearer secret")]).await;
        assert!(answer.code() == 200 && readable(&answer), "{}", answer.head.text);
        let asks =
            [PAGE, ("Access-Control-Request-Method", "GET"), ("Access-Control-Request-Headers", "authorization")];
        let answer = asked("OPTIONS", &asks).await;
        assert!(answer.code() == 204 && readable(&answer), "{}", answer.head.text);
        assert_eq!(answer.header("access-control-allow-methods"), Some("GET, HEAD"));
        assert!(answer.header("access-control-allow-headers").unwrap().starts_with("Authorization, Last-Event-ID"));
        for headers in [&asks[1..], &asks[..1]] {
            let answer = asked("OPTIONS", headers).await;
            assert_eq!(answer.code(), 401, "no page, or no question: {headers:?}");
        }
        let foreign = [("Origin", "https://evil.example"), asks[1]];
        for method in ["GET", "OPTIONS"] {
            let answer = asked(method, &foreign).await;
            assert!(answer.code() == 403 && !readable(&answer), "{}", answer.head.text);
        }
    }
}

#[tokio::test]
async fn foreign_hosts_and_origins_are_refused() {
    for face in BOTH {
        let ground = Ground::builder()
            .face(face)
            .api(|api| api.host("watch.example").origin("https://ops.example"))
            .start()
            .await;
        let port = ground.address.port();
        let own = format!("127.0.0.1:{port}");
        let own_origin = format!("http://{own}");
        for (headers, code) in [
            (&[("Host", "evil.example")][..], 403),
            (&[("Host", "watch.example")], 200),
            (&[("Host", "localhost:1")], 200),
            (&[("Host", "[::1]:1")], 200),
            (&[("Host", &own), ("Origin", &own_origin)], 200),
            (&[("Host", &own), ("Origin", "https://ops.example")], 200),
            (&[("Host", &own), ("Origin", "http://evil.example")], 403),
            (&[("Host", &own), ("Origin", "null")], 403),
            (&[("Host", "localhost:1"), ("Origin", "http://localhost:2")], 403),
        ] {
            for path in [WIDGETS, "/metrics", "/livez", "/v1/keys?prefix=/registry/"] {
                let answer = request(ground.address, "GET", path, headers).await;
                assert_eq!(answer.code(), code, "{face:?} {path} {headers:?}");
            }
        }
        let upgrade = [
            ("Connection", "Upgrade"),
            ("Upgrade", "websocket"),
            ("Sec-WebSocket-Version", "13"),
            ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ];
        for (origin, code) in [(own_origin.as_str(), 101), ("http://evil.example", 403), ("null", 403)] {
            let mut client = crate::support::Client::connect(ground.address).await;
            let headers: Vec<_> = upgrade.into_iter().chain([("Origin", origin)]).collect();
            client.request("GET", &format!("{WIDGETS}?watch=1"), &headers).await;
            assert_eq!(client.head().await.unwrap().code, code, "{face:?} {origin}");
        }
    }
}

/// Each answer forbids MIME sniffing, and embedding by pages of other origins.
#[tokio::test]
async fn answers_are_safe_in_a_browser() {
    const LISTED: &str = "https://ops.example";
    for face in BOTH {
        let files = Files::new();
        let tokens = Tokens::from_file(files.write("tokens", "secret,alice\n")).unwrap();
        let service = move |api: ApiBuilder| api.origin(LISTED).authenticator(tokens);
        let ground = Ground::builder().face(face).api(service).start().await;
        for path in PATHS.into_iter().chain(["/livez", "/readyz"]) {
            // A watch would not end.
            let method = if path.contains("watch") { "POST" } else { "GET" };
            for headers in [&[][..], &[("Authorization", "Bearer secret")]] {
                let answer = request(ground.address, method, path, headers).await;
                assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{face:?} {path}");
                assert_eq!(answer.header("cross-origin-resource-policy"), Some("same-origin"), "{face:?} {path}");
                assert_eq!(answer.header("strict-transport-security"), None, "{path}: nothing is encrypted");
            }
            let of_listed = request(ground.address, method, path, &[("Origin", LISTED)]).await;
            assert_eq!(of_listed.header("cross-origin-resource-policy"), None, "{path}: a listed page may have it");
        }
        let long = format!("/{}", "a".repeat(20_000));
        if face == ServerKind::Own {
            let answer = get(ground.address, &long).await;
            assert_eq!((answer.code(), answer.header("x-content-type-options")), (414, Some("nosniff")));
        }
    }
}

/// A page of another site can cause requests without Origin, such as images and scripts, to which the browser attaches
/// its user's certificate. Sec-Fetch-Site says where the page is from.
#[tokio::test]
async fn pages_of_other_sites_are_refused() {
    const LISTED: (&str, &str) = ("Origin", "https://ops.example");
    const BEARER: (&str, &str) = ("Authorization", "Bearer secret");
    let site = |site| ("Sec-Fetch-Site", site);
    let (navigate, document) = (("Sec-Fetch-Mode", "navigate"), ("Sec-Fetch-Dest", "document"));
    for face in BOTH {
        let files = Files::new();
        let tokens = Tokens::from_file(files.write("tokens", "secret,alice\n")).unwrap();
        let open = Ground::builder().face(face).api(|api| api.origin(LISTED.1)).start().await;
        let closed = Ground::builder().face(face).api(|api| api.origin(LISTED.1).authenticator(tokens)).start().await;
        for (headers, code, of_closed) in [
            (&[site("same-origin")][..], 200, 401),
            (&[site("none")], 200, 401),
            (&[site("same-site")], 403, 403),
            (&[site("cross-site")], 403, 403),
            (&[site("cross-site"), site("none")], 403, 403),
            (&[site("cross-site"), LISTED], 200, 401),
            (&[site("cross-site"), LISTED, BEARER], 200, 200),
            (&[site("cross-site"), BEARER], 200, 200),
            (&[site("cross-site"), ("Authorization", "Basic c2VjcmV0Og==")], 403, 403),
            (&[site("cross-site"), navigate, document], 200, 401),
            (&[site("cross-site"), navigate, ("Sec-Fetch-Dest", "iframe")], 403, 403),
            (&[site("cross-site"), ("Sec-Fetch-Mode", "no-cors"), document], 403, 403),
        ] {
            for path in [WIDGETS, "/v1/keys?prefix=/registry/", "/metrics", "/"] {
                assert_eq!(
                    request(open.address, "GET", path, headers).await.code(),
                    code,
                    "{face:?} {path} {headers:?}"
                );
                let answer = request(closed.address, "GET", path, headers).await;
                assert_eq!(answer.code(), of_closed, "{face:?} {path} {headers:?}");
            }
        }
    }
}

#[tokio::test]
async fn known_users_may_use_any_host() {
    let files = Files::new();
    let ground = with_tokens(ServerKind::Own, &files).await;
    let bearer = ("Authorization", "Bearer secret");
    let host = ("Host", "any.example");
    assert_eq!(request(ground.address, "GET", WIDGETS, &[bearer, host]).await.code(), 200);
    let foreign = [bearer, host, ("Origin", "http://evil.example")];
    assert_eq!(request(ground.address, "GET", WIDGETS, &foreign).await.code(), 403, "but no page of another");
}

#[tokio::test]
async fn public_address_needs_tls_and_users() {
    let (authority, files) = (Authority::new("ca"), Files::new());
    let (certificate, key) = install(&files, &authority.sign("server", &[]));
    let ca = files.write("ca.crt", authority.pem());
    let tokens = files.write("tokens", "secret,alice\n");
    let open = Ground::start().await.api.clone();
    let closed = Ground::builder()
        .api(move |api| api.authenticator(Tokens::from_file(tokens).unwrap()))
        .start()
        .await
        .api
        .clone();
    let tls = || Tls::new(&certificate, &key);
    let public = |api: &watchcore_http::Api| Server::builder(api.clone()).address("0.0.0.0:0");
    for (builder, lacks) in [
        (public(&open), "not encrypted, and clients are not authenticated"),
        (public(&open).tls(tls()), "clients are not authenticated"),
        (public(&closed), "not encrypted"),
    ] {
        let error = builder.start().await.err().unwrap_or_else(|| panic!("it starts although {lacks}"));
        assert!(error.message().contains("insecure") && error.message().contains(lacks), "{}", error.message());
    }
    for (builder, what) in [
        (public(&open).insecure(true), "said to be insecure"),
        (public(&closed).tls(tls()), "TLS and tokens"),
        (public(&open).tls(tls().client_ca(&ca)), "TLS and client certificates"),
        (Server::builder(open.clone()).address("localhost:0"), "loopback"),
    ] {
        let started = builder.start().await;
        assert!(started.is_ok(), "{what}: {:?}", started.err());
    }
    let listener = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
    let error = Server::builder(open.clone()).listener(listener).start().await.err().expect("a socket as an address");
    assert!(error.message().contains("insecure"));
}
