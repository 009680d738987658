//! A hash from keys to entries that grows and shrinks by steps: no operation moves more than a few
//! hundred entries, however many there are.
//!
//! It is linear hashing over pages. A page is a small open-addressed table (linear probing, at most 7/8
//! full) that holds each entry beside the hash of its key, 16 bytes: finding looks at one entry, moving
//! looks at none. The low bits of a hash choose the page, the high ones the cell in it. There is one
//! page for each [`AVERAGE`] entries: when one is due, the entries of one page are divided between it and
//! the new one at the end; pages are divided in their order, so that no directory is needed, and those
//! that wait for their turn hold up to twice as much as those that had it. When entries go, the last
//! page is joined with the one that it came from.
//!
//! An example in numbers. With 5 pages, `level` is 4: pages 0 and 4 differ in bit 2 of the
//! hash, pages 1 to 3 by bits 0 and 1 alone. A hash that ends in 110 asks for page 6, which is not there
//! yet, and lies in page 6 - 4 = 2. The next page, number 5, takes from page 1 what ends in 101.
//!
//! The writer has two: its hash of slots, and its table of buckets.

#![forbid(unsafe_code)]

use crate::data::slot::OwnedSlot;
use std::hash::{BuildHasher, Hasher};

/// Entries a page, on average, when another one comes. One that is due to be divided holds about twice
/// as many, and 448 entries fill a page of 512 cells.
const AVERAGE: usize = 200;
/// Cells of the smallest page.
const SMALLEST: usize = 8;

/// What a table holds.
pub(crate) trait Keyed {
    fn key(&self) -> &[u8];
}

impl Keyed for OwnedSlot {
    fn key(&self) -> &[u8] {
        self.get().key()
    }
}

type TableCell<E> = Option<(u64, E)>;

/// A small table of its own.
struct TablePage<E> {
    /// A power of two of them, at most 7/8 in use.
    cells: Box<[TableCell<E>]>,
    len: usize,
}

impl<E: Keyed> TablePage<E> {
    /// With room for so many.
    fn new(entries: usize) -> TablePage<E> {
        let cells = (entries * 8).div_ceil(7).next_power_of_two().max(SMALLEST);
        TablePage { cells: (0..cells).map(|_| None).collect(), len: 0 }
    }

    fn home(&self, hash: u64) -> usize {
        (hash >> 32) as usize & (self.cells.len() - 1)
    }

    fn after(&self, cell: usize) -> usize {
        (cell + 1) & (self.cells.len() - 1)
    }

    #[inline]
    fn find(&self, hash: u64, key: &[u8]) -> Option<usize> {
        let mut at = self.home(hash);
        loop {
            match &self.cells[at] {
                None => return None,
                Some((other, entry)) if *other == hash && entry.key() == key => return Some(at),
                Some(_) => at = self.after(at),
            }
        }
    }

    /// Puts an entry in, for which there is room.
    fn put(&mut self, hash: u64, entry: E) {
        let mut at = self.home(hash);
        while self.cells[at].is_some() {
            at = self.after(at);
        }
        self.cells[at] = Some((hash, entry));
        self.len += 1;
    }

    fn is_full(&self) -> bool {
        (self.len + 1) * 8 > self.cells.len() * 7
    }

    /// Takes an entry out, and moves those after it that would not be found any more.
    fn take(&mut self, cell: usize) -> Option<E> {
        let taken = self.cells[cell].take();
        self.len -= usize::from(taken.is_some());
        let (mut hole, mut at) = (cell, self.after(cell));
        let mask = self.cells.len() - 1;
        while let Some((hash, _)) = &self.cells[at] {
            // It stays unless its home lies at the hole or before it.
            let from_home = at.wrapping_sub(self.home(*hash)) & mask;
            if from_home >= at.wrapping_sub(hole) & mask {
                self.cells.swap(hole, at);
                hole = at;
            }
            at = self.after(at);
        }
        taken.map(|(_, entry)| entry)
    }

    fn into_entries(self) -> impl Iterator<Item = (u64, E)> {
        self.cells.into_iter().flatten()
    }
}

/// See the module.
pub(crate) struct Table<E> {
    pages: Vec<TablePage<E>>,
    len: usize,
    /// Of all pages.
    cells: usize,
    hash: KeyHash,
    /// Entries that the last call moved.
    #[cfg(test)]
    moved: usize,
}

