//! The steps of a commit: room for a revision, its events, the head that makes them visible, and what is published after it.

#![forbid(unsafe_code)]

use super::plan::{Coming, Opened, Plan};
use super::{Added, Live, RingWriter};
use crate::data::event::LogEvent;
use crate::data::slot::{EventCounts, OwnedSlot};
use crate::heap::{HeapArc, System};
use crate::log::buckets::Router;
use crate::log::epochs::{EpochChange, Epochs};
use crate::log::retention::RetentionToken;
use crate::log::ring::{Ring, progress_word};
use crate::position::Position;
use crate::reclaim;
use crate::sync::{Relaxed, Release, ord};
use std::ptr;

/// A revision on its way into the log: the segments that it has still to enter.
pub(crate) struct Writing<'a> {
    ring: &'a Ring,
    opened: std::vec::IntoIter<Opened>,
    closed: std::vec::IntoIter<u64>,
    oversized: u64,
}

impl RingWriter {
    /// Evicts what is older than has to be kept, a few segments at a time: for a log that grows slowly.
    pub(crate) fn age(&mut self, ring: &Ring) {
        if self.limits.keep.is_some() && self.oversized.segments == 0 {
            let leaving = self.leaving(Coming::default(), ring.ages.now()).min(4);
            (0..leaving).for_each(|_| self.evict(ring));
            self.trim_epochs(ring);
        }
    }

