//! The direct path: a watch written to its socket without hyper.
//!
//! A connection that streams a watch needs nothing that an HTTP server keeps for requests: no buffers, no response
//! state. So hyper is taken apart, and this type writes the head, then the frames unchanged, then the last chunk.
//! Meanwhile the socket is read only to notice that the client disconnects or sends its next request.

use crate::clients::{ProducedBytes, UnreadAnswer};
use crate::frame::Frame;
use crate::watch::{Progress, WatchStream};
use bytes::{Buf, Bytes, BytesMut};
use http::header;
use http::response::Parts;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::SystemTime;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// How many bytes a client may send during a watch: its next request, if it pipelines.
const MAX_AHEAD: usize = 8 << 10;

/// Maximum number of slices in one `writev`.
const MAX_SLICES: usize = 64;

/// A watch that is written to a socket.
pub(crate) struct Direct<I> {
    io: I,
    stream: Box<WatchStream>,
    /// The bytes being written: first `own` (the head, or the last chunk), then the frames from `at` on, of the first
    /// of which `written` bytes are already sent.
    own: Bytes,
    frames: Vec<Frame>,
    at: usize,
    written: usize,
    phase: DirectPhase,
    ahead: BytesMut,
    /// Counts the frames' bytes as unread while they are here.
    answered: Arc<UnreadAnswer>,
    made: Option<ProducedBytes>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum DirectPhase {
    Streaming,
    /// The last frames are being written.
    Ending,
    /// The last chunk is being written.
    Ended,
}

/// Encodes the head of a chunked HTTP/1.1 response.
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
    /// Creates the writer for a socket that hyper has returned. `ahead` is the part of the next request that hyper had
    /// read.
    pub(crate) fn new(
        io: I,
        head: Bytes,
        stream: Box<WatchStream>,
        ahead: Bytes,
        answered: Arc<UnreadAnswer>,
    ) -> Direct<I> {
        Direct {
            io,
            stream,
            own: head,
            frames: Vec::new(),
            at: 0,
            written: 0,
            phase: DirectPhase::Streaming,
            // Copied, and usually empty: hyper returns a slice of its buffer, which would stay allocated.
            ahead: BytesMut::from(&ahead[..]),
            answered,
            made: None,
        }
    }

    /// Returns the socket, and the part of the next request that was read.
    pub(crate) fn into_parts(self) -> (I, Bytes) {
        (self.io, self.ahead.freeze())
    }

    /// Writes the watch until it ends or the client disconnects.
    ///
    /// # Errors
    /// Errors of the socket; `UnexpectedEof` if the client disconnects, `InvalidData` if it sends too much. The
    /// connection must then be dropped.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.read_ahead(context)?;
        loop {
            ready!(self.poll_write(context))?;
            self.frames.clear();
            self.made = None;
            (self.at, self.written) = (0, 0);
            match self.phase {
                DirectPhase::Streaming => {
                    let Poll::Ready(progress) = self.stream.poll_frames(context, &mut self.frames) else {
                        // An idle watch keeps no buffer.
                        (self.frames, self.own) = (Vec::new(), Bytes::new());
                        return Poll::Pending;
                    };
                    let bytes = self.frames.iter().map(Frame::len).sum::<usize>();
                    self.made = Some(self.answered.produced(bytes));
                    if progress == Progress::Ended {
                        self.phase = DirectPhase::Ending;
                    }
                }
                DirectPhase::Ending => {
                    self.own = Bytes::from_static(b"0\r\n\r\n");
                    self.phase = DirectPhase::Ended;
                }
                DirectPhase::Ended => return Poll::Ready(Ok(())),
            }
        }
    }

    /// Reads what the client sends, up to a limit, and notices that it disconnects.
    fn read_ahead(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let mut room = [0; 512];
        loop {
            let mut read = ReadBuf::new(&mut room);
            match Pin::new(&mut self.io).poll_read(context, &mut read)? {
                Poll::Ready(()) if read.filled().is_empty() => return Err(io::ErrorKind::UnexpectedEof.into()),
                Poll::Ready(()) if self.ahead.len() + read.filled().len() > MAX_AHEAD => {
                    return Err(io::ErrorKind::InvalidData.into());
                }
                Poll::Ready(()) => self.ahead.extend_from_slice(read.filled()),
                Poll::Pending => return Ok(()),
            }
        }
    }

    /// Writes everything there is; pending until the socket itself has taken it: TLS accepts bytes before its socket
    /// does.
    fn poll_write(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.own.is_empty() {
            let written = ready!(Pin::new(&mut self.io).poll_write(context, &self.own))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.own.advance(written);
        }
        while self.at < self.frames.len() {
            let mut slices = [IoSlice::new(&[]); MAX_SLICES];
            let (mut count, mut skipped) = (0, self.written);
            for piece in self.frames[self.at..].iter().flat_map(Frame::chunks) {
                if skipped >= piece.len() {
                    skipped -= piece.len();
                    continue;
                }
                let Some(slice) = slices.get_mut(count) else { break };
                *slice = IoSlice::new(&piece[skipped..]);
                (count, skipped) = (count + 1, 0);
            }
            let mut written = ready!(Pin::new(&mut self.io).poll_write_vectored(context, &slices[..count]))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            while let Some(frame) = self.frames.get(self.at)
                && written > 0
            {
                let left = frame.len() - self.written;
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
}

#[cfg(test)]
mod tests;
