//! A list on its way to a client: pieces are made when the transport has room, formatted and compressed if asked for.
//!
//! A list that is small goes out whole, with its length. Of a larger one the first piece is made before the response head
//! goes out; the rest is a [`ListBody`]. It holds a snapshot, which keeps the log from its revision on. So a list that takes
//! longer than `limits.list` is cut off, however its client takes it: a task beside the body drops what is left of it, and
//! the body ends with an error, which is no clean end of the response.

use super::Taker;
use super::pieces::PIECE;
use crate::json::Indent;
use axum::body::Body;
use axum::response::Response;
use bytes::{Buf as _, Bytes};
use flate2::{Compression, write::GzEncoder};
use http::{HeaderValue, header};
use http_body::Frame as BodyFrame;
use std::io::{self, Write};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use tokio::task::AbortHandle;

/// Larger lists are compressed, where the client takes that. As in Kubernetes, it is decided when so much was made.
const COMPRESSED: usize = 128 << 10;

/// What makes the document of a list, a piece at a time.
pub(crate) trait ListPieces: Send + 'static {
    /// The next piece. It may be empty though it is not over.
    fn next(&mut self) -> Vec<u8>;

    /// Whether everything was made.
    fn is_over(&self) -> bool;

    /// How many items were made.
    fn made(&self) -> usize;
}

/// The bytes of a list, as far as they go without a transport.
pub(crate) struct ListBytes {
    pieces: Box<dyn ListPieces>,
    indented: Option<Indented>,
    gzip: Option<Gzip>,
}

/// A document with indents.
#[derive(Default)]
struct Indented {
    indent: Indent,
    /// Made and not formatted yet: an indent may be far longer than what it stands before.
    plain: Bytes,
}

/// What was made whole, and is a piece: one object.
pub(crate) struct MadeObject(pub(crate) Vec<u8>);

impl ListPieces for MadeObject {
    fn next(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.0)
    }

    fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    fn made(&self) -> usize {
        usize::from(self.is_over())
    }
}

struct Gzip {
    encoder: GzEncoder<Vec<u8>>,
    /// Made and not compressed yet: one object may be far larger than a piece.
    plain: Bytes,
}

impl ListBytes {
    pub(crate) fn new(pieces: impl ListPieces, pretty: bool) -> ListBytes {
        ListBytes { pieces: Box::new(pieces), indented: pretty.then(Indented::default), gzip: None }
    }

    /// The next bytes as they are without compression; they may be none though it is not over.
    fn plain(&mut self) -> Vec<u8> {
        let Some(Indented { indent, plain }) = &mut self.indented else { return self.pieces.next() };
        if plain.is_empty() {
            *plain = Bytes::from(self.pieces.next());
        }
        let mut out = Vec::with_capacity(PIECE.min(plain.len() * 2));
        let taken = indent.write(plain, PIECE, &mut out);
        plain.advance(taken);
        out
    }

    /// Whether there is nothing more of what [`plain`](ListBytes::plain) gives.
    fn is_made(&self) -> bool {
        self.pieces.is_over() && self.indented.as_ref().is_none_or(|indented| indented.plain.is_empty())
    }

    fn is_over(&self) -> bool {
        self.is_made() && self.gzip.is_none()
    }

    /// From now on what comes is compressed, this first of all.
    fn compress(&mut self, plain: Bytes) {
        // Level 1, as Kubernetes has it: lists are made for one client, in its time.
        self.gzip = Some(Gzip { encoder: GzEncoder::new(Vec::new(), Compression::fast()), plain });
    }

    /// The next bytes; they may be none though it is not over.
    fn next(&mut self) -> io::Result<Bytes> {
        let Some(mut gzip) = self.gzip.take() else { return Ok(Bytes::from(self.plain())) };
        if gzip.plain.is_empty() {
            if self.is_made() {
                return gzip.encoder.finish().map(Bytes::from);
            }
            gzip.plain = Bytes::from(self.plain());
        }
        let now = gzip.plain.split_to(gzip.plain.len().min(PIECE));
        gzip.encoder.write_all(&now)?;
        let out = std::mem::take(gzip.encoder.get_mut());
        self.gzip = Some(gzip);
        Ok(Bytes::from(out))
    }
}

