//! Waits until conditions hold.

#![forbid(unsafe_code)]

use crate::clock::{Clock, Delay, SystemClock};
use crate::event::{Status, WatchEvent};
use crate::filter::BUDGET;
use crate::object::FromKeyValue;
use crate::objects::ObjectWatch;
use crate::park;
use crate::watch::Watch;
use crate::watch_ext::WatchExt;
use std::error::Error as StdError;
use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use watchcore::{Cache, Filter, Position, Snapshot};

/// Any error of a condition.
type ConditionError = Box<dyn StdError + Send + Sync>;

type Condition<O> = Box<dyn FnMut(&WatchEvent<O>) -> Result<bool, ConditionError> + Send>;

type Precondition = Box<dyn FnOnce(&Snapshot) -> Result<bool, ConditionError> + Send>;

/// The event and the position at which the last condition held.
///
/// ```
/// use watchcore::{Cache, Change, KeyValue};
/// use watchcore_toolkit::{Held, until_with_sync};
///
/// let cache = Cache::builder("/").build()?;
/// cache.writer()?.apply(3, [Change::put("/a", "on")])?;
/// let held: Held<KeyValue> = until_with_sync(&cache).precondition(|state| state.get("/a").is_some()).wait().unwrap();
/// assert_eq!((held.event.is_none(), held.position.revision), (true, 3), "it held before anything happened");
/// # Ok::<(), watchcore::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Held<O> {
    /// The event at which it held; `None` if there was no condition, or the precondition held.
    pub event: Option<WatchEvent<O>>,
    /// The position of the event, or of the state.
    pub position: Position,
}

/// The reason why a wait ended without its conditions.
///
/// ```
/// use watchcore_toolkit::{EmptyWatch, UntilEnd, until};
///
/// let error = until(EmptyWatch::<u8>::new()).then(|event| event.name() == "ADDED").wait().unwrap_err();
/// assert!(matches!(error.end, UntilEnd::Ended));
/// assert_eq!(error.to_string(), "wait for condition 1 of 1: the watch has ended. Its last event: none");
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct UntilError<O> {
    /// The reason of the end.
    pub end: UntilEnd,
    /// The last event that was checked.
    pub last: Option<Box<WatchEvent<O>>>,
    /// The condition that was waited for, from 1; 0 is the precondition.
    pub condition: usize,
    /// The number of conditions.
    pub conditions: usize,
}

/// The reason why a wait ended.
///
/// ```
/// use std::time::Duration;
/// use watchcore::{Cache, KeyValue};
/// use watchcore_toolkit::{ObjectWatch, UntilEnd, until};
///
/// let cache = Cache::builder("/").build()?;
/// let watch = ObjectWatch::<KeyValue>::open(&cache)?;
/// let error = until(watch).then(|event| event.name() == "ADDED").timeout(Duration::from_millis(1)).wait().unwrap_err();
/// assert!(matches!(error.end, UntilEnd::Timeout));
/// # Ok::<(), watchcore::Error>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum UntilEnd {
    /// The watch ended, or was stopped.
    Ended,
    /// The watch ended with an error.
    Failed(Status),
    /// The time limit was reached.
    Timeout,
    /// A condition returned an error.
    Condition(Box<dyn StdError + Send + Sync>),
    /// The state was not available, for this reason.
    NotSynced(watchcore::Error),
}

impl<O> fmt::Display for UntilError<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.condition {
            0 => f.write_str("wait for the precondition")?,
            condition => write!(f, "wait for condition {condition} of {}", self.conditions)?,
        }
        match &self.end {
            UntilEnd::Ended => f.write_str(": the watch has ended")?,
            UntilEnd::Failed(status) => write!(f, ": the watch failed, {status}")?,
            UntilEnd::Timeout => f.write_str(": the time was up")?,
            UntilEnd::Condition(error) => write!(f, ": {error}")?,
            UntilEnd::NotSynced(error) => write!(f, ": there is no state yet, {error}")?,
        }
        match &self.last {
            Some(last) => write!(f, ". Its last event: {} at revision {}", last.name(), last.position.revision),
            None => f.write_str(". Its last event: none"),
        }
    }
}

impl<O: fmt::Debug> StdError for UntilError<O> {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match &self.end {
            UntilEnd::Failed(status) => Some(status),
            UntilEnd::Condition(error) => Some(&**error),
            UntilEnd::NotSynced(error) => Some(error),
            UntilEnd::Ended | UntilEnd::Timeout => None,
        }
    }
}

