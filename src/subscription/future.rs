//! A start above the current revision: a wait for that revision, which becomes `After` when it is over.
//!
//! While it waits nothing is handed out and nothing is read: the position is the asked one, the cursor
//! stands at the head at which the wait began. When the cache has reached the revision, the cursor goes
//! to the first event above it. What happened in between is judged then, from the epoch changes since:
//!
//! | since the wait began | what comes of it |
//! | --- | --- |
//! | nothing, or resyncs that end at or below the revision | continues waiting, or begins |
//! | the revision was reached before a resync | begins there; the bracket follows |
//! | a resync jumped over the revision | LAGGED at the bracket: no state of it exists |
//! | the history was reset before it was reached | FUTURE_REVISION |
//! | the source says that it does not exist | FUTURE_REVISION |

#![forbid(unsafe_code)]

#[cfg(all(test, not(loom)))]
mod tests;

use super::awake::{Awake, Frontier};
use super::loss::Loss;
use super::own::SubscriptionPhase;
use super::{Halt, Step};
use crate::error::say;
use crate::log::epochs::EpochChange;
use crate::position::Position;
use crate::reclaim;
use crate::sync::{Acquire, SeqCst, lock};
use crate::wake::Interest;

/// See the module.
#[derive(Debug)]
pub(super) struct FutureStart {
    /// Ticket of the consistent read that says whether the revision exists, until it has answered.
    ticket: Option<u64>,
    /// The start is at the first event of the revision, where that has several.
    within: bool,
    /// Where its cursor stands: at the head at which the wait began.
    pub(super) began_at: u64,
    /// The head at which it was last seen that the revision is not reached: nothing below that concerns it.
    pub(super) looked_to: u64,
}

/// Where a start begins: the sequence number of its first event, and the epoch there.
type Beginning = (u64, u64);

