//! How a typed watch is opened.

#![forbid(unsafe_code)]

use super::known::Known;
use super::log_reader::{LogReader, StartState};
use super::{ObjectWatch, Refused};
use crate::clock::{Clock, SystemClock};
use crate::object::{FromKeyValue, object_of};
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;
use watchcore::{
    Cache, Code, Error, Filter, KeyValue, OnLag, Range, Read, ReadOptions, Result, Snapshot, Start, Subscription,
};

/// Options of a typed watch, made by [`ObjectWatch::builder`].
///
/// ```
/// use std::time::Duration;
/// use watchcore::{Cache, Filter, KeyValue, OnLag};
/// use watchcore_toolkit::ObjectWatch;
///
/// let cache = Cache::builder("/").build()?;
/// let watch = ObjectWatch::<KeyValue>::builder(&cache)
///     .filter(Filter::any().path("/registry/pods"))
///     .on_lag(OnLag::Resnapshot)
///     .resync_period(Duration::from_secs(600))
///     .open()?;
/// # drop(watch);
/// # Ok::<(), watchcore::Error>(())
/// ```
#[must_use = "a watch begins with `open`"]
pub struct ObjectWatchBuilder<O> {
    pub(super) cache: Cache,
    pub(super) filter: Filter,
    start: Start,
    on_lag: OnLag,
    name: String,
    expected: usize,
    bookmarks: Option<Duration>,
    pub(super) resync: Option<Duration>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) refused: Option<Refused>,
    object: PhantomData<fn() -> O>,
    /// Whether [`ObjectWatch::poll_step`] says where the consumer knows a whole state.
    pub(super) marks: bool,
    /// What a writer does between a snapshot and the subscription that follows it.
    #[cfg(test)]
    pub(super) between: Option<Box<dyn Fn() + Send>>,
}

impl<O: FromKeyValue> ObjectWatchBuilder<O> {
    pub(super) fn new(cache: &Cache) -> ObjectWatchBuilder<O> {
        ObjectWatchBuilder {
            cache: cache.clone(),
            filter: Filter::any(),
            start: Start::State,
            on_lag: OnLag::Resnapshot,
            name: String::new(),
            expected: 0,
            bookmarks: None,
            resync: None,
            clock: Arc::new(SystemClock),
            refused: None,
            object: PhantomData,
            marks: false,
            #[cfg(test)]
            between: None,
        }
    }

    /// Only what this filter lets pass, and what was asked before. The types of its events are relative to that.
    pub fn filter(self, filter: Filter) -> ObjectWatchBuilder<O> {
        ObjectWatchBuilder { filter: self.filter.and(filter), ..self }
    }

    /// Where it begins; [`Start::State`] if nothing is said. With `Now` and `After` the consumer is supposed to know the
    /// state there: that is read when the watch is opened, or as soon as it is there, O(objects), unless the policy is `Stop` or
    /// `SkipToOldest`. One that was to come, and has left the window before it was read, is known to nobody: overtaken, the watch
    /// ends with an Error event (410) under every policy.
    pub fn start(self, start: Start) -> ObjectWatchBuilder<O> {
        ObjectWatchBuilder { start, ..self }
    }

    /// What happens where the window has left it behind; [`OnLag::Resnapshot`] if nothing is said: the exact difference
    /// between what it was given and what is there. `Conflate` is the same. `Stop` is an Error event (410) and the
    /// end; `SkipToOldest` goes on with the oldest event, and is `Stop` in the initial state. These two keep only the
    /// last good value of each key whose newest one cannot be decoded, so other old values are the log's, and absent where the
    /// log has none. A refused value inside what `SkipToOldest` skipped is not known: the deletion behind it is not given, and is
    /// reported as a refused value.
    pub fn on_lag(self, on_lag: OnLag) -> ObjectWatchBuilder<O> {
        ObjectWatchBuilder { on_lag, ..self }
    }

    /// What its subscription is called in the cache's lists, figures and log messages. Need not be unique.
    pub fn name(self, name: impl Into<String>) -> ObjectWatchBuilder<O> {
        ObjectWatchBuilder { name: name.into(), ..self }
    }

    /// How many objects it will know, about: their table is made as large at once. One that grows by itself hashes every key
    /// again each time that it doubles.
    pub fn expect_objects(self, objects: usize) -> ObjectWatchBuilder<O> {
        ObjectWatchBuilder { expected: objects, ..self }
    }

    /// Bookmarks, at most one in `interval`. Without it there are none.
    pub fn bookmarks(self, interval: Duration) -> ObjectWatchBuilder<O> {
        ObjectWatchBuilder { bookmarks: Some(interval), ..self }
    }

    /// Every so often each object that it was given comes again, Modified with old and new the same, with
    /// [`crate::Origin::Resync`]. At least one second; less is taken as that. A resync is due at the multiples of its period,
    /// counted from the opening. One that is due while another is handed out is left out, and changes come in between,
    /// however long a consumer takes for all of them.
    pub fn resync_period(self, period: Duration) -> ObjectWatchBuilder<O> {
        ObjectWatchBuilder { resync: Some(period.max(Duration::from_secs(1))), ..self }
    }

