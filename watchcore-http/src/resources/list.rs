//! Lists of a resource.
//!
//! A list without a limit at the newest revision walks a snapshot. One with a limit, with a continue token, or of an
//! exact revision is a page of the core. Both are a [`ListSource`], which cannot fail: errors occur before the response
//! head is sent. The bytes are produced when the transport asks for them: [`pieces`], [`body`]. Lists of the `/v1/keys`
//! API share these parts, with another format of the items.

mod body;
mod pieces;
mod source;

use super::watch::not_ready;
use super::{WAIT, consistent, refused};
use crate::api::ApiState;
use crate::catalog::Served;
use crate::clients::{BlockingPool, ClientId, is_large};
use crate::frame::Form;
use crate::request::{ListStart, Params, Selection, accepts_gzip};
use crate::status::Refusal;
use axum::response::Response;
#[cfg(test)]
pub(crate) use body::ListPieces;
pub(crate) use body::{EncodedObject, ListBytes, respond};
use http::request::Parts;
pub(crate) use pieces::{ListItems, PIECE, Pieces};
pub(crate) use source::ListSource;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use watchcore::{Cache, Code, Error, Page, Range, Read, ReadOptions};

/// The client of a list, and how it takes the list.
pub(crate) struct ListClient {
    /// Whether the client accepts gzip.
    pub(crate) gzip: bool,
    /// The client, for blocking reads.
    pub(crate) reader: Reader,
    /// How long the whole list may take.
    pub(crate) time_limit: Duration,
}

/// A client, and the pool in which its reads of large caches run.
pub(crate) struct Reader {
    pub(crate) client: ClientId,
    pub(crate) pool: Arc<BlockingPool>,
}

impl ListClient {
    /// Returns the sender of a request.
    pub(crate) fn of(request: &Parts, state: &ApiState) -> ListClient {
        let reader = Reader { client: ClientId::of(request), pool: state.list_pool.clone() };
        ListClient { gzip: accepts_gzip(&request.headers), reader, time_limit: state.limits.list }
    }
}

/// Answers a list.
///
/// # Errors
/// 400 if a parameter is malformed, 422 if parameters exclude each other; 410 if the state has left the window; 504 if
/// it was not reached in time; 503 while the cache is not ready.
pub(crate) async fn list(
    served: &Arc<Served>,
    namespace: Option<&str>,
    params: &Params,
    form: Form,
    client: ListClient,
) -> Result<Response, Refusal> {
    let start = params.list_start()?;
    let selection = Selection::of(served, namespace, None, params)?;
    let source = source(served, selection, start, params.limit, &client.reader).await?;
    // Indents usually double or triple the size, so smaller pieces are made, which can be formatted at once.
    let size = if params.pretty { PIECE / 4 } else { PIECE };
    let pieces = Pieces::new(served.clone(), form, source, size);
    Ok(respond(ListBytes::new(pieces, params.pretty), client).await)
}

/// Returns the state from which a list is answered, waiting for it if necessary.
async fn source(
    served: &Served,
    selection: Selection,
    start: ListStart,
    limit: usize,
    reader: &Reader,
) -> Result<ListSource, Refusal> {
    let cache = &served.cache;
    let deadline = Instant::now() + WAIT;
    // A cache that is not filled yet is not waited for: the client tries again.
    if !cache.is_ready() {
        return Err(not_ready(cache));
    }
    let (read, token) = match start {
        ListStart::Consistent => (Read::AtLeast(consistent(cache, deadline).await?), None),
        ListStart::Any => (Read::Any, None),
        ListStart::AtLeast(revision) => (Read::AtLeast(revision), None),
        ListStart::Exact(revision) => (Read::Exact(revision), None),
        ListStart::Continue(token) => (Read::Any, Some(token)),
    };
    let is_newest = token.is_none() && !matches!(read, Read::Exact(_));
    if is_newest && limit == 0 {
        if let Read::AtLeast(revision) = read {
            let left = deadline.saturating_duration_since(Instant::now());
            cache.wait_until_async(revision, left).await.map_err(refused)?;
        }
        let snapshot = cache.snapshot().map_err(refused)?;
        return ListSource::walk(snapshot, selection).map_err(refused);
    }
    let has_token = token.is_some();
    let mut options = ReadOptions::new(read).filter(selection.filter).limit(limit);
    if let Some(token) = token {
        options = options.continue_from(token);
    }
    let page = page_of(cache, selection.range, options, deadline, reader).await;
    page.map(ListSource::page).map_err(|error| if has_token { token_refused(error) } else { refused(error) })
}

/// Reads a page of the core, waiting for its revision until `deadline`. A page is read at once, and the keys that
/// remain after it are counted one by one, so with a large cache this happens on a blocking thread.
pub(crate) async fn page_of(
    cache: &Cache,
    range: Range,
    options: ReadOptions,
    deadline: Instant,
    reader: &Reader,
) -> watchcore::Result<Page> {
    let left = || deadline.saturating_duration_since(Instant::now());
    if !is_large(cache) {
        return cache.list_with_async(&range, &options.timeout(left())).await;
    }
    // The read must not wait on the blocking thread, which other lists need. If its revision, or its token's, lies in
    // the future, the wait happens here.
    let options = options.timeout(Duration::ZERO);
    let blocking_read = async || {
        let (cache, range, options) = (cache.clone(), range.clone(), options.clone());
        reader.pool.run(&reader.client, deadline, move || cache.list_with(&range, &options)).await?
    };
    match blocking_read().await {
        Err(error) if error.code() == Code::FutureRevision => {
            cache.wait_until_async(error.asked(), left()).await?;
            blocking_read().await
        }
        answer => answer,
    }
}

/// Translates the error of a continue token.
fn token_refused(error: Error) -> Refusal {
    match (error.code(), error.continue_token()) {
        (Code::InvalidArgument, _) => Refusal::bad_token(&error),
        (Code::Compacted, Some(token)) => Refusal::expired(
            "The provided continue parameter is too old to display a consistent list result. You can start a new list \
             without the continue parameter, or use the continue token in this response to retrieve the remainder of \
             the results. Continuing with the provided token results in an inconsistent list - objects that were \
             created, modified, or deleted between the time the first chunk was returned and now may show up in the \
             list.",
        )
        .with_continue(token),
        _ => refused(error),
    }
}

#[cfg(test)]
mod tests;
