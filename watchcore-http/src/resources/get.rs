//! A get of one object.

use crate::catalog::{Served, not_ready};
use crate::list::{EncodedObject, ListBytes, ListClient, json_response, respond};
use crate::object::{Form, Object};
use crate::request::{GetStart, Params};
use crate::status::Refusal;
use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http_body::{Frame as BodyFrame, SizeHint};
use std::array;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::time::Instant;
use watchcore::{DEFAULT_WAIT, Read, ReadOptions};

/// Answers with the object of a name, at the newest revision or at least at the requested one.
///
/// # Errors
/// 404 if the object does not exist or the value is not an object; 504 if the revision was not reached in time; 503
/// while the cache is not ready.
pub(crate) async fn get(
    served: &Served,
    namespace: Option<&str>,
    name: &str,
    params: &Params,
    form: Form,
    client: ListClient,
) -> Result<Response, Refusal> {
    let (resource, cache) = (&served.resource, &served.cache);
    let deadline = Instant::now() + DEFAULT_WAIT;
    if !cache.is_ready() {
        return Err(not_ready(cache));
    }
    let read = match params.get_start()? {
        GetStart::Consistent => Read::AtLeast(cache.consistent_revision_async(DEFAULT_WAIT).await?),
        GetStart::Any => Read::Any,
        GetStart::AtLeast(revision) => Read::AtLeast(revision),
    };
    let options = ReadOptions::new(read).timeout(deadline.saturating_duration_since(Instant::now()));
    let found = cache.get_with_async(resource.key(namespace, name), &options).await?;
    let object = found.kv.as_ref().and_then(|kv| Some((kv.mod_revision(), served.object_or_report(kv)?)));
    let Some((revision, object)) = object else {
        return Err(Refusal::no_such_object(&resource.group, &resource.plural, name));
    };
    let mut out = Vec::new();
    if form == Form::Json
        && !params.pretty
        && let Some(kv) = &found.kv
        && let Some(rest) = Object::slice(kv, &object, revision, &mut out)
    {
        return Ok(json_response(Body::new(Slices::new([Bytes::from(out), rest, Bytes::from_static(b"\n")]))));
    }
    out.reserve(object.value.len() + 128);
    served.table.write_as(&object, form, revision, &mut out);
    out.push(b'\n');
    if params.pretty {
        // Indents may make it far larger, so it is sent in pieces like a list.
        let client = ListClient { gzip: false, ..client };
        return Ok(respond(ListBytes::new(EncodedObject(out), true), client).await);
    }
    Ok(json_response(out))
}

/// A body of several byte slices that need not be copied together.
struct Slices {
    pieces: array::IntoIter<Bytes, 3>,
}

impl Slices {
    fn new(pieces: [Bytes; 3]) -> Slices {
        Slices { pieces: pieces.into_iter() }
    }
}

impl http_body::Body for Slices {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<BodyFrame<Bytes>, Infallible>>> {
        Poll::Ready(self.pieces.next().map(|piece| Ok(BodyFrame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.pieces.as_slice().is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.pieces.as_slice().iter().map(|piece| piece.len() as u64).sum())
    }
}
