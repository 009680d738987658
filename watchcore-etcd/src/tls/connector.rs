//! Connections over TLS, as the client of etcd asks for them: also where it connects again by itself.

use super::credentials::Credentials;
use super::refusal::{Refusal, no_http2};
use http::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;
use tower_service::Service;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Makes connections with the certificates as they are at that moment.
#[derive(Clone)]
pub(crate) struct TlsConnector {
    tcp: HttpConnector,
    credentials: Arc<Credentials>,
}

impl TlsConnector {
    pub(crate) fn new(tcp: HttpConnector, credentials: Arc<Credentials>) -> TlsConnector {
        TlsConnector { tcp, credentials }
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
        let credentials = self.credentials.clone();
        let name = server_name(&credentials, &uri);
        // `poll_ready` was asked of this one; a clone takes its place.
        let another = self.tcp.clone();
        let mut tcp = std::mem::replace(&mut self.tcp, another);
        Box::pin(async move {
            let name = name?;
            // First: what is wrong with files is told wherever the server is.
            let config = credentials.current().await.map_err(|refusal| noted(&credentials, refusal))?;
            let tcp = tcp.call(uri).await?.into_inner();
            match tokio_rustls::TlsConnector::from(config).connect(name, tcp).await {
                Ok(stream) if stream.get_ref().1.alpn_protocol().is_none() => {
                    Err(noted(&credentials, no_http2()).into())
                }
                Ok(stream) => Ok(TokioIo::new(TlsConnection { stream, credentials })),
                Err(error) => match Refusal::of(&error, credentials.tls()) {
                    Some(refusal) => Err(noted(&credentials, refusal).into()),
                    None => Err(format!(
                        "the server ended the TLS handshake ({error}); if it has no TLS on this port, write http://"
                    )
                    .into()),
                },
            }
        })
    }
}

fn noted(credentials: &Credentials, refusal: Refusal) -> Refusal {
    credentials.note(refusal.clone());
    refusal
}

/// The name that the certificate must be for.
fn server_name(credentials: &Credentials, uri: &Uri) -> Result<ServerName<'static>, Refusal> {
    let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    let name = credentials.tls().server_name.as_deref().unwrap_or(host);
    ServerName::try_from(name.to_owned()).map_err(|_| {
        let text = format!("{name:?} is neither a host's name nor an address: no certificate can be for it");
        noted(credentials, Refusal::files(text))
    })
}

/// A connection whose handshake is over on this side.
///
/// In TLS 1.3 the server looks at the client's certificate after that: its refusal is the first thing that is read, and
/// comes while the first call is under way. HTTP/2 makes "connection reset" or the like of it, so it is noted here.
pub(crate) struct TlsConnection {
    stream: TlsStream<TcpStream>,
    credentials: Arc<Credentials>,
}

impl TlsConnection {
    fn notice(&self, error: &io::Error) {
        if let Some(refusal) = Refusal::of(error, self.credentials.tls()) {
            self.credentials.note(refusal);
        }
    }

    /// A write failed: what the server said before it closed the connection may wait to be read.
    fn look_for_alert(&mut self, cx: &mut Context<'_>) {
        let mut buffer = [0; 256];
        let _ = Pin::new(&mut *self).poll_read(cx, &mut ReadBuf::new(&mut buffer));
    }

    fn after_write<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if let Poll::Ready(Err(error)) = &written {
            self.notice(error);
            self.look_for_alert(cx);
        }
        written
    }
}

impl AsyncRead for TlsConnection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if let Poll::Ready(Err(error)) = &read {
            self.notice(error);
        }
        read
    }
}

impl AsyncWrite for TlsConnection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.after_write(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.after_write(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.after_write(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
