//! The writer's side of the ring: where a revision's events go, what leaves for them, what is published.
//!
//! See [`super::ring`] for the order of its steps.

#![forbid(unsafe_code)]

mod plan;

pub(crate) use plan::{Plan, WindowLimits};

use self::plan::{Coming, Opened};
use super::buckets::Router;
use super::epochs::{EpochChange, Epochs};
use super::retention::RetentionToken;
use super::ring::{Directory, Ring, progress_word};
use super::segment::Pen;
use super::summaries::Summary;
use crate::attribute::schema::Schema;
use crate::data::event::LogEvent;
use crate::data::slot::{EventCounts, OwnedSlot};
use crate::heap::{One, System};
use crate::position::Position;
use crate::reclaim;
use crate::sync::{Relaxed, Release, ord};
use std::collections::VecDeque;
use std::ptr;
use std::sync::Arc as Shared;

/// A segment of the window.
struct Live {
    token: RetentionToken,
    /// 0, or the number of the giant revision that it was opened for.
    giant: u64,
    /// When it was opened, in milliseconds of the log's life.
    opened: u64,
    /// The bytes that stay because of its deletes: see `SlotRef::deleted_bytes`. They count as the segment's until that
    /// leaves; from then on they wait for their purge, and evict nothing any more.
    deleted: u64,
    /// Decoded values of the versions that its events have replaced, as of then.
    decoded: u64,
    /// The bytes of tombstones that giants had left behind and that were purged into it: see [`RingWriter::may_purge`].
    drained: u64,
}

impl Live {
    /// Bytes that count as the segment's: what is freed with it (its arrays, the versions that its events have replaced,
    /// the slots that were purged into it, decoded values), and what stays because of its deletes.
    fn bytes(&self) -> u64 {
        self.token.segment().bytes() as u64 + self.beside()
    }

    /// The part of the bytes that other statistics count: those of decoded values, and of the store.
    fn beside(&self) -> u64 {
        self.deleted + self.decoded
    }
}

/// The bytes that one event adds to the window.
#[derive(Clone, Copy, Default)]
pub(crate) struct Added {
    /// The bytes that are freed with its segment: of the version that it replaces, or of the epoch that it begins.
    pub(crate) kept: u64,
    /// The decoded value of that version.
    pub(crate) decoded: u64,
    /// The bytes that stay because the event is a delete.
    pub(crate) deleted: u64,
}

impl Added {
    pub(crate) fn sum(self) -> u64 {
        self.kept + self.decoded + self.deleted
    }
}

/// Segments of the window: how many, the events of those that are closed, the bytes of all.
#[derive(Default)]
struct WindowSum {
    segments: u64,
    events: u64,
    bytes: u64,
    /// The sum of [`Live::drained`].
    drained: u64,
}

/// The writer's side of the ring.
pub(crate) struct RingWriter {
    /// Segments in the directory, oldest first; their tokens are the directory's counts.
    live: VecDeque<Live>,
    /// Writes into the newest segment.
    pen: Pen,
    limits: WindowLimits,
    /// The ordinary segments of the window; those of giant revisions.
    ordinary: WindowSum,
    giants: WindowSum,
    /// The bytes that stay because of all deletes whose tombstones are not purged, in the window or not.
    deleted: u64,
    /// The bytes that count as the window's beside those of its segments: see [`Live::beside`].
    beside: u64,
    /// The bytes of tombstones that ordinary segments left behind when they were evicted, less those that were purged
    /// since: see [`RingWriter::may_purge`].
    owed: u64,
    /// Slots that were purged, and go to the newest segment with the next commit.
    removed: u64,
    /// The published directory and epochs: the writer has counts of its own on them, and reads them without a pin.
    directory: One<Directory>,
    epochs: One<Epochs>,
    /// Base of the newest segment, slots used in it, and whether it was opened for a giant revision.
    base: u64,
    fill: u64,
    is_giant: bool,
    /// The head that is published, and the base of the segment whose token is.
    head: u64,
    token_base: u64,
    /// The summary of the newest segment.
    summary: Box<Summary>,
    schema: Shared<Schema>,
}

/// A revision on its way into the log: the segments that it has still to enter.
pub(crate) struct Writing<'a> {
    ring: &'a Ring,
    opened: std::vec::IntoIter<Opened>,
    closed: std::vec::IntoIter<u64>,
    giant: u64,
}

