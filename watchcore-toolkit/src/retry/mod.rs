//! A watch that survives its server.
//!
//! Its states are those of the table at [`RetryWatch`].

#![forbid(unsafe_code)]

mod cache_source;
mod relist;
mod source;

pub use cache_source::CacheSource;
pub use source::{ListSource, Listing, ListingFuture, Opening, WatchSource};

use crate::asked::{asked, poll_watch};
use crate::awaited::{ANSWER, Awaited};
use crate::clock::{Clock, Delay, SystemClock, delay_from};
use crate::event::{Payload, Status, WatchEvent};
use crate::keyed::Keyed;
use crate::sync::Lock;
use crate::verdict::{Fruitless, RELIST_CALM, SHORT, Verdict};
use crate::watch::{Signal, Stopper, Watch};
use futures_core::Stream;
use relist::{Relist, Relisting};
use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use watchcore::{Code, Error, Position, Result};

/// How many inputs one poll takes at most that make no event, before it lets others run.
const BUDGET: usize = 64;

type ObjectOf<S> = <<S as WatchSource>::Watch as Watch>::Object;

/// A watch over anything with `watch(from)` that opens it again where it was.
///
/// It gives each event once, in order, and ends with an Error where it cannot go on: access was refused (401, 403), the
/// history is gone (410) and it has no lister, or an event has no revision. All other errors are waited out; see
/// [`RetryWatch::last_status`]. With a lister it gives the difference with what it has given, and goes on. The events of a
/// revision that a connection has cut in two come again behind the cut: with a lister those that were given are left out,
/// without one they are given twice.
///
/// ```
/// use std::time::Duration;
/// use watchcore::{Cache, Change, KeyValue};
/// use watchcore_toolkit::{CacheSource, RetryWatch, WatchExt};
///
/// let cache = Cache::builder("/").build()?;
/// let mut writer = cache.writer()?;
/// writer.apply(5, [Change::put("/a", "1")])?;
/// let mut watch = RetryWatch::open(CacheSource::<KeyValue>::new(&cache), 5)?;
/// writer.apply(6, [Change::put("/a", "2")])?;
/// let event = watch.recv(Duration::from_secs(10))?.unwrap();
/// assert_eq!((event.name(), event.position.revision), ("MODIFIED", 6));
/// # Ok::<(), watchcore::Error>(())
/// ```
///
/// # States
///
/// | state | input | next |
/// | --- | --- | --- |
/// | Open | ok | Read |
/// | | 401, 403, a cache that is closed or broken for good | Error, end |
/// | | 410 | as in Read: one rule, wherever it comes |
/// | | 429, 503, no answer in time | Open, after the delay and not before its Retry-After |
/// | | no watch, any other error | a fruitless attempt |
/// | Read | Added, Modified, Deleted with a revision | given; then the resume point moves |
/// | | Bookmark, Synced with a revision | not given; the resume point moves |
/// | | another one without a revision | Error 500, end |
/// | | a revision below the resume point | as 410: the source has another history |
/// | | Synced without a revision | not given |
/// | | Error 410, policy Stop | Error, end |
/// | | Error 410, policy Relist | List |
/// | | Error of a cache that is closed or broken for good | Error, end |
/// | | Error 429, 503 | Open, after the delay and not before its Retry-After |
/// | | any other Error, an end within a second without a newer revision | a fruitless attempt |
/// | | the end | Open, after the delay |
/// | a fruitless attempt | policy Stop; policy Relist, and fewer than three in a row, or a list in the last 30 s | Open, after the delay and not before its Retry-After |
/// | | policy Relist, the third without a newer revision | List |
/// | List | a state | the difference with what was given; then Open behind it, at once |
/// | | 401, 403 | Error, end |
/// | | a state without a revision, but for the empty one at the beginning; no answer in time, any other error | List, after the delay |
/// | any | stop | end |
///
/// **The delay** counts from the *beginning* of the last attempt: a watch that lived for longer is opened again at once, one
/// that fails hot once in `min_restart_delay`. A list after a 410 comes at once, the next one not before the delay. So
/// neither a server that answers 410 to every revision, nor one that answers 410 to the revision that it has just listed,
/// is asked more often than once in a delay.
#[must_use = "dropping a watch ends it"]
pub struct RetryWatch<S: WatchSource> {
    source: S,
    relist: Option<Box<dyn Relist<ObjectOf<S>>>>,
    clock: Arc<dyn Clock>,
    min_restart_delay: Duration,
    answer_timeout: Duration,
    state: RetryState<S>,
    /// To be given before anything else is done.
    ready: VecDeque<WatchEvent<ObjectOf<S>>>,
    /// Behind the last event that was given: where it is opened again.
    resume: Position,
    /// Lost before the next event that is given: by what was not given, and by differences that were empty.
    lost: u64,
    /// The resume point of the last attempt to open: one that has not moved it has brought nothing.
    opened_behind: Position,
    /// Such attempts in a row.
    fruitless: Fruitless,
    opened_at: Option<Instant>,
    listed_at: Option<Instant>,
    opens: u64,
    lists: u64,
    last_status: Option<Status>,
    stop: Arc<RetryStop>,
    stopper: Stopper,
}

