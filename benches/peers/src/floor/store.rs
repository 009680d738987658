//! The objects of the floors: a hash table of the keys, a line for each key, a block for each version.
//!
//! What is in it: a cell of an open table at half load leads to the key's line, which has the key, which is compared,
//! and the address of the newest version. A put reads the version before for its count of versions, copies key and
//! value into a free block, and writes the event's line, the key's line and the head. Free is what was replaced 65,536
//! events ago, for the log has it until then. A get counts the version up, loads one byte of its value and counts it
//! down. Why a library has to pay at least that: keys are scattered, so cell, key, version and free block are four
//! places of memory that no cache holds when there are many objects, and the first three depend on each other.
//!
//! An insert takes a new line and a new block, writes a cell, and puts the key in order: see [`super::order`].
//!
//! | step | partner | order |
//! | --- | --- | --- |
//! | `put`, store of a new cell's slot | `Shared::find`, its load | Release / Acquire: the key |
//! | `put`, store of the newest | `get` and the lists, its load | Release / Acquire: the block |
//! | `put`, store of the head | `Shared::head`, its load | Release / Acquire: the slots of all events below |

use super::memory::{Block, Line, Link, made};
use super::order::Order;
use super::ring::EVENTS;
use crate::keyed::{Keyed, Reader};
use crate::load;
use std::slice::Iter;
use std::sync::atomic::{AtomicU64, Ordering};

/// All keys of the rows are as long.
pub const KEY: usize = 37;

/// A key as numbers, in the order of its bytes; the last overlaps the one before.
pub type Words = [u64; 5];

pub fn words(key: &[u8]) -> Words {
    let key: &[u8; KEY] = key.try_into().expect("all keys are as long");
    [0, 8, 16, 24, KEY - 8].map(|at| u64::from_be_bytes(key[at..at + 8].try_into().expect("eight bytes")))
}

/// Three products: what a hash takes to depend on each byte.
fn hash(key: &Words) -> u64 {
    const SEEDS: Words = [
        0x9e37_79b9_7f4a_7c15,
        0xbf58_476d_1ce4_e5b9,
        0x94d0_49bb_1331_11eb,
        0xd6e8_feb8_6659_fd93,
        0xa076_1d64_78bd_642f,
    ];
    let product = |a: u64, b: u64| {
        let product = u128::from(a) * u128::from(b);
        product as u64 ^ (product >> 64) as u64
    };
    let mixed = |at: usize| key[at] ^ SEEDS[at];
    product(product(mixed(0), mixed(1)) ^ product(mixed(2), mixed(3)) ^ key[4], SEEDS[4])
}

/// A key's line.
#[repr(C, align(64))]
pub struct Slot {
    pub newest: Link<Block>,
    /// The event of the newest version.
    pub event: AtomicU64,
    key: [AtomicU64; 5],
}

const _: () = assert!(size_of::<Slot>() == 64);

impl Default for Slot {
    fn default() -> Slot {
        Slot::empty()
    }
}

impl Slot {
    pub const fn empty() -> Slot {
        Slot { newest: Link::none(), event: AtomicU64::new(0), key: [const { AtomicU64::new(0) }; 5] }
    }

    /// Writes the key.
    pub fn name(&self, key: &Words) {
        self.key.iter().zip(key).for_each(|(word, value)| word.store(*value, Ordering::Relaxed));
    }

    pub fn key(&self) -> Words {
        std::array::from_fn(|at| self.key[at].load(Ordering::Relaxed))
    }
}

#[derive(Default)]
struct Cell {
    hash: AtomicU64,
    slot: Link<Slot>,
}

const _: () = assert!(size_of::<Cell>() == 16);

/// What writer and readers share.
pub struct Shared {
    cells: &'static [Cell],
    /// In the order of the keys, as they were loaded.
    pub loaded: &'static [Slot],
    head: AtomicU64,
}

impl Shared {
    /// How many events there were.
    pub fn head(&self) -> u64 {
        // Acquire: what the events below wrote. Partner: the store in `Store::put`.
        self.head.load(Ordering::Acquire)
    }

    /// The key's slot, or the cell where it belongs.
    fn find(&self, key: &Words, hash: u64) -> Result<&'static Slot, &'static Cell> {
        let mut at = ((u128::from(hash) * self.cells.len() as u128) >> 64) as usize;
        loop {
            let cell = &self.cells[at];
            // Acquire: the key. Partner: the store in `Store::put`.
            let slot = cell.slot.get(Ordering::Acquire).ok_or(cell)?;
            if cell.hash.load(Ordering::Relaxed) == hash && slot.key() == *key {
                return Ok(slot);
            }
            at = if at + 1 == self.cells.len() { 0 } else { at + 1 };
        }
    }
}

/// Grows by as many keys as it had at first where `GROWS`.
pub struct Store<const GROWS: bool> {
    shared: &'static Shared,
    lines: &'static [Line],
    new_slots: Iter<'static, Slot>,
    new_blocks: Iter<'static, Block>,
    /// Of a store that grows.
    order: Option<Order>,
}

impl<const GROWS: bool> Keyed for Store<GROWS> {
    type Reader = &'static Shared;

