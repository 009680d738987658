//! The chain of a bucket: its links are collected back from the newest event, then followed forwards.
//! docs/internals/chains.md explains chains, and from where on one is complete.

#![forbid(unsafe_code)]

#[cfg(all(test, not(loom)))]
mod tests;

use super::awake::Awake;
use super::frontier::Frontier;
use super::loss::{Halt, Step};
use super::path::Links;
use super::state::Flag;
use super::traverse::{EventSource, Traversal};
use crate::batch::Batch;
use crate::data::event::Event;
use crate::error::{Code, Error};
use crate::log::ring::{Located, progress_of};
use crate::log::segment::{Segment, SegmentRef};
use crate::reclaim;
use crate::sync::step;

/// The most links that a subscription collects; where there are more, it scans instead.
const LINKS: usize = 1024;

impl EventSource for Links {
    fn advance(&mut self, awake: &mut Awake<'_>) -> Step<bool> {
        self.pass_to(awake.cursor.seq());
        let Some(&seq) = self.seqs[..self.left].last() else {
            awake.cursor.jump(self.to);
            return Ok(false);
        };
        let mut cached = awake.cursor.lend();
        segment_of(awake, seq, &mut cached)?;
        awake.cursor.jump(seq);
        awake.cursor.keep(cached);
        Ok(true)
    }

    fn events<'s>(&self, segment: &'s Segment) -> impl Iterator<Item = &'s Event> {
        self.seqs[..self.left].iter().rev().take_while(|&&seq| segment.contains(seq)).map(|&seq| segment.event(seq))
    }
}

/// The newest event of a bucket, loaded after the head.
#[derive(Clone, Copy)]
pub(super) struct ChainEnd {
    bucket: u64,
    newest: u64,
}

impl ChainEnd {
    /// The end of the chain, where that is complete from the cursor on. To be called after the head was loaded.
    #[inline]
    pub(super) fn of(awake: &mut Awake<'_>) -> Option<ChainEnd> {
        let bucket = awake.state.rare.as_mut()?.path.chain(&awake.cursor, awake.shared)?;
        Some(ChainEnd { bucket: bucket.id(), newest: bucket.newest() })
    }

    /// Collects the links of a bucket from its newest event back to the cursor. `None`: there is no link, and the cursor
    /// moves to the head; or there are too many, and a scan follows.
    pub(super) fn collect(self, awake: &mut Awake<'_>, frontier: &Frontier) -> Step<Option<Links>> {
        let mut seqs = Vec::new();
        let mut cached = awake.cursor.lend();
        let lowest = self.walk_back(awake, frontier, &mut cached, |seq| {
            if seqs.len() <= LINKS {
                seqs.push(seq);
            }
        })?;
        if seqs.len() > LINKS {
            // Too dense: a scan costs less than the memory. No event of the bucket lies below the lowest link.
            awake.cursor.jump(lowest);
            awake.state.rare().path.scan_to = frontier.head;
            return Ok(None);
        }
        awake.cursor.keep(cached);
        if seqs.is_empty() {
            awake.state.rare().path.skipped += frontier.head.saturating_sub(awake.cursor.seq());
            pass_to_head(awake, frontier);
            return Ok(None);
        }
        Ok(Some(Links { left: seqs.len(), seqs, to: frontier.head }))
    }

    /// Visits the events of the chain from the newest back to the cursor; returns the lowest, or the head if there is none.
    fn walk_back(
        self,
        awake: &Awake<'_>,
        frontier: &Frontier,
        cached: &mut Option<SegmentRef>,
        mut each: impl FnMut(u64),
    ) -> Step<u64> {
        let (mut at, mut lowest) = (self.newest, frontier.head);
        while at >= awake.cursor.seq() {
            step("link");
            let segment = segment_of(awake, at, cached)?;
            let Some(before) = segment.before(at, self.bucket) else { return Err(broken_chain(at).into()) };
            // A link at or above the head is followed, but not collected.
            if at < frontier.head {
                each(at);
                lowest = at;
            }
            at = before;
        }
        Ok(lowest)
    }

