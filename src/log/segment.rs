//! A segment: N slots, each written once before the head covers it and immutable after (I3).
//!
//! Readers get plain `&[Event]` views; there is no lock, count or sequence word per slot. A
//! [`SegmentRef`] keeps the events, and the versions that they point to, alive.
//!
//! The right to write is a value: the one [`SegmentWriter`] of a segment, which the writer of the log has. An event
//! is appended together with the counts that it owns, in one step that cannot fail, and `written` says
//! how many are: a view ends there whatever range it is asked for, and the freeing releases the counts
//! of those and of no other, so a panic in the middle of a commit leaves nothing half owned.
//!
//! `len` is the number of slots in use of a *closed* segment. It starts as N and is lowered, before
//! the head that lies beyond, where the writer leaves the segment early; it is read only under such
//! a head. Rejected: seqlocks (undefined behaviour on plain memory), a flag per slot (a second
//! cache line, or a smaller event).
//!
//! | step | partner | order |
//! | --- | --- | --- |
//! | `append` a slot, `close` | head store Release; reader's head load Acquire | plain, covered by head |
//! | `append`: the slot, then `written` | `view`: `written`, then the slots | Release / Acquire; a reader below the head does not need it, and a view that goes by it needs no promise of its caller |

use crate::data::event::{Event, LogEvent};
use crate::data::key_value::VersionPtr;
use crate::data::slot::{EventCounts, OwnedSlot};
use crate::filter::matcher::Matcher;
use crate::heap::FreeBatch;
use crate::log::summaries::Summary;
use crate::reclaim;
use crate::sync::{Acquire, Arc, AtomicU32, AtomicU64, Mutex, Relaxed, Release, into_inner, lock};
use crossbeam_utils::CachePadded;
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::ops::{Deref, Range};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32 as Written, AtomicU64 as Count};

/// The bytes that a cache holds beyond its live keys; its segments share it (statistics only).
#[derive(Default, Debug)]
pub(crate) struct Held {
    /// Segments, in the window or not, and what they alone keep alive.
    pub(crate) segments: Count,
    pub(crate) segment_bytes: Count,
}

#[repr(transparent)]
struct EventCell(UnsafeCell<MaybeUninit<LogEvent>>);

// SAFETY: I3: written once, by the only writer, before `written` covers it; only read after.
unsafe impl Sync for EventCell {}

/// The position of the log as a segment is opened.
#[derive(Clone, Copy)]
pub(crate) struct Before {
    /// The end of the segment before.
    pub(crate) end: u64,
    /// Events up to there.
    pub(crate) events: u64,
}

pub(crate) struct Segment {
    /// Sequence number of slot 0: a multiple of N.
    base: u64,
    /// End of the segment before: a cursor there has lost nothing if that one has left.
    prev_end: u64,
    /// Events of the log before it. Not the same as `base`: a segment may be closed before it is full.
    events_before: u64,
    len: AtomicU32,
    /// A line of its own: the segment writer stores with each event, and readers look at the rest.
    filled: CachePadded<SegmentFill>,
    cells: Box<[EventCell]>,
    /// For each slot its links: (bucket, sequence number of the event before in that bucket). Relaxed:
    /// covered by head, or by the bucket's newest.
    links: Box<[AtomicU64]>,
    width: usize,
    /// Given when it is closed; read only under a head beyond it.
    summary: OnceLock<Box<Summary>>,
    /// Slots that were removed from the store while this segment was the newest.
    removed_slots: Mutex<Vec<OwnedSlot>>,
    held: Arc<Held>,
    #[cfg(loom)]
    track: Box<[reclaim::Track]>,
}

/// How far a segment is written.
struct SegmentFill {
    /// Slots whose event owns its counts, published or not. Std's also under loom: the models show that
    /// head alone covers what a reader reads.
    written: Written,
    /// Bytes that are freed with this segment; how many of them `held` has already.
    bytes: AtomicU64,
    reported: AtomicU64,
}

