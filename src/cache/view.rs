//! A state at one head. Only this module follows the index to slots and slots to versions.
//!
//! A reader at head h finds a key's slot in the root, and in the slot the newest version; versions of events from h on
//! are passed over by their `older`. This is sound while the slot and the events from h on live, which a view ensures
//! in one of two ways:
//!
//! - **pinned**: the root is loaded under a pin, and `oldest_seq` after it, which must not lie above h. Slots and
//!   events that leave later are not freed before the pin ends. If only free slots of a segment that closed early lie
//!   between h and `oldest_seq`, the view is at `oldest_seq`: see [`StateView::pinned`];
//! - **held**: a snapshot has a retention token of h, which keeps every segment from there on, and with
//!   them the slots that were removed since.
//!
//! References from a view are bound to the lifetime of the pin or of the snapshot. See `docs/internals/reading.md`.

use super::Inner;
use crate::data::key_value::KeyValueRef;
use crate::data::slot::{SlotRef, VisibleVersion};
use crate::reclaim::Guard;
use crate::store::root::{Root, RootRef, SlotsInOrder, Span};
use crate::store::table::FETCHED;
#[cfg(loom)]
use crate::sync::weak;

/// Keys that a reader visits under one pin.
pub(crate) const PIN_KEYS: usize = 1024;

/// The head of a read has left the window.
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
    /// `oldest` may lie above the head if no event lies between. Then both heads have one state, and this is exact: a
    /// version has the number of its event, so it is below `oldest` exactly if it is below the head; every event from
    /// `oldest` on is held, and with it the version that it replaced; and a key that has left the root was purged
    /// because its delete lies below `oldest`, so below the head.
    pub(crate) fn pinned(inner: &Inner, head: u64, pin: &'a Guard) -> Option<StateView<'a>> {
        let root = inner.root.load(pin);
        // Loaded after root, under the pin: a key that has left the root was purged at a head above this one.
        let oldest = inner.ring.oldest_seq();
        // SAFETY: I4, I9: slots that leave the index, and the segments that own what slots showed, are
        // retired after the root or the directory without them was published: not freed before this pin ends.
        let index = unsafe { root.read() };
        inner.ring.has_all_from(head, oldest, pin).then_some(StateView { index, head, oldest })
    }

    /// The live key-value of one key at `head`, found by the hash table of slots. `Err`: the head has left the window.
    /// O(1).
    #[inline(always)]
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
        // Loaded after the table, under the pin: a key that has left the table was purged at a head above this one.
        let oldest = inner.ring.oldest_seq();
        #[cfg(loom)]
        let oldest = early.unwrap_or(oldest);
        if !inner.ring.has_all_from(head, oldest, pin) {
            return Err(Left);
        }
        let Some(slot) = slot else { return Ok(None) };
        // SAFETY: I4, I9: the slot is not freed before the pin ends (see `find` above), nor is any event from `oldest` on.
        Ok(unsafe { slot.pointer().get().live_at(head.max(oldest)) })
    }

    /// [`StateView::find`] for several keys: `each` takes what each of them has, in their order. If the head has left the
    /// window, the keys from there on were not asked for.
    pub(crate) fn find_all(
        inner: &Inner,
        head: u64,
        keys: &[impl AsRef<[u8]>],
        pin: &'a Guard,
        mut each: impl FnMut(Option<KeyValueRef<'a>>),
    ) -> std::result::Result<(), Left> {
        for some in keys.chunks(FETCHED) {
            // SAFETY: I4, I9: what leaves the table is not freed before this pin ends (see `find`).
            unsafe { inner.slots.prefetch(some.iter().map(AsRef::as_ref)) };
            for key in some {
                each(Self::find(inner, head, key.as_ref(), pin)?);
            }
        }
        Ok(())
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

    /// A key-value of this state that was found under a pin, for as long as the state is kept.
    ///
    /// # Safety
    ///
    /// It was live at this head, and the view is [held](StateView::held).
    pub(crate) unsafe fn keep(self, kv: KeyValueRef<'_>) -> KeyValueRef<'a> {
        // SAFETY: I9: its slot has a count of it, or the event that replaced it. That event is at this head or above,
        // so held for 'a; and so is the slot, if its key is purged.
        unsafe { kv.pointer().get_some() }
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
        // SAFETY: every event from `oldest` on, and so every version shown at that head or above, is held for 'a.
        unsafe { slot.live_at(self.head.max(self.oldest)) }
    }

    /// The live key-value of a slot, and whether it was found as the newest of its key.
    #[inline]
    pub(crate) fn visible(self, slot: SlotRef<'a>) -> Option<VisibleVersion<'a>> {
        // SAFETY: every event from `oldest` on, and so every version shown at that head or above, is held for 'a.
        unsafe { slot.visible_at(self.head.max(self.oldest)) }
    }

    /// The version that a slot shows at the later of this head and the window's oldest, also if it is a tombstone.
    #[inline]
    pub(crate) fn at(self, slot: SlotRef<'a>, head: u64) -> Option<KeyValueRef<'a>> {
        // SAFETY: every event from `oldest` on, and so every version shown at that head or above, is held for 'a.
        unsafe { slot.at(head.max(self.oldest)) }
    }

    /// The live key-value that was newest below `head`, which may lie below the window: `None` where it can no longer
    /// be reached.
    pub(crate) fn delivered_before(self, slot: SlotRef<'a>, head: u64) -> Option<KeyValueRef<'a>> {
        let version = self.at(slot, head)?;
        (version.seq() < head && !version.is_tombstone()).then_some(version)
    }
}
