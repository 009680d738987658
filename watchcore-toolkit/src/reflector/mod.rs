//! The reflector: what fills an embedded cache from anything that can list and watch.
//!
//! Its states are those of the table at [`Reflector`].

#![forbid(unsafe_code)]

mod blocking;
mod feed;
mod follow;
mod handle;
mod pages;
mod source;
mod status;

pub use blocking::{Blocking, BlockingSource, BlockingWatch};
pub use handle::{ReflectorHandle, ReflectorThread};
pub use source::{Entry, ListAt, ListPage, ListRequest, ListerWatcher, PageFuture, WatchRequest};
pub use status::{ReflectorState, ReflectorStatus};

use crate::asked::{asked, poll_watch};
use crate::awaited::{ANSWER, Awaited};
use crate::backoff::Backoff;
use crate::clock::{Clock, SystemClock, delay_from};
use crate::event::{Payload, Status};
use crate::foreign::Notify;
use crate::park;
use crate::sync::Lock;
use crate::verdict::{Fruitless, RELIST_CALM, Verdict};
use crate::watch::{Signal, Stopper};
use feed::{Feed, Gathering};
use follow::{BUDGET, yield_now};
use handle::{Links, Nudge};
use pages::ListedPages;
use status::StatusCell;
use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use watchcore::{Code, Error, Position, Result, Source, SourceState, Writer};

/// Entries a page, where nothing else is said.
const PAGE: usize = 500;
/// How often a missing end mark is reported.
const MARK_REPORT: Duration = Duration::from_secs(10);

/// Fills an embedded cache from a [`ListerWatcher`]: lists, watches, and never stops trying.
///
/// It owns the cache's writer, so nobody else changes the cache. Everything that reads a cache (subscriptions, informers,
/// typed watches, listers) is the same over this one as over one that follows etcd. It runs as a future on any runtime ([`Reflector::run`]), or on a thread of its own
/// ([`Reflector::spawn`]). When it ends the cache is closed.
///
/// ```
/// use std::future::ready;
/// use std::time::Duration;
/// use watchcore::{Cache, Read};
/// use watchcore_toolkit::{
///     BoxWatch, Entry, ListPage, ListRequest, ListerWatcher, Opening, PageFuture, Reflector, Status, WatchRequest,
/// };
///
/// struct Server;
/// impl ListerWatcher for Server {
///     type Watch = BoxWatch<Entry>;
///     fn list(&mut self, _: ListRequest) -> PageFuture {
///         Box::pin(ready(Ok(ListPage::new(7, [Entry::new("/a", "1", 5)]))))
///     }
///     fn watch(&mut self, _: WatchRequest) -> Opening<BoxWatch<Entry>> {
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
/// # States
///
/// | state | input | next |
/// | --- | --- | --- |
/// | List | all pages: `load` the first time, `resync` after; revision R | Watch(R) |
/// | | 410 or 504 for a revision: list the newest, once without delay, and until a list succeeds | List |
/// | | 410 for a page that is not the first, or pages that have no end or are of several revisions: list again without pages, once without delay | List |
/// | | anything else, or no answer in time: backoff | List |
/// | State (by a watch) | Added, Modified, Deleted: gathered beside the cache | State |
/// | | Synced at R: `load` or `resync`; the same watch goes on | Watch(R) |
/// | | 410, 504: again from any revision, once without delay; 429, 503, no answer in time, the end: backoff | State |
/// | | any other 5xx: backoff; the third in a row | State; List |
/// | | any other error: the source cannot do this | List, for good |
/// | Watch(R) | Added, Modified, Deleted: `apply`, a revision at a time; Bookmark, Synced with a revision: `progress`; the resume point moves with what is proven whole | Watch(R') |
/// | | end of the stream after a newer revision, or after a second without one: watch again from R | Watch(R) |
/// | | silence until half a minute after the watch's time-out: as its end | Watch(R) |
/// | | an end within a second without a newer revision, an end inside a revision, an answer without a watch: a fruitless attempt | below |
/// | | 410, events that do not fit, a bookmark below R: a list, and the difference reaches the readers as a resync. At once, where the last list that came so is longer ago than half a minute; else after the backoff | List |
/// | | 429, 503 (also at open), no answer in time: backoff, and no new list | Watch(R) |
/// | | any other 5xx, a panic of the source: a fruitless attempt | below |
/// | | any other error, an event without a revision: backoff | List |
/// | a fruitless attempt | the first and the second in a row: backoff | Watch(R) |
/// | | the third without a newer revision: backoff | List |
/// | any | stop, or the cache was closed | end |
///
/// A new list of the whole state is what loads a server most: no error leads to one that another watch would mend.
#[must_use = "a reflector does nothing before it runs"]
pub struct Reflector<L: ListerWatcher> {
    source: L,
    feed: Feed,
    options: ReflectorOptions,
    links: Arc<Links>,
    stopper: Stopper,
    /// When a 410 was the last to lead to a list.
    relisted_at: Option<Instant>,
    /// Watches in a row that brought no newer revision.
    fruitless: Fruitless,
    /// The source lacks the revision behind which it would be resumed: lists ask for the newest until one succeeds.
    wants_newest: bool,
}

