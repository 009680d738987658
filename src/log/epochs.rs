//! Epochs: which history an event belongs to, and where each began.
//!
//! Rarely written (a resync), published as a whole before the head that covers its mark, read after
//! head; a reader at an older head looks only at the entries below it.
//!
//! A reset replaces the oldest revision of the window, too, before its head is published. A reader that
//! still stands below takes the one from before the reset, which the reset's own entry has
//! ([`EpochChange::oldest_before`]): it waits for nobody, and sees one history or the other.

#![forbid(unsafe_code)]

use crate::data::event::{Resync, ResyncReason};
use crate::position::Position;

/// One resync as the log remembers it.
#[derive(Clone, Debug)]
pub(crate) struct EpochChange {
    /// Sequence number of its BEGIN mark.
    pub(crate) seq: u64,
    /// Sequence number of its END mark.
    pub(crate) end: u64,
    pub(crate) epoch: u64,
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) reason: ResyncReason,
    /// Highest revision of any epoch before this one.
    pub(crate) highest_before: u64,
    /// The oldest revision of the window just before it.
    pub(crate) oldest_before: u64,
}

impl EpochChange {
    /// Whether nothing before it can be compared with what follows.
    pub(crate) fn resets(&self) -> bool {
        self.reason == ResyncReason::HistoryReset || self.to <= self.from
    }

    pub(crate) fn mark(&self, phase: crate::data::event::Phase) -> Resync {
        Resync { phase, reason: self.reason, epoch: self.epoch, from: self.from, to: self.to }
    }
}

/// The epochs of a cache, oldest change first.
#[derive(Clone, Debug)]
pub(crate) struct Epochs {
    /// Epoch 1 of this birth.
    pub(crate) first_epoch: u64,
    /// Revision of the first listing (0: embedded).
    pub(crate) listing: u64,
    pub(crate) changes: Vec<EpochChange>,
}

/// The present history as a reader at some head sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EpochView {
    pub(crate) epoch: u64,
    /// First sequence number of the history since the last reset (0: since birth).
    pub(crate) since_seq: u64,
    /// Revision of the listing that this history began with.
    pub(crate) listing: u64,
    /// Highest revision of the histories before the last reset, 0 if there is none.
    pub(crate) highest_before: u64,
}

impl Epochs {
    pub(crate) fn at(&self, head: u64) -> EpochView {
        let below = || self.changes.iter().rev().filter(|change| change.seq < head);
        let reset = below().find(|change| change.resets());
        EpochView {
            epoch: below().next().map_or(self.first_epoch, |change| change.epoch),
            since_seq: reset.map_or(0, |change| change.seq),
            listing: reset.map_or(self.listing, |change| change.to),
            highest_before: reset.map_or(0, |change| change.highest_before),
        }
    }

    /// Bytes of it.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Epochs>() + self.changes.capacity() * size_of::<EpochChange>()
    }

    /// The next reset above `head`: it is in the middle of its commit, or the head moved on.
    pub(crate) fn reset_above(&self, head: u64) -> Option<&EpochChange> {
        self.changes.iter().find(|change| change.resets() && change.seq >= head)
    }

    /// The first change that opens a gap (from, to) around `revision`, in the present history.
    pub(crate) fn gap_around(&self, revision: u64, head: u64) -> Option<&EpochChange> {
        let since = self.at(head).since_seq;
        self.changes
            .iter()
            .filter(|change| change.seq < head && change.seq > since)
            .find(|change| change.from < revision && revision < change.to)
    }

    /// Checks the epoch of a position that somebody brings: `Err(change)` where `position` lies in a
    /// history that the last reset ended. Epoch 0 and epochs of another birth are unchecked.
    pub(crate) fn is_of_a_former_history(&self, position: Position, head: u64) -> bool {
        let same_birth = position.epoch >> 32 == self.first_epoch >> 32;
        if position.epoch == 0 || !same_birth {
            return false;
        }
        let since = self.at(head).since_seq;
        let first_of_present =
            self.changes.iter().find(|change| change.seq == since).map_or(self.first_epoch, |change| change.epoch);
        position.epoch < first_of_present
    }

    /// Forgets changes that no reader can need: of those below `oldest_seq` only the newest and the
    /// newest reset are asked for, by readers whose head lies between it and the next change. Bounds
    /// the memory of a cache that resyncs for ever.
    pub(crate) fn trim(&mut self, oldest_seq: u64) {
        let below = || self.changes.iter().rev().filter(|change| change.seq < oldest_seq);
        let newest = below().next().map(|change| change.seq);
        let reset = below().find(|change| change.resets()).map(|change| change.seq);
        self.changes
            .retain(|change| change.seq >= oldest_seq || Some(change.seq) == newest || Some(change.seq) == reset);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(seq: u64, epoch: u64, from: u64, to: u64) -> EpochChange {
        EpochChange {
            seq,
            end: seq + 1,
            epoch,
            from,
            to,
            reason: ResyncReason::Compacted,
            highest_before: from,
            oldest_before: 1,
        }
    }

    #[test]
    fn a_reader_sees_the_turns_below_its_head() {
        let birth = 7u64 << 32;
        let epochs = Epochs {
            first_epoch: birth + 1,
            listing: 5,
            changes: vec![
                change(100, birth + 2, 50, 80),
                change(200, birth + 3, 90, 40),
                change(300, birth + 4, 60, 70),
            ],
        };
        let at = |head| epochs.at(head);
        assert_eq!(at(100), EpochView { epoch: birth + 1, since_seq: 0, listing: 5, highest_before: 0 });
        assert_eq!(at(101).epoch, birth + 2);
        assert_eq!(at(101).listing, 5);
        assert_eq!(at(250), EpochView { epoch: birth + 3, since_seq: 200, listing: 40, highest_before: 90 });
        assert_eq!(at(400).since_seq, 200);
        assert!(epochs.gap_around(65, 400).is_some());
        assert!(epochs.gap_around(60, 400).is_none() && epochs.gap_around(70, 400).is_none());
        assert!(epochs.gap_around(60, 150).is_some(), "50 < 60 < 80 before the reset");
        let position = |epoch| Position { epoch: birth + epoch, revision: 1 };
        assert!(epochs.is_of_a_former_history(position(2), 400));
        assert!(!epochs.is_of_a_former_history(position(3), 400));
        assert!(!epochs.is_of_a_former_history(Position { epoch: (8 << 32) + 1, revision: 1 }, 400));
    }

    #[test]
    fn trimming_changes_no_answer_for_a_reader_of_the_window() {
        let changes =
            vec![change(100, 2, 50, 80), change(200, 3, 90, 40), change(300, 4, 60, 70), change(400, 5, 75, 90)];
        let whole = Epochs { first_epoch: 1, listing: 5, changes };
        for oldest in [0, 150, 250, 350, 450] {
            let mut trimmed = whole.clone();
            trimmed.trim(oldest);
            for head in oldest + 1..500 {
                assert_eq!(trimmed.at(head), whole.at(head), "oldest {oldest}, head {head}");
            }
            assert!(trimmed.changes.iter().filter(|change| change.seq < oldest).count() <= 2);
        }
    }
}
