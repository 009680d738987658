//! Foreign code that runs in our loops and destructors: the wakers of programs, their limiters, their predicates.
//!
//! Any of it may panic, and so may the log's collector that is told of it. Nothing of that leaves this module: a panic is
//! logged and turned into a value. So it costs whoever comes behind it nothing.

#![forbid(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

/// Calls foreign code. `None`: it panicked, and that was logged. `what` names it there.
pub(crate) fn guard<T>(what: &str, call: impl FnOnce() -> T) -> Option<T> {
    let panic = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(value) => return Some(value),
        Err(panic) => panic,
    };
    let disposed = catch_unwind(AssertUnwindSafe(|| {
        drop(panic);
        tracing::error!(what, "foreign code panicked");
    }));
    // What panics again when it is dropped is leaked.
    disposed.unwrap_or_else(std::mem::forget);
    None
}

/// Wakes each of them, whatever the others do.
pub(crate) fn wake(wakers: impl IntoIterator<Item = Waker>) {
    for waker in wakers {
        // A model's own panic says that it has failed.
        if cfg!(toolkit_loom) {
            waker.wake();
        } else {
            guard("a waker", || waker.wake());
        }
    }
}

/// A waker whose panics stay in it.
struct GuardedWaker(Waker);

impl Wake for GuardedWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        guard("a waker", || self.0.wake_by_ref());
    }
}

/// A future of another crate, which keeps a guarded waker in place of the task's: it calls wakers where a panic would harm
/// all its users. `event-listener` does so below its lock, `futures-timer` on the one thread that has all delays of the
/// process.
pub(crate) struct Guarded<F> {
    future: F,
    waker: Option<Arc<GuardedWaker>>,
}

impl<F: Future + Unpin> Guarded<F> {
    pub(crate) fn new(future: F) -> Guarded<F> {
        Guarded { future, waker: None }
    }
}

impl<F: Future + Unpin> Future for Guarded<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = &mut *self;
        let waker = match &this.waker {
            Some(waker) if waker.0.will_wake(context.waker()) => waker,
            _ => this.waker.insert(Arc::new(GuardedWaker(context.waker().clone()))),
        };
        let waker = Waker::from(Arc::clone(waker));
        Pin::new(&mut this.future).poll(&mut Context::from_waker(&waker))
    }
}
