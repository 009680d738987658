//! Converts batches of the log to typed events with old values, types and positions.

#![forbid(unsafe_code)]

use super::handle::{Refusals, WatchStep};
use super::known::Known;
use super::options::{ObjectWatchBuilder, StartState, seed};
use crate::event::{Origin, WatchEvent};
use crate::foreign::guard;
use crate::object::{Conversion, FromKeyValue, object_of};
use futures_core::Stream;
use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use watchcore::{Batch, Error, Event, KeyValue, Kind, Phase, Position, Start, Subscription};

/// The number of events per poll. A batch is converted at once and released, so that a consumer that pauses in the
/// middle keeps no part of the log in memory; `known` is at most this number of events ahead of the delivered events.
const BATCH: usize = 128;

/// A subscription, and the objects that its consumer knows.
pub(super) struct LogReader<O> {
    subscription: Subscription,
    /// The objects that were delivered; `None` with a policy that does not need them.
    pub(super) known: Option<Known<O>>,
    /// With such a policy: the last good value of each key whose newest value was refused. When the
    /// key is deleted, the log no longer has an older value.
    last_good: Known<O>,
    /// The position after the last event that was made.
    pub(super) position: Position,
    /// The reader has not seen the changes up to this position, after which it was opened, or which
    /// it has skipped. The consumer may have objects from there that the reader does not know.
    /// `None`: the reader started with a state, and has seen all changes.
    unseen: Option<Position>,
    /// Revisions that were lost before the next event.
    pub(super) lost: u64,
    /// Whether the initial state is still arriving.
    pub(super) in_state: bool,
    /// Whether that state is only recorded, because the consumer is assumed to know it.
    pub(super) silent: bool,
    /// Between the marks of a resync, whose changes did not happen one by one.
    in_difference: bool,
    /// Whether `known` includes the objects that the consumer is assumed to know at its start.
    pub(super) start: StartState,
    /// A batch that is kept while the state of the start is read, so that it is not lost if a predicate panics there.
    held: Batch,
}

/// The result of a poll of the log.
pub(super) enum Polled {
    /// Events were made, or a batch had none for the consumer.
    Made,
    Failed(Error),
    Closed,
}

impl<O: FromKeyValue> LogReader<O> {
    /// Makes a reader whose consumer knows `known`, or for which nothing is remembered.
    pub(super) fn new(subscription: Subscription, known: Option<Known<O>>) -> LogReader<O> {
        let position = subscription.position();
        LogReader {
            subscription,
            known,
            last_good: Known::new(),
            position,
            unseen: Some(position),
            lost: 0,
            in_state: false,
            silent: false,
            in_difference: false,
            start: StartState::Known,
            held: Batch::default(),
        }
    }

    /// Makes a reader that knows the objects which its consumer knows at the start.
    pub(super) fn seeded(options: &ObjectWatchBuilder<O>) -> watchcore::Result<LogReader<O>> {
        let mut known = Known::with_capacity(options.expected);
        match options.start {
            Start::Now if options.cache.is_ready() => {
                let (snapshot, subscription) = loop {
                    if let Some(begun) = options.snapshot_and_rest()? {
                        break begun;
                    }
                };
                seed(&mut known, snapshot.filtered(&options.filter)?.map(|kv| kv.to_owned()));
                Ok(LogReader::new(subscription, Some(known)))
            }
            // There is no state yet: the consumer is assumed to know the first one.
            Start::Now => Ok(LogReader::new(options.subscribe(Start::State)?, Some(known)).silent()),
            Start::After(_) | Start::AfterIn(_) => {
                // A start that has left the window is refused here.
                let subscription = options.subscribe(options.start)?;
                let start = options.seed_start(&mut known);
                Ok(LogReader::new(subscription, Some(known)).behind(start))
            }
            _ => Ok(LogReader::new(options.subscribe(options.start)?, Some(known))),
        }
    }

    /// Makes the reader start with a state.
    pub(super) fn of_state(self) -> LogReader<O> {
        LogReader { in_state: true, unseen: None, ..self }
    }

    /// Makes the reader record the initial state without delivering it.
    pub(super) fn silent(self) -> LogReader<O> {
        LogReader { silent: true, ..self }
    }

    /// Sets how much is known of the state after which the reader starts.
    pub(super) fn behind(self, start: StartState) -> LogReader<O> {
        LogReader { start, ..self }
    }

