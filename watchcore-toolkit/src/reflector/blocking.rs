//! A source whose calls block, as one that is polled: each call on a thread of its own.

#![forbid(unsafe_code)]

use super::source::{Entry, ListPage, ListRequest, ListerWatcher, PageFuture, WatchRequest};
use crate::event::{Status, WatchEvent};
use crate::foreign::{guard, wake};
use crate::retry::Opening;
use crate::sync::{Lock, LockGuard};
use crate::watch::{Stopper, Watch};
use futures_core::Stream;
use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Condvar};
use std::task::{Context, Poll, Waker};

/// Events that a watch's thread reads ahead at most.
const AHEAD: usize = 128;

/// A source whose calls block. Wrapped in [`Blocking`] it is a [`ListerWatcher`].
///
/// ```
/// use watchcore_toolkit::{Blocking, BlockingSource, Entry, ListPage, ListRequest, Status, WatchEvent, WatchRequest};
///
/// struct Lines;
/// impl BlockingSource for Lines {
///     type Events = std::vec::IntoIter<WatchEvent<Entry>>;
///     fn list(&self, _: ListRequest) -> Result<ListPage, Status> {
///         Ok(ListPage::new(1, []))
///     }
///     fn watch(&self, request: WatchRequest) -> Result<Self::Events, Status> {
///         let event = WatchEvent::added(Entry::new("/a", "1", request.from + 1));
///         Ok(vec![event].into_iter())
///     }
/// }
/// let _source = Blocking::new(Lines);
/// ```
pub trait BlockingSource: Send + Sync + 'static {
    /// The events of a watch: `next` blocks for one, `None` is the end.
    type Events: Iterator<Item = WatchEvent<Entry>> + Send;

    /// Lists a page.
    fn list(&self, request: ListRequest) -> Result<ListPage, Status>;

    /// Opens a watch.
    fn watch(&self, request: WatchRequest) -> Result<Self::Events, Status>;
}

/// A [`BlockingSource`] as a [`ListerWatcher`]: each call runs on a thread of its own, `watchcore-block`.
///
/// A watch that is stopped ends at once for its reader. Its thread ends when the source's next event comes, or its end: a
/// source should end its watches by the time-out that they are asked with. A call that panics is an error 500. One that takes
/// longer than [`Reflector::answer_timeout`](crate::Reflector::answer_timeout) is made again, and keeps its thread until it
/// returns: a source should bound its calls.
///
/// ```
/// use std::time::Duration;
/// use watchcore::Cache;
/// use watchcore_toolkit::{Blocking, BlockingSource, Reflector};
///
/// fn follow(source: impl BlockingSource) -> watchcore::Result<Cache> {
///     let cache = Cache::builder("/").expect_load(true).build()?;
///     let reflector = Reflector::new(cache.writer()?, Blocking::new(source))?.spawn()?;
///     cache.wait_ready(Duration::from_secs(10))?;
///     std::mem::forget(reflector); // as long as the program lives
///     Ok(cache)
/// }
/// ```
pub struct Blocking<S>(Arc<S>);

impl<S: BlockingSource> Blocking<S> {
    /// Of this source.
    pub fn new(source: S) -> Blocking<S> {
        Blocking(Arc::new(source))
    }
}

impl<S> fmt::Debug for Blocking<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Blocking")
    }
}

impl<S: BlockingSource> ListerWatcher for Blocking<S> {
    type Watch = BlockingWatch;

    fn list(&mut self, request: ListRequest) -> PageFuture {
        let source = Arc::clone(&self.0);
        Box::pin(Answered::of(move |reply| reply.give(called(|| source.list(request)))))
    }

    fn watch(&mut self, request: WatchRequest) -> Opening<BlockingWatch> {
        let source = Arc::clone(&self.0);
        Box::pin(Answered::of(move |reply| {
            let mut events = match called(|| source.watch(request)) {
                Ok(events) => events,
                Err(status) => return reply.give(Err(status)),
            };
            let ahead = Arc::new(ReadAhead::default());
            reply.give(Ok(Some(BlockingWatch(Arc::clone(&ahead)))));
            loop {
                let event = called(|| Ok(events.next())).unwrap_or_else(|status| Some(WatchEvent::error(status)));
                let Some(event) = event else { break };
                // An error is the last event of a watch.
                let is_last = event.status().is_some();
                if !ahead.push(event) || is_last {
                    break;
                }
            }
            ahead.close();
        }))
    }
}

