//! A reflector that is polled by hand, over a source that a test has written down.

use crate::script::{Answer, ScriptWatch, Server, Woken};
use std::collections::VecDeque;
use std::future::ready;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::time::Duration;
use watchcore::{Backoff, Cache, Range, Read};
use watchcore_toolkit::{
    Entry, ListAt, ListPage, ListRequest, ListerWatcher, ManualClock, Reflector, ReflectorHandle, SourceFuture, Status,
    WatchEvent, WatchRequest,
};

/// A source whose lists and watches a test has written down. Without more lists it refuses with 503, without more watches
/// it is silent.
pub(crate) struct Scripted {
    lists: VecDeque<Result<ListPage, Status>>,
    requests: Arc<Mutex<Vec<ListRequest>>>,
    watched: Arc<Mutex<Vec<WatchRequest>>>,
    watches: Server<Entry>,
}

impl ListerWatcher for Scripted {
    type Watch = ScriptWatch<Entry>;

    fn list(&mut self, request: ListRequest) -> SourceFuture<ListPage> {
        self.requests.lock().unwrap().push(request);
        Box::pin(ready(self.lists.pop_front().unwrap_or_else(|| Err(Status::new(503, "no more lists")))))
    }

    fn watch(&mut self, request: WatchRequest) -> SourceFuture<Option<ScriptWatch<Entry>>> {
        let from = request.from.revision;
        self.watched.lock().unwrap().push(request);
        Box::pin(ready(self.watches.answer(from)))
    }
}

/// A reflector that a test polls by hand, with a clock of its own.
pub(crate) struct Rig {
    pub(crate) cache: Cache,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) handle: ReflectorHandle,
    pub(crate) requests: Arc<Mutex<Vec<ListRequest>>>,
    pub(crate) watched: Arc<Mutex<Vec<WatchRequest>>>,
    pub(crate) watches: Server<Entry>,
    run: Option<Pin<Box<dyn Future<Output = ()>>>>,
    pub(crate) woken: Arc<Woken>,
}

impl Rig {
    pub(crate) fn new(
        lists: impl IntoIterator<Item = Result<ListPage, Status>>,
        watches: impl IntoIterator<Item = Answer<Entry>>,
    ) -> Rig {
        Rig::with(lists, watches, |reflector| reflector)
    }

    pub(crate) fn with(
        lists: impl IntoIterator<Item = Result<ListPage, Status>>,
        watches: impl IntoIterator<Item = Answer<Entry>>,
        options: impl FnOnce(Reflector<Scripted>) -> Reflector<Scripted>,
    ) -> Rig {
        Rig::of(Cache::builder("/").expect_load(true).build().unwrap(), lists, watches, options)
    }

    /// One of a cache, empty and not loaded yet.
    pub(crate) fn of(
        cache: Cache,
        lists: impl IntoIterator<Item = Result<ListPage, Status>>,
        watches: impl IntoIterator<Item = Answer<Entry>>,
        options: impl FnOnce(Reflector<Scripted>) -> Reflector<Scripted>,
    ) -> Rig {
        let clock = Arc::new(ManualClock::new());
        let watches = Server::new(watches);
        let (requests, watched) = (Arc::default(), Arc::default());
        let source = Scripted {
            lists: lists.into_iter().collect(),
            requests: Arc::clone(&requests),
            watched: Arc::clone(&watched),
            watches: watches.clone(),
        };
        let reflector = Reflector::new(cache.writer().unwrap(), source).unwrap().clock(clock.clone());
        let reflector = options(reflector.backoff(Backoff::default().with_jitter(0.0)));
        let handle = reflector.handle();
        let run: Pin<Box<dyn Future<Output = ()>>> = Box::pin(reflector.run());
        Rig { cache, clock, handle, requests, watched, watches, run: Some(run), woken: Arc::default() }
    }

    /// Polls until it waits for something. Whether it has ended.
    pub(crate) fn settle(&mut self) -> bool {
        let waker = Waker::from(Arc::clone(&self.woken));
        loop {
            let before = self.woken.count();
            let Some(run) = &mut self.run else { return true };
            if run.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
                self.run = None;
            } else if self.woken.count() == before {
                return false;
            }
        }
    }

    /// Lets the next delay pass: how long it was.
    pub(crate) fn pass(&mut self) -> Duration {
        let due = self.clock.next_due().expect("it waits for a delay");
        self.clock.advance(due);
        self.settle();
        due
    }

    /// The server closes the watch, which has lived for long enough, and answers so to the next one.
    pub(crate) fn break_watch(&mut self, answer: Answer<Entry>) {
        self.watches.stops.lock().unwrap().last().unwrap().store(true, Ordering::SeqCst);
        self.clock.advance(Duration::from_secs(5));
        self.watches.push(answer);
        self.settle();
    }

    /// Which states were listed, in the words of Kubernetes: `0`, a revision, or nothing.
    pub(crate) fn listed(&self) -> Vec<String> {
        let requests = self.requests.lock().unwrap();
        let at = requests.iter().filter(|request| request.limit != 1).map(|request| {
            match (request.at, &request.continue_token) {
                (_, Some(token)) => token.clone(),
                (ListAt::Any, None) => "0".to_owned(),
                (ListAt::AtLeast(revision), None) => revision.to_string(),
                (ListAt::Newest, None) => String::new(),
            }
        });
        at.collect()
    }

    /// The cache, as `key=value@revision`.
    pub(crate) fn state(&self) -> String {
        let page = self.cache.list(&Range::all(), Read::Any, 0).unwrap();
        let items = page
            .iter()
            .map(|kv| format!("{}={}@{}", kv.key_str().unwrap(), kv.value_str().unwrap(), kv.mod_revision()));
        items.collect::<Vec<_>>().join(" ")
    }
}

pub(crate) fn entry(key: &str, value: &str, revision: u64) -> Entry {
    Entry::new(key, value, revision)
}

pub(crate) fn added(key: &str, value: &str, revision: u64) -> WatchEvent<Entry> {
    WatchEvent::added(entry(key, value, revision)).at(revision)
}

pub(crate) fn modified(key: &str, value: &str, revision: u64) -> WatchEvent<Entry> {
    WatchEvent::modified(None, entry(key, value, revision)).at(revision)
}

pub(crate) fn deleted(key: &str, revision: u64) -> WatchEvent<Entry> {
    WatchEvent::deleted(entry(key, "", revision)).at(revision)
}

pub(crate) fn error(code: u16) -> WatchEvent<Entry> {
    WatchEvent::error(Status::new(code, "as the test says"))
}

pub(crate) fn page(revision: u64, entries: &[(&str, &str, u64)]) -> Result<ListPage, Status> {
    Ok(ListPage::new(revision, entries.iter().map(|(key, value, revision)| entry(key, value, *revision))))
}

pub(crate) fn fails(code: u16) -> Result<ListPage, Status> {
    Err(Status::new(code, "as the test says"))
}

pub(crate) fn millis(delay: Duration) -> u128 {
    delay.as_millis()
}