    /// Records the loss of this number of revisions, up to `to`.
    pub(super) fn skip(&mut self, lost: u64, to: u64) {
        self.lost += lost;
        self.unseen = Some(Position { epoch: self.position.epoch, revision: to });
    }

    pub(super) fn subscription(&self) -> &Subscription {
        &self.subscription
    }

    /// Continues with another subscription.
    pub(super) fn replace(&mut self, subscription: Subscription) {
        self.subscription = subscription;
        self.in_difference = false;
    }

    /// Makes the events of the next batch. If there is none, blocks or registers the task, as the options say.
    pub(super) fn poll(
        &mut self,
        context: &mut Context<'_>,
        options: &ObjectWatchBuilder<O>,
        (out, refusals): (&mut VecDeque<WatchStep<O>>, &mut Refusals),
    ) -> Poll<Polled> {
        if self.held.is_empty() {
            self.held = match ready!(self.poll_batch(context, options.blocks)) {
                Ok(batch) => batch,
                Err(ended) => return Poll::Ready(ended),
            };
        }
        if let (StartState::Awaited, Some(known)) = (self.start, &mut self.known) {
            let only_marks = self.held.events().iter().all(|event| event.kind() == Kind::Bookmark);
            self.start = match options.seed_start(known) {
                StartState::Awaited if !only_marks => StartState::Unknown,
                start => start,
            };
        }
        let batch = std::mem::take(&mut self.held);
        self.take(&batch, options.marks, (out, refusals));
        Poll::Ready(Polled::Made)
    }

    /// Polls for the next batch, or the end of the subscription.
    fn poll_batch(&mut self, context: &mut Context<'_>, blocks: bool) -> Poll<Result<Batch, Polled>> {
        Poll::Ready(match self.subscription.poll(BATCH) {
            // There is no event: the subscription checks again, and blocks or registers the waker.
            Ok(batch) if batch.is_empty() => {
                self.position = settled(self.position, batch.position());
                let next = match blocks {
                    true => self.subscription.next_batch().transpose(),
                    false => ready!(Pin::new(&mut self.subscription).poll_next(context)),
                };
                match next {
                    Some(Ok(batch)) => Ok(batch),
                    Some(Err(error)) => Err(Polled::Failed(error)),
                    None => Err(Polled::Closed),
                }
            }
            Ok(batch) => Ok(batch),
            Err(error) if error.code() == watchcore::Code::Closed => Err(Polled::Closed),
            Err(error) => Err(Polled::Failed(error)),
        })
    }

    fn take(&mut self, batch: &Batch, marks: bool, (out, refusals): (&mut VecDeque<WatchStep<O>>, &mut Refusals)) {
        let events = batch.events();
        if self.position.epoch == 0 && events.iter().all(|event| event.resync().is_none()) {
            self.position.epoch = batch.position().epoch;
        }
        for (index, event) in events.iter().enumerate() {
            match events.get(index + 1) {
                None => self.position = batch.position(),
                // A watch that resumed inside a revision would miss its rest, so the position stays
                // before the revision.
                Some(next) if next.revision() != event.revision() && is_settled(event) && !self.in_difference => {
                    self.position.revision = event.revision();
                }
                Some(_) => {}
            }
            // All conversions of the program run here: a panic affects this event only.
            let made = guard(Conversion::<O>::new(), || self.make(event, refusals)).unwrap_or_else(|panicked| {
                let refused = event.kv().or(event.prev())?;
                refusals.report(refused, &Conversion::<O>::refused(&panicked, refused.key()));
                self.keep_last_good(event);
                None
            });
            if let Some(made) = made {
                let lost = std::mem::take(&mut self.lost);
                out.push_back(WatchStep::Event(made.at(self.position).with_lost(lost)));
            }
            if marks && self.is_whole_behind(event) {
                out.push_back(WatchStep::Whole(self.position));
            }
        }
    }

    /// Whether the consumer has a whole state: it is not inside the initial state, a difference, or a revision.
    pub(super) fn is_between_states(&self) -> bool {
        !self.in_state && !self.in_difference
    }

    /// Whether the state after the event that was just taken is whole.
    fn is_whole_behind(&self, event: &Event) -> bool {
        let is_mark = matches!(event.kind(), Kind::Bookmark | Kind::Resync);
        // The position stays below a revision until its last event.
        self.is_between_states() && (is_mark || event.revision() <= self.position.revision)
    }

