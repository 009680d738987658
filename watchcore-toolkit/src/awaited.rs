//! An answer of a source that may never come.

#![forbid(unsafe_code)]

use crate::clock::{Clock, Delay, delay_from};
use crate::event::Status;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// How long an answer is waited for where nothing else is said: for as long as a reflector's watch may be silent at most. A
/// server may answer the request for a watch with its first event.
pub(crate) const ANSWER: Duration = Duration::from_secs(630);

/// An answer that is waited for, for so long: then it is an error 503, as of a server that is out of reach.
pub(crate) struct Awaited<T> {
    answer: Pin<Box<dyn Future<Output = Result<T, Status>> + Send>>,
    clock: Arc<dyn Clock>,
    most: Duration,
    /// Set by the first poll that finds no answer: one that is there at once takes no timer.
    over: Option<Delay>,
}

impl<T> Awaited<T> {
    pub(crate) fn new(
        answer: Pin<Box<dyn Future<Output = Result<T, Status>> + Send>>,
        clock: &Arc<dyn Clock>,
        most: Duration,
    ) -> Awaited<T> {
        Awaited { answer, clock: Arc::clone(clock), most, over: None }
    }
}

impl<T> Future for Awaited<T> {
    type Output = Result<T, Status>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T, Status>> {
        let this = &mut *self;
        if let Poll::Ready(answer) = this.answer.as_mut().poll(context) {
            return Poll::Ready(answer);
        }
        let over = this.over.get_or_insert_with(|| delay_from(&*this.clock, this.clock.now(), this.most));
        Pin::new(over)
            .poll(context)
            .map(|()| Err(Status::new(503, format!("the source has not answered within {} s", this.most.as_secs()))))
    }
}