/// The response with a list: whole where it is small, else streamed.
pub(crate) async fn respond(mut bytes: ListBytes, taker: Taker) -> Response {
    let gzip = taker.gzip;
    let mut first = Vec::new();
    loop {
        let piece = bytes.plain();
        match first.is_empty() {
            true => first = piece,
            false => first.extend_from_slice(&piece),
        }
        if bytes.is_over() || !gzip || first.len() > COMPRESSED {
            break;
        }
        // Many keys may have been visited for little: others may go on.
        tokio::task::yield_now().await;
    }
    let compressed = gzip && first.len() > COMPRESSED;
    let first = Bytes::from(first);
    let body = if compressed {
        bytes.compress(first);
        Body::new(ListBody::new(Bytes::new(), bytes, taker))
    } else if bytes.is_over() {
        Body::from(first)
    } else {
        Body::new(ListBody::new(first, bytes, taker))
    };
    let mut response = super::super::json_response(body);
    if compressed {
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        headers.append(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    }
    response
}

/// The body of a list that does not go out whole.
struct ListBody {
    /// Made before the response head went out.
    first: Bytes,
    rest: Arc<Mutex<ListRest>>,
    /// Many keys may have been visited for what was made last: others have their turn before more is made.
    rests: bool,
    /// The task that watches the time.
    watcher: AbortHandle,
}

/// What is left of a list.
enum ListRest {
    Bytes(Box<ListBytes>),
    Nothing,
    /// Its time was over.
    Cut,
}

impl ListBody {
    fn new(first: Bytes, bytes: ListBytes, taker: Taker) -> ListBody {
        let rest = Arc::new(Mutex::new(ListRest::Bytes(Box::new(bytes))));
        let watcher = tokio::spawn(cut_off(Arc::downgrade(&rest), taker)).abort_handle();
        ListBody { first, rest, rests: false, watcher }
    }
}

fn lock(rest: &Mutex<ListRest>) -> MutexGuard<'_, ListRest> {
    // A panic in the middle of a piece drops the body; what is left is not asked for again.
    rest.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Cuts a list off once its time is over.
async fn cut_off(rest: Weak<Mutex<ListRest>>, taker: Taker) {
    let Taker { reader, longest, .. } = taker;
    tokio::time::sleep(longest).await;
    let Some(rest) = rest.upgrade() else { return };
    let mut left = lock(&rest);
    if let ListRest::Bytes(bytes) = std::mem::replace(&mut *left, ListRest::Cut) {
        drop(left);
        tracing::info!(target: "watchcore_http", who = %reader.who, ?longest, made = bytes.pieces.made(), "a list is cut off: its client takes too long for it");
    } else {
        *left = ListRest::Nothing;
    }
}

impl http_body::Body for ListBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<BodyFrame<Bytes>, io::Error>>> {
        let ListBody { first, rest, rests, .. } = self.get_mut();
        let mut rest = lock(rest);
        if matches!(*rest, ListRest::Cut) {
            let why = "the list was cut off: its client took too long for it";
            return Poll::Ready(Some(Err(io::Error::new(io::ErrorKind::TimedOut, why))));
        }
        if !first.is_empty() {
            return Poll::Ready(Some(Ok(BodyFrame::data(std::mem::take(first)))));
        }
        if std::mem::take(rests) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let ListRest::Bytes(bytes) = &mut *rest else { return Poll::Ready(None) };
        let made = bytes.next();
        // A transport that has room for more than was made asks again at once.
        let is_little = made.as_ref().is_ok_and(|made| (1..PIECE / 2).contains(&made.len()));
        let is_over = bytes.is_over() || made.is_err();
        if is_over {
            *rest = ListRest::Nothing;
        }
        *rests = is_little && !is_over;
        match made {
            Ok(made) if !made.is_empty() => Poll::Ready(Some(Ok(BodyFrame::data(made)))),
            Err(error) => Poll::Ready(Some(Err(error))),
            Ok(_) if is_over => Poll::Ready(None),
            Ok(_) => {
                // Others may go on before the next keys are visited.
                context.waker().wake_by_ref();
                Poll::Pending
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_empty() && matches!(*lock(&self.rest), ListRest::Nothing)
    }
}

impl Drop for ListBody {
    fn drop(&mut self) {
        self.watcher.abort();
    }
}