    /// Converts an event of the log.
    fn make(&mut self, event: &Event, refusals: &mut Refusals) -> Option<WatchEvent<O>> {
        let made = match event.kind() {
            Kind::Added | Kind::Modified | Kind::Put => self.put(event, refusals)?,
            Kind::Deleted | Kind::Delete => self.delete(event, refusals)?,
            Kind::Bookmark if event.ends_initial_state() => {
                self.in_state = false;
                return (!std::mem::take(&mut self.silent)).then(WatchEvent::synced);
            }
            Kind::Bookmark => return Some(WatchEvent::bookmark(self.position)),
            Kind::Resync => {
                self.mark(event);
                return None;
            }
            _ => return None,
        };
        if event.is_initial_state() {
            return (!self.silent).then(|| made.with_origin(Origin::InitialState));
        }
        let differs = event.is_synthetic() || self.in_difference;
        Some(if differs { made.with_origin(Origin::Difference) } else { made })
    }

    fn put(&mut self, event: &Event, refusals: &mut Refusals) -> Option<WatchEvent<O>> {
        let kv = event.kv()?;
        let new = match object_of::<O>(kv) {
            Ok(new) => new,
            Err(error) => {
                refusals.report(kv, &error);
                self.keep_last_good(event);
                return None;
            }
        };
        let good = self.last_good.remove(event.key());
        let in_log = || event.prev().and_then(|prev| object_of::<O>(prev).ok());
        Some(match &mut self.known {
            None if event.kind() == Kind::Added => WatchEvent::added(new),
            None => WatchEvent::modified(good.or_else(in_log), new),
            Some(known) => match known.insert(new.clone()) {
                None if self.start != StartState::Known && event.kind() != Kind::Added => {
                    WatchEvent::modified(in_log(), new)
                }
                None => WatchEvent::added(new),
                old => WatchEvent::modified(old, new),
            },
        })
    }

    /// Makes the event of a deletion, with the last known value; `None` if the consumer never received one.
    fn delete(&mut self, event: &Event, refusals: &mut Refusals) -> Option<WatchEvent<O>> {
        if let Some(known) = &mut self.known {
            let last = known.remove(event.key());
            if last.is_some() || self.start == StartState::Known {
                return last.map(WatchEvent::deleted);
            }
        }
        let last = event.prev().or(event.kv())?;
        let good = self.last_good.remove(event.key());
        match object_of::<O>(last) {
            Ok(last) => Some(WatchEvent::deleted(last)),
            Err(error) => good.map(WatchEvent::deleted).or_else(|| {
                refusals.report(last, &error);
                self.may_be_given(last).then(|| WatchEvent::deleted_unknown(event.key()))
            }),
        }
    }

    /// Whether the consumer may have an object of a key whose newest values were all refused. It
    /// has none if the reader has seen all values of the key.
    fn may_be_given(&self, last: &KeyValue) -> bool {
        self.unseen
            .is_some_and(|unseen| last.create_revision() <= unseen.revision || self.position.epoch != unseen.epoch)
    }

    /// Keeps the value that the consumer received last of a key whose new value is refused, if nothing else keeps it.
    fn keep_last_good(&mut self, event: &Event) {
        let comes_in = event.kind() == Kind::Added;
        if self.known.is_some() || comes_in {
            return;
        }
        // After a second refusal the previous value is a refused one, so the kept value stays.
        if let Some(Ok(good)) = event.prev().map(object_of::<O>) {
            self.last_good.insert(good);
        }
    }

    fn mark(&mut self, event: &Event) {
        let Some(resync) = event.resync() else { return };
        self.in_difference = resync.phase == Phase::Begin;
        if resync.phase == Phase::Begin {
            // In another history the number is unknown: at least one.
            self.lost += resync.to.saturating_sub(resync.from).max(1);
        } else {
            self.position = Position { epoch: resync.epoch, revision: resync.to };
        }
    }
}

/// Whether an event's revision is the position: not for events of a state or of a difference.
fn is_settled(event: &Event) -> bool {
    !event.is_initial_state() && !event.is_synthetic() && event.resync().is_none()
}

/// A position never goes back, except into another history.
fn settled(before: Position, now: Position) -> Position {
    if now.epoch == before.epoch { Position { revision: now.revision.max(before.revision), ..now } } else { now }
}