impl RingWriter {
    /// The writer of a ring whose only segment is that of `token` and `pen`, and its first.
    pub(super) fn new(
        token: RetentionToken,
        pen: Pen,
        directory: One<Directory>,
        epochs: One<Epochs>,
        limits: WindowLimits,
        schema: Shared<Schema>,
    ) -> RingWriter {
        let (base, own) = (pen.segment().base(), pen.segment().bytes() as u64);
        RingWriter {
            live: VecDeque::from([Live { token, giant: 0, opened: 0, deleted: 0, decoded: 0, drained: 0 }]),
            pen,
            limits,
            ordinary: WindowSum { segments: 1, bytes: own, ..WindowSum::default() },
            giants: WindowSum::default(),
            deleted: 0,
            beside: 0,
            owed: 0,
            removed: 0,
            directory,
            epochs,
            base,
            fill: 0,
            is_giant: false,
            head: base,
            token_base: base,
            summary: Box::new(Summary::new(&schema)),
            schema,
        }
    }

    /// The next sequence number, unless its segment is closed first.
    pub(crate) fn next_seq(&self) -> u64 {
        self.base + self.fill
    }

    /// Bytes that count against the window's: those of ordinary segments, and of what comes to the newest, so each of
    /// them goes when segments do.
    pub(crate) fn bytes(&self) -> u64 {
        self.ordinary.bytes + self.removed
    }

    /// Bytes of all segments of the window, without what other figures have.
    pub(crate) fn log_bytes(&self) -> u64 {
        self.ordinary.bytes + self.giants.bytes - self.beside
    }

    /// The bytes that stay because of deletes, until their tombstones are purged.
    pub(crate) fn deleted_bytes(&self) -> u64 {
        self.deleted
    }

    /// The sum in which the newest segment counts.
    #[inline]
    fn sum(&mut self) -> &mut WindowSum {
        if self.is_giant { &mut self.giants } else { &mut self.ordinary }
    }

    /// Slots a segment.
    fn slots(&self) -> u64 {
        self.pen.segment().limit() - self.base
    }

    /// A key whose delete is `seq` is back, so what stayed because of that is live again.
    pub(crate) fn revived(&mut self, ring: &Ring, seq: u64, bytes: u64) {
        let oldest = self.live.front().map_or(0, |live| live.token.segment().base());
        match seq.checked_sub(oldest) {
            Some(behind) => {
                let live = &mut self.live[(behind / ring.slots) as usize];
                live.deleted -= bytes;
                (if live.giant == 0 { &mut self.ordinary } else { &mut self.giants }).bytes -= bytes;
                self.beside -= bytes;
                self.deleted -= bytes;
            }
            None => _ = self.waits_no_more(bytes),
        }
    }

    /// Whether a tombstone whose delete has left the log is to be purged now. Tombstones that ordinary segments left
    /// behind are purged at the rate at which they leave, so that they never pile up. Those of a giant take an eighth
    /// of the window's bytes at most on their way out: their slots count as the segment's that they are purged into.
    pub(crate) fn may_purge(&self) -> bool {
        self.owed > 0 || self.is_giant || self.ordinary.drained < self.limits.bytes / 8
    }

    /// A tombstone whose delete had left the log is purged: what stayed because of that is of so many bytes, of which
    /// its slot keeps `removed` for the newest segment.
    pub(crate) fn purged(&mut self, bytes: u64, removed: u64) {
        self.removed += removed;
        let drained = self.waits_no_more(bytes);
        self.sum().drained += drained;
        self.live.back_mut().expect("never empty").drained += drained;
    }

    /// Subtracts the bytes of a purged tombstone whose delete had left the log; returns the part that a giant left behind.
    fn waits_no_more(&mut self, bytes: u64) -> u64 {
        self.deleted -= bytes;
        let owed = self.owed.min(bytes);
        self.owed -= owed;
        bytes - owed
    }

    /// Evicts what is older than has to be kept, a few segments at a time: for a log that grows slowly.
    pub(crate) fn age(&mut self, ring: &Ring) {
        if self.limits.keep.is_some() && self.giants.segments == 0 {
            let leaving = self.leaving(Coming::default(), ring.ages.now()).min(4);
            (0..leaving).for_each(|_| self.evict(ring));
            self.trim_epochs(ring);
        }
    }

