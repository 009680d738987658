//! A watch that survives its server: the driver of a relay's [`Machine`].

#![forbid(unsafe_code)]

mod cache_source;
mod relist;

pub use cache_source::CacheSource;

use crate::clock::{Clock, Delay, SystemClock, delay_from};
use crate::event::{Payload, Status, WatchEvent};
use crate::guarded_source::{DEFAULT_ANSWER_TIMEOUT, guarded_answer, in_time, poll_watch};
use crate::keyed::Keyed;
use crate::machine::{Attempt, Command, Input, Machine, Policy};
use crate::pages::{ListedPages, PAGE};
use crate::source::{ListAt, ListPage, ListerWatcher, ObjectOf, SourceFuture, WatchRequest};
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

/// The maximum number of inputs without an event that one poll takes before it lets other tasks run.
const BUDGET: usize = 64;

/// A watch over a [`ListerWatcher`] that reopens itself at its position.
///
/// It delivers each event once, in order, and ends with an Error if it cannot continue: access was refused (401, 403),
/// the history is gone (410) and it has no lister, or an event has no revision. After all other errors it waits and
/// tries again; see [`RetryWatch::last_status`]. With a lister it delivers the difference to the consumer's state, and
/// continues. If a connection ends inside a revision, the next one repeats that revision's events: with a lister those
/// that were delivered are skipped, without one they are delivered twice.
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
/// # Reactions to errors
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
/// **The delay** counts from the *start* of the last attempt: a watch that lasted longer is reopened at once, and one
/// that fails at once is tried once per `min_restart_delay`. A list after a 410 comes at once, the next one not before
/// the delay. So neither a server that answers 410 to every revision, nor one that answers 410 to the revision that it
/// has just listed, is asked more often than once per delay.
#[must_use = "dropping a watch ends it"]
pub struct RetryWatch<S: ListerWatcher> {
    source: S,
    relist: Option<Box<dyn Relist<ObjectOf<S>>>>,
    clock: Arc<dyn Clock>,
    answer_timeout: Duration,
    machine: Machine,
    state: RetryState<S>,
    /// The pages of the list in progress.
    pages: ListedPages<ObjectOf<S>>,
    /// Events to be delivered before anything else is done.
    ready: VecDeque<WatchEvent<ObjectOf<S>>>,
    /// The position after the last delivered event, where the watch is reopened.
    resume: Position,
    /// Lost before the next delivered event: reported by events that were skipped, and by empty differences.
    lost: u64,
    /// The resume point at the last attempt to open a watch: if it is the same at the end, the
    /// attempt delivered nothing new.
    opened_behind: Position,
    opens: u64,
    lists: u64,
    last_status: Option<Status>,
    stop: Arc<RetryStop>,
    stopper: Stopper,
}

enum RetryState<S: ListerWatcher> {
    /// `None` waits without a delay.
    Waiting(Option<Delay>),
    Opening(SourceFuture<Option<S::Watch>>),
    Reading(S::Watch),
    Listing(SourceFuture<ListPage<ObjectOf<S>>>),
    Ended,
}

/// A stop ends the wait of the consumer, and the source's watch.
#[derive(Default)]
struct RetryStop {
    signal: Signal,
    below: Lock<Option<Stopper>>,
}

impl RetryStop {
    /// The signal is raised before the watch's stopper is taken, and an opening stores the stopper
    /// before it checks the signal: one of the two stops the new watch.
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
    /// Lists after a 410, delivers the difference to the consumer's state, and continues. The watch stores the
    /// delivered objects, by a clone per object. Objects older than `from` were never delivered and are unknown to it,
    /// so a listing delivers them as Added. With a lister `from` may be 0: the watch starts with the listed state and
    /// Synced. A source that cannot be listed (405) ends the watch.
    ///
    /// Without this, a 410 is delivered as an Error, and ends the watch.
    pub fn relist(self) -> RetryWatchBuilder<S>
    where
        <S::Watch as Watch>::Object: Keyed + Clone + Send + 'static,
    {
        RetryWatchBuilder { relist: Some(Box::new(Relisting::new())), ..self }
    }

