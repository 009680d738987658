//! The state that a read answers from: waited for, found, and walked at one head.

#![forbid(unsafe_code)]

use super::Read;
use super::snapshot::Snapshot;
use crate::cache::{Cache, Inner, StateView};
use crate::data::key_value::KeyValue;
use crate::data::slot::SlotRef;
use crate::error::{Result, say};
use crate::filter::range::Range;
use crate::position::Position;
use crate::reclaim;
use crate::store::root::Span;
use std::time::Duration;

/// Keys looked at under one pin.
pub(crate) const PIN_KEYS: usize = 1024;

/// What a walk visits: a slot of a state, and what lives in it there. It returns false to stop.
pub(crate) trait Visit: FnMut(StateView<'_>, SlotRef<'_>, Option<&KeyValue>) -> bool {}
impl<F: FnMut(StateView<'_>, SlotRef<'_>, Option<&KeyValue>) -> bool> Visit for F {}

/// Walks a range at a head in pages of one pin each, from the key `from` on, which moves along.
/// `Err(())`: the head has left the window.
pub(crate) fn walk(
    inner: &Inner,
    head: u64,
    range: &Range,
    from: &mut Option<Vec<u8>>,
    mut each: impl Visit,
) -> std::result::Result<bool, ()> {
    loop {
        let pin = reclaim::pin();
        let view = StateView::pinned(inner, head, &pin).ok_or(())?;
        match page(view, range, from, PIN_KEYS, &mut each) {
            Paged::Stopped => return Ok(false),
            Paged::Over => return Ok(true),
            Paged::Full => {}
        }
    }
}

enum Paged {
    /// So many keys were looked at; the rest begins at `from`.
    Full,
    /// The visitor has enough; the rest begins at `from`.
    Stopped,
    Over,
}

/// Visits at most `most` keys of a range of a state.
fn page(view: StateView<'_>, range: &Range, from: &mut Option<Vec<u8>>, most: usize, each: &mut impl Visit) -> Paged {
    let mut span: Span = range.span.clone();
    if let Some(from) = from.take() {
        span.from = from;
    }
    for (looked, slot) in view.slots(&span).enumerate() {
        if looked == most {
            *from = Some(slot.key().to_vec());
            return Paged::Full;
        }
        if !range.contains(slot.key()) {
            continue;
        }
        if !each(view, slot, view.live(slot).as_deref()) {
            let mut next = slot.key().to_vec();
            next.push(0);
            *from = Some(next);
            return Paged::Stopped;
        }
    }
    Paged::Over
}

/// Walks a state that somebody holds, in one go.
pub(crate) fn walk_held(snapshot: &Snapshot, range: &Range, from: &Option<Vec<u8>>, mut each: impl Visit) {
    page(snapshot.view(), range, &mut from.clone(), usize::MAX, &mut each);
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
        say::check_revision(what, revision)?;
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
