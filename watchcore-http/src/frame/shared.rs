//! Frames that many watchers share: made by the first who needs one, kept while all come by.
//!
//! Ten thousand watchers ask for the same few events at about the same time. So to find a frame is a look at one place, that
//! of the event's sequence number, which readers share. The lock over all is for who keeps a frame: once for each event, and
//! not for each watcher. It is taken before that of a place, never behind it.

use super::{Form, Frame};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockWriteGuard};
use watchcore::Kind;

/// A place for so many bytes of the limit, beside which a place itself is small.
const BYTES_A_PLACE: usize = 2048;

/// What counts for an event that does not go out, and so has no frame.
const BYTES_OF_NONE: usize = 64;

const LEAST_PLACES: usize = 64;

/// As many as a log of the default capacity has events: 3 MiB of places without what is in them, however large the limit is.
const MOST_PLACES: usize = 1 << 16;

/// The frames of one resource, by form, or those of the keys of one cache. Bounded in bytes over all forms.
pub(crate) struct Frames<F = Form> {
    /// By sequence number of the log, modulo their number. Made with the first frame that is kept.
    places: OnceLock<Box<[RwLock<EventFrames<F>>]>>,
    kept: Mutex<Kept>,
    limit: usize,
    /// Frames that were found, and that had to be made. Relaxed: figures, nothing depends on them.
    found: AtomicU64,
    made: AtomicU64,
}

/// The frames of one event: a few forms of at most three kinds.
struct EventFrames<F> {
    sequence: u64,
    /// `None`: so it does not go out.
    frames: Vec<(F, Kind, Option<Frame>)>,
}

/// How many bytes of which event, so that the oldest leave first.
#[derive(Default)]
struct Kept {
    events: BTreeMap<u64, usize>,
    bytes: usize,
}

impl<F: Copy + Eq> Frames<F> {
    /// None are kept where `limit` is 0.
    pub(crate) fn new(limit: usize) -> Frames<F> {
        let (found, made) = (AtomicU64::new(0), AtomicU64::new(0));
        Frames { places: OnceLock::new(), kept: Mutex::default(), limit, found, made }
    }

    /// The frame of an event of the log, made now if nobody has made it yet. `None` of `make`: the event does not go out. To
    /// find that out is as much work as a frame, so it is kept as one.
    ///
    /// It is made outside of the locks: two who come at once both make one, and both frames hold the same bytes.
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
            drop(self.keep(sequence, form, kind, &frame));
        }
        frame
    }

    fn find(&self, sequence: u64, form: F, kind: Kind) -> Option<Option<Frame>> {
        let places = self.places.get()?;
        let place = places[at(sequence, places.len())].read().unwrap_or_else(PoisonError::into_inner);
        place.frame(sequence, form, kind).cloned()
    }

    /// Keeps a frame; what had to leave for it is the caller's to free.
    fn keep(&self, sequence: u64, form: F, kind: Kind, frame: &Option<Frame>) -> Vec<(F, Kind, Option<Frame>)> {
        let bytes = bytes_of(frame);
        let mut left = Vec::new();
        let mut kept = self.lock();
        let oldest = kept.events.first_key_value().map(|(oldest, _)| *oldest);
        let mut place = self.place(sequence);
        // Who reads behind everything that is kept reads alone, and would only push out what others are about to need.
        let is_behind = oldest.is_some_and(|oldest| sequence < oldest) && kept.bytes + bytes > self.limit;
        if is_behind || (place.sequence > sequence && !place.frames.is_empty()) {
            return left;
        }
        if place.sequence != sequence {
            // With its room: many places are empty for long.
            left.extend(std::mem::take(&mut place.frames));
            let before = std::mem::replace(&mut place.sequence, sequence);
            kept.release(before);
        }
        if place.frame(sequence, form, kind).is_none() {
            place.frames.push((form, kind, frame.clone()));
            *kept.events.entry(sequence).or_default() += bytes;
            kept.bytes += bytes;
        }
        drop(place);
        while kept.bytes > self.limit {
            let Some((&oldest, _)) = kept.events.first_key_value() else { break };
            kept.release(oldest);
            left.extend(std::mem::take(&mut self.place(oldest).frames));
        }
        left
    }

    /// The place of an event, or of another one that has it.
    fn place(&self, sequence: u64) -> RwLockWriteGuard<'_, EventFrames<F>> {
        let places = self.places.get_or_init(|| {
            let count = (self.limit / BYTES_A_PLACE).clamp(LEAST_PLACES, MOST_PLACES);
            (0..count).map(|_| RwLock::new(EventFrames { sequence: 0, frames: Vec::new() })).collect()
        });
        places[at(sequence, places.len())].write().unwrap_or_else(PoisonError::into_inner)
    }

    /// (found, made, bytes kept).
    pub(crate) fn figures(&self) -> (u64, u64, usize) {
        (self.found.load(Relaxed), self.made.load(Relaxed), self.lock().bytes)
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        // A panic inside leaves at most a figure that is off by one frame.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn at(sequence: u64, places: usize) -> usize {
    (sequence % places as u64) as usize
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

impl Kept {
    fn release(&mut self, sequence: u64) {
        self.bytes -= self.events.remove(&sequence).unwrap_or(0);
    }
}

#[cfg(test)]
mod tests;
