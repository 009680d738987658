//! A watch that survives its server: the driver of a relay's [`Machine`].

#![forbid(unsafe_code)]

mod cache_source;
mod relist;

pub use cache_source::CacheSource;

use crate::asked::{asked, poll_watch};
use crate::awaited::{ANSWER, Awaited};
use crate::clock::{Clock, Delay, SystemClock, delay_from};
use crate::event::{Payload, Status, WatchEvent};
use crate::keyed::Keyed;
use crate::machine::{Attempt, Command, Input, Machine, Policy};
use crate::pages::{ListedPages, PAGE};
use crate::source::{ListAt, ListPage, ListerWatcher, ObjectOf, WatchRequest};
use crate::sync::Lock;
use crate::watch::{Signal, Stopper, Watch};
use futures_core::Stream;
use relist::{Relist, Relisting};
use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use watchcore::{Code, Error, Position, Result};

/// How many inputs one poll takes at most that make no event, before it lets others run.
const BUDGET: usize = 64;

/// A watch over a [`ListerWatcher`] that opens it again where it was.
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
/// # What follows an error
///
/// | error | without a lister | with one |
/// | --- | --- | --- |
/// | 401, 403 as an answer; a cache that is closed or broken for good | Error, end | the same |
/// | an event without a revision | Error 500, end | the same |
/// | 410, an event below the resume point | Error, end | a list |
/// | 429, 503, no answer in time | opened again, also not before its Retry-After | the same |
/// | any other, an answer without a watch, an end within a second without a newer revision | opened again, also not before its Retry-After | the same; after the third in a row a list, at most every half minute |
/// | a list that fails otherwise | | listed again |
///
/// **The delay** counts from the *beginning* of the last attempt: a watch that lived for longer is opened again at once, one
/// that fails hot once in `min_restart_delay`. A list after a 410 comes at once, the next one not before the delay. So
/// neither a server that answers 410 to every revision, nor one that answers 410 to the revision that it has just listed,
/// is asked more often than once in a delay.
#[must_use = "dropping a watch ends it"]
pub struct RetryWatch<S: ListerWatcher> {
    source: S,
    relist: Option<Box<dyn Relist<ObjectOf<S>>>>,
    clock: Arc<dyn Clock>,
    answer_timeout: Duration,
    machine: Machine,
    state: RetryState<S>,
    /// Of the list that is under way.
    pages: ListedPages<ObjectOf<S>>,
    /// To be given before anything else is done.
    ready: VecDeque<WatchEvent<ObjectOf<S>>>,
    /// Behind the last event that was given: where it is opened again.
    resume: Position,
    /// Lost before the next event that is given: by what was not given, and by differences that were empty.
    lost: u64,
    /// The resume point of the last attempt to open: one that has not moved it has brought nothing.
    opened_behind: Position,
    opens: u64,
    lists: u64,
    last_status: Option<Status>,
    stop: Arc<RetryStop>,
    stopper: Stopper,
}

enum RetryState<S: ListerWatcher> {
    /// Without a delay: at once.
    Waiting(Option<Delay>),
    Opening(Awaited<Option<S::Watch>>),
    Reading(S::Watch),
    Listing(Awaited<ListPage<ObjectOf<S>>>),
    Ended,
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
/// let mut watch = RetryWatch::builder(source, 2).relist().open()?; // 3 and 4 are gone
/// let event = watch.recv(Duration::from_secs(10))?.unwrap();
/// assert_eq!((event.name(), event.lost), ("ADDED", 3));
/// # Ok::<(), watchcore::Error>(())
/// ```
#[must_use = "nothing is watched before `open`"]
pub struct RetryWatchBuilder<S: ListerWatcher> {
    source: S,
    from: Position,
    relist: Option<Box<dyn Relist<ObjectOf<S>>>>,
    clock: Arc<dyn Clock>,
    min_restart_delay: Duration,
    answer_timeout: Duration,
}

impl<S: ListerWatcher> RetryWatchBuilder<S> {
    /// Policy after a 410: list, give the difference with what was given, and go on behind it. It keeps what was given, by
    /// a clone an object. What it was not given itself, because `from` lies behind it, is not known to it: objects of the
    /// listing come as Added then. With a lister `from` may be 0: the watch begins with the listed state and Synced. A source
    /// that cannot be listed (405) ends it.
    ///
    /// Without this (policy Stop) a 410 is given as an Error, and ends the watch.
    pub fn relist(self) -> RetryWatchBuilder<S>
    where
        <S::Watch as Watch>::Object: Keyed + Clone + Send + 'static,
    {
        RetryWatchBuilder { relist: Some(Box::new(Relisting::new())), ..self }
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
        let policy = Policy::Relay { distance: self.min_restart_delay, has_lister: self.relist.is_some() };
        let machine = match &mut self.relist {
            Some(relist) if self.from == Position::default() => {
                relist.begin();
                Machine::new(policy)
            }
            _ => Machine::new(policy).starting_with(Attempt::Watch),
        };
        let stopper = Stopper::new({
            let stop = Arc::clone(&stop);
            move || stop.stop()
        });
        Ok(RetryWatch {
            source: self.source,
            relist: self.relist,
            clock: self.clock,
            answer_timeout: self.answer_timeout,
            machine,
            state: RetryState::Waiting(None),
            pages: ListedPages::new(ListAt::Newest, PAGE),
            ready: VecDeque::new(),
            resume: self.from,
            lost: 0,
            opened_behind: self.from,
            opens: 0,
            lists: 0,
            last_status: None,
            stop,
            stopper,
        })
    }
}

impl<S: ListerWatcher> fmt::Debug for RetryWatchBuilder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryWatchBuilder").field("from", &self.from).finish_non_exhaustive()
    }
}

