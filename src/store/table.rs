//! A hash from keys to entries that one thread changes and any number read, without a lock. It grows and shrinks by
//! steps: no operation moves more than a few hundred entries, however many there are.
//!
//! The table is linear hashing over pages. A page is a small open-addressed table (linear probing, at most 7/8
//! full) that holds the address of each entry beside 32 bits of the hash of its key and a hint, 16 bytes: finding looks
//! at one entry, moving looks at none. The low of those bits choose the page, the high ones the cell in it. There is one
//! page for each [`AVERAGE`] entries: when one is due, the entries of one page are divided between it and
//! the new one at the end; pages are divided in their order, so that no directory is needed, and those
//! that wait for their turn hold up to twice as much as those that had it. When entries go, the last
//! page is joined with the one that it came from.
//!
//! An example in numbers. With 5 pages, `level` is 4: pages 0 and 4 differ in bit 2 of the
//! hash, pages 1 to 3 by bits 0 and 1 alone. A hash that ends in 110 asks for page 6, which is not there
//! yet, and lies in page 6 - 4 = 2. The next page, number 5, takes from page 1 what ends in 101.
//!
//! The writer has two: its hash of slots, which readers search too ([`TablePages::find`]), and its table of buckets,
//! which is its own.
//!
//! The hint tells where the memory lies that a search reads after the entry itself ([`TableEntry::hint`]), so that it asks
//! the processor for both at once: keys are scattered, and with many entries neither is in a cache. The writer keeps
//! hints up to date in large tables; hints are only prefetched, so an old one costs a line of memory and nothing else.
//!
//! A cell is written once but for its hint: it gets an entry, and loses it for good. What has to move goes into a new
//! page, which takes the place of the old one, so a reader that has loaded a page finds in it every entry that was there
//! when it loaded it. Between two pages it could miss one. So a search that finds nothing looks whether pages were divided
//! or joined meanwhile, and if so begins again:
//!
//! | step | partner | order |
//! | --- | --- | --- |
//! | tag, then entry of a cell | entry, then tag | Release / Acquire |
//! | a new page, then its place | the place, then the page | Release / Acquire |
//! | divided: the right page, then `state`, then the left page without what went | `state`, a page, and again `state` where that had nothing | Release / Acquire |
//! | joined: the joined page, then `state`, then an empty place instead of the last page | the same; an empty place begins again, too | Release / Acquire |
//!
//! Replaced pages are retired. Entries are their owner's: [`Table::remove`] gives it back, and who takes it frees it
//! no earlier than a page that was retired then.

mod writer;

#[cfg(all(test, not(loom)))]
pub(crate) use writer::HINTED;
pub(crate) use writer::{FetchedCell, Place, Table};

use super::hash::KeyHash;
use crate::data::slot::{OwnedSlot, SlotPtr};
use crate::heap::{self, ALIGN, HEADER, Memory, WIDE, footprint};
use crate::reclaim::{self, Guard, Job};
#[cfg(loom)]
use crate::reclaim::{boxed, read, unboxed};
#[cfg(loom)]
use crate::sync::weak;
use crate::sync::{Acquire, AtomicPtr, AtomicU64, Relaxed, Release, ord};
use std::hash::BuildHasher;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::sync::{Arc, OnceLock};

/// Entries a page, on average, at which the table gets another page. A page that is due to be divided holds about twice
/// as many, and 448 entries fill a page of 512 cells.
const AVERAGE: usize = if cfg!(loom) { 2 } else { 200 };
/// Cells of the smallest page, and of the greatest: both are powers of two.
const SMALLEST: usize = if cfg!(loom) { 4 } else { 8 };
const GREATEST: usize = SMALLEST << 15;
/// Places of the first chunk of pages; each one after it has twice as many.
const FIRST_CHUNK: usize = if cfg!(loom) { 2 } else { 16 };
const CHUNKS: usize = 28;

/// Keys whose cells are prefetched together.
pub(crate) const FETCHED: usize = 16;

/// An entry of a table: an owner that is one address.
pub(crate) trait TableEntry: Sized + Send + Sync + 'static {
    type Target;
    /// Gives the ownership to the table.
    fn into_address(self) -> *mut Self::Target;
    /// Takes the owner back from its address.
    ///
    /// # Safety
    ///
    /// The address is from [`TableEntry::into_address`], and is taken back once. A caller that does not drop the result
    /// may make it any number of times before that.
    unsafe fn from_address(address: *mut Self::Target) -> Self;
    fn key(&self) -> &[u8];
    /// The hash of a key.
    #[inline]
    fn hash_of(hash: &KeyHash, key: &[u8]) -> u64 {
        hash.hash_one(key)
    }
    /// The distance from the entry to the memory that a search reads after it.
    fn hint(&self) -> u32 {
        0
    }
    /// Asks the processor for the entry, its key, and what the hint of it leads to, where that has a value behind a key of
    /// so many bytes. Neither address need be one of anything.
    fn prefetch(_address: *mut Self::Target, _hint: u32, _key_length: usize) {}
}

