//! The activity of a connection: its socket, its requests and its answers report it, and the clock of the server reads it.

use super::Holder;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use tokio::sync::Notify;

/// The counters and flags of one connection. All accesses are Relaxed: the clock reads the newest values at its next look,
/// and no other memory depends on them.
#[derive(Default)]
pub(crate) struct Activity {
    /// The handshake of TLS is not over.
    shakes_hands: AtomicBool,
    /// HTTP/1.1, where bytes between two requests begin the next: on HTTP/2 they are mostly something else.
    heeds_bytes: AtomicBool,
    /// Heads that were whole.
    requests: AtomicU64,
    /// Bytes came since the last head was whole.
    heard: AtomicBool,
    /// A user was known.
    known: AtomicBool,
    /// Requests whose answer is not complete.
    answering: AtomicUsize,
    /// The connection is a WebSocket: its watch is an answer that lasts as long as it.
    upgraded: AtomicBool,
    /// Answers that the transport has not asked for more since it took what there was.
    unasked: AtomicUsize,
    /// Bytes of answers that were made, and that the socket has not taken.
    unread: AtomicUsize,
    /// A write waits for the client.
    blocked: AtomicBool,
    /// Bytes that the client took.
    progress: AtomicU64,
    /// An answer is complete, but for bytes of it that hyper may still have.
    unflushed: AtomicBool,
    /// HTTP/1.1 is to close behind its next answer.
    old: AtomicBool,
    /// The connection closes behind the answers that it has begun.
    closing: AtomicBool,
    on_closing: Notify,
    on_cut: Notify,
}

/// The activity that a connection has a time limit for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    Handshake,
    Head,
    Taking,
    Answering,
    Idle { known: bool },
    Last,
}

/// A request that is being answered, until this is dropped.
pub(crate) struct Answering(Arc<Activity>);

impl Activity {
    pub(crate) fn shakes_hands(&self, shakes: bool) {
        self.shakes_hands.store(shakes, Relaxed);
    }

    pub(crate) fn heeds_bytes(&self) {
        self.heeds_bytes.store(true, Relaxed);
    }

    /// Bytes came.
    pub(crate) fn heard(&self) {
        self.heard.store(true, Relaxed);
    }

    /// The head of a request is complete.
    pub(crate) fn answer(self: &Arc<Self>) -> Answering {
        self.answering.fetch_add(1, Relaxed);
        self.heard.store(false, Relaxed);
        self.requests.fetch_add(1, Relaxed);
        Answering(self.clone())
    }

    /// Records that a user was authenticated.
    pub(crate) fn is_known(&self) {
        self.known.store(true, Relaxed);
    }

    /// Records that the connection leaves HTTP.
    pub(crate) fn upgrade(&self) {
        self.upgraded.store(true, Relaxed);
    }

    /// Whether an answer waits to be asked for more.
    pub(crate) fn unasked(&self, is: bool) {
        if is {
            self.unasked.fetch_add(1, Relaxed);
        } else {
            self.unasked.fetch_sub(1, Relaxed);
        }
    }

    /// The client took bytes.
    pub(crate) fn takes(&self, bytes: usize) {
        self.progress.fetch_add(bytes as u64, Relaxed);
    }

    /// Whether a write waits for the client.
    pub(crate) fn blocked(&self, is: bool) {
        // A socket that takes everything costs nothing more than this look.
        if self.blocked.load(Relaxed) != is {
            self.blocked.store(is, Relaxed);
        }
    }

    /// The socket has all that was written.
    pub(crate) fn flushed(&self) {
        self.unflushed.store(false, Relaxed);
    }

    /// Whether hyper has written all of the answers so far: where it is taken apart before, what it has is lost.
    pub(crate) fn is_flushed(&self) -> bool {
        !self.unflushed.load(Relaxed)
    }

    /// Whether the client has not sent a byte yet.
    pub(crate) fn is_fresh(&self) -> bool {
        self.requests.load(Relaxed) == 0 && !self.heard.load(Relaxed)
    }

    /// Whether the next answer is the last.
    pub(crate) fn is_last(&self) -> bool {
        self.old.load(Relaxed) || self.is_closing()
    }

    fn is_closing(&self) -> bool {
        self.closing.load(Relaxed)
    }

    /// Records that the connection has become old. A client of HTTP/1.1 learns of the end with an answer, because a request
    /// may be on its way.
    pub(crate) fn ages(&self) {
        if self.heeds_bytes.load(Relaxed) {
            self.old.store(true, Relaxed);
        } else {
            self.close();
        }
    }

    /// Tells the connection to close behind the answers that it has begun.
    pub(crate) fn close(&self) {
        self.closing.store(true, Relaxed);
        self.on_closing.notify_one();
    }

    /// Waits until it is to close.
    pub(crate) async fn closes(&self) {
        while !self.is_closing() {
            self.on_closing.notified().await;
        }
    }

    /// Ends the connection now.
    pub(crate) fn cut(&self) {
        self.on_cut.notify_one();
    }

    /// Waits until the connection is cut off. At most one task waits: that of the connection, and after an upgrade that of
    /// the socket.
    pub(crate) async fn is_cut(&self) {
        self.on_cut.notified().await;
    }

    /// The state of the connection, and a number that changes with each progress in that state.
    pub(crate) fn state(&self) -> (State, u64) {
        let requests = self.requests.load(Relaxed);
        let owes = self.unasked.load(Relaxed) > 0 || self.unread.load(Relaxed) > 0;
        if self.shakes_hands.load(Relaxed) {
            (State::Handshake, 0)
        } else if owes || self.blocked.load(Relaxed) {
            // An answer that hyper has taken whole is not sent yet: neither the next head nor idleness has begun.
            (State::Taking, self.progress.load(Relaxed))
        } else if self.answering.load(Relaxed) > 0 || self.upgraded.load(Relaxed) {
            (State::Answering, 0)
        } else if self.is_closing() {
            (State::Last, 0)
        } else if requests == 0 || self.heeds_bytes.load(Relaxed) && self.heard.load(Relaxed) {
            (State::Head, requests)
        } else {
            (State::Idle { known: self.known.load(Relaxed) }, requests)
        }
    }
}

impl Answering {
    pub(crate) fn activity(&self) -> &Arc<Activity> {
        &self.0
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.unflushed.store(true, Relaxed);
        self.0.answering.fetch_sub(1, Relaxed);
    }
}

/// The connection holds the bytes of its answers.
impl Holder for Arc<Activity> {
    fn holds(&self, bytes: usize) {
        self.unread.fetch_add(bytes, Relaxed);
    }

    fn lets_go(&self, bytes: usize) {
        self.unread.fetch_sub(bytes, Relaxed);
        self.takes(bytes);
    }

    fn cut(&self) {
        Activity::cut(self);
    }
}