enum RetryState<S: WatchSource> {
    /// Without a delay: at once.
    Waiting(Option<Delay>, Attempt),
    Opening(Awaited<Option<S::Watch>>),
    Reading(S::Watch),
    Listing(Awaited<Listing<ObjectOf<S>>>),
    Ended,
}

/// The attempt that follows a delay.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Attempt {
    Open,
    List,
}

/// A stop ends the wait of the consumer, and the watch below.
#[derive(Default)]
struct RetryStop {
    signal: Signal,
    below: Lock<Option<Stopper>>,
}

impl RetryStop {
    /// Raised before it takes, while who opens stores before it looks: one of them stops the new watch.
    fn stop(&self) {
        self.signal.raise();
        let below = self.below.replace(None);
        if let Some(below) = below {
            below.stop();
        }
    }

    fn opened(&self, below: Stopper) {
        drop(self.below.replace(Some(below.clone())));
        if self.signal.is_raised() {
            below.stop();
        }
    }
}

/// Options of a [`RetryWatch`].
///
/// ```
/// use std::time::Duration;
/// use watchcore::{Cache, Change, KeyValue};
/// use watchcore_toolkit::{CacheSource, RetryWatch, WatchExt};
///
/// let cache = Cache::builder("/").build()?;
/// let mut writer = cache.writer()?;
/// writer.apply(5, [Change::put("/a", "1")])?;
/// writer.compact(5)?;
/// let source = CacheSource::<KeyValue>::new(&cache);
/// let mut watch = RetryWatch::builder(source.clone(), 2).relist(source).open()?; // 3 and 4 are gone
/// let event = watch.recv(Duration::from_secs(10))?.unwrap();
/// assert_eq!((event.name(), event.lost), ("ADDED", 3));
/// # Ok::<(), watchcore::Error>(())
/// ```
#[must_use = "nothing is watched before `open`"]
pub struct RetryWatchBuilder<S: WatchSource> {
    source: S,
    from: Position,
    relist: Option<Box<dyn Relist<ObjectOf<S>>>>,
    clock: Arc<dyn Clock>,
    min_restart_delay: Duration,
    answer_timeout: Duration,
}

impl<S: WatchSource> RetryWatchBuilder<S> {
    /// Policy after a 410: list, give the difference with what was given, and go on behind it. It keeps what was given, by
    /// a clone an object. What it was not given itself, because `from` lies behind it, is not known to it: objects of the
    /// listing come as Added then. With a lister `from` may be 0: the watch begins with the listed state and Synced.
    ///
    /// Without this (policy Stop) a 410 is given as an Error, and ends the watch.
    pub fn relist(self, lister: impl ListSource<ObjectOf<S>>) -> RetryWatchBuilder<S>
    where
        ObjectOf<S>: Keyed + Clone + Send + 'static,
    {
        RetryWatchBuilder { relist: Some(Box::new(Relisting::new(lister))), ..self }
    }

    /// How far apart attempts begin at least: 1 s if nothing is said.
    pub fn min_restart_delay(self, delay: Duration) -> RetryWatchBuilder<S> {
        RetryWatchBuilder { min_restart_delay: delay, ..self }
    }

