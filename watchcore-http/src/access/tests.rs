use super::*;
use http::Request;

fn head(uri: &str, headers: &[(&str, &str)]) -> Parts {
    let builder =
        headers.iter().fold(Request::builder().uri(uri), |builder, (name, value)| builder.header(*name, *value));
    builder.body(()).unwrap().into_parts().0
}

fn of_host(access: &Access, host: &str) -> u16 {
    of(access, &[("Host", host)], false)
}

fn of(access: &Access, headers: &[(&str, &str)], is_known: bool) -> u16 {
    access.origins.check(&head("/", headers), None, is_known).map_or_else(|refusal| refusal.code(), |()| 200)
}

fn listed() -> Access {
    let origins = Origins {
        hosts: vec!["watch.example".into(), "ported.example:8443".into()],
        origins: vec!["https://ops.example".into()],
    };
    Access { origins, ..Access::default() }
}

#[test]
fn hosts_are_loopback_or_listed() {
    let access = listed();
    for host in [
        "localhost",
        "LOCALHOST:8080",
        "localhost.",
        "127.0.0.1",
        "127.1.2.3:80",
        "[::1]",
        "[::1]:8080",
        "[::ffff:127.0.0.1]:1",
        "watch.example",
        "Watch.Example:99",
        "ported.example:8443",
    ] {
        assert_eq!(of_host(&access, host), 200, "{host}");
    }
    for host in [
        "evil.example",
        "localhost.evil.example",
        "evil.localhost",
        "127.0.0.1.evil.example",
        "watch.example.evil",
        "ported.example",
        "ported.example:1",
        "10.0.0.1",
        "0.0.0.0",
        "[::]",
        "2130706433",
    ] {
        assert_eq!(of_host(&access, host), 403, "{host}");
        assert_eq!(of(&access, &[("Host", host)], true), 200, "{host}: whoever is known may use any name");
    }
    for host in ["", "a@localhost", "localhost:x", "localhost:99999", "local host", "[::1", ":80"] {
        assert_eq!(of_host(&access, host), 400, "{host}");
    }
    assert_eq!(of(&access, &[("Host", "localhost"), ("Host", "localhost")], false), 400);
    assert_eq!(of(&access, &[], false), 200, "no browser leaves it out");
}

#[test]
fn a_server_answers_to_its_own_address() {
    let access = Access::default();
    let peer = Peer {
        address: "10.0.0.9:4000".parse().unwrap(),
        local: Some("10.0.0.1:80".parse().unwrap()),
        is_encrypted: false,
        certificate: None,
        asks_certificate: false,
        watches: Arc::default(),
        activity: None,
    };
    let check = |host| access.origins.check(&head("/", &[("Host", host)]), Some(&peer), false).is_ok();
    assert!(check("10.0.0.1:80") && check("10.0.0.1"));
    assert!(!check("10.0.0.2:80") && !check("evil.example"));
}

#[test]
fn authority_counts_before_host() {
    let access = Access::default();
    let check = |uri, host| access.origins.check(&head(uri, &[("Host", host)]), None, false).is_ok();
    assert!(!check("http://evil.example/", "localhost"));
    assert!(check("http://localhost/", "evil.example"));
}

#[test]
fn origins_are_own_or_listed() {
    let access = listed();
    for origin in ["http://localhost:8080", "https://LOCALHOST:8080", "https://ops.example"] {
        assert_eq!(of(&access, &[("Host", "localhost:8080"), ("Origin", origin)], false), 200, "{origin}");
    }
    for origin in [
        "null",
        "",
        "http://localhost",
        "http://localhost:8081",
        "http://localhost:8080.evil.example",
        "http://ops.example",
        "https://ops.example.evil",
        "localhost:8080",
        "chrome-extension://localhost:8080",
    ] {
        for is_known in [false, true] {
            assert_eq!(of(&access, &[("Host", "localhost:8080"), ("Origin", origin)], is_known), 403, "{origin}");
        }
    }
    let two = [("Host", "localhost"), ("Origin", "http://localhost"), ("Origin", "http://evil.example")];
    assert_eq!(of(&access, &two, false), 403, "each of them");
    assert_eq!(of(&access, &[("Origin", "http://localhost")], false), 403, "own means equal to Host");
}

#[test]
fn denials_are_worded_as_kubernetes_does() {
    let asked = |resource: &str, namespace: Option<&str>, name: Option<&str>| Asked {
        verb: "list".into(),
        group: "matrix.test".into(),
        version: "v1".into(),
        resource: resource.into(),
        namespace: namespace.map(Into::into),
        name: name.map(Into::into),
        path: "/metrics".into(),
    };
    let bob = User::new("bob");
    let said = |asked: Asked, reason: &str| asked.forbidden(&bob, reason).message().to_owned();
    assert_eq!(
        said(asked("widgets", Some("shop"), None), ""),
        r#"widgets.matrix.test is forbidden: User "bob" cannot list resource "widgets" in API group "matrix.test" in the namespace "shop""#
    );
    assert_eq!(
        said(asked("widgets", None, Some("a")), "no"),
        r#"widgets.matrix.test "a" is forbidden: User "bob" cannot list resource "widgets" in API group "matrix.test" at the cluster scope: no"#
    );
    assert_eq!(said(asked("", None, None), ""), r#"forbidden: User "bob" cannot list path "/metrics""#);
}
