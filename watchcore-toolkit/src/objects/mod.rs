//! The typed watch over a cache: objects with their old values, whatever was lost on the way.
//!
//! | file | what |
//! | --- | --- |
//! | `options` | how one is opened |
//! | `log_reader` | from batches of the log to typed events |
//! | `known` | what the consumer was given |
//! | `compare` | the difference between that and what is there |
//!
//! The states are those of docs/internals/toolkit.md: it reads the log; overtaken, it walks a snapshot; then it hands out
//! the difference, and reads the log again. One thread at a time polls it; others only stop it and read its figures.

#![forbid(unsafe_code)]

mod compare;
mod known;
mod log_reader;
mod options;
#[cfg(test)]
mod tests;

pub use options::ObjectWatchBuilder;

pub(crate) use known::Known;

use crate::clock::Delay;
use crate::event::{Origin, Status, WatchEvent};
use crate::object::FromKeyValue;
use crate::watch::{Stopper, Watch};
use compare::{Comparison, Difference};
use futures_core::Stream;
use log_reader::{LogReader, Polled, StartState};
use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use watchcore::{Cache, Closer, Error, KeyValue, Lag, Position};

type Refused = Box<dyn FnMut(&KeyValue, &Error) + Send>;

/// A typed watch over a cache: the state, then every change, with old and new values.
///
/// `old` is what *this* consumer was given before, and a deletion has the last value that it was given; both also where
/// the window has left it behind meanwhile, or the source was away. Types are relative to that. It keeps a pointer and a
/// byte an object, and nothing of what it has not taken: one that is never polled costs the same after ten million
/// events.
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
    /// Made, and not yet handed out: at most a batch, or a part of a difference.
    pending: VecDeque<WatchEvent<O>>,
    backlog: Backlog<O>,
    /// Until the next resync, where one was asked for. `None` while one is handed out: its period counts from the end.
    resync: Option<Delay>,
    refusals: Refusals,
    handle: Arc<WatchHandle>,
    stopper: Stopper,
}

enum WatchState<O> {
    Reading,
    /// The window has left it behind: a comparison is to begin.
    Overtaken,
    Comparing(Box<Comparison<O>>),
    Ended,
}

/// What is handed out beside the log, piece by piece.
enum Backlog<O> {
    Nothing,
    Difference { left: DifferenceLeft<O>, position: Position, synced: bool },
    Resync(std::vec::IntoIter<O>),
}

struct DifferenceLeft<O> {
    deletes: std::vec::IntoIter<O>,
    puts: std::vec::IntoIter<(Option<O>, O)>,
}

/// What others have of a watch.
pub(crate) struct WatchHandle {
    /// Of the subscription that it reads now.
    closer: Mutex<Closer>,
    given: AtomicU64,
    lost: AtomicU64,
    compared: AtomicU64,
    refused: AtomicU64,
    known: AtomicU64,
}

/// How a watch stands: its figures, from any thread.
///
/// ```
/// use watchcore::{Cache, KeyValue};
/// use watchcore_toolkit::ObjectWatch;
///
/// let cache = Cache::builder("/").build()?;
/// let watch = ObjectWatch::<KeyValue>::open(&cache)?;
/// assert_eq!((watch.figures().given, watch.figures().lag.events), (0, 0));
/// # Ok::<(), watchcore::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct WatchFigures {
    /// Events handed out, marks included.
    pub given: u64,
    /// Revisions that it did not see one by one.
    pub lost: u64,
    /// How often the window left it behind, and a difference was made.
    pub compared: u64,
    /// Values that could not be decoded.
    pub refused: u64,
    /// Objects that it knows.
    pub known: u64,
    /// How far it is behind now.
    pub lag: Lag,
}

/// Values that the decoder refused: counted, and reported.
struct Refusals {
    call: Option<Refused>,
    handle: Arc<WatchHandle>,
}

