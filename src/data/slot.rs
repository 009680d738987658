//! Slots: the places of keys in the store, and the owners of the counts on versions.
//!
//! A slot has the newest version of its key, and with it the key. Counts (I9): a version is born with two
//! ([`Fresh`]), its event's `cur` (released with the event's segment) and its slot's `newest`. On
//! overwrite the slot's count *moves* into the replacing event (its `prev`), where it is found through
//! `cur.older` and goes with that event's segment. Both moves are one step that cannot fail
//! ([`Fresh::replace`], then `SegmentWriter::append` of `log::segment`): whatever panics before or after it, each
//! count has one owner. A version of the listing has no event and is born with the slot's count alone.
//!
//! `older` is followed only from a version with `seq >= h` of a reader at h: then its event is in the
//! window or pinned, and holds the predecessor.
//!
//! `docs/internals/reading.md` has an example in numbers, and what a panic finds.
//!
//! Three types stand for a slot: an [`OwnedSlot`] has the right to free it, a [`SlotPtr`] is its
//! address, a [`SlotRef`] is bound to what keeps it. A [`SlotCount`] keeps the block of a slot that may be nobody's any
//! more: then its key is all that is left of it ([`SlotCount::leave_key`]).
//!
//! | step | partner | order |
//! | --- | --- | --- |
//! | `Fresh::replace` stores `mark`, then `newest` | `SlotRef::newest` after head, then `mark` | Release / Acquire |
//! | `leave_key` writes the key, stores `mark`, then `newest` | `SlotCount::key`: `newest`, then `mark` and the key | Release / Acquire |
//!
//! A reader at head h loads h, then `newest`, then `mark`. The mark is of that version or of a later one. If it lies
//! below h, it is of that very version: all versions below h were stored before h, so `newest` is none before
//! it. Then the reader has its answer without a look at the version, which is a line of memory that it may never need.

mod lone_key;

use super::key_value::{KeyValue, KeyValueRef, Version, VersionPtr};
use crate::heap::{self, BlockCount, FreeBatch, Memory, System};
use crate::reclaim;
use crate::sync::{Acquire, AtomicPtr, AtomicU64, Relaxed, Release, ord};
use lone_key::LoneKey;
use std::marker::PhantomData;
use std::ptr::NonNull;

/// The place of one key. The key itself stands in each of its versions. Counts on its block are the slot's own, and those
/// of [`SlotCount`]s, which use its key after the slot is gone.
#[repr(C)]
pub(crate) struct Slot {
    /// The newest version; where only [`SlotCount`]s find the slot any more, a [`LoneKey`].
    newest: AtomicPtr<Version>,
    /// The word of the newest version that a reader loads first: see [`mark_of`]. With a [`LoneKey`], its length and
    /// [`UNCOUNTED`].
    mark: AtomicU64,
    #[cfg(loom)]
    track: reclaim::Track,
}

const _: () = assert!(align_of::<Slot>() <= heap::ALIGN);

/// In the mark of a lone key: no statistic of its cache counts its bytes.
const UNCOUNTED: u64 = 1 << 63;

/// The owner of a slot's key.
enum SlotKey {
    /// The bytes, and how many.
    Lone(LoneKey, usize),
    /// The newest version.
    Version(VersionPtr),
}

/// A count on a slot, which keeps its key.
pub(crate) struct SlotCount(NonNull<Slot>);

// SAFETY: every field of a slot is atomic, and so is its count.
unsafe impl Send for SlotCount {}
// SAFETY: threads that share it reach only atomics, the slot's fields and its count.
unsafe impl Sync for SlotCount {}

impl SlotCount {
    fn count(&self) -> &BlockCount {
        // SAFETY: this has a count.
        unsafe { BlockCount::of(self.0) }
    }

    /// Its address.
    pub(crate) fn pointer(&self) -> SlotPtr {
        SlotPtr(self.0)
    }

