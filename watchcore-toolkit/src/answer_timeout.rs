//! A time limit for an answer of a source.

#![forbid(unsafe_code)]

use crate::clock::{Clock, Delay, delay_from};
use crate::event::Status;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// The default time limit of an answer: the longest time for which a reflector's watch may be
/// silent, because a server may answer the request for a watch only with its first event.
pub(crate) const DEFAULT_ANSWER_TIMEOUT: Duration = Duration::from_secs(630);

/// Waits for an answer for a limited time. After that the answer is an error 503, as of an unreachable server.
pub(crate) struct AnswerTimeout<T> {
    answer: Pin<Box<dyn Future<Output = Result<T, Status>> + Send>>,
    clock: Arc<dyn Clock>,
    most: Duration,
    /// Set by the first poll without an answer: an immediate answer needs no timer.
    over: Option<Delay>,
}

impl<T> AnswerTimeout<T> {
    pub(crate) fn new(
        answer: Pin<Box<dyn Future<Output = Result<T, Status>> + Send>>,
        clock: &Arc<dyn Clock>,
        most: Duration,
    ) -> AnswerTimeout<T> {
        AnswerTimeout { answer, clock: Arc::clone(clock), most, over: None }
    }
}

impl<T> Future for AnswerTimeout<T> {
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
