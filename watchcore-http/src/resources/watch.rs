//! The watch of a resource: from what was asked for to a stream.

use super::{WAIT, consistent};
use crate::api::{ApiState, Limits};
use crate::catalog::Served;
use crate::frame::{Form, ResourceFraming};
use crate::request::{Params, Selection, StateWait, WatchFrom};
use crate::status::Refusal;
use crate::watch::{PIECE_BYTES, WatchStream};
use http::request::Parts;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use watchcore::{Cache, Code, OnLag, Start, State};

/// What is watched.
pub(crate) struct Watched<'r> {
    pub(crate) served: &'r Arc<Served>,
    pub(crate) namespace: Option<&'r str>,
    pub(crate) name: Option<&'r str>,
    pub(crate) form: Form,
    /// The old form of the path, which never marks the end of the initial state.
    pub(crate) old_path: bool,
    /// Who watches, for people: the name of the subscription has it.
    pub(crate) watcher: Option<String>,
    /// The request, which is logged when the watch ends.
    pub(crate) request: &'r Parts,
}

/// Opens a watch: everything that can be refused is refused here, before the response begins, but for a revision that
/// has left the window, which is told as the first event.
pub(crate) async fn open(state: &ApiState, watched: Watched<'_>, params: &Params) -> Result<WatchStream, Refusal> {
    let Watched { served, namespace, name, form, old_path, watcher, request } = watched;
    let start = if old_path { params.old_watch_start()? } else { params.watch_start()? };
    let selection = Selection::of(served, namespace, name, params)?;
    let cache = &served.cache;
    if !cache.is_ready() {
        return Err(not_ready(cache));
    }
    let place = state.open.open(request)?;
    let begin = start_of(cache, &start.from).await?;
    let after = match begin {
        Start::After(revision) => revision,
        _ => cache.position().revision,
    };
    let framing = ResourceFraming::new(served.clone(), form, params.bookmarks, start.end_mark, after);
    let deadline = deadline(params.timeout.filter(|timeout| !timeout.is_zero()), &state.limits);
    let label = match watcher {
        Some(watcher) => format!("{} {watcher}", served.resource.plural),
        None => served.resource.plural.clone(),
    };
    let subscription = cache
        .subscribe(begin)
        .filter(selection.filter)
        .name(label)
        .on_lag(OnLag::Stop)
        // A client that goes on from the revision of its last event has to have all of it. So a watch ends between
        // revisions, and that is behind a batch.
        .whole_revisions(true)
        .initial_batch_bytes(PIECE_BYTES)
        .bookmarks(params.bookmarks)
        .bookmark_interval(state.bookmark_interval)
        .open();
    match subscription {
        Ok(subscription) => Ok(WatchStream::new(subscription, framing, Some(deadline), place)),
        Err(error) if error.code() == Code::Compacted => Ok(WatchStream::refused(error, framing, place)),
        Err(error) => Err(Refusal::from(&error)),
    }
}

/// Where the subscription begins, after what is waited for: all of it together as long as a list waits.
async fn start_of(cache: &Cache, from: &WatchFrom) -> Result<Start, Refusal> {
    let deadline = Instant::now() + WAIT;
    Ok(match from {
        WatchFrom::State(wait) => {
            let least = match wait {
                StateWait::None => None,
                StateWait::Consistent => Some(consistent(cache, deadline).await?),
                StateWait::AtLeast(revision) => Some(*revision),
            };
            if let Some(revision) = least {
                await_revision(cache, revision, deadline).await?;
            }
            Start::State
        }
        WatchFrom::After(revision) => Start::After(*revision),
        WatchFrom::AfterConsistent => Start::After(consistent(cache, deadline).await?),
        WatchFrom::Now => Start::Now,
    })
}

/// Waits until the cache has reached a revision.
///
/// # Errors
/// 504 where it has not by then.
async fn await_revision(cache: &Cache, revision: u64, deadline: Instant) -> Result<(), Refusal> {
    match cache.wait_until_async(revision, deadline.saturating_duration_since(Instant::now())).await {
        Ok(_) => Ok(()),
        Err(error) if matches!(error.code(), Code::Timeout | Code::FutureRevision) => {
            Err(Refusal::too_large_revision(revision, cache.position().revision))
        }
        Err(error) => Err(Refusal::from(&error)),
    }
}

/// 503: there is nothing to serve yet; or there is no more, whoever tries again, and nobody is told to.
pub(crate) fn not_ready(cache: &Cache) -> Refusal {
    let (status, prefix) = (cache.status(), String::from_utf8_lossy(cache.prefix()));
    if status.state == State::Closed {
        let message = format!("the cache of {prefix:?} is closed: it serves again when the server is restarted");
        return Refusal::of_code(Code::Closed, message);
    }
    let why = cache.source_error().map_or(String::new(), |error| format!(": {}", error.message()));
    Refusal::of_code(Code::NotReady, format!("the cache of {prefix:?} is {}{why}; try again", status.state.name()))
}

/// How long a watch lasts: as long as it says, and at most `limits.watch`. Those that began together do not end together:
/// one that says more lasts nine tenths of that or a little longer, at random, and one that says nothing half or longer.
pub(crate) fn deadline(asked: Option<Duration>, limits: &Limits) -> Duration {
    let least = match asked {
        Some(asked) if asked <= limits.watch.mul_f64(0.9) => return asked,
        Some(_) => 0.9,
        None => 0.5,
    };
    limits.watch.mul_f64(least + (1.0 - least) * fastrand::f64())
}