    fn slot(&self) -> &Slot {
        // SAFETY: this has a count.
        unsafe { self.0.as_ref() }
    }

    /// The owner of the key. Each question is answered from one load: between two loads the slot may lose the version that
    /// the first one showed.
    #[inline]
    fn key_owner(&self) -> SlotKey {
        // Acquire: partner of the store in `leave_key`, and of `Fresh::replace`.
        let newest = self.slot().newest.load(ord!(NewestLoad, Acquire));
        match LoneKey::from_newest(newest) {
            // Relaxed: after the load of `newest`; nobody stores it any more.
            Some(key) => SlotKey::Lone(key, (self.slot().mark.load(Relaxed) & !UNCOUNTED) as usize),
            None => SlotKey::Version(VersionPtr(newest)),
        }
    }

    /// The lone key that it has, and its length.
    #[inline]
    fn lone_key(&self) -> Option<(LoneKey, usize)> {
        match self.key_owner() {
            SlotKey::Lone(key, length) => Some((key, length)),
            SlotKey::Version(_) => None,
        }
    }

    /// The key.
    ///
    /// # Safety
    ///
    /// The thread is pinned for as long: a version that is replaced meanwhile is not freed before.
    #[inline]
    pub(crate) unsafe fn key(&self) -> &[u8] {
        // SAFETY: I9: this count keeps the slot, and the pin keeps whatever holds the slot's key now (`# Safety`).
        unsafe {
            match self.key_owner() {
                SlotKey::Lone(key, length) => std::slice::from_raw_parts(key.0, length),
                SlotKey::Version(version) => version.get_some().key_within(),
            }
        }
    }

    /// Asks the processor for the key, for who compares it soon.
    #[inline]
    pub(crate) fn prefetch_key(&self) {
        match self.key_owner() {
            SlotKey::Lone(key, _) => heap::prefetch(key.0),
            SlotKey::Version(version) => version.prefetch_key(),
        }
    }

    /// Bytes of the slot and its key, where no statistic of its cache counts them.
    pub(crate) fn uncounted_bytes(&self) -> usize {
        match self.lone_key() {
            Some((_, length)) if self.slot().mark.load(Relaxed) & UNCOUNTED != 0 => lone_bytes(length),
            _ => 0,
        }
    }

    /// Leaves the key of the slot and nothing of the version that it showed last. From then on its bytes are part of
    /// [`heap::HeapBytes::outliving`].
    ///
    /// # Safety
    ///
    /// Only those who have a count find the slot any more, and they read it under a pin. Once.
    unsafe fn leave_key(&self) {
        let slot = self.slot();
        // Relaxed: nobody stores it but this.
        let version = VersionPtr(slot.newest.load(Relaxed));
        // SAFETY: I9: the slot has its count until the job below.
        let key = unsafe { version.get_some() }.key_within();
        slot.mark.store(key.len() as u64, Relaxed);
        // Release: partner of the load in `lone_key`.
        slot.newest.store(LoneKey::new(key).into_newest(), Release);
        // SAFETY: this has a count.
        unsafe { heap::outlives(self.0, lone_bytes(key.len()) as i64) };
        // SAFETY: I9: the slot's count, taken back once: the slot does not show it any more.
        let release = move || drop(unsafe { version.take() });
        // Readers that loaded it are pinned.
        reclaim::retire(KeyValue::tombstone_bytes(key), Box::new(release), &mut System);
    }
}

/// Bytes of a slot with a lone key.
fn lone_bytes(length: usize) -> usize {
    heap::footprint(size_of::<Slot>()) + length
}

impl Clone for SlotCount {
    fn clone(&self) -> SlotCount {
        self.count().add();
        SlotCount(self.0)
    }
}

