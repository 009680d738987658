//! Lists of a resource: which state one is answered from, and its form.
//!
//! A list of everything at the newest revision walks a snapshot. One with a limit, one that goes on behind a page, and one
//! of an exact revision is a page of the core. Either is a [`ListSource`], which cannot fail any more; what can fail did so
//! before the response head went out. The bytes are made when the transport asks for them: [`pieces`], [`body`]. The list of
//! the plain face is of the same parts, with items of its own.

mod body;
mod pieces;
mod source;

use super::watch::not_ready;
use super::{WAIT, consistent, refused};
use crate::api::ApiState;
use crate::catalog::Served;
use crate::clients::{Turns, Who, is_large};
use crate::frame::Form;
use crate::request::{ListStart, Params, Selection, accepts_gzip};
use crate::status::Refusal;
use axum::response::Response;
#[cfg(test)]
pub(crate) use body::ListPieces;
pub(crate) use body::{ListBytes, MadeObject, respond};
use http::request::Parts;
pub(crate) use pieces::{ListItems, PIECE, Pieces};
pub(crate) use source::ListSource;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use watchcore::{Cache, Code, Error, Page, Range, Read, ReadOptions};

/// Who takes a list, and how.
pub(crate) struct Taker {
    /// It takes gzip.
    pub(crate) gzip: bool,
    /// In whose turns the list is made.
    pub(crate) reader: Reader,
    /// How long it may take for all.
    pub(crate) longest: Duration,
}

/// A client that reads large caches, in its turns.
pub(crate) struct Reader {
    pub(crate) who: Who,
    pub(crate) turns: Arc<Turns>,
}

impl Taker {
    /// The sender of a request.
    pub(crate) fn of(request: &Parts, state: &ApiState) -> Taker {
        let reader = Reader { who: Who::of(request), turns: state.lists.clone() };
        Taker { gzip: accepts_gzip(&request.headers), reader, longest: state.limits.list }
    }
}

/// The list of what a request selects.
///
/// # Errors
/// 400 where a parameter is malformed, 422 where some must not stand together; 410 where the state has left the window;
/// 504 where it did not come in time; 503 while the cache is not ready.
pub(crate) async fn list(
    served: &Arc<Served>,
    namespace: Option<&str>,
    params: &Params,
    form: Form,
    taker: Taker,
) -> Result<Response, Refusal> {
    let start = params.list_start()?;
    let selection = Selection::of(served, namespace, None, params)?;
    let source = source(served, selection, start, params.limit, &taker.reader).await?;
    // An indent makes two or three bytes of one, as a rule: then what is made is formatted at once.
    let size = if params.pretty { PIECE / 4 } else { PIECE };
    let pieces = Pieces::new(served.clone(), form, source, size);
    Ok(respond(ListBytes::new(pieces, params.pretty), taker).await)
}

/// The state that a list is answered from, waited for as long as the core waits by itself.
async fn source(
    served: &Served,
    selection: Selection,
    start: ListStart,
    limit: usize,
    reader: &Reader,
) -> Result<ListSource, Refusal> {
    let cache = &served.cache;
    let deadline = Instant::now() + WAIT;
    // Before the first listing nothing is waited for: who asks comes again.
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

/// A page of the core. It is read in one go, and what remains behind it is counted key by key: where that takes long, it
/// is done on a thread of the runtime that may block. Its revision is waited for until `deadline`.
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
    // There it waits for nothing: other lists want that thread. A revision that is still to come, of the request or of its
    // token, is waited for here.
    let options = options.timeout(Duration::ZERO);
    let elsewhere = async || {
        let (cache, range, options) = (cache.clone(), range.clone(), options.clone());
        reader.turns.run(&reader.who, deadline, move || cache.list_with(&range, &options)).await?
    };
    match elsewhere().await {
        Err(error) if error.code() == Code::FutureRevision => {
            cache.wait_until_async(error.asked(), left()).await?;
            elsewhere().await
        }
        answer => answer,
    }
}

/// What is wrong with a continue token.
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