    fn filled(objects: usize) -> Self {
        let most = if GROWS { 2 * objects } else { objects };
        let (loaded, new_slots) = made::<Slot>(most).split_at(objects);
        let shared = Shared { cells: made(2 * most), loaded, head: AtomicU64::new(0) };
        let mut store = Store {
            shared: Box::leak(Box::new(shared)),
            lines: made(EVENTS),
            new_slots: loaded.iter(),
            new_blocks: made(EVENTS + most).iter(),
            order: None,
        };
        (0..objects).for_each(|number| store.put(load::key(number).as_bytes(), &load::VALUE));
        store.new_slots = new_slots.iter();
        store.order = GROWS.then(|| Order::of(loaded, objects));
        // The log begins empty, with a free block for each event.
        for line in store.lines {
            line.replaced.set(store.new_blocks.next(), Ordering::Relaxed);
        }
        store
    }

    fn put(&mut self, key: &[u8], value: &[u8]) {
        let event = self.shared.head.load(Ordering::Relaxed);
        let line = &self.lines[event as usize % EVENTS];
        let free = line.replaced.get(Ordering::Relaxed).or_else(|| self.new_blocks.next());
        let block = free.expect("there are as many blocks as there can be versions");
        let words = words(key);
        let hash = hash(&words);
        let slot = self.shared.find(&words, hash).unwrap_or_else(|cell| self.insert(&words, hash, cell));
        let before = slot.newest.get(Ordering::Relaxed);
        let number = |of: fn(&Block) -> &AtomicU64| before.map(|before| of(before).load(Ordering::Relaxed));
        // SAFETY: one thread writes, and the block was never used or was replaced 65,536 events ago: a row that reads
        // beside a writer ends before so many events.
        unsafe { block.fill(key, value) };
        block.key.store(block.bytes(), Ordering::Relaxed);
        block.revision.store(event + 1, Ordering::Relaxed);
        block.created.store(number(|block| &block.created).unwrap_or(event + 1), Ordering::Relaxed);
        block.version.store(number(|block| &block.version).unwrap_or(0) + 1, Ordering::Relaxed);
        line.revision.store(event + 1, Ordering::Relaxed);
        line.block.set(Some(block), Ordering::Relaxed);
        line.replaced.set(before, Ordering::Relaxed);
        slot.event.store(event + 1, Ordering::Relaxed);
        // Release: a reader of the address finds the block written. Partners: the loads in `get` and in `lists`.
        slot.newest.set(Some(block), Ordering::Release);
        // Release: a reader of the head finds the slots. Partner: the load in `Shared::head`.
        self.shared.head.store(event + 1, Ordering::Release);
    }

    fn reader(&self) -> &'static Shared {
        self.shared
    }
}

impl<const GROWS: bool> Store<GROWS> {
    /// A new key in its cell. Its slot is empty until its first version is there.
    fn insert(&mut self, key: &Words, hash: u64, cell: &Cell) -> &'static Slot {
        let slot = self.new_slots.next().expect("there are as many slots as there can be keys");
        slot.name(key);
        cell.hash.store(hash, Ordering::Relaxed);
        // Release: a reader of the cell finds the key. Partner: the load in `Shared::find`.
        cell.slot.set(Some(slot), Ordering::Release);
        if let Some(order) = &mut self.order {
            order.insert(*key, slot);
        }
        slot
    }
}

/// One byte of the value of a version.
pub fn touched(block: &Block) -> u64 {
    // SAFETY: a block is written again 65,536 events after it was replaced; a row that reads beside a writer ends
    // before so many events.
    unsafe { block.byte(KEY) }
}

impl Reader for &'static Shared {
    fn get(&self, key: &[u8]) -> u64 {
        let words = words(key);
        let slot = self.find(&words, hash(&words)).unwrap_or_else(|_| panic!("the key is there"));
        // Acquire: the block is written. Partner: the store in `Store::put`.
        let block = slot.newest.get(Ordering::Acquire).expect("it has a version");
        // Nobody frees anything by these counts: Relaxed.
        block.count.fetch_add(1, Ordering::Relaxed);
        let byte = touched(block);
        block.count.fetch_sub(1, Ordering::Relaxed);
        byte
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers of the newest version of a key: its revision, that of its first version, its version.
    fn numbers(shared: &Shared, key: &str) -> [u64; 3] {
        let words = words(key.as_bytes());
        let slot = shared.find(&words, hash(&words)).unwrap_or_else(|_| panic!("{key} is there"));
        let block = slot.newest.get(Ordering::Acquire).expect("it has a version");
        assert_eq!(block.count.load(Ordering::Relaxed), 0, "each count up has one down");
        [&block.revision, &block.created, &block.version].map(|number| number.load(Ordering::Relaxed))
    }

    #[test]
    fn puts_are_found_again() {
        const OBJECTS: usize = 1000;
        let mut store = Store::<true>::filled(OBJECTS);
        let new = load::new_key(7);
        store.put(new.as_bytes(), b"new");
        // More than the window: blocks come back.
        let puts = 3 * EVENTS;
        for put in 0..puts {
            store.put(load::key(put % OBJECTS).as_bytes(), &[put as u8; 512]);
        }
        let shared = store.reader();
        for number in 0..OBJECTS {
            let last = (puts - 1 - number) / OBJECTS * OBJECTS + number;
            let [revision, created, version] = numbers(shared, &load::key(number));
            assert_eq!(revision as usize, OBJECTS + 1 + last + 1);
            assert_eq!([created as usize, version as usize], [number + 1, 1 + last / OBJECTS + 1]);
            assert_eq!(shared.get(load::key(number).as_bytes()), last as u64 % 256);
        }
        assert_eq!(numbers(shared, &new), [OBJECTS as u64 + 1, OBJECTS as u64 + 1, 1]);
        assert_eq!(shared.get(new.as_bytes()), u64::from(b'n'));
    }
}
