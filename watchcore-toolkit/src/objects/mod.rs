//! The typed watch over a cache delivers objects with their old values, whatever was lost in between.
//!
//! | file | what |
//! | --- | --- |
//! | `options` | the options of a watch, and its subscriptions |
//! | `handle` | statistics and steps |
//! | `log_reader` | converts batches of the log to typed events |
//! | `known` | the objects that the consumer has |
//! | `compare` | the difference between these and the present state |
//!
//! Its states are those of docs/internals/toolkit.md: a watch reads the log; when the window
//! overtakes it, it walks over a snapshot, then delivers the difference, and reads the log again.
//! One thread at a time polls it; others can stop it and read its statistics.

#![forbid(unsafe_code)]

mod compare;
mod handle;
mod known;
mod log_reader;
mod options;
#[cfg(test)]
mod tests;

pub use handle::WatchStats;
pub use options::ObjectWatchBuilder;

pub(crate) use handle::{WatchHandle, WatchStep};
pub(crate) use known::{KeyOf, Known};

use crate::clock::{Clock, Delay, delay_from};
use crate::event::{Origin, Status, WatchEvent};
use crate::foreign::guard;
use crate::object::{Conversion, FromKeyValue};
use crate::sync::Lock;
use crate::watch::{Stopper, Watch};
use compare::{Comparison, Difference};
use futures_core::Stream;
use handle::Refusals;
use log_reader::{LogReader, Polled};
use options::StartState;
use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use watchcore::{Cache, Error, OnLag, Position, Start};

/// A typed watch over a cache delivers the state, then every change, with old and new values.
///
/// `old` is the value that *this* consumer received before, and a deletion has the last value that
/// it received, even if the window has overtaken the watch in between, or the source was away.
/// Types are relative to that. The watch keeps a pointer and a byte per object, and no undelivered
/// events: a watch that is never polled costs the same after ten million events.
///
/// ```
/// use std::time::Duration;
/// use watchcore::{Cache, Change, KeyValue};
/// use watchcore_toolkit::{ObjectWatch, Payload, WatchExt};
///
/// let cache = Cache::builder("/").build()?;
/// let mut writer = cache.writer()?;
/// writer.apply(1, [Change::put("/a", "1")])?;
/// let mut watch = ObjectWatch::<KeyValue>::open(&cache)?;
/// writer.apply(2, [Change::put("/a", "2")])?;
///
/// let mut next = || watch.recv(Duration::from_secs(10)).map(|event| event.unwrap());
/// assert_eq!(next()?.name(), "ADDED");
/// assert_eq!(next()?.name(), "SYNCED");
/// let Payload::Modified { old, new } = next()?.payload else { panic!("a change") };
/// assert_eq!((old.unwrap().value_str(), new.value_str()), (Some("1"), Some("2")));
/// # Ok::<(), watchcore::Error>(())
/// ```
#[must_use = "dropping a watch ends it"]
pub struct ObjectWatch<O: FromKeyValue> {
    options: ObjectWatchBuilder<O>,
    reader: LogReader<O>,
    state: WatchState<O>,
    /// Events that were made and not delivered: at most a batch, or a part of a difference.
    pending: VecDeque<WatchStep<O>>,
    /// The position of the last [`WatchStep::Whole`].
    marked: Position,
    backlog: Backlog<O>,
    /// The delay until the next resync, if resyncs were requested. `None` while one is being delivered.
    resync: Option<Delay>,
    /// Resyncs are due at multiples of their period after this time.
    began: Instant,
    refusals: Refusals,
    handle: Arc<WatchHandle>,
    stopper: Stopper,
}

enum WatchState<O> {
    Reading,
    /// The window has overtaken the watch: a comparison must start.
    Overtaken,
    Comparing(Box<Comparison<O>>),
    Ended,
}

/// Events that are delivered before the log is read further, piece by piece.
enum Backlog<O> {
    Nothing,
    Difference { left: DifferenceLeft<O>, position: Position, synced: bool },
    Resync(std::vec::IntoIter<O>),
}

struct DifferenceLeft<O> {
    deletes: std::vec::IntoIter<O>,
    puts: std::vec::IntoIter<(Option<O>, O)>,
}

