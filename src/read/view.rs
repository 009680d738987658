//! The state that a read answers from: waited for, found, and walked at one head.

#![forbid(unsafe_code)]

use super::Read;
use super::snapshot::Snapshot;
use crate::cache::{Cache, Inner};
use crate::data::key_value::KeyValue;
use crate::data::slot::SlotPtr;
use crate::error::Result;
use crate::filter::range::Range;
use crate::position::Position;
use crate::reclaim;
use crate::store::root::Span;
use std::time::Duration;

/// Keys looked at under one pin.
pub(crate) const PIN_KEYS: usize = 1024;

/// Walks a range at a head in pages of one pin each. `each` returns false to stop.
/// `Err(())`: the head has left the window.
pub(crate) fn walk(
    inner: &Inner,
    head: u64,
    range: &Range,
    from: &mut Option<Vec<u8>>,
    mut each: impl FnMut(SlotPtr, Option<&KeyValue>) -> bool,
) -> std::result::Result<bool, ()> {
    loop {
        let pin = reclaim::pin();
        let root = inner.root.load(&pin);
        // After root, inside the pin: what the root forgot, it forgot at heads above ours.
        if inner.ring.oldest_seq() > head {
            return Err(());
        }
        let mut span: Span = range.span.clone();
        if let Some(from) = from.take() {
            span.from = from;
        }
        for (looked, slot) in root.range(&span).enumerate() {
            if looked == PIN_KEYS {
                *from = Some(slot.key().to_vec());
                break;
            }
            if !range.contains(slot.key()) {
                continue;
            }
            let version = slot.at(head);
            let live = version.get().filter(|kv| !kv.is_tombstone());
            if !each(slot, live) {
                let mut next = slot.key().to_vec();
                next.push(0);
                *from = Some(next);
                return Ok(false);
            }
        }
        if from.is_none() {
            return Ok(true);
        }
    }
}

impl Cache {
    /// The head to read at and its position: the exact one, that of what is held, or the newest.
    pub(super) fn at(&self, exact: Option<(Position, u64)>, held: &Option<Snapshot>) -> (u64, Position) {
        match (exact, held) {
            (Some((position, seq)), _) => (seq, position),
            (None, Some(snapshot)) => (snapshot.head(), snapshot.position()),
            (None, None) => {
                let (position, head) = self.inner.now(&reclaim::pin());
                (head, position)
            }
        }
    }

    pub(super) fn ready(&self, what: &str) -> Result<()> {
        if self.inner.is_ready() { Ok(()) } else { Err(self.inner.not_ready(what)) }
    }

    /// Waits until the read can be answered. For exact ones: (position, head to read at).
    pub(super) fn settle(&self, what: &str, read: Read, timeout: Duration) -> Result<Option<(Position, u64)>> {
        self.ready(what)?;
        let Some((asked, exact)) = read.asked() else { return Ok(None) };
        let revision = asked.revision;
        let former = || {
            let pin = reclaim::pin();
            let (_, head) = self.inner.now(&pin);
            self.inner.ring.history(&pin).is_of_a_former_history(asked, head)
        };
        if asked.epoch != 0 && former() {
            return Err(self.inner.compacted(what, revision));
        }
        if self.position().revision < revision {
            self.reach(what, asked, timeout)?;
        }
        if !exact {
            return Ok(None);
        }
        let found = self.inner.find(what, asked, false)?;
        if found.future {
            return Err(self.inner.compacted(what, revision));
        }
        Ok(Some((Position { epoch: found.epoch, revision }, found.seq)))
    }
}
