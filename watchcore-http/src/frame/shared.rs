//! Frames that many watchers share: made by the first who needs one, kept while all come by.

use super::{Form, Frame};
use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use watchcore::Kind;

/// The frames of one resource, by form, or those of the keys of one cache. Bounded in bytes over all forms.
pub(crate) struct Frames<F = Form> {
    kept: Mutex<Kept<F>>,
    limit: usize,
    /// Frames that were found, and that had to be made. Relaxed: figures, nothing depends on them.
    found: AtomicU64,
    made: AtomicU64,
}

struct Kept<F> {
    /// By sequence number of the log, so that the oldest leave first.
    events: BTreeMap<u64, Event<F>>,
    bytes: usize,
}

/// The frames of one event: at most a few forms of at most three kinds.
type Event<F> = HashMap<(F, u32), Frame>;

impl<F: Copy + Eq + Hash> Frames<F> {
    /// None are kept where `limit` is 0.
    pub(crate) fn new(limit: usize) -> Frames<F> {
        let kept = Mutex::new(Kept { events: BTreeMap::new(), bytes: 0 });
        Frames { kept, limit, found: AtomicU64::new(0), made: AtomicU64::new(0) }
    }

    /// The frame of an event of the log, made now if nobody has made it yet. `None` of `make` (the event does not go
    /// out) is not kept.
    ///
    /// It is made outside of the lock: two who come at once both make one, and both frames hold the same bytes.
    pub(crate) fn get(
        &self,
        sequence: u64,
        form: F,
        kind: Kind,
        make: impl FnOnce() -> Option<Frame>,
    ) -> Option<Frame> {
        let key = (form, kind as u32);
        if let Some(frame) = self.lock().events.get(&sequence).and_then(|event| event.get(&key)) {
            self.found.fetch_add(1, Relaxed);
            return Some(frame.clone());
        }
        let frame = make()?;
        self.made.fetch_add(1, Relaxed);
        self.keep(sequence, key, &frame);
        Some(frame)
    }

    fn keep(&self, sequence: u64, key: (F, u32), frame: &Frame) {
        let bytes = frame.chunk().len();
        let mut released = Vec::new();
        let mut kept = self.lock();
        // Who reads behind everything that is kept reads alone, and would only push out what others are about to need.
        let is_behind = kept.events.first_key_value().is_some_and(|(oldest, _)| sequence < *oldest);
        if bytes > self.limit || (is_behind && kept.bytes + bytes > self.limit) {
            return;
        }
        if kept.events.entry(sequence).or_default().insert(key, frame.clone()).is_none() {
            kept.bytes += bytes;
        }
        while kept.bytes > self.limit {
            let Some((_, oldest)) = kept.events.pop_first() else { break };
            kept.bytes -= oldest.values().map(|frame| frame.chunk().len()).sum::<usize>();
            released.push(oldest);
        }
        // Freed behind the lock.
        drop(kept);
        drop(released);
    }

    /// (found, made, bytes kept).
    pub(crate) fn figures(&self) -> (u64, u64, usize) {
        (self.found.load(Relaxed), self.made.load(Relaxed), self.lock().bytes)
    }

    fn lock(&self) -> MutexGuard<'_, Kept<F>> {
        // A panic inside leaves at most a figure that is off by one frame.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
