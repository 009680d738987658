//! The state that only the writer touches. A [`crate::Writer`] takes it from the cache, and its drop puts it back.

use crate::data::slot::{OwnedSlot, SlotPtr, SlotRef};
use crate::heap::Heap;
use crate::log::buckets::Router;
use crate::log::epochs::Epochs;
use crate::log::writer::RingWriter;
use crate::position::Position;
use crate::reclaim::{self, Backpressure};
use crate::store::queue::Queue;
use crate::store::root::Root;
use crate::store::table::{Table, TableEntry};

/// Pages of the table that one job of the reclaimer frees: some 3,200 keys.
const PIECE: usize = 16;

/// The writer's private state; it outlives the handle.
pub(crate) struct Core {
    /// The memory of versions, slots and nodes of the index.
    pub(crate) heap: Heap,
    pub(crate) ring: RingWriter,
    pub(crate) slots: Table<OwnedSlot>,
    /// The writer's copy of the index, published when it has changed.
    pub(crate) index: Root,
    pub(crate) index_changed: bool,
    /// Whether the tables have changed since their gauges were stored.
    pub(crate) tables_changed: bool,
    /// The tombstones, in the order of their events.
    pub(crate) tombstones: Queue<(u64, SlotPtr)>,
    /// Slots that were removed, but are still in the published root.
    pub(crate) removed_slots: Vec<OwnedSlot>,
    pub(crate) position: Position,
    pub(crate) highest: u64,
    /// Whether anything was ever written: then `load` comes too late.
    pub(crate) written: bool,
    /// Whether there is a state to write to: that of a listing, or of an embedded cache. Readers may wait longer, until
    /// the cache is Ready.
    pub(crate) loaded: bool,
    pub(crate) poisoned: bool,
    /// The back-pressure of the reclaimer on a writer that replaces faster than the reclaimer frees.
    pub(crate) backpressure: Backpressure,
    pub(crate) router: Router,
    /// Encoded attributes of the version that is being made.
    pub(crate) attributes: Vec<u8>,
    /// Extractors that failed for the versions of the revision that is being prepared.
    pub(crate) extract_failures: u64,
}

impl Core {
    pub(crate) fn new(ring: RingWriter, router: Router) -> Core {
        let Epochs { first_epoch: epoch, listing: revision, .. } = *ring.epochs();
        Core {
            heap: Heap::new(|slab| reclaim::free(slab.bytes(), Box::new(move || drop(slab)))),
            ring,
            slots: Table::new(router.hash().clone()),
            index: Root::default(),
            index_changed: false,
            tables_changed: true,
            tombstones: Queue::default(),
            removed_slots: Vec::new(),
            position: Position { epoch, revision },
            highest: 0,
            written: false,
            loaded: false,
            poisoned: false,
            backpressure: Backpressure::default(),
            router,
            attributes: Vec::new(),
            extract_failures: 0,
        }
    }

    /// Frees every slot on the reclaimer, when the cache is gone, and then calls `then`. Each job frees a piece, after
    /// the jobs that were pushed before it, so no writer of another cache waits for all of it.
    pub(crate) fn destroy(mut self: Box<Self>, then: impl FnOnce() + Send + 'static) {
        self.index = Root::default();
        let mut slots: Vec<OwnedSlot> = self.removed_slots.drain(..).collect();
        let mut left = true;
        for _ in 0..PIECE {
            match self.slots.take_page() {
                Some(page) => slots.extend(page),
                None => left = false,
            }
        }
        // Removed slots are freed here too, as no segment owns them yet.
        for slot in slots {
            // SAFETY: I9: the cache and its root are dropped, so no reader can reach the slot: a snapshot or a
            // subscription would have kept the cache.
            unsafe { slot.destroy() };
        }
        if left {
            reclaim::free(0, Box::new(move || self.destroy(then)));
        } else {
            then();
        }
    }

    /// Bytes of the writer's own tables.
    pub(crate) fn table_bytes(&self) -> u64 {
        (self.slots.bytes() + self.tombstones.bytes() + self.router.bytes()) as u64
    }

    /// The hash of a key, in all tables of the cache.
    #[inline]
    pub(crate) fn hash_of(&self, key: &[u8]) -> u64 {
        OwnedSlot::hash_of(self.slots.hash(), key)
    }

    /// The slot of a key, by its hash.
    #[inline]
    pub(crate) fn slot_of(&self, hash: u64, key: &[u8]) -> Option<SlotRef<'_>> {
        let slot = self.slots.get_hashed((hash, key.len()), |slot| slot.get().key() == key)?.pointer();
        // SAFETY: I1: the table owns it, and the writer is borrowed.
        Some(unsafe { slot.get() })
    }
}
