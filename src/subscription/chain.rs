//! The chain of a bucket: its links are collected back from the newest event, then followed forwards.
//! docs/internals/chains.md explains chains, and from where on one is complete.

#![forbid(unsafe_code)]

#[cfg(all(test, not(loom)))]
mod tests;

use super::awake::{Awake, Frontier};
use super::own::Flag;
use super::traverse::{EventSource, Traversal};
use super::{Halt, Step, Subscription};
use crate::batch::Batch;
use crate::cache::Consumer;
use crate::data::event::Event;
use crate::error::{Code, Error};
use crate::log::buckets::{Bucket, Request};
use crate::log::ring::{Located, progress_of};
use crate::log::segment::{Segment, SegmentRef};
use crate::reclaim;
use crate::sync::{Relaxed, step};
use std::sync::Arc;

/// The most links that a subscription collects; where there are more, it scans instead.
const LINKS: usize = 1024;

/// The read path of a subscription, by which it finds its events.
#[derive(Default)]
pub(super) struct Reader {
    pub(super) path: PathState,
    pub(super) links: Option<Box<Links>>,
    /// It scans up to here, because the chain is too dense to collect, or a resync mark lies below.
    scan_to: u64,
    pub(super) skipped: u64,
}

/// Sequence numbers of a bucket's events, collected from its chain.
pub(super) struct Links {
    /// Newest first. Passed links are dropped only after a traversal, which may go back over some.
    seqs: Vec<u64>,
    /// The number of links that the cursor has not passed.
    left: usize,
    /// The head below which they were collected.
    to: u64,
}

impl Links {
    fn pass_to(&mut self, seq: u64) {
        self.left = self.seqs.partition_point(|&link| link >= seq);
    }
}

impl EventSource for Links {
    fn advance(&mut self, awake: &mut Awake<'_>) -> Step<bool> {
        self.pass_to(awake.cursor.seq());
        let Some(&seq) = self.seqs[..self.left].last() else {
            awake.cursor.jump(self.to);
            return Ok(false);
        };
        let mut hand = awake.cursor.lend();
        awake.segment_of(seq, &mut hand)?;
        awake.cursor.jump(seq);
        awake.cursor.keep(hand);
        Ok(true)
    }

    fn events<'s>(&self, segment: &'s Segment) -> impl Iterator<Item = &'s Event> {
        self.seqs[..self.left].iter().rev().take_while(|&&seq| segment.contains(seq)).map(|&seq| segment.event(seq))
    }
}

#[derive(Default)]
pub(super) enum PathState {
    #[default]
    Scan,
    Asked(Arc<Request>),
    Chain(Arc<Bucket>),
}

/// The newest event of a bucket, loaded after the head.
#[derive(Clone, Copy)]
pub(super) struct ChainEnd {
    bucket: u64,
    newest: u64,
}

impl Reader {
    /// Takes over the writer's answer.
    #[inline]
    fn settle(&mut self, shared: &Consumer) {
        if let PathState::Asked(request) = &self.path
            && let Some(answer) = request.answer()
        {
            self.path = match answer {
                Some(bucket) => PathState::Chain(bucket.clone()),
                None => PathState::Scan,
            };
            shared.reads(self.bucket().cloned());
        }
    }

    /// The request for a bucket that the writer has not answered yet.
    fn request(&self) -> Option<&Arc<Request>> {
        match &self.path {
            PathState::Asked(request) => Some(request),
            _ => None,
        }
    }

    fn bucket(&self) -> Option<&Arc<Bucket>> {
        match &self.path {
            PathState::Chain(bucket) => Some(bucket),
            _ => None,
        }
    }

    /// Leaves the bucket, and withdraws a request for one.
    pub(super) fn leave(&mut self, shared: &Consumer) {
        if self.bucket().is_some() {
            shared.reads(None);
        }
        if !matches!(std::mem::take(&mut self.path), PathState::Scan) {
            shared.inner.requests.left.fetch_add(1, Relaxed);
        }
        self.drop_links();
    }

    /// Whether it scans and has no state to keep.
    pub(super) fn is_unused(&self) -> bool {
        matches!(self.path, PathState::Scan) && self.links.is_none() && self.skipped == 0
    }

    /// Bytes of the collected links that were not followed yet: at most those of [`LINKS`].
    #[inline]
    pub(super) fn link_bytes(&self) -> u16 {
        self.links.as_ref().map_or(0, |links| (links.seqs.capacity() * size_of::<u64>()).min(u16::MAX.into()) as u16)
    }

    pub(super) fn drop_links(&mut self) {
        self.links = None;
    }
}

