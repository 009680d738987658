//! Foreign code is everything of the program that this crate calls or drops: wakers, limiters, decoders
//! ([`FromKeyValue`](crate::FromKeyValue)), index functions, handlers, sources, and the values that the program stored.
//!
//! [`guard`] is the only way to call it. In debug builds it asserts that the thread holds no lock of this crate
//! ([`crate::sync`]). It catches a panic, logs it with the name of the code that panicked, and returns it as a value.
//! So a panic affects only the one call. `clippy.toml` forbids `catch_unwind` elsewhere.

#![forbid(unsafe_code)]
#![allow(clippy::disallowed_types, clippy::disallowed_methods)] // This is the only place that may use them.

use crate::sync::assert_unlocked;
use event_listener::{Event, EventListener, Listener};
use std::any::Any;
use std::cell::RefCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

/// A panic of foreign code, which was logged. It prints as `WHAT panicked: TEXT`.
#[derive(Debug)]
pub(crate) struct Panicked {
    what: String,
    text: String,
}

impl fmt::Display for Panicked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} panicked: {}", self.what, self.text)
    }
}

/// The text of a panic, if it has one.
fn text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("of another type").to_owned()
}

/// Calls foreign code; `what` is its name. A panic is logged and returned as an error.
pub(crate) fn guard<T>(what: impl fmt::Display, call: impl FnOnce() -> T) -> Result<T, Panicked> {
    assert_unlocked(&what);
    let panic = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(value) => return Ok(value),
        Err(panic) => panic,
    };
    let mut panicked = Panicked { what: String::new(), text: String::new() };
    // The name may call code of the program, so may the log's collector, and the panic's value may
    // panic when it is dropped.
    let disposed = catch_unwind(AssertUnwindSafe(|| {
        panicked.text = text(&*panic);
        panicked.what = what.to_string();
        drop(panic);
        tracing::error!(panic = %panicked.text, "{} panicked", panicked.what);
    }));
    // A value that panics again when it is dropped is leaked.
    disposed.unwrap_or_else(std::mem::forget);
    Err(panicked)
}

/// Drops a value of the program.
pub(crate) fn discard<T>(what: impl fmt::Display, value: T) {
    // The guard logs a panic, and nothing else can be done.
    let _ = guard(what, || drop(value));
}

/// Wakes all of the wakers, even if some panic.
pub(crate) fn wake(wakers: impl IntoIterator<Item = Waker>) {
    for waker in wakers {
        // In a loom model a panic means that the model has failed.
        if cfg!(toolkit_loom) {
            waker.wake();
        } else {
            let _ = guard("a waker", || waker.wake());
        }
    }
}

thread_local! {
    /// The wakers that the present notification of this thread has reached; `None` outside of a notification.
    static REACHED: RefCell<Option<Vec<Arc<GuardedWaker>>>> = const { RefCell::new(None) };
}

/// Runs a call that notifies listeners. `event-listener` calls their wakers under its own lock, where a waker that
/// listens or notifies would deadlock: so here the wakers only enter a list, and are called after the call.
fn notifying<T>(call: impl FnOnce() -> T) -> T {
    // A thread that is ending has no list any more: then wakers are called at once.
    let begins = REACHED.try_with(|reached| {
        let mut reached = reached.borrow_mut();
        let begins = reached.is_none();
        reached.get_or_insert_default();
        begins
    });
    let result = call();
    if begins == Ok(true) {
        let reached = REACHED.try_with(RefCell::take).ok().flatten();
        reached.unwrap_or_default().into_iter().for_each(|waker| waker.call());
    }
    result
}

/// An event that wakes its listeners, made of `event-listener`'s; their wakers run outside of every lock.
pub(crate) struct Notify(Event);

impl Notify {
    pub(crate) fn new() -> Notify {
        Notify(Event::new())
    }

    /// Wakes listeners until at least this number of the present ones have been woken.
    pub(crate) fn notify(&self, listeners: usize) {
        notifying(|| self.0.notify(listeners));
    }

