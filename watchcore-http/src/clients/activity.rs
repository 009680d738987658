//! The activity of a connection: its socket, its requests and its answers report it, and the server's clock reads it.

use super::Holder;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use tokio::sync::Notify;

/// The counters and flags of one connection. All accesses are Relaxed: the clock reads recent values on its next pass,
/// and no other memory depends on them.
#[derive(Default)]
pub(crate) struct Activity {
    /// Whether the TLS handshake is in progress.
    handshaking: AtomicBool,
    /// Set for HTTP/1.1, where bytes between two requests begin the next one. On HTTP/2 they may be control frames.
    uses_http1: AtomicBool,
    /// Number of complete request heads.
    requests: AtomicU64,
    /// Whether bytes arrived since the last complete head.
    received: AtomicBool,
    /// Whether a user was authenticated.
    known: AtomicBool,
    /// Number of requests whose answer is incomplete.
    answering: AtomicUsize,
    /// Whether the connection became a WebSocket, whose watch is an answer that lasts as long as the connection.
    upgraded: AtomicBool,
    /// Number of answers that have more bytes, but were not polled since the transport took the previous ones.
    unpolled: AtomicUsize,
    /// Bytes of answers that were produced, and not yet taken by the socket.
    unread: AtomicUsize,
    /// Whether a write waits for the client.
    blocked: AtomicBool,
    /// Number of bytes that the client took.
    progress: AtomicU64,
    /// Set when an answer is complete, until the socket is flushed: hyper may still buffer bytes of it.
    unflushed: AtomicBool,
    /// Whether HTTP/1.1 is to close after its next answer.
    old: AtomicBool,
    /// Whether the connection closes after the answers that it has begun.
    closing: AtomicBool,
    on_closing: Notify,
    on_cut: Notify,
}

/// A state of the connection that has a time limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    Handshake,
    Head,
    Taking,
    Answering,
    Idle { known: bool },
    Closing,
}

/// Marks a request as being answered until it is dropped.
pub(crate) struct Answering(Arc<Activity>);

impl Activity {
    pub(crate) fn set_handshaking(&self, is: bool) {
        self.handshaking.store(is, Relaxed);
    }

    pub(crate) fn set_http1(&self) {
        self.uses_http1.store(true, Relaxed);
    }

    /// Records that bytes arrived.
    pub(crate) fn received(&self) {
        self.received.store(true, Relaxed);
    }

    /// Records that the head of a request is complete.
    pub(crate) fn answer(self: &Arc<Self>) -> Answering {
        self.answering.fetch_add(1, Relaxed);
        self.received.store(false, Relaxed);
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

    /// Records that an answer waits to be polled (`true`), or was polled again (`false`).
    pub(crate) fn set_unpolled(&self, is: bool) {
        if is {
            self.unpolled.fetch_add(1, Relaxed);
        } else {
            self.unpolled.fetch_sub(1, Relaxed);
        }
    }

    /// Records that the client took bytes.
    pub(crate) fn took(&self, bytes: usize) {
        self.progress.fetch_add(bytes as u64, Relaxed);
    }

    /// Records whether a write waits for the client.
    pub(crate) fn blocked(&self, is: bool) {
        // Reading first keeps the common case, a socket that takes everything, from writing to shared memory.
        if self.blocked.load(Relaxed) != is {
            self.blocked.store(is, Relaxed);
        }
    }

    /// Records that the socket has every byte that was written.
    pub(crate) fn flushed(&self) {
        self.unflushed.store(false, Relaxed);
    }

    /// Whether hyper has written all answers completely: if it is taken apart earlier, the bytes in its buffer are
    /// lost.
    pub(crate) fn is_flushed(&self) -> bool {
        !self.unflushed.load(Relaxed)
    }

    /// Whether the client has not sent a byte yet.
    pub(crate) fn is_fresh(&self) -> bool {
        self.requests.load(Relaxed) == 0 && !self.received.load(Relaxed)
    }

    /// Whether the next answer is the last.
    pub(crate) fn is_last(&self) -> bool {
        self.old.load(Relaxed) || self.is_closing()
    }

    fn is_closing(&self) -> bool {
        self.closing.load(Relaxed)
    }

    /// Records that the connection is old. A client of HTTP/1.1 learns of the close with its next answer, because a
    /// request may already be on its way.
    pub(crate) fn reached_max_age(&self) {
        if self.uses_http1.load(Relaxed) {
            self.old.store(true, Relaxed);
        } else {
            self.close();
        }
    }

    /// Tells the connection to close after the answers that it has begun.
    pub(crate) fn close(&self) {
        self.closing.store(true, Relaxed);
        self.on_closing.notify_one();
    }

    /// Waits until the connection is told to close.
    pub(crate) async fn closes(&self) {
        while !self.is_closing() {
            self.on_closing.notified().await;
        }
    }

    /// Ends the connection now.
    pub(crate) fn cut(&self) {
        self.on_cut.notify_one();
    }

    /// Waits until the connection is cut off. At most one task waits: the connection's, and after an upgrade the
    /// WebSocket's.
    pub(crate) async fn is_cut(&self) {
        self.on_cut.notified().await;
    }

    /// Returns the state of the connection, and a number that changes with each progress in that state.
    pub(crate) fn state(&self) -> (State, u64) {
        let requests = self.requests.load(Relaxed);
        let owes = self.unpolled.load(Relaxed) > 0 || self.unread.load(Relaxed) > 0;
        if self.handshaking.load(Relaxed) {
            (State::Handshake, 0)
        } else if owes || self.blocked.load(Relaxed) {
            // An answer that hyper took completely is not sent yet, so the limits for the next head and for idleness do
            // not apply.
            (State::Taking, self.progress.load(Relaxed))
        } else if self.answering.load(Relaxed) > 0 || self.upgraded.load(Relaxed) {
            (State::Answering, 0)
        } else if self.is_closing() {
            (State::Closing, 0)
        } else if requests == 0 || self.uses_http1.load(Relaxed) && self.received.load(Relaxed) {
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

/// The connection counts the bytes of its answers.
impl Holder for Arc<Activity> {
    fn added(&self, bytes: usize) {
        self.unread.fetch_add(bytes, Relaxed);
    }

    fn removed(&self, bytes: usize) {
        self.unread.fetch_sub(bytes, Relaxed);
        self.took(bytes);
    }

    fn cut(&self) {
        Activity::cut(self);
    }
}
