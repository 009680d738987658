//! The writer's side of a table: what comes and goes, and which page is due. See [`super`].

use super::*;
use crate::heap::System;

/// Entries from which on hints are renewed: fewer lie in a cache, with what is behind them.
pub(crate) const HINTED: usize = 8192;

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
    /// Cells of all pages.
    cells: usize,
    /// Entries that the last call moved.
    #[cfg(test)]
    moved: usize,
}

impl<E: TableEntry> Default for Table<E> {
    fn default() -> Table<E> {
        Table::new(KeyHash::default())
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

/// A cell that is on its way, and the bits of the hash that it was asked for.
pub(crate) struct FetchedCell<'t, E: TableEntry> {
    cell: &'t TableCell<E::Target>,
    bits: u32,
}

impl<E: TableEntry> FetchedCell<'_, E> {
    /// Prefetches the entry and the memory behind it, if the first cell has the entry of this hash, whose key has
    /// `key_length` bytes. Entries in later cells are found without a prefetch.
    #[inline]
    pub(crate) fn fetch_entry(self, key_length: usize) {
        // Relaxed: only the writer stores there.
        let (entry, tag) = (self.cell.entry.load(Relaxed), self.cell.tag.load(Relaxed));
        if (tag >> 32) as u32 == self.bits {
            E::prefetch(entry, tag as u32, key_length);
        }
    }
}

impl<E: TableEntry> Table<E> {
    /// An empty table. Tables of one cache have one hash, so that a key is hashed once for all of them.
    pub(crate) fn new(hash: KeyHash) -> Table<E> {
        Table {
            shared: Arc::new(TablePages::new(hash)),
            fills: Vec::new(),
            len: 0,
            cells: 0,
            #[cfg(test)]
            moved: 0,
        }
    }

    pub(crate) fn hash(&self) -> &KeyHash {
        &self.shared.hash
    }

    /// The pages that readers search.
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
    fn find(
        &self,
        (hash, key_length): (u64, usize),
        is: impl Fn(&E) -> bool,
    ) -> Option<(usize, usize, *mut E::Target)> {
        if self.fills.is_empty() {
            return None;
        }
        let page = page_of(stored_bits(hash), self.fills.len());
        // SAFETY: the table owns its entries, and it is borrowed.
        let (cell, entry) = unsafe { TablePages::<E>::search(self.cells(page), (stored_bits(hash), key_length), is) }?;
        Some((page, cell, entry))
    }