impl Drop for SlotCount {
    fn drop(&mut self) {
        if !self.count().sub() {
            return;
        }
        let slot = self.slot();
        if let Some((key, length)) = self.lone_key() {
            if slot.mark.load(Relaxed) & UNCOUNTED == 0 {
                // SAFETY: the block is freed below.
                unsafe { heap::outlives(self.0, -(lone_bytes(length) as i64)) };
            }
            // SAFETY: that was the last count: nobody else has it.
            unsafe { key.free(length) };
        } else {
            // SAFETY: I9: the slot's own count, released once, with the slot.
            drop(unsafe { VersionPtr(slot.newest.load(Acquire)).take() });
        }
        #[cfg(loom)]
        slot.track.end();
        let place = self.pointer();
        let free = move || {
            let SlotPtr(place) = place;
            // SAFETY: the last count is gone, so nobody has the block.
            unsafe {
                place.drop_in_place();
                heap::free(place.cast());
            }
        };
        #[cfg(loom)]
        reclaim::bury(Box::new(free));
        #[cfg(not(loom))]
        free();
    }
}

/// A slot of its own, for a key that has none.
impl From<&[u8]> for SlotCount {
    fn from(key: &[u8]) -> SlotCount {
        let place = System.allocate(size_of::<Slot>()).cast::<Slot>();
        let slot = Slot {
            newest: AtomicPtr::new(LoneKey::new(key).into_newest()),
            mark: AtomicU64::new(key.len() as u64 | UNCOUNTED),
            #[cfg(loom)]
            track: reclaim::Track::new(),
        };
        // SAFETY: a block of our own, with room for it.
        unsafe { place.write(slot) };
        SlotCount(place)
    }
}

/// The sequence number of a version, and whether it is a tombstone.
fn mark_of(version: &KeyValue) -> u64 {
    version.seq() << 1 | u64::from(version.is_tombstone())
}

/// A slot, owned: by the writer's table, then by the segment that was newest when the index without it
/// was published (its key was purged), or by the table to the end of the cache.
///
/// Dropping one leaks it: only [`OwnedSlot::destroy`] frees.
pub(crate) struct OwnedSlot(NonNull<Slot>);

// SAFETY: every field of a slot is atomic, so it may be freed by another thread than the one that made it.
unsafe impl Send for OwnedSlot {}
// SAFETY: threads that share it reach only the slot's atomics.
unsafe impl Sync for OwnedSlot {}

impl OwnedSlot {
    /// A slot that owns one count of `newest`.
    pub(crate) fn new(newest: KeyValue, memory: &mut impl Memory) -> OwnedSlot {
        let place = memory.allocate(size_of::<Slot>()).cast::<Slot>();
        let mark = mark_of(&newest);
        let slot = Slot {
            newest: AtomicPtr::new(newest.into_pointer().0.cast_mut()),
            mark: AtomicU64::new(mark),
            #[cfg(loom)]
            track: reclaim::Track::new(),
        };
        // SAFETY: a block of our own, with room for it.
        unsafe { place.write(slot) };
        OwnedSlot(place)
    }

    /// Its address, for the index.
    pub(crate) fn pointer(&self) -> SlotPtr {
        SlotPtr(self.0)
    }

    /// Turns the slot into one address, for the table that owns it.
    pub(crate) fn into_address(self) -> *mut Slot {
        self.0.as_ptr()
    }

    /// Takes it back.
    ///
    /// # Safety
    ///
    /// The address is from [`OwnedSlot::into_address`]; of all that are made of it one is used as the owner.
    #[inline]
    pub(crate) unsafe fn from_address(address: *mut Slot) -> OwnedSlot {
        // SAFETY: `into_address` returned the address of a slot, so it is not null (`# Safety`).
        OwnedSlot(unsafe { NonNull::new_unchecked(address) })
    }

