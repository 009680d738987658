//! A hash from keys to entries that one thread changes and any number read, without a lock. It grows and shrinks by
//! steps: no operation moves more than a few hundred entries, however many there are.
//!
//! It is linear hashing over pages. A page is a small open-addressed table (linear probing, at most 7/8
//! full) that holds the address of each entry beside the hash of its key, 16 bytes: finding looks at one entry,
//! moving looks at none. The low bits of a hash choose the page, the high ones the cell in it. There is one
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
//! A cell is written once: it gets an entry, and loses it for good. What has to move goes into a new page, which takes
//! the place of the old one, so a reader that has loaded a page finds in it every entry that was there when it
//! loaded it. Between two pages it could miss one. So where it finds nothing, it looks whether pages were divided
//! or joined meanwhile, and if so begins again:
//!
//! | step | partner | order |
//! | --- | --- | --- |
//! | hash, then entry of a cell | entry, then hash | Release / Acquire |
//! | a new page, then its place | the place, then the page | Release / Acquire |
//! | divided: the right page, then `state`, then the left page without what went | `state`, a page, and again `state` where that had nothing | Release / Acquire |
//! | joined: the joined page, then `state`, then an empty place instead of the last page | the same; an empty place begins again, too | Release / Acquire |
//!
//! Replaced pages are retired. Entries are their owner's: [`Table::remove`] gives it back, and who takes it frees it
//! no earlier than a page that was retired then.

use crate::data::slot::OwnedSlot;
use crate::reclaim::{self, Guard};
#[cfg(loom)]
use crate::reclaim::{boxed, read, unboxed};
#[cfg(loom)]
use crate::sync::weak;
use crate::sync::{Acquire, AtomicPtr, AtomicU64, Relaxed, Release, ord};
use std::hash::{BuildHasher, Hasher};
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr;
use std::sync::{Arc, OnceLock};

/// Entries a page, on average, when another one comes. One that is due to be divided holds about twice
/// as many, and 448 entries fill a page of 512 cells.
const AVERAGE: usize = if cfg!(loom) { 2 } else { 200 };
/// Cells of the smallest page, and of the greatest: both are powers of two.
const SMALLEST: usize = if cfg!(loom) { 4 } else { 8 };
const GREATEST: usize = SMALLEST << 15;
/// Places of the first chunk of pages; each one after it has twice as many.
const FIRST_CHUNK: usize = if cfg!(loom) { 2 } else { 16 };
const CHUNKS: usize = 28;

/// What a table holds: an owner that is one address.
pub(crate) trait TableEntry: Sized + Send + Sync + 'static {
    type Target;
    /// Gives the ownership to the table.
    fn into_address(self) -> *mut Self::Target;
    /// Takes it back.
    ///
    /// # Safety
    ///
    /// The address is from [`TableEntry::into_address`], and is taken back once. Where the result is not dropped, it
    /// may be made any number of times before.
    unsafe fn from_address(address: *mut Self::Target) -> Self;
    fn key(&self) -> &[u8];
}

impl TableEntry for OwnedSlot {
    type Target = crate::data::slot::Slot;
    fn into_address(self) -> *mut Self::Target {
        OwnedSlot::into_address(self)
    }
    unsafe fn from_address(address: *mut Self::Target) -> OwnedSlot {
        // SAFETY: by the caller's promise.
        unsafe { OwnedSlot::from_address(address) }
    }
    // The version is looked at next, the slot's own copy of the key is not.
    fn key(&self) -> &[u8] {
        self.get().newest_key()
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
    hash: AtomicU64,
    entry: AtomicPtr<T>,
}

/// What stands in the cell of an entry that was taken out: no entry lies there.
fn gone<T>() -> *mut T {
    ptr::without_provenance_mut(1)
}

fn is_entry<T>(address: *mut T) -> bool {
    address.addr() > 1
}

/// The cells of a page.
struct TablePage<T>(Box<[TableCell<T>]>);

impl<T> TablePage<T> {
    /// With room for so many.
    fn new(entries: usize) -> TablePage<T> {
        let cells = (entries * 8).div_ceil(7).next_power_of_two().clamp(SMALLEST, GREATEST);
        let cell = || TableCell { hash: AtomicU64::new(0), entry: AtomicPtr::new(ptr::null_mut()) };
        TablePage((0..cells).map(|_| cell()).collect())
    }