impl<O: FromKeyValue> ObjectWatchBuilder<O> {
    /// Opens the watch. INVALID_ARGUMENT if the filter uses labels or fields that the cache does not declare; CLOSED.
    pub fn open(self) -> watchcore::Result<ObjectWatch<O>> {
        let keeps = matches!(self.on_lag, OnLag::Resnapshot | OnLag::Conflate);
        let reader = if keeps { LogReader::seeded(&self)? } else { LogReader::new(self.subscribe(self.start)?, None) };
        let of_state = matches!(self.start, Start::State | Start::StateAtLeast(_));
        Ok(ObjectWatch::start(self, if of_state { reader.of_state() } else { reader }))
    }
}

impl<O: FromKeyValue> ObjectWatch<O> {
    /// Returns the options of a watch.
    pub fn builder(cache: &Cache) -> ObjectWatchBuilder<O> {
        ObjectWatchBuilder::new(cache)
    }

    /// Opens a watch of the state of the whole cache, and every change after it.
    pub fn open(cache: &Cache) -> watchcore::Result<ObjectWatch<O>> {
        ObjectWatch::builder(cache).open()
    }

    fn start(mut options: ObjectWatchBuilder<O>, reader: LogReader<O>) -> ObjectWatch<O> {
        let handle = Arc::new(WatchHandle {
            closer: Lock::new(reader.subscription().closer()),
            given: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            compared: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            known: AtomicU64::new(0),
        });
        let refusals = Refusals { call: options.refused.take(), handle: Arc::clone(&handle) };
        let began = if options.resync.is_some() { options.clock.now() } else { Instant::now() };
        let resync = options.resync.map(|period| next_resync(&*options.clock, began, period));
        let stopper = {
            let handle = Arc::clone(&handle);
            Stopper::new(move || handle.stop())
        };
        ObjectWatch {
            options,
            reader,
            state: WatchState::Reading,
            pending: VecDeque::new(),
            marked: Position::default(),
            backlog: Backlog::Nothing,
            resync,
            began,
            refusals,
            handle,
            stopper,
        }
    }

    /// The position after the last delivered event, if nothing is pending: the point where a watch resumes.
    pub fn position(&self) -> Position {
        self.reader.position
    }

    /// The statistics of the watch.
    pub fn stats(&self) -> WatchStats {
        self.handle.stats()
    }

    /// The memory of the known objects' table in bytes, without the objects, which belong to the
    /// cache as long as they are current.
    pub fn known_bytes(&self) -> usize {
        self.reader.known.as_ref().map_or(0, Known::bytes)
    }

    pub(crate) fn handle(&self) -> Arc<WatchHandle> {
        Arc::clone(&self.handle)
    }

    /// Moves the next events of the backlog into `pending`; returns whether there were any.
    fn draw(&mut self) -> bool {
        const PIECE: usize = 64;
        let now = self.reader.position;
        match &mut self.backlog {
            Backlog::Nothing => return false,
            Backlog::Difference { left, position, synced } => {
                let lost = std::mem::take(&mut self.reader.lost);
                let deletes = left.deletes.by_ref().map(WatchEvent::deleted);
                let puts = left.puts.by_ref().map(|(old, new)| match old {
                    Some(old) => WatchEvent::modified(Some(old), new),
                    None => WatchEvent::added(new),
                });
                let made = deletes.chain(puts).take(PIECE);
                self.pending.extend(made.map(|event| WatchStep::Event(event.at(now).with_origin(Origin::Difference))));
                if let Some(WatchStep::Event(first)) = self.pending.front_mut() {
                    first.lost = lost;
                } else {
                    self.reader.lost = lost;
                }
                if left.deletes.len() + left.puts.len() == 0 {
                    self.reader.position = *position;
                    if let Some(WatchStep::Event(last)) = self.pending.back_mut() {
                        last.position = *position;
                    }
                    if *synced {
                        self.pending.push_back(WatchStep::Event(WatchEvent::synced().at(*position)));
                    }
                    if self.options.marks {
                        self.pending.push_back(WatchStep::Whole(*position));
                    }
                    self.backlog = Backlog::Nothing;
                }
            }
            Backlog::Resync(objects) => {
                let again =
                    objects.by_ref().take(PIECE).map(|object| WatchEvent::modified(Some(object.clone()), object));
                self.pending.extend(again.map(|event| WatchStep::Event(event.at(now).with_origin(Origin::Resync))));
                if objects.len() == 0 {
                    self.backlog = Backlog::Nothing;
                }
            }
        }
        true
    }

