//! The socket of a connection: bytes that were read ahead, and what the connection is about.
//!
//! hyper is given the socket and gives it back only where it is taken apart. So what has to be known outside of hyper
//! (are requests being answered, does the client take what is written, has it begun another request, is the socket closed)
//! is told by the socket and the service to one [`Activity`], which the task of the connection looks at after each turn.

use crate::api::Limits;
use bytes::Bytes;
use std::future::Future;
use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep};

/// A socket, and bytes of it that were read already.
pub(super) struct Socket<IO> {
    io: IO,
    ahead: Bytes,
    activity: Arc<Activity>,
}

/// What a connection is about. Relaxed all through: one task reads it, and is woken by what happened.
#[derive(Default)]
pub(super) struct Activity {
    /// Requests whose answer is not complete.
    answering: AtomicUsize,
    /// On HTTP/2 answers become complete on tasks of their own.
    on_answered: Notify,
    /// Its open watches, whose clients may take nothing until their deadlines.
    watches: Arc<AtomicUsize>,
    /// A write waits for the client.
    blocked: AtomicBool,
    /// Since when: since the last byte that was taken, or since there was one to take.
    blocked_since: Mutex<Option<Instant>>,
    /// Bytes came since the head of the last request was complete.
    heard: AtomicBool,
    /// A request came.
    asked: AtomicBool,
    /// An answer is complete, but for bytes of it that hyper may still have.
    unflushed: AtomicBool,
    /// The socket was dropped, by hyper or by who took it over.
    closed: AtomicBool,
    on_close: Notify,
    /// The socket was taken over by another task; it is cut off through these.
    upgraded: AtomicBool,
    cut: AtomicBool,
    wakers: Mutex<[Option<Waker>; 2]>,
}

/// A request that is being answered, until this is dropped.
pub(super) struct Answering(Arc<Activity>);

impl<IO> Socket<IO> {
    /// `ahead` is read before what comes.
    pub(super) fn new(io: IO, ahead: Bytes, activity: Arc<Activity>) -> Socket<IO> {
        Socket { io, ahead, activity }
    }

    /// Bytes of the next request that were read meanwhile: they come first.
    pub(super) fn put_back(&mut self, bytes: Bytes) {
        debug_assert!(self.ahead.is_empty(), "who reads on has read what was ahead");
        self.ahead = bytes;
    }

    /// Notes whether a write waits for the client, and since when.
    fn wrote<T>(&self, written: Poll<T>) -> Poll<T> {
        let activity = &self.activity;
        let (is, was) = (written.is_pending(), activity.blocked.load(Relaxed));
        // A socket that takes everything costs nothing more than this look.
        if is != was {
            *activity.blocked_since.lock().unwrap_or_else(PoisonError::into_inner) = is.then(Instant::now);
            activity.blocked.store(is, Relaxed);
        }
        written
    }

    /// Notes who waits, where the connection's own task does not see the end of the server. `Err`: it was cut off.
    fn note(&self, side: usize, context: &Context<'_>) -> io::Result<()> {
        let activity = &self.activity;
        if !activity.upgraded.load(Relaxed) {
            return Ok(());
        }
        let mut wakers = activity.wakers.lock().unwrap_or_else(PoisonError::into_inner);
        // Under the lock: a cut that comes later finds the waker.
        if activity.cut.load(Relaxed) {
            return Err(io::Error::new(ErrorKind::ConnectionAborted, "the server ends"));
        }
        match &mut wakers[side] {
            Some(waker) => waker.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
        Ok(())
    }
}

impl<IO> Drop for Socket<IO> {
    fn drop(&mut self) {
        self.activity.closed.store(true, Relaxed);
        self.activity.on_close.notify_one();
    }
}

impl Activity {
    /// `watches` counts the open watches of the connection.
    pub(super) fn new(watches: Arc<AtomicUsize>) -> Activity {
        Activity { watches, ..Activity::default() }
    }

    /// Waits until an answer has become complete, and no other is on its way.
    pub(super) async fn answered(&self) {
        self.on_answered.notified().await;
    }

    /// Since when the client takes nothing of what is written.
    fn blocked_since(&self) -> Option<Instant> {
        *self.blocked_since.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The head of a request is complete.
    pub(super) fn answer(self: &Arc<Self>) -> Answering {
        self.answering.fetch_add(1, Relaxed);
        self.heard.store(false, Relaxed);
        self.asked.store(true, Relaxed);
        Answering(self.clone())
    }

    /// Nothing was ever heard.
    pub(super) fn is_fresh(&self) -> bool {
        !self.asked.load(Relaxed) && !self.heard.load(Relaxed)
    }

    /// Whether hyper has written all of the answers so far: where it is taken apart before, what it has is lost.
    pub(super) fn is_flushed(&self) -> bool {
        !self.unflushed.load(Relaxed)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Relaxed)
    }

