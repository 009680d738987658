//! Opens the watch of a resource from its request.

use super::framing::ResourceFraming;
use crate::catalog::{Served, not_ready};
use crate::object::Form;
use crate::request::{Params, Selection, StateWait, WatchFrom};
use crate::state::ApiState;
use crate::status::Refusal;
use crate::watch::{OpenWatch, PIECE_BYTES, WatchStream};
use http::request::Parts;
use std::sync::Arc;
use tokio::time::Instant;
use watchcore::{Cache, Code, DEFAULT_WAIT, Error, OnLag, Start};

/// The target of a watch.
pub(crate) struct Watched<'r> {
    pub(crate) served: &'r Arc<Served>,
    pub(crate) namespace: Option<&'r str>,
    pub(crate) name: Option<&'r str>,
    pub(crate) form: Form,
    /// The path has the deprecated form, in which the end of the initial state is never marked.
    pub(crate) old_path: bool,
    /// Description of the client for people, which becomes part of the subscription's name.
    pub(crate) watcher: Option<String>,
    /// The request, which is logged when the watch ends.
    pub(crate) request: &'r Parts,
}

/// Opens a watch. Refusals are answered here, before the response begins, except for a revision that has left the
/// window or is not reached, which is sent as the first event.
pub(crate) async fn open(state: &ApiState, watched: Watched<'_>, params: &Params) -> Result<WatchStream, Refusal> {
    let Watched { served, namespace, name, form, old_path, watcher, request } = watched;
    let start = if old_path { params.old_watch_start()? } else { params.watch_start()? };
    let selection = Selection::of(served, namespace, name, params)?;
    let cache = &served.cache;
    if !cache.is_ready() {
        return Err(not_ready(cache));
    }
    let permit = state.open.open(request)?;
    let begin = start_of(cache, &start.from).await;
    let after = match begin {
        Ok(Start::After(revision) | Start::Within(revision)) => revision,
        _ => cache.position().revision,
    };
    let mut framing = ResourceFraming::new(served.clone(), form, params.bookmarks, start.end_mark, after);
    if matches!(begin, Ok(Start::Within(_))) {
        framing = framing.within_begin();
    }
    let begin = match begin {
        Ok(begin) => begin,
        Err(error) => return error_as_event(error, framing, permit),
    };
    let deadline = state.limits.watch_duration(params.timeout.filter(|timeout| !timeout.is_zero()));
    let label = match watcher {
        Some(watcher) => format!("{} {watcher}", served.resource.plural),
        None => served.resource.plural.clone(),
    };
    let subscription = cache
        .subscribe(begin)
        .filter(selection.filter)
        .name(label)
        .on_lag(OnLag::Stop)
        // Clients resume from the revision of the last event, so a watch must end between revisions, which is at the
        // end of a batch.
        .whole_revisions(true)
        .initial_batch_bytes(PIECE_BYTES)
        .open();
    match subscription {
        Ok(subscription) => {
            Ok(WatchStream::new(subscription, framing, Some(deadline), permit)
                .heartbeat(cache, state.bookmark_interval))
        }
        Err(error) => error_as_event(error, framing, permit),
    }
}

/// Sends errors of the start as the first event where Kubernetes does: its watch cache responds before it waits.
fn error_as_event(error: Error, framing: ResourceFraming, permit: OpenWatch) -> Result<WatchStream, Refusal> {
    match error.code() {
        Code::Compacted | Code::FutureRevision | Code::Timeout => Ok(WatchStream::refused(error, framing, permit)),
        _ => Err(Refusal::from(&error)),
    }
}

/// Waits as requested, within the time limit of a list, and returns the start of the subscription.
async fn start_of(cache: &Cache, from: &WatchFrom) -> watchcore::Result<Start> {
    let deadline = Instant::now() + DEFAULT_WAIT;
    let left = || deadline.saturating_duration_since(Instant::now());
    Ok(match from {
        WatchFrom::State(wait) => {
            let least = match wait {
                StateWait::None => None,
                StateWait::Consistent => Some(cache.consistent_revision_async(left()).await?),
                StateWait::AtLeast(revision) => Some(*revision),
            };
            if let Some(revision) = least {
                cache.wait_until_async(revision, left()).await?;
            }
            Start::State
        }
        // A client that was disconnected inside a revision may have only some of its objects, but names it as its last
        // one.
        WatchFrom::After(revision) => Start::Within(*revision),
        WatchFrom::AfterConsistent => Start::After(cache.consistent_revision_async(left()).await?),
        WatchFrom::Now => Start::Now,
    })
}
