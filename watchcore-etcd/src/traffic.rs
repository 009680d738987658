//! Counts the bytes received on a connection: a long message that is still arriving is no silence.

use http::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use std::future::Future;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tower_service::Service;

/// The number of bytes received on all connections of a channel. Nothing depends on its order with other memory, so
/// all accesses are Relaxed.
#[derive(Clone, Default)]
pub(crate) struct Received(Arc<AtomicU64>);

impl Received {
    pub(crate) fn bytes(&self) -> u64 {
        self.0.load(Relaxed)
    }

    /// Runs `read` and counts the bytes it received.
    pub(crate) fn count(
        &self,
        buffer: &mut ReadBuf<'_>,
        read: impl FnOnce(&mut ReadBuf<'_>) -> Poll<io::Result<()>>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let result = read(buffer);
        self.0.fetch_add((buffer.filled().len() - before) as u64, Relaxed);
        result
    }
}

/// Opens connections without TLS.
#[derive(Clone)]
pub(crate) struct PlainConnector {
    tcp: HttpConnector,
    received: Received,
}

impl PlainConnector {
    pub(crate) fn new(tcp: HttpConnector, received: Received) -> PlainConnector {
        PlainConnector { tcp, received }
    }
}

impl Service<Uri> for PlainConnector {
    type Response = TokioIo<PlainConnection<TcpStream>>;
    type Error = <HttpConnector as Service<Uri>>::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.tcp.poll_ready(cx)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let (connecting, received) = (self.tcp.call(uri), self.received.clone());
        Box::pin(async move { Ok(TokioIo::new(PlainConnection { stream: connecting.await?.into_inner(), received })) })
    }
}

/// Opens connections to a Unix socket, whatever the URL says.
#[derive(Clone)]
pub(crate) struct UnixConnector {
    socket: Arc<Path>,
    received: Received,
}

impl UnixConnector {
    pub(crate) fn new(socket: &str, received: Received) -> UnixConnector {
        UnixConnector { socket: PathBuf::from(socket).into(), received }
    }
}

impl Service<Uri> for UnixConnector {
    type Response = TokioIo<PlainConnection<UnixStream>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let (socket, received) = (self.socket.clone(), self.received.clone());
        Box::pin(
            async move { Ok(TokioIo::new(PlainConnection { stream: UnixStream::connect(socket).await?, received })) },
        )
    }
}

pub(crate) struct PlainConnection<S> {
    stream: S,
    received: Received,
}

impl<S: AsyncRead + Unpin> AsyncRead for PlainConnection<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let PlainConnection { stream, received } = &mut *self;
        received.count(buffer, |buffer| Pin::new(stream).poll_read(cx, buffer))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for PlainConnection<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
