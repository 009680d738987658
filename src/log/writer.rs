//! The writer's side of the ring: its segments, and the bytes that count as theirs.
//!
//! `plan` decides where a revision's events go and what leaves for them, `commit` carries it out. See [`super::ring`] for
//! the order of the steps.

#![forbid(unsafe_code)]

mod commit;
mod plan;

pub(crate) use self::plan::Plan;

use super::epochs::Epochs;
use super::retention::{LogClock, RetentionToken};
use super::ring::{Directory, Ring};
use super::segment::{Before, Held, SegmentWriter};
use super::summaries::Summary;
use crate::attribute::schema::Schema;
use crate::heap::{HeapArc, System};
use crate::sync::{Arc, Release};
use std::collections::VecDeque;
use std::sync::Arc as Shared;

/// The bounds of the window.
#[derive(Clone, Copy)]
pub(crate) struct WindowLimits {
    /// Events: those of the closed segments, and the newest segment whole.
    pub(crate) events: u64,
    /// Segments: places of the directory, of which there are more than the events and the bytes are for.
    pub(crate) segments: u64,
    /// Bytes of all of them; the largest revision comes on top.
    pub(crate) bytes: u64,
    /// A segment also closes at this many bytes.
    pub(crate) segment_bytes: u64,
    /// `(age in milliseconds, events)`: older segments leave early as long as that many events stay.
    pub(crate) keep: Option<(u64, u64)>,
}

/// A segment of the window.
struct Live {
    token: RetentionToken,
    /// 0, or the number of the oversized revision that it was opened for.
    oversized: u64,
    /// When it was opened, in milliseconds of the log's life.
    opened: u64,
    /// The bytes that stay because of its deletes: see `SlotRef::deleted_bytes`. They count as the segment's until that
    /// leaves; from then on they wait for their purge, and evict nothing any more.
    deleted: u64,
    /// Decoded values of the versions that its events have replaced, as of then.
    decoded: u64,
    /// The bytes of tombstones that oversized revisions had left behind and that were purged into it: see [`RingWriter::may_purge`].
    drained: u64,
}

impl Live {
    fn new(token: RetentionToken, oversized: u64, opened: u64) -> Live {
        Live { token, oversized, opened, deleted: 0, decoded: 0, drained: 0 }
    }

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
    pub(crate) retained: u64,
    /// The decoded value of that version.
    pub(crate) decoded: u64,
    /// The bytes that stay because the event is a delete.
    pub(crate) deleted: u64,
}