    /// Commit, step 1: makes room for a revision, with what was allocated for it.
    pub(crate) fn begin<'a>(&mut self, ring: &'a Ring, mut plan: Plan) -> Writing<'a> {
        let giant = if plan.giant { self.base } else { 0 };
        self.make_room(ring, &mut plan);
        Writing { ring, opened: plan.opened.into_iter(), closed: plan.closed.into_iter(), giant }
    }

    /// Opens the segment of a sequence number, where it is not the one in hand.
    #[inline]
    pub(crate) fn turn_to(&mut self, writing: &mut Writing<'_>, seq: u64) {
        while seq >= self.pen.segment().limit() {
            let (Some(opened), Some(len)) = (writing.opened.next(), writing.closed.next()) else { break };
            self.open(writing.ring, opened, len, writing.giant);
        }
    }

    /// Commit, step 2: appends an event with what it owns, which `own` brings, to the segment in hand; see
    /// [`Pen::append`]. `at` is its number in the revision, `added` what it adds to the window.
    #[inline(always)]
    pub(crate) fn append(
        &mut self,
        router: &mut Router,
        (at, added): (usize, Added),
        event: LogEvent,
        own: impl FnOnce() -> Option<EventCounts>,
    ) {
        let seq = event.sequence;
        let RingWriter { pen, summary, base, .. } = self;
        let slot = seq - *base;
        if !summary.add(slot as u32, pen.append(event, added.kept, own)) {
            summary.widen(slot as u32, |slot| pen.segment().event(*base + u64::from(slot)));
        }
        router.link(pen, seq, at);
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
        let sum = if oldest.giant == 0 { &mut self.ordinary } else { &mut self.giants };
        sum.segments -= 1;
        sum.events -= closed.saturating_sub(oldest.token.segment().events_before());
        sum.bytes -= oldest.bytes();
        sum.drained -= oldest.drained;
        self.beside -= oldest.beside();
        self.owed += if oldest.giant == 0 { oldest.deleted } else { 0 };
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

    fn open(&mut self, ring: &Ring, opened: Opened, closed: u64, giant: u64) {
        let Opened { token, pen, summary } = opened;
        let summary = std::mem::replace(&mut self.summary, summary);
        std::mem::replace(&mut self.pen, pen).close(closed as u32, summary);
        // Linked before the first write into it: a reader that has token k keeps k+1, too.
        self.live.back().expect("never empty").token.link(token.clone());
        let segment = token.segment();
        // Release: partner of the load in `entry`.
        self.directory.entry(segment.base() / ring.slots).store(segment.as_ptr().cast_mut(), ord!(Entry, Release));
        self.base = segment.base();
        let own = segment.bytes() as u64;
        self.sum().events += closed;
        self.is_giant = giant != 0;
        let sum = self.sum();
        sum.segments += 1;
        sum.bytes += own;
        self.live.push_back(Live { token, giant, opened: ring.ages.now(), deleted: 0, decoded: 0, drained: 0 });
    }

    /// Keeps a removed slot with the newest segment.
    pub(crate) fn keep_removed(&mut self, slot: OwnedSlot) {
        let bytes = self.pen.keep_removed(slot);
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
        let token = One::new(newest.clone(), &mut System);
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

    /// The epochs as of the newest commit, or of the one that is under way.
    pub(crate) fn epochs(&self) -> &Epochs {
        &self.epochs
    }

    /// Publishes an epoch change, before the head that covers its marks, which were written last.
    pub(crate) fn add_epoch(&mut self, ring: &Ring, change: EpochChange) {
        let mut epochs = Epochs::clone(&self.epochs);
        epochs.push(change);
        self.set_epochs(ring, epochs);
        // The end of the bracket: a batch that begins inside it must see that mark too.
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
        self.epochs = One::new(epochs, &mut System);
        ring.epochs.replace(self.epochs.clone(), bytes, &mut System);
    }

    /// Bytes of the newest segment that are not in the cache's sum yet.
    pub(crate) fn unreported_bytes(&self) -> u64 {
        self.pen.segment().unreported()
    }

    /// Window now: segments, for the statistics.
    pub(crate) fn segments_live(&self) -> usize {
        self.live.len()
    }
}
