//! Server certificates, which change while the server runs, and client certificates.

use crate::support::certificates::{Authority, Files, Pair, client, connect, der, get, install, later, shown};
use crate::support::ground::{ServerKind, WIDGETS};
use crate::support::{Ground, eventually, metric, within};
use bytes::Bytes;
use pkcs8::PrivateKeyInfoRef;
use pkcs8::der::pem::LineEnding;
use pkcs8::pkcs5::pbes2::Parameters;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use std::time::{Duration, SystemTime};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use watchcore_http::{ApiBuilder, Limits, Server, Tls, Tokens};

async fn served(api: impl FnOnce(ApiBuilder) -> ApiBuilder + Send + 'static, tls: Tls) -> (Ground, Server) {
    let ground = Ground::builder().face(ServerKind::Nested).api(api).start().await;
    let server =
        Server::builder(ground.api.clone()).address("127.0.0.1:0").tls(tls).start().await.expect("certificates");
    (ground, server)
}

#[tokio::test]
async fn both_protocols_are_negotiated() {
    let (authority, files) = (Authority::new("ca"), Files::new());
    let (certificate, key) = install(&files, &authority.sign("server", &[]));
    let (ground, server) = served(|api| api, Tls::new(certificate, key)).await;
    ground.put_widget("shop/a", "red");
    for protocols in [&["http/1.1"][..], &[]] {
        let (code, said) = get(server.address(), &client(&authority, None, protocols), WIDGETS, "").await.unwrap();
        assert!(code == 200 && said.contains(r#""name":"a""#), "{said}");
        assert!(said.contains("strict-transport-security: max-age=31536000\r\n"), "{said}");
    }
    let stream = connect(server.address(), &client(&authority, None, &["h2", "http/1.1"])).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let (client, connection) = within("the preface", h2::client::handshake(stream)).await.unwrap();
    tokio::spawn(connection);
    let mut client: h2::client::SendRequest<Bytes> = within("streams", client.ready()).await.unwrap();
    let request = http::Request::get(format!("https://localhost{WIDGETS}")).body(()).unwrap();
    let (response, _) = client.send_request(request, true).unwrap();
    assert_eq!(within("a list", response).await.unwrap().status(), 200);
}

/// A watch over TLS bypasses hyper too, and its connection stays usable.
#[tokio::test]
async fn watch_over_tls_keeps_the_connection() {
    let (authority, files) = (Authority::new("ca"), Files::new());
    let (certificate, key) = install(&files, &authority.sign("server", &[]));
    let (ground, server) = served(|api| api, Tls::new(certificate, key)).await;
    ground.put_widget("shop/a", "red");
    let mut stream = connect(server.address(), &client(&authority, None, &[])).await.unwrap();
    let request = format!(
        "GET {WIDGETS}?watch=1&timeoutSeconds=1 HTTP/1.1\r\nHost: localhost\r\n\r\nGET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut said = String::new();
    within("both answers", stream.read_to_string(&mut said)).await.expect("a clean end");
    assert!(
        said.contains(r#"{"type":"ADDED""#) && said.contains("\r\n0\r\n\r\nHTTP/1.1 200") && said.ends_with("ok"),
        "{said}"
    );
}

#[tokio::test]
async fn certificate_changes_under_the_server() {
    let (authority, files) = (Authority::new("ca"), Files::new());
    let (first, second) = (authority.sign("first", &[]), authority.sign("second", &[]));
    let (certificate, key) = install(&files, &first);
    let (_ground, server) = served(|api| api, Tls::new(&certificate, &key)).await;
    let client = client(&authority, None, &[]);
    let mut open = connect(server.address(), &client).await.unwrap();
    assert_eq!(shown(&open), der(&first));

    files.write("server.crt", &second.certificate);
    for _ in 0..3 {
        let stream = connect(server.address(), &client).await.expect("half of a pair: the pair before serves");
        assert_eq!(shown(&stream), der(&first));
    }
    files.write("server.key", &second.key);
    let stream = connect(server.address(), &client).await.unwrap();
    assert_eq!(shown(&stream), der(&second), "the next handshake has it");

    std::fs::remove_file(&certificate).unwrap();
    assert_eq!(shown(&connect(server.address(), &client).await.unwrap()), der(&second), "gone: the pair before serves");
    files.write("server.crt", "no certificate");
    assert_eq!(shown(&connect(server.address(), &client).await.unwrap()), der(&second));
    install(&files, &first);
    assert_eq!(shown(&connect(server.address(), &client).await.unwrap()), der(&first), "and back");

    open.write_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut said = String::new();
    within("an answer", open.read_to_string(&mut said)).await.unwrap();
    assert!(said.ends_with("ok"), "who is connected stays so: {said}");
}

#[tokio::test]
async fn client_certificates_authenticate() {
    let (authority, other, files) = (Authority::new("ca"), Authority::new("other"), Files::new());
    let (certificate, key) = install(&files, &authority.sign("server", &[]));
    let tokens = files.write("tokens", "secret,bob\n");
    let ca = files.write("ca.crt", authority.pem());
    let (_ground, server) = served(
        move |api| api.authenticator(Tokens::from_file(tokens).unwrap()),
        Tls::new(certificate, key).client_ca(ca),
    )
    .await;
    let address = server.address();
    let alice = authority.sign("alice", &["readers"]);
    let answer = get(address, &client(&authority, Some(&alice), &[]), WIDGETS, "").await.unwrap();
    assert_eq!(answer.0, 200, "{}", answer.1);
    let nobody = client(&authority, None, &[]);
    assert_eq!(get(address, &nobody, WIDGETS, "").await.unwrap().0, 401, "nobody is known by no certificate");
    assert_eq!(get(address, &nobody, "/livez", "").await.unwrap().0, 200, "but for health");
    let bearer = "Authorization: Bearer secret\r\n";
    assert_eq!(get(address, &nobody, WIDGETS, bearer).await.unwrap().0, 200, "a token does as well");
    let nameless = authority.sign("", &[]);
    assert_eq!(get(address, &client(&authority, Some(&nameless), &[]), WIDGETS, "").await.unwrap().0, 401, "no name");
    let foreign = other.sign("alice", &["readers"]);
    let refused = get(address, &client(&authority, Some(&foreign), &[]), WIDGETS, "").await;
    assert!(refused.is_err(), "another's certificate: {refused:?}");
}

/// A server that asks for client certificates requires authentication, even without an authenticator.
#[tokio::test]
async fn client_ca_alone_asks_who() {
    let (authority, files) = (Authority::new("ca"), Files::new());
    let (certificate, key) = install(&files, &authority.sign("server", &[]));
    let ca = files.write("ca.crt", authority.pem());
    let (_ground, server) = served(|api| api, Tls::new(certificate, key).client_ca(ca)).await;
    let nobody = client(&authority, None, &[]);
    assert_eq!(get(server.address(), &nobody, "/metrics", "").await.unwrap().0, 401);
    let alice = client(&authority, Some(&authority.sign("alice", &[])), &[]);
    assert_eq!(get(server.address(), &alice, "/metrics", "").await.unwrap().0, 200);
}

/// A new authority takes effect like a new certificate, and resumed sessions do not bypass it.
#[tokio::test]
async fn client_ca_changes_under_the_server() {
    let (old, new, files) = (Authority::new("old"), Authority::new("new"), Files::new());
    let (certificate, key) = install(&files, &old.sign("server", &[]));
    let ca = files.write("ca.crt", old.pem());
    let (_ground, server) = served(|api| api, Tls::new(certificate, key).client_ca(ca)).await;
    let of_old = client(&old, Some(&old.sign("alice", &[])), &[]);
    let of_new = client(&old, Some(&new.sign("alice", &[])), &[]);
    assert_eq!(get(server.address(), &of_old, WIDGETS, "").await.unwrap().0, 200);
    assert!(get(server.address(), &of_new, WIDGETS, "").await.is_err());
    files.write("ca.crt", new.pem());
    assert!(get(server.address(), &of_old, WIDGETS, "").await.is_err());
    assert_eq!(get(server.address(), &of_new, WIDGETS, "").await.unwrap().0, 200);
}

/// Returns the code of another answer on an open connection.
async fn asked_again(stream: &mut TlsStream<TcpStream>) -> u16 {
    stream.write_all(format!("GET {WIDGETS}?limit=1 HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes()).await.unwrap();
    let mut said = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&said);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).expect("a length");
            if body.len() == length.parse::<usize>().unwrap() {
                return head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a code");
            }
        }
        assert!(within("an answer", stream.read_buf(&mut said)).await.unwrap() > 0, "the connection is closed");
    }
}

/// Repeats requests on an open connection until its certificate is refused.
async fn refused_at_last(stream: &mut TlsStream<TcpStream>) {
    let asks = async {
        while asked_again(stream).await != 401 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    within("401", asks).await;
}

/// A connection outlives its handshake, so each request verifies the certificate again.
#[tokio::test]
async fn open_connection_loses_its_certificate() {
    let (authority, other, files) = (Authority::new("ca"), Authority::new("other"), Files::new());
    let (certificate, key) = install(&files, &authority.sign("server", &[]));
    let ca = files.write("ca.crt", authority.pem());
    let crl = files.write("ca.crl", authority.revoke(&[], later()));
    let (_ground, server) = served(|api| api, Tls::new(certificate, key).client_ca(ca).client_crl(crl)).await;
    let [alice, bob] = ["alice", "bob"].map(|name| authority.sign(name, &[]));
    let soon = SystemTime::now() + Duration::from_secs(2);
    let short = authority.sign_until("short", &[], soon);
    let open = async |pair: &Pair| connect(server.address(), &client(&authority, Some(pair), &[])).await.unwrap();
    let (mut of_alice, mut of_bob, mut of_short) = (open(&alice).await, open(&bob).await, open(&short).await);
    for stream in [&mut of_alice, &mut of_bob, &mut of_short] {
        assert_eq!(asked_again(stream).await, 200);
    }
    refused_at_last(&mut of_short).await;
    assert!(SystemTime::now() >= soon, "before its end");
    files.write("ca.crl", authority.revoke(&[&alice], later()));
    refused_at_last(&mut of_alice).await;
    assert_eq!(asked_again(&mut of_bob).await, 200, "another one was revoked");
    files.write("ca.crl", "no list");
    assert_eq!(asked_again(&mut of_bob).await, 200, "the list before holds for a while");
    files.write("ca.crl", authority.revoke(&[], later()));
    let stream = connect(server.address(), &client(&authority, Some(&bob), &["h2"])).await.unwrap();
    let (streams, connection) = within("the preface", h2::client::handshake(stream)).await.unwrap();
    tokio::spawn(connection);
    let mut streams: h2::client::SendRequest<Bytes> = within("streams", streams.ready()).await.unwrap();
    let mut over_http2 = async || {
        let request = http::Request::get(format!("https://localhost{WIDGETS}")).body(()).unwrap();
        within("an answer", streams.send_request(request, true).unwrap().0).await.unwrap().status().as_u16()
    };
    assert_eq!(over_http2().await, 200);
    files.write("ca.crt", other.pem());
    refused_at_last(&mut of_bob).await;
    assert_eq!(over_http2().await, 401, "each stream looks again");
}

#[tokio::test]
async fn revoked_certificates_do_not_connect() {
    let (authority, files) = (Authority::new("ca"), Files::new());
    let (certificate, key) = install(&files, &authority.sign("server", &[]));
    let ca = files.write("ca.crt", authority.pem());
    let [alice, bob] = ["alice", "bob"].map(|name| authority.sign(name, &[]));
    let crl = files.write("ca.crl", authority.revoke(&[&alice], later()));
    let (_ground, server) = served(|api| api, Tls::new(certificate, key).client_ca(ca).client_crl(crl)).await;
    let code = async |pair: &Pair| get(server.address(), &client(&authority, Some(pair), &[]), WIDGETS, "").await;
    assert!(code(&alice).await.is_err() && code(&bob).await.unwrap().0 == 200);
    files.write("ca.crl", authority.revoke(&[&bob], later()));
    assert!(code(&bob).await.is_err() && code(&alice).await.unwrap().0 == 200, "the next handshake has the new list");
    files.write("ca.crl", authority.revoke(&[], SystemTime::now() - Duration::from_secs(1)));
    assert!(code(&alice).await.is_err(), "a list that has ended may lack somebody");
    files.write("ca.crl", Authority::new("other").revoke(&[], later()));
    assert!(code(&alice).await.is_err(), "a list of another authority");
    files.write("ca.crl", authority.revoke(&[], later()));
    assert_eq!(code(&alice).await.unwrap().0, 200);
}

#[tokio::test]
async fn encrypted_key_needs_its_passphrase() {
    let (authority, files) = (Authority::new("ca"), Files::new());
    let pair = authority.sign("server", &[]);
    let (certificate, _) = install(&files, &pair);
    let plain = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap();
    let parameters = Parameters::generate_pbkdf2_sha256_aes256cbc(1000, b"some salt", [7; 16]).unwrap();
    let encrypted = PrivateKeyInfoRef::try_from(plain.secret_der()).unwrap();
    let encrypted = encrypted.encrypt_with_params(parameters, "open sesame").unwrap();
    let encrypted = encrypted.to_pem("ENCRYPTED PRIVATE KEY", LineEnding::LF).unwrap();
    let key = files.write("encrypted.key", encrypted.as_bytes());
    let passphrase = files.write("passphrase", "open sesame\n");
    let tls = Tls::new(&certificate, &key).key_passphrase_file(&passphrase);
    let (ground, server) = served(|api| api, tls.clone()).await;
    assert_eq!(get(server.address(), &client(&authority, None, &[]), WIDGETS, "").await.unwrap().0, 200);
    let start = async |tls| Server::builder(ground.api.clone()).address("127.0.0.1:0").tls(tls).start().await.err();
    files.write("passphrase", "open says me\n");
    for (tls, says) in [
        (tls, "the passphrase does not decrypt the private key"),
        (Tls::new(&certificate, &key), "no file of its passphrase is given"),
        (Tls::new(&certificate, &key).key_passphrase_file(files.path("missing")), "missing"),
    ] {
        let error = start(tls).await.unwrap_or_else(|| panic!("it starts although {says}"));
        assert!(error.message().contains(says) && !error.message().contains("open say"), "{error}");
    }
    let key = files.write("plain.key", &pair.key);
    assert!(
        start(Tls::new(&certificate, key).key_passphrase_file(&passphrase)).await.is_none(),
        "a plain key needs none"
    );
}

#[tokio::test]
async fn handshakes_have_a_time() {
    let (authority, files) = (Authority::new("ca"), Files::new());
    let (certificate, key) = install(&files, &authority.sign("server", &[]));
    let mut limits = Limits::default();
    limits.handshake_timeout = Duration::from_millis(150);
    let (ground, server) = served(move |api| api.limits(limits), Tls::new(certificate, key)).await;
    let refused =
        async |reason| metric(ground.address, &format!("watchcore_http_refused_total{{reason=\"{reason}\"}}")).await;
    let mut silent = TcpStream::connect(server.address()).await.unwrap();
    let mut said = Vec::new();
    let _ = within("the end", silent.read_to_end(&mut said)).await;
    assert!(said.is_empty());
    assert_eq!(refused("handshake_timeout").await, 1.0);
    let mut plain = TcpStream::connect(server.address()).await.unwrap();
    plain.write_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let _ = within("the end", plain.read_to_end(&mut said)).await;
    assert!(!said.windows(3).any(|word| word == b"200"));
    eventually("it is counted", || async { (refused("handshake").await == 1.0).then_some(()) }).await;
}

#[tokio::test]
async fn wrong_files_are_errors() {
    let (authority, files) = (Authority::new("ca"), Files::new());
    let (one, other) = (authority.sign("one", &[]), authority.sign("other", &[]));
    let (certificate, key) = install(&files, &one);
    let foreign = files.write("other.key", &other.key);
    let empty = files.write("empty", "");
    let missing = files.path("missing");
    let ground = Ground::start().await;
    for (tls, says) in [
        (Tls::new(&missing, &key), "missing"),
        (Tls::new(&certificate, &missing), "missing"),
        (Tls::new(&empty, &key), "no certificate in it"),
        (Tls::new(&certificate, &empty), "no private key"),
        (Tls::new(&key, &certificate), "server.key"),
        (Tls::new(&certificate, &foreign), "are no pair"),
        (Tls::new(&certificate, &key).client_ca(&empty), "no certificate in it"),
        (
            Tls::new(&certificate, &key).client_ca(&certificate).client_crl(&empty),
            "no revocation list (X509 CRL) in it",
        ),
        (Tls::new(&certificate, &key).client_crl(&empty), "revocations without the authorities"),
    ] {
        let started = Server::builder(ground.api.clone()).address("127.0.0.1:0").tls(tls).start().await;
        let error = started.err().unwrap_or_else(|| panic!("it starts although {says}"));
        assert!(error.message().contains(says) && error.message().contains("PEM"), "{says}: {}", error.message());
    }
}

/// A key without line breaks, as it may come out of an environment variable, is one malformed line: the error must not
/// quote it.
#[tokio::test]
async fn errors_show_nothing_of_a_key() {
    let (authority, files) = (Authority::new("ca"), Files::new());
    let (certificate, key) = install(&files, &authority.sign("server", &[]));
    let ground = Ground::start().await;
    let text = std::fs::read_to_string(&key).unwrap();
    let secret = text.lines().nth(1).expect("a line of the key").to_owned();
    let lines: Vec<&str> = text.lines().collect();
    for broken in [lines.join(" "), lines.concat(), lines[..2].concat(), lines[..2].join("\n"), text.replace("M", "*")]
    {
        let broken = files.write("broken.key", broken);
        for tls in
            [Tls::new(&certificate, &broken), Tls::new(&broken, &key), Tls::new(&certificate, &key).client_ca(&broken)]
        {
            let error = Server::builder(ground.api.clone()).address("127.0.0.1:0").tls(tls).start().await.err();
            let message = error.expect("it does not start").message().to_owned();
            assert!(message.contains("broken.key"), "{message}");
            for at in 0..secret.len() - 8 {
                let part = &secret[at..at + 8];
                let numbers = format!("{:?}", part.as_bytes());
                assert!(!message.contains(part) && !message.contains(numbers.trim_matches(['[', ']'])), "{message}");
            }
        }
    }
}

/// The scheme belongs to a page's origin: a page of the same host without encryption, which others on the network can
/// forge, must not use its reader's certificate.
#[tokio::test]
async fn pages_of_another_scheme_are_refused() {
    let (authority, files) = (Authority::new("ca"), Files::new());
    let (certificate, key) = install(&files, &authority.sign("server", &[]));
    let (_ground, server) = served(|api| api.origin("http://ops.example"), Tls::new(certificate, key)).await;
    let client = client(&authority, None, &[]);
    for (origin, code) in [
        ("https://localhost", 200),
        ("http://localhost", 403),
        ("http://ops.example", 200),
        ("https://ops.example", 403),
    ] {
        let header = format!("Origin: {origin}\r\n");
        assert_eq!(get(server.address(), &client, WIDGETS, &header).await.unwrap().0, code, "{origin}");
    }
}
