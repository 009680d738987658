//! Blocking calls of a `poll`: the thread parks until its waker unparks it.

#![forbid(unsafe_code)]

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// Wakes one call of [`block_on`]. Each call has its own flag, because a callback may wait for something else on the
/// same thread, and the wake-up of that wait must not count for the outer one.
struct ParkedThread {
    thread: Thread,
    woken: AtomicBool,
}

impl Wake for ParkedThread {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Release pairs with the parked thread's Acquire: its next poll sees everything that was
        // stored before the wake-up.
        if !self.woken.swap(true, Ordering::Release) {
            self.thread.unpark();
        }
    }
}

/// Polls until the result is ready, and parks the thread in between. `None` after the timeout;
/// `Duration::MAX` never times out.
pub(crate) fn block_on<T>(timeout: Duration, mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Option<T> {
    let parked = Arc::new(ParkedThread { thread: thread::current(), woken: AtomicBool::new(false) });
    let waker = Waker::from(Arc::clone(&parked));
    let mut context = Context::from_waker(&waker);
    let deadline = Instant::now().checked_add(timeout);
    let mut time_is_up = false;
    loop {
        if let Poll::Ready(value) = poll(&mut context) {
            return Some(value);
        }
        if time_is_up {
            return None;
        }
        // Acquire pairs with the waker's Release.
        while !parked.woken.swap(false, Ordering::Acquire) {
            match left(deadline) {
                None => thread::park(),
                Some(left) if !left.is_zero() => thread::park_timeout(left),
                Some(_) => break,
            }
        }
        // The deadline is checked even if the thread did not park, because a poll may wake itself
        // each time. Then a last poll follows, for results of the last moment.
        time_is_up = left(deadline).is_some_and(|left| left.is_zero());
    }
}

/// The time until a deadline; `None` if there is none.
fn left(deadline: Option<Instant>) -> Option<Duration> {
    deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()))
}

/// [`block_on`] of a future.
pub(crate) fn block_on_future<T>(timeout: Duration, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    block_on(timeout, |context| future.as_mut().poll(context))
}

/// Yields to the other tasks of the runtime.
pub(crate) async fn yield_now() {
    let mut yielded = false;
    poll_fn(|context| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
