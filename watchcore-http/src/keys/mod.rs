//! The `/v1/keys` API: the raw keys of a cache, for values that are not Kubernetes objects.
//!
//! `/v1/keys?prefix=P` is one document of key-values; with `watch=1` it is a stream of lines, in the command line's
//! format ([`crate::lines`]). The parameters name a prefix, and the prefix selects a cache. The request is then either
//! a list ([`list`]), or a subscription whose events [`watch`] frames as lines, or as server-sent events if `Accept`
//! names `text/event-stream`. WebSockets are served for resources only, for Kubernetes' clients; here they are refused.

mod list;
mod params;
mod watch;

use crate::access::watcher;
use crate::catalog::not_ready;
use crate::frame::Frames;
use crate::list::ListClient;
use crate::state::ApiState;
use crate::status::Refusal;
use crate::transport::{self, sse, websocket};
use crate::watch::{PIECE_BYTES, WatchStream};
use axum::response::Response;
use http::request::Parts;
use http::{HeaderMap, header};
use params::{KeysTask, KeysWatch, Query};
use std::sync::Arc;
use tokio::time::Instant;
use watch::LineFraming;
use watchcore::{Cache, DEFAULT_WAIT, Filter, Start};

/// The media type of JSON lines.
const LINES: &str = "application/x-ndjson";

/// The refusal of a WebSocket. A browser shows only its status code: a WebSocket fails on any answer but 101.
const NO_WEBSOCKET: &str = "/v1/keys is not served over a WebSocket: ask with watch=1 for lines of JSON, or with Accept: \
text/event-stream (a browser's EventSource) for server-sent events. Watches of resources are served over WebSockets";

/// Answers a request for keys.
///
/// # Errors
/// 400 if the request is malformed or asks for a WebSocket, 404 if the prefix lies in no cache, 410 if the revision has
/// left the window, 503 if the cache is not filled yet, 429 at the limit on watches, 504 if a revision is not reached
/// in time.
pub(crate) async fn answer(state: &ApiState, request: &Parts) -> Result<Response, Refusal> {
    if websocket::is_asked(request) {
        return Err(Refusal::bad_request(NO_WEBSOCKET));
    }
    let is_sse = accepts_sse(&request.headers);
    let last_event = if is_sse { last_event(&request.headers)? } else { None };
    let query = Query::of(request.uri.query());
    let prefix = query.prefix()?;
    let task = query.task(is_sse, last_event)?;
    let cache = cache_of(state, prefix)?;
    let selection = query.selection(cache, prefix)?;
    if !cache.is_ready() {
        return Err(not_ready(cache));
    }
    let watch = match task {
        KeysTask::List(list) => {
            return list::answer(cache, list, selection, ListClient::of(request, state)).await;
        }
        KeysTask::Watch(watch) => watch,
    };
    let stream = open(state, request, cache, selection.filter, is_sse, &watch).await?;
    Ok(if is_sse { sse::respond(stream) } else { transport::respond(stream, LINES) })
}

/// Whether the header Accept names server-sent events explicitly.
fn accepts_sse(headers: &HeaderMap) -> bool {
    let ranges = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    ranges.flat_map(|value| value.split(',')).any(|range| {
        let mut parts = range.split(';').map(str::trim);
        let named = parts.next().is_some_and(|name| name.eq_ignore_ascii_case("text/event-stream"));
        named && !parts.any(|part| matches!(part, "q=0" | "q=0.0" | "q=0.00" | "q=0.000"))
    })
}

/// Returns the id of the last event that a reconnecting client has received.
fn last_event(headers: &HeaderMap) -> Result<Option<&str>, Refusal> {
    let Some(value) = headers.get("last-event-id") else { return Ok(None) };
    value.to_str().map(Some).map_err(|_| Refusal::bad_request("Last-Event-ID is no revision: it is no text"))
}

/// Returns the cache that holds all keys with a prefix.
fn cache_of<'s>(state: &'s ApiState, prefix: &[u8]) -> Result<&'s Cache, Refusal> {
    state.catalog.cache_of(prefix).ok_or_else(|| {
        let served: Vec<_> =
            state.catalog.caches().iter().map(|cache| String::from_utf8_lossy(cache.prefix())).collect();
        let message = format!(
            "the prefix {:?} lies in no cache: those served are of {served:?}. Ask for one of them, or for keys below it",
            String::from_utf8_lossy(prefix)
        );
        Refusal::new(404, "NotFound", message)
    })
}

/// Opens a watch. Everything that can be refused is refused here, before the response begins.
async fn open(
    state: &ApiState,
    request: &Parts,
    cache: &Cache,
    filter: Filter,
    is_sse: bool,
    watch: &KeysWatch,
) -> Result<WatchStream, Refusal> {
    let permit = state.open.open(request)?;
    let name = watcher(request).map_or_else(|| "keys".to_owned(), |watcher| format!("keys {watcher}"));
    let refused = |error| Refusal::from(&error);
    let start = match watch.after {
        Some(after) => Start::After(after),
        None => {
            // The client may have seen a newer state at another server.
            list::wait_for_newest(cache, Instant::now() + DEFAULT_WAIT).await.map_err(refused)?;
            Start::State
        }
    };
    let subscription = cache
        .subscribe(start)
        .filter(filter)
        .name(name)
        // Clients resume from the revision of the last event, so a watch must end between revisions, at the end of a
        // batch. With server-sent events only the last event of a revision has an id, so it must be known when it is
        // framed.
        .whole_revisions(true)
        .initial_batch_bytes(PIECE_BYTES)
        .open()
        .map_err(refused)?;
    // Every cache of the catalog has a frame cache; without one, frames are not shared.
    let frames = state.catalog.lines(cache).cloned().unwrap_or_else(|| Arc::new(Frames::new(0)));
    let framing = LineFraming::new(frames, is_sse, watch.bookmarks, watch.after.unwrap_or(0));
    let deadline = state.limits.watch_duration(watch.timeout);
    Ok(WatchStream::new(subscription, framing, Some(deadline), permit).heartbeat(cache, state.bookmark_interval))
}

#[cfg(test)]
mod tests;