    /// As one address: its cells are aligned to 16 bytes, and the low four bits say how many there are.
    fn into_word(self) -> *mut TableCell<T> {
        let size = (self.0.len() / SMALLEST).ilog2() as usize;
        let word = Box::into_raw(self.0).cast::<TableCell<T>>().wrapping_byte_add(size);
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
        // SAFETY: the box that it was made of, by the caller's promise.
        TablePage(unsafe { Box::from_raw(Self::cells_of(word)) })
    }

    fn bytes(cells: usize) -> usize {
        cells * size_of::<TableCell<T>>()
    }
}

/// The cell that a hash asks for first.
#[inline]
fn home(hash: u64, cells: usize) -> usize {
    (hash >> 32) as usize & (cells - 1)
}

/// Puts an entry into a page in which there is room.
#[inline]
fn put<T>(cells: &[TableCell<T>], hash: u64, entry: *mut T) {
    let mut at = home(hash, cells.len());
    // Relaxed: only the writer stores here. A page is never full.
    while !cells[at].entry.load(Relaxed).is_null() {
        at = (at + 1) & (cells.len() - 1);
    }
    cells[at].hash.store(hash, Relaxed);
    // Release: partner of the load in `search`.
    cells[at].entry.store(entry, ord!(TableEntry, Release));
}

/// The page of a hash, of so many pages.
#[inline]
fn page_of(hash: u64, pages: usize) -> usize {
    let mask = pages.next_power_of_two() - 1;
    let page = hash as usize & mask;
    if page < pages { page } else { page & (mask >> 1) }
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
    fn new() -> TablePages<E> {
        TablePages { state: AtomicU64::new(0), chunks: [const { OnceLock::new() }; CHUNKS], hash: KeyHash::default() }
    }

    /// The place of a page. Its chunk is there.
    #[inline]
    fn place(&self, page: usize) -> &AtomicPtr<TableCell<E::Target>> {
        let chunk = (page / FIRST_CHUNK + 1).ilog2() as usize;
        let places = self.chunks[chunk].get().expect("made before its first page");
        &places[page - FIRST_CHUNK * ((1 << chunk) - 1)]
    }

    /// The same where the page is new: its chunk comes with its first page.
    fn new_place(&self, page: usize) -> &AtomicPtr<TableCell<E::Target>> {
        let chunk = (page / FIRST_CHUNK + 1).ilog2() as usize;
        self.chunks[chunk].get_or_init(|| (0..FIRST_CHUNK << chunk).map(|_| AtomicPtr::default()).collect());
        self.place(page)
    }

    /// The cell of a key in some cells, and what it holds.
    ///
    /// # Safety
    ///
    /// Every entry that the cells show is alive.
    #[inline]
    unsafe fn search(cells: &[TableCell<E::Target>], hash: u64, key: &[u8]) -> Option<(usize, *mut E::Target)> {
        let mut at = home(hash, cells.len());
        loop {
            let cell = &cells[at];
            // Acquire: partner of the stores in `put` and `Table::take`. A page is never full.
            let entry = cell.entry.load(ord!(TableEntryLoad, Acquire));
            if entry.is_null() {
                return None;
            }
            // SAFETY: alive by the caller's promise.
            if cell.hash.load(Relaxed) == hash && is_entry(entry) && unsafe { EntryRef::<E>::new(entry) }.key() == key {
                return Some((at, entry));
            }
            at = (at + 1) & (cells.len() - 1);
        }
    }

    /// The entry of a key. `None`: the table had none at some moment of this call, or lost it before. O(1).
    ///
    /// # Safety
    ///
    /// What [`Table::remove`] and [`Table::sweep`] give back is freed only when every pin of that moment has ended.
    pub(crate) unsafe fn find<'g>(&self, key: &[u8], _pin: &'g Guard) -> Option<EntryRef<'g, E>> {
        let hash = self.hash.hash_one(key);
        loop {
            // Acquire: partner of the stores in `Table::divide` and `Table::join`.
            let state = self.state.load(Acquire);
            let pages = state as u32 as usize;
            if pages == 0 {
                return None;
            }
            let word = self.place(page_of(hash, pages)).load(ord!(TablePageLoad, Acquire));
            if !word.is_null() {
                #[cfg(loom)]
                read(word as usize);
                // SAFETY: I4: what takes the place of a page is published before the page is retired: not freed
                // before this pin ends.
                let cells = unsafe { &*TablePage::cells_of(word) };
                // SAFETY: alive under the pin, by the caller's promise.
                if let Some((_, entry)) = unsafe { Self::search(cells, hash, key) } {
                    // SAFETY: the same.
                    return Some(unsafe { EntryRef::new(entry) });
                }
                // Acquire: as above. What was stored before the page is seen with it.
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

/// How full a page is: entries, and cells in use, those of entries that are gone among them.
#[derive(Clone, Copy, Default)]
struct Fill {
    entries: u32,
    used: u32,
}

/// The writer's side: see the module.
pub(crate) struct Table<E: TableEntry> {
    shared: Arc<TablePages<E>>,
    fills: Vec<Fill>,
    len: usize,
    /// Of all pages.
    cells: usize,
    /// Entries that the last call moved.
    #[cfg(test)]
    moved: usize,
}

impl<E: TableEntry> Default for Table<E> {
    fn default() -> Table<E> {
        Table {
            shared: Arc::new(TablePages::new()),
            fills: Vec::new(),
            len: 0,
            cells: 0,
            #[cfg(test)]
            moved: 0,
        }
    }
}

impl<E: TableEntry> Drop for Table<E> {
    fn drop(&mut self) {
        while self.take_page().is_some() {}
    }
}

/// How far a walk through a table has come; see [`Table::sweep`].
pub(crate) struct Place {
    /// Pages that it has not left yet; the last of them is that of `cell`.
    pages: usize,
    cell: usize,
}

impl Default for Place {
    fn default() -> Place {
        Place { pages: usize::MAX, cell: 0 }
    }
}

/// A page that no reader knows yet.
type NewPage<E> = (TablePage<<E as TableEntry>::Target>, Fill);
/// The cells of a page of the writer's.
type Cells<'a, E> = &'a [TableCell<<E as TableEntry>::Target>];

impl<E: TableEntry> Table<E> {
    /// What readers search.
    pub(crate) fn pages(&self) -> Arc<TablePages<E>> {
        self.shared.clone()
    }

    /// The cells of a page that is there.
    #[inline]
    fn cells(&self, page: usize) -> Cells<'_, E> {
        // Relaxed: only the writer stores here.
        let word = self.shared.place(page).load(Relaxed);
        // SAFETY: I1: only the writer replaces a page, and it is borrowed.
        unsafe { &*TablePage::cells_of(word) }
    }

    #[inline]
    fn find(&self, key: &[u8]) -> Option<(usize, usize, *mut E::Target)> {
        if self.fills.is_empty() {
            return None;
        }
        let hash = self.shared.hash.hash_one(key);
        let page = page_of(hash, self.fills.len());
        // SAFETY: the table owns its entries, and it is borrowed.
        let (cell, entry) = unsafe { TablePages::<E>::search(self.cells(page), hash, key) }?;
        Some((page, cell, entry))
    }

    /// The entry of a key. O(1).
    #[inline]
    pub(crate) fn get(&self, key: &[u8]) -> Option<EntryRef<'_, E>> {
        let (_, _, entry) = self.find(key)?;
        // SAFETY: the table owns it, and it is borrowed.
        Some(unsafe { EntryRef::new(entry) })
    }

    /// Adds an entry whose key is not there. O(1): at most the entries of two pages are moved.
    pub(crate) fn insert(&mut self, entry: E) {
        self.begin();
        if self.fills.is_empty() {
            self.add((TablePage::new(0), Fill::default()));
            self.set_state();
        }
        let hash = self.shared.hash.hash_one(entry.key());
        let page = page_of(hash, self.fills.len());
        if (self.fills[page].used as usize + 1) * 8 > self.cells(page).len() * 7 {
            let fresh = self.joined(&[page], 2 * self.fills[page].entries as usize);
            self.replace(page, fresh);
        }
        put(self.cells(page), hash, entry.into_address());
        self.fills[page].entries += 1;
        self.fills[page].used += 1;
        self.len += 1;
        if self.len > self.fills.len() * AVERAGE {
            self.divide();
        }
    }

    /// Takes the entry of a key out. O(1): at most the entries of two pages are moved.
    pub(crate) fn remove(&mut self, key: &[u8]) -> Option<E> {
        let (page, cell, _) = self.find(key)?;
        self.begin();
        let entry = self.take(page, cell);
        self.shrink();
        Some(entry)
    }

    /// Takes out what a cell holds.
    fn take(&mut self, page: usize, cell: usize) -> E {
        let place = &self.cells(page)[cell].entry;
        let entry = place.load(Relaxed);
        // Release: partner of the load in `search`: who misses it sees what left the log before.
        place.store(gone(), ord!(TableEntry, Release));
        self.fills[page].entries -= 1;
        self.len -= 1;
        // SAFETY: the cell had it, and has it no more.
        unsafe { E::from_address(entry) }
    }

    /// Visits so many cells from `place` on, and takes out what is `unused`. True: this was the last
    /// part of a round, which has seen every entry that was there all the time, unless pages were divided
    /// meanwhile. From the last page to the first: what is joined comes into a page that is still to come,
    /// or was seen on both sides.
    pub(crate) fn sweep(
        &mut self,
        place: &mut Place,
        cells: usize,
        unused: impl Fn(&E) -> bool,
        mut taken: impl FnMut(E),
    ) -> bool {
        self.begin();
        for _ in 0..cells {
            place.pages = place.pages.min(self.fills.len());
            let Some(page) = place.pages.checked_sub(1) else { return true };
            let Some(cell) = self.cells(page).get(place.cell) else {
                *place = Place { pages: page, cell: 0 };
                continue;
            };
            let entry = cell.entry.load(Relaxed);
            let at = place.cell;
            place.cell += 1;
            // SAFETY: the table owns it, and it is borrowed.
            if is_entry(entry) && unused(&*unsafe { EntryRef::<E>::new(entry) }) {
                taken(self.take(page, at));
                if self.shrink() {
                    place.cell = 0;
                }
            }
        }
        false
    }

    /// Takes out all entries of one page; the table is of no other use afterwards. `None`: nothing is left.
    pub(crate) fn take_page(&mut self) -> Option<Vec<E>> {
        let page = self.fills.len().checked_sub(1)?;
        let entries = self.cells(page).iter().map(|cell| cell.entry.load(Relaxed)).filter(|entry| is_entry(*entry));
        // SAFETY: the page has them, and is not looked at again.
        let all = entries.map(|entry| unsafe { E::from_address(entry) }).collect();
        self.fills.pop();
        self.set_state();
        self.unlink(page);
        Some(all)
    }

    /// Entries.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Bytes of the table itself.
    pub(crate) fn bytes(&self) -> usize {
        let chunks = (self.fills.len() / FIRST_CHUNK + 1).next_power_of_two() * FIRST_CHUNK;
        TablePage::<E::Target>::bytes(self.cells) + self.fills.capacity() * size_of::<Fill>() + chunks * 8
    }

    fn begin(&mut self) {
        #[cfg(test)]
        {
            self.moved = 0;
        }
    }

    /// Adds a page at the end, which no reader looks at before [`Table::set_state`].
    fn add(&mut self, (page, fill): NewPage<E>) {
        self.cells += page.0.len();
        self.shared.new_place(self.fills.len()).store(page.into_word(), Release);
        self.fills.push(fill);
    }

    /// Publishes how many pages there are.
    fn set_state(&self) {
        let times = self.shared.state.load(Relaxed) >> 32;
        // Release: partner of the loads in `find`, so that who sees the number finds the page.
        self.shared.state.store((times + 1) << 32 | self.fills.len() as u64, Release);
    }

    /// Puts another page in the place of one, which is retired.
    fn replace(&mut self, at: usize, (page, fill): NewPage<E>) {
        self.cells += page.0.len();
        self.fills[at] = fill;
        let place = self.shared.place(at);
        let old = place.load(Relaxed);
        // Release: partner of the load in `find`.
        place.store(page.into_word(), ord!(TablePage, Release));
        self.retire(old);
    }

    /// Empties the place of a page that is not counted any more, and retires it.
    fn unlink(&mut self, at: usize) {
        let place = self.shared.place(at);
        let old = place.load(Relaxed);
        // Release: partner of the load in `find`: who finds it empty sees the state without it.
        place.store(ptr::null_mut(), Release);
        self.retire(old);
    }

    fn retire(&mut self, word: *mut TableCell<E::Target>) {
        let cells = SMALLEST << (word.addr() & 15);
        self.cells -= cells;
        struct Unlinked<T>(*mut TableCell<T>);
        // SAFETY: the page of a table has atomics only, and nobody else frees it.
        unsafe impl<T> Send for Unlinked<T> {}
        let unlinked = Unlinked(word);
        let free = move || {
            let Unlinked(word) = { unlinked };
            // SAFETY: I9: it has left its place, and every pin that could have loaded it has ended.
            drop(unsafe { TablePage::from_word(word) });
        };
        reclaim::retire(TablePage::<E::Target>::bytes(cells), Box::new(free));
    }

    /// Pages of the entries of others: of those whose hash has a zero where `level` has a one, and of the rest, with
    /// room for so many. What no page holds any more is left out.
    fn made_of(&mut self, pages: &[usize], level: usize, rooms: [usize; 2]) -> [NewPage<E>; 2] {
        let mut fresh = rooms.map(|room| (TablePage::new(room), Fill::default()));
        for cell in pages.iter().flat_map(|page| self.cells(*page)) {
            let (hash, entry) = (cell.hash.load(Relaxed), cell.entry.load(Relaxed));
            if is_entry(entry) {
                let (page, fill) = &mut fresh[usize::from(hash as usize & level != 0)];
                put(&page.0, hash, entry);
                fill.entries += 1;
                fill.used += 1;
            }
        }
        #[cfg(test)]
        {
            self.moved += fresh.iter().map(|(_, fill)| fill.used as usize).sum::<usize>();
        }
        fresh
    }

    /// One page of the entries of others.
    fn joined(&mut self, pages: &[usize], room: usize) -> NewPage<E> {
        let [page, _] = self.made_of(pages, 0, [room, 0]);
        page
    }

    /// Adds a page, and gives it what belongs there of the page before it in the order.
    fn divide(&mut self) {
        let (from, level) = origin(self.fills.len());
        let cells = self.cells(from).iter().filter(|cell| is_entry(cell.entry.load(Relaxed)));
        let going = cells.filter(|cell| cell.hash.load(Relaxed) as usize & level != 0).count();
        let staying = self.fills[from].entries as usize - going;
        let [left, right] = self.made_of(&[from], level, [staying, going]);
        self.add(right);
        self.set_state();
        self.replace(from, left);
    }

    /// Joins the last page with its origin, where a quarter of the entries is left that so many pages
    /// are for. True: entries have moved.
    fn shrink(&mut self) -> bool {
        let pages = self.fills.len();
        if pages > 1 && self.len * 4 < pages * AVERAGE {
            self.join(pages - 1);
            return true;
        }
        let empties = pages == 1 && self.cells > 8 * SMALLEST.max(self.len);
        if empties {
            let fresh = self.joined(&[0], self.len);
            self.replace(0, fresh);
        }
        empties
    }

    fn join(&mut self, last: usize) {
        let (into, _) = origin(last);
        let room = self.fills[into].entries + self.fills[last].entries;
        let joined = self.joined(&[into, last], room as usize);
        self.replace(into, joined);
        self.fills.pop();
        self.set_state();
        self.unlink(last);
    }
}

/// A keyed hash of key bytes: folded multiplication over 8-byte words, drawn seed.
#[derive(Clone)]
pub(crate) struct KeyHash(u64);

impl Default for KeyHash {
    fn default() -> KeyHash {
        // loom replays executions: the same order each time.
        KeyHash(if cfg!(loom) { 1 } else { std::collections::hash_map::RandomState::new().hash_one(1u8) | 1 })
    }
}

impl BuildHasher for KeyHash {
    type Hasher = KeyHasher;
    fn build_hasher(&self) -> KeyHasher {
        KeyHasher(self.0)
    }
}

pub(crate) struct KeyHasher(u64);

fn fold(a: u64, b: u64) -> u64 {
    let wide = u128::from(a) * u128::from(b);
    (wide as u64) ^ ((wide >> 64) as u64)
}

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        const K: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut words = bytes.chunks_exact(8);
        for word in words.by_ref() {
            let word = u64::from_le_bytes(word.try_into().expect("8 bytes"));
            self.0 = fold(self.0 ^ word, K);
        }
        let mut rest = [0u8; 8];
        rest[..words.remainder().len()].copy_from_slice(words.remainder());
        self.0 = fold(self.0 ^ u64::from_le_bytes(rest), K ^ bytes.len() as u64);
    }

    fn write_usize(&mut self, number: usize) {
        self.0 ^= number as u64;
    }

    fn finish(&self) -> u64 {
        fold(self.0, 0xd6e8_feb8_6659_fd93)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::data::slot::Key;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    impl TableEntry for Arc<Key> {
        type Target = Key;
        fn into_address(self) -> *mut Key {
            Arc::into_raw(self).cast_mut()
        }
        unsafe fn from_address(address: *mut Key) -> Arc<Key> {
            // SAFETY: by the caller's promise.
            unsafe { Arc::from_raw(address) }
        }
        fn key(&self) -> &[u8] {
            self
        }
    }

    fn key(number: u64) -> Arc<Key> {
        Arc::new(number.to_string().into_bytes().into())
    }

    impl<E: TableEntry> Table<E> {
        /// Every entry is found, no page is too full, and the sums are right.
        fn check(&self) {
            let pages: Vec<_> = (0..self.fills.len()).map(|page| (self.cells(page), self.fills[page])).collect();
            assert_eq!(pages.iter().map(|(_, fill)| fill.entries as usize).sum::<usize>(), self.len);
            assert_eq!(pages.iter().map(|(cells, _)| cells.len()).sum::<usize>(), self.cells);
            for (cells, fill) in pages {
                let count =
                    |is: fn(*mut E::Target) -> bool| cells.iter().filter(|cell| is(cell.entry.load(Relaxed))).count();
                assert_eq!(count(|entry| !entry.is_null()), fill.used as usize);
                assert_eq!(count(is_entry), fill.entries as usize);
                assert!(fill.used as usize * 8 <= cells.len() * 7);
                for cell in cells.iter().filter(|cell| is_entry(cell.entry.load(Relaxed))) {
                    // SAFETY: the table owns it, and it is borrowed.
                    let entry = unsafe { EntryRef::<E>::new(cell.entry.load(Relaxed)) };
                    assert!(self.get(entry.key()).is_some());
                }
            }
        }
    }

    #[test]
    fn table_moves_few_entries_at_once() {
        let mut table = Table::default();
        let most = 5 * AVERAGE;
        let count = 300_000;
        let mut worst = 0;
        for number in 0..count {
            table.insert(key(number));
            worst = worst.max(table.moved);
            assert!(table.moved <= most, "{} moved by entry {number}", table.moved);
        }
        table.check();
        assert!(worst > AVERAGE, "nothing was measured: {worst}");
        assert!(table.bytes() <= 44 * count as usize, "{} bytes", table.bytes());
        for number in 0..count {
            assert_eq!(table.remove(&key(number)).as_deref(), Some(&*key(number)));
            assert!(table.moved <= most, "{} moved without entry {number}", table.moved);
        }
        table.check();
        assert!(table.len() == 0 && table.cells <= 8 * SMALLEST, "{} cells are left", table.cells);
    }

    #[test]
    fn sweep_takes_a_few_cells_a_time() {
        let mut table = Table::default();
        (0..10_000).for_each(|number| table.insert(key(number)));
        let mut taken = Vec::new();
        let mut round = |table: &mut Table<Arc<Key>>, unused: &dyn Fn(&Arc<Key>) -> bool| {
            let (mut place, mut calls) = (Place::default(), 1);
            while !table.sweep(&mut place, 16, unused, |entry| taken.push(entry)) {
                calls += 1;
                assert!(calls < 100_000);
            }
            assert!(taken.iter().all(unused));
            taken.clear();
            table.check();
            calls
        };
        let calls = round(&mut table, &|entry| entry.len() < 4);
        assert_eq!(table.len(), 9000);
        assert!(calls >= 10_000 / 16, "each call is short: {calls}");
        // Pages are joined on the way.
        round(&mut table, &|entry| entry[0] != b'7');
        assert_eq!(table.len(), 1000);
        round(&mut table, &|_| true);
        assert_eq!(table.len(), 0);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn table_equals_a_set(ops in prop::collection::vec((any::<bool>(), 0u64..4000, 1u64..900), 1..40)) {
            let mut table = Table::default();
            let mut oracle = BTreeSet::new();
            for (adds, start, count) in ops {
                for number in start..start + count {
                    let key = key(number);
                    match (adds, oracle.contains(&key)) {
                        (true, false) => {
                            table.insert(key.clone());
                            oracle.insert(key);
                        }
                        (false, present) => {
                            prop_assert_eq!(table.remove(&key).is_some(), present);
                            oracle.remove(&key);
                        }
                        _ => {}
                    }
                }
                table.check();
                prop_assert_eq!(table.len(), oracle.len());
                prop_assert!(oracle.iter().all(|key| table.get(key).is_some()));
            }
            let mut all = BTreeSet::new();
            while let Some(page) = table.take_page() {
                all.extend(page);
            }
            prop_assert_eq!(all, oracle);
        }
    }

    #[test]
    fn hashes_differ_by_content_and_length() {
        let build = KeyHash(1);
        let all: std::collections::HashSet<u64> = ["", "\0", "\0\0", "a", "b", "abcdefgh", "abcdefgh\0", "bbcdefgh"]
            .iter()
            .map(|text| build.hash_one(text.as_bytes()))
            .collect();
        assert_eq!(all.len(), 8);
    }
}
