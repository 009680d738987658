//! A source whose calls block, wrapped as a source that is polled: each call runs on its own thread.

#![forbid(unsafe_code)]

use crate::event::{Status, WatchEvent};
use crate::fake::{FakeWatch, send};
use crate::foreign::{guard, wake};
use crate::park;
use crate::pipe::Pipe;
use crate::source::{ListPage, ListRequest, ListerWatcher, SourceFuture, WatchRequest};
use crate::sync::Lock;
use crate::watch::BoxWatch;
use crate::watch_ext::WatchExt;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// The maximum number of events that a watch's thread reads ahead.
const AHEAD: usize = 128;

/// A source made of two functions that block: one lists a page, and one opens a watch, whose events are an iterator:
/// `next` blocks for an event, and `None` is the end. Each call runs on its own thread, `watchcore-block`.
///
/// A stopped watch ends for its reader after the events that were read ahead. Its thread ends when the source's next
/// event or its end arrives: a source should end its watches after the requested time-out. A call that panics counts as
/// an error 500. A call that takes longer than [`Reflector::answer_timeout`](crate::Reflector::answer_timeout) is
/// repeated, and keeps its thread until it returns: a source should limit its calls.
///
/// ```
/// use std::time::Duration;
/// use watchcore::Cache;
/// use watchcore_toolkit::{Blocking, Entry, ListPage, ListRequest, Reflector, WatchEvent, WatchRequest};
///
/// let list = |_: ListRequest| Ok(ListPage::new(1, [Entry::new("/a", "1", 1)]));
/// let watch = |request: WatchRequest| {
///     let event = WatchEvent::added(Entry::new("/b", "1", request.from.revision + 1));
///     Ok(vec![event].into_iter())
/// };
/// let cache = Cache::builder("/").expect_load(true).build()?;
/// let reflector = Reflector::new(cache.writer()?, Blocking::new(list, watch))?.spawn()?;
/// cache.wait_ready(Duration::from_secs(10))?;
/// # drop(reflector);
/// # Ok::<(), watchcore::Error>(())
/// ```
pub struct Blocking<L, W>(Arc<(L, W)>);

impl<L, W> Blocking<L, W> {
    /// A source that calls these functions.
    pub fn new<O, E>(list: L, watch: W) -> Blocking<L, W>
    where
        L: Fn(ListRequest) -> Result<ListPage<O>, Status> + Send + Sync + 'static,
        W: Fn(WatchRequest) -> Result<E, Status> + Send + Sync + 'static,
        E: Iterator<Item = WatchEvent<O>>,
    {
        Blocking(Arc::new((list, watch)))
    }
}

impl<L, W> fmt::Debug for Blocking<L, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Blocking")
    }
}

impl<O, E, L, W> ListerWatcher for Blocking<L, W>
where
    O: Send + 'static,
    L: Fn(ListRequest) -> Result<ListPage<O>, Status> + Send + Sync + 'static,
    W: Fn(WatchRequest) -> Result<E, Status> + Send + Sync + 'static,
    E: Iterator<Item = WatchEvent<O>>,
{
    type Watch = BoxWatch<O>;

    fn list(&mut self, request: ListRequest) -> SourceFuture<ListPage<O>> {
        let source = Arc::clone(&self.0);
        Box::pin(Answered::of(move |reply| reply.give(called(|| (source.0)(request)))))
    }

    fn watch(&mut self, request: WatchRequest) -> SourceFuture<Option<BoxWatch<O>>> {
        let source = Arc::clone(&self.0);
        Box::pin(Answered::of(move |reply| {
            let mut events = match called(|| (source.1)(request)) {
                Ok(events) => events,
                Err(status) => return reply.give(Err(status)),
            };
            let pipe = Arc::new(Pipe::new());
            reply.give(Ok(Some(FakeWatch::of(Arc::clone(&pipe)).boxed())));
            loop {
                let event = called(|| Ok(events.next())).unwrap_or_else(|status| Some(WatchEvent::error(status)));
                let Some(event) = event else { break };
                // An error is the last event of a watch.
                let is_last = event.status().is_some();
                // If the pipe is full, the thread waits until the reader has taken everything.
                let sent = match pipe.has_room(AHEAD) {
                    true => pipe.try_send(event, AHEAD),
                    false => park::block_on_future(Duration::MAX, send(&pipe, event)).unwrap_or(Ok(())),
                };
                if sent.is_err() || is_last {
                    break;
                }
            }
            pipe.stop();
        }))
    }
}

/// Calls the user's code and returns a panic as an error.
fn called<T>(call: impl FnOnce() -> Result<T, Status>) -> Result<T, Status> {
    guard("the source", call).unwrap_or_else(|panicked| Err(panicked.into()))
}

/// The cell in which a thread stores the one answer for a future.
struct Reply<T>(Arc<Lock<ReplyCell<T>>>);

/// The answer, and the waker of the waiting future.
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

/// Waits for a call that runs on its own thread from the first poll on. If this is dropped, the
/// call's result is ignored.
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
