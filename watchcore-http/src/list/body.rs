//! A list on its way to a client: pieces are produced when the transport has room, and indented and compressed if
//! requested.
//!
//! A small list is sent whole, with its length. Of a larger one, the first piece is made before the response head is
//! sent; the rest is a [`ListBody`]. A list may hold a snapshot, which keeps the log from its revision on. So a list
//! that takes longer than `limits.list` is cut off, even if its client keeps reading: a separate task drops the rest,
//! and the body ends with an error, so that the response does not look complete.

use super::client::ListClient;
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

/// Lists larger than this are compressed if the client accepts it. As in Kubernetes, this is decided after producing as
/// much.
const COMPRESSED: usize = 128 << 10;

/// Maximum size of a piece that has several items.
pub(crate) const PIECE: usize = 64 << 10;

/// Produces the document of a list, a piece at a time.
pub(crate) trait ListPieces: Send + 'static {
    /// Returns the next piece, which may be empty before the end.
    fn next(&mut self) -> Vec<u8>;

    /// Whether everything was produced.
    fn is_over(&self) -> bool;

    /// Returns how many items were produced.
    fn made(&self) -> usize;
}

/// The bytes of a list, independent of a transport.
pub(crate) struct ListBytes {
    pieces: Box<dyn ListPieces>,
    indented: Option<Indented>,
    gzip: Option<Gzip>,
}

/// An indented document.
#[derive(Default)]
struct Indented {
    indent: Indent,
    /// Produced but not indented yet: the indents may make it far longer.
    plain: Bytes,
}

/// An object that was encoded completely, as the only piece.
pub(crate) struct EncodedObject(pub(crate) Vec<u8>);

impl ListPieces for EncodedObject {
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
    /// Produced but not compressed yet: one object may be far larger than a piece.
    plain: Bytes,
}

impl ListBytes {
    pub(crate) fn new(pieces: impl ListPieces, pretty: bool) -> ListBytes {
        ListBytes { pieces: Box::new(pieces), indented: pretty.then(Indented::default), gzip: None }
    }

    /// Returns the next uncompressed bytes, which may be empty before the end.
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

    /// Whether [`plain`](ListBytes::plain) has nothing left to give.
    fn is_made(&self) -> bool {
        self.pieces.is_over() && self.indented.as_ref().is_none_or(|indented| indented.plain.is_empty())
    }

    fn is_over(&self) -> bool {
        self.is_made() && self.gzip.is_none()
    }

    /// Compresses from now on, beginning with `plain`.
    fn compress(&mut self, plain: Bytes) {
        // The fastest level, as in Kubernetes: a list is compressed for one client only.
        self.gzip = Some(Gzip { encoder: GzEncoder::new(Vec::new(), Compression::fast()), plain });
    }

    /// Returns the next bytes, which may be empty before the end.
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

/// Returns the response with a list: whole if it is small, otherwise streamed.
pub(crate) async fn respond(mut bytes: ListBytes, client: ListClient) -> Response {
    let gzip = client.gzip;
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
        // Many keys may have been visited for few bytes, so yield.
        tokio::task::yield_now().await;
    }
    let compressed = gzip && first.len() > COMPRESSED;
    let first = Bytes::from(first);
    let body = if compressed {
        bytes.compress(first);
        Body::new(ListBody::new(Bytes::new(), bytes, client))
    } else if bytes.is_over() {
        Body::from(first)
    } else {
        Body::new(ListBody::new(first, bytes, client))
    };
    let mut response = json_response(body);
    if compressed {
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        headers.append(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    }
    response
}

/// A response of JSON.
pub(crate) fn json_response(body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// The body of a list that is not sent whole.
struct ListBody {
    /// Produced before the response head was sent.
    first: Bytes,
    rest: Arc<Mutex<ListRest>>,
    /// Set after a small piece, for which many keys may have been visited: the next poll yields before producing more.
    rests: bool,
    /// The task that enforces the time limit.
    watcher: AbortHandle,
}

/// The rest of a list.
enum ListRest {
    Bytes(Box<ListBytes>),
    Nothing,
    /// The time limit was exceeded.
    Cut,
}

impl ListBody {
    fn new(first: Bytes, bytes: ListBytes, client: ListClient) -> ListBody {
        let rest = Arc::new(Mutex::new(ListRest::Bytes(Box::new(bytes))));
        let watcher = tokio::spawn(cut_off(Arc::downgrade(&rest), client)).abort_handle();
        ListBody { first, rest, rests: false, watcher }
    }
}

fn lock(rest: &Mutex<ListRest>) -> MutexGuard<'_, ListRest> {
    // A panic while a piece is made drops the body, so the rest is not polled again.
    rest.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Cuts a list off when its time limit is exceeded.
async fn cut_off(rest: Weak<Mutex<ListRest>>, client: ListClient) {
    let ListClient { reader, time_limit, .. } = client;
    tokio::time::sleep(time_limit).await;
    let Some(rest) = rest.upgrade() else { return };
    let mut left = lock(&rest);
    if let ListRest::Bytes(bytes) = std::mem::replace(&mut *left, ListRest::Cut) {
        drop(left);
        tracing::info!(target: "watchcore_http", who = %reader.client, longest = ?time_limit, made = bytes.pieces.made(), "a list is cut off: its client takes longer for it than limits.list");
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
            let why = "the list was cut off: its client took longer for it than limits.list";
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
        // A transport with room for more polls again at once.
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
                // Yields before the next keys are visited.
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