struct ReflectorOptions {
    page_size: usize,
    initial_watch: bool,
    answer_timeout: Duration,
    backoff: Backoff,
    clock: Arc<dyn Clock>,
}

/// What is to be done next.
enum Step {
    /// List at this state; `true`: without pages.
    List(ListAt, bool),
    /// Read the initial state from a watch, not older than this revision.
    State(u64),
    /// Watch behind the resume point.
    Watch,
}

/// Why the reflector ends.
struct Over;

type Outcome<T> = std::result::Result<T, Over>;

impl<L: ListerWatcher> Reflector<L> {
    /// A reflector that fills the cache of this writer. BUSY where subscriptions of a cache that was born empty are open:
    /// make it with `expect_load`.
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
            answer_timeout: ANSWER,
            backoff: Backoff::default(),
            clock,
        };
        Ok(Reflector {
            source,
            feed: Feed::new(writer),
            options,
            links: Arc::new(links),
            stopper,
            relisted_at: None,
            fruitless: Fruitless::default(),
            wants_newest: false,
        })
    }

    /// Entries a page: 500 if nothing is said, 0 is a list without pages.
    pub fn page_size(mut self, entries: usize) -> Reflector<L> {
        self.options.page_size = entries;
        self
    }

    /// Reads the initial state from a watch that ends it with Synced, instead of from a list. A source that cannot is
    /// listed.
    pub fn initial_watch(mut self, watch: bool) -> Reflector<L> {
        self.options.initial_watch = watch;
        self
    }

    /// How long a page of a list, or the opening of a watch, is waited for: ten and a half minutes if nothing is said, as
    /// long as a watch may be silent at most. What has not come then is dropped, and counts as an error 503.
    pub fn answer_timeout(mut self, timeout: Duration) -> Reflector<L> {
        self.options.answer_timeout = timeout;
        self
    }

    /// How long it waits after failures, if not as [`Backoff::default`].
    pub fn backoff(mut self, backoff: Backoff) -> Reflector<L> {
        self.options.backoff = backoff.with_clock(Arc::clone(&self.options.clock));
        self
    }

    /// Takes the time from this clock, for its backoff too.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Reflector<L> {
        self.options.backoff = self.options.backoff.with_clock(Arc::clone(&clock));
        drop(self.links.clock.replace(Arc::clone(&clock)));
        self.options.clock = clock;
        self
    }

    /// A look at it from elsewhere.
    pub fn handle(&self) -> ReflectorHandle {
        ReflectorHandle { links: Arc::clone(&self.links), stopper: self.stopper.clone() }
    }

    /// Runs it on a thread of its own, `watchcore-reflect`. RESOURCE_EXHAUSTED where the system starts no thread.
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

    /// Runs until it is stopped or the cache is closed. Dropping the future ends it too; the cache is closed then.
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
        // Dropped before the end is reported: a stop waits for no destructor of the source behind it.
        let mut this = self;
        let mut step = if this.options.initial_watch { Step::State(0) } else { Step::List(ListAt::Any, false) };
        loop {
            let next = match step {
                Step::List(at, whole) => this.list(at, whole).await,
                Step::State(from) => this.state(from).await,
                Step::Watch => this.watch().await,
            };
            match next {
                Ok(next) => step = next,
                Err(Over) => return,
            }
        }
    }

    fn enter(&self, state: ReflectorState) {
        self.links.status.enter(state, self.options.clock.now());
    }

    /// Waits for a future, unless it is stopped or the cache is closed.
    async fn unless_over<T>(&mut self, future: impl Future<Output = T>) -> Outcome<T> {
        let mut future = pin!(future);
        poll_fn(|context| match self.is_over(context) {
            true => Poll::Ready(Err(Over)),
            false => future.as_mut().poll(context).map(Ok),
        })
        .await
    }

    /// Waits for an answer of the source as long as it may take.
    async fn answered<T>(
        &mut self,
        answer: Pin<Box<dyn Future<Output = std::result::Result<T, Status>> + Send>>,
    ) -> Outcome<std::result::Result<T, Status>> {
        let answer = Awaited::new(answer, &self.options.clock, self.options.answer_timeout);
        self.unless_over(answer).await
    }

    fn is_over(&mut self, context: &mut Context<'_>) -> bool {
        self.links.nudge.register(context);
        self.links.stop.poll_raised(context) || self.feed.writer.is_closed()
    }

    /// Records a failure, and waits as long as the backoff and the source say.
    async fn back_off(&mut self, what: &str, status: Option<Status>) -> Outcome<()> {
        // Before it is reported: who hears of it may move the clock.
        let failed_at = self.options.clock.now();
        let retry_after = status.as_ref().and_then(Status::retry_after).unwrap_or_default();
        let delay = self.options.backoff.next_delay_of(retry_after);
        if let Some(status) = status {
            self.failed(what, status, delay);
        }
        self.enter(ReflectorState::Waiting);
        let delay = delay_from(&*self.options.clock, failed_at, delay);
        self.unless_over(delay).await
    }

    fn failed(&mut self, what: &str, status: Status, delay: Duration) {
        let (cache, after) = (self.feed.writer.cache_name(), delay.as_millis());
        tracing::warn!(cache, %status, "reflector: {what} failed, next try in {after} ms");
        let error =
            status.error().cloned().unwrap_or_else(|| Error::new(code_of(&status), format!("{what}: {status}")));
        // Never Failed, which ends those who wait for the first listing: it is tried again, and access may be granted. Who
        // reads meanwhile is answered NOT_READY with this error's words.
        self.feed.writer.set_state(SourceState::Stale(error));
        self.links.status.update(|all| all.last_error = Some(status));
    }

    /// The state is in the cache.
    fn synced(&mut self, revision: u64, outside: u64, was_loaded: bool) {
        self.feed.writer.set_state(SourceState::Fresh);
        self.wants_newest = false;
        self.fruitless.reset();
        self.links.status.update(|all| {
            all.ready = true;
            all.revision = revision;
            all.pending = 0;
            all.outside += outside;
            all.resyncs += u64::from(was_loaded);
        });
    }

    /// Lists all pages of a state, and puts it into the cache.
    async fn list(&mut self, at: ListAt, whole: bool) -> Outcome<Step> {
        self.enter(ReflectorState::Listing);
        self.links.status.update(|all| (all.lists, all.pending) = (all.lists + 1, 0));
        let limit = if whole { 0 } else { self.options.page_size };
        let mut request = ListRequest { at, limit, continue_token: None };
        let mut pages = ListedPages::default();
        let (status, is_broken) = loop {
            let page = asked("a list of the source", || self.source.list(request.clone()));
            let added = match self.answered(page).await? {
                Ok(page) => pages.add(page),
                Err(status) => {
                    let is_broken = request.continue_token.is_some() && status.is_gone();
                    break (status, is_broken);
                }
            };
            self.links.status.update(|all| all.pending = pages.entries.len());
            match added {
                Ok(Some(token)) => request.continue_token = Some(token),
                Ok(None) => return self.listed(pages).await,
                Err(status) => break (status, true),
            }
            // A source that is always ready: others run too.
            yield_now().await;
        };
        if is_broken && !whole {
            // The state of its first page is gone, or its pages are none: all at once, then.
            self.links.status.update(|all| all.last_error = Some(status));
            return Ok(Step::List(at, true));
        }
        // A revision that the source has no more, or not yet (another one of it answers): whatever it has.
        if status.lacks_revision() && at != ListAt::Newest {
            self.wants_newest = true;
            self.links.status.update(|all| all.last_error = Some(status));
            return Ok(Step::List(ListAt::Newest, whole));
        }
        self.back_off("a list", Some(status)).await?;
        Ok(Step::List(self.next_list(), false))
    }

    /// Puts a list into the cache, which refuses one that has a key twice, or an object above its own revision.
    async fn listed(&mut self, pages: ListedPages) -> Outcome<Step> {
        let is_placed = pages.revision > 0 || (self.feed.newest() == 0 && pages.entries.is_empty());
        let status = if is_placed {
            match self.feed.replace(pages.revision, &pages.entries) {
                Ok((outside, was_loaded)) => {
                    self.synced(pages.revision, outside, was_loaded);
                    return Ok(Step::Watch);
                }
                Err(error) => error.into(),
            }
        } else {
            Status::new(500, "the list has no revision: a watch cannot begin behind it")
        };
        self.back_off("a list", Some(status)).await?;
        Ok(Step::List(self.next_list(), false))
    }

    /// Which state the next list is of: none that is older than what readers have seen.
    fn next_list(&self) -> ListAt {
        match self.feed.newest() {
            _ if self.wants_newest => ListAt::Newest,
            0 => ListAt::Any,
            revision => ListAt::AtLeast(revision),
        }
    }

    /// The step after an error that a new state mends.
    fn relist(&self) -> Step {
        match self.options.initial_watch {
            true => Step::State(if self.wants_newest { 0 } else { self.feed.newest() }),
            false => Step::List(self.next_list(), false),
        }
    }

    /// A watch has brought nothing new: the backoff, then the watch again, or a list after the third in a row.
    async fn fruitless_watch(&mut self, status: Status) -> Outcome<Step> {
        let is_list_due = self.fruitless.one_more();
        self.back_off("a watch", Some(status)).await?;
        if !is_list_due {
            return Ok(Step::Watch);
        }
        self.fruitless.reset();
        Ok(self.relist())
    }

    fn request(&mut self, from: u64, initial_state: bool) -> WatchRequest {
        self.links.status.update(|all| all.watches += 1);
        // Another time-out for each, by the random numbers of the backoff.
        let spread = Backoff::new(Duration::from_secs(300), Duration::from_secs(300)).with_jitter(1.0).next_delay();
        WatchRequest { from, initial_state, timeout: Duration::from_secs(300) + spread }
    }

    /// Reads the initial state from a watch, then follows that watch.
    async fn state(&mut self, from: u64) -> Outcome<Step> {
        self.enter(ReflectorState::ReadingState);
        let request = self.request(from, true);
        let timeout = request.timeout;
        let opening = asked("the source, asked for a watch,", || self.source.watch(request));
        let status = match self.answered(opening).await? {
            Ok(Some(mut watch)) => match self.gather(&mut watch).await? {
                Ok(()) => {
                    let began = self.options.clock.now();
                    return self.follow(watch, timeout, began).await;
                }
                Err(status) => status,
            },
            Ok(None) => None,
            Err(status) => Some(status),
        };
        self.links.status.update(|all| all.pending = 0);
        let Some(status) = status else {
            self.back_off("the initial state", None).await?;
            return Ok(self.relist());
        };
        if status.lacks_revision() && from != 0 {
            self.wants_newest = true;
            self.links.status.update(|all| all.last_error = Some(status));
            return Ok(Step::State(0));
        }
        match status.verdict() {
            Verdict::Gone | Verdict::Busy => {}
            // Also 504, which the newest state cannot have said of a revision.
            Verdict::Failed => {
                if self.fruitless.one_more() {
                    self.fruitless.reset();
                    self.back_off("the initial state", Some(status)).await?;
                    return Ok(Step::List(self.next_list(), false));
                }
            }
            Verdict::Refused | Verdict::Wrong => {
                let cache = self.feed.writer.cache_name();
                tracing::info!(cache, %status, "reflector: the source gives no initial state by a watch, and is listed");
                self.options.initial_watch = false;
                self.links.status.update(|all| all.last_error = Some(status));
                return Ok(Step::List(self.next_list(), false));
            }
        }
        self.back_off("the initial state", Some(status)).await?;
        Ok(self.relist())
    }

    /// Gathers the initial state beside the cache until its mark. `Err(None)`: the watch has ended before.
    async fn gather(&mut self, watch: &mut L::Watch) -> Outcome<std::result::Result<(), Option<Status>>> {
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
                    // A source that is always ready: others run too, and the report is looked at.
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
            let Some(event) = event else { return Ok(Err(None)) };
            match event.payload {
                Payload::Added(entry) | Payload::Modified { new: entry, .. } => gathering.put(entry),
                Payload::Deleted(Entry { key, .. }) | Payload::DeletedUnknown(key) => gathering.delete(&key),
                Payload::Bookmark => {}
                Payload::Error(status) => return Ok(Err(Some(status))),
                Payload::Synced => {
                    let revision = event.position.revision.max(gathering.newest());
                    return Ok(match self.feed.replace(revision, &gathering.into_entries()) {
                        Ok((outside, was_loaded)) => {
                            self.synced(revision, outside, was_loaded);
                            Ok(())
                        }
                        Err(error) => Err(Some(Status::from(error))),
                    });
                }
            }
            self.links.status.update(|all| all.pending = gathering.len());
        }
    }

    /// Opens a watch behind the resume point, and follows it.
    async fn watch(&mut self) -> Outcome<Step> {
        self.enter(ReflectorState::Opening);
        let began = self.options.clock.now();
        let request = self.request(self.feed.resume, false);
        let timeout = request.timeout;
        let opening = asked("the source, asked for a watch,", || self.source.watch(request));
        match self.answered(opening).await? {
            Ok(Some(watch)) => self.follow(watch, timeout, began).await,
            Ok(None) => self.fruitless_watch(Status::new(503, "the source gave no watch")).await,
            Err(status) => self.watch_failed(status).await,
        }
    }

    async fn watch_failed(&mut self, status: Status) -> Outcome<Step> {
        match status.verdict() {
            Verdict::Gone => {
                let (cache, from) = (self.feed.writer.cache_name(), self.feed.resume);
                tracing::info!(cache, from, %status, "reflector: its history is gone, and the difference comes from a list");
                let now = self.options.clock.now();
                if self.relisted_at.is_some_and(|last| now.saturating_duration_since(last) < RELIST_CALM) {
                    // A source that says so of what it has just listed would be listed without a pause.
                    self.back_off("a watch", Some(status)).await?;
                } else {
                    self.links.status.update(|all| all.last_error = Some(status));
                }
                self.relisted_at = Some(self.options.clock.now());
                Ok(self.relist())
            }
            Verdict::Busy => {
                self.back_off("a watch", Some(status)).await?;
                Ok(Step::Watch)
            }
            Verdict::Failed => self.fruitless_watch(status).await,
            Verdict::Refused | Verdict::Wrong => {
                self.back_off("a watch", Some(status)).await?;
                Ok(self.relist())
            }
        }
    }
}

/// The code that a status of HTTP has in the cache's own numbers.
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
