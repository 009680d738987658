//! Requests to a program's source, with a guard for foreign code: a panic counts as its answer, an
//! error 500. The tables of the reflector and of the retrying watch define how they continue after
//! an error, so the source is asked again.

#![forbid(unsafe_code)]

use crate::event::{Status, WatchEvent};
use crate::foreign::{discard, guard};
use futures_core::Stream;
use std::future::ready;
use std::pin::Pin;
use std::task::{Context, Poll};

/// An answer of a source.
pub(crate) type Answer<T> = Pin<Box<dyn Future<Output = Result<T, Status>> + Send>>;

/// Calls a source; `what` names the request in messages.
pub(crate) fn guarded_answer<T: Send + 'static>(what: &'static str, ask: impl FnOnce() -> Answer<T>) -> Answer<T> {
    match guard(what, ask) {
        Ok(answer) => Box::pin(GuardedAnswer { what, answer: Some(answer) }),
        Err(panicked) => Box::pin(ready(Err(panicked.into()))),
    }
}

struct GuardedAnswer<T> {
    what: &'static str,
    /// `None` after a panic.
    answer: Option<Answer<T>>,
}

impl<T> Future for GuardedAnswer<T> {
    type Output = Result<T, Status>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T, Status>> {
        let what = self.what;
        let Some(answer) = &mut self.answer else { return Poll::Pending };
        guard(what, || answer.as_mut().poll(context)).unwrap_or_else(|panicked| {
            discard(what, self.answer.take());
            Poll::Ready(Err(panicked.into()))
        })
    }
}

impl<T> Drop for GuardedAnswer<T> {
    fn drop(&mut self) {
        discard(self.what, self.answer.take());
    }
}

/// Polls a source's watch for the next event. After an error the watch is not polled again.
pub(crate) fn poll_watch<O, W>(watch: &mut W, context: &mut Context<'_>) -> Poll<Option<WatchEvent<O>>>
where
    W: Stream<Item = WatchEvent<O>> + Unpin,
{
    guard("the source's watch", || Pin::new(watch).poll_next(context))
        .unwrap_or_else(|panicked| Poll::Ready(Some(WatchEvent::error(panicked))))
}
