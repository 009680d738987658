//! Polls of the informer's watches.

#![forbid(unsafe_code)]

use crate::event::{Status, WatchEvent};
use crate::foreign::guard;
use crate::object::FromKeyValue;
use crate::objects::ObjectWatch;
use futures_core::Stream;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Polls a watch of the informer. The watch guards all foreign code except the predicates of its
/// filter, which the core calls: a predicate that panics ends the watch.
pub(super) fn poll_guarded<T>(poll: impl FnOnce() -> Poll<Option<T>>) -> Poll<Result<Option<T>, Status>> {
    match guard("a predicate of the informer's filter", poll) {
        Ok(polled) => polled.map(Ok),
        Err(panicked) => Poll::Ready(Err(Status::new(500, format!("{panicked}. Correct it.")))),
    }
}

/// Polls for the next event of a watch of the informer; the last event is an error if the watch failed.
pub(super) fn poll_event<O: FromKeyValue>(
    watch: &mut ObjectWatch<O>,
    context: &mut Context<'_>,
) -> Poll<Option<WatchEvent<O>>> {
    poll_guarded(|| Pin::new(watch).poll_next(context))
        .map(|polled| polled.unwrap_or_else(|status| Some(WatchEvent::error(status))))
}
