//! Foreign code: everything of the program's that this crate calls or drops. Wakers, limiters, decoders
//! ([`FromKeyValue`](crate::FromKeyValue)), index functions, handlers, sources, and the values that the program stored.
//!
//! [`guard`] is the one way into it. It asserts in debug builds that the thread holds no lock of this crate
//! ([`crate::sync`]), catches a panic, logs it under the name of what panicked, and turns it into a value. So a panic costs
//! the one call, and whoever comes behind it nothing. `clippy.toml` forbids `catch_unwind` elsewhere.

#![forbid(unsafe_code)]
#![allow(clippy::disallowed_types, clippy::disallowed_methods)] // This is the one place.

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

/// Foreign code has panicked, and that was logged. Printed, it is `WHAT panicked: TEXT`.
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

/// The text of a panic, where it has one.
fn text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("of another type").to_owned()
}

/// Calls foreign code, which `what` names. An error where it panicked: that was logged.
pub(crate) fn guard<T>(what: impl fmt::Display, call: impl FnOnce() -> T) -> Result<T, Panicked> {
    assert_unlocked(&what);
    let panic = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(value) => return Ok(value),
        Err(panic) => panic,
    };
    let mut panicked = Panicked { what: String::new(), text: String::new() };
    // The name may be the program's, the log's collector is, and the panic's own value may panic where it is dropped.
    let disposed = catch_unwind(AssertUnwindSafe(|| {
        panicked.text = text(&*panic);
        panicked.what = what.to_string();
        drop(panic);
        tracing::error!(panic = %panicked.text, "{} panicked", panicked.what);
    }));
    // What panics again when it is dropped is leaked.
    disposed.unwrap_or_else(std::mem::forget);
    Err(panicked)
}

/// Drops a value of the program.
pub(crate) fn discard<T>(what: impl fmt::Display, value: T) {
    // A panic is logged by the guard, and there is nothing left to do.
    let _ = guard(what, || drop(value));
}

/// Wakes each of them, whatever the others do.
pub(crate) fn wake(wakers: impl IntoIterator<Item = Waker>) {
    for waker in wakers {
        // A model's own panic says that it has failed.
        if cfg!(toolkit_loom) {
            waker.wake();
        } else {
            let _ = guard("a waker", || waker.wake());
        }
    }
}

thread_local! {
    /// Wakers that a notification of this thread has reached, while one is under way.
    static REACHED: RefCell<Option<Vec<Arc<GuardedWaker>>>> = const { RefCell::new(None) };
}

/// Lets a call notify listeners. `event-listener` calls their wakers below its own lock, where a waker that listens or
/// notifies itself would wait for that lock for ever: so here they only enter a list, and are called behind the call.
fn notifying<T>(call: impl FnOnce() -> T) -> T {
    // A thread that ends has no list any more: there they are called at once.
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

/// An event that wakes who listens: `event-listener`'s, whose wakers run outside of every lock.
pub(crate) struct Notify(Event);

impl Notify {
    pub(crate) fn new() -> Notify {
        Notify(Event::new())
    }

    /// Wakes listeners until so many of those that are there have been woken.
    pub(crate) fn notify(&self, listeners: usize) {
        notifying(|| self.0.notify(listeners));
    }

    /// Wakes so many more.
    pub(crate) fn notify_additional(&self, listeners: usize) {
        notifying(|| self.0.notify_additional(listeners));
    }

    /// Listens from now on: what is notified after this call is heard.
    pub(crate) fn listen(&self) -> Listening {
        Listening(Some(self.0.listen()))
    }
}

/// A listener of a [`Notify`]. Dropped after it was woken, it passes the notification on.
pub(crate) struct Listening(Option<EventListener>);

impl Listening {
    /// Blocks until it is notified, without end where there is no deadline; false after it.
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

/// A waker whose panics stay in it.
struct GuardedWaker(Waker);

impl GuardedWaker {
    fn call(&self) {
        // The guard has logged a panic, and there is nothing left to do.
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
        let is_same = this.waker.as_ref().is_some_and(|waker| waker.0.will_wake(context.waker()));
        let before = if is_same { None } else { this.waker.replace(Arc::new(GuardedWaker(context.waker().clone()))) };
        let waker = this.waker.clone().map_or_else(|| context.waker().clone(), Waker::from);
        let polled = Pin::new(&mut this.future).poll(&mut Context::from_waker(&waker));
        // The program's waker of the poll before is dropped here, and not below a lock of the future's.
        drop(before);
        polled
    }
}