/// Waits until conditions hold, one after the other, on the events of a watch. See [`Until`].
pub fn until<W: Watch>(watch: W) -> Until<W> {
    Until::of(Some(watch))
}

/// A wait until conditions hold, one after the other. It is a future; [`Until::wait`] blocks until it is ready.
///
/// Each event is checked against the current condition. If that holds, the same event is checked
/// against the next condition, so one event may satisfy several. The watch is stopped when the wait
/// is over, however it ended, and when it is dropped. Without conditions the wait is over at once.
///
/// ```
/// use std::time::Duration;
/// use watchcore::{Cache, Change, KeyValue};
/// use watchcore_toolkit::{ObjectWatch, until};
///
/// let cache = Cache::builder("/").build()?;
/// let watch = ObjectWatch::<KeyValue>::open(&cache)?;
/// let mut writer = cache.writer()?;
/// writer.apply(1, [Change::put("/job", "running")])?;
/// writer.apply(2, [Change::put("/job", "done")])?;
/// let held = until(watch)
///     .then(|event| event.name() == "ADDED")
///     .then(|event| event.object().is_some_and(|job| job.value_str() == Some("done")))
///     .timeout(Duration::from_secs(10))
///     .wait()
///     .unwrap();
/// assert_eq!(held.position.revision, 2);
/// # Ok::<(), watchcore::Error>(())
/// ```
#[must_use = "nothing is waited for before it is awaited, or `wait` is called"]
pub struct Until<W: Watch> {
    /// `None` when the wait is over.
    watch: Option<W>,
    sequence: Sequence<W::Object>,
    deadline: Deadline,
}

/// The conditions, and how many of them have held.
struct Sequence<O> {
    conditions: Vec<Condition<O>>,
    /// The number of conditions that have held.
    held: usize,
    last: Option<WatchEvent<O>>,
}

/// The time limit of a wait, counted from its first poll.
struct Deadline {
    timeout: Duration,
    clock: Arc<dyn Clock>,
    delay: Option<Delay>,
}

impl Deadline {
    fn poll(&mut self, context: &mut Context<'_>) -> bool {
        // Zero, and times beyond the clock's range, mean no limit.
        if self.timeout.is_zero() || self.timeout == Duration::MAX {
            return false;
        }
        let delay = self.delay.get_or_insert_with(|| self.clock.delay(self.timeout));
        Pin::new(delay).poll(context).is_ready()
    }
}

impl<O> Sequence<O> {
    fn error(&mut self, end: UntilEnd) -> UntilError<O> {
        let condition = (self.held + 1).min(self.conditions.len());
        UntilError { end, last: self.last.take().map(Box::new), condition, conditions: self.conditions.len() }
    }

    /// Takes the next event, and returns whether all conditions have held.
    fn take(&mut self, event: WatchEvent<O>) -> Result<bool, UntilEnd> {
        let event = self.last.insert(event);
        while let Some(condition) = self.conditions.get_mut(self.held) {
            match condition(event) {
                Ok(true) => self.held += 1,
                Ok(false) => return Ok(false),
                Err(error) => return Err(UntilEnd::Condition(error)),
            }
        }
        Ok(true)
    }
}

impl<W: Watch> Until<W> {
    fn of(watch: Option<W>) -> Until<W> {
        Until {
            watch,
            sequence: Sequence { conditions: Vec::new(), held: 0, last: None },
            deadline: Deadline { timeout: Duration::ZERO, clock: Arc::new(SystemClock), delay: None },
        }
    }

    /// Adds a condition to wait for. Conditions do not see errors of the watch, which end the wait.
    pub fn then(self, mut condition: impl FnMut(&WatchEvent<W::Object>) -> bool + Send + 'static) -> Until<W> {
        self.then_try(move |event| Ok::<bool, ConditionError>(condition(event)))
    }

    /// [`Until::then`] with a condition that may fail: its error ends the wait, and is returned with the event.
    pub fn then_try<E>(
        mut self,
        mut condition: impl FnMut(&WatchEvent<W::Object>) -> Result<bool, E> + Send + 'static,
    ) -> Until<W>
    where
        E: Into<Box<dyn StdError + Send + Sync>>,
    {
        self.sequence.conditions.push(Box::new(move |event| condition(event).map_err(E::into)));
        self
    }

