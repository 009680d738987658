//! Idle watches over each transport of the server: plain HTTP/1.1, TLS, HTTP/2, WebSocket.

use crate::servers::Certificate;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// Watches of one connection of HTTP/2.
const STREAMS: usize = 1000;

#[derive(Clone, Copy)]
pub(crate) enum Transport {
    Plain,
    Tls,
    Http2,
    WebSocket,
}

/// Watches that are open until this is dropped.
#[derive(Default)]
pub(crate) struct Idle {
    sockets: Vec<Box<dyn Send>>,
    tasks: tokio::task::JoinSet<()>,
}

impl Transport {
    pub(crate) const ALL: [Transport; 4] = [Transport::Plain, Transport::Tls, Transport::Http2, Transport::WebSocket];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Transport::Plain => "HTTP/1.1",
            Transport::Tls => "HTTP/1.1 with TLS 1.3",
            Transport::Http2 => "HTTP/2, 1,000 a connection",
            Transport::WebSocket => "WebSocket",
        }
    }

    /// Opens so many, one after the other.
    pub(crate) async fn open(
        self,
        address: SocketAddr,
        path: &str,
        count: usize,
        certificate: Option<&Certificate>,
    ) -> Idle {
        let mut idle = Idle::default();
        match self {
            Transport::Http2 => {
                for from in (0..count).step_by(STREAMS) {
                    idle.streams(address, path, STREAMS.min(count - from)).await;
                }
            }
            Transport::Tls => {
                let connector = connector(certificate.expect("a server with a certificate"));
                for _ in 0..count {
                    let socket = TcpStream::connect(address).await.expect("a server");
                    let name = "localhost".try_into().expect("a name");
                    let socket = connector.connect(name, socket).await.expect("a handshake");
                    idle.sockets.push(Box::new(watch(socket, path, "", "200").await));
                }
            }
            Transport::Plain | Transport::WebSocket => {
                let upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
                let (headers, code) = if matches!(self, Transport::Plain) { ("", "200") } else { (upgrade, "101") };
                for _ in 0..count {
                    let socket = TcpStream::connect(address).await.expect("a server");
                    idle.sockets.push(Box::new(watch(socket, path, headers, code).await));
                }
            }
        }
        idle
    }
}

impl Idle {
    async fn streams(&mut self, address: SocketAddr, path: &str, count: usize) {
        let socket = TcpStream::connect(address).await.expect("a server");
        let (mut client, connection) = h2::client::handshake(socket).await.expect("HTTP/2");
        self.tasks.spawn(async move { drop(connection.await) });
        for _ in 0..count {
            client = client.ready().await.expect("room for a stream");
            let request = http::Request::get(format!("http://{address}{path}")).body(()).expect("a request");
            let (answer, _) = client.send_request(request, true).expect("a stream");
            let answer = answer.await.expect("an answer");
            assert_eq!(answer.status(), 200);
            self.sockets.push(Box::new(answer.into_body()));
        }
        self.sockets.push(Box::new(client));
    }
}

/// Who trusts this certificate and no other.
fn connector(certificate: &Certificate) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(certificate.der.clone()).expect("a certificate");
    TlsConnector::from(Arc::new(ClientConfig::builder().with_root_certificates(roots).with_no_client_auth()))
}

/// Asks for a watch, and reads the head of the answer.
async fn watch<S: AsyncRead + AsyncWrite + Unpin>(mut socket: S, path: &str, headers: &str, code: &str) -> S {
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n");
    socket.write_all(request.as_bytes()).await.expect("a server that reads");
    let mut text = Vec::new();
    while memchr::memmem::find(&text, b"\r\n\r\n").is_none() {
        let read = socket.read_buf(&mut text).await.expect("a head");
        assert!(read > 0, "closed: {}", String::from_utf8_lossy(&text));
    }
    assert_eq!(text.get(9..12), Some(code.as_bytes()), "{}", String::from_utf8_lossy(&text));
    socket
}