    /// Moves to the next resync mark or to the next event of the bucket, whichever comes first, as no event below both
    /// concerns it. From there it scans up to the newest mark, so that the links are walked once and not by each poll
    /// before the mark.
    pub(super) fn go_to_mark(self, awake: &mut Awake<'_>, frontier: &Frontier) -> Step<()> {
        let own = if self.newest < awake.cursor.seq() {
            frontier.head
        } else {
            self.walk_back(awake, frontier, &mut None, |_| {})?
        };
        // Loaded after head, and cut to it: the events below it are scanned, the rest is not published yet.
        let mark = awake.shared.inner.ring.newest_mark();
        awake.state.rare().path.scan_to = frontier.head.min(mark + 1);
        let pin = reclaim::pin();
        let epochs = awake.shared.inner.ring.epochs(&pin);
        // The resync of the newest change below may end above the cursor.
        let from = awake.cursor.seq();
        let below = epochs.last_below(from).filter(|epoch_change| epoch_change.end >= from);
        let Some(epoch_change) = below.or_else(|| epochs.changes_from(from).next()) else { return Ok(()) };
        // A cursor inside a resync has the END mark next.
        let inside = epoch_change.seq < from;
        let to = if inside { epoch_change.end } else { epoch_change.seq };
        let to = to.min(own);
        if to >= frontier.head {
            pass_to_head(awake, frontier);
            return Ok(());
        }
        if to == epoch_change.seq {
            awake.cursor.reach(epoch_change.from);
        }
        awake.cursor.jump(to);
        Ok(())
    }
}

/// The only event of its bucket up to the head, as a view into the log, if it passes unchanged. `None`: there is
/// none, there are several, or the filter has to be evaluated.
pub(super) fn view_of_one(awake: &mut Awake<'_>, frontier: &Frontier) -> Step<Option<Batch>> {
    let from = awake.cursor.seq();
    if !awake.has(Flag::WholeBucket) || awake.state.keeps_keys() || awake.state.has_links() {
        return Ok(None);
    }
    let Some(ChainEnd { bucket, newest }) = ChainEnd::of(awake) else { return Ok(None) };
    if !(from..frontier.head).contains(&newest) || awake.shared.inner.ring.newest_mark() >= from {
        return Ok(None);
    }
    let mut cached = awake.cursor.lend();
    let segment = segment_of(awake, newest, &mut cached)?.clone();
    let Some(before) = segment.before(newest, bucket) else { return Err(broken_chain(newest).into()) };
    if before >= from {
        awake.cursor.keep(cached);
        return Ok(None);
    }
    awake.state.looked += 1;
    awake.state.rare().path.skipped += frontier.head - from - 1;
    awake.cursor.jump(frontier.head);
    // A revision is published whole, so all of it lies below the head.
    awake.cursor.reach(segment.event(newest).revision());
    awake.cursor.keep(cached);
    reach(awake, frontier);
    Ok(Some(Batch::view(segment, newest..newest + 1, false, awake.position())))
}

/// Runs a traversal over the linked events, and keeps the links that are left for the next one.
pub(super) fn follow(
    awake: &mut Awake<'_>,
    traversal: &mut Traversal,
    mut links: Links,
    frontier: &Frontier,
) -> Step<bool> {
    let (from, looked) = (awake.cursor.seq(), awake.state.looked);
    let ended = traversal.run(awake, &mut links);
    let (seq, looked) = (awake.cursor.seq(), awake.state.looked - looked);
    let path = &mut awake.state.rare().path;
    path.skipped += (seq - from).saturating_sub(looked);
    links.pass_to(seq);
    links.seqs.truncate(links.left);
    if links.left > 0 {
        path.links = Some(Box::new(links));
    } else if seq >= frontier.head {
        reach(awake, frontier);
    }
    ended
}

/// Moves to the head, because no event of the bucket lies below it.
fn pass_to_head(awake: &mut Awake<'_>, frontier: &Frontier) {
    awake.cursor.jump(frontier.head);
    awake.cursor.release();
    reach(awake, frontier);
}

/// Moves the position to the frontier's progress, because everything up to the head was looked at.
fn reach(awake: &mut Awake<'_>, frontier: &Frontier) {
    awake.cursor.reach(progress_of(frontier.progress, awake.position().epoch));
}

fn broken_chain(at: u64) -> Error {
    Error::new(Code::Internal, format!("subscription: the event {at} has no link of its bucket. Report this as a bug."))
}

/// The segment of a sequence number: the cached one, if it is that, else located and cached.
fn segment_of<'a>(awake: &Awake<'_>, seq: u64, cached: &'a mut Option<SegmentRef>) -> Step<&'a SegmentRef> {
    let ring = &awake.shared.inner.ring;
    let base = ring.base_of(seq);
    if cached.as_ref().is_none_or(|segment| segment.base() != base) {
        *cached = match ring.locate(seq, &reclaim::pin()) {
            Located::Segment(segment) => Some(segment),
            Located::Next(_) | Located::Evicted => return Err(Halt::Lost(awake.loss())),
        };
    }
    cached.as_ref().ok_or_else(|| Halt::Lost(awake.loss()))
}