    /// Limits the wait; zero (the default) means no limit.
    pub fn timeout(mut self, timeout: Duration) -> Until<W> {
        self.deadline.timeout = timeout;
        self
    }

    /// Sets the clock of the limit.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Until<W> {
        self.deadline.clock = clock;
        self
    }

    /// Blocks until the wait is over.
    pub fn wait(self) -> Result<Held<W::Object>, UntilError<W::Object>> {
        park::block_on_future(Duration::MAX, self).expect("a wait without end has a result")
    }

    fn over(&mut self, result: Result<Held<W::Object>, UntilEnd>) -> Poll<<Until<W> as Future>::Output> {
        if let Some(watch) = self.watch.take() {
            watch.stop();
        }
        Poll::Ready(result.map_err(|end| self.sequence.error(end)))
    }
}

impl<W: Watch> Unpin for Until<W> {}

impl<W: Watch> Future for Until<W> {
    type Output = Result<Held<W::Object>, UntilError<W::Object>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if this.sequence.conditions.is_empty() {
            return this.over(Ok(Held { event: None, position: Position::default() }));
        }
        for _ in 0..BUDGET {
            let Some(watch) = &mut this.watch else { return this.over(Err(UntilEnd::Ended)) };
            // Events come first: those that are available when the time limit is reached count, as
            // far as one poll gets.
            match Pin::new(watch).poll_next(context) {
                Poll::Pending if this.deadline.poll(context) => return this.over(Err(UntilEnd::Timeout)),
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => return this.over(Err(UntilEnd::Ended)),
                Poll::Ready(Some(event)) => {
                    if let Some(status) = event.status() {
                        let end = UntilEnd::Failed(status.clone());
                        return this.over(Err(end));
                    }
                    match this.sequence.take(event) {
                        Ok(false) => {}
                        Ok(true) => {
                            let event = this.sequence.last.take();
                            let position = event.as_ref().map_or(Position::default(), |event| event.position);
                            return this.over(Ok(Held { event, position }));
                        }
                        Err(end) => return this.over(Err(end)),
                    }
                }
            }
        }
        // The watch may be ready without a pause: the limit applies nevertheless, and other tasks run.
        if this.deadline.poll(context) {
            return this.over(Err(UntilEnd::Timeout));
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

impl<W: Watch> fmt::Debug for Until<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Until")
            .field("conditions", &self.sequence.conditions.len())
            .field("held", &self.sequence.held)
            .field("timeout", &self.deadline.timeout)
            .finish_non_exhaustive()
    }
}

/// Waits until conditions hold over a cache. See [`UntilWithSync`].
pub fn until_with_sync<O: FromKeyValue>(cache: &Cache) -> UntilWithSync<O> {
    UntilWithSync { cache: cache.clone(), filter: Filter::any(), precondition: None, until: Until::of(None) }
}

/// A wait over a cache's state and its changes, which only the end of the cache interrupts.
///
/// The state comes first, as Added, then Synced, then every change. If the cache's window overtakes the wait, or its
/// source was away, the difference follows: intermediate states may be skipped, but none of the present ones is missed.
/// With a precondition, the wait first needs the cache's first listing; the watch starts not later than the state for
/// which the precondition is called, so no change in between is missed.
///
/// ```
/// use std::time::Duration;
/// use watchcore::{Cache, Change, KeyValue};
/// use watchcore_toolkit::until_with_sync;
///
/// let cache = Cache::builder("/").build()?;
/// cache.writer()?.apply(1, [Change::put("/lock", "other")])?;
/// let waiting = std::thread::spawn({
///     let cache = cache.clone();
///     move || {
///         until_with_sync::<KeyValue>(&cache)
///             .precondition(|state| state.get("/lock").is_none())
///             .then(|event| event.name() == "DELETED")
///             .timeout(Duration::from_secs(10))
///             .wait()
///             .unwrap()
///     }
/// });
/// cache.writer()?.apply(2, [Change::delete("/lock")])?;
/// assert_eq!(waiting.join().unwrap().position.revision, 2);
/// # Ok::<(), watchcore::Error>(())
/// ```
#[must_use = "nothing is waited for before `run` is awaited, or `wait` is called"]
pub struct UntilWithSync<O: FromKeyValue> {
    cache: Cache,
    filter: Filter,
    precondition: Option<Precondition>,
    /// Without its watch, which `run` opens.
    until: Until<ObjectWatch<O>>,
}