impl<E> Default for Table<E> {
    fn default() -> Table<E> {
        Table {
            pages: Vec::new(),
            len: 0,
            cells: 0,
            hash: KeyHash::default(),
            #[cfg(test)]
            moved: 0,
        }
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

impl<E: Keyed> Table<E> {
    /// The page of a hash, of so many pages.
    #[inline]
    fn page(hash: u64, pages: usize) -> usize {
        let mask = pages.next_power_of_two() - 1;
        let page = hash as usize & mask;
        if page < pages { page } else { page & (mask >> 1) }
    }

    #[inline]
    fn find(&self, key: &[u8]) -> Option<(usize, usize)> {
        if self.pages.is_empty() {
            return None;
        }
        let hash = self.hash.hash_one(key);
        let page = Self::page(hash, self.pages.len());
        Some((page, self.pages[page].find(hash, key)?))
    }

    /// The entry of a key. O(1).
    #[inline]
    pub(crate) fn get(&self, key: &[u8]) -> Option<&E> {
        let (page, cell) = self.find(key)?;
        self.pages[page].cells[cell].as_ref().map(|(_, entry)| entry)
    }

    /// Adds an entry whose key is not there. O(1): at most the entries of two pages are moved.
    pub(crate) fn insert(&mut self, entry: E) {
        self.begin();
        if self.pages.is_empty() {
            self.add(TablePage::new(0));
        }
        let hash = self.hash.hash_one(entry.key());
        let page = Self::page(hash, self.pages.len());
        if self.pages[page].is_full() {
            let full = self.renew(page, 2 * self.pages[page].len);
            self.refill(full);
        }
        self.pages[page].put(hash, entry);
        self.len += 1;
        if self.len > self.pages.len() * AVERAGE {
            self.divide();
        }
    }

    /// Takes the entry of a key out. O(1): at most the entries of two pages are moved.
    pub(crate) fn remove(&mut self, key: &[u8]) -> Option<E> {
        let (page, cell) = self.find(key)?;
        self.begin();
        let entry = self.pages[page].take(cell);
        self.len -= 1;
        self.shrink();
        entry
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
            place.pages = place.pages.min(self.pages.len());
            let Some(at) = place.pages.checked_sub(1) else { return true };
            let page = &mut self.pages[at];
            match page.cells.get(place.cell) {
                None => *place = Place { pages: at, cell: 0 },
                // Another one may come into this cell.
                Some(Some((_, entry))) if unused(entry) => {
                    page.take(place.cell).into_iter().for_each(&mut taken);
                    self.len -= 1;
                    if self.shrink() {
                        place.cell = 0;
                    }
                }
                Some(_) => place.cell += 1,
            }
        }
        false
    }

    /// Takes out all entries of one page; the table is of no other use afterwards. `None`: nothing is left.
    pub(crate) fn take_page(&mut self) -> Option<impl Iterator<Item = E> + use<E>> {
        self.pages.pop().map(|page| page.into_entries().map(|(_, entry)| entry))
    }

    /// Entries.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Bytes of the table itself.
    pub(crate) fn bytes(&self) -> usize {
        self.cells * size_of::<TableCell<E>>() + self.pages.capacity() * size_of::<TablePage<E>>()
    }

    fn begin(&mut self) {
        #[cfg(test)]
        {
            self.moved = 0;
        }
    }

    fn add(&mut self, page: TablePage<E>) {
        self.cells += page.cells.len();
        self.pages.push(page);
    }

    /// Puts an empty page with room for so many entries in the place of one, which it returns.
    fn renew(&mut self, at: usize, entries: usize) -> TablePage<E> {
        let fresh = TablePage::new(entries);
        self.cells += fresh.cells.len();
        let old = std::mem::replace(&mut self.pages[at], fresh);
        self.cells -= old.cells.len();
        old
    }

    /// Puts the entries of a page that was taken out where they belong now.
    fn refill(&mut self, old: TablePage<E>) {
        #[cfg(test)]
        {
            self.moved += old.len;
        }
        for (hash, entry) in old.into_entries() {
            let page = Self::page(hash, self.pages.len());
            self.pages[page].put(hash, entry);
        }
    }

    /// The page that the last of so many was divided from, and the bit in which their hashes differ.
    fn origin(last: usize) -> (usize, usize) {
        let level = 1 << last.ilog2();
        (last - level, level)
    }

    /// Adds a page, and gives it what belongs there of the page before it in the order.
    fn divide(&mut self) {
        let (from, level) = Self::origin(self.pages.len());
        let hashes = self.pages[from].cells.iter().flatten().map(|(hash, _)| *hash as usize);
        let going = hashes.filter(|hash| hash & level != 0).count();
        let old = self.renew(from, self.pages[from].len - going);
        self.add(TablePage::new(going));
        self.refill(old);
    }

    /// Joins the last page with its origin, where a quarter of the entries is left that so many pages
    /// are for. True: entries have moved.
    fn shrink(&mut self) -> bool {
        let joins = self.pages.len() > 1 && self.len * 4 < self.pages.len() * AVERAGE;
        if joins {
            let Some(last) = self.pages.pop() else { return false };
            self.cells -= last.cells.len();
            let (into, _) = Self::origin(self.pages.len());
            let old = self.renew(into, self.pages[into].len + last.len);
            self.refill(old);
            self.refill(last);
            return true;
        }
        let empties = self.pages.len() == 1 && self.cells > 8 * SMALLEST.max(self.len);
        if empties {
            let old = self.renew(0, self.len);
            self.refill(old);
        }
        empties
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

    impl Keyed for Key {
        fn key(&self) -> &[u8] {
            self
        }
    }

    fn key(number: u64) -> Key {
        number.to_string().into_bytes().into()
    }

    impl<E: Keyed> Table<E> {
        /// Every entry is found, no page is too full, and the sums are right.
        fn check(&self) {
            assert_eq!(self.pages.iter().map(|page| page.len).sum::<usize>(), self.len);
            assert_eq!(self.pages.iter().map(|page| page.cells.len()).sum::<usize>(), self.cells);
            for page in &self.pages {
                assert!(page.len * 8 <= page.cells.len() * 7);
                assert_eq!(page.cells.iter().flatten().count(), page.len);
                for (_, entry) in page.cells.iter().flatten() {
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
            assert_eq!(table.remove(&key(number)).as_deref(), Some(&key(number)[..]));
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
        let mut round = |table: &mut Table<Key>, unused: &dyn Fn(&Key) -> bool| {
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
