//! The bound of what one call of a consumer reads.

#![forbid(unsafe_code)]

use crate::cache::{Consumer, Inner, OPEN};
use crate::log::ring::{LogEnd, progress_word};
use crate::position::Position;
use crate::reclaim;
use crate::sync::{Acquire, ord};

/// The end of the consumer, then progress, then head and close of the log: loaded in this order, so the cursor never moves
/// beyond what the progress and the close belong to.
#[derive(Clone, Copy)]
pub(super) struct Frontier {
    pub(super) closed: bool,
    pub(super) progress: u64,
    pub(super) head: u64,
    /// The cache's position when the owner of the subscription closed it, if more was published since.
    pub(super) closed_at: Option<Position>,
}

impl Frontier {
    #[inline(always)]
    pub(super) fn load(consumer: &Consumer) -> Frontier {
        let end = consumer.end.load(ord!(EndLoad, Acquire));
        let ring = &consumer.inner.ring;
        let progress = ring.progress();
        let LogEnd { head, closed } = ring.end();
        if end < head {
            // Closed by its owner: no event and no progress above that end is read.
            let at = consumer.closed_at();
            return Frontier { closed: true, progress: progress_word(at), head: end, closed_at: Some(at) };
        }
        Frontier { closed: closed || end != OPEN, progress, head, closed_at: None }
    }

    /// The position of the cache at this frontier. `None`: the event below the head has left the window, so there is a newer
    /// head.
    pub(super) fn position(&self, inner: &Inner) -> Option<Position> {
        self.closed_at.or_else(|| inner.ring.position(self.progress, self.head, &reclaim::pin()))
    }
}

/// The newest state that a difference may lead to, with its head; where its owner has closed the subscription, the state at the
/// close. `None`: that state has left the window.
pub(super) fn newest_state(consumer: &Consumer) -> Option<(Position, u64)> {
    let ring = &consumer.inner.ring;
    loop {
        let frontier = Frontier::load(consumer);
        let has_left = || !ring.has_all_from(frontier.head, ring.oldest_seq(), &reclaim::pin());
        // A subscription that was closed before the listing has no state.
        if frontier.head < ring.first_seq() || frontier.closed && has_left() {
            return None;
        }
        if let Some(at) = frontier.position(&consumer.inner) {
            return Some((at, frontier.head));
        }
    }
}
