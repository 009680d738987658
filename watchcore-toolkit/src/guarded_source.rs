//! Requests to a program's source, with a time limit, and with a guard for foreign code: a panic counts
//! as its answer, an error 500. The tables of the reflector and of the retrying watch define how they
//! continue after an error, so the source is asked again.

#![forbid(unsafe_code)]

use crate::clock::{Clock, Delay, delay_from};
use crate::event::{Status, WatchEvent};
use crate::foreign::{discard, guard};
use crate::source::SourceFuture;
use futures_core::Stream;
use std::future::{poll_fn, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// The default time limit of an answer: the longest time for which a reflector's watch may be
/// silent, because a server may answer the request for a watch only with its first event.
pub(crate) const DEFAULT_ANSWER_TIMEOUT: Duration = Duration::from_secs(630);

/// Waits for an answer for a limited time. After that the answer is an error 503, as of an unreachable server.
pub(crate) fn in_time<T: 'static>(
    mut answer: SourceFuture<T>,
    clock: &Arc<dyn Clock>,
    most: Duration,
) -> SourceFuture<T> {
    let clock = Arc::clone(clock);
    // Set by the first poll without an answer: an immediate answer needs no timer.
    let mut over: Option<Delay> = None;
    Box::pin(poll_fn(move |context| {
        if let Poll::Ready(answer) = answer.as_mut().poll(context) {
            return Poll::Ready(answer);
        }
        let over = over.get_or_insert_with(|| delay_from(&*clock, clock.now(), most));
        Pin::new(over)
            .poll(context)
            .map(|()| Err(Status::new(503, format!("the source has not answered within {} s", most.as_secs()))))
    }))
}

/// Calls a source; `what` names the request in messages.
pub(crate) fn guarded_answer<T: Send + 'static>(
    what: &'static str,
    ask: impl FnOnce() -> SourceFuture<T>,
) -> SourceFuture<T> {
    match guard(what, ask) {
        Ok(answer) => Box::pin(GuardedAnswer { what, answer: Some(answer) }),
        Err(panicked) => Box::pin(ready(Err(panicked.into()))),
    }
}

struct GuardedAnswer<T> {
    what: &'static str,
    /// `None` after a panic.
    answer: Option<SourceFuture<T>>,
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