impl Refusals {
    fn report(&mut self, kv: &KeyValue, error: &Error) {
        self.handle.refused.fetch_add(1, Ordering::Relaxed);
        match &mut self.call {
            // A panic that came out here would take the rest of the batch with it.
            Some(call) => {
                if catch_unwind(AssertUnwindSafe(|| call(kv, error))).is_err() {
                    tracing::error!(%error, "the function for values that cannot be decoded panicked");
                }
            }
            None => tracing::warn!(key = %String::from_utf8_lossy(kv.key()), %error, "a value cannot be decoded"),
        }
    }
}

impl WatchHandle {
    fn closer(&self) -> std::sync::MutexGuard<'_, Closer> {
        self.closer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the subscription that it reads now. One that it reads later is not begun: the lock orders this call before a
    /// comparison that finds the watch stopped, or behind one that closes here.
    fn stop(&self) {
        self.closer().close();
    }

    fn read_from(&self, subscription: Closer) {
        *self.closer() = subscription;
    }

    pub(crate) fn figures(&self) -> WatchFigures {
        let lag = self.closer().lag();
        let load = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
        WatchFigures {
            given: load(&self.given),
            lost: load(&self.lost),
            compared: load(&self.compared),
            refused: load(&self.refused),
            known: load(&self.known),
            lag,
        }
    }
}

impl<O: FromKeyValue> ObjectWatch<O> {
    /// What a watch may be asked for.
    pub fn builder(cache: &Cache) -> ObjectWatchBuilder<O> {
        ObjectWatchBuilder::new(cache)
    }

    /// The state of the whole cache, and every change after it.
    pub fn open(cache: &Cache) -> watchcore::Result<ObjectWatch<O>> {
        ObjectWatch::builder(cache).open()
    }

    fn start(mut options: ObjectWatchBuilder<O>, reader: LogReader<O>) -> ObjectWatch<O> {
        let handle = Arc::new(WatchHandle {
            closer: Mutex::new(reader.subscription().closer()),
            given: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            compared: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            known: AtomicU64::new(0),
        });
        let refusals = Refusals { call: options.refused.take(), handle: Arc::clone(&handle) };
        let resync = options.resync.map(|period| options.clock.delay(period));
        let stopper = {
            let handle = Arc::clone(&handle);
            Stopper::new(move || handle.stop())
        };
        ObjectWatch {
            options,
            reader,
            state: WatchState::Reading,
            pending: VecDeque::new(),
            backlog: Backlog::Nothing,
            resync,
            refusals,
            handle,
            stopper,
        }
    }

    /// Behind the last event that was handed out, if nothing is pending; where a watch resumes.
    pub fn position(&self) -> Position {
        self.reader.position
    }

    /// Its figures.
    pub fn figures(&self) -> WatchFigures {
        self.handle.figures()
    }

    /// The bytes of what it knows, without the objects: those are the cache's, as long as it is up to date.
    pub fn known_bytes(&self) -> usize {
        self.reader.known.as_ref().map_or(0, Known::bytes)
    }

    pub(crate) fn handle(&self) -> Arc<WatchHandle> {
        Arc::clone(&self.handle)
    }

