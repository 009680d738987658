//! A watch that a body has, and its end where the client takes nothing.
//!
//! hyper asks a body for more when it has room. Of a client that takes nothing it has none: then the watch is not polled
//! any more, and does not see its own deadline. So a task beside the body looks, once that has passed: a client that has
//! taken nothing for `limits.stall` since is left. Its place and its cursor go; the body ends with an error if it is ever
//! asked again, which is no clean end. What hyper has of it goes too, in our own server: on HTTP/1.1 the connection closes,
//! on HTTP/2 the stream is reset; both are told by themselves, for neither asks the body. The task goes with the body. A
//! watch on the direct path and one on a WebSocket look at their deadlines themselves.

use crate::access::Peer;
use crate::frame::Frame;
use crate::watch::{Progress, WatchStream};
use bytes::Bytes;
use http::Version;
use http::request::Parts;
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};

/// What becomes of an answer whose client takes nothing.
pub(crate) struct Stall {
    /// After so long it is cut off.
    pub(crate) limit: Duration,
    /// Its connection, which is cut off with it, where that is to be.
    pub(crate) peer: Option<Arc<Peer>>,
    /// Its stream of HTTP/2, likewise.
    pub(crate) stream: Option<Arc<Notify>>,
}

tokio::task_local! {
    /// Where a stream of HTTP/2 is told that its answer was cut off. Its task is the one that makes that answer.
    static STREAM: Arc<Notify>;
}

/// A stream of HTTP/2, until it is complete, or its answer is cut off: it is dropped then, which resets it.
pub(crate) fn until_cut(stream: impl Future<Output = ()> + Send + 'static) -> impl Future<Output = ()> + Send {
    let cut = Arc::new(Notify::new());
    // Outside of the future, which would have room for it twice.
    let mut stream = Box::pin(STREAM.scope(cut.clone(), stream));
    async move {
        tokio::select! {
            biased;
            () = cut.notified() => {}
            () = &mut stream => {}
        }
    }
}

impl Stall {
    /// That of the answer to a request.
    pub(crate) fn of(request: &Parts, limit: Duration) -> Stall {
        // On HTTP/2 the connection has other answers.
        let peer = Peer::of(request).filter(|_| request.version < Version::HTTP_2);
        Stall { limit, peer: peer.cloned(), stream: STREAM.try_with(Arc::clone).ok() }
    }

    /// Cuts off what is cut off with the answer.
    pub(crate) fn cut(&self) {
        if let Some(peer) = &self.peer {
            peer.stalled.notify_one();
        }
        if let Some(stream) = &self.stream {
            stream.notify_one();
        }
    }
}

/// A watch as a body has it.
pub(super) struct BodyWatch {
    shared: Arc<BodyShared>,
    /// What the task has to know, until it runs.
    stall: Option<Stall>,
    watcher: Option<AbortHandle>,
}

/// What the body shares with the task that watches the client, and with who takes the watch out of it.
pub(super) struct BodyShared(Mutex<BodyState>);

struct BodyState {
    /// `None`: it has ended, was taken out, or was cut off.
    stream: Option<WatchStream>,
    /// Of a piece, what the transport has not asked for yet.
    frames: VecDeque<Frame>,
    /// These are the last ones.
    is_last: bool,
    /// When the transport asked last: then it had room, so the client had taken what came before.
    asked: Instant,
    cut: bool,
}

impl BodyShared {
    fn lock(&self) -> MutexGuard<'_, BodyState> {
        // A panic in the middle of a piece drops the body; what is left is not asked for again.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The watch, if nobody has it yet and the body has not begun.
    pub(super) fn take(&self) -> Option<WatchStream> {
        self.lock().stream.take()
    }
}

impl BodyWatch {
    pub(super) fn new(stream: WatchStream, stall: Stall) -> BodyWatch {
        let state = BodyState {
            stream: Some(stream),
            frames: VecDeque::new(),
            is_last: false,
            asked: Instant::now(),
            cut: false,
        };
        BodyWatch { shared: Arc::new(BodyShared(Mutex::new(state))), stall: Some(stall), watcher: None }
    }