/// Bytes of an empty segment: its arrays, itself, and what stands beside it for as long as it lives (its
/// summary, its token, the counts of both).
pub(crate) fn own_bytes(slots: usize, width: usize) -> usize {
    const BESIDE: usize = size_of::<Summary>() + 256;
    slots * (size_of::<LogEvent>() + 16 * width) + size_of::<Segment>() + BESIDE
}

impl Segment {
    fn new(base: u64, slots: usize, before: Before, width: usize, held: Arc<Held>) -> Segment {
        let own = own_bytes(slots, width);
        held.segments.fetch_add(1, Relaxed);
        held.segment_bytes.fetch_add(own as u64, Relaxed);
        Segment {
            base,
            prev_end: before.end,
            events_before: before.events,
            len: AtomicU32::new(slots as u32),
            filled: CachePadded::new(SegmentFill {
                written: Written::new(0),
                bytes: AtomicU64::new(own as u64),
                reported: AtomicU64::new(own as u64),
            }),
            cells: (0..slots).map(|_| EventCell(UnsafeCell::new(MaybeUninit::uninit()))).collect(),
            links: (0..2 * width * slots).map(|_| AtomicU64::new(0)).collect(),
            width,
            summary: OnceLock::new(),
            removed_slots: Mutex::new(Vec::new()),
            held,
            #[cfg(loom)]
            track: (0..slots).map(|_| reclaim::Track::new()).collect(),
        }
    }

    pub(crate) fn base(&self) -> u64 {
        #[cfg(loom)]
        reclaim::read(&raw const *self as usize);
        self.base
    }

    pub(crate) fn prev_end(&self) -> u64 {
        self.prev_end
    }

    pub(crate) fn events_before(&self) -> u64 {
        self.events_before
    }

    /// The sequence number after the last slot of this segment: the base of the next segment.
    pub(crate) fn limit(&self) -> u64 {
        self.base + self.cells.len() as u64
    }

    /// Whether a sequence number is, or could be, one of its own.
    #[inline]
    pub(crate) fn contains(&self, seq: u64) -> bool {
        (self.base()..self.limit()).contains(&seq)
    }

    /// The end of the events of this segment below `head`.
    #[inline]
    pub(crate) fn end(&self, head: u64) -> u64 {
        if head < self.limit() { head } else { self.base + u64::from(self.len.load(Relaxed)) }
    }

    /// Whether this filter lets no event of it pass. Only under a head beyond it.
    pub(crate) fn excluded_by(&self, matcher: &Matcher) -> bool {
        self.summary
            .get()
            .is_some_and(|summary| summary.excludes(matcher, |slot| self.event(self.base + u64::from(slot))))
    }

    /// The event before `seq` in a bucket: 0 for none; `None` where `seq` is not of that bucket.
    pub(crate) fn before(&self, seq: u64, bucket: u64) -> Option<u64> {
        let at = 2 * (seq - self.base) as usize * self.width;
        let links = &self.links[at..at + 2 * self.width];
        links.chunks_exact(2).find(|link| link[0].load(Relaxed) == bucket).map(|link| link[1].load(Relaxed))
    }

