//! The delivered keys of a consumer, for the policies that catch up after a loss by a difference.
//!
//! The difference needs no delivered versions, only the keys. Everything below the cursor was delivered, so a key has
//! changed since if its version is not below the cursor.

#![forbid(unsafe_code)]

use super::awake::Awake;
use crate::cache::StateView;
use crate::data::event::{Event, Kind};
use crate::data::slot::SlotRef;
use crate::filter::range::Range;
use crate::read::snapshot::Snapshot;
use crate::read::view::{At, Left, Scan};
use crate::reclaim;
use crate::store::key_set::KeySet;

impl Awake<'_> {
    /// Under policies that need delivered keys, replaces them by the keys that match at `head`. False: that state has
    /// left the window, and the delivered keys are unchanged.
    pub(super) fn seed(&mut self, head: u64) -> bool {
        if !self.own.on_lag.needs_delivered_keys() {
            return true;
        }
        self.seed_at(At::Head(self.inner(), head)).is_ok()
    }

    /// Replaces the delivered keys by those that match in a snapshot.
    pub(super) fn seed_held(&mut self, snapshot: &Snapshot) {
        let _ = self.seed_at(At::Held(snapshot));
    }

    fn seed_at(&mut self, at: At<'_>) -> Result<(), Left> {
        let keys = self.matching_keys(at)?;
        self.own.cold().delivered = Some(Box::new(keys));
        Ok(())
    }

    /// Collects the keys that match in a state. Runs predicates.
    fn matching_keys(&self, at: At<'_>) -> Result<KeySet, Left> {
        let matcher = &self.shared.matcher;
        let range = matcher.range().cloned().unwrap_or_else(Range::all);
        let mut keys = KeySet::default();
        let mut scan = Scan::new(at, &range, None);
        let mut page = Vec::new();
        while !scan.is_over() {
            scan.page(usize::MAX, &mut page, |_, slot, live| {
                let kv = live.filter(|kv| matcher.may_hold_value(kv))?;
                Some((slot.counted(), matcher.has_predicates().then(|| kv.to_owned())))
            })?;
            for (key, tried) in page.drain(..) {
                if tried.is_none_or(|kv| matcher.predicates_hold(&kv)) {
                    keys.add(key);
                }
            }
        }
        Ok(keys)
    }

    /// Records an event that was handed out, or would have been but for the mask of kinds.
    #[inline]
    pub(super) fn record(&mut self, kind: Kind, event: &Event) {
        let Some(delivered) = self.own.delivered() else { return };
        match kind {
            Kind::Added | Kind::Modified if !delivered.has(event.key()) => {
                let inner = &self.shared.inner;
                let pin = reclaim::pin();
                let view = StateView::pinned(inner, inner.ring.head(), &pin);
                let slot = view.and_then(|view| view.slot(event.key()));
                delivered.add(slot.map_or_else(|| event.key().into(), SlotRef::counted));
            }
            Kind::Deleted => delivered.remove(event.key()),
            _ => {}
        }
    }
}