    #[inline]
    pub(crate) fn get(&self) -> SlotRef<'_> {
        // SAFETY: owned, so alive while it is borrowed; what `newest` shows is replaced only by the
        // writer, whose event then keeps it (I9).
        unsafe { self.pointer().get() }
    }

    /// Frees the slot and gives its count back. Only on the reclaimer.
    ///
    /// # Safety
    ///
    /// Nobody can find it any more: every root, snapshot and table that had its address is gone, or is
    /// not read again, and so is every reader that was pinned while one of them was published.
    pub(crate) unsafe fn destroy(self) {
        debug_assert!(reclaim::on_reclaimer(), "I6: slots are freed by the reclaimer");
        // The count of the slot itself, which no reader can find any more (`# Safety`).
        let own = SlotCount(self.0);
        if !own.count().is_one() {
            // SAFETY: readers with a count remain, and need the slot's key alone.
            unsafe { own.leave_key() };
        }
    }
}

/// The address of a slot.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct SlotPtr(NonNull<Slot>);

// SAFETY: safe code cannot follow the address; `get` asks its caller for a slot that is alive.
unsafe impl Send for SlotPtr {}
// SAFETY: sharing it gives copies of the address, which safe code cannot follow.
unsafe impl Sync for SlotPtr {}

/// Blocks of a heap lie a multiple of this apart.
const STEP: isize = heap::ALIGN as isize;

impl SlotPtr {
    pub(crate) fn as_ptr(self) -> *mut Slot {
        self.0.as_ptr()
    }

    /// Asks the processor for it, for who looks at it soon.
    #[inline]
    pub(crate) fn prefetch(self) {
        heap::prefetch(self.0.as_ptr().cast());
    }

    /// How far from here a version lies, in steps of [`STEP`]; 0: too far for this.
    #[inline]
    pub(crate) fn distance_to(self, version: VersionPtr) -> u32 {
        let bytes = version.0.addr().wrapping_sub(self.0.as_ptr().addr()) as isize;
        i32::try_from(bytes / STEP).map_or(0, |steps| steps as u32)
    }

    /// The address at that distance from a slot: to be prefetched, and not to be followed.
    #[inline]
    pub(crate) fn at_distance(slot: *mut Slot, distance: u32) -> VersionPtr {
        VersionPtr(slot.wrapping_byte_offset(distance as i32 as isize * STEP).cast_const().cast())
    }

    /// Borrows the slot.
    ///
    /// # Safety
    ///
    /// For 'a neither the slot nor its newest version is freed. A caller may promise this that found the slot in a root
    /// under a pin taken before the root was loaded, in the index of a snapshot, or in the writer's tables while the
    /// writer is borrowed.
    #[inline]
    pub(crate) unsafe fn get<'a>(self) -> SlotRef<'a> {
        SlotRef(self.0, PhantomData)
    }
}

/// A slot, kept alive for 'a together with its newest version: see [`SlotPtr::get`].
#[derive(Clone, Copy)]
pub(crate) struct SlotRef<'a>(NonNull<Slot>, PhantomData<&'a Slot>);