    /// The buckets of an event.
    pub(crate) fn buckets(&self, seq: u64) -> impl Iterator<Item = u64> + '_ {
        let at = 2 * (seq - self.base) as usize * self.width;
        self.links[at..at + 2 * self.width].iter().step_by(2).map(|link| link.load(Relaxed)).filter(|id| *id != 0)
    }

    /// Only the segment writer counts here; what is not reported yet is reported when the segment is closed.
    fn account(&self, more: u64) {
        let bytes = &self.filled.bytes;
        bytes.store(bytes.load(Relaxed) + more, Relaxed);
    }

    /// Adds to the cache's sum what this segment has not reported yet.
    fn report(&self) {
        let SegmentFill { bytes, reported, .. } = &*self.filled;
        let unreported = bytes.load(Relaxed) - reported.load(Relaxed);
        reported.store(reported.load(Relaxed) + unreported, Relaxed);
        self.held.segment_bytes.fetch_add(unreported, Relaxed);
    }

    /// The slots that were written.
    #[inline]
    fn events(&self) -> &[LogEvent] {
        // Acquire: partner of the store in `append`.
        let filled = &self.cells[..self.filled.written.load(Acquire) as usize];
        // SAFETY: I3: written slots are immutable; `EventCell` is transparent.
        unsafe { std::slice::from_raw_parts(filled.as_ptr().cast::<LogEvent>(), filled.len()) }
    }

    /// The events with these sequence numbers, all below a head that the caller loaded.
    ///
    /// # Panics
    ///
    /// Where one of them is not written yet: nothing below a head is.
    #[inline]
    pub(crate) fn view(&self, seqs: Range<u64>) -> &[Event] {
        let (from, to) = ((seqs.start - self.base) as usize, (seqs.end - self.base) as usize);
        let events = &self.events()[from..to];
        #[cfg(loom)]
        self.track[from..to].iter().for_each(reclaim::Track::read);
        // SAFETY: I9: a written event owns its counts until the segment is freed.
        unsafe { Event::of_log(events) }
    }

    #[inline]
    pub(crate) fn event(&self, seq: u64) -> &Event {
        &self.view(seq..seq + 1)[0]
    }

    /// Bytes that are freed with it.
    pub(crate) fn bytes(&self) -> usize {
        self.filled.bytes.load(Relaxed) as usize
    }

    /// Bytes that are not in the cache's sum yet.
    pub(crate) fn unreported(&self) -> u64 {
        self.filled.bytes.load(Relaxed) - self.filled.reported.load(Relaxed)
    }
}

/// Events whose versions are fetched while others are released: they lie anywhere, and nobody has looked at them lately.
const AHEAD: usize = 16;

impl Drop for Segment {
    fn drop(&mut self) {
        debug_assert!(reclaim::on_reclaimer(), "I6: segments are freed by the reclaimer");
        #[cfg(loom)]
        reclaim::unboxed(&raw const *self as usize);
        #[cfg(loom)]
        self.track.iter().for_each(reclaim::Track::written);
        let events = self.events();
        let mut batch = FreeBatch::default();
        for (at, event) in events.iter().enumerate() {
            if let Some(later) = events.get(at + AHEAD) {
                EventCounts::prefetch(later.kv, later.prev);
            }
            // SAFETY: I9: `append` moved them here; the last count on the segment is gone, and every pin
            // under which a reader came by its events.
            unsafe { EventCounts::from_slot(event.kv, event.prev).release(&mut batch) };
        }
        for slot in lock(&self.removed_slots).drain(..) {
            // SAFETY: I9: the index without it was published while this segment was the newest, so who
            // may still find it holds this segment by its token, or was pinned before it was retired.
            unsafe { slot.destroy() };
        }
        self.held.segments.fetch_sub(1, Relaxed);
        self.held.segment_bytes.fetch_sub(self.filled.reported.load(Relaxed), Relaxed);
    }
}

/// The right to write into a segment: one exists, and the log's writer has it.
pub(crate) struct SegmentWriter(SegmentRef);

impl SegmentWriter {
    /// A new segment, and its writer.
    pub(crate) fn new(base: u64, slots: usize, before: Before, width: usize, held: Arc<Held>) -> SegmentWriter {
        let segment = Arc::new(Segment::new(base, slots, before, width, held));
        #[cfg(loom)]
        reclaim::boxed(Arc::as_ptr(&segment) as usize);
        SegmentWriter(SegmentRef::new(segment))
    }

    pub(crate) fn segment(&self) -> &SegmentRef {
        &self.0
    }

    /// Appends an event in the slot of its sequence number, which is the next one. `own` is what the
    /// event owns from then on, `None` for a mark. Until the head is above the slot, only the writer reads it.
    #[inline(always)]
    pub(crate) fn append(
        &mut self,
        mut event: LogEvent,
        extra_bytes: u64,
        own: impl FnOnce() -> Option<EventCounts>,
    ) -> &Event {
        let segment = &*self.0;
        let at = (event.sequence - segment.base) as usize;
        let cell = &segment.cells[at];
        // Relaxed: only this writer stores it.
        assert!(segment.filled.written.load(Relaxed) as usize == at, "I3: slots are written once, in their order");
        #[cfg(loom)]
        segment.track[at].written();
        let counts = own();
        // From here to the store nothing can fail: a view or the freeing finds all of it or nothing.
        (event.kv, event.prev) = counts.map_or((VersionPtr::NULL, VersionPtr::NULL), EventCounts::into_slot);
        // SAFETY: I1, I3: this writer is the only one, and nobody reads a slot that `written` does not cover.
        let written = unsafe { (*cell.0.get()).write(event) };
        // Release: partner of the load in `events`.
        segment.filled.written.store(at as u32 + 1, Release);
        segment.account(extra_bytes);
        // SAFETY: I9: it owns its counts until the segment is freed.
        unsafe { Event::of_one(written) }
    }

