//! The phase of a start above the current revision: a wait for that revision, which becomes `After` when it is over.
//!
//! While it waits, no event is read or handed out: the position is the asked one, and the cursor is the head at which
//! the wait began. When the cache has reached the revision, the cursor moves to the first event above it. The epoch
//! changes since the wait began decide the outcome:
//!
//! | since the wait began | outcome |
//! | --- | --- |
//! | nothing, or resyncs that end at or below the revision | continues waiting, or begins |
//! | the revision was reached before a resync | begins there; the resync follows |
//! | a resync jumped over the revision | LAGGED at the resync: no state of it exists |
//! | the history was reset before it was reached | FUTURE_REVISION |
//! | the source says that it does not exist | FUTURE_REVISION |

#![forbid(unsafe_code)]

#[cfg(all(test, not(loom)))]
mod tests;

use super::cursor::{Cursor, ReadFrom};
use super::frontier::Frontier;
use super::loss::{Halt, Loss, Lost, Step};
use crate::cache::{Consumer, Inner};
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
    pub(super) within: bool,
    /// Its cursor: the head at which the wait began.
    pub(super) began_at: u64,
    /// The head at which the revision was last seen not to be reached: no event below concerns it.
    pub(super) looked_to: u64,
}

impl FutureStart {
    /// Waits from `head` on.
    pub(super) fn new(head: u64, within: bool, inner: &Inner) -> FutureStart {
        let ticket = inner.has_source().then(|| inner.asked.fetch_add(1, SeqCst) + 1);
        inner.wake_source();
        FutureStart { ticket, within, began_at: head, looked_to: head }
    }

    /// The interest that ends the wait for the revision of `asked`.
    pub(super) fn interest(&self, asked: Position) -> Interest {
        Interest::revision(asked, self.ticket)
    }

    /// Returns the first event above the revision, which is that of the cursor's position, if the revision was reached;
    /// `None`: the wait continues.
    pub(super) fn poll(
        &mut self,
        frontier: &Frontier,
        cursor: &mut Cursor,
        consumer: &Consumer,
    ) -> Step<Option<ReadFrom>> {
        if let Some(above) = self.beginning(frontier, cursor, consumer)? {
            return Ok(Some(above));
        }
        if frontier.closed {
            return Err(say::closed("subscription").into());
        }
        if let Some(error) = consumer.inner.broken() {
            // The writer has stopped for good, so the revision never comes.
            return Err(error.into());
        }
        self.ask_the_source(cursor.position().revision, &consumer.inner)?;
        Ok(None)
    }

    /// Decides by the table of the module. `None`: the wait continues.
    fn beginning(&mut self, frontier: &Frontier, cursor: &mut Cursor, consumer: &Consumer) -> Step<Option<ReadFrom>> {
        let inner = &consumer.inner;
        let asked = cursor.position().revision;
        let pin = reclaim::pin();
        let epochs = inner.ring.epochs(&pin);
        let decides = |one: &&EpochChange| one.from >= asked || one.resets() || asked < one.to;
        let first = epochs.changes_from(cursor.seq()).take_while(|one| one.seq < frontier.head).find(decides).cloned();
        if let Some(epoch_change) = first {
            if epoch_change.from >= asked {
                return first_above(epoch_change.seq, cursor, consumer).map(Some);
            }
            if epoch_change.resets() {
                // An epoch that has left the window may have had the revision.
                let left = epoch_change.seq < inner.ring.oldest_seq();
                if left && epoch_change.highest_before >= asked {
                    return Err(Halt::Lost(loss(cursor, consumer)));
                }
                return Err(say::future("subscribe after", asked, epoch_change.to).into());
            }
            let epoch = epochs.at(epoch_change.seq).epoch;
            return Err(Halt::Lost(jumped_over(&epoch_change, epoch, cursor, consumer)));
        }
        drop(pin);
        let Some(now) = frontier.position(inner) else { return Ok(None) };
        if now.revision >= asked {
            return first_above(frontier.head, cursor, consumer).map(Some);
        }
        cursor.enter_epoch(now.epoch);
        self.looked_to = frontier.head;
        Ok(None)
    }

    /// FUTURE_REVISION where the source has said that the revision does not exist.
    fn ask_the_source(&mut self, asked: u64, inner: &Inner) -> Step<()> {
        let Some(ticket) = self.ticket else { return Ok(()) };
        if inner.served.load(Acquire) < ticket {
            return Ok(());
        }
        self.ticket = None;
        let newest = lock(&inner.info).consistent_revision;
        if asked > newest && asked > inner.position().revision {
            return Err(say::future("subscribe after", asked, newest).into());
        }
        Ok(())
    }
}

/// The loss of a start: the consumer has the state of its revision from another source.
pub(super) fn loss(cursor: &Cursor, consumer: &Consumer) -> Loss {
    Loss::at(cursor, Lost::Start, 0, consumer)
}

/// The loss of a start whose revision a resync has jumped over. If the log still has that resync, the subscription
/// continues there, in the epoch before it; earlier resyncs did not concern this start.
fn jumped_over(change: &EpochChange, epoch: u64, cursor: &mut Cursor, consumer: &Consumer) -> Loss {
    let loss = loss(cursor, consumer);
    let ring = &consumer.inner.ring;
    if !ring.has_all_from(change.seq, ring.oldest_seq(), &reclaim::pin()) {
        return loss;
    }
    cursor.enter_epoch(epoch);
    Loss { to: change.to, next: ReadFrom { seq: change.seq, position: cursor.position() }, ..loss }
}

/// The first event above the revision of the cursor's position, as a reader at `head` sees it; a loss, where it has left.
fn first_above(head: u64, cursor: &Cursor, consumer: &Consumer) -> Step<ReadFrom> {
    let ring = &consumer.inner.ring;
    let pin = reclaim::pin();
    let epochs = ring.epochs(&pin);
    let asked = cursor.position().revision;
    let (seq, oldest) = loop {
        let seq = ring.seq_above(asked, &epochs.at(head), head, &pin);
        let oldest = ring.oldest_seq();
        // The segment at which the search ended may have left meanwhile, with no event above the revision: search
        // the present window again, unless that has moved beyond the head.
        if seq >= oldest || oldest > head {
            break (seq, oldest);
        }
    };
    // If events have left since the wait began, and the first event above the asked revision is the first of the
    // window, events above the revision may have left before it.
    let may_be_lost = seq <= oldest && cursor.seq() < oldest;
    let lost = !ring.has_all_from(seq, oldest, &pin) || (may_be_lost && ring.newest_left(oldest, &pin) > asked);
    if lost {
        return Err(Halt::Lost(loss(cursor, consumer)));
    }
    // The last delivered position stays the asked one, from which bookmarks count.
    Ok(ReadFrom { seq, position: Position { epoch: epochs.at(seq).epoch, revision: asked } })
}
