//! A state at one head: the only place that follows the index to slots and slots to versions.
//!
//! A reader at head h finds a key's slot in the root, and in the slot the newest version; versions of
//! events from h on are passed over by their `older`. That is sound while the slot lives and the events
//! from h on do, and there are two ways to know it:
//!
//! - **pinned**: the root is loaded under a pin, and `oldest_seq` after it, which must not lie above h.
//!   What leaves the index or the window later is not freed before the pin ends. Where only the free slots of a
//!   segment that closed early lie between, the view is that at `oldest_seq`: see [`StateView::pinned`];
//! - **held**: a snapshot has a retention token of h, which keeps every segment from there on, and with
//!   them the slots that were removed since.
//!
//! All that a view gives out is bound to the pin or to the snapshot. See `docs/internals/reading.md`.

use super::Inner;
use crate::data::key_value::KeyValueRef;
use crate::data::slot::{ShownVersion, SlotRef};
use crate::reclaim::Guard;
use crate::store::root::{Root, RootRef, SlotsInOrder, Span};
#[cfg(loom)]
use crate::sync::weak;

/// The head that somebody reads at has left the window.
#[derive(Debug)]
pub(crate) struct Left;

/// The state at one head, kept for 'a.
#[derive(Clone, Copy)]
pub(crate) struct StateView<'a> {
    index: RootRef<'a>,
    head: u64,
    /// Every event from here on is held for 'a.
    oldest: u64,
}

impl<'a> StateView<'a> {
    /// The state at `head`, which the caller loaded or which lies below one that it loaded. `None` where
    /// it has left the window.
    ///
    /// `oldest` may lie above the head where no event lies between. Then both heads have one state, and this is exact:
    /// a version has the number of its event, so one is below `oldest` exactly where it is below the head; every event
    /// from `oldest` on is held, and so what it replaced; and a key that the root has no more was purged because
    /// its delete lies below `oldest`, so below the head.
    pub(crate) fn pinned(inner: &Inner, head: u64, pin: &'a Guard) -> Option<StateView<'a>> {
        let root = inner.root.load(pin);
        // After root, inside the pin: a key that the root has no more was purged at a head above this one.
        let oldest = inner.ring.oldest_seq();
        // SAFETY: I4, I9: slots that leave the index, and the segments that own what slots showed, are
        // retired after the root or the directory without them was published: not freed before this pin ends.
        let index = unsafe { root.read() };
        inner.ring.has_all_from(head, oldest, pin).then_some(StateView { index, head, oldest })
    }

    /// The live key-value of one key at `head`, by the table of slots and without the index. `Err`: the head has left
    /// the window. O(1).
    pub(crate) fn find(
        inner: &Inner,
        head: u64,
        key: &[u8],
        pin: &'a Guard,
    ) -> std::result::Result<Option<KeyValueRef<'a>>, Left> {
        #[cfg(loom)]
        let early = weak::is(weak::Site::OldestEarly).then(|| inner.ring.oldest_seq());
        // SAFETY: I4, I9: a slot that leaves the table goes to a segment, with what it shows, when the root
        // without it is published: not freed before this pin ends.
        let slot = unsafe { inner.slots.find(key, pin) };
        // After the table, inside the pin: a key that the table has no more was purged at a head above this one.
        let oldest = inner.ring.oldest_seq();
        #[cfg(loom)]
        let oldest = early.unwrap_or(oldest);
        if !inner.ring.has_all_from(head, oldest, pin) {
            return Err(Left);
        }
        let Some(slot) = slot else { return Ok(None) };
        // SAFETY: as `find`, and every event from `oldest` on is held under the pin.
        Ok(unsafe { slot.pointer().get().live_at(head.max(oldest)) })
    }

    /// The state of a snapshot.
    ///
    /// # Safety
    ///
    /// For 'a a retention token is held that was loaded before `head` and `index`, in this order, and
    /// `oldest_seq` as loaded after them was not above `head`.
    pub(crate) unsafe fn held(index: &'a Root, head: u64) -> StateView<'a> {
        // SAFETY: I9: the token keeps the segments that own what leaves the index, or a slot, from the
        // head on.
        let index = unsafe { index.read() };
        StateView { index, head, oldest: head }
    }

    /// The live key-value of a key. O(log n).
    pub(crate) fn get(self, key: &[u8]) -> Option<KeyValueRef<'a>> {
        self.live(self.index.get(key)?)
    }

    /// The slot of a key, whether it is live or not.
    pub(crate) fn slot(self, key: &[u8]) -> Option<SlotRef<'a>> {
        self.index.get(key)
    }

    /// The slots of a span of keys in key order, whether they are live or not.
    pub(crate) fn slots(self, span: &Span) -> SlotsInOrder<'a> {
        self.index.range(span)
    }

    /// The live key-value of a slot of this state.
    #[inline]
    pub(crate) fn live(self, slot: SlotRef<'a>) -> Option<KeyValueRef<'a>> {
        // SAFETY: every event from there on is held for 'a.
        unsafe { slot.live_at(self.head.max(self.oldest)) }
    }

    /// The same, and whether the slot showed it as the newest of its key.
    #[inline]
    pub(crate) fn shown(self, slot: SlotRef<'a>) -> Option<ShownVersion<'a>> {
        // SAFETY: as `live`.
        unsafe { slot.shown_at(self.head.max(self.oldest)) }
    }

    /// What a slot shows at this head or a later one, a tombstone as it is.
    #[inline]
    pub(crate) fn at(self, slot: SlotRef<'a>, head: u64) -> Option<KeyValueRef<'a>> {
        // SAFETY: every event from there on is held for 'a.
        unsafe { slot.at(head.max(self.oldest)) }
    }

    /// The live key-value that was newest below `head`, which may lie below the window: `None` where it
    /// cannot be reached any more.
    pub(crate) fn delivered_before(self, slot: SlotRef<'a>, head: u64) -> Option<KeyValueRef<'a>> {
        let version = self.at(slot, head)?;
        (version.seq() < head && !version.is_tombstone()).then_some(version)
    }
}