    /// hyper is about to give the socket away. It is known before the socket is used there, so that no wait is missed.
    pub(super) fn upgrade(&self) {
        self.upgraded.store(true, Relaxed);
    }

    /// Waits until who took the socket over drops it. Where this is dropped before, polled or not, the socket is cut off.
    pub(super) fn closed(self: &Arc<Self>) -> impl Future<Output = ()> + Send + use<> {
        struct Cut(Arc<Activity>);
        impl Drop for Cut {
            fn drop(&mut self) {
                self.0.cut();
            }
        }
        let cut = Cut(self.clone());
        async move {
            while !cut.0.is_closed() {
                cut.0.on_close.notified().await;
            }
        }
    }

    fn cut(&self) {
        let mut wakers = self.wakers.lock().unwrap_or_else(PoisonError::into_inner);
        self.cut.store(true, Relaxed);
        let taken = std::mem::take(&mut *wakers);
        drop(wakers);
        taken.into_iter().flatten().for_each(Waker::wake);
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.unflushed.store(true, Relaxed);
        if self.0.answering.fetch_sub(1, Relaxed) == 1 {
            self.0.on_answered.notify_one();
        }
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for Socket<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.note(0, context)?;
        let before = buffer.filled().len();
        if !self.ahead.is_empty() {
            let taken = self.ahead.len().min(buffer.remaining());
            let taken = self.ahead.split_to(taken);
            buffer.put_slice(&taken);
        } else {
            std::task::ready!(Pin::new(&mut self.io).poll_read(context, buffer))?;
        }
        if buffer.filled().len() > before {
            self.activity.heard.store(true, Relaxed);
        }
        Poll::Ready(Ok(()))
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for Socket<IO> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.note(1, context)?;
        let written = Pin::new(&mut self.io).poll_write(context, bytes);
        self.wrote(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.note(1, context)?;
        let written = Pin::new(&mut self.io).poll_write_vectored(context, slices);
        self.wrote(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.note(1, context)?;
        let flushed = Pin::new(&mut self.io).poll_flush(context);
        std::task::ready!(self.wrote(flushed))?;
        // hyper flushes the socket when it has nothing left itself.
        self.activity.unflushed.store(false, Relaxed);
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.note(1, context)?;
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}

/// What a client is given time for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pace {
    /// An answer is made, and what is made of it is taken: as long as it takes.
    Answering,
    /// What is written waits for the client, which has taken nothing since then.
    Taking(Instant),
    /// The head of a request, of which a part may be there.
    Head,
    /// Between two requests.
    Idle,
    /// The connection is closing.
    Last,
}

/// The time that a connection has for what it is about.
pub(super) struct Patience {
    header: Duration,
    idle: Duration,
    stall: Duration,
    /// Whether bytes between two requests begin the next: on HTTP/2 they are mostly something else.
    heeds_bytes: bool,
    pace: Pace,
    timer: Option<Pin<Box<Sleep>>>,
}

/// How long a connection that is told to close may take for it.
const LAST: Duration = Duration::from_secs(2);

impl Patience {
    /// `begun`: when the connection waited for its first head, of which a part may have been read since.
    pub(super) fn new(limits: &Limits, heeds_bytes: bool, begun: Instant) -> Patience {
        let Limits { header_timeout: header, idle, stall, .. } = *limits;
        let timer = begun.checked_add(header).map(|at| Box::pin(tokio::time::sleep_until(at)));
        Patience { header, idle, stall, heeds_bytes, pace: Pace::Head, timer }
    }

    /// Ready when the time is over, with what it was for. It is to be polled behind each poll of the connection.
    pub(super) fn poll_expired(&mut self, context: &mut Context<'_>, activity: &Activity) -> Poll<Pace> {
        let pace = self.pace_of(activity);
        if pace != self.pace {
            self.pace = pace;
            // A moment that the clock cannot hold never comes.
            let at = match pace {
                Pace::Answering => None,
                Pace::Taking(since) => since.checked_add(self.stall),
                Pace::Head => Instant::now().checked_add(self.header),
                Pace::Idle => Instant::now().checked_add(self.idle),
                Pace::Last => Instant::now().checked_add(LAST),
            };
            self.timer = at.map(|at| Box::pin(tokio::time::sleep_until(at)));
        }
        match &mut self.timer {
            Some(timer) => timer.as_mut().poll(context).map(|()| pace),
            None => Poll::Pending,
        }
    }

    /// The connection was told to close.
    pub(super) fn last(&mut self) {
        self.pace = Pace::Last;
        self.timer = Some(Box::pin(tokio::time::sleep(LAST)));
    }

    fn pace_of(&self, activity: &Activity) -> Pace {
        let is_heard = self.heeds_bytes && activity.heard.load(Relaxed);
        let is_answering = activity.answering.load(Relaxed) > 0;
        if self.pace == Pace::Last && !is_answering {
            Pace::Last
        } else if let Some(since) = activity.blocked_since()
            && activity.watches.load(Relaxed) == 0
        {
            // Also behind an answer that hyper has all of, and before the next one: it is not sent yet.
            Pace::Taking(since)
        } else if is_answering {
            Pace::Answering
        } else if is_heard || !activity.asked.load(Relaxed) {
            Pace::Head
        } else {
            Pace::Idle
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn bytes_ahead_come_first() {
        let (mut client, server) = tokio::io::duplex(64);
        let activity = Arc::new(Activity::default());
        let mut socket = Socket::new(server, Bytes::from_static(b"GET "), activity.clone());
        client.write_all(b"/ HTTP/1.1").await.unwrap();
        assert!(activity.is_fresh());
        let mut two = [0; 2];
        socket.read_exact(&mut two).await.unwrap();
        assert!(!activity.is_fresh());
        let mut rest = [0; 12];
        socket.read_exact(&mut rest).await.unwrap();
        assert_eq!((&two, &rest), (b"GE", b"T / HTTP/1.1"));
    }

    #[tokio::test]
    async fn a_socket_taken_over_can_be_cut() {
        let (_client, server) = tokio::io::duplex(64);
        let activity = Arc::new(Activity::default());
        let mut socket = Socket::new(server, Bytes::new(), activity.clone());
        activity.upgrade();
        let waiting = tokio::spawn({
            let activity = activity.clone();
            async move { activity.closed().await }
        });
        tokio::task::yield_now().await;
        let reading = tokio::spawn(async move { socket.read_u8().await });
        tokio::task::yield_now().await;
        waiting.abort();
        let ended = tokio::time::timeout(Duration::from_secs(10), reading).await.expect("it ends").unwrap();
        assert_eq!(ended.unwrap_err().kind(), ErrorKind::ConnectionAborted);
        assert!(activity.is_closed());
    }

    /// What was read before hyper began counts: the first head has its time from the beginning on.
    #[tokio::test(start_paused = true)]
    async fn first_head_is_due_from_the_beginning() {
        let limits = Limits::default();
        let begun = Instant::now();
        let almost = limits.header_timeout - Duration::from_secs(1);
        tokio::time::sleep(almost).await;
        for heeds_bytes in [true, false] {
            let activity = Activity::default();
            activity.heard.store(true, Relaxed);
            let mut patience = Patience::new(&limits, heeds_bytes, begun);
            assert_eq!(poll_fn(|context| patience.poll_expired(context, &activity)).await, Pace::Head);
            assert_eq!(begun.elapsed().as_secs(), limits.header_timeout.as_secs());
        }
    }

    /// The stage that waits for it may go before it has run.
    #[tokio::test]
    async fn a_socket_that_nobody_waits_for_is_cut() {
        let (_client, server) = tokio::io::duplex(64);
        let activity = Arc::new(Activity::default());
        let mut socket = Socket::new(server, Bytes::new(), activity.clone());
        activity.upgrade();
        drop(activity.closed());
        let ended = tokio::time::timeout(Duration::from_secs(10), socket.read_u8()).await.expect("it ends");
        assert_eq!(ended.unwrap_err().kind(), ErrorKind::ConnectionAborted);
    }

    /// The clock stands still but for the waits of the test.
    #[tokio::test(start_paused = true)]
    async fn each_pace_has_its_time() {
        const HEAD: Duration = Duration::from_secs(10);
        const IDLE: Duration = Duration::from_secs(120);
        let activity = Arc::new(Activity::default());
        let mut limits = Limits::default();
        (limits.header_timeout, limits.idle) = (HEAD, IDLE);
        let mut patience = Patience::new(&limits, true, Instant::now());
        let mut expired = async |within| {
            tokio::time::timeout(within, poll_fn(|context| patience.poll_expired(context, &activity))).await.ok()
        };
        assert_eq!(expired(HEAD - Duration::from_secs(1)).await, None);
        let answering = activity.answer();
        assert_eq!(expired(IDLE * 10).await, None, "an answer takes as long as it takes");
        drop(answering);
        assert_eq!(expired(IDLE - Duration::from_secs(1)).await, None, "the time of a head is not that between two");
        activity.heard.store(true, Relaxed);
        assert_eq!(expired(HEAD - Duration::from_secs(1)).await, None, "from the first byte on");
        assert_eq!(expired(Duration::from_secs(2)).await, Some(Pace::Head));
        drop(activity.answer());
        assert_eq!(expired(IDLE + Duration::from_secs(1)).await, Some(Pace::Idle));
        patience.last();
        let mut expired = poll_fn(|context| patience.poll_expired(context, &activity));
        assert_eq!(tokio::time::timeout(LAST * 2, &mut expired).await, Ok(Pace::Last));
    }
}
