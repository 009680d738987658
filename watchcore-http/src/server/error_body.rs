//! Adds a Status body to errors that hyper answers by itself.
//!
//! A head that hyper cannot parse, or that is too large, never reaches the service: hyper writes an empty answer and
//! closes, and has no hook to change that. So the socket below hyper inspects the writes: an answer of hyper's own is
//! one write of a head with only `connection: close`, `content-length: 0` and the date, and with status 400, 414 or
//! 431. The service's own answers have a content type. Such a head is replaced by one with a Status body.
//!
//! HTTP/2 offers no such place: h2 resets a stream that it refuses, or answers it with an empty 431.

use crate::status::Refusal;
use bytes::{Buf as _, Bytes};
use std::io;
use std::io::IoSlice;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Longer than the head of any answer of hyper's own.
const LONGEST: usize = 256;

/// An HTTP/1.1 socket below hyper.
pub(super) struct ErrorBodySocket<IO> {
    io: IO,
    /// The rest of a Status that was reported to hyper as written.
    unwritten: Bytes,
}

impl<IO> ErrorBodySocket<IO> {
    pub(super) fn new(io: IO) -> ErrorBodySocket<IO> {
        ErrorBodySocket { io, unwritten: Bytes::new() }
    }

    pub(super) fn into_inner(self) -> IO {
        self.io
    }
}

/// Returns the answer that replaces one of hyper's own, or `None` if these bytes are something else.
fn status_answer(written: &[u8]) -> Option<Bytes> {
    if written.len() > LONGEST {
        return None;
    }
    let head = std::str::from_utf8(written).ok()?.strip_suffix("\r\n\r\n")?;
    let mut lines = head.split("\r\n");
    let status = lines.next()?;
    let refusal = match status.strip_prefix("HTTP/1.")?.split(' ').nth(1)? {
        "400" => Refusal::bad_request("the request is malformed: it is no HTTP/1.1"),
        "414" => Refusal::new(414, "RequestURITooLong", "the URL is longer than this server takes"),
        "431" => {
            let message = "the headers have more bytes, or are more, than this server takes";
            Refusal::new(431, "RequestHeaderFieldsTooLarge", message)
        }
        _ => return None,
    };
    let (mut is_empty, mut closes, mut date) = (false, false, None);
    for line in lines {
        match line.split_once(": ")? {
            ("content-length", "0") => is_empty = true,
            ("connection", "close") => closes = true,
            ("date", text) => date = Some(text),
            _ => return None,
        }
    }
    let (true, true, Some(date)) = (is_empty, closes, date) else { return None };
    let body = refusal.to_json();
    let length = body.len();
    Some(Bytes::from(format!(
        "{status}\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {length}\r\ncache-control: no-cache, private\r\nx-content-type-options: nosniff\r\ndate: {date}\r\n\r\n{body}"
    )))
}

impl<IO: AsyncWrite + Unpin> ErrorBodySocket<IO> {
    /// Writes the rest of a Status.
    fn poll_unwritten(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.unwritten.is_empty() {
            let written = ready!(Pin::new(&mut self.io).poll_write(context, &self.unwritten))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.unwritten.advance(written);
        }
        Poll::Ready(Ok(()))
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for ErrorBodySocket<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(context, buffer)
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for ErrorBodySocket<IO> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_unwritten(context))?;
        let Some(answer) = status_answer(bytes) else { return Pin::new(&mut self.io).poll_write(context, bytes) };
        // hyper is told that all bytes are written. The rest of the answer goes out with the next write, flush or
        // shutdown.
        self.unwritten = answer;
        if let Poll::Ready(Err(error)) = self.poll_unwritten(context) {
            return Poll::Ready(Err(error));
        }
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut full = slices.iter().filter(|slice| !slice.is_empty());
        if let (Some(one), None) = (full.next(), full.next()) {
            return self.poll_write(context, one);
        }
        ready!(self.poll_unwritten(context))?;
        Pin::new(&mut self.io).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_unwritten(context))?;
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_unwritten(context))?;
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_the_service_are_left_alone() {
        const OWN: &str = "HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\ndate: today\r\n\r\n";
        let said = status_answer(OWN.as_bytes()).expect("one of hyper's own");
        assert!(said.starts_with(b"HTTP/1.1 400 Bad Request\r\n") && said.ends_with(b"\"code\":400}"));
        for other in [
            OWN.replace("400", "200"),
            OWN.replace("400", "404"),
            OWN.replace("connection: close\r\n", ""),
            OWN.replace("content-length: 0", "content-length: 1"),
            OWN.replace("date", "content-type: text/plain\r\ndate"),
            OWN.replace("\r\n\r\n", "\r\n"),
            OWN.replace("\r\n\r\n", "\r\n\r\nx"),
            format!("{OWN}{OWN}"),
            OWN.replace("today", &"x".repeat(LONGEST)),
        ] {
            assert_eq!(status_answer(other.as_bytes()), None, "{other:?}");
        }
    }
}
