//! The table against a set, and what one operation moves at most.

use super::*;
use crate::heap::Heap;
use crate::sync::often;
type TestKey = Arc<[u8]>;
use proptest::prelude::*;
use std::collections::BTreeSet;

impl TableEntry for Arc<TestKey> {
    type Target = TestKey;
    fn into_address(self) -> *mut TestKey {
        Arc::into_raw(self).cast_mut()
    }
    /// # Safety
    ///
    /// The contract of [`TableEntry::from_address`].
    unsafe fn from_address(address: *mut TestKey) -> Arc<TestKey> {
        // SAFETY: `into_address` gave the count of this `Arc` away; it is dropped once (`# Safety` of the trait).
        unsafe { Arc::from_raw(address) }
    }
    fn key(&self) -> &[u8] {
        self
    }
}

fn key(number: u64) -> Arc<TestKey> {
    Arc::new(number.to_string().into_bytes().into())
}

impl<E: TableEntry> Table<E> {
    fn add_key(&mut self, entry: E, memory: &mut impl Memory) {
        self.insert(E::hash_of(self.hash(), entry.key()), entry, memory);
    }

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
#[cfg_attr(miri, ignore = "of fewer entries it says nothing")]
fn table_moves_few_entries_at_once() {
    let (mut table, memory) = (Table::default(), &mut Heap::new(drop));
    let most = 5 * AVERAGE;
    let count = 300_000;
    let mut worst = 0;
    for number in 0..count {
        table.add_key(key(number), memory);
        worst = worst.max(table.moved);
        assert!(table.moved <= most, "{} moved by entry {number}", table.moved);
    }
    table.check();
    assert!(worst > AVERAGE, "nothing was measured: {worst}");
    assert!(table.bytes() <= 44 * count as usize, "{} bytes", table.bytes());
    for number in 0..count {
        assert_eq!(table.remove(&key(number), memory).as_deref(), Some(&*key(number)));
        assert!(table.moved <= most, "{} moved without entry {number}", table.moved);
    }
    table.check();
    assert!(table.len() == 0 && table.cells <= 8 * SMALLEST, "{} cells are left", table.cells);
}

/// It divides no page, and then grows and shrinks as one that was filled one by one.
#[test]
fn filled_table_is_as_any_other() {
    let memory = &mut Heap::new(drop);
    let counts: &[u64] =
        if cfg!(miri) { &[0, 1, 201] } else { &[0, 1, 199, 200, 201, 1000, 128 * 200, 150 * 200 + 17] };
    for &count in counts {
        let mut table = Table::default();
        table.fill((0..count).map(key).collect(), memory);
        table.check();
        assert_eq!((table.len() as u64, table.fills.len() as u64), (count, count.div_ceil(AVERAGE as u64)));
        assert!(table.bytes() <= 44 * count as usize + 4000, "{} bytes for {count}", table.bytes());
        // Of those pages that get more than their share.
        assert!(count < 10_000 || table.moved <= count as usize / 4, "{} moved of {count}", table.moved);
        let more = count + often(1000) as u64;
        for number in count..more {
            assert!(table.get(&key(number)).is_none());
            table.add_key(key(number), memory);
        }
        for number in (0..more).step_by(7) {
            assert_eq!(table.remove(&key(number), memory).as_deref(), Some(&*key(number)));
        }
        table.check();
    }
}

#[test]
#[cfg_attr(miri, ignore = "it is of what a table does, as `table_equals_a_set`")]
fn sweep_takes_a_few_cells_a_time() {
    let (mut table, memory) = (Table::default(), &mut Heap::new(drop));
    (0..10_000).for_each(|number| table.add_key(key(number), memory));
    let mut taken = Vec::new();
    let mut round = |table: &mut Table<Arc<TestKey>>, unused: &dyn Fn(&Arc<TestKey>) -> bool| {
        let (mut place, mut calls) = (Place::default(), 1);
        while !table.sweep(&mut place, 16, unused, |entry| taken.push(entry), memory) {
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
    #![proptest_config(ProptestConfig { cases: often(32) as u32, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn table_equals_a_set(ops in prop::collection::vec((any::<bool>(), 0u64..4000, 1..often(900) as u64), 1..40)) {
        let (mut table, memory) = (Table::default(), &mut Heap::new(drop));
        let mut oracle = BTreeSet::new();
        for (adds, start, count) in ops {
            for number in start..start + count {
                let key = key(number);
                match (adds, oracle.contains(&key)) {
                    (true, false) => {
                        table.add_key(key.clone(), memory);
                        oracle.insert(key);
                    }
                    (false, present) => {
                        prop_assert_eq!(table.remove(&key, memory).is_some(), present);
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
