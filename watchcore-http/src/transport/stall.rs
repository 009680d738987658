//! A watch that a body has, and its end where the client takes nothing.
//!
//! hyper asks a body for more when the client has taken what it has. Of one that takes nothing the watch is not polled any
//! more, and does not see its own deadline. So a task beside the body looks, once that has passed: a client that has taken
//! nothing for `limits.stall` since is left. Its place and its cursor go; the body ends with an error if it is ever asked
//! again, which is no clean end. What hyper has of it goes too, in our own server: on HTTP/1.1 the connection closes, on
//! HTTP/2 the stream is reset; both are told by themselves, for neither asks the body. The task goes with the body. Where the
//! watch ends before its deadline, what it said last is an answer as others are: our own server sees whether it is taken, and
//! elsewhere the time begins with the end. A watch on the direct path and one on a WebSocket look after themselves.

use super::stream::AnswerStream;
use crate::access::Peer;
use crate::frame::Frame;
use crate::watch::{Progress, WatchStream};
use bytes::Bytes;
use http::Version;
use http::request::Parts;
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};

/// What becomes of an answer whose client takes nothing.
#[derive(Clone)]
pub(crate) struct Stall {
    /// After so long it is cut off.
    pub(crate) limit: Duration,
    /// Its connection, which is cut off with it, where that is to be.
    pub(crate) peer: Option<Arc<Peer>>,
    /// Its stream of HTTP/2, likewise.
    pub(crate) stream: Option<Arc<AnswerStream>>,
}

impl Stall {
    /// That of the answer to a request.
    pub(crate) fn of(request: &Parts, limit: Duration) -> Stall {
        // On HTTP/2 the connection has other answers.
        let peer = Peer::of(request).filter(|_| request.version < Version::HTTP_2);
        Stall { limit, peer: peer.cloned(), stream: AnswerStream::current() }
    }

    /// Whether our own server has the answer: it knows by itself whether the client takes it, and looks after all but
    /// watches.
    pub(crate) fn is_ours(&self) -> bool {
        self.peer.is_some() || self.stream.is_some()
    }

    /// The answer is a watch, until it has ended: until then its client may take nothing. On HTTP/1.1 its place says so.
    pub(crate) fn set_watch(&self, is_watch: bool) {
        if let Some(stream) = &self.stream {
            stream.set_watch(is_watch);
        }
    }

    /// When the client was seen to take something, as far as that is known beside what the body is asked.
    fn taken(&self) -> Option<Instant> {
        self.stream.as_ref()?.handed()
    }

    /// Cuts off what is cut off with the answer.
    pub(crate) fn cut(&self) {
        if let Some(peer) = &self.peer {
            peer.stalled.notify_one();
        }
        if let Some(stream) = &self.stream {
            stream.cut();
        }
    }
}

/// A watch as a body has it.
pub(super) struct BodyWatch {
    shared: Arc<BodyShared>,
    stall: Stall,
    has_begun: bool,
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
        stall.set_watch(true);
        BodyWatch { shared: Arc::new(BodyShared(Mutex::new(state))), stall, has_begun: false, watcher: None }
    }

    pub(super) fn shared(&self) -> &Arc<BodyShared> {
        &self.shared
    }

    /// From now on its client is watched: at the latest when the body is asked first. A transport whose client has given it
    /// no room never asks, so one that has the body for certain says so before.
    pub(super) fn begin(&mut self) {
        if std::mem::replace(&mut self.has_begun, true) {
            return;
        }
        let deadline = self.shared.lock().stream.as_ref().and_then(WatchStream::deadline);
        if let Some(deadline) = deadline {
            self.look_after(deadline);
        }
    }

    /// Its client is to take something from this moment on.
    fn look_after(&mut self, from: Instant) {
        let task = tokio::spawn(cut_off(Arc::downgrade(&self.shared), from, self.stall.clone()));
        self.watcher = Some(task.abort_handle());
    }

    /// The watch has ended, and its last frames are to be taken: as each answer is.
    fn has_ended(&mut self) {
        if let Some(watcher) = self.watcher.take() {
            watcher.abort();
        }
        self.stall.set_watch(false);
        if !self.stall.is_ours() {
            self.look_after(Instant::now());
        }
    }

    /// Whether the last frame was given out.
    pub(super) fn is_over(&self) -> bool {
        let state = self.shared.lock();
        state.is_last && state.frames.is_empty() && !state.cut
    }

    /// The next frame; `None`: the end.
    ///
    /// # Errors
    /// `TimedOut` where the client took nothing for too long.
    pub(super) fn poll_bytes(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        self.begin();
        let shared = self.shared.clone();
        let mut state = shared.lock();
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
            state.frames = piece.into();
            if progress == Progress::Ended {
                state.is_last = true;
                self.has_ended();
            }
        }
    }
}