impl<'a> SlotRef<'a> {
    #[inline]
    fn slot(self) -> &'a Slot {
        // SAFETY: alive for 'a: see `SlotPtr::get`.
        let slot = unsafe { self.0.as_ref() };
        #[cfg(loom)]
        slot.track.read();
        slot
    }

    /// The key, which every version of it has.
    #[inline]
    pub(crate) fn key(self) -> &'a [u8] {
        self.newest().key_within()
    }

    /// Asks the processor for the key, for who compares it soon.
    #[inline]
    pub(crate) fn prefetch_key(self) {
        self.newest().pointer().prefetch_key();
    }

    /// A count, for the delivered keys of a subscription.
    pub(crate) fn counted(self) -> SlotCount {
        // SAFETY: alive for 'a, so its count is held while another one is added.
        SlotCount::clone(&std::mem::ManuallyDrop::new(SlotCount(self.0)))
    }

    /// Its address.
    pub(crate) fn pointer(self) -> SlotPtr {
        SlotPtr(self.0)
    }

    /// The newest version. Acquire: partner of [`Fresh::replace`].
    #[inline]
    pub(crate) fn newest(self) -> KeyValueRef<'a> {
        let newest = VersionPtr(self.slot().newest.load(ord!(NewestLoad, Acquire)));
        // SAFETY: each version that a slot shows during 'a lives for 'a: see `SlotPtr::get`. A slot is made with a version.
        unsafe { newest.get_some() }
    }

    /// The version visible below `head`: `None` where the key did not exist yet; a tombstone is
    /// returned as it is.
    ///
    /// # Safety
    ///
    /// For 'a every event from `head` on is held: it is in the window of a reader that loaded
    /// `oldest_seq` after the root and under its pin, or a token keeps it.
    #[inline]
    pub(crate) unsafe fn at(self, head: u64) -> Option<KeyValueRef<'a>> {
        let mut version = self.newest();
        while version.seq() >= head {
            // SAFETY: I9: the event that wrote this version lies at `head` or above, is held (`# Safety`), and owns the
            // version before.
            version = unsafe { version.older().get() }?;
        }
        Some(version)
    }

    /// The live key-value below `head`, `None` also for a tombstone. Looks at no version where the newest lies
    /// below the head.
    ///
    /// # Safety
    ///
    /// As [`SlotRef::at`].
    #[inline]
    pub(crate) unsafe fn live_at(self, head: u64) -> Option<KeyValueRef<'a>> {
        // SAFETY: I9: every event from `head` on is held for 'a (`# Safety` of `at`).
        unsafe { self.visible_at(head) }.map(|visible| visible.kv)
    }

    /// The version below `head`, and whether it was found as the newest.
    ///
    /// # Safety
    ///
    /// The contract of [`SlotRef::at`].
    #[inline]
    pub(crate) unsafe fn visible_at(self, head: u64) -> Option<VisibleVersion<'a>> {
        let kv = self.newest();
        // Relaxed: after the load of `newest`, see the module.
        let mark = self.slot().mark.load(Relaxed);
        if mark >> 1 < head {
            return (mark & 1 == 0).then_some(VisibleVersion { kv, newest: true });
        }
        // SAFETY: I9: every event from `head` on is held for 'a (`# Safety` of `at`).
        unsafe { self.older_at(head) }
    }

    /// The version below `head`, if the newest may lie above. Out of line: a list needs it only for keys that were written
    /// while it reads.
    ///
    /// # Safety
    ///
    /// The contract of [`SlotRef::at`].
    #[cold]
    #[inline(never)]
    unsafe fn older_at(self, head: u64) -> Option<VisibleVersion<'a>> {
        // SAFETY: I9: every event from `head` on is held for 'a (`# Safety` of `at`).
        let version = unsafe { self.at(head) }.filter(|version| !version.is_tombstone());
        version.map(|kv| VisibleVersion { kv, newest: false })
    }

    /// Bytes that stay because its key was deleted, until the delete has left the log: the tombstone, the
    /// slot, and its places in the tree, in the table and in the queue of tombstones.
    pub(crate) fn deleted_bytes(self) -> u64 {
        const PLACES: usize = 24 + 32 + 16;
        (KeyValue::tombstone_bytes(self.key()) + self.bytes() + PLACES) as u64
    }

    /// Bytes that are left of them when its key was purged.
    pub(crate) fn removed_bytes(self) -> u64 {
        (self.bytes() + self.newest().bytes()) as u64
    }

    /// Bytes of the slot itself.
    pub(crate) fn bytes(self) -> usize {
        heap::footprint(size_of::<Slot>())
    }
}

/// The version that a slot shows at a head.
#[derive(Clone, Copy)]
pub(crate) struct VisibleVersion<'a> {
    pub(crate) kv: KeyValueRef<'a>,
    /// Whether it is known to have been the newest version of its key when the slot was read.
    pub(crate) newest: bool,
}

/// A version that nobody knows yet, with the two counts that it is published with.
pub(crate) struct Fresh {
    event: KeyValue,
    slot: KeyValue,
}