impl TableEntry for OwnedSlot {
    type Target = crate::data::slot::Slot;
    fn into_address(self) -> *mut Self::Target {
        OwnedSlot::into_address(self)
    }
    /// # Safety
    ///
    /// The contract of [`TableEntry::from_address`].
    unsafe fn from_address(address: *mut Self::Target) -> OwnedSlot {
        // SAFETY: `into_address` returned the address, and one of its copies is the owner (`# Safety` of the trait).
        unsafe { OwnedSlot::from_address(address) }
    }
    fn key(&self) -> &[u8] {
        self.get().key()
    }
    #[inline]
    fn hint(&self) -> u32 {
        let slot = self.get();
        slot.pointer().distance_to(slot.newest().pointer())
    }
    #[inline]
    fn prefetch(address: *mut Self::Target, hint: u32, key_length: usize) {
        heap::prefetch(address.cast());
        SlotPtr::at_distance(address, hint).prefetch_value(key_length);
    }
}

/// An entry where it lies in the table.
pub(crate) struct EntryRef<'a, E>(ManuallyDrop<E>, PhantomData<&'a E>);

impl<E: TableEntry> EntryRef<'_, E> {
    /// # Safety
    ///
    /// For 'a the entry is not freed.
    unsafe fn new(address: *mut E::Target) -> Self {
        // SAFETY: the table has it, and the result is never dropped.
        EntryRef(ManuallyDrop::new(unsafe { E::from_address(address) }), PhantomData)
    }
}

impl<E> Deref for EntryRef<'_, E> {
    type Target = E;
    fn deref(&self) -> &E {
        &self.0
    }
}

/// The place of one entry: null until it has one, [`gone`] when it has lost it.
#[repr(align(16))]
struct TableCell<T> {
    /// High half: bits of the hash. Low half: the hint.
    tag: AtomicU64,
    entry: AtomicPtr<T>,
}

impl<T> TableCell<T> {
    #[inline]
    fn bits(&self) -> u32 {
        (self.tag.load(Relaxed) >> 32) as u32
    }
}

/// The bits of a hash that a cell keeps.
#[inline]
fn stored_bits(hash: u64) -> u32 {
    (hash >> 32) as u32
}

#[inline]
fn tag(bits: u32, hint: u32) -> u64 {
    u64::from(bits) << 32 | u64::from(hint)
}

/// The address in the cell of an entry that was taken out: no entry has it.
fn gone<T>() -> *mut T {
    ptr::without_provenance_mut(1)
}

fn is_entry<T>(address: *mut T) -> bool {
    address.addr() > 1
}

/// The cells of a page, and the block that they are in.
struct TablePage<T>(NonNull<[TableCell<T>]>);

/// Bytes of the block before the first cell, which is aligned then.
const BEFORE: usize = WIDE - ALIGN;

impl<T> TablePage<T> {
    /// With room for so many.
    fn new(entries: usize, memory: &mut impl Memory) -> TablePage<T> {
        const { assert!(align_of::<TableCell<T>>() == WIDE && WIDE == 16) };
        let cells = (entries * 8).div_ceil(7).next_power_of_two().clamp(SMALLEST, GREATEST);
        const { assert!(BEFORE + HEADER == WIDE && SMALLEST.is_power_of_two() && SMALLEST > 1) };
        let block = memory.allocate(BEFORE + cells * size_of::<TableCell<T>>());
        // SAFETY: the block has room for so many cells behind `BEFORE`, where it is aligned for them, for with its header
        // it is an odd multiple of WIDE: a power of two of them and one. All are written.
        unsafe {
            let first = block.add(BEFORE).cast::<TableCell<T>>();
            for at in 0..cells {
                first.add(at).write(TableCell { tag: AtomicU64::new(0), entry: AtomicPtr::new(ptr::null_mut()) });
            }
            TablePage(NonNull::slice_from_raw_parts(first, cells))
        }
    }

    /// Packs the page into one address: its cells are aligned to 16 bytes, and the low four bits have their number.
    fn into_word(self) -> *mut TableCell<T> {
        let size = (self.0.len() / SMALLEST).ilog2() as usize;
        let word = ManuallyDrop::new(self).0.cast::<TableCell<T>>().as_ptr().wrapping_byte_add(size);
        #[cfg(loom)]
        boxed(word as usize);
        word
    }