impl Drop for BodyWatch {
    fn drop(&mut self) {
        // Whatever is answered in its place is no watch.
        self.stall.set_watch(false);
        if let Some(watcher) = &self.watcher {
            watcher.abort();
        }
    }
}

/// Cuts a watch off once its client took nothing for so long, from its deadline on or from its end.
async fn cut_off(shared: Weak<BodyShared>, mut from: Instant, stall: Stall) {
    loop {
        // A moment that the clock cannot hold never comes.
        let Some(at) = from.checked_add(stall.limit) else { return };
        sleep_until(at).await;
        let Some(shared) = shared.upgrade() else { return };
        let mut state = shared.lock();
        let taken = stall.taken().map_or(state.asked, |taken| taken.max(state.asked));
        if taken > from {
            from = taken;
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
    use http_body_util::BodyExt;
    use watchcore::{Cache, Change, Code, Error, Event, Position, Start};

    struct NoFraming;

    impl Framing for NoFraming {
        fn event(&mut self, _: &Event, _: &mut Vec<Frame>) -> bool {
            true
        }

        fn failed(&mut self, _: &Error, out: &mut Vec<Frame>) {
            out.push(Frame::new(8, |out| out.extend_from_slice(b"too late")));
        }

        fn deadline(&mut self, _: Position, _: &mut Vec<Frame>) {}
    }

    /// Ends the watch with its first event.
    struct LastWords;

    impl Framing for LastWords {
        fn event(&mut self, _: &Event, out: &mut Vec<Frame>) -> bool {
            out.push(Frame::new(8, |out| out.extend_from_slice(b"the last")));
            false
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

    /// A watch that has only to say that it is too late has no place among the open ones, and no hour for that.
    #[tokio::test(start_paused = true)]
    async fn watch_that_is_refused_is_left() {
        let open = OpenWatches::new(1, 1);
        let error = Error::new(Code::Compacted, "too late");
        let stream = WatchStream::refused(error, NoFraming, open.admit(None).unwrap());
        let limit = Duration::from_secs(5);
        let mut body = transport::respond(stream, "text/plain", Stall { limit, peer: None, stream: None }).into_body();
        assert_eq!(open.count(), 0);
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "too late");
        tokio::time::sleep(limit + Duration::from_secs(1)).await;
        assert!(body.frame().await.is_some_and(|frame| frame.is_err()), "no clean end");
    }

    /// What it said last is taken soon, or not at all: its deadline is far away.
    #[tokio::test(start_paused = true)]
    async fn watch_that_has_ended_is_left() {
        let cache = Cache::builder("/").build().unwrap();
        let open = OpenWatches::new(1, 1);
        let (deadline, limit) = (Duration::from_secs(3600), Duration::from_secs(5));
        let subscription = cache.subscribe(Start::Now).open().unwrap();
        let stream = WatchStream::new(subscription, LastWords, Some(deadline), open.admit(None).unwrap());
        let mut body = transport::respond(stream, "text/plain", Stall { limit, peer: None, stream: None }).into_body();
        cache.writer().unwrap().apply(1, [Change::put("/a", "1")]).unwrap();
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "the last");
        assert_eq!(open.count(), 0, "its place is free");
        tokio::time::sleep(limit + Duration::from_secs(1)).await;
        assert!(body.frame().await.is_some_and(|frame| frame.is_err()), "no clean end");
    }
}
