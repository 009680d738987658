//! The delivered keys of a consumer, for the policies that catch up after a loss by a difference.
//!
//! The difference needs no delivered versions, only the keys. Everything below the cursor was delivered, so a key has
//! changed since if its version is not below the cursor.

#![forbid(unsafe_code)]

use super::options::OnLag;
use crate::cache::{Consumer, StateView};
use crate::data::event::{Event, Kind};
use crate::data::slot::SlotRef;
use crate::filter::range::Range;
use crate::read::view::{At, Left, Scan};
use crate::reclaim;
use crate::store::key_set::KeySet;

/// The delivered keys, where the policy needs them.
pub(super) type Delivered = Option<Box<KeySet>>;

/// The keys that match in a state, which counts as delivered. Runs predicates.
pub(super) fn of_state(policy: OnLag, consumer: &Consumer, at: At<'_>) -> Result<Delivered, Left> {
    if !policy.needs_delivered_keys() {
        return Ok(None);
    }
    let matcher = &consumer.matcher;
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
    Ok(Some(Box::new(keys)))
}

/// Records an event that was handed out, or would have been but for the mask of kinds.
pub(super) fn record(keys: &mut KeySet, consumer: &Consumer, kind: Kind, event: &Event) {
    match kind {
        Kind::Added | Kind::Modified if !keys.has(event.key()) => {
            let inner = &consumer.inner;
            let pin = reclaim::pin();
            let view = StateView::pinned(inner, inner.ring.head(), &pin);
            let slot = view.and_then(|view| view.slot(event.key()));
            keys.add(slot.map_or_else(|| event.key().into(), SlotRef::counted));
        }
        Kind::Deleted => keys.remove(event.key()),
        _ => {}
    }
}