impl Subscription {
    /// The name of the index whose bucket it reads, if it reads one.
    pub(crate) fn index_name(&self) -> Option<&str> {
        let bucket = self.own.cold.as_ref()?.reader.bucket()?;
        Some(self.shared.inner.indexes.name(bucket.name()))
    }
}

impl Awake<'_> {
    /// Asks for a bucket if the filter fits a declared index.
    pub(super) fn choose_path(&mut self) {
        let inner = &self.shared.inner;
        if !inner.indexes.is_empty()
            && let Some(name) = inner.indexes.bucket_of(&self.shared.matcher)
        {
            let matcher = &self.shared.matcher;
            self.own.set(Flag::WholeBucket, inner.indexes.bucket_passes(matcher) && !matcher.is_raw());
            self.own.cold().reader.path = PathState::Asked(inner.requests.ask(name));
        }
    }

    /// The chain, where it is complete from the cursor on: the cursor is not below `linked_from` nor `scan_to`. To be
    /// called after the head was loaded.
    #[inline]
    pub(super) fn chain(&mut self) -> Option<ChainEnd> {
        let bucket = self.complete_chain()?;
        Some(ChainEnd { bucket: bucket.id(), newest: bucket.newest() })
    }

    #[inline]
    fn complete_chain(&mut self) -> Option<&Arc<Bucket>> {
        let reader = &mut self.own.cold.as_mut()?.reader;
        reader.settle(self.shared);
        let PathState::Chain(bucket) = &reader.path else { return None };
        let complete = self.cursor.seq() >= bucket.linked_from() && self.cursor.seq() >= reader.scan_to;
        complete.then_some(bucket)
    }

    /// Collects the links of a bucket from its newest event back to the cursor. `None`: there is no link, and the cursor
    /// moves to the head; or there are too many, and a scan follows.
    pub(super) fn collect(&mut self, chain: ChainEnd, frontier: &Frontier) -> Step<Option<Links>> {
        let mut seqs = Vec::new();
        let mut hand = self.cursor.lend();
        let lowest = self.walk_back(chain, frontier, &mut hand, |seq| {
            if seqs.len() <= LINKS {
                seqs.push(seq);
            }
        })?;
        if seqs.len() > LINKS {
            // Too dense: a scan costs less than the memory. No event of the bucket lies below the lowest link.
            self.cursor.jump(lowest);
            self.own.cold().reader.scan_to = frontier.head;
            return Ok(None);
        }
        self.cursor.keep(hand);
        if seqs.is_empty() {
            self.own.cold().reader.skipped += frontier.head.saturating_sub(self.cursor.seq());
            self.pass_to_head(frontier);
            return Ok(None);
        }
        Ok(Some(Links { left: seqs.len(), seqs, to: frontier.head }))
    }

    /// The only event of its bucket up to the head, as a view into the log, if it passes unchanged. `None`: there is
    /// none, there are several, or the filter has to be evaluated.
    pub(super) fn view_of_one(&mut self, frontier: &Frontier) -> Step<Option<Batch>> {
        let from = self.cursor.seq();
        if !self.has(Flag::WholeBucket) || self.own.keeps_keys() || self.has_links() {
            return Ok(None);
        }
        let Some(ChainEnd { bucket, newest }) = self.chain() else { return Ok(None) };
        if !(from..frontier.head).contains(&newest) || self.shared.inner.ring.newest_mark() >= from {
            return Ok(None);
        }
        let mut hand = self.cursor.lend();
        let segment = self.segment_of(newest, &mut hand)?.clone();
        let Some(before) = segment.before(newest, bucket) else { return Err(self.broken_chain(newest).into()) };
        if before >= from {
            self.cursor.keep(hand);
            return Ok(None);
        }
        self.own.looked += 1;
        self.own.cold().reader.skipped += frontier.head - from - 1;
        self.cursor.jump(frontier.head);
        // A revision is published whole, so all of it lies below the head.
        self.cursor.reach(segment.event(newest).revision());
        self.cursor.keep(hand);
        self.reach(frontier);
        Ok(Some(Batch::view(segment, newest..newest + 1, false, self.position())))
    }

    /// Moves to the head, because no event of the bucket lies below it.
    fn pass_to_head(&mut self, frontier: &Frontier) {
        self.cursor.jump(frontier.head);
        self.cursor.release();
        self.reach(frontier);
    }

    /// Moves the position to the frontier's progress, because everything up to the head was looked at.
    fn reach(&mut self, frontier: &Frontier) {
        self.cursor.reach(progress_of(frontier.progress, self.position().epoch));
    }

    /// Runs a traversal over the linked events, and keeps the links that are left for the next one.
    pub(super) fn follow(&mut self, traversal: &mut Traversal, mut links: Links, frontier: &Frontier) -> Step<bool> {
        let (from, looked) = (self.cursor.seq(), self.own.looked);
        let ended = traversal.run(self, &mut links);
        let (seq, looked) = (self.cursor.seq(), self.own.looked - looked);
        let reader = &mut self.own.cold().reader;
        reader.skipped += (seq - from).saturating_sub(looked);
        links.pass_to(seq);
        links.seqs.truncate(links.left);
        if links.left > 0 {
            reader.links = Some(Box::new(links));
        } else if seq >= frontier.head {
            self.reach(frontier);
        }
        ended
    }

    /// Visits the events of a chain from the newest back to the cursor; returns the lowest, or the head if there is none.
    fn walk_back(
        &self,
        ChainEnd { bucket, newest }: ChainEnd,
        frontier: &Frontier,
        hand: &mut Option<SegmentRef>,
        mut each: impl FnMut(u64),
    ) -> Step<u64> {
        let (mut at, mut lowest) = (newest, frontier.head);
        while at >= self.cursor.seq() {
            step("link");
            let segment = self.segment_of(at, hand)?;
            let Some(before) = segment.before(at, bucket) else { return Err(self.broken_chain(at).into()) };
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
    pub(super) fn go_to_mark(&mut self, chain: ChainEnd, frontier: &Frontier) -> Step<()> {
        let own = if chain.newest < self.cursor.seq() {
            frontier.head
        } else {
            self.walk_back(chain, frontier, &mut None, |_| {})?
        };
        // Loaded after head, and cut to it: the events below it are scanned, the rest is not published yet.
        let mark = self.shared.inner.ring.newest_mark();
        self.own.cold().reader.scan_to = frontier.head.min(mark + 1);
        let pin = reclaim::pin();
        let epochs = self.shared.inner.ring.epochs(&pin);
        // The bracket of the newest change below may end above the cursor.
        let below = epochs.last_below(self.cursor.seq()).filter(|epoch_change| epoch_change.end >= self.cursor.seq());
        let Some(epoch_change) = below.or_else(|| epochs.changes_from(self.cursor.seq()).next()) else { return Ok(()) };
        // A cursor inside a bracket has the end mark next.
        let inside = epoch_change.seq < self.cursor.seq();
        let to = if inside { epoch_change.end } else { epoch_change.seq };
        let to = to.min(own);
        if to >= frontier.head {
            self.pass_to_head(frontier);
            return Ok(());
        }
        if to == epoch_change.seq {
            self.cursor.reach(epoch_change.from);
        }
        self.cursor.jump(to);
        Ok(())
    }

    /// The end of a scan: where the chain can be read again, else the head.
    pub(super) fn scan_end(&self, frontier: &Frontier) -> u64 {
        let scan_to = self.own.cold.as_ref().map_or(0, |cold| cold.reader.scan_to);
        if scan_to > self.cursor.seq() { frontier.head.min(scan_to) } else { frontier.head }
    }

    fn broken_chain(&self, at: u64) -> Error {
        Error::new(
            Code::Internal,
            format!("subscription: the event {at} has no link of its bucket. Report this as a bug."),
        )
    }

    /// The segment of a sequence number: `hand`, the cached segment, if it is that, else located and cached there.
    fn segment_of<'a>(&self, seq: u64, hand: &'a mut Option<SegmentRef>) -> Step<&'a SegmentRef> {
        let base = self.shared.inner.ring.base_of(seq);
        if hand.as_ref().is_none_or(|held| held.base() != base) {
            *hand = match self.shared.inner.ring.locate(seq, &reclaim::pin()) {
                Located::Segment(segment) => Some(segment),
                Located::Next(_) | Located::Evicted => return Err(Halt::Lost(self.loss())),
            };
        }
        hand.as_ref().ok_or_else(|| Halt::Lost(self.loss()))
    }

    pub(super) fn has_links(&self) -> bool {
        self.links().is_some()
    }

    fn links(&self) -> Option<&Links> {
        self.own.cold.as_ref().and_then(|cold| cold.reader.links.as_deref())
    }

    pub(super) fn take_links(&mut self) -> Option<Box<Links>> {
        self.own.cold.as_mut().and_then(|cold| cold.reader.links.take())
    }

    /// The bucket whose chain it reads; else it scans, and the request for a bucket that is not answered yet, if any.
    pub(super) fn read_path(&mut self) -> (Option<&Arc<Bucket>>, Option<&Arc<Request>>) {
        if self.own.cold.is_none() {
            return (None, None);
        }
        if self.complete_chain().is_some() {
            return (self.complete_chain(), None);
        }
        (None, self.own.cold.as_ref().and_then(|cold| cold.reader.request()))
    }
}