impl<S: ListerWatcher> RetryWatch<S> {
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

    /// Says to the machine what has happened, and begins what it says is next.
    fn say(&mut self, input: Input) {
        let now = self.clock.now();
        match self.machine.step(now, input) {
            Command::Wait(delay, status) => {
                self.last_status = status.or(self.last_status.take());
                let delay = delay.filter(|delay| !delay.is_zero());
                self.state = RetryState::Waiting(delay.map(|delay| delay_from(&*self.clock, now, delay)));
            }
            Command::Try(Attempt::List { whole, .. }) => {
                self.lists += 1;
                self.pages = ListedPages::new(ListAt::Newest, if whole { 0 } else { PAGE });
                self.list();
            }
            Command::Try(_) => {
                self.opens += 1;
                self.opened_behind = self.resume;
                let request = WatchRequest::new(self.resume, false);
                let opening = asked("the source, asked for a watch,", || self.source.watch(request));
                self.state = RetryState::Opening(Awaited::new(opening, &self.clock, self.answer_timeout));
            }
            Command::Gather | Command::Read => {}
            Command::End(status) => {
                self.last_status = Some(status.clone());
                self.ready.push_back(WatchEvent::error(status).at(self.resume));
                self.state = RetryState::Ended;
            }
        }
    }

    /// Asks for a page of a list.
    fn list(&mut self) {
        let page = asked("a list of the source", || self.source.list(self.pages.request.clone()));
        self.state = RetryState::Listing(Awaited::new(page, &self.clock, self.answer_timeout));
    }

    /// The watch is over.
    fn over(&mut self, input: Input) {
        if self.resume != self.opened_behind {
            self.say(Input::Newer);
        }
        self.say(input);
    }

    /// One step: `Ready` where something has changed.
    fn step(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match &mut self.state {
            RetryState::Waiting(delay) => {
                if let Some(delay) = delay {
                    ready!(Pin::new(delay).poll(context));
                }
                self.say(Input::Due);
            }
            RetryState::Opening(opening) => {
                let said = match ready!(Pin::new(opening).poll(context)) {
                    Ok(Some(watch)) => {
                        self.stop.opened(watch.stopper());
                        self.state = RetryState::Reading(watch);
                        Input::Opened
                    }
                    Ok(None) => Input::Cut(Status::new(503, "the source gave no watch")),
                    Err(status) => Input::Failed(status),
                };
                self.say(said);
            }
            RetryState::Reading(watch) => match ready!(poll_watch(watch, context)) {
                Some(event) => self.read(event),
                None => self.over(Input::Ended),
            },
            RetryState::Listing(page) => {
                let answer = ready!(Pin::new(page).poll(context));
                match self.pages.take(answer) {
                    Ok(true) => self.list(),
                    Ok(false) => self.listed(),
                    Err(input) => self.say(input),
                }
            }
            RetryState::Ended => {}
        }
        Poll::Ready(())
    }

    fn read(&mut self, event: WatchEvent<ObjectOf<S>>) {
        // Of whatever event it is, and whether it is given or not: the next one that is given says it.
        self.lost = self.lost.saturating_add(event.lost);
        let event = event.with_lost(0);
        match event.payload {
            Payload::Error(status) => self.over(Input::Failed(status)),
            // A state was not asked for: it is a bookmark, where it has a revision.
            Payload::Synced if event.position == Position::default() => {}
            // Behind an empty state of revision 0 the position stays 0 inside of the first revision.
            _ if event.position == Position::default() && !self.is_of_first_revision(&event) => {
                let what = format!("an event {} without a revision: a watch cannot be resumed behind it", event.name());
                self.over(Input::Unplaced(Status::new(500, what)));
            }
            _ if event.position.epoch == self.resume.epoch && event.position.revision < self.resume.revision => {
                let (at, resume) = (event.position.revision, self.resume.revision);
                let what = format!("the watch is at {resume}, and the source says that it is at {at}");
                self.over(Input::Failed(Status::new(410, what)));
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

    fn listed(&mut self) {
        let pages = std::mem::replace(&mut self.pages, ListedPages::new(ListAt::Newest, PAGE));
        let listing = match pages.into_listed(self.resume == Position::default()) {
            Ok(listing) => listing,
            Err(input) => return self.say(input),
        };
        let position = listing.position;
        let lister = self.relist.as_mut().expect("it lists only where it has a lister");
        if !lister.is_first() {
            self.lost = self.lost.saturating_add(lost_between(self.resume, position));
        }
        self.ready = lister.difference(listing, self.resume);
        if self.ready.is_empty() {
            self.resume = position;
        }
        self.say(Input::Synced);
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

impl<S: ListerWatcher> Unpin for RetryWatch<S> {}

impl<S: ListerWatcher> Stream for RetryWatch<S> {
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

impl<S: ListerWatcher> Watch for RetryWatch<S> {
    type Object = ObjectOf<S>;

    fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }
}

impl<S: ListerWatcher> Drop for RetryWatch<S> {
    fn drop(&mut self) {
        self.stopper.stop();
    }
}

impl<S: ListerWatcher> fmt::Debug for RetryWatch<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            RetryState::Waiting(_) => "waits",
            RetryState::Opening(_) => "opens",
            RetryState::Reading(_) => "reads",
            RetryState::Listing(_) => "lists",
            RetryState::Ended => "ended",
        };
        f.debug_struct("RetryWatch").field("state", &state).field("position", &self.resume).finish_non_exhaustive()
    }
}