    /// Links the event of `seq` to the one before in a bucket; above the head.
    pub(crate) fn link(&mut self, seq: u64, place: usize, bucket: u64, before: u64) {
        let at = 2 * ((seq - self.0.base) as usize * self.0.width + place);
        self.0.links[at + 1].store(before, Relaxed);
        self.0.links[at].store(bucket, Relaxed);
    }

    /// Keeps a removed slot until this segment is freed; its bytes.
    pub(crate) fn keep_removed(&mut self, slot: OwnedSlot) -> u64 {
        let bytes = slot.get().removed_bytes();
        self.0.account(bytes);
        lock(&self.0.removed_slots).push(slot);
        bytes
    }

    /// Leaves the segment with `len` slots in use, before a head beyond it.
    pub(crate) fn close(self, len: u32, mut summary: Box<Summary>) {
        let segment = &*self.0;
        segment.len.store(len, Relaxed);
        if let Some(last) = len.checked_sub(1) {
            summary.close(segment.event(segment.base + u64::from(last)));
            let _ = segment.summary.set(summary);
        }
        segment.report();
    }
}

/// A count on a segment. Any thread may release it; the last one goes to the reclaimer (I6).
#[derive(Clone)]
pub(crate) struct SegmentRef(std::mem::ManuallyDrop<Arc<Segment>>);

impl SegmentRef {
    fn new(segment: Arc<Segment>) -> SegmentRef {
        SegmentRef(std::mem::ManuallyDrop::new(segment))
    }

    pub(crate) fn as_ptr(&self) -> *const Segment {
        Arc::as_ptr(&self.0)
    }

    /// Another count from a pointer out of the directory.
    ///
    /// # Safety
    ///
    /// `pointer` is from [`SegmentRef::as_ptr`] of a segment that the directory holds or held, and was
    /// loaded from it under this pin: the directory's own count is released only after the grace
    /// period, so this increment never starts from 0.
    pub(crate) unsafe fn from_directory(pointer: *const Segment, _pin: &reclaim::Guard) -> SegmentRef {
        #[cfg(loom)]
        reclaim::read(pointer as usize);
        // SAFETY: I9: the directory's count on the Arc is released only after this pin ends (`# Safety`).
        unsafe {
            Arc::increment_strong_count(pointer);
            SegmentRef::from_raw(pointer)
        }
    }

    /// Gives the count to a raw pointer (the owner word of a C batch).
    pub(crate) fn into_raw(self) -> *const Segment {
        std::mem::ManuallyDrop::new(self).as_ptr()
    }

    /// Takes a count back.
    ///
    /// # Safety
    ///
    /// [`SegmentRef::into_raw`] gave it away, and it is taken back once.
    pub(crate) unsafe fn from_raw(pointer: *const Segment) -> SegmentRef {
        // SAFETY: I9: `into_raw` gave this count away, and nobody else takes it back (`# Safety`).
        SegmentRef::new(unsafe { Arc::from_raw(pointer) })
    }
}

impl Deref for SegmentRef {
    type Target = Segment;
    #[inline]
    fn deref(&self) -> &Segment {
        &self.0
    }
}

impl Drop for SegmentRef {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: taken once, here: nobody has this value any more.
        if let Some(last) = into_inner(unsafe { std::mem::ManuallyDrop::take(&mut self.0) }) {
            if reclaim::on_reclaimer() {
                drop(last);
            } else {
                reclaim::free(last.bytes(), Box::new(move || drop(last)));
            }
        }
    }
}
