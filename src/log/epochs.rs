//! Epochs: which history an event belongs to, and where each began.
//!
//! Rarely written (a resync), published as a whole before the head that covers its mark, read after
//! head; a reader at an older head looks only at the entries below it.
//!
//! A reset replaces the oldest revision of the window, too, before its head is published. A reader whose head
//! is below the reset takes the one from before it, which the reset's own entry has
//! ([`EpochChange::oldest_before`]): it waits for nobody, and sees one history or the other.
//!
//! A cache that resyncs often has many of them in its window: a copy shares all but the newest few
//! ([`CHUNK`]), and each change carries what holds from it on, so that a reader looks at one of them.

#![forbid(unsafe_code)]

use crate::data::event::{Resync, ResyncReason};
use crate::position::Position;
use std::collections::VecDeque;
use std::sync::Arc;

/// A resync as the log keeps it.
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
    /// The oldest revision of the window just before this change.
    pub(crate) oldest_before: u64,
}

impl EpochChange {
    /// Whether revisions before it cannot be compared with those that follow.
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
    /// Each chunk has at least one change. Only the last chunk is ever replaced, by a longer copy.
    chunks: VecDeque<Arc<Vec<(EpochChange, EpochView)>>>,
    /// The newest reset of the chunks that were dropped: a reader whose wait began before it asks for it.
    gone_reset: Option<Arc<EpochChange>>,
}

/// Epoch changes of a chunk.
const CHUNK: usize = 64;

/// Bytes of one epoch change, with its share of a chunk. They count as the segment's that has its first mark.
pub(crate) const EPOCH_BYTES: u64 = (size_of::<(EpochChange, EpochView)>() + 2) as u64;

/// The present history as a reader at some head sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EpochView {
    pub(crate) epoch: u64,
    /// The epoch that it began with.
    first_epoch: u64,
    /// First sequence number of the history since the last reset (0: since birth).
    pub(crate) since_seq: u64,
    /// Revision of the listing that this history began with.
    pub(crate) listing: u64,
    /// Highest revision of the histories before the last reset, 0 if there is none.
    pub(crate) highest_before: u64,
}

impl Epochs {
    /// Without a change.
    pub(crate) fn new(first_epoch: u64, listing: u64) -> Epochs {
        Epochs { first_epoch, listing, chunks: VecDeque::new(), gone_reset: None }
    }

    pub(crate) fn at(&self, head: u64) -> EpochView {
        let (chunk, change) = self.below(head);
        match change.checked_sub(1) {
            Some(last) => self.chunks[chunk][last].1,
            None => EpochView {
                epoch: self.first_epoch,
                first_epoch: self.first_epoch,
                since_seq: 0,
                listing: self.listing,
                highest_before: 0,
            },
        }
    }

    /// The chunk in which the changes below `head` end, and how many of its changes they are (0: there is none). O(log n).
    fn below(&self, head: u64) -> (usize, usize) {
        let chunk = self.chunks.partition_point(|chunk| chunk[0].0.seq < head).saturating_sub(1);
        let changes = self.chunks.get(chunk);
        (chunk, changes.map_or(0, |changes| changes.partition_point(|(change, _)| change.seq < head)))
    }

    /// The newest change below `seq`.
    pub(crate) fn last_below(&self, seq: u64) -> Option<&EpochChange> {
        let (chunk, change) = self.below(seq);
        Some(&self.chunks[chunk][change.checked_sub(1)?].0)
    }

    /// The changes at `seq` and above, oldest first.
    pub(crate) fn changes_from(&self, seq: u64) -> impl Iterator<Item = &EpochChange> {
        let (chunk, change) = self.below(seq);
        let gone = self.gone_reset.as_deref().filter(|change| change.seq >= seq);
        let chunks = self.chunks.range(chunk.min(self.chunks.len())..).flat_map(|chunk| chunk.iter());
        gone.into_iter().chain(chunks.skip(change).map(|(change, _)| change))
    }

    /// Adds the newest change.
    pub(crate) fn push(&mut self, change: EpochChange) {
        let before = self.at(u64::MAX);
        let (epoch, first_epoch) = (change.epoch, change.epoch);
        let EpochChange { seq: since_seq, to: listing, highest_before, .. } = change;
        let reset = EpochView { epoch, first_epoch, since_seq, listing, highest_before };
        let view = if change.resets() { reset } else { EpochView { epoch, ..before } };
        match self.chunks.back_mut().filter(|last| last.len() < CHUNK) {
            Some(last) => {
                let mut longer = Vec::with_capacity(last.len() + 1);
                longer.extend_from_slice(last);
                longer.push((change, view));
                *last = Arc::new(longer);
            }
            None => self.chunks.push_back(Arc::new(vec![(change, view)])),
        }
    }

    /// Whether [`Epochs::trim`] drops any.
    pub(crate) fn has_left(&self, oldest_seq: u64) -> bool {
        self.chunks.get(1).is_some_and(|second| second[0].0.seq < oldest_seq)
    }

