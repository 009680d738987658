//! Options and opening of a typed watch.

#![forbid(unsafe_code)]

use super::handle::Refused;
use super::known::Known;
use crate::clock::{Clock, SystemClock};
use crate::object::{FromKeyValue, object_of};
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;
use watchcore::{
    Cache, Code, Error, Filter, KeyValue, OnLag, Range, Read, ReadOptions, Result, Snapshot, Start, Subscription,
};

/// How much the reader knows of the state after which the watch starts, and which is not delivered.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum StartState {
    /// Everything, or nothing needs to be known.
    Known,
    /// Unread: the state is read before the first event after it is made.
    Awaited,
    /// The state has left the window. The log's own old values are used, and no difference can be made.
    Unknown,
}

/// Options of a typed watch, made by [`ObjectWatch::builder`](crate::ObjectWatch::builder).
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
    pub(super) start: Start,
    pub(super) on_lag: OnLag,
    pub(super) name: String,
    pub(super) expected: usize,
    pub(super) bookmarks: Option<Duration>,
    pub(super) resync: Option<Duration>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) refused: Option<Refused>,
    pub(super) object: PhantomData<fn() -> O>,
    /// Whether [`ObjectWatch::poll_step`] reports where the consumer has a whole state.
    pub(super) marks: bool,
    /// Whether a poll without an event blocks its thread, instead of registering the waker.
    pub(super) blocks: bool,
    /// For tests: runs between a snapshot and the subscription that follows it.
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
            blocks: false,
            #[cfg(test)]
            between: None,
        }
    }

    /// Restricts the watch to objects that this filter and earlier ones select. The types of its
    /// events are relative to that.
    pub fn filter(self, filter: Filter) -> ObjectWatchBuilder<O> {
        ObjectWatchBuilder { filter: self.filter.and(filter), ..self }
    }

    /// The start; the default is [`Start::State`]. With `Now` and `After` the consumer is assumed to know the state
    /// there: it is read when the watch is opened, or as soon as it is available, O(objects), unless the policy is
    /// `Stop` or `SkipToOldest`. If a future start state has left the window before it was read, nobody knows it: when
    /// the window overtakes the watch, it ends with an Error event (410) with every policy.
    pub fn start(self, start: Start) -> ObjectWatchBuilder<O> {
        ObjectWatchBuilder { start, ..self }
    }

    /// The policy for when the window overtakes the watch. The default, [`OnLag::Resnapshot`], delivers the exact
    /// difference between the consumer's state and the present one. `Conflate` is the same. `Stop` delivers an Error
    /// event (410) and ends; `SkipToOldest` continues with the oldest event, and is `Stop` in the initial state. These
    /// two remember only the last good value of each key whose newest value cannot be decoded, so other old values come
    /// from the log, and are absent if the log has none. The watch does not know the refused values in the range that
    /// `SkipToOldest` skipped: a deletion after one is delivered as `DeletedUnknown`, if the key was there before the
    /// end of that range, and is reported as a refused value.
    pub fn on_lag(self, on_lag: OnLag) -> ObjectWatchBuilder<O> {
        ObjectWatchBuilder { on_lag, ..self }
    }

    /// The name of its subscription in the cache's lists, metrics and log messages. It need not be unique.
    pub fn name(self, name: impl Into<String>) -> ObjectWatchBuilder<O> {
        ObjectWatchBuilder { name: name.into(), ..self }
    }

    /// About how many objects the watch will know: their table is allocated with this capacity. A
    /// table that grows hashes all keys again each time it doubles.
    pub fn expect_objects(self, objects: usize) -> ObjectWatchBuilder<O> {
        ObjectWatchBuilder { expected: objects, ..self }
    }

    /// Requests bookmarks, at most one per `interval`. The default is none.
    pub fn bookmarks(self, interval: Duration) -> ObjectWatchBuilder<O> {
        ObjectWatchBuilder { bookmarks: Some(interval), ..self }
    }

    /// Delivers each known object again at this interval, as Modified with the same old and new,
    /// with [`crate::Origin::Resync`]. The minimum is one second. A resync is due at multiples of
    /// its period, counted from the opening. A resync that becomes due while another is being
    /// delivered is skipped, and changes are delivered in between, however long the consumer takes.
    pub fn resync_period(self, period: Duration) -> ObjectWatchBuilder<O> {
        ObjectWatchBuilder { resync: Some(period.max(Duration::from_secs(1))), ..self }
    }

    /// Sets the clock of the resync period.
    pub fn clock(self, clock: Arc<dyn Clock>) -> ObjectWatchBuilder<O> {
        ObjectWatchBuilder { clock, ..self }
    }

    /// Sets a function that is called with each value that the decoder refused, by the consumer that polls; its panics
    /// are caught. Without it, a refused value is a warning in the log (`tracing`). In either case the last value that
    /// could be decoded stays, and the error is counted.
    pub fn on_refused(self, call: impl FnMut(&KeyValue, &Error) + Send + 'static) -> ObjectWatchBuilder<O> {
        ObjectWatchBuilder { refused: Some(Box::new(call)), ..self }
    }

    /// Requests [`WatchStep::Whole`](super::handle::WatchStep::Whole) too.
    pub(crate) fn marks(self) -> ObjectWatchBuilder<O> {
        ObjectWatchBuilder { marks: true, ..self }
    }

    /// Makes polls without an event block, on a thread that does nothing else: the writer wakes a blocked thread itself, a
    /// task's waker is called by the notifier. Not with a resync period, which needs a waker.
    pub(crate) fn blocks(self) -> ObjectWatchBuilder<O> {
        ObjectWatchBuilder { blocks: true, ..self }
    }

    /// Reads the state after which the watch starts, if the cache has it.
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

    pub(super) fn subscribe(&self, start: Start) -> Result<Subscription> {
        // This watch makes the difference itself, relative to this consumer and with old values,
        // which the core does not remember.
        let on_lag = if self.on_lag == OnLag::SkipToOldest { OnLag::SkipToOldest } else { OnLag::Stop };
        let wanted = self.cache.subscribe(start).filter(self.filter.clone()).on_lag(on_lag);
        let wanted = if self.name.is_empty() { wanted } else { wanted.name(&self.name) };
        match self.bookmarks {
            Some(interval) => wanted.bookmarks(true).bookmark_interval(interval).open(),
            None => wanted.open(),
        }
    }

    /// Takes a snapshot, and opens a subscription after it. `None`: the window has moved on between
    /// the two, or the history was replaced; a new snapshot is needed.
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

    /// Whether a difference makes up for this error of the subscription.
    pub(super) fn makes_good(&self, error: &Error) -> bool {
        matches!(self.on_lag, OnLag::Resnapshot | OnLag::Conflate) && error.code() == Code::Lagged
    }

    /// Whether the subscription continues by itself after this error.
    pub(super) fn skips(&self, error: &Error, in_state: bool) -> bool {
        self.on_lag == OnLag::SkipToOldest && error.code() == Code::Lagged && !in_state
    }
}

/// Records the objects of a state that can be decoded.
pub(super) fn seed<O: FromKeyValue>(known: &mut Known<O>, state: impl Iterator<Item = KeyValue>) {
    for kv in state {
        if let Ok(object) = object_of::<O>(&kv) {
            known.insert(object);
        }
    }
}