    /// The minimum time between the starts of attempts; the default is 1 s.
    pub fn min_restart_delay(self, delay: Duration) -> RetryWatchBuilder<S> {
        RetryWatchBuilder { min_restart_delay: delay, ..self }
    }

    /// The time limit for opening a watch, or for a page of a list; the default is ten and a half minutes. A late
    /// answer is dropped, and counts as an error 503. An open watch may be silent for any time.
    pub fn answer_timeout(self, timeout: Duration) -> RetryWatchBuilder<S> {
        RetryWatchBuilder { answer_timeout: timeout, ..self }
    }

    /// Sets the clock of all delays.
    pub fn clock(self, clock: Arc<dyn Clock>) -> RetryWatchBuilder<S> {
        RetryWatchBuilder { clock, ..self }
    }

    /// Makes the watch; its first poll calls the source. INVALID_ARGUMENT if it shall start at 0 without a lister.
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
    /// Opens a watch of everything after `from`. INVALID_ARGUMENT for revision 0.
    pub fn open(source: S, from: impl Into<Position>) -> Result<RetryWatch<S>> {
        RetryWatch::builder(source, from).open()
    }

    /// Returns the options of a watch of everything after `from`.
    pub fn builder(source: S, from: impl Into<Position>) -> RetryWatchBuilder<S> {
        let (from, clock) = (from.into(), Arc::new(SystemClock));
        let min_restart_delay = Duration::from_secs(1);
        RetryWatchBuilder {
            source,
            from,
            relist: None,
            clock,
            min_restart_delay,
            answer_timeout: DEFAULT_ANSWER_TIMEOUT,
        }
    }

    /// The position after the last delivered event, or of the last bookmark, where the watch is reopened.
    pub fn position(&self) -> Position {
        self.resume
    }

    /// The number of requests for a watch.
    pub fn opens(&self) -> u64 {
        self.opens
    }

    /// The number of lists.
    pub fn lists(&self) -> u64 {
        self.lists
    }

    /// The last failure, which explains why the source is not being watched, or was not.
    pub fn last_status(&self) -> Option<&Status> {
        self.last_status.as_ref()
    }

    /// Gives the machine an input, and starts its next command.
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
                let opening = guarded_answer("the source, asked for a watch,", || self.source.watch(request));
                self.state = RetryState::Opening(in_time(opening, &self.clock, self.answer_timeout));
            }
            Command::Gather | Command::Read => {}
            Command::End(status) => {
                self.last_status = Some(status.clone());
                self.ready.push_back(WatchEvent::error(status).at(self.resume));
                self.state = RetryState::Ended;
            }
        }
    }

    /// Requests a page of a list.
    fn list(&mut self) {
        let page = guarded_answer("a list of the source", || self.source.list(self.pages.request.clone()));
        self.state = RetryState::Listing(in_time(page, &self.clock, self.answer_timeout));
    }

    /// Handles the end of the source's watch.
    fn over(&mut self, input: Input) {
        if self.resume != self.opened_behind {
            self.say(Input::Newer);
        }
        self.say(input);
    }

    /// Makes one step: `Ready` if something has changed.
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
        // The next delivered event reports the loss, whether this event is delivered or not.
        self.lost = self.lost.saturating_add(event.lost);
        let event = event.with_lost(0);
        match event.payload {
            Payload::Error(status) => self.over(Input::Failed(status)),
            // No initial state was requested, so this is a bookmark if it has a revision.
            Payload::Synced if event.position == Position::default() => {}
            // After an empty state of revision 0, the position stays 0 inside of the first revision.
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

    /// Ends this watch, and the source's watch.
    fn end(&mut self) {
        self.state = RetryState::Ended;
        self.ready.clear();
    }
}

/// The number of revisions that a list has skipped. In another history it is unknown, but not 0.
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
                // Only now that the event is delivered may the watch resume after it.
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
        // The source may always be ready: let other tasks run, and a stop take effect.
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