    pub(super) fn shared(&self) -> &Arc<BodyShared> {
        &self.shared
    }

    /// From now on its client is watched: at the latest when the body is asked first. A transport whose client has given it
    /// no room never asks, so one that has the body for certain says so before.
    pub(super) fn begin(&mut self) {
        let Some(stall) = self.stall.take() else { return };
        let deadline = self.shared.lock().stream.as_ref().and_then(WatchStream::deadline);
        self.watcher = deadline
            .map(|deadline| tokio::spawn(cut_off(Arc::downgrade(&self.shared), deadline, stall)).abort_handle());
    }

    /// The next frame; `None`: the end.
    ///
    /// # Errors
    /// `TimedOut` where the client took nothing for too long.
    pub(super) fn poll_bytes(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        self.begin();
        let mut state = self.shared.lock();
        if state.cut {
            let why = "the watch was cut off: its deadline has passed, and its client took nothing of it for too long";
            return Poll::Ready(Some(Err(io::Error::new(io::ErrorKind::TimedOut, why))));
        }
        state.asked = Instant::now();
        loop {
            if let Some(frame) = state.frames.pop_front() {
                return Poll::Ready(Some(Ok(frame.payload())));
            }
            if state.is_last {
                state.stream = None;
            }
            let Some(stream) = &mut state.stream else { return Poll::Ready(None) };
            let mut piece = Vec::new();
            let progress = ready!(stream.poll_frames(context, &mut piece));
            state.is_last = progress == Progress::Ended;
            state.frames = piece.into();
        }
    }
}

impl Drop for BodyWatch {
    fn drop(&mut self) {
        if let Some(watcher) = &self.watcher {
            watcher.abort();
        }
    }
}

/// Cuts a watch off once its deadline has passed and its client took nothing for so long.
async fn cut_off(shared: Weak<BodyShared>, deadline: Instant, stall: Stall) {
    let mut from = deadline;
    loop {
        // A moment that the clock cannot hold never comes.
        let Some(at) = from.checked_add(stall.limit) else { return };
        sleep_until(at).await;
        let Some(shared) = shared.upgrade() else { return };
        let mut state = shared.lock();
        if state.asked > from {
            from = state.asked;
            continue;
        }
        let cut = (state.stream.take(), std::mem::take(&mut state.frames));
        state.cut = cut.0.is_some();
        drop(state);
        if cut.0.is_some() {
            let address = stall.peer.as_ref().map(|peer| peer.address);
            tracing::info!(target: "watchcore_http", ?address, limit = ?stall.limit, "a watch is cut off: its deadline has passed, and its client takes nothing of it");
            stall.cut();
        }
        return;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport;
    use crate::watch::{Framing, OpenWatches};
    use watchcore::{Cache, Error, Event, Position, Start};

    struct NoFraming;

    impl Framing for NoFraming {
        fn event(&mut self, _: &Event, _: &mut Vec<Frame>) -> bool {
            true
        }

        fn failed(&mut self, _: &Error, _: &mut Vec<Frame>) {}

        fn deadline(&mut self, _: Position, _: &mut Vec<Frame>) {}
    }

    /// A transport may ask for room before it asks the body for the first time.
    #[tokio::test(start_paused = true)]
    async fn body_that_is_never_asked_is_left() {
        let cache = Cache::builder("/").build().unwrap();
        let open = OpenWatches::new(1, 1);
        let (deadline, limit) = (Duration::from_secs(7), Duration::from_secs(5));
        let subscription = cache.subscribe(Start::Now).open().unwrap();
        let stream = WatchStream::new(subscription, NoFraming, Some(deadline), open.admit(None).unwrap());
        let response = transport::respond(stream, "text/plain", Stall { limit, peer: None, stream: None });
        let from = Instant::now();
        let left = async {
            while open.count() > 0 {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(600), left).await.expect("its place is free");
        assert_eq!(from.elapsed().as_secs(), (deadline + limit).as_secs());
        drop(response);
    }
}