impl Fresh {
    /// Two counts on one version: the first for its event, the second for its slot.
    pub(crate) fn new(version: KeyValue) -> Fresh {
        let (event, slot) = version.into_two();
        Fresh { event, slot }
    }

    pub(crate) fn kv(&self) -> &KeyValue {
        &self.event
    }

    /// Publishes the version in the slot of its key. The count of the version before moves to the event.
    ///
    /// # Safety
    ///
    /// The slot is alive, and only the caller stores into it meanwhile (I1).
    #[inline(always)]
    pub(crate) unsafe fn replace(self, slot: SlotPtr) -> EventCounts {
        // SAFETY: the slot is alive (`# Safety`).
        let Slot { newest, mark, .. } = unsafe { slot.get().slot() };
        // Relaxed: only the writer stores here. The version was made as the successor of this one, and
        // what an event owns beside its version is found through `older`.
        assert!(newest.load(Relaxed).cast_const() == self.slot.older().0, "I9: a version replaces its predecessor");
        // SAFETY: alive: the slot still has its count.
        let shown = unsafe { self.slot.older().get() }.filter(|before| !before.is_tombstone());
        let prev = shown.map_or(VersionPtr::NULL, |before| before.pointer());
        // Relaxed: `newest` publishes it.
        mark.store(mark_of(&self.slot), Relaxed);
        // Release: partner of `SlotRef::newest`. The count that the slot had belongs to the event now.
        newest.store(self.slot.into_pointer().0.cast_mut(), ord!(Newest, Release));
        EventCounts { version: self.event.into_pointer(), prev }
    }

    /// The slot of a key that has none yet.
    pub(crate) fn first(self, memory: &mut impl Memory) -> (OwnedSlot, EventCounts) {
        assert!(self.slot.older().is_null(), "I9: the first version of a slot replaces nothing");
        (OwnedSlot::new(self.slot, memory), EventCounts { version: self.event.into_pointer(), prev: VersionPtr::NULL })
    }
}

/// The counts that an event owns: one on its version, and that of the version before, found through `older`.
///
/// Only the segment that it moves into gives them back: dropped anywhere else they leak, which no reader can notice.
#[must_use]
pub(crate) struct EventCounts {
    version: VersionPtr,
    /// The version before, where the event shows it: not a tombstone.
    prev: VersionPtr,
}

impl EventCounts {
    /// Moves them into a slot of the log, as its `kv` and `prev`; [`EventCounts::from_slot`] takes them
    /// from there.
    pub(crate) fn into_slot(self) -> (VersionPtr, VersionPtr) {
        (self.version, self.prev)
    }

    /// Takes back what an event in the log owned.
    ///
    /// # Safety
    ///
    /// The `kv` and `prev` of a slot that has them, once; nobody reads the event any more.
    pub(crate) unsafe fn from_slot(version: VersionPtr, prev: VersionPtr) -> EventCounts {
        EventCounts { version, prev }
    }

    /// Asks the processor for what the release of an event's counts touches: the headers of the event's version, and of
    /// the one before, which goes.
    #[inline]
    pub(crate) fn prefetch(version: VersionPtr, prev: VersionPtr) {
        version.prefetch_header();
        prev.prefetch_header();
    }

    /// Releases both counts; the version before goes into the batch. Only on the reclaimer.
    ///
    /// # Safety
    ///
    /// No reader that may still follow `older` to the version before, or that got either version by
    /// this event, is left (I9).
    pub(crate) unsafe fn release(self, batch: &mut FreeBatch) {
        // SAFETY: the counts that `replace` or `first` moved here; nobody reads them any more.
        unsafe {
            if let Some(version) = self.version.take() {
                // If the event shows the version before, `prev` is it, and the version itself need not be read.
                let older = if self.prev.is_null() { version.older() } else { self.prev };
                if let Some(older) = older.take() {
                    older.drop_last(batch);
                }
                drop(version);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
