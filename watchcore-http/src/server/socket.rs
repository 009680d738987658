//! The socket of a connection: prepends bytes that were read ahead, and reports to the clock.

use super::clock::Connection;
use crate::clients::Activity;
use bytes::Bytes;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A socket, bytes of it that were read already, and its registration with the clock, which lasts as long as the
/// socket, even after a WebSocket has taken it over.
pub(super) struct Socket<IO> {
    io: IO,
    ahead: Bytes,
    connection: Connection,
    /// Whether written bytes count as progress, as on HTTP/1.1. On HTTP/2 only the bytes of answers count, because a
    /// client can cause other frames to be written without reading an answer.
    counts: bool,
}

impl<IO> Socket<IO> {
    /// Creates a socket from which `ahead` is read first.
    pub(super) fn new(io: IO, ahead: Bytes, connection: Connection, counts: bool) -> Socket<IO> {
        Socket { io, ahead, connection, counts }
    }

    /// Puts back bytes of the next request, which are read next.
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
            self.activity().took(*bytes);
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
            self.activity().received();
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
        // hyper flushes the socket when its own buffer is empty.
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
    use crate::clients::{ClientId, ClientPermits};
    use crate::limits::Limits;
    use crate::server::clock::Clock;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn bytes_ahead_come_first() {
        let (mut client, server) = tokio::io::duplex(64);
        let clock = Clock::new(Arc::new(Limits::default()), Arc::default());
        let permit = ClientPermits::new(1).acquire(&ClientId::Unknown).ok();
        let connection = clock.enter("127.0.0.1:1".parse().unwrap(), permit, false);
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