    /// Whether a resync was due. Then it has started, if there are objects to deliver again.
    ///
    /// The time of the next resync is computed at the next call, after the last object of this one: resyncs that became
    /// due meanwhile are skipped, and between two resyncs the log is read, however long the consumer takes for one.
    fn poll_resync(&mut self, context: &mut Context<'_>) -> bool {
        let Some(period) = self.options.resync else { return false };
        // The clock is foreign code. If it panics, the watch loses its resyncs, and no event.
        let polled = guard("the clock of a watch", || {
            let delay = self.resync.get_or_insert_with(|| next_resync(&*self.options.clock, self.began, period));
            Pin::new(delay).poll(context)
        });
        match polled {
            Ok(Poll::Ready(())) => {}
            Ok(Poll::Pending) => return false,
            Err(_) => {
                (self.options.resync, self.resync) = (None, None);
                return false;
            }
        }
        self.resync = None;
        // An incomplete initial state is not delivered again, and a stopped watch must find its end.
        if !self.reader.in_state
            && !self.stopper.is_stopped()
            && let Some(known) = &self.reader.known
        {
            self.backlog = Backlog::Resync(known.to_vec().into_iter());
        }
        true
    }

    /// Decides how to continue after an error of the subscription.
    fn fail(&mut self, error: Error) {
        if error.code() == watchcore::Code::Lagged {
            let lost = (error.lost_to() + 1).saturating_sub(error.lost_from());
            self.reader.skip(lost, error.lost_to());
            if self.options.skips(&error, self.reader.in_state) {
                return;
            }
        }
        if !self.options.makes_good(&error) || self.reader.start != StartState::Known {
            return self.end(Some(error));
        }
        self.handle.compared.fetch_add(1, Ordering::Relaxed);
        self.state = WatchState::Overtaken;
    }

    /// Starts a comparison. Returns false if the window has just moved on again.
    fn begin_comparison(&mut self) -> watchcore::Result<bool> {
        // The subscription is opened before the walk, so that events after the snapshot are not
        // lost unless the walk takes longer than the window lasts.
        let Some((snapshot, subscription)) = self.options.snapshot_and_rest()? else { return Ok(false) };
        self.handle.read_from(subscription.closer());
        self.reader.replace(subscription);
        let known = self.reader.known.take().unwrap_or_else(Known::new);
        let epoch = self.reader.position.epoch;
        let comparison = Comparison::begin(snapshot, &self.options.filter, known, epoch);
        self.state = WatchState::Comparing(Box::new(comparison));
        Ok(true)
    }

    /// Walks one slice; returns whether the comparison is complete.
    fn compare(&mut self) -> bool {
        let WatchState::Comparing(comparison) = &mut self.state else { return true };
        match comparison.step() {
            Ok(false) => return false,
            Ok(true) => {}
            Err(error) => {
                self.end(Some(error));
                return true;
            }
        }
        if let WatchState::Comparing(comparison) = std::mem::replace(&mut self.state, WatchState::Reading) {
            let Difference { position, deletes, mut puts, known, failures } = comparison.finish();
            if std::mem::take(&mut self.reader.silent) {
                // The state that the consumer is assumed to know was not completely recorded when
                // the window overtook the watch. Objects that were not recorded count as known: an
                // Added for them would be invented, and the changes meanwhile are in `lost`.
                puts.retain(|(old, _)| old.is_some());
            }
            self.reader.known = Some(known);
            for (kv, error) in failures {
                self.refusals.report(&kv, &error);
            }
            let left = DifferenceLeft { deletes: deletes.into_iter(), puts: puts.into_iter() };
            let synced = std::mem::take(&mut self.reader.in_state);
            self.backlog = Backlog::Difference { left, position, synced };
        }
        true
    }

    fn end(&mut self, error: Option<Error>) {
        self.state = WatchState::Ended;
        if let Some(error) = error {
            let lost = std::mem::take(&mut self.reader.lost);
            let error = WatchEvent::error(Status::from(error)).at(self.reader.position).with_lost(lost);
            self.pending.push_back(WatchStep::Event(error));
        }
    }