    /// How long the opening of a watch, or a list, is waited for: ten and a half minutes if nothing is said. What has not
    /// come then is dropped, and counts as an error 503. A watch that is open may be silent for any time.
    pub fn answer_timeout(self, timeout: Duration) -> RetryWatchBuilder<S> {
        RetryWatchBuilder { answer_timeout: timeout, ..self }
    }

    /// Takes the time from this clock.
    pub fn clock(self, clock: Arc<dyn Clock>) -> RetryWatchBuilder<S> {
        RetryWatchBuilder { clock, ..self }
    }

    /// Makes the watch; the source is asked by its first poll. INVALID_ARGUMENT where it shall begin at 0 without a lister.
    pub fn open(mut self) -> Result<RetryWatch<S>> {
        if self.from == Position::default() && self.relist.is_none() {
            return Err(Error::new(
                Code::InvalidArgument,
                "retry a watch from revision 0: that is no place to resume at. List first and begin at the list's revision, or \
                 give it a lister.",
            ));
        }
        let stop = Arc::new(RetryStop::default());
        let attempt = match &mut self.relist {
            Some(relist) if self.from == Position::default() => {
                relist.begin();
                Attempt::List
            }
            _ => Attempt::Open,
        };
        let stopper = Stopper::new({
            let stop = Arc::clone(&stop);
            move || stop.stop()
        });
        Ok(RetryWatch {
            source: self.source,
            relist: self.relist,
            clock: self.clock,
            min_restart_delay: self.min_restart_delay,
            answer_timeout: self.answer_timeout,
            state: RetryState::Waiting(None, attempt),
            ready: VecDeque::new(),
            resume: self.from,
            lost: 0,
            opened_behind: self.from,
            fruitless: Fruitless::default(),
            opened_at: None,
            listed_at: None,
            opens: 0,
            lists: 0,
            last_status: None,
            stop,
            stopper,
        })
    }
}

impl<S: WatchSource> fmt::Debug for RetryWatchBuilder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryWatchBuilder").field("from", &self.from).finish_non_exhaustive()
    }
}

impl<S: WatchSource> RetryWatch<S> {
    /// A watch of everything behind `from`. INVALID_ARGUMENT for revision 0.
    pub fn open(source: S, from: impl Into<Position>) -> Result<RetryWatch<S>> {
        RetryWatch::builder(source, from).open()
    }

    /// Options of a watch of everything behind `from`.
    pub fn builder(source: S, from: impl Into<Position>) -> RetryWatchBuilder<S> {
        let (from, clock) = (from.into(), Arc::new(SystemClock));
        let min_restart_delay = Duration::from_secs(1);
        RetryWatchBuilder { source, from, relist: None, clock, min_restart_delay, answer_timeout: ANSWER }
    }

    /// Behind the last event that was given, or the last bookmark: where it is opened again.
    pub fn position(&self) -> Position {
        self.resume
    }

    /// How often the source was asked for a watch.
    pub fn opens(&self) -> u64 {
        self.opens
    }

    /// How often the lister was asked.
    pub fn lists(&self) -> u64 {
        self.lists
    }

    /// Why it is not watching now, or was not the last time.
    pub fn last_status(&self) -> Option<&Status> {
        self.last_status.as_ref()
    }

    /// Tries `attempt` when its delay is over, and not before `retry_after`.
    fn retry(&mut self, attempt: Attempt, retry_after: Option<Duration>) {
        let now = self.clock.now();
        let began = match attempt {
            Attempt::Open => self.opened_at,
            Attempt::List => self.listed_at,
        };
        let lived = began.map_or(Duration::MAX, |began| now.saturating_duration_since(began));
        let wait = self.min_restart_delay.saturating_sub(lived).max(retry_after.unwrap_or_default());
        let delay = (!wait.is_zero()).then(|| delay_from(&*self.clock, now, wait));
        self.state = RetryState::Waiting(delay, attempt);
    }

    /// Gives an error, and ends behind it.
    fn fail(&mut self, status: Status) {
        self.ready.push_back(WatchEvent::error(status).at(self.resume));
        self.state = RetryState::Ended;
    }

