//! The direct path: a watch on a socket that nobody else uses meanwhile.
//!
//! A connection that streams a watch needs none of what an HTTP server keeps for requests: no buffers, no state of a
//! response. So the connection is taken apart, and what is left is this: the head is written, then frames as they are,
//! then the last chunk. In between the socket is read only to notice that the client goes, or sends its next request.

use crate::frame::Frame;
use crate::watch::{Progress, WatchStream};
use bytes::{Buf, Bytes, BytesMut};
use http::header;
use http::response::Parts;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, SystemTime};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// Bytes that a client may send ahead while it watches: its next request, if it pipelines.
const MOST_AHEAD: usize = 8 << 10;

/// Pieces of one call of the system.
const MOST_SLICES: usize = 64;

/// A watch on its way.
pub(crate) struct Direct<I> {
    io: I,
    stream: WatchStream,
    /// What is being written: first `own` (the head, or the last chunk), then frames from `at` on, of the first of which
    /// `written` bytes are out.
    own: Bytes,
    frames: Vec<Frame>,
    at: usize,
    written: usize,
    phase: DirectPhase,
    ahead: BytesMut,
    /// Runs while the deadline of the watch has passed and the client takes nothing.
    stalled: Option<Pin<Box<Sleep>>>,
    stall: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum DirectPhase {
    Streaming,
    /// The last frames are being written.
    Ending,
    /// The last chunk is.
    Ended,
}

/// The head of a chunked response of HTTP/1.1.
pub(crate) fn head_bytes(head: &Parts) -> Bytes {
    let mut bytes = Vec::with_capacity(512);
    bytes.extend_from_slice(format!("HTTP/1.1 {}\r\n", head.status).as_bytes());
    for (name, value) in &head.headers {
        bytes.extend_from_slice(name.as_str().as_bytes());
        bytes.extend_from_slice(b": ");
        bytes.extend_from_slice(value.as_bytes());
        bytes.extend_from_slice(b"\r\n");
    }
    if !head.headers.contains_key(header::DATE) {
        bytes.extend_from_slice(format!("date: {}\r\n", httpdate::fmt_http_date(SystemTime::now())).as_bytes());
    }
    bytes.extend_from_slice(b"transfer-encoding: chunked\r\n\r\n");
    Bytes::from(bytes)
}

impl<I: AsyncRead + AsyncWrite + Unpin> Direct<I> {
    /// A watch for a socket that hyper has given back. `ahead` is what hyper had read of the next request.
    pub(crate) fn new(io: I, head: Bytes, stream: WatchStream, ahead: Bytes, stall: Duration) -> Direct<I> {
        Direct {
            io,
            stream,
            own: head,
            frames: Vec::new(),
            at: 0,
            written: 0,
            phase: DirectPhase::Streaming,
            // A copy, mostly of nothing: what hyper gives back, however short, is a part of its buffer and would hold that.
            ahead: BytesMut::from(&ahead[..]),
            stalled: None,
            stall,
        }
    }

    /// The socket, and what came ahead of the next request.
    pub(crate) fn into_parts(self) -> (I, Bytes) {
        (self.io, self.ahead.freeze())
    }

    /// Writes the watch, until it ends or the client goes.
    ///
    /// # Errors
    /// Those of the socket; `UnexpectedEof` where the client goes, `TimedOut` where it takes nothing for `stall` after
    /// the deadline of the watch, `InvalidData` where it sends more than it may. The connection is of no more use.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.read_ahead(context)?;
        loop {
            if self.poll_write(context)?.is_pending() {
                return self.poll_stalled(context);
            }
            self.frames.clear();
            (self.at, self.written, self.stalled) = (0, 0, None);
            match self.phase {
                DirectPhase::Streaming => match self.stream.poll_frames(context, &mut self.frames) {
                    Poll::Ready(Progress::More) => {}
                    Poll::Ready(Progress::Ended) => self.phase = DirectPhase::Ending,
                    Poll::Pending => {
                        // An idle watch has no buffer.
                        (self.frames, self.own) = (Vec::new(), Bytes::new());
                        return Poll::Pending;
                    }
                },
                DirectPhase::Ending => {
                    self.own = Bytes::from_static(b"0\r\n\r\n");
                    self.phase = DirectPhase::Ended;
                }
                DirectPhase::Ended => return Poll::Ready(Ok(())),
            }
        }
    }

    /// Takes what the client sends, up to a limit, and notices that it goes.
    fn read_ahead(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let mut room = [0; 512];
        loop {
            let mut read = ReadBuf::new(&mut room);
            match Pin::new(&mut self.io).poll_read(context, &mut read)? {
                Poll::Ready(()) if read.filled().is_empty() => return Err(io::ErrorKind::UnexpectedEof.into()),
                Poll::Ready(()) if self.ahead.len() + read.filled().len() > MOST_AHEAD => {
                    return Err(io::ErrorKind::InvalidData.into());
                }
                Poll::Ready(()) => self.ahead.extend_from_slice(read.filled()),
                Poll::Pending => return Ok(()),
            }
        }
    }

    /// Writes what there is; pending until the socket has all of it. TLS takes bytes before its socket does: what it has
    /// taken is not written yet, and a wait for that is one for the client.
    fn poll_write(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.own.is_empty() {
            let written = ready!(Pin::new(&mut self.io).poll_write(context, &self.own))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.own.advance(written);
            self.stalled = None;
        }
        while self.at < self.frames.len() {
            let mut slices = [IoSlice::new(&[]); MOST_SLICES];
            let mut count = 0;
            for (slice, frame) in slices.iter_mut().zip(&self.frames[self.at..]) {
                let from = if count == 0 { self.written } else { 0 };
                *slice = IoSlice::new(&frame.chunk()[from..]);
                count += 1;
            }
            let mut written = ready!(Pin::new(&mut self.io).poll_write_vectored(context, &slices[..count]))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.stalled = None;
            while let Some(frame) = self.frames.get(self.at)
                && written > 0
            {
                let left = frame.chunk().len() - self.written;
                if written < left {
                    self.written += written;
                    break;
                }
                written -= left;
                (self.at, self.written) = (self.at + 1, 0);
            }
        }
        Pin::new(&mut self.io).poll_flush(context)
    }

    /// Where the client takes nothing: its watch is not polled, so its deadline is looked at here. It has a while more
    /// then, for it may have been about to read.
    fn poll_stalled(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.stalled.is_none() {
            ready!(self.stream.poll_overdue(context));
            self.stalled = Some(Box::pin(tokio::time::sleep(self.stall)));
        }
        match &mut self.stalled {
            Some(stalled) => stalled.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into())),
            None => Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests;