    /// Wakes this number of further listeners.
    pub(crate) fn notify_additional(&self, listeners: usize) {
        notifying(|| self.0.notify_additional(listeners));
    }

    /// Listens from now on: a notification after this call wakes the listener.
    pub(crate) fn listen(&self) -> Listening {
        Listening(Some(self.0.listen()))
    }

    /// Blocks until `check` finds something; `None` after the deadline, if there is one.
    pub(crate) fn wait_for<T>(&self, deadline: Option<Instant>, mut check: impl FnMut() -> Option<T>) -> Option<T> {
        loop {
            // Listening starts before the check, so that no change after it is missed.
            let changed = self.listen();
            let found = check();
            if found.is_some() {
                return found;
            }
            if !changed.wait(deadline) {
                return check();
            }
        }
    }

    /// [`Notify::wait_for`] as a future, without a deadline.
    pub(crate) async fn wait_for_async<T>(&self, mut check: impl FnMut() -> Option<T>) -> T {
        loop {
            let changed = self.listen();
            if let Some(found) = check() {
                return found;
            }
            Guarded::new(changed).await;
        }
    }
}

/// A listener of a [`Notify`]. If it is dropped after it was woken, it passes the notification on.
pub(crate) struct Listening(Option<EventListener>);

impl Listening {
    /// Blocks until it is notified; returns false after the deadline, if there is one.
    pub(crate) fn wait(mut self, deadline: Option<Instant>) -> bool {
        let Some(listener) = self.0.take() else { return true };
        notifying(|| match deadline {
            None => {
                listener.wait();
                true
            }
            Some(deadline) => listener.wait_deadline(deadline).is_some(),
        })
    }
}

impl Future for Listening {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        match &mut self.0 {
            Some(listener) => Pin::new(listener).poll(context),
            None => Poll::Ready(()),
        }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        notifying(|| drop(self.0.take()));
    }
}

/// A waker whose panics are caught.
struct GuardedWaker(Waker);

impl GuardedWaker {
    fn call(&self) {
        // The guard has logged a panic, and nothing else can be done.
        let _ = guard("a waker", || self.0.wake_by_ref());
    }
}

impl Wake for GuardedWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let listed = REACHED.try_with(|reached| reached.borrow_mut().as_mut().map(|list| list.push(Arc::clone(self))));
        if listed.ok().flatten().is_none() {
            self.call();
        }
    }
}

/// A future of another crate that calls wakers where a panic would harm all of that crate's users:
/// `event-listener` under its lock, `futures-timer` on the one thread that serves all delays of the
/// process. It gets a guarded waker instead of the task's.
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
        let is_same = this.waker.as_ref().is_some_and(|waker| waker.0.will_wake(context.waker()));
        let before = if is_same { None } else { this.waker.replace(Arc::new(GuardedWaker(context.waker().clone()))) };
        let waker = this.waker.clone().map_or_else(|| context.waker().clone(), Waker::from);
        let polled = Pin::new(&mut this.future).poll(&mut Context::from_waker(&waker));
        // The program's former waker is dropped here, and not under a lock of the future.
        drop(before);
        polled
    }
}

#[cfg(all(test, not(toolkit_loom)))]
mod tests {
    use super::*;
    use crate::sync::{Lock, SharedLock};

    /// Calling foreign code under a lock of the crate fails the test that does it.
    #[test]
    fn foreign_code_below_a_lock_is_found() {
        let (lock, shared) = (Lock::new(1), SharedLock::new(2));
        let called = |what: &str| catch_unwind(AssertUnwindSafe(|| drop(guard(what, || ()))));
        assert!(called("free").is_ok());
        let guarded = lock.lock();
        assert!(called("below a lock").is_err());
        drop(guarded);
        let guarded = shared.read();
        assert!(called("below a read lock").is_err());
        drop(guarded);
        let guarded = shared.write();
        assert!(called("below a write lock").is_err());
        drop(guarded);
        assert!(called("free again").is_ok());
    }
}