    /// Decides what follows an error, wherever it comes.
    fn failed(&mut self, attempt: Attempt, status: Status) {
        self.last_status = Some(status.clone());
        if status.error().is_some_and(Error::is_fatal) {
            return self.fail(status);
        }
        match (attempt, status.verdict()) {
            (Attempt::List, _) | (_, Verdict::Busy) => self.retry(attempt, status.retry_after()),
            (Attempt::Open, Verdict::Gone) => match &self.relist {
                Some(_) => self.retry(Attempt::List, status.retry_after()),
                None => self.fail(status),
            },
            _ => self.fruitless(status.retry_after()),
        }
    }

    /// A watch has failed, or ended at once: it is opened again, or listed after the third in a row that brought nothing.
    fn fruitless(&mut self, retry_after: Option<Duration>) {
        if self.resume != self.opened_behind {
            self.fruitless.reset();
        }
        let is_due = self.fruitless.one_more();
        let now = self.clock.now();
        let is_calm = self.listed_at.is_none_or(|last| now.saturating_duration_since(last) >= RELIST_CALM);
        let attempt = if is_due && is_calm && self.relist.is_some() { Attempt::List } else { Attempt::Open };
        self.retry(attempt, retry_after);
    }

    /// The watch has ended without an error.
    fn ended(&mut self) {
        let lived = self.opened_at.map_or(Duration::MAX, |began| self.clock.now().saturating_duration_since(began));
        if self.resume == self.opened_behind && lived < SHORT {
            return self.fruitless(None);
        }
        self.fruitless.reset();
        self.retry(Attempt::Open, None);
    }

    /// One step: `Ready` where something has changed.
    fn step(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match &mut self.state {
            RetryState::Waiting(delay, attempt) => {
                if let Some(delay) = delay {
                    ready!(Pin::new(delay).poll(context));
                }
                match *attempt {
                    Attempt::Open => {
                        self.opened_at = Some(self.clock.now());
                        self.opened_behind = self.resume;
                        self.opens += 1;
                        let opening = asked("the source, asked for a watch,", || self.source.watch(self.resume));
                        self.state = RetryState::Opening(Awaited::new(opening, &self.clock, self.answer_timeout));
                    }
                    Attempt::List => {
                        self.listed_at = Some(self.clock.now());
                        self.lists += 1;
                        let lister = self.relist.as_mut().expect("it lists only where it has a lister");
                        let listing = asked("a list of the source", || lister.list());
                        self.state = RetryState::Listing(Awaited::new(listing, &self.clock, self.answer_timeout));
                    }
                }
            }
            RetryState::Opening(opening) => match ready!(Pin::new(opening).poll(context)) {
                Ok(Some(watch)) => {
                    self.stop.opened(watch.stopper());
                    self.state = RetryState::Reading(watch);
                }
                Ok(None) => self.fruitless(None),
                Err(status) if status.is_refused() => {
                    self.last_status = Some(status.clone());
                    self.fail(status);
                }
                Err(status) => self.failed(Attempt::Open, status),
            },
            RetryState::Reading(watch) => match ready!(poll_watch(watch, context)) {
                Some(event) => self.read(event),
                None => self.ended(),
            },
            RetryState::Listing(listing) => match ready!(Pin::new(listing).poll(context)) {
                Ok(listing) => self.listed(listing),
                Err(status) if status.is_refused() => {
                    self.last_status = Some(status.clone());
                    self.fail(status);
                }
                Err(status) => self.failed(Attempt::List, status),
            },
            RetryState::Ended => {}
        }
        Poll::Ready(())
    }

