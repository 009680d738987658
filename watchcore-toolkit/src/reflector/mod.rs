//! The reflector fills an embedded cache from anything that can be listed and watched. It is the
//! driver of a mirror's [`Machine`].

#![forbid(unsafe_code)]

mod feed;
mod follow;
mod handle;
mod status;

pub use handle::{ReflectorHandle, ReflectorThread};
pub use status::{ReflectorState, ReflectorStatus};

use crate::clock::{Clock, SystemClock, delay_from};
use crate::event::{Payload, Status};
use crate::foreign::Notify;
use crate::guarded_source::{DEFAULT_ANSWER_TIMEOUT, guarded_answer, in_time, poll_watch};
use crate::machine::{Attempt, Command, Input, Machine, Policy};
use crate::pages::{ListedPages, PAGE};
use crate::park::{self, yield_now};
use crate::source::{Entry, ListAt, ListPage, ListerWatcher, SourceFuture, WatchRequest};
use crate::sync::Lock;
use crate::watch::{Signal, Stopper, Watch};
use feed::{Feed, Gathering};
use handle::{Links, Nudge};
use status::StatusCell;
use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use watchcore::{Backoff, Code, Error, Position, Result, Source, SourceState, Writer};

/// The interval at which a missing end mark is reported.
const MARK_REPORT: Duration = Duration::from_secs(10);

/// Fills an embedded cache from a [`ListerWatcher`]: lists, watches, and never stops trying.
///
/// It owns the cache's writer, so nothing else changes the cache. Subscriptions, informers, typed watches and listers
/// work over this cache as over one that follows etcd. The reflector runs as a future on any runtime
/// ([`Reflector::run`]), or on its own thread ([`Reflector::spawn`]). When it ends, the cache is closed.
///
/// ```
/// use std::future::ready;
/// use std::time::Duration;
/// use watchcore::{Cache, Read};
/// use watchcore_toolkit::{
///     BoxWatch, Entry, ListPage, ListRequest, ListerWatcher, SourceFuture, Reflector, Status, WatchRequest,
/// };
///
/// struct Server;
/// impl ListerWatcher for Server {
///     type Watch = BoxWatch<Entry>;
///     fn list(&mut self, _: ListRequest) -> SourceFuture<ListPage> {
///         Box::pin(ready(Ok(ListPage::new(7, [Entry::new("/a", "1", 5)]))))
///     }
///     fn watch(&mut self, _: WatchRequest) -> SourceFuture<Option<BoxWatch<Entry>>> {
///         Box::pin(ready(Err(Status::new(503, "out of reach"))))
///     }
/// }
///
/// let cache = Cache::builder("/").expect_load(true).build()?;
/// let reflector = Reflector::new(cache.writer()?, Server)?.spawn()?;
/// cache.wait_ready(Duration::from_secs(10))?;
/// assert_eq!(cache.get("/a", Read::Any)?.kv.unwrap().mod_revision(), 5);
/// println!("{}", reflector.status()); // ready: watches for 3 s (1 lists, 1 watches)
/// reflector.stopper().stop();
/// # Ok::<(), watchcore::Error>(())
/// ```
///
/// # Reactions to errors
///
/// | error of a watch | next |
/// | --- | --- |
/// | 410, events that do not fit, a bookmark below the known revision | a list, whose difference reaches the readers as a resync; at once, if none came so in the last half minute |
/// | 429, 503, no answer in time | the backoff, then the watch; never a list |
/// | any other 5xx, a panic of the source, an answer without a watch, an end inside a revision, or within a second without a newer one | the backoff, then the watch; after the third in a row a list |
/// | any other error, an event without a revision | the backoff, then a list |
/// | half a minute of silence after the time-out of the watch | like its end: the watch again |
///
/// A list that fails is repeated after the backoff: at once for the newest state if the requested revision is gone
/// (410) or not reached yet (504), and at once without pages if a later page is gone or the pages do not end. A list of
/// the whole state is the most expensive request for a server, so no error leads to one if another watch can mend it.
#[must_use = "a reflector does nothing before it runs"]
pub struct Reflector<L: ListerWatcher> {
    source: L,
    feed: Feed,
    options: ReflectorOptions,
    links: Arc<Links>,
    stopper: Stopper,
}

/// The maximum number of events that are taken before other tasks run.
const BUDGET: u64 = 256;

struct ReflectorOptions {
    page_size: usize,
    initial_watch: bool,
    answer_timeout: Duration,
    backoff: Backoff,
    clock: Arc<dyn Clock>,
}

