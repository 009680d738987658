//! A cache of frames that watchers share: the first watcher that needs a frame makes it, the others find it.
//!
//! Thousands of watchers ask for the same few events at about the same time. So a lookup takes only the read lock of
//! one slot, which is chosen by the event's sequence number. The lock over the whole cache is taken to store a frame:
//! once per event, not once per watcher. Lock order: the cache first, then a slot.

use super::Frame;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockWriteGuard};
use watchcore::Kind;

/// There is one slot for this many bytes of the limit, so the slots are small beside the frames.
const BYTES_PER_SLOT: usize = 2048;

/// Bytes charged for the record that an event has no frame.
const BYTES_OF_NONE: usize = 64;

const MIN_SLOTS: usize = 64;

/// The number of events in a log of default capacity: 3 MiB of empty slots, however large the limit is.
const MAX_SLOTS: usize = 1 << 16;

/// Frames of one resource in all forms, or of one cache's keys. The limit in bytes covers all forms together.
pub(crate) struct Frames<F> {
    /// Slots, indexed by sequence number modulo their count. Allocated when the first frame is stored.
    slots: OnceLock<Box<[RwLock<EventFrames<F>>]>>,
    stored: Mutex<StoredBytes>,
    limit: usize,
    /// Lookups that found a frame, and frames that were made. Relaxed: independent statistics.
    found: AtomicU64,
    made: AtomicU64,
}

/// The frames of one event: a few forms of at most three kinds.
struct EventFrames<F> {
    sequence: u64,
    /// A `None` frame records that the event is not sent.
    frames: Vec<(F, Kind, Option<Frame>)>,
}

/// Bytes stored for each event, ordered so that the oldest are evicted first.
#[derive(Default)]
struct StoredBytes {
    events: BTreeMap<u64, usize>,
    bytes: usize,
}

impl<F: Copy + Eq> Frames<F> {
    /// Creates the cache. A `limit` of 0 stores nothing.
    pub(crate) fn new(limit: usize) -> Frames<F> {
        let (found, made) = (AtomicU64::new(0), AtomicU64::new(0));
        Frames { slots: OnceLock::new(), stored: Mutex::default(), limit, found, made }
    }

    /// Returns the frame of an event of the log, and makes it if it is not stored. If `make` returns `None`, the event
    /// is not sent; that is stored too, because finding it out costs as much as making a frame.
    ///
    /// `make` runs outside the locks: two concurrent callers may both make a frame, and both frames hold the same
    /// bytes.
    pub(crate) fn get(
        &self,
        sequence: u64,
        form: F,
        kind: Kind,
        make: impl FnOnce() -> Option<Frame>,
    ) -> Option<Frame> {
        if let Some(frame) = self.find(sequence, form, kind) {
            self.found.fetch_add(u64::from(frame.is_some()), Relaxed);
            return frame;
        }
        let frame = make();
        self.made.fetch_add(u64::from(frame.is_some()), Relaxed);
        if bytes_of(&frame) <= self.limit {
            drop(self.store(sequence, form, kind, &frame));
        }
        frame
    }

    fn find(&self, sequence: u64, form: F, kind: Kind) -> Option<Option<Frame>> {
        let slots = self.slots.get()?;
        let slot = slots[at(sequence, slots.len())].read().unwrap_or_else(PoisonError::into_inner);
        slot.frame(sequence, form, kind).cloned()
    }

    /// Stores a frame. Returns the evicted frames, so that the caller frees them outside the locks.
    fn store(&self, sequence: u64, form: F, kind: Kind, frame: &Option<Frame>) -> Vec<(F, Kind, Option<Frame>)> {
        let bytes = bytes_of(frame);
        let mut left = Vec::new();
        let mut stored = self.lock();
        let oldest = stored.events.first_key_value().map(|(oldest, _)| *oldest);
        let mut slot = self.slot(sequence);
        // A reader behind all stored events reads alone; its frames would evict ones that other readers are about to
        // need.
        let is_behind = oldest.is_some_and(|oldest| sequence < oldest) && stored.bytes + bytes > self.limit;
        if is_behind || (slot.sequence > sequence && !slot.frames.is_empty()) {
            return left;
        }
        if slot.sequence != sequence {
            // Frees the vector too, because many slots stay empty for long.
            left.extend(std::mem::take(&mut slot.frames));
            let before = std::mem::replace(&mut slot.sequence, sequence);
            stored.release(before);
        }
        if slot.frame(sequence, form, kind).is_none() {
            slot.frames.push((form, kind, frame.clone()));
            *stored.events.entry(sequence).or_default() += bytes;
            stored.bytes += bytes;
        }
        drop(slot);
        while stored.bytes > self.limit {
            let Some((&oldest, _)) = stored.events.first_key_value() else { break };
            stored.release(oldest);
            left.extend(std::mem::take(&mut self.slot(oldest).frames));
        }
        left
    }

    /// Locks the slot of an event; another event may occupy it.
    fn slot(&self, sequence: u64) -> RwLockWriteGuard<'_, EventFrames<F>> {
        let slots = self.slots.get_or_init(|| {
            let count = (self.limit / BYTES_PER_SLOT).clamp(MIN_SLOTS, MAX_SLOTS);
            (0..count).map(|_| RwLock::new(EventFrames { sequence: 0, frames: Vec::new() })).collect()
        });
        slots[at(sequence, slots.len())].write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns (found, made, stored bytes).
    pub(crate) fn counters(&self) -> (u64, u64, usize) {
        (self.found.load(Relaxed), self.made.load(Relaxed), self.lock().bytes)
    }

    fn lock(&self) -> MutexGuard<'_, StoredBytes> {
        // A panic below this lock can at most leave the byte count off by one frame.
        self.stored.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn at(sequence: u64, slots: usize) -> usize {
    (sequence % slots as u64) as usize
}

fn bytes_of(frame: &Option<Frame>) -> usize {
    frame.as_ref().map_or(BYTES_OF_NONE, Frame::len)
}

impl<F: Copy + Eq> EventFrames<F> {
    fn frame(&self, sequence: u64, form: F, kind: Kind) -> Option<&Option<Frame>> {
        let is_it = |one: &&(F, Kind, Option<Frame>)| one.0 == form && one.1 == kind;
        if self.sequence == sequence { self.frames.iter().find(is_it).map(|(_, _, frame)| frame) } else { None }
    }
}

impl StoredBytes {
    fn release(&mut self, sequence: u64) {
        self.bytes -= self.events.remove(&sequence).unwrap_or(0);
    }
}

#[cfg(test)]
mod tests;
