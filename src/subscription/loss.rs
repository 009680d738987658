//! A loss: events at the cursor have left the window, or the subscription was too far behind.
//!
//! A poll that meets a loss reports it once, as LAGGED with the range of revisions, and then follows the policy of the
//! subscription ([`OnLag`]): it ends, continues at the oldest event, or catches up by a difference (`catch_up`).
//! docs/internals/lag.md has examples.

#![forbid(unsafe_code)]

use super::awake::{Awake, Frontier};
use super::events::resynced;
use super::own::{Flag, SubscriptionPhase};
use super::{Halt, OnLag, Step};
use crate::error::{Code, Error};
use crate::position::Position;
use crate::reclaim;

/// A loss: revisions, inclusive, and where the log continues.
#[derive(Debug, Clone, Copy)]
pub(super) struct Loss {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) oldest: u64,
    pub(super) current: u64,
    /// The first event that is not lost, and the position before it.
    pub(super) seq: u64,
    pub(super) before: Position,
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

impl Awake<'_> {
    /// LAGGED, if it was closed because it exceeded its limit of lag.
    #[cold]
    pub(super) fn check_limit(&self) -> Step<()> {
        let Some(lag) = self.shared.take_too_slow() else { return Ok(()) };
        let (oldest, current) = self.shared.inner.window();
        let from = self.position().revision + 1;
        Err(Error::new(
            Code::Lagged,
            format!(
                "subscription: closed, it was {} events and {} ms behind, and may be at most {}. Read faster, raise the limit, or subscribe again.",
                lag.events,
                lag.age.as_millis(),
                self.shared.limits()
            ),
        )
        .with_lost(from, current.revision.max(from))
        .with_oldest(oldest)
        .with_current(current.revision)
        .with_position(self.position())
        .into())
    }

    /// The loss of a cursor whose segment has left: the lost range, and the position at which the log continues.
    pub(super) fn loss(&self) -> Loss {
        let inner = &self.shared.inner;
        loop {
            let pin = reclaim::pin();
            let (current, head) = inner.now(&pin);
            let epochs = inner.ring.epochs(&pin);
            let present = epochs.at(head);
            let oldest = inner.ring.oldest_at(head, &pin).revision;
            let seq = inner.ring.seq_above(oldest - 1, &present, head, &pin).max(self.cursor.seq());
            let before = Position { epoch: epochs.at(seq).epoch, revision: oldest - 1 };
            let again = inner.ring.oldest_at(head, &pin);
            if inner.ring.oldest_seq() > seq || again.revision != oldest || !again.holds(&inner.ring) {
                continue;
            }
            let from = self.position().revision.max(self.reported()) + 1;
            let from = if before.epoch == self.position().epoch { from } else { self.position().revision + 1 };
            let is_at_its_start = self.own.phase().is_before_its_start();
            let of = if is_at_its_start { Lost::Start } else { Lost::Events };
            let loss = Loss { from, to: before.revision.max(from), oldest, current: current.revision, seq, before, of };
            return self.up_to_the_close(loss);
        }
    }

    /// The loss of an initial state whose head has left the window.
    pub(super) fn loss_of_state(&self) -> Loss {
        let (oldest, current) = self.inner().window();
        let (current, before) = (current.revision, self.position());
        self.up_to_the_close(Loss { from: 1, to: current, oldest, current, seq: 0, before, of: Lost::State })
    }

    /// Cuts a loss to the close by the owner: no event above the close was to be handed out, so none above is lost.
    fn up_to_the_close(&self, loss: Loss) -> Loss {
        let Frontier { head, closed_at, .. } = self.frontier();
        match closed_at {
            Some(at) if loss.of == Lost::State => Loss { to: at.revision, ..loss },
            Some(at) if loss.seq >= head => Loss { to: at.revision.max(loss.from), seq: head, before: at, ..loss },
            _ => loss,
        }
    }

    /// The last revision that was reported as lost.
    fn reported(&self) -> u64 {
        self.own.cold.as_ref().map_or(0, |cold| cold.reported)
    }

    /// Follows the policy after a loss. Returns the error to report; `None`: the poll continues.
    pub(super) fn lose(&mut self, loss: Loss) -> Option<Error> {
        self.shared.lost();
        tracing::debug!(
            cache = self.shared.inner.name,
            subscription = self.shared.name(),
            id = self.shared.id(),
            from = loss.from,
            to = loss.to,
            "events were lost"
        );
        self.cursor.release();
        if let Some(cold) = &mut self.own.cold {
            cold.reader.drop_links();
        }
        let error = loss.error(self.position());
        match self.own.on_lag {
            OnLag::Stop => self.end(),
            OnLag::SkipToOldest if loss.of == Lost::State => self.end(),
            OnLag::SkipToOldest => {
                let frontier = self.frontier();
                let over = frontier.closed && loss.seq >= frontier.head;
                if self.has(Flag::StopOnResync) && loss.before.epoch != self.position().epoch && !over {
                    // The mark of that resync is among the lost events.
                    let resynced = resynced(loss.current, "while events were lost", self.position());
                    self.own.cold().failure = Some(Box::new(Halt::Over(resynced)));
                }
                self.cursor.begin_at(loss.seq, loss.before);
                if let Some(cold) = &mut self.own.cold {
                    (cold.start, cold.phase) = (None, SubscriptionPhase::Live);
                }
            }
            OnLag::Resnapshot | OnLag::Conflate if loss.of == Lost::Start => self.end(),
            // Its owner has closed it, and the state at the close has left the window.
            OnLag::Resnapshot | OnLag::Conflate if self.newest_state().is_none() => self.end(),
            OnLag::Resnapshot | OnLag::Conflate => {
                let reported = self.own.on_lag == OnLag::Conflate || self.is_in_bracket();
                if loss.of != Lost::State {
                    self.own.cold().reported = loss.to;
                }
                self.fall_behind();
                if reported {
                    // Stored now, because the difference begins in this call: if that panics, the loss stays recorded.
                    self.share();
                    return None;
                }
            }
        }
        Some(error)
    }
}

impl Loss {
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