/// The reflector was stopped, or the cache was closed.
struct Over;

type Outcome<T> = std::result::Result<T, Over>;

impl<L: ListerWatcher<Watch: Watch<Object = Entry>>> Reflector<L> {
    /// Makes a reflector that fills the cache of this writer. BUSY if a cache that was made without
    /// `expect_load` has open subscriptions.
    pub fn new(mut writer: Writer, source: L) -> Result<Reflector<L>> {
        let nudge = Arc::new(Nudge::default());
        writer.attach(Arc::clone(&nudge) as Arc<dyn Source>)?;
        let stop = Arc::new(Signal::default());
        let stopper = Stopper::new({
            let stop = Arc::clone(&stop);
            move || stop.raise()
        });
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let links = Links {
            stop,
            nudge,
            status: StatusCell::new(),
            clock: Lock::new(Arc::clone(&clock)),
            ended: Notify::new(),
        };
        let options = ReflectorOptions {
            page_size: PAGE,
            initial_watch: false,
            answer_timeout: DEFAULT_ANSWER_TIMEOUT,
            backoff: Backoff::default(),
            clock,
        };
        Ok(Reflector { source, feed: Feed::new(writer), options, links: Arc::new(links), stopper })
    }

    /// The number of entries per page: the default is 500, 0 is a list without pages.
    pub fn page_size(mut self, entries: usize) -> Reflector<L> {
        self.options.page_size = entries;
        self
    }

    /// Reads the initial state from a watch that ends it with Synced, instead of from a list. A
    /// source that does not support that is listed.
    pub fn initial_watch(mut self, watch: bool) -> Reflector<L> {
        self.options.initial_watch = watch;
        self
    }

    /// The time limit for a page of a list, or for opening a watch: the default is ten and a half minutes, the longest
    /// time for which a watch may be silent. A late answer is dropped, and counts as an error 503.
    pub fn answer_timeout(mut self, timeout: Duration) -> Reflector<L> {
        self.options.answer_timeout = timeout;
        self
    }

    /// The delays after failures; the default is [`Backoff::default`].
    pub fn backoff(mut self, backoff: Backoff) -> Reflector<L> {
        self.options.backoff = backoff;
        self
    }