impl<O: FromKeyValue> UntilWithSync<O> {
    /// Restricts the events to a filter. The precondition sees the whole state.
    pub fn filter(self, filter: Filter) -> UntilWithSync<O> {
        UntilWithSync { filter, ..self }
    }

    /// Calls this once, with the first available state: if it holds, the wait is over.
    pub fn precondition(self, precondition: impl FnOnce(&Snapshot) -> bool + Send + 'static) -> UntilWithSync<O> {
        self.precondition_try(move |state| Ok::<bool, ConditionError>(precondition(state)))
    }

    /// [`UntilWithSync::precondition`] with a function that may fail.
    pub fn precondition_try<E>(
        self,
        precondition: impl FnOnce(&Snapshot) -> Result<bool, E> + Send + 'static,
    ) -> UntilWithSync<O>
    where
        E: Into<Box<dyn StdError + Send + Sync>>,
    {
        UntilWithSync { precondition: Some(Box::new(move |state| precondition(state).map_err(E::into))), ..self }
    }

    /// See [`Until::then`].
    pub fn then(self, condition: impl FnMut(&WatchEvent<O>) -> bool + Send + 'static) -> UntilWithSync<O> {
        UntilWithSync { until: self.until.then(condition), ..self }
    }

    /// See [`Until::then_try`].
    pub fn then_try<E>(
        self,
        condition: impl FnMut(&WatchEvent<O>) -> Result<bool, E> + Send + 'static,
    ) -> UntilWithSync<O>
    where
        E: Into<Box<dyn StdError + Send + Sync>>,
    {
        UntilWithSync { until: self.until.then_try(condition), ..self }
    }

    /// Limits the wait, for the state and the conditions together; zero (the default) means no limit.
    pub fn timeout(self, timeout: Duration) -> UntilWithSync<O> {
        UntilWithSync { until: self.until.timeout(timeout), ..self }
    }

    /// Sets the clock of the limit.
    pub fn clock(self, clock: Arc<dyn Clock>) -> UntilWithSync<O> {
        UntilWithSync { until: self.until.clock(clock), ..self }
    }

    /// Waits until the conditions hold or the wait ends.
    pub async fn run(mut self) -> Result<Held<O>, UntilError<O>> {
        let precondition = self.precondition.take();
        let conditions = self.until.sequence.conditions.len();
        let failed = |end| UntilError { end, last: None, condition: 0, conditions };
        let opened = ObjectWatch::builder(&self.cache).filter(self.filter.clone()).open();
        let watch = opened.map_err(|error| failed(UntilEnd::NotSynced(error)))?;
        if let Some(precondition) = precondition {
            let state = self.synced().await.map_err(&failed)?;
            if precondition(&state).map_err(|error| failed(UntilEnd::Condition(error)))? {
                return Ok(Held { event: None, position: state.position() });
            }
        }
        Until { watch: Some(watch), ..self.until }.await
    }

    /// Blocks until the conditions hold or the wait ends.
    pub fn wait(self) -> Result<Held<O>, UntilError<O>> {
        park::block_on_future(Duration::MAX, self.run()).expect("a wait without end has a result")
    }

    /// The first state, or the reason why there is none at the time limit.
    async fn synced(&mut self) -> Result<Snapshot, UntilEnd> {
        let cache = self.cache.clone();
        let mut listed = pin!(cache.wait_ready_async(Duration::MAX));
        let deadline = &mut self.until.deadline;
        let ready = poll_fn(|context| match listed.as_mut().poll(context) {
            Poll::Ready(result) => Poll::Ready(result),
            // The cache's own error says what is missing.
            Poll::Pending if deadline.poll(context) => Poll::Ready(cache.snapshot().map(drop)),
            Poll::Pending => Poll::Pending,
        })
        .await;
        ready.and_then(|()| cache.snapshot()).map_err(UntilEnd::NotSynced)
    }
}

impl<O: FromKeyValue> fmt::Debug for UntilWithSync<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UntilWithSync")
            .field("cache", &self.cache.name())
            .field("until", &self.until)
            .finish_non_exhaustive()
    }
}
