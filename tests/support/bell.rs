//! An executor of a few lines: a waker that rings, and polls of a subscription as a stream.
#![allow(dead_code)]

use futures_core::Stream;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use watchcore::{Batch, Result, Subscription};

pub const BOUND: Duration = Duration::from_secs(60);

/// Counts its rings, and passes each on.
pub struct Bell(pub Sender<()>, pub AtomicUsize);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.1.fetch_add(1, SeqCst);
        self.0.send(()).ok();
    }
}

pub fn bell() -> (Arc<Bell>, Receiver<()>) {
    let (ring, rings) = channel();
    (Arc::new(Bell(ring, AtomicUsize::new(0))), rings)
}

/// A waker that keeps the notifier, which all caches share: it says that it was called, and returns when it is let go.
struct Brake(Sender<()>, Mutex<Receiver<()>>);

impl Wake for Brake {
    fn wake(self: Arc<Self>) {
        self.0.send(()).ok();
        self.1.lock().unwrap().recv_timeout(BOUND).ok();
    }
}

/// The waker, what says that it was called, and what lets the notifier go, also by its drop.
pub fn brake() -> (Waker, Receiver<()>, Sender<()>) {
    let ((here, arrived), (go, going)) = (channel(), channel());
    (Waker::from(Arc::new(Brake(here, Mutex::new(going)))), arrived, go)
}

/// Polls once, as an executor does.
pub fn once(subscription: &mut Subscription, bell: &Arc<Bell>) -> Poll<Option<Result<Batch>>> {
    let waker = Waker::from(bell.clone());
    Pin::new(subscription).poll_next(&mut Context::from_waker(&waker))
}

/// The next item; waits for the waker where there is none yet.
pub fn next(subscription: &mut Subscription, bell: &Arc<Bell>, rings: &Receiver<()>) -> Option<Result<Batch>> {
    loop {
        match once(subscription, bell) {
            Poll::Ready(item) => return item,
            Poll::Pending => rings.recv_timeout(BOUND).expect("it is woken"),
        }
    }
}