    fn read(&mut self, event: WatchEvent<ObjectOf<S>>) {
        // Of whatever event it is, and whether it is given or not: the next one that is given says it.
        self.lost = self.lost.saturating_add(event.lost);
        let event = event.with_lost(0);
        match event.payload {
            Payload::Error(status) => self.failed(Attempt::Open, status),
            // A state was not asked for: it is a bookmark, where it has a revision.
            Payload::Synced if event.position == Position::default() => {}
            // Behind an empty state of revision 0 the position stays 0 inside of the first revision.
            _ if event.position == Position::default() && !self.is_of_first_revision(&event) => self.fail(Status::new(
                500,
                format!("retry a watch: an event {} without a revision. It cannot be resumed behind it.", event.name()),
            )),
            _ if event.position.epoch == self.resume.epoch && event.position.revision < self.resume.revision => {
                let (at, resume) = (event.position.revision, self.resume.revision);
                self.failed(
                    Attempt::Open,
                    Status::new(410, format!("the watch is at {resume}, and the source says that it is at {at}")),
                );
            }
            Payload::Bookmark | Payload::Synced => self.resume = event.position,
            _ => {
                let position = event.position;
                let event = match &mut self.relist {
                    Some(relist) => relist.give(event),
                    None => Some(event),
                };
                match event {
                    Some(event) => self.ready.push_back(event),
                    None => self.resume = position,
                }
            }
        }
    }

    fn is_of_first_revision(&self, event: &WatchEvent<ObjectOf<S>>) -> bool {
        let own = self.relist.as_ref().map_or(0, |relist| relist.own_revision(event));
        self.resume == Position::default() && own != 0
    }

    fn listed(&mut self, listing: Listing<ObjectOf<S>>) {
        let position = listing.position;
        if position == Position::default() && (self.resume != position || !listing.objects.is_empty()) {
            let status = Status::new(500, "the listing has no revision: a watch cannot begin behind it");
            return self.failed(Attempt::List, status);
        }
        self.fruitless.reset();
        let lister = self.relist.as_mut().expect("it lists only where it has a lister");
        let lost = lost_between(self.resume, position);
        let is_first = lister.is_first();
        self.ready = lister.difference(listing, self.resume);
        if !is_first {
            self.lost = self.lost.saturating_add(lost);
        }
        if self.ready.is_empty() {
            self.resume = position;
        }
        // At once: the list is the attempt whose delay counts.
        self.state = RetryState::Waiting(None, Attempt::Open);
    }

    /// Ends it, and the watch below.
    fn end(&mut self) {
        self.state = RetryState::Ended;
        self.ready.clear();
    }
}

/// How many revisions a list has skipped. In another history that is not known, and something is.
fn lost_between(resumed: Position, listed: Position) -> u64 {
    if relist::is_another_history(resumed, listed) {
        return 1;
    }
    listed.revision.saturating_sub(resumed.revision)
}

impl<S: WatchSource> Unpin for RetryWatch<S> {}

impl<S: WatchSource> Stream for RetryWatch<S> {
    type Item = WatchEvent<ObjectOf<S>>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<WatchEvent<ObjectOf<S>>>> {
        let this = &mut *self;
        for _ in 0..BUDGET {
            if this.stop.signal.poll_raised(context) {
                this.end();
                return Poll::Ready(None);
            }
            if let Some(event) = this.ready.pop_front() {
                // Given: only now may it be resumed behind it.
                if event.position != Position::default() {
                    this.resume = event.position;
                }
                let lost = event.lost.saturating_add(std::mem::take(&mut this.lost));
                return Poll::Ready(Some(event.with_lost(lost)));
            }
            if matches!(this.state, RetryState::Ended) {
                return Poll::Ready(None);
            }
            ready!(this.step(context));
        }
        // A source that is always ready: others shall run, and a stop shall be seen.
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

impl<S: WatchSource> Watch for RetryWatch<S> {
    type Object = ObjectOf<S>;

    fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }
}

impl<S: WatchSource> Drop for RetryWatch<S> {
    fn drop(&mut self) {
        self.stopper.stop();
    }
}

impl<S: WatchSource> fmt::Debug for RetryWatch<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            RetryState::Waiting(_, Attempt::Open) => "waits to open",
            RetryState::Waiting(_, Attempt::List) => "waits to list",
            RetryState::Opening(_) => "opens",
            RetryState::Reading(_) => "reads",
            RetryState::Listing(_) => "lists",
            RetryState::Ended => "ended",
        };
        f.debug_struct("RetryWatch").field("state", &state).field("position", &self.resume).finish_non_exhaustive()
    }
}
