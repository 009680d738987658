//! The socket of a connection: bytes that were read ahead, and what it tells the clock.

use super::clock::Connection;
use crate::clients::Activity;
use bytes::Bytes;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A socket, bytes of it that were read already, and its place among the connections: that goes with the socket, also
/// where a WebSocket has taken it.
pub(super) struct Socket<IO> {
    io: IO,
    ahead: Bytes,
    connection: Connection,
    /// Written bytes are progress, as on HTTP/1.1. On HTTP/2 the answers count the bytes that are taken of them, because a
    /// client can ask for frames between them without reading an answer.
    counts: bool,
}

impl<IO> Socket<IO> {
    /// `ahead` is read before what comes.
    pub(super) fn new(io: IO, ahead: Bytes, connection: Connection, counts: bool) -> Socket<IO> {
        Socket { io, ahead, connection, counts }
    }

    /// Bytes of the next request that were read meanwhile: they come first.
    pub(super) fn put_back(&mut self, bytes: Bytes) {
        debug_assert!(self.ahead.is_empty(), "who reads on has read what was ahead");
        self.ahead = bytes;
    }

    fn activity(&self) -> &Arc<Activity> {
        self.connection.activity()
    }

    fn wrote(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        self.activity().blocked(written.is_pending());
        if let Poll::Ready(Ok(bytes)) = &written
            && self.counts
        {
            self.activity().takes(*bytes);
        }
        written
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for Socket<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        if !self.ahead.is_empty() {
            let taken = self.ahead.len().min(buffer.remaining());
            let taken = self.ahead.split_to(taken);
            buffer.put_slice(&taken);
        } else {
            ready!(Pin::new(&mut self.io).poll_read(context, buffer))?;
        }
        if buffer.filled().len() > before {
            self.activity().heard();
        }
        Poll::Ready(Ok(()))
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for Socket<IO> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(context, bytes);
        self.wrote(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write_vectored(context, slices);
        self.wrote(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.io).poll_flush(context);
        self.activity().blocked(flushed.is_pending());
        ready!(flushed)?;
        // hyper flushes the socket when it has nothing left itself.
        self.activity().flushed();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Limits;
    use crate::clients::{ClientPlaces, Who};
    use crate::server::clock::Clock;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn bytes_ahead_come_first() {
        let (mut client, server) = tokio::io::duplex(64);
        let clock = Clock::new(Arc::new(Limits::default()), Arc::default());
        let place = ClientPlaces::new(1).take(&Who::Somebody).ok();
        let connection = clock.enter("127.0.0.1:1".parse().unwrap(), place, false);
        let activity = connection.activity().clone();
        let mut socket = Socket::new(server, Bytes::from_static(b"GET "), connection, true);
        client.write_all(b"/ HTTP/1.1").await.unwrap();
        assert!(activity.is_fresh());
        let mut two = [0; 2];
        socket.read_exact(&mut two).await.unwrap();
        assert!(!activity.is_fresh());
        let mut rest = [0; 12];
        socket.read_exact(&mut rest).await.unwrap();
        assert_eq!((&two, &rest), (b"GE", b"T / HTTP/1.1"));
        assert_eq!(clock.count(), 1);
        drop(socket);
        assert_eq!(clock.count(), 0, "the place goes with the socket");
    }
}
