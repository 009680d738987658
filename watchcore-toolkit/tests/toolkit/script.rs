//! Servers that answer what a test says: sources of watches, and lists.

use std::collections::VecDeque;
use std::future::{Ready, ready};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use watchcore::Position;
use watchcore_toolkit::{Status, Stopper, Watch, WatchEvent};

/// A watch of given events. Then it ends, or stays open until it is stopped.
pub(crate) struct ScriptWatch<O> {
    events: VecDeque<WatchEvent<O>>,
    stays: bool,
    stopped: Arc<AtomicBool>,
    waker: Arc<Mutex<Option<Waker>>>,
    /// How many of its server are there.
    living: Arc<AtomicUsize>,
}

impl<O> Drop for ScriptWatch<O> {
    fn drop(&mut self) {
        self.living.fetch_sub(1, Ordering::SeqCst);
    }
}

impl<O: Unpin> futures_core::Stream for ScriptWatch<O> {
    type Item = WatchEvent<O>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<WatchEvent<O>>> {
        *self.waker.lock().unwrap() = Some(context.waker().clone());
        if self.stopped.load(Ordering::SeqCst) {
            return Poll::Ready(None);
        }
        match self.events.pop_front() {
            Some(event) => Poll::Ready(Some(event)),
            None if self.stays => Poll::Pending,
            None => Poll::Ready(None),
        }
    }
}

impl<O: Unpin + Send> Watch for ScriptWatch<O> {
    type Object = O;

    fn stopper(&self) -> Stopper {
        let (stopped, waker) = (Arc::clone(&self.stopped), Arc::clone(&self.waker));
        Stopper::new(move || {
            stopped.store(true, Ordering::SeqCst);
            if let Some(waker) = waker.lock().unwrap().take() {
                waker.wake();
            }
        })
    }
}

/// What a server answers to one request for a watch.
pub(crate) enum Answer<O> {
    /// An error at open.
    Refuse(Status),
    /// An answer without a watch.
    Nothing,
    /// These events, then the end.
    Closes(Vec<WatchEvent<O>>),
    /// These events, then silence.
    Stays(Vec<WatchEvent<O>>),
}

/// A server: its answers in turn, then silence.
pub(crate) struct Server<O> {
    pub(crate) opens: Arc<Mutex<Vec<u64>>>,
    pub(crate) living: Arc<AtomicUsize>,
    pub(crate) stops: Arc<Mutex<Vec<Arc<AtomicBool>>>>,
    answers: Arc<Mutex<VecDeque<Answer<O>>>>,
}

impl<O> Clone for Server<O> {
    fn clone(&self) -> Server<O> {
        Server {
            opens: Arc::clone(&self.opens),
            living: Arc::clone(&self.living),
            stops: Arc::clone(&self.stops),
            answers: Arc::clone(&self.answers),
        }
    }
}

impl<O: Unpin + Send + 'static> Server<O> {
    pub(crate) fn new(answers: impl IntoIterator<Item = Answer<O>>) -> Server<O> {
        Server {
            opens: Arc::default(),
            living: Arc::default(),
            stops: Arc::default(),
            answers: Arc::new(Mutex::new(answers.into_iter().collect())),
        }
    }

    /// A watch of these events, which ends behind them or stays.
    pub(crate) fn watch_of(&self, events: Vec<WatchEvent<O>>, stays: bool) -> ScriptWatch<O> {
        self.living.fetch_add(1, Ordering::SeqCst);
        let stopped = Arc::new(AtomicBool::new(false));
        self.stops.lock().unwrap().push(Arc::clone(&stopped));
        ScriptWatch { events: events.into(), stays, stopped, waker: Arc::default(), living: Arc::clone(&self.living) }
    }

    /// The next answer to a watch from this revision.
    pub(crate) fn answer(&self, from: u64) -> Result<Option<ScriptWatch<O>>, Status> {
        self.opens.lock().unwrap().push(from);
        let answer = self.answers.lock().unwrap().pop_front();
        match answer.unwrap_or(Answer::Stays(Vec::new())) {
            Answer::Refuse(status) => Err(status),
            Answer::Nothing => Ok(None),
            Answer::Closes(events) => Ok(Some(self.watch_of(events, false))),
            Answer::Stays(events) => Ok(Some(self.watch_of(events, true))),
        }
    }

    /// One more answer, behind all others.
    pub(crate) fn push(&self, answer: Answer<O>) {
        self.answers.lock().unwrap().push_back(answer);
    }

    /// As a source of a retrying watch.
    pub(crate) fn source(
        &self,
    ) -> impl FnMut(Position) -> Ready<Result<Option<ScriptWatch<O>>, Status>> + Send + 'static {
        let server = self.clone();
        move |from| ready(server.answer(from.revision))
    }

    pub(crate) fn opens(&self) -> Vec<u64> {
        self.opens.lock().unwrap().clone()
    }
}

/// Counts how often it was woken.
#[derive(Default)]
pub(crate) struct Woken(AtomicUsize);

impl Woken {
    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl std::task::Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A waker that panics, after it has counted.
#[derive(Default)]
pub(crate) struct PanicsWoken(Woken);

impl PanicsWoken {
    pub(crate) fn count(&self) -> usize {
        self.0.count()
    }
}

impl std::task::Wake for PanicsWoken {
    fn wake(self: Arc<Self>) {
        self.0.0.fetch_add(1, Ordering::SeqCst);
        panic!("a waker's fault");
    }
}