    /// The position of a waiting watch, if it has advanced without an event for this consumer.
    fn moved_on(&mut self) -> Option<Position> {
        let position = self.reader.position;
        if !self.options.marks || self.marked == position || !self.reader.is_between_states() {
            return None;
        }
        self.marked = position;
        Some(position)
    }

    /// Counts a delivered event or mark.
    fn hand_out(&mut self, step: WatchStep<O>) -> WatchStep<O> {
        let handle = &*self.handle;
        if self.pending.is_empty() {
            let known = self.reader.known.as_ref().map_or(0, Known::len);
            handle.known.store(known as u64, Ordering::Relaxed);
        }
        let event = match &step {
            WatchStep::Event(event) => event,
            WatchStep::Whole(position) => {
                self.marked = *position;
                return step;
            }
        };
        // Only the watch's consumer writes these counters, so a load and a store suffice.
        let add =
            |counter: &AtomicU64, more: u64| counter.store(counter.load(Ordering::Relaxed) + more, Ordering::Relaxed);
        add(&handle.given, 1);
        if event.lost > 0 {
            add(&handle.lost, event.lost);
        }
        step
    }
}

/// A delay until the next multiple of the period.
fn next_resync(clock: &dyn Clock, began: Instant, period: Duration) -> Delay {
    let now = clock.now();
    let (passed, period) = (now.saturating_duration_since(began).as_nanos(), period.as_nanos().max(1));
    let wait = u64::try_from(period - passed % period).unwrap_or(u64::MAX);
    delay_from(clock, now, Duration::from_nanos(wait))
}

impl<O: FromKeyValue> ObjectWatch<O> {
    /// Polls for the next event or mark.
    pub(crate) fn poll_step(&mut self, context: &mut Context<'_>) -> Poll<Option<WatchStep<O>>> {
        loop {
            if let Some(step) = self.pending.pop_front() {
                return Poll::Ready(Some(self.hand_out(step)));
            }
            match guard(Conversion::<O>::new(), || self.draw()) {
                Ok(true) => continue,
                Ok(false) => {}
                // A clone that panics has lost a part of the difference, which nothing but the end
                // of the watch would show.
                Err(panicked) => {
                    self.backlog = Backlog::Nothing;
                    self.end(Some(Error::new(watchcore::Code::Panic, format!("{panicked}. Correct it."))));
                    continue;
                }
            }
            match self.state {
                WatchState::Ended => return Poll::Ready(None),
                // A stop before the comparison has closed only the former subscription.
                WatchState::Overtaken | WatchState::Comparing(_) if self.stopper.is_stopped() => self.end(None),
                WatchState::Overtaken => match self.begin_comparison() {
                    Ok(true) => {}
                    Ok(false) => {
                        // The writer is faster than this thread: yield before the next attempt.
                        context.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                    Err(error) => self.end(Some(error)),
                },
                WatchState::Comparing(_) => {
                    if !self.compare() {
                        // Yield between two slices.
                        context.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                }
                WatchState::Reading => {
                    if self.poll_resync(context) {
                        continue;
                    }
                    let out = (&mut self.pending, &mut self.refusals);
                    match self.reader.poll(context, &self.options, out) {
                        Poll::Pending => match self.moved_on() {
                            Some(position) => return Poll::Ready(Some(WatchStep::Whole(position))),
                            None => return Poll::Pending,
                        },
                        Poll::Ready(Polled::Made) => {}
                        Poll::Ready(Polled::Closed) => self.end(None),
                        Poll::Ready(Polled::Failed(error)) => self.fail(error),
                    }
                }
            }
        }
    }
}

impl<O: FromKeyValue> Stream for ObjectWatch<O> {
    type Item = WatchEvent<O>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<WatchEvent<O>>> {
        let this = self.get_mut();
        loop {
            match ready!(this.poll_step(context)) {
                Some(WatchStep::Event(event)) => return Poll::Ready(Some(event)),
                Some(WatchStep::Whole(_)) => {}
                None => return Poll::Ready(None),
            }
        }
    }
}

impl<O: FromKeyValue> Watch for ObjectWatch<O> {
    type Object = O;

    fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }
}

impl<O: FromKeyValue> fmt::Debug for ObjectWatch<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectWatch").field("position", &self.position()).field("stats", &self.stats()).finish()
    }
}
