//! The phases before a subscription begins: it waits for the cache's first listing, or for the revision of its state.

#![forbid(unsafe_code)]

use super::cursor::{Cursor, ReadFrom};
use super::delivered::{self, Delivered};
use super::frontier::Frontier;
use super::future::FutureStart;
use super::initial::Initial;
use super::loss::{Halt, Loss, Lost, Step};
use super::options::{OnLag, Start, StartOptions};
use crate::cache::{Consumer, Inner, OPEN};
use crate::error::say;
use crate::position::Position;
use crate::read::snapshot::Snapshot;
use crate::read::view::{At, Left};
use crate::reclaim;
use crate::sync::{Acquire, lock};
use std::time::Instant;

/// The cache has no listing yet, so the start is not fixed.
#[derive(Debug)]
pub(super) struct AwaitsListing(pub(super) StartOptions);

/// [`Start::StateAtLeast`]: the cache has not reached the revision. The cursor lies above every event, so the subscription has
/// no lag while it waits.
#[derive(Debug)]
pub(super) struct AwaitsRevision {
    revision: u64,
    /// When it gives up; `None`: never.
    pub(super) until: Option<Instant>,
    batch_bytes: usize,
}

/// How a subscription continues once its start is fixed. The cursor stands at its place then.
pub(super) enum Begun {
    Live(Delivered),
    Initial(Initial),
    Future(FutureStart),
    AwaitsRevision(AwaitsRevision),
}

impl AwaitsListing {
    /// Fixes the start if the cache has its listing; `None`: it has not.
    pub(super) fn poll(
        &self,
        frontier: &Frontier,
        policy: OnLag,
        cursor: &mut Cursor,
        consumer: &Consumer,
    ) -> Step<Option<Begun>> {
        let inner = &consumer.inner;
        if frontier.head == 0 {
            Err(say::closed("subscription").into())
        } else if inner.is_ready() {
            begin(&self.0, true, policy, cursor, consumer).map(Some)
        } else if frontier.closed {
            Err(say::closed("subscription").into())
        } else if inner.has_failed() {
            Err(inner.not_ready("subscription").into())
        } else {
            Ok(None)
        }
    }
}

impl AwaitsRevision {
    /// Returns the phase of the initial state if the revision was reached; `None`: it was not.
    pub(super) fn poll(&self, frontier: &Frontier, consumer: &Consumer) -> Step<Option<Initial>> {
        let inner = &consumer.inner;
        // A subscription that its owner has closed while it waited does not begin.
        let ended = consumer.end.load(Acquire) != OPEN;
        let (position, seq) = inner.now(&reclaim::pin());
        if position.revision >= self.revision && !ended {
            Ok(Some(Initial::new(ReadFrom { seq, position }, self.batch_bytes)))
        } else if frontier.closed {
            Err(say::closed("subscription").into())
        } else if let Some(error) = inner.broken() {
            Err(error.into())
        } else if self.until.is_some_and(|until| Instant::now() >= until) {
            Err(say::future("subscribe to the state at least at", self.revision, position.revision).into())
        } else {
            Ok(None)
        }
    }

    pub(super) fn revision(&self) -> u64 {
        self.revision
    }
}

/// Fixes the start once there is a listing. `late`: the listing came after the subscription.
///
/// Predicates run before anything is changed, so that a predicate that panics leaves the start unfixed.
pub(super) fn begin(
    options: &StartOptions,
    late: bool,
    policy: OnLag,
    cursor: &mut Cursor,
    consumer: &Consumer,
) -> Step<Begun> {
    let inner = &consumer.inner;
    let seed = |at: At<'_>| delivered::of_state(policy, consumer, at);
    match options.start {
        Start::Now => {
            let from = if late { ready_at(inner) } else { now(inner) };
            if let Ok(delivered) = seed(At::Head(inner, from.seq)) {
                cursor.begin_at(from);
                return Ok(Begun::Live(delivered));
            }
            if late {
                cursor.begin_at(from);
                return Err(Halt::Lost(Loss::at(cursor, Lost::Start, 0, consumer)));
            }
            // The state has left the window while it was read: read it again in a snapshot, which keeps it.
            let snapshot = Snapshot::take(inner);
            let delivered = seed(At::Held(&snapshot)).unwrap_or_default();
            cursor.begin_at(ReadFrom { seq: snapshot.head(), position: snapshot.position() });
            Ok(Begun::Live(delivered))
        }
        Start::State => {
            let from = if late { ready_at(inner) } else { now(inner) };
            Ok(Begun::Initial(Initial::new(from, options.batch_bytes)))
        }
        Start::StateAtLeast(revision) => {
            cursor.begin_at(ReadFrom { seq: u64::MAX, position: cursor.position() });
            let until = Instant::now().checked_add(options.timeout);
            Ok(Begun::AwaitsRevision(AwaitsRevision { revision, until, batch_bytes: options.batch_bytes }))
        }
        Start::After(revision) => begin_after(Position { epoch: 0, revision }, false, seed, cursor, consumer),
        Start::AfterIn(position) => begin_after(position, false, seed, cursor, consumer),
        Start::Within(revision) => begin_after(Position { epoch: 0, revision }, true, seed, cursor, consumer),
    }
}

/// Starts after a revision. `within`: at the first event of that revision, where it has several.
fn begin_after(
    asked: Position,
    within: bool,
    seed: impl Fn(At<'_>) -> Result<Delivered, Left>,
    cursor: &mut Cursor,
    consumer: &Consumer,
) -> Step<Begun> {
    let inner = &consumer.inner;
    let found = inner.resolve("subscribe after", asked, true)?;
    let above = ReadFrom { seq: found.seq, position: Position { epoch: found.epoch, ..asked } };
    if found.future {
        cursor.begin_at(above);
        return Ok(Begun::Future(FutureStart::new(above.seq, within, inner)));
    }
    let from = first_event(above, within, inner)?;
    let delivered = seed(At::Head(inner, from.seq));
    cursor.begin_at(from);
    match delivered {
        Ok(delivered) => Ok(Begun::Live(delivered)),
        Err(_) => Err(inner.compacted("subscribe after", asked.revision).into()),
    }
}

/// The place of the first event to deliver. `above` is that of the first event above a revision; with `within` it is replaced
/// by the first event of the revision itself, if the revision has several.
pub(super) fn first_event(above: ReadFrom, within: bool, inner: &Inner) -> Step<ReadFrom> {
    let first = if within { inner.first_within(above.position)? } else { None };
    Ok(first.map_or(above, |(seq, position)| ReadFrom { seq, position }))
}

fn now(inner: &Inner) -> ReadFrom {
    let (position, seq) = inner.now(&reclaim::pin());
    ReadFrom { seq, position }
}

/// Where the cache became Ready: at its first listing, or at the end of the history after it.
fn ready_at(inner: &Inner) -> ReadFrom {
    let (seq, position) = lock(&inner.info).began.unwrap_or_else(|| {
        let pin = reclaim::pin();
        let epochs = inner.ring.epochs(&pin);
        (inner.ring.first_seq(), Position { epoch: epochs.first_epoch, revision: epochs.listing })
    });
    ReadFrom { seq, position }
}