    /// The cells of a word that is not null.
    fn cells_of(word: *mut TableCell<T>) -> *mut [TableCell<T>] {
        let size = word.addr() & 15;
        ptr::slice_from_raw_parts_mut(word.wrapping_byte_sub(size), SMALLEST << size)
    }

    /// # Safety
    ///
    /// The word is from [`TablePage::into_word`], and is taken back once.
    unsafe fn from_word(word: *mut TableCell<T>) -> TablePage<T> {
        #[cfg(loom)]
        unboxed(word as usize);
        // SAFETY: `into_word` packed the address of cells that exist, so it is not null (`# Safety`).
        TablePage(unsafe { NonNull::new_unchecked(Self::cells_of(word)) })
    }

    fn bytes(cells: usize) -> usize {
        footprint(BEFORE + cells * size_of::<TableCell<T>>())
    }
}

impl<T> Deref for TablePage<T> {
    type Target = [TableCell<T>];
    fn deref(&self) -> &[TableCell<T>] {
        // SAFETY: written by `new`, and owned.
        unsafe { self.0.as_ref() }
    }
}

impl<T> Drop for TablePage<T> {
    fn drop(&mut self) {
        // SAFETY: the cells are owned, and the block that they are in begins `BEFORE` them.
        unsafe {
            self.0.drop_in_place();
            heap::free(self.0.cast::<u8>().sub(BEFORE));
        }
    }
}

/// The cell that a hash asks for first: by the high bits, for those of one page have low ones in common.
#[inline]
fn home(bits: u32, cells: usize) -> usize {
    bits as usize >> (u32::BITS - cells.trailing_zeros())
}

/// Puts an entry into a page in which there is room.
#[inline]
fn put<T>(cells: &[TableCell<T>], (bits, hint): (u32, u32), entry: *mut T) {
    let mut at = home(bits, cells.len());
    // Relaxed: only the writer stores here. A page is never full.
    while !cells[at].entry.load(Relaxed).is_null() {
        at = (at + 1) & (cells.len() - 1);
    }
    cells[at].tag.store(tag(bits, hint), Relaxed);
    // Release: partner of the load in `search`.
    cells[at].entry.store(entry, ord!(TableEntry, Release));
}

/// The page of a hash, of so many pages.
#[inline]
fn page_of(bits: u32, pages: usize) -> usize {
    let mask = pages.next_power_of_two() - 1;
    let page = bits as usize & mask;
    if page < pages { page } else { page & (mask >> 1) }
}

/// The page of a key in a table of `pages` pages, for the loom tests.
#[cfg(loom)]
pub(crate) fn page_of_key(key: &[u8], pages: usize) -> usize {
    page_of(stored_bits(KeyHash::default().hash_one(key)), pages)
}

/// The page that the last of so many was divided from, and the bit in which their hashes differ.
fn origin(last: usize) -> (usize, usize) {
    let level = 1 << last.ilog2();
    (last - level, level)
}

/// The places of pages: null, or [`TablePage::into_word`].
type Chunk<T> = Box<[AtomicPtr<TableCell<T>>]>;

/// The pages of a table: what its writer and its readers share.
pub(crate) struct TablePages<E: TableEntry> {
    /// Low half: the number of pages. High half: how often they were divided or joined.
    state: AtomicU64,
    /// Chunks never move. std's also under loom: `state`, or the place in it, is what publishes one.
    chunks: [OnceLock<Chunk<E::Target>>; CHUNKS],
    hash: KeyHash,
}

impl<E: TableEntry> TablePages<E> {
    fn new(hash: KeyHash) -> TablePages<E> {
        TablePages { state: AtomicU64::new(0), chunks: [const { OnceLock::new() }; CHUNKS], hash }
    }

    /// The place of a page. Its chunk is there.
    #[inline]
    fn place(&self, page: usize) -> &AtomicPtr<TableCell<E::Target>> {
        let chunk = (page / FIRST_CHUNK + 1).ilog2() as usize;
        let places = self.chunks[chunk].get().expect("made before its first page");
        &places[page - FIRST_CHUNK * ((1 << chunk) - 1)]
    }

    /// The place of a new page: its chunk is allocated with the chunk's first page.
    fn new_place(&self, page: usize) -> &AtomicPtr<TableCell<E::Target>> {
        let chunk = (page / FIRST_CHUNK + 1).ilog2() as usize;
        self.chunks[chunk].get_or_init(|| (0..FIRST_CHUNK << chunk).map(|_| AtomicPtr::default()).collect());
        self.place(page)
    }