    /// Commit, step 1: makes room for a revision, with what was allocated for it.
    pub(crate) fn begin<'a>(&mut self, ring: &'a Ring, mut plan: Plan) -> Writing<'a> {
        let oversized = if plan.oversized { self.base } else { 0 };
        self.make_room(ring, &mut plan);
        Writing { ring, opened: plan.opened.into_iter(), closed: plan.closed.into_iter(), oversized }
    }

    /// Opens the segment of a sequence number, where it is not the one in hand.
    #[inline]
    pub(crate) fn turn_to(&mut self, writing: &mut Writing<'_>, seq: u64) {
        while seq >= self.newest.segment().limit() {
            let (Some(opened), Some(len)) = (writing.opened.next(), writing.closed.next()) else { break };
            self.open(writing.ring, opened, len, writing.oversized);
        }
    }

    /// Commit, step 2: appends an event with what it owns, which `own` brings, to the segment in hand; see
    /// [`SegmentWriter::append`]. `at` is its number in the revision, `added` what it adds to the window.
    #[inline(always)]
    pub(crate) fn append(
        &mut self,
        router: &mut Router,
        (at, added): (usize, Added),
        event: LogEvent,
        own: impl FnOnce() -> Option<EventCounts>,
    ) {
        let seq = event.sequence;
        let RingWriter { newest, summary, base, .. } = self;
        let slot = seq - *base;
        if !summary.add(slot as u32, newest.append(event, added.retained, own)) {
            summary.widen(slot as u32, |slot| newest.segment().event(*base + u64::from(slot)));
        }
        router.link(newest, seq, at);
        self.fill = slot + 1;
        self.sum().bytes += added.sum();
        if added.deleted + added.decoded > 0 {
            let live = self.live.back_mut().expect("never empty");
            live.deleted += added.deleted;
            live.decoded += added.decoded;
            self.beside += added.deleted + added.decoded;
            self.deleted += added.deleted;
        }
    }

    /// Evicts what the new segments displace, and puts a new directory in place where one is due.
    fn make_room(&mut self, ring: &Ring, plan: &mut Plan) {
        for _ in 0..plan.evicted {
            self.evict(ring);
        }
        self.trim_epochs(ring);
        if let Some(directory) = plan.directory.take() {
            for live in &self.live {
                let segment = live.token.segment();
                directory.entry(segment.base() / ring.slots).store(segment.as_ptr().cast_mut(), Release);
            }
            let bytes = self.directory.size() as usize * size_of::<*const ()>();
            self.directory = directory.clone();
            ring.directory.replace(directory, bytes, &mut System);
        }
    }

    fn evict(&mut self, ring: &Ring) {
        let Some(oldest) = self.live.pop_front() else { return };
        let closed = self.live.front().map_or(0, |next| next.token.segment().events_before());
        let sum = if oldest.oversized == 0 { &mut self.ordinary } else { &mut self.oversized };
        sum.segments -= 1;
        sum.events -= closed.saturating_sub(oldest.token.segment().events_before());
        sum.bytes -= oldest.bytes();
        sum.drained -= oldest.drained;
        self.beside -= oldest.beside();
        self.owed += if oldest.oversized == 0 { oldest.deleted } else { 0 };
        let segment = oldest.token.segment();
        let base = segment.base();
        let next = self.live.front().map_or(segment.limit(), |live| live.token.segment().base());
        // The last event that leaves raises `oldest`, if it is of the present history.
        let epoch_view = self.epochs.at(u64::MAX);
        let end = segment.end(ring.head());
        if end > base && end > epoch_view.since_seq {
            let last = segment.event(end - 1);
            let left = last.revision();
            // Relaxed: published by the store of `oldest_seq` below; partner: `Ring::is_torn`.
            if !(last.is_first() && last.is_last()) {
                ring.torn_revision.store(left, Relaxed);
            }
            let oldest = ring.oldest_revision.load(Relaxed).max(left + 1);
            ring.oldest_revision.store(oldest, Release);
        }
        // Release, before the entry changes and before anything is retired: a reader that loads this
        // after its root learns that its head has left the window.
        ring.oldest_seq.store(next, Release);
        self.directory.entry(base / ring.slots).store(ptr::null_mut(), Release);
        if let Some(first) = self.live.front() {
            ring.oldest_opened.store(first.opened, Relaxed);
        }
        let bytes = segment.bytes();
        let (token, keepers) = (oldest.token, ring.keepers.clone());
        let left = move || {
            keepers.detach_below(next);
            drop(token);
        };
        reclaim::retire(bytes, Box::new(left), &mut System);
    }

    fn open(&mut self, ring: &Ring, opened: Opened, closed: u64, oversized: u64) {
        let Opened { token, writer, summary } = opened;
        let summary = std::mem::replace(&mut self.summary, summary);
        std::mem::replace(&mut self.newest, writer).close(closed as u32, summary);
        // Linked before the first write into it: a reader that has token k keeps k+1, too.
        self.live.back().expect("never empty").token.link(token.clone());
        let segment = token.segment();
        // Release: partner of the load in `entry`.
        self.directory.entry(segment.base() / ring.slots).store(segment.as_ptr().cast_mut(), ord!(Entry, Release));
        self.base = segment.base();
        let own = segment.bytes() as u64;
        self.sum().events += closed;
        self.is_oversized = oversized != 0;
        let sum = self.sum();
        sum.segments += 1;
        sum.bytes += own;
        self.live.push_back(Live::new(token, oversized, ring.ages.now()));
    }

    /// Keeps a removed slot with the newest segment.
    pub(crate) fn keep_removed(&mut self, slot: OwnedSlot) {
        let bytes = self.newest.keep_removed(slot);
        self.removed -= bytes;
        self.sum().bytes += bytes;
    }

    /// Claims the log for a commit, which may then store; [`RingWriter::publish_head`] or [`RingWriter::release`] ends
    /// the claim. False: the log is closed.
    #[inline(always)]
    #[must_use]
    pub(crate) fn claim(&mut self, ring: &Ring) -> bool {
        ring.claim(self.head)
    }

    /// Ends the claim of a commit that has no events. True: as of [`RingWriter::publish_head`].
    #[must_use]
    pub(crate) fn release(&mut self, ring: &Ring) -> bool {
        ring.release()
    }

    /// Commit, step 3: one addition makes everything of the revision visible and ends the claim; then the token. True:
    /// the log was closed meanwhile, and ends here.
    #[inline(always)]
    #[must_use]
    pub(crate) fn publish_head(&mut self, ring: &Ring) -> bool {
        let before = std::mem::replace(&mut self.head, self.base + self.fill);
        let closed = ring.publish(before, self.head);
        if self.token_base != self.base {
            self.publish_token(ring);
        }
        closed
    }

    /// The head has entered another segment.
    #[cold]
    fn publish_token(&mut self, ring: &Ring) {
        self.token_base = self.base;
        let newest = &self.live.back().expect("never empty").token;
        // After the head: a token k+1 with a head in k would hold too little.
        let token = HeapArc::new(newest.clone(), &mut System);
        ring.token.replace(token, size_of::<RetentionToken>(), &mut System);
    }

    /// Commit, step 4. Release: partner of [`Ring::progress`].
    pub(crate) fn set_progress(&self, ring: &Ring, position: Position) {
        ring.front.progress.store(progress_word(position), ord!(Progress, Release));
    }

    pub(crate) fn set_oldest_revision(&self, ring: &Ring, revision: u64) {
        // Release: partner of `oldest_revision`: the epochs come first.
        ring.oldest_revision.store(revision, ord!(Oldest, Release));
    }

    /// Publishes an epoch change, before the head that covers its marks, which were written last.
    pub(crate) fn add_epoch(&mut self, ring: &Ring, change: EpochChange) {
        let mut epochs = Epochs::clone(&self.epochs);
        epochs.push(change);
        self.set_epochs(ring, epochs);
        // The END mark: a batch that begins inside the resync must see that mark too.
        // Release: partner of `newest_mark`, which is read after head.
        ring.newest_mark.store(self.base + self.fill - 1, Release);
    }

    /// Publishes the revision of the first listing.
    pub(crate) fn set_listing(&mut self, ring: &Ring, revision: u64) {
        let mut epochs = Epochs::clone(&self.epochs);
        epochs.listing = revision;
        self.set_epochs(ring, epochs);
    }

    /// Epoch changes leave with the segments of their marks, a chunk at a time. After `oldest_seq`: a reader that needs
    /// one of them finds that its head has left.
    fn trim_epochs(&mut self, ring: &Ring) {
        let oldest = ring.oldest_seq.load(Relaxed);
        if self.epochs.has_left(oldest) {
            let mut epochs = Epochs::clone(&self.epochs);
            epochs.trim(oldest);
            self.set_epochs(ring, epochs);
        }
    }

    fn set_epochs(&mut self, ring: &Ring, epochs: Epochs) {
        let bytes = self.epochs.bytes();
        self.epochs = HeapArc::new(epochs, &mut System);
        ring.epochs.replace(self.epochs.clone(), bytes, &mut System);
    }
}