/// A call of the user's code: a panic is an error.
fn called<T>(call: impl FnOnce() -> Result<T, Status>) -> Result<T, Status> {
    guard("the source", call).unwrap_or_else(|panicked| Err(panicked.into()))
}

/// Where a thread leaves the one answer that a future waits for.
struct Reply<T>(Arc<Lock<ReplyCell<T>>>);

/// The answer, and who waits for it.
type ReplyCell<T> = (Option<Result<T, Status>>, Option<Waker>);

impl<T> Reply<T> {
    fn give(&self, answer: Result<T, Status>) {
        let waker = {
            let mut cell = self.0.lock();
            cell.0 = Some(answer);
            cell.1.take()
        };
        wake(waker);
    }
}

/// The answer of a call that runs on a thread of its own from the first poll on. Dropped, the call ends unheard.
struct Answered<T, F> {
    call: Option<F>,
    reply: Reply<T>,
}

impl<T: Send + 'static, F: FnOnce(Reply<T>) + Send + 'static> Answered<T, F> {
    fn of(call: F) -> Answered<T, F> {
        Answered { call: Some(call), reply: Reply(Arc::default()) }
    }
}

impl<T, F> Unpin for Answered<T, F> {}

impl<T: Send + 'static, F: FnOnce(Reply<T>) + Send + 'static> Future for Answered<T, F> {
    type Output = Result<T, Status>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T, Status>> {
        {
            let waker = context.waker().clone();
            let mut cell = self.reply.0.lock();
            if let Some(answer) = cell.0.take() {
                return Poll::Ready(answer);
            }
            let before = cell.1.replace(waker);
            drop(cell);
            drop(before);
        }
        if let Some(call) = self.call.take() {
            let reply = Reply(Arc::clone(&self.reply.0));
            let body = move || call(reply);
            if let Err(error) = watchcore::spawn_feeder("watchcore-block", body) {
                return Poll::Ready(Err(Status::new(503, format!("no thread for a call of the source, {error}"))));
            }
        }
        Poll::Pending
    }
}

/// Between a watch's thread and its reader: at most [`AHEAD`] events.
#[derive(Default)]
struct ReadAhead {
    state: Lock<ReadAheadState>,
    /// Notified when there is room, or nobody reads any more.
    room: Condvar,
}

#[derive(Default)]
struct ReadAheadState {
    events: VecDeque<WatchEvent<Entry>>,
    closed: bool,
    stopped: bool,
    waker: Option<Waker>,
}

impl ReadAhead {
    fn lock(&self) -> LockGuard<'_, ReadAheadState> {
        self.state.lock()
    }

    /// Waits for room. False: nobody reads any more.
    fn push(&self, event: WatchEvent<Entry>) -> bool {
        let mut state = self.lock();
        while state.events.len() >= AHEAD && !state.stopped {
            state = state.wait(&self.room);
        }
        if state.stopped {
            return false;
        }
        state.events.push_back(event);
        let waker = state.waker.take();
        drop(state);
        wake(waker);
        true
    }

    fn close(&self) {
        let waker = {
            let mut state = self.lock();
            state.closed = true;
            state.waker.take()
        };
        wake(waker);
    }

    fn stop(&self) {
        let waker = {
            let mut state = self.lock();
            state.stopped = true;
            state.events.clear();
            state.waker.take()
        };
        self.room.notify_all();
        wake(waker);
    }
}

/// The watch of a [`Blocking`] source.
///
/// ```
/// use watchcore_toolkit::{BlockingWatch, Watch};
///
/// fn is_watch<W: Watch>() {}
/// is_watch::<BlockingWatch>();
/// ```
pub struct BlockingWatch(Arc<ReadAhead>);

impl Stream for BlockingWatch {
    type Item = WatchEvent<Entry>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<WatchEvent<Entry>>> {
        let waker = context.waker().clone();
        let mut state = self.0.lock();
        if let Some(event) = state.events.pop_front() {
            drop(state);
            self.0.room.notify_one();
            return Poll::Ready(Some(event));
        }
        if state.closed || state.stopped {
            return Poll::Ready(None);
        }
        let before = state.waker.replace(waker);
        drop(state);
        drop(before);
        Poll::Pending
    }
}

impl Watch for BlockingWatch {
    type Object = Entry;

    fn stopper(&self) -> Stopper {
        let ahead = Arc::clone(&self.0);
        Stopper::new(move || ahead.stop())
    }
}

impl Drop for BlockingWatch {
    fn drop(&mut self) {
        self.0.stop();
    }
}

impl fmt::Debug for BlockingWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockingWatch").field("ahead", &self.0.lock().events.len()).finish()
    }
}