    /// The cell of an entry of this hash in some cells, and what it holds. Asks for what lies behind it, with a key of so
    /// many bytes.
    ///
    /// # Safety
    ///
    /// Every entry that the cells show is alive.
    #[inline]
    unsafe fn search(
        cells: &[TableCell<E::Target>],
        (bits, key_length): (u32, usize),
        is: impl Fn(&E) -> bool,
    ) -> Option<(usize, *mut E::Target)> {
        let mut at = home(bits, cells.len());
        loop {
            let cell = &cells[at];
            // Acquire: partner of the stores in `put` and `Table::take`. A page is never full.
            let entry = cell.entry.load(ord!(TableEntryLoad, Acquire));
            if entry.is_null() {
                return None;
            }
            let tag = cell.tag.load(Relaxed);
            if (tag >> 32) as u32 == bits && is_entry(entry) {
                E::prefetch(entry, tag as u32, key_length);
                // SAFETY: every entry that the cells show is alive (`# Safety`).
                if is(&*unsafe { EntryRef::<E>::new(entry) }) {
                    return Some((at, entry));
                }
            }
            at = (at + 1) & (cells.len() - 1);
        }
    }

    /// The cells of the page of a hash, of so many pages; `None` where the page was joined with another one.
    ///
    /// # Safety
    ///
    /// A page that is replaced from now on is not freed during 'a.
    #[inline]
    unsafe fn page<'a>(&self, bits: u32, pages: usize) -> Option<&'a [TableCell<E::Target>]> {
        let word = self.place(page_of(bits, pages)).load(ord!(TablePageLoad, Acquire));
        if word.is_null() {
            return None;
        }
        #[cfg(loom)]
        read(word as usize);
        // SAFETY: I4: the page was published when it was loaded, and is not freed during 'a (`# Safety`).
        Some(unsafe { &*TablePage::cells_of(word) })
    }

    /// Prefetches what a search for each of these keys, at most [`FETCHED`], reads: the first cell of each, then the entries
    /// with what is behind them. The thread waits for memory twice, and not twice a key.
    ///
    /// # Safety
    ///
    /// A page or an entry that leaves the table from now on is not freed during this call.
    pub(crate) unsafe fn prefetch<'k>(&self, mut keys: impl Iterator<Item = &'k [u8]>) {
        // Acquire: partner of the stores in `Table::divide` and `Table::join`.
        let pages = self.state.load(Acquire) as u32 as usize;
        if pages == 0 {
            return;
        }
        let cells: [_; FETCHED] = std::array::from_fn(|_| {
            let key = keys.next()?;
            let bits = stored_bits(E::hash_of(&self.hash, key));
            // SAFETY: I4: no page is freed during this call (`# Safety`).
            let cells = unsafe { self.page(bits, pages) }?;
            heap::prefetch((&raw const cells[home(bits, cells.len())]).cast());
            Some((cells, (bits, key.len())))
        });
        for (cells, hashed) in cells.into_iter().flatten() {
            // SAFETY: I9: no entry is freed during this call (`# Safety`).
            unsafe { Self::search(cells, hashed, |_| true) };
        }
    }

    /// The entry of a key. `None`: the table had none at some moment of this call, or lost it before. O(1).
    ///
    /// # Safety
    ///
    /// What [`Table::remove`] and [`Table::sweep`] give back is freed only when every pin of that moment has ended.
    pub(crate) unsafe fn find<'g>(&self, key: &[u8], _pin: &'g Guard) -> Option<EntryRef<'g, E>> {
        let bits = stored_bits(E::hash_of(&self.hash, key));
        loop {
            // Acquire: partner of the stores in `Table::divide` and `Table::join`.
            let state = self.state.load(Acquire);
            let pages = state as u32 as usize;
            if pages == 0 {
                return None;
            }
            // None: the page was joined with another one after the state was loaded. Begin again.
            // SAFETY: I4: what takes the place of a page is published before the page is retired: not freed before this
            // pin ends.
            if let Some(cells) = unsafe { self.page(bits, pages) } {
                // SAFETY: I9: an entry that leaves the table is freed only after this pin ends (`# Safety`).
                if let Some((_, entry)) = unsafe { Self::search(cells, (bits, key.len()), |entry| entry.key() == key) }
                {
                    // SAFETY: I9: the entry was found under this pin, and is freed only after the pin ends.
                    return Some(unsafe { EntryRef::new(entry) });
                }
                // Acquire: as above. All stores before that of the page are seen with it.
                if self.state.load(Acquire) == state {
                    return None;
                }
            }
            #[cfg(loom)]
            if weak::is(weak::Site::LookOnce) {
                return None;
            }
        }
    }
}

impl<E: TableEntry> Drop for TablePages<E> {
    fn drop(&mut self) {
        for place in self.chunks.iter().filter_map(OnceLock::get).flatten() {
            let word = place.load(Relaxed);
            if !word.is_null() {
                // SAFETY: the last owner is here, nobody can load it any more.
                drop(unsafe { TablePage::from_word(word) });
            }
        }
    }
}