    /// Another clock for the resync period.
    pub fn clock(self, clock: Arc<dyn Clock>) -> ObjectWatchBuilder<O> {
        ObjectWatchBuilder { clock, ..self }
    }

    /// Called with each value that the decoder refused, by the consumer that polls; a panic of it is caught. Without it there
    /// is a warning in the log (`tracing`). Either way the last value that could be decoded stays, and the error is counted.
    pub fn on_refused(self, call: impl FnMut(&KeyValue, &Error) + Send + 'static) -> ObjectWatchBuilder<O> {
        ObjectWatchBuilder { refused: Some(Box::new(call)), ..self }
    }

    /// Gives [`WatchStep::Whole`](super::WatchStep::Whole) too.
    pub(crate) fn marks(self) -> ObjectWatchBuilder<O> {
        ObjectWatchBuilder { marks: true, ..self }
    }

    /// Opens it. INVALID_ARGUMENT where the filter names what the cache does not declare; CLOSED.
    pub fn open(self) -> Result<ObjectWatch<O>> {
        let keeps = matches!(self.on_lag, OnLag::Resnapshot | OnLag::Conflate);
        let reader = if keeps { self.seeded()? } else { LogReader::new(self.subscribe(self.start)?, None) };
        let of_state = matches!(self.start, Start::State | Start::StateAtLeast(_));
        Ok(ObjectWatch::start(self, if of_state { reader.of_state() } else { reader }))
    }

    /// A reader that knows what its consumer knows at the start.
    fn seeded(&self) -> Result<LogReader<O>> {
        let mut known = Known::with_capacity(self.expected);
        match self.start {
            Start::Now if self.cache.is_ready() => {
                let (snapshot, subscription) = loop {
                    if let Some(begun) = self.snapshot_and_rest()? {
                        break begun;
                    }
                };
                seed(&mut known, snapshot.filtered(&self.filter)?.map(|kv| kv.to_owned()));
                Ok(LogReader::new(subscription, Some(known)))
            }
            // There is no state yet: the first one is what the consumer is supposed to know.
            Start::Now => Ok(LogReader::new(self.subscribe(Start::State)?, Some(known)).silent()),
            Start::After(_) | Start::AfterIn(_) => {
                // A start that has left is refused here.
                let subscription = self.subscribe(self.start)?;
                let start = self.seed_start(&mut known);
                Ok(LogReader::new(subscription, Some(known)).behind(start))
            }
            _ => Ok(LogReader::new(self.subscribe(self.start)?, Some(known))),
        }
    }

    /// Takes the state that the watch begins behind, where the cache has it.
    pub(super) fn seed_start(&self, known: &mut Known<O>) -> StartState {
        let read = match self.start {
            Start::AfterIn(position) => Read::ExactIn(position),
            Start::After(revision) => Read::Exact(revision),
            _ => return StartState::Known,
        };
        let options = ReadOptions::new(read).filter(self.filter.clone()).timeout(Duration::ZERO);
        match self.cache.list_with(&Range::all(), &options) {
            Ok(page) => {
                seed(known, page.items().iter().cloned());
                StartState::Known
            }
            Err(error) if error.code() == Code::FutureRevision => StartState::Awaited,
            Err(_) => StartState::Unknown,
        }
    }

    fn subscribe(&self, start: Start) -> Result<Subscription> {
        // The difference is made here, of what this consumer was given: with values, which the core does not keep.
        let on_lag = if self.on_lag == OnLag::SkipToOldest { OnLag::SkipToOldest } else { OnLag::Stop };
        let wanted = self.cache.subscribe(start).filter(self.filter.clone()).on_lag(on_lag);
        let wanted = if self.name.is_empty() { wanted } else { wanted.name(&self.name) };
        match self.bookmarks {
            Some(interval) => wanted.bookmarks(true).bookmark_interval(interval).open(),
            None => wanted.open(),
        }
    }

    /// A snapshot, and a subscription to what follows it. `None`: the window has moved on between the two, or the history was
    /// replaced; a new snapshot is needed.
    pub(super) fn snapshot_and_rest(&self) -> Result<Option<(Snapshot, Subscription)>> {
        let snapshot = self.cache.snapshot()?;
        #[cfg(test)]
        if let Some(between) = &self.between {
            between();
        }
        match self.subscribe(Start::AfterIn(snapshot.position())) {
            Ok(subscription) => Ok(Some((snapshot, subscription))),
            Err(error) if error.code() == Code::Compacted => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether an error of the subscription is one that the difference makes good.
    pub(super) fn makes_good(&self, error: &Error) -> bool {
        matches!(self.on_lag, OnLag::Resnapshot | OnLag::Conflate) && error.code() == Code::Lagged
    }

    /// Whether the subscription goes on by itself after it.
    pub(super) fn skips(&self, error: &Error, in_state: bool) -> bool {
        self.on_lag == OnLag::SkipToOldest && error.code() == Code::Lagged && !in_state
    }
}

/// Takes what could be decoded of a state.
fn seed<O: FromKeyValue>(known: &mut Known<O>, state: impl Iterator<Item = KeyValue>) {
    for kv in state {
        if let Ok(object) = object_of::<O>(&kv) {
            known.insert(object);
        }
    }
}
