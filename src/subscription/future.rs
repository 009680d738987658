//! A start above the current revision: a wait for that revision, which becomes `After` when it is over.
//!
//! While it waits, no event is read or handed out: the position is the asked one, and the cursor is the head at which
//! the wait began. When the cache has reached the revision, the cursor moves to the first event above it. The epoch
//! changes since the wait began decide the outcome:
//!
//! | since the wait began | outcome |
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
    /// Whether it starts at the first event of the revision, where that has several.
    within: bool,
    /// Its cursor: the head at which the wait began.
    pub(super) began_at: u64,
    /// The head at which the revision was last seen not to be reached: no event below concerns it.
    pub(super) looked_to: u64,
}

/// The beginning of a start: the sequence number of its first event, and the epoch there.
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

    /// Whether it waits for a revision, and so has no lag.
    pub(super) fn is_ahead(&self) -> bool {
        matches!(self.own.phase(), SubscriptionPhase::Future(_) | SubscriptionPhase::Revision { .. })
    }

    /// The interest that ends the wait of a start in the future.
    pub(super) fn future_interest(&self) -> Option<Interest> {
        let SubscriptionPhase::Future(start) = self.own.phase() else { return None };
        Some(Interest::revision(self.position(), start.ticket))
    }

    /// Begins, if the revision was reached. True: it has begun, and there may be events.
    pub(super) fn future_began(&mut self, frontier: &Frontier) -> Step<bool> {
        if let Some((seq, epoch)) = self.beginning(frontier)? {
            let within = matches!(self.own.phase(), SubscriptionPhase::Future(start) if start.within);
            // The last delivered position stays the asked one, from which bookmarks count.
            let (seq, position) = self.first_event((seq, Position { epoch, ..self.position() }), within)?;
            // The consumer has the state of its revision, which only now exists in the cache and can be recorded.
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
            // The writer has stopped for good, so the revision never comes.
            return Err(error.into());
        }
        self.ask_the_source()?;
        Ok(false)
    }

    /// Decides by the table of the module. `None`: the wait continues.
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
                // An epoch that has left the window may have had the revision.
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

    /// The loss of a start whose revision a resync has jumped over. If the log still has the bracket, the subscription
    /// continues there, in the epoch before it; earlier resyncs did not concern this start.
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
            // The segment at which the search ended may have left meanwhile, with no event above the revision: search
            // the present window again, unless that has moved beyond the head.
            if seq >= oldest || oldest > head {
                break (seq, oldest);
            }
        };
        // If events have left since the wait began, and the first event above the asked revision is the first of the
        // window, events above the revision may have left before it.
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