impl Added {
    pub(crate) fn sum(self) -> u64 {
        self.retained + self.decoded + self.deleted
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
    newest: SegmentWriter,
    limits: WindowLimits,
    /// The ordinary segments of the window; those of oversized revisions.
    ordinary: WindowSum,
    oversized: WindowSum,
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
    directory: HeapArc<Directory>,
    epochs: HeapArc<Epochs>,
    /// Base of the newest segment, slots used in it, and whether it was opened for an oversized revision.
    base: u64,
    fill: u64,
    is_oversized: bool,
    /// The head that is published, and the base of the segment whose token is.
    head: u64,
    token_base: u64,
    /// The summary of the newest segment.
    summary: Box<Summary>,
    schema: Shared<Schema>,
}

impl RingWriter {
    /// A log of segments of `slots` slots: what readers load of it, and its writer.
    pub(crate) fn with_ring(
        slots: u64,
        limits: WindowLimits,
        clock: LogClock,
        epochs: Epochs,
        width: usize,
        schema: Shared<Schema>,
    ) -> (Ring, RingWriter) {
        let held = Arc::new(Held::default());
        let newest = SegmentWriter::new(slots, slots as usize, Before { end: slots, events: 0 }, width, held.clone());
        let (first, bytes) = (newest.segment().clone(), newest.segment().bytes() as u64);
        let directory = HeapArc::new(Directory::new(limits.segments), &mut System);
        directory.entry(1).store(first.as_ptr().cast_mut(), Release);
        let epochs = HeapArc::new(epochs, &mut System);
        let token = RetentionToken::first(first, clock);
        let capacity = limits.events.min(slots * limits.segments);
        let ring = Ring::new(capacity, width, token.clone(), directory.clone(), epochs.clone(), held);
        let writer = RingWriter {
            live: VecDeque::from([Live::new(token, 0, 0)]),
            newest,
            limits,
            ordinary: WindowSum { segments: 1, bytes, ..WindowSum::default() },
            oversized: WindowSum::default(),
            deleted: 0,
            beside: 0,
            owed: 0,
            removed: 0,
            directory,
            epochs,
            base: slots,
            fill: 0,
            is_oversized: false,
            head: slots,
            token_base: slots,
            summary: Box::new(Summary::new(&schema)),
            schema,
        };
        (ring, writer)
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

    /// Bytes of all segments of the window, without what other statistics count.
    pub(crate) fn log_bytes(&self) -> u64 {
        self.ordinary.bytes + self.oversized.bytes - self.beside
    }

    /// The bytes that stay because of deletes, until their tombstones are purged.
    pub(crate) fn deleted_bytes(&self) -> u64 {
        self.deleted
    }

    /// The sum in which the newest segment counts.
    #[inline]
    fn sum(&mut self) -> &mut WindowSum {
        if self.is_oversized { &mut self.oversized } else { &mut self.ordinary }
    }

    /// Slots a segment.
    fn slots(&self) -> u64 {
        self.newest.segment().limit() - self.base
    }

    /// A key whose delete is `seq` is back, so what stayed because of that is live again.
    pub(crate) fn revived(&mut self, ring: &Ring, seq: u64, bytes: u64) {
        let oldest = self.live.front().map_or(0, |live| live.token.segment().base());
        match seq.checked_sub(oldest) {
            Some(behind) => {
                let live = &mut self.live[(behind / ring.slots) as usize];
                live.deleted -= bytes;
                (if live.oversized == 0 { &mut self.ordinary } else { &mut self.oversized }).bytes -= bytes;
                self.beside -= bytes;
                self.deleted -= bytes;
            }
            None => _ = self.waits_no_more(bytes),
        }
    }

    /// Whether a tombstone whose delete has left the log is to be purged now. Tombstones that ordinary segments left
    /// behind are purged at the rate at which they leave, so that they never pile up. Those of an oversized revision take an eighth
    /// of the window's bytes at most on their way out: their slots count as the segment's that they are purged into.
    pub(crate) fn may_purge(&self) -> bool {
        self.owed > 0 || self.is_oversized || self.ordinary.drained < self.limits.bytes / 8
    }

    /// A tombstone whose delete had left the log is purged: what stayed because of that is of so many bytes, of which
    /// its slot keeps `removed` for the newest segment.
    pub(crate) fn purged(&mut self, bytes: u64, removed: u64) {
        self.removed += removed;
        let drained = self.waits_no_more(bytes);
        self.sum().drained += drained;
        self.live.back_mut().expect("never empty").drained += drained;
    }

    /// Subtracts the bytes of a purged tombstone whose delete had left the log; returns the part that an oversized revision left behind.
    fn waits_no_more(&mut self, bytes: u64) -> u64 {
        self.deleted -= bytes;
        let owed = self.owed.min(bytes);
        self.owed -= owed;
        bytes - owed
    }

    /// The epochs as of the newest commit, or of the one that is under way.
    pub(crate) fn epochs(&self) -> &Epochs {
        &self.epochs
    }

    /// Bytes of the newest segment that are not in the cache's sum yet.
    pub(crate) fn unreported_bytes(&self) -> u64 {
        self.newest.segment().unreported()
    }

    /// Window now: segments, for the statistics.
    pub(crate) fn segments_live(&self) -> usize {
        self.live.len()
    }
}