    /// Sets the clock of all delays.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Reflector<L> {
        drop(self.links.clock.replace(Arc::clone(&clock)));
        self.options.clock = clock;
        self
    }

    /// Returns a handle for the reflector's status.
    pub fn handle(&self) -> ReflectorHandle {
        ReflectorHandle { links: Arc::clone(&self.links), stopper: self.stopper.clone() }
    }

    /// Runs the reflector on its own thread, `watchcore-reflect`. RESOURCE_EXHAUSTED if the system
    /// cannot start a thread.
    pub fn spawn(self) -> Result<ReflectorThread> {
        let handle = self.handle();
        let body = move || {
            park::block_on_future(Duration::MAX, self.run());
        };
        let thread = watchcore::spawn_feeder("watchcore-reflect", body).map_err(|error| {
            let message =
                format!("start the thread of a reflector: {error}. End other threads, or run it as a future.");
            Error::new(Code::ResourceExhausted, message)
        })?;
        Ok(ReflectorThread { handle, thread: Some(thread) })
    }

    /// Runs until the reflector is stopped or the cache is closed. Dropping the future also ends
    /// it, and closes the cache.
    pub async fn run(self) {
        struct Ended(Arc<Links>);
        impl Drop for Ended {
            fn drop(&mut self) {
                if std::thread::panicking() {
                    let status = Status::new(500, "the reflector has panicked: see the log");
                    self.0.status.update(|all| all.last_error = Some(status));
                }
                self.0.status.enter(ReflectorState::Ended, self.0.now());
                self.0.ended.notify(usize::MAX);
            }
        }
        let _ended = Ended(Arc::clone(&self.links));
        // The reflector is dropped before its end is reported, so that `stop` also waits for the source's destructor.
        let mut this = self;
        let by_watch = this.options.initial_watch;
        let mut machine = Machine::new(Policy::Mirror { backoff: this.options.backoff.clone(), by_watch });
        if by_watch {
            machine = machine.starting_with(Attempt::ReadState { any: true });
        }
        let (mut input, mut what, mut watch) = (Input::Due, "a list", None);
        loop {
            let now = this.options.clock.now();
            let said = match machine.step(now, input) {
                Command::Wait(delay, status) => {
                    watch = None;
                    this.wait(what, now, delay, status).await.map(|()| Input::Due)
                }
                Command::Try(Attempt::List { newest, whole }) => {
                    what = "a list";
                    this.list(newest, whole).await
                }
                Command::Try(Attempt::ReadState { any }) => {
                    what = "the initial state";
                    let from = if any { 0 } else { this.feed.newest() };
                    this.open(ReflectorState::ReadingState, from, &mut watch).await
                }
                Command::Try(Attempt::Watch) => {
                    what = "a watch";
                    this.open(ReflectorState::Opening, this.feed.resume, &mut watch).await
                }
                Command::Gather => this.gather(&mut watch.as_mut().expect("a watch is open").0).await,
                Command::Read => {
                    what = "a watch";
                    let newest = this.feed.newest();
                    let (watch, timeout) = watch.take().expect("a watch is open");
                    let said = this.follow(watch, timeout).await;
                    if this.feed.newest() > newest {
                        machine.step(now, Input::Newer);
                    }
                    said
                }
                Command::End(_) => return,
            };
            match said {
                Ok(said) => input = said,
                Err(Over) => return,
            }
        }
    }

    fn enter(&self, state: ReflectorState) {
        self.links.status.enter(state, self.options.clock.now());
    }

    /// Waits for a future, unless the reflector is stopped or the cache is closed.
    async fn unless_over<T>(&mut self, future: impl Future<Output = T>) -> Outcome<T> {
        let mut future = pin!(future);
        poll_fn(|context| match self.is_over(context) {
            true => Poll::Ready(Err(Over)),
            false => future.as_mut().poll(context).map(Ok),
        })
        .await
    }

    /// Waits for an answer of the source, up to its time limit.
    async fn answered<T: 'static>(&mut self, answer: SourceFuture<T>) -> Outcome<std::result::Result<T, Status>> {
        self.unless_over(in_time(answer, &self.options.clock, self.options.answer_timeout)).await
    }

    fn is_over(&mut self, context: &mut Context<'_>) -> bool {
        self.links.nudge.register(context);
        self.links.stop.poll_raised(context) || self.feed.writer.is_closed()
    }

    /// Reports a failure, and waits from `now`: a test that sees the report may advance the clock.
    async fn wait(&mut self, what: &str, now: Instant, delay: Option<Duration>, status: Option<Status>) -> Outcome<()> {
        self.links.status.update(|all| all.pending = 0);
        if let Some(status) = status {
            self.failed(what, status, delay);
        }
        let Some(delay) = delay else { return Ok(()) };
        self.enter(ReflectorState::Waiting);
        let delay = delay_from(&*self.options.clock, now, delay);
        self.unless_over(delay).await
    }

    /// Without a delay another request follows at once, and the cache is not stale yet.
    fn failed(&mut self, what: &str, status: Status, delay: Option<Duration>) {
        let cache = self.feed.writer.cache_name();
        let Some(delay) = delay else {
            tracing::info!(cache, %status, "reflector: {what} failed, and the next request asks in another way");
            return self.links.status.update(|all| all.last_error = Some(status));
        };
        tracing::warn!(cache, %status, "reflector: {what} failed, next try in {} ms", delay.as_millis());
        let error =
            status.error().cloned().unwrap_or_else(|| Error::new(code_of(&status), format!("{what}: {status}")));
        // The state is never Failed, which would end the waits for the first listing: the source is tried again, and
        // access may be granted. Readers get NOT_READY with this error's text meanwhile.
        self.feed.writer.set_state(SourceState::Stale(error));
        self.links.status.update(|all| all.last_error = Some(status));
    }

    /// Records that the state is in the cache.
    fn synced(&mut self, revision: u64, outside: u64, was_loaded: bool) {
        self.feed.writer.set_state(SourceState::Fresh);
        self.links.status.update(|all| {
            all.ready = true;
            all.revision = revision;
            all.pending = 0;
            all.outside += outside;
            all.resyncs += u64::from(was_loaded);
        });
    }

    /// Lists all pages of a state, and stores it in the cache. The state is not older than the one
    /// that readers have seen.
    async fn list(&mut self, newest: bool, whole: bool) -> Outcome<Input> {
        self.enter(ReflectorState::Listing);
        self.links.status.update(|all| (all.lists, all.pending) = (all.lists + 1, 0));
        let at = match self.feed.newest() {
            _ if newest => ListAt::Newest,
            0 => ListAt::Any,
            revision => ListAt::AtLeast(revision),
        };
        let mut pages = ListedPages::new(at, if whole { 0 } else { self.options.page_size });
        loop {
            let page = guarded_answer("a list of the source", || self.source.list(pages.request.clone()));
            let taken = pages.take(self.answered(page).await?);
            self.links.status.update(|all| all.pending = pages.listed.objects.len());
            match taken {
                // The source may always be ready, so other tasks get to run here.
                Ok(true) => yield_now().await,
                Ok(false) => return Ok(self.listed(pages).unwrap_or_else(|failed| failed)),
                Err(failed) => return Ok(failed),
            }
        }
    }

    /// Stores a list in the cache, which refuses a list that has a key twice, or an object above its own revision.
    fn listed(&mut self, pages: ListedPages<Entry>) -> std::result::Result<Input, Input> {
        let ListPage { position, objects, .. } = pages.into_listed(self.feed.newest() == 0)?;
        self.replace(position.revision, &objects).map_err(Input::Failed)
    }

    /// Stores a state in the cache.
    fn replace(&mut self, revision: u64, entries: &[Entry]) -> std::result::Result<Input, Status> {
        let (outside, was_loaded) = self.feed.replace(revision, entries)?;
        self.synced(revision, outside, was_loaded);
        Ok(Input::Synced)
    }

    /// Opens a watch after a revision, or of the state at it.
    async fn open(
        &mut self,
        state: ReflectorState,
        from: u64,
        watch: &mut Option<(L::Watch, Duration)>,
    ) -> Outcome<Input> {
        self.enter(state);
        self.links.status.update(|all| all.watches += 1);
        let request = WatchRequest::new(from.into(), state == ReflectorState::ReadingState);
        let timeout = request.timeout;
        let opening = guarded_answer("the source, asked for a watch,", || self.source.watch(request));
        Ok(match self.answered(opening).await? {
            Ok(Some(opened)) => {
                *watch = Some((opened, timeout));
                Input::Opened
            }
            Ok(None) => Input::Cut(Status::new(503, "the source gave no watch")),
            Err(status) => Input::Failed(status),
        })
    }

    /// Collects the initial state outside of the cache until its end mark.
    async fn gather(&mut self, watch: &mut L::Watch) -> Outcome<Input> {
        let mut gathering = Gathering::default();
        let mut report = self.options.clock.delay(MARK_REPORT);
        let mut waited = Duration::ZERO;
        let mut taken = 0;
        loop {
            let event = poll_fn(|context| {
                if self.is_over(context) {
                    return Poll::Ready(Err(Over));
                }
                if taken < BUDGET {
                    if let Poll::Ready(event) = poll_watch(watch, context) {
                        taken += 1;
                        return Poll::Ready(Ok(Some(event)));
                    }
                } else {
                    // The source may always be ready, so other tasks get to run here, and the
                    // report's timer is checked.
                    context.waker().wake_by_ref();
                }
                taken = 0;
                Pin::new(&mut report).poll(context).map(|()| Ok(None))
            });
            let Some(event) = event.await? else {
                waited += MARK_REPORT;
                let (cache, entries) = (self.feed.writer.cache_name(), gathering.len());
                tracing::warn!(
                    cache,
                    "reflector: no end mark of the initial state after {} s, {entries} entries came; the cache is not ready before it",
                    waited.as_secs()
                );
                report = self.options.clock.delay(MARK_REPORT);
                continue;
            };
            let Some(event) = event else {
                return Ok(Input::Cut(Status::new(503, "the watch ended before the state was whole")));
            };
            match event.payload {
                Payload::Added(entry) | Payload::Modified { new: entry, .. } => gathering.put(entry),
                Payload::Deleted(Entry { key, .. }) | Payload::DeletedUnknown(key) => gathering.delete(&key),
                Payload::Bookmark => {}
                Payload::Error(status) => return Ok(Input::Failed(status)),
                Payload::Synced => {
                    let revision = event.position.revision.max(gathering.newest());
                    let replaced = self.replace(revision, &gathering.into_entries());
                    return Ok(replaced.unwrap_or_else(Input::Failed));
                }
            }
            self.links.status.update(|all| all.pending = gathering.len());
        }
    }
}

/// The cache's error code for an HTTP status.
fn code_of(status: &Status) -> Code {
    match status.code() {
        401 => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        410 => Code::Compacted,
        429 => Code::ResourceExhausted,
        504 => Code::Timeout,
        _ => Code::Unavailable,
    }
}

impl<L: ListerWatcher> fmt::Debug for Reflector<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let position: Position = self.feed.writer.position();
        f.debug_struct("Reflector").field("position", &position).finish_non_exhaustive()
    }
}