    /// Drops the changes that no reader can need: of those below `oldest_seq` only the newest and the newest reset
    /// are asked for, by readers whose head lies between it and the next one. So there are as many as the
    /// window has marks of, and a chunk.
    pub(crate) fn trim(&mut self, oldest_seq: u64) {
        while self.has_left(oldest_seq) {
            let gone = self.chunks.pop_front();
            let reset =
                gone.iter().flat_map(|gone| gone.iter()).map(|(change, _)| change).rfind(|change| change.resets());
            if let Some(reset) = reset {
                self.gone_reset = Some(Arc::new(reset.clone()));
            }
        }
    }

    /// Bytes that a copy does not share.
    pub(crate) fn bytes(&self) -> usize {
        let last = self.chunks.back().map_or(0, |last| last.capacity());
        size_of::<Epochs>() + self.chunks.capacity() * size_of::<usize>() + last * size_of::<(EpochChange, EpochView)>()
    }

    /// The next reset above `head`: its commit is under way, or the head has moved since.
    pub(crate) fn reset_above(&self, head: u64) -> Option<&EpochChange> {
        self.changes_from(head).find(|change| change.resets())
    }

    /// The first change that opens a gap (from, to) around `revision`, in the present history.
    pub(crate) fn gap_around(&self, revision: u64, head: u64) -> Option<&EpochChange> {
        let since = self.at(head).since_seq;
        self.changes_from(since + 1)
            .take_while(|change| change.seq < head)
            .find(|change| change.from < revision && revision < change.to)
    }

    /// Checks the epoch of a position that a caller passes in: whether `position` lies in a history that the
    /// last reset ended. Epoch 0 and epochs of another birth are unchecked.
    pub(crate) fn is_of_a_former_history(&self, position: Position, head: u64) -> bool {
        let same_birth = position.epoch >> 32 == self.first_epoch >> 32;
        position.epoch != 0 && same_birth && position.epoch < self.at(head).first_epoch
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
        let mut epochs = Epochs::new(birth + 1, 5);
        for change in [change(100, birth + 2, 50, 80), change(200, birth + 3, 90, 40), change(300, birth + 4, 60, 70)] {
            epochs.push(change);
        }
        let at = |head| epochs.at(head);
        assert_eq!(
            at(100),
            EpochView { epoch: birth + 1, first_epoch: birth + 1, since_seq: 0, listing: 5, highest_before: 0 }
        );
        assert_eq!(at(101).epoch, birth + 2);
        assert_eq!(at(101).listing, 5);
        let after =
            EpochView { epoch: birth + 3, first_epoch: birth + 3, since_seq: 200, listing: 40, highest_before: 90 };
        assert_eq!(at(250), after);
        assert_eq!(at(400).since_seq, 200);
        assert!(epochs.gap_around(65, 400).is_some());
        assert!(epochs.gap_around(60, 400).is_none() && epochs.gap_around(70, 400).is_none());
        assert!(epochs.gap_around(60, 150).is_some(), "50 < 60 < 80 before the reset");
        let position = |epoch| Position { epoch: birth + epoch, revision: 1 };
        assert!(epochs.is_of_a_former_history(position(2), 400));
        assert!(!epochs.is_of_a_former_history(position(3), 400));
        assert!(!epochs.is_of_a_former_history(Position { epoch: (8 << 32) + 1, revision: 1 }, 400));
    }

    /// A thousand resyncs, every 97th of them a reset.
    fn many() -> impl Iterator<Item = EpochChange> {
        (1..=1000).map(|n| change(n * 10, n + 1, n * 5, if n % 97 == 0 { 1 } else { n * 5 + 2 }))
    }

    #[test]
    #[cfg_attr(miri, ignore = "it is of numbers alone")]
    fn trimming_changes_no_answer_for_a_reader_of_the_window() {
        let mut whole = Epochs::new(1, 5);
        many().for_each(|change| whole.push(change));
        for oldest in [0, 15, 995, 5000, 9990, 20_000] {
            let mut trimmed = Epochs::new(1, 5);
            many().for_each(|change| trimmed.push(change));
            trimmed.trim(oldest);
            for head in (oldest + 1..oldest + 2000).step_by(7) {
                assert_eq!(trimmed.at(head), whole.at(head), "oldest {oldest}, head {head}");
                let above = |epochs: &Epochs| epochs.reset_above(head).map(|change| change.seq);
                assert_eq!(above(&trimmed), above(&whole));
                let from = |epochs: &Epochs| epochs.changes_from(head).map(|change| change.seq).collect::<Vec<_>>();
                assert_eq!(from(&trimmed), from(&whole));
            }
            let kept = trimmed.changes_from(0).filter(|change| change.seq < oldest).count();
            assert!(kept <= CHUNK + 1, "{kept} are kept for nobody");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "of fewer turns it says nothing")]
    fn a_resync_copies_few_turns() {
        let mut epochs = Epochs::new(1, 5);
        for change in many() {
            let published = epochs.clone();
            epochs.push(change);
            let shared = published.chunks.iter().zip(&epochs.chunks).filter(|(one, other)| Arc::ptr_eq(one, other));
            assert!(shared.count() + 1 >= published.chunks.len(), "more than one chunk was copied");
        }
        assert_eq!(epochs.chunks.len(), 1000usize.div_ceil(CHUNK));
        assert!(epochs.bytes() < 1000 * size_of::<EpochChange>() / 4, "{} bytes", epochs.bytes());
    }
}
