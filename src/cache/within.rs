//! The start of a subscription inside a revision of several events.

#![forbid(unsafe_code)]

use super::shared::Inner;
use crate::error::Result;
use crate::position::Position;
use crate::reclaim;

impl Inner {
    /// The first event of the revision of `asked`, and the position before it, where the revision has several events
    /// ([`Start::Within`](crate::Start)). `asked` was resolved, and has the epoch that was found.
    ///
    /// COMPACTED where some of them have left the window.
    pub(crate) fn first_within(&self, asked: Position) -> Result<Option<(u64, Position)>> {
        let revision = asked.revision;
        loop {
            let pin = reclaim::pin();
            let (_, head) = self.now(&pin);
            let epochs = self.ring.epochs(&pin);
            if epochs.is_of_a_former_history(asked, head) {
                // The history was reset since `asked` was resolved: the marks of the reset follow.
                return Ok(None);
            }
            let first = self.ring.seq_above(revision.saturating_sub(1), &epochs.at(head), head, &pin);
            let oldest = self.ring.oldest_seq();
            // The segment at which the search ended may have left meanwhile, as in `first_above`.
            if first < oldest && oldest <= head {
                continue;
            }
            if self.ring.is_torn(revision) {
                return Err(self.compacted("subscribe within", revision));
            }
            let Some(segment) = self.ring.peek(first, &pin).filter(|_| first < head) else { return Ok(None) };
            let event = segment.event(first);
            if event.revision() != revision || event.is_last() {
                return Ok(None);
            }
            let before = match epochs.changes_from(first).next().filter(|change| change.seq == first) {
                // The events between the marks of a reset are no part of the history that it begins.
                Some(change) if change.resets() => return Ok(None),
                Some(change) => change.from,
                None => revision - 1,
            };
            return Ok(Some((first, Position { epoch: epochs.at(first).epoch, revision: before })));
        }
    }
}