    /// Puts the next events of the backlog into `pending`; whether there were any.
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
                self.pending.extend(made.map(|event| event.at(now).with_origin(Origin::Difference)));
                if let Some(first) = self.pending.front_mut() {
                    first.lost = lost;
                } else {
                    self.reader.lost = lost;
                }
                if left.deletes.len() + left.puts.len() == 0 {
                    self.reader.position = *position;
                    if let Some(last) = self.pending.back_mut() {
                        last.position = *position;
                    }
                    if *synced {
                        self.pending.push_back(WatchEvent::synced().at(*position));
                    }
                    self.backlog = Backlog::Nothing;
                }
            }
            Backlog::Resync(objects) => {
                let again =
                    objects.by_ref().take(PIECE).map(|object| WatchEvent::modified(Some(object.clone()), object));
                self.pending.extend(again.map(|event| event.at(now).with_origin(Origin::Resync)));
                if objects.len() == 0 {
                    self.backlog = Backlog::Nothing;
                }
            }
        }
        true
    }

    /// Whether a resync was due: then it has begun, where there is something to give again.
    ///
    /// The period of the next one begins when this is asked again, behind the last object of this one. So between two resyncs
    /// the log is read, however long the consumer takes for one.
    fn poll_resync(&mut self, context: &mut Context<'_>) -> bool {
        let Some(period) = self.options.resync else { return false };
        let delay = self.resync.get_or_insert_with(|| self.options.clock.delay(period));
        if Pin::new(delay).poll(context).is_pending() {
            return false;
        }
        self.resync = None;
        // Before its state is complete it is not given again, and a watch that was stopped is to find its end.
        if !self.reader.in_state
            && !self.stopper.is_stopped()
            && let Some(known) = &self.reader.known
        {
            self.backlog = Backlog::Resync(known.to_vec().into_iter());
        }
        true
    }

    /// What comes of an error of the subscription.
    fn fail(&mut self, error: Error) {
        if error.code() == watchcore::Code::Lagged {
            let lost = (error.lost_to() + 1).saturating_sub(error.lost_from());
            self.reader.lost += lost;
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

    /// Whether it has begun: not where the window has moved on, just now, once more.
    fn begin_comparison(&mut self) -> watchcore::Result<bool> {
        // Before the walk: behind the snapshot nothing is lost as long as the walk takes less than the window does.
        let Some((snapshot, subscription)) = self.options.snapshot_and_rest()? else { return Ok(false) };
        self.handle.read_from(subscription.closer());
        self.reader.replace(subscription);
        let known = self.reader.known.take().unwrap_or_else(Known::new);
        let epoch = self.reader.position.epoch;
        let comparison = Comparison::begin(snapshot, &self.options.filter, known, epoch);
        self.state = WatchState::Comparing(Box::new(comparison));
        Ok(true)
    }

    /// Walks one slice; whether the comparison has come to its end.
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
                // What the consumer is supposed to know was not all noted when it was overtaken. What has not been noted counts as
                // known: an Added of it would be made up, and what came meanwhile is `lost`.
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
            self.pending.push_back(WatchEvent::error(Status::from(error)).at(self.reader.position).with_lost(lost));
        }
    }

    /// Counts what is handed out.
    fn hand_out(&mut self, event: WatchEvent<O>) -> WatchEvent<O> {
        let handle = &*self.handle;
        // Of one consumer: nobody else adds, so a load and a store are enough.
        let add =
            |figure: &AtomicU64, more: u64| figure.store(figure.load(Ordering::Relaxed) + more, Ordering::Relaxed);
        add(&handle.given, 1);
        if event.lost > 0 {
            add(&handle.lost, event.lost);
        }
        if self.pending.is_empty() {
            let known = self.reader.known.as_ref().map_or(0, Known::len);
            handle.known.store(known as u64, Ordering::Relaxed);
        }
        event
    }
}

impl<O: FromKeyValue> Stream for ObjectWatch<O> {
    type Item = WatchEvent<O>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<WatchEvent<O>>> {
        let this = self.get_mut();
        loop {
            if let Some(event) = this.pending.pop_front() {
                return Poll::Ready(Some(this.hand_out(event)));
            }
            if this.draw() {
                continue;
            }
            match this.state {
                WatchState::Ended => return Poll::Ready(None),
                // A stop that came before the comparison has closed the subscription before it.
                WatchState::Overtaken | WatchState::Comparing(_) if this.stopper.is_stopped() => this.end(None),
                WatchState::Overtaken => match this.begin_comparison() {
                    Ok(true) => {}
                    Ok(false) => {
                        // The writer is faster than this thread: others have their turn before the next attempt.
                        context.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                    Err(error) => this.end(Some(error)),
                },
                WatchState::Comparing(_) => {
                    if !this.compare() {
                        // Between two slices others have their turn.
                        context.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                }
                WatchState::Reading => {
                    if this.poll_resync(context) {
                        continue;
                    }
                    let out = (&mut this.pending, &mut this.refusals);
                    match this.reader.poll(context, &this.options, out) {
                        Poll::Pending => return Poll::Pending,
                        Poll::Ready(Polled::Made) => {}
                        Poll::Ready(Polled::Closed) => this.end(None),
                        Poll::Ready(Polled::Failed(error)) => this.fail(error),
                    }
                }
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
        f.debug_struct("ObjectWatch").field("position", &self.position()).field("figures", &self.figures()).finish()
    }
}
