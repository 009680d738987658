//! TLS connections for the etcd client, including those that it reopens by itself.

use super::credentials::Credentials;
use super::refusal::{RecordedRefusal, Refusal, no_http2};
use crate::traffic::Received;
use http::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use std::future::Future;
use std::io::{self, IoSlice};
use std::net::TcpStream as StdStream;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tower_service::Service;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Opens connections with the certificates as they are at that moment.
#[derive(Clone)]
pub(crate) struct TlsConnector {
    tcp: HttpConnector,
    credentials: Arc<Credentials>,
    refusal: RecordedRefusal,
    received: Received,
}

impl TlsConnector {
    /// `refusal` receives the reason when TLS refuses a connection; `received` counts bytes.
    pub(crate) fn new(
        tcp: HttpConnector,
        credentials: Arc<Credentials>,
        refusal: RecordedRefusal,
        received: Received,
    ) -> TlsConnector {
        TlsConnector { tcp, credentials, refusal, received }
    }
}

impl Service<Uri> for TlsConnector {
    type Response = TokioIo<TlsConnection>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.tcp.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let (credentials, recorded) = (self.credentials.clone(), self.refusal.clone());
        let record = move |refusal: Refusal| {
            recorded.record(refusal.clone());
            refusal
        };
        let (refusal, received) = (self.refusal.clone(), self.received.clone());
        let name = credentials.server_name(&uri);
        // `poll_ready` was called on this instance, so the future uses it, and a clone replaces it.
        let another = self.tcp.clone();
        let mut tcp = std::mem::replace(&mut self.tcp, another);
        Box::pin(async move {
            let name = name.map_err(|text| record(Refusal::files(text)))?;
            // Before connecting, so that unusable files are reported whether or not the server is reachable.
            let config = credentials.current().await.map_err(&record)?;
            let tcp = tcp.call(uri).await?.into_inner();
            match tokio_rustls::TlsConnector::from(config).connect(name, tcp).await {
                Ok(stream) if stream.get_ref().1.alpn_protocol().is_none() => Err(record(no_http2()).into()),
                Ok(stream) => Ok(TokioIo::new(TlsConnection { stream, credentials, refusal, received })),
                Err(error) => match Refusal::of(&error, credentials.tls()) {
                    Some(refusal) => Err(record(refusal).into()),
                    None => Err(format!(
                        "the server ended the TLS handshake ({error}); if it has no TLS on this port, write http://"
                    )
                    .into()),
                },
            }
        })
    }
}

/// A connection whose handshake has ended on this side.
///
/// In TLS 1.3 the server checks the client's certificate after that: its refusal is the first thing to be read, while
/// the first call is in progress. HTTP/2 reports it as "connection reset" or similar, so the reason is recorded here.
pub(crate) struct TlsConnection {
    stream: TlsStream<TcpStream>,
    credentials: Arc<Credentials>,
    refusal: RecordedRefusal,
    received: Received,
}

impl TlsConnection {
    fn notice(&self, error: &io::Error) {
        if let Some(refusal) = Refusal::of(error, self.credentials.tls()) {
            self.refusal.record(refusal);
        }
    }

    /// After a failed write, the server's last alert may be waiting to be read. It is read directly from the socket,
    /// because the runtime may not know yet that the socket is readable.
    fn look_for_alert(&mut self) {
        let (tcp, session) = self.stream.get_mut();
        // A duplicate descriptor of the same non-blocking socket. The connection has failed, so no other reader loses
        // data.
        let Ok(mut socket) = tcp.as_fd().try_clone_to_owned().map(StdStream::from) else { return };
        while session.read_tls(&mut socket).is_ok_and(|read| read > 0) {
            if let Err(error) = session.process_new_packets() {
                self.notice(&io::Error::new(io::ErrorKind::InvalidData, error));
                return;
            }
        }
    }

    fn after_write<T>(&mut self, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if let Poll::Ready(Err(error)) = &written {
            self.notice(error);
            self.look_for_alert();
        }
        written
    }
}

impl AsyncRead for TlsConnection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let TlsConnection { stream, received, .. } = &mut *self;
        let read = received.count(buffer, |buffer| Pin::new(stream).poll_read(cx, buffer));
        if let Poll::Ready(Err(error)) = &read {
            self.notice(error);
        }
        read
    }
}

impl AsyncWrite for TlsConnection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.after_write(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.after_write(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.after_write(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Tls;
    use super::*;
    use std::io::Write;
    use std::net::TcpListener;
    use std::task::Waker;
    use std::time::{Duration, Instant};
    use tokio_rustls::rustls::pki_types::pem::PemObject;
    use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
    use tokio_rustls::rustls::server::WebPkiClientVerifier;
    use tokio_rustls::rustls::{RootCertStore, ServerConfig, ServerConnection};

    const BOUND: Duration = Duration::from_secs(10);

    /// A server that requires a client certificate, accepts one connection, refuses it, and closes.
    fn strict(certificate: &str, key: &str) -> (u16, std::thread::JoinHandle<()>) {
        let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
        let mut roots = RootCertStore::empty();
        roots.add(chain[0].clone()).unwrap();
        let verifier = WebPkiClientVerifier::builder(roots.into()).build().unwrap();
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
        let mut config =
            ServerConfig::builder().with_client_cert_verifier(verifier).with_single_cert(chain, key).unwrap();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let serving = std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            let mut session = ServerConnection::new(Arc::new(config)).unwrap();
            let ended = loop {
                if let Err(error) = session.complete_io(&mut socket) {
                    break error;
                }
            };
            assert!(ended.to_string().contains("certificate"), "{ended}");
            while session.wants_write() {
                session.write_tls(&mut socket).unwrap();
            }
            socket.flush().unwrap();
        });
        (port, serving)
    }

    /// The alert is in the socket, but the runtime has not polled it: the write fails before the runtime reads the
    /// alert.
    #[tokio::test]
    async fn an_alert_behind_a_failed_write_is_found() {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let (pem, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        let (port, serving) = strict(&pem, &key);
        let credentials = Arc::new(Credentials::new(Tls::new().ca_pem(pem)).unwrap());
        let config = credentials.current().await.unwrap();
        let tcp = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let stream = tokio_rustls::TlsConnector::from(config).connect(name, tcp).await.unwrap();
        let refusal = RecordedRefusal::default();
        let mut connection =
            TlsConnection { stream, credentials, refusal: refusal.clone(), received: Received::default() };
        // The runtime does not run from here on.
        serving.join().unwrap();
        let context = &mut Context::from_waker(Waker::noop());
        let begin = Instant::now();
        while !matches!(Pin::new(&mut connection).poll_write(context, b"PRI"), Poll::Ready(Err(_))) {
            assert!(begin.elapsed() < BOUND, "a closed connection takes all");
        }
        let refusal = refusal.take().expect("the alert");
        assert!(refusal.text.contains("asks for a client certificate"), "{refusal}");
    }
}
