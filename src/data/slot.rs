//! A slot: the place of one key in the store.

use super::key_value::{KeyValue, Version, VersionPtr};
use crate::reclaim;
use crate::sync::{Acquire, AtomicPtr, Relaxed, Release, ord};
use std::ptr::NonNull;

/// The bytes of a key, shared by its slot and by who remembers the key.
pub(crate) type Key = std::sync::Arc<[u8]>;

/// The place of one key.
struct Slot {
    newest: AtomicPtr<Version>,
    /// Counted: the shown-sets of subscriptions share it.
    key: Key,
    #[cfg(loom)]
    track: reclaim::Track,
}

/// A pointer to a slot. Slots are owned by the index as a whole: a forgotten one goes with the
/// segment that was newest when the index without it was published, the rest with the cache.
/// Any reader that can still find it in a root holds a pin, or a token of that segment or before.
#[derive(Clone, Copy)]
pub(crate) struct SlotPtr(NonNull<Slot>);

// SAFETY: the key is immutable, `newest` atomic.
unsafe impl Send for SlotPtr {}

// SAFETY: as above.
unsafe impl Sync for SlotPtr {}

impl SlotPtr {
    /// A slot that owns one count of `newest`.
    pub(crate) fn new(newest: KeyValue) -> SlotPtr {
        let key = newest.key().into();
        let slot = Slot {
            newest: AtomicPtr::new(newest.into_pointer().0.cast_mut()),
            key,
            #[cfg(loom)]
            track: reclaim::Track::new(),
        };
        SlotPtr(NonNull::from(Box::leak(Box::new(slot))))
    }

    fn slot(&self) -> &Slot {
        // SAFETY: see the type: whoever found it keeps it alive.
        let slot = unsafe { self.0.as_ref() };
        #[cfg(loom)]
        slot.track.read();
        slot
    }

    pub(crate) fn key(&self) -> &[u8] {
        &self.slot().key
    }

    /// A count on the key, for who remembers it.
    pub(crate) fn shared_key(&self) -> Key {
        self.slot().key.clone()
    }

    /// Whether both are the same slot.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn is(self, other: SlotPtr) -> bool {
        self.0 == other.0
    }

    /// Acquire: partner of [`SlotPtr::set_newest`].
    #[inline]
    pub(crate) fn newest(&self) -> VersionPtr {
        VersionPtr(self.slot().newest.load(ord!(NewestLoad, Acquire)))
    }

    /// Publishes a version and hands the count of the one before to the caller (who moves it into
    /// the replacing event). Only the writer calls it.
    pub(crate) fn set_newest(&self, newest: KeyValue) -> VersionPtr {
        let before = VersionPtr(self.slot().newest.load(Relaxed));
        // Release: partner of `newest`.
        self.slot().newest.store(newest.into_pointer().0.cast_mut(), ord!(Newest, Release));
        before
    }

    /// The version visible below `head`: `None` where the key did not exist yet; a tombstone is
    /// returned as it is.
    #[inline]
    pub(crate) fn at(&self, head: u64) -> VersionPtr {
        let mut version = self.newest();
        while let Some(kv) = version.get() {
            if kv.seq() < head {
                return version;
            }
            version = kv.older();
        }
        VersionPtr::NULL
    }

    /// Bytes of the slot itself.
    pub(crate) fn bytes(&self) -> usize {
        // With the two counts of the key.
        size_of::<Slot>() + 16 + self.key().len()
    }

    /// Frees the slot and gives its count back. Only on the reclaimer, once nobody can find it.
    pub(crate) fn destroy(self) {
        debug_assert!(reclaim::on_reclaimer(), "I6: slots are freed by the reclaimer");
        drop(self.newest().take());
        #[cfg(loom)]
        self.slot().track.end();
        let free = move || {
            let SlotPtr(place) = self;
            // SAFETY: made by `new`; nobody can find it any more (see the type).
            drop(unsafe { Box::from_raw(place.as_ptr()) });
        };
        #[cfg(loom)]
        reclaim::bury(Box::new(free));
        #[cfg(not(loom))]
        free();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::data::key_value::Numbers;

    fn kv(seq: u64, value: Option<&str>, older: VersionPtr) -> KeyValue {
        let numbers = Numbers { create_revision: 1, mod_revision: seq, version: 1, lease: 0 };
        KeyValue::new(b"/k", value.map(str::as_bytes), numbers, seq, older)
    }

    #[test]
    fn a_slot_is_read_at_any_head() {
        let first = kv(10, Some("a"), VersionPtr::NULL);
        let second = kv(20, Some("b"), first.pointer());
        let slot = SlotPtr::new(first.clone());
        assert!(slot.at(10).is_null());
        let before = slot.set_newest(second);
        assert_eq!(slot.at(20).get().unwrap().value(), Some(&b"a"[..]));
        assert_eq!(slot.at(21).get().unwrap().value(), Some(&b"b"[..]));
        assert!(slot.at(5).is_null());
        drop(before.take());
        reclaim::free(0, Box::new(move || slot.destroy()));
        drop(first);
        assert!(reclaim::quiesce(std::time::Duration::from_secs(30)));
    }
}