impl Awake<'_> {
    /// Waits from `head` on until the cache has reached the revision of `at`.
    pub(super) fn await_future(&mut self, head: u64, at: Position, within: bool) {
        let inner = self.inner();
        let ticket = inner.has_source().then(|| inner.asked.fetch_add(1, SeqCst) + 1);
        inner.wake_source();
        self.live(head, at);
        let start = FutureStart { ticket, within, began_at: head, looked_to: head };
        self.own.enter(SubscriptionPhase::Future(Box::new(start)));
    }

    /// Whether it waits for a revision: then it is behind nothing.
    pub(super) fn is_ahead(&self) -> bool {
        matches!(self.own.phase(), SubscriptionPhase::Future(_) | SubscriptionPhase::Revision { .. })
    }

    /// What ends the wait of a start in the future.
    pub(super) fn future_interest(&self) -> Option<Interest> {
        let SubscriptionPhase::Future(start) = self.own.phase() else { return None };
        Some(Interest::revision(self.position(), start.ticket))
    }

    /// Looks whether the revision was reached. True: it begins, and there may be events.
    pub(super) fn future_began(&mut self, frontier: &Frontier) -> Step<bool> {
        if let Some((seq, epoch)) = self.beginning(frontier)? {
            let within = matches!(self.own.phase(), SubscriptionPhase::Future(start) if start.within);
            // The last position that was delivered stays the asked one: bookmarks count from there.
            let (seq, position) = self.first_event((seq, Position { epoch, ..self.position() }), within)?;
            // The consumer has the state of its revision: only now is it there to be recorded.
            if !self.seed(seq) {
                return Err(Halt::Lost(self.loss()));
            }
            self.cursor.begin_at(seq, position);
            self.own.enter(SubscriptionPhase::Live);
            return Ok(true);
        }
        if frontier.closed {
            return Err(say::closed("subscription").into());
        }
        if let Some(error) = self.inner().broken() {
            // Nothing is published any more.
            return Err(error.into());
        }
        self.ask_the_source()?;
        Ok(false)
    }

    /// The table of the module. None: it waits on.
    fn beginning(&mut self, frontier: &Frontier) -> Step<Option<Beginning>> {
        let inner = self.inner().clone();
        let asked = self.position().revision;
        let pin = reclaim::pin();
        let epochs = inner.ring.epochs(&pin);
        let decides = |one: &&EpochChange| one.from >= asked || one.resets() || asked < one.to;
        let first =
            epochs.changes_from(self.cursor.seq()).take_while(|one| one.seq < frontier.head).find(decides).cloned();
        if let Some(epoch_change) = first {
            if epoch_change.from >= asked {
                return self.first_above(epoch_change.seq).map(Some);
            }
            if epoch_change.resets() {
                // Epochs that have left may have held it.
                let left = epoch_change.seq < inner.ring.oldest_seq();
                if left && epoch_change.highest_before >= asked {
                    return Err(Halt::Lost(self.loss()));
                }
                return Err(say::future("subscribe after", asked, epoch_change.to).into());
            }
            return Err(Halt::Lost(self.jumped_over(&epoch_change, epochs.at(epoch_change.seq).epoch)));
        }
        drop(pin);
        let Some(now) = self.position_at(frontier) else { return Ok(None) };
        if now.revision >= asked {
            return self.first_above(frontier.head).map(Some);
        }
        self.cursor.enter_epoch(now.epoch);
        if let SubscriptionPhase::Future(start) = &mut self.own.cold().phase {
            start.looked_to = frontier.head;
        }
        Ok(None)
    }

    /// A resync has jumped over the asked revision. The resyncs before it did not concern this start: where the log still
    /// has the bracket it continues there, in the epoch before it.
    fn jumped_over(&mut self, change: &EpochChange, epoch: u64) -> Loss {
        let loss = self.loss();
        let ring = &self.inner().ring;
        if !ring.has_all_from(change.seq, ring.oldest_seq(), &reclaim::pin()) {
            return loss;
        }
        self.cursor.enter_epoch(epoch);
        Loss { to: change.to, seq: change.seq, before: Position { epoch, ..self.position() }, ..loss }
    }

    /// The first event above the asked revision, as a reader at `head` sees it; a loss, where it has left.
    fn first_above(&self, head: u64) -> Step<Beginning> {
        let inner = self.inner();
        let pin = reclaim::pin();
        let epochs = inner.ring.epochs(&pin);
        let asked = self.position().revision;
        let (seq, oldest) = loop {
            let seq = inner.ring.seq_above(asked, &epochs.at(head), head, &pin);
            let oldest = inner.ring.oldest_seq();
            // The segment that the search ended at may have left meanwhile, and had nothing above the revision: again in
            // what is there now, until the window has moved beyond the head.
            if seq >= oldest || oldest > head {
                break (seq, oldest);
            }
        };
        // Where something has left since the wait began, and nothing of the window lies before the first
        // event above the asked revision, more above it may have left.
        let may_be_lost = seq <= oldest && self.cursor.seq() < oldest;
        let lost = !inner.ring.has_all_from(seq, oldest, &pin)
            || (may_be_lost && inner.ring.newest_left(oldest, &pin) > asked);
        if lost {
            return Err(Halt::Lost(self.loss()));
        }
        Ok((seq, epochs.at(seq).epoch))
    }

    /// FUTURE_REVISION where the source has said that the revision does not exist.
    fn ask_the_source(&mut self) -> Step<()> {
        let inner = self.inner().clone();
        let asked = self.position().revision;
        let SubscriptionPhase::Future(start) = &mut self.own.cold().phase else { return Ok(()) };
        let Some(ticket) = start.ticket else { return Ok(()) };
        if inner.served.load(Acquire) < ticket {
            return Ok(());
        }
        start.ticket = None;
        let newest = lock(&inner.info).consistent_revision;
        if asked > newest && asked > inner.position().revision {
            return Err(say::future("subscribe after", asked, newest).into());
        }
        Ok(())
    }
}
