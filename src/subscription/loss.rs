//! Why a poll cannot continue: its events were lost, or the subscription is over.
//!
//! Events are lost where the segment of the cursor has left the window, or where the subscription is further behind than its
//! limits allow. What follows a loss is decided in `transitions`. docs/internals/lag.md has examples.

#![forbid(unsafe_code)]

use super::cursor::{Cursor, ReadFrom};
use super::frontier::Frontier;
use crate::cache::Consumer;
use crate::error::{Code, Error};
use crate::position::Position;
use crate::reclaim;

/// The reason why a poll cannot continue.
#[derive(Debug)]
pub(super) enum Halt {
    /// Events were lost; the policy decides what follows.
    Lost(Loss),
    Over(Error),
}

impl From<Error> for Halt {
    fn from(error: Error) -> Halt {
        Halt::Over(error)
    }
}

pub(super) type Step<T> = std::result::Result<T, Halt>;

/// A loss: revisions, inclusive, and where the log continues.
#[derive(Debug, Clone, Copy)]
pub(super) struct Loss {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) oldest: u64,
    pub(super) current: u64,
    /// The first event that is not lost, and the position before it.
    pub(super) next: ReadFrom,
    pub(super) of: Lost,
}

/// The kind of a loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lost {
    /// Events above a state that the consumer has.
    Events,
    /// A part of the initial state. The delivered keys say which part the consumer has.
    State,
    /// The state that the subscription starts from, which the consumer has from another source. The cache no longer has
    /// it, so it can make no difference from there.
    Start,
}

impl Loss {
    /// The loss of a cursor whose segment has left: the lost range, and the position at which the log continues.
    /// `reported`: the last revision that was reported as lost before.
    pub(super) fn at(cursor: &Cursor, of: Lost, reported: u64, consumer: &Consumer) -> Loss {
        let inner = &consumer.inner;
        let position = cursor.position();
        loop {
            let pin = reclaim::pin();
            let (current, head) = inner.now(&pin);
            let epochs = inner.ring.epochs(&pin);
            let oldest = inner.ring.oldest_at(head, &pin).revision;
            let seq = inner.ring.seq_above(oldest - 1, &epochs.at(head), head, &pin).max(cursor.seq());
            let before = Position { epoch: epochs.at(seq).epoch, revision: oldest - 1 };
            let again = inner.ring.oldest_at(head, &pin);
            if inner.ring.oldest_seq() > seq || again.revision != oldest || !again.holds(&inner.ring) {
                continue;
            }
            let last = if before.epoch == position.epoch { position.revision.max(reported) } else { position.revision };
            let (from, next) = (last + 1, ReadFrom { seq, position: before });
            let loss = Loss { from, to: before.revision.max(from), oldest, current: current.revision, next, of };
            return loss.up_to_the_close(consumer);
        }
    }

    /// The loss of an initial state whose head has left the window.
    pub(super) fn of_state(position: Position, consumer: &Consumer) -> Loss {
        let (oldest, current) = consumer.inner.window();
        let next = ReadFrom { seq: 0, position };
        let loss = Loss { from: 1, to: current.revision, oldest, current: current.revision, next, of: Lost::State };
        loss.up_to_the_close(consumer)
    }

    /// Cuts a loss to the close by the owner: no event above the close was to be handed out, so none above is lost.
    fn up_to_the_close(self, consumer: &Consumer) -> Loss {
        let Frontier { head, closed_at, .. } = Frontier::load(consumer);
        match closed_at {
            Some(at) if self.of == Lost::State => Loss { to: at.revision, ..self },
            Some(at) if self.next.seq >= head => {
                Loss { to: at.revision.max(self.from), next: ReadFrom { seq: head, position: at }, ..self }
            }
            _ => self,
        }
    }

    pub(super) fn error(&self, position: Position) -> Error {
        let Loss { from, to, oldest, current, of, .. } = *self;
        let what = match of {
            Lost::Start => ", and with them the state that it was to start from",
            Lost::Events | Lost::State => "",
        };
        Error::new(
            Code::Lagged,
            format!("subscription: revisions {from} to {to} were lost{what}; the log holds {oldest} to {current}. Subscribe again from State, or make the capacity larger."),
        )
        .with_lost(from, to)
        .with_oldest(oldest)
        .with_current(current)
        .with_position(position)
    }
}

/// LAGGED, if the subscription was closed because it exceeded its limit of lag.
#[cold]
pub(super) fn check_limit(consumer: &Consumer, position: Position) -> Step<()> {
    let Some(lag) = consumer.take_too_slow() else { return Ok(()) };
    let (oldest, current) = consumer.inner.window();
    let from = position.revision + 1;
    Err(Error::new(
        Code::Lagged,
        format!(
            "subscription: closed, because it was {} events and {} ms behind, and may be at most {}. Read faster, raise the limit, or subscribe again.",
            lag.events,
            lag.age.as_millis(),
            consumer.limits()
        ),
    )
    .with_lost(from, current.revision.max(from))
    .with_oldest(oldest)
    .with_current(current.revision)
    .with_position(position)
    .into())
}

/// RESYNCED, for a subscription that is to stop where the history was replaced.
pub(super) fn resynced(to: u64, reason: &str, position: Position) -> Error {
    Error::new(
        Code::Resynced,
        format!(
            "subscription: the history was replaced at revision {to} ({reason}); it asked to stop there. Subscribe again from State."
        ),
    )
    .with_current(to)
    .with_position(position)
}