    /// The entry of a key. O(1).
    #[cfg(test)]
    pub(crate) fn get(&self, key: &[u8]) -> Option<EntryRef<'_, E>> {
        self.get_hashed((E::hash_of(self.hash(), key), key.len()), |entry| entry.key() == key)
    }

    /// The hint of a key.
    #[cfg(test)]
    pub(crate) fn hint(&self, key: &[u8]) -> Option<u32> {
        let (page, cell, _) = self.find((E::hash_of(self.hash(), key), key.len()), |entry| entry.key() == key)?;
        Some(self.cells(page)[cell].tag.load(Relaxed) as u32)
    }

    /// The entry that has this hash, and is the one. Its key has so many bytes. O(1).
    #[inline]
    pub(crate) fn get_hashed(&self, key: (u64, usize), is: impl Fn(&E) -> bool) -> Option<EntryRef<'_, E>> {
        let (_, _, entry) = self.find(key, is)?;
        // SAFETY: the table owns it, and it is borrowed.
        Some(unsafe { EntryRef::new(entry) })
    }

    /// Whether there are so many entries that hints are worth their renewal.
    #[inline]
    pub(crate) fn is_hinted(&self) -> bool {
        self.len >= HINTED
    }

    /// Stores a new hint for an entry of this hash: the memory behind the entry has moved.
    #[inline]
    pub(crate) fn renew_hint(&mut self, hash: u64, entry: *mut E::Target, hint: u32) {
        let bits = stored_bits(hash);
        let cells = self.cells(page_of(bits, self.fills.len()));
        let mut at = home(bits, cells.len());
        // Relaxed: only the writer stores here, and nobody follows a hint.
        loop {
            match cells[at].entry.load(Relaxed) {
                found if found == entry => return cells[at].tag.store(tag(bits, hint), Relaxed),
                found if found.is_null() => return,
                _ => at = (at + 1) & (cells.len() - 1),
            }
        }
    }

    /// Asks the processor for the cell that is looked at first for a hash.
    #[inline]
    pub(crate) fn fetch_place(&self, hash: u64) -> Option<FetchedCell<'_, E>> {
        if self.fills.is_empty() {
            return None;
        }
        let bits = stored_bits(hash);
        let cells = self.cells(page_of(bits, self.fills.len()));
        let cell = &cells[home(bits, cells.len())];
        heap::prefetch((&raw const *cell).cast());
        Some(FetchedCell { cell, bits })
    }

    /// [`TablePages::prefetch`].
    pub(crate) fn fetch<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) {
        // SAFETY: I1: only the writer replaces pages and takes entries out, and it is borrowed.
        unsafe { self.shared.prefetch(keys) };
    }

    /// Adds an entry whose key, of this hash, is not there. O(1): at most the entries of two pages are moved.
    pub(crate) fn insert(&mut self, hash: u64, entry: E, memory: &mut impl Memory) {
        self.begin();
        if self.fills.is_empty() {
            self.add((TablePage::new(0, memory), Fill::default()));
            self.set_state();
        }
        self.insert_bits(stored_bits(hash), entry, memory);
    }

    /// Adds to an empty table entries whose keys differ. The pages are made for their number, and none is divided on the
    /// way.
    pub(crate) fn fill(&mut self, entries: Vec<E>, memory: &mut impl Memory) {
        debug_assert!(self.fills.is_empty(), "only an empty table is filled");
        self.reserve(entries.len(), memory);
        for entry in entries {
            let bits = stored_bits(E::hash_of(self.hash(), entry.key()));
            self.insert_bits(bits, entry, memory);
        }
    }

    /// Makes the pages that so many entries need.
    fn reserve(&mut self, entries: usize, memory: &mut impl Memory) {
        let pages = entries.div_ceil(AVERAGE);
        let level = pages.next_power_of_two();
        for page in 0..pages {
            // A page that the highest bit has not divided yet gets twice as many entries.
            let is_whole = page < level / 2 && page + level / 2 >= pages;
            let share = entries / if is_whole { level / 2 } else { level };
            // Hashes spread unevenly: one page in some needs more, and grows as any other.
            self.add((TablePage::new(share + share / 8, memory), Fill::default()));
        }
        self.set_state();
    }

    fn insert_bits(&mut self, bits: u32, entry: E, memory: &mut impl Memory) {
        let page = page_of(bits, self.fills.len());
        if (self.fills[page].used as usize + 1) * 8 > self.cells(page).len() * 7 {
            let fresh = self.joined(&[page], 2 * self.fills[page].entries as usize, memory);
            self.replace(page, fresh, memory);
        }
        let hint = entry.hint();
        put(self.cells(page), (bits, hint), entry.into_address());
        self.fills[page].entries += 1;
        self.fills[page].used += 1;
        self.len += 1;
        if self.len > self.fills.len() * AVERAGE {
            self.divide(memory);
        }
    }

    /// Takes the entry of a key out. O(1): at most the entries of two pages are moved.
    pub(crate) fn remove(&mut self, key: &[u8], memory: &mut impl Memory) -> Option<E> {
        let hashed = (E::hash_of(self.hash(), key), key.len());
        let (page, cell, _) = self.find(hashed, |entry| entry.key() == key)?;
        self.begin();
        let entry = self.take(page, cell);
        self.shrink(memory);
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
        memory: &mut impl Memory,
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
                if self.shrink(memory) {
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
        self.unlink(page, &mut System);
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
        self.cells += page.len();
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
    fn replace(&mut self, at: usize, (page, fill): NewPage<E>, memory: &mut impl Memory) {
        self.cells += page.len();
        self.fills[at] = fill;
        let place = self.shared.place(at);
        let old = place.load(Relaxed);
        // Release: partner of the load in `find`.
        place.store(page.into_word(), ord!(TablePage, Release));
        self.retire(old, memory);
    }

    /// Empties the place of a page that is not counted any more, and retires it.
    fn unlink(&mut self, at: usize, memory: &mut impl Memory) {
        let place = self.shared.place(at);
        let old = place.load(Relaxed);
        // Release: partner of the load in `find`: who finds it empty sees the state without it.
        place.store(ptr::null_mut(), Release);
        self.retire(old, memory);
    }

    fn retire(&mut self, word: *mut TableCell<E::Target>, memory: &mut impl Memory) {
        let cells = SMALLEST << (word.addr() & 15);
        self.cells -= cells;
        let free = |word: *mut ()| {
            // SAFETY: I9: it has left its place, and every pin that could have loaded it has ended. Its cells are
            // atomics only, and nobody else frees it.
            drop(unsafe { TablePage::<E::Target>::from_word(word.cast()) });
        };
        reclaim::retire(TablePage::<E::Target>::bytes(cells), Job::Release(word.cast(), free), memory);
    }

    /// Makes two pages of the entries of other pages, with the given room: the first has those whose hash has a zero where
    /// `level` has a one, the second the rest. Entries that were taken out are skipped.
    fn made_of(
        &mut self,
        pages: &[usize],
        level: usize,
        rooms: [usize; 2],
        memory: &mut impl Memory,
    ) -> [NewPage<E>; 2] {
        let mut fresh = rooms.map(|room| (TablePage::new(room, memory), Fill::default()));
        for cell in pages.iter().flat_map(|page| self.cells(*page)) {
            let (tag, entry) = (cell.tag.load(Relaxed), cell.entry.load(Relaxed));
            if is_entry(entry) {
                let bits = (tag >> 32) as u32;
                let (page, fill) = &mut fresh[usize::from(bits as usize & level != 0)];
                put(page, (bits, tag as u32), entry);
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

    /// Makes one page of the entries of other pages.
    fn joined(&mut self, pages: &[usize], room: usize, memory: &mut impl Memory) -> NewPage<E> {
        let [page, _] = self.made_of(pages, 0, [room, 0], memory);
        page
    }

    /// Adds a page, and gives it what belongs there of the page before it in the order.
    fn divide(&mut self, memory: &mut impl Memory) {
        let (from, level) = origin(self.fills.len());
        let cells = self.cells(from).iter().filter(|cell| is_entry(cell.entry.load(Relaxed)));
        let going = cells.filter(|cell| cell.bits() as usize & level != 0).count();
        let staying = self.fills[from].entries as usize - going;
        let [left, right] = self.made_of(&[from], level, [staying, going], memory);
        self.add(right);
        self.set_state();
        self.replace(from, left, memory);
    }

    /// Joins the last page with its origin, where a quarter of the entries is left that so many pages
    /// are for. True: entries have moved.
    fn shrink(&mut self, memory: &mut impl Memory) -> bool {
        let pages = self.fills.len();
        if pages > 1 && self.len * 4 < pages * AVERAGE {
            self.join(pages - 1, memory);
            return true;
        }
        let empties = pages == 1 && self.cells > 8 * SMALLEST.max(self.len);
        if empties {
            let fresh = self.joined(&[0], self.len, memory);
            self.replace(0, fresh, memory);
        }
        empties
    }

    fn join(&mut self, last: usize, memory: &mut impl Memory) {
        let (into, _) = origin(last);
        let room = self.fills[into].entries + self.fills[last].entries;
        let joined = self.joined(&[into, last], room as usize, memory);
        self.replace(into, joined, memory);
        self.fills.pop();
        self.set_state();
        self.unlink(last, memory);
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
