//! Lists of the floors: the keys' lines lie side by side in the order of the keys.
//!
//! What is in it: the bounds of the prefix by binary search, then for each key its line, of which the newest version's
//! address and its event are read; the event is compared with the head of the list, and the address goes to memory that
//! is there already. A version that is newer than the head is counted, and taken as it is. Why a library has to pay at
//! least that: a reader beside a writer finds for each key which version its list shows, and keeps the address.
//!
//! Ten watchers of the state do the same in portions of 1024 keys, whose events they write, a line of 64 bytes each,
//! before they load one byte of each value.

use super::memory::{Block, made};
use super::store::{Shared, Slot, Words, touched, words};
use crate::keyed::{Ordered, Reader, walk};
use std::cell::RefCell;
use std::hint::black_box;
use std::sync::atomic::Ordering;

type Items = Vec<&'static Block>;

pub struct Lister {
    shared: &'static Shared,
    /// As many addresses as there are objects; one thread lists.
    items: RefCell<Items>,
}

impl From<&'static Shared> for Lister {
    fn from(shared: &'static Shared) -> Lister {
        Lister { shared, items: RefCell::new(vec![&made::<Block>(1)[0]; shared.loaded.len()]) }
    }
}

impl Clone for Lister {
    fn clone(&self) -> Lister {
        self.shared.into()
    }
}

impl Reader for Lister {
    fn get(&self, key: &[u8]) -> u64 {
        self.shared.get(key)
    }
}

impl Ordered for Lister {
    fn list(&self, prefix: &str, touch: bool) -> usize {
        let items = &mut *self.items.borrow_mut();
        items.clear();
        let newer = newest(matching(self.shared.loaded, prefix), self.shared.head(), |block, _| items.push(block));
        black_box(newer);
        walk(items.iter(), touch, |block| touched(block))
    }
}

/// The slots of a prefix, which is shorter than a key.
fn matching(slots: &'static [Slot], prefix: &str) -> &'static [Slot] {
    let bound = |rest: u8| -> Words {
        let mut key = [rest; super::store::KEY];
        key[..prefix.len()].copy_from_slice(prefix.as_bytes());
        words(&key)
    };
    let (low, high) = (bound(0), bound(u8::MAX));
    let from = slots.partition_point(|slot| slot.key() < low);
    let to = slots.partition_point(|slot| slot.key() <= high);
    &slots[from..to]
}

/// Visits the newest version of each slot, and says how many are newer than the head.
fn newest(slots: &'static [Slot], head: u64, mut visit: impl FnMut(&'static Block, u64)) -> usize {
    let mut newer = 0;
    for slot in slots {
        // Acquire: the block is written. Partner: the store in `Store::put`.
        let block = slot.newest.get(Ordering::Acquire).expect("each has a version");
        let event = slot.event.load(Ordering::Relaxed);
        newer += usize::from(event > head);
        visit(block, event);
    }
    newer
}

/// An event of the state.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Event {
    revision: u64,
    block: &'static Block,
    rest: [u64; 6],
}

/// Takes the whole state once, in portions.
pub fn take_state(shared: &'static Shared) -> usize {
    const PORTION: usize = 1024;
    let mut events: Vec<Event> = Vec::with_capacity(PORTION);
    let (head, mut count) = (shared.head(), 0);
    for slots in shared.loaded.chunks(PORTION) {
        events.clear();
        let newer = newest(slots, head, |block, revision| {
            block.prefetch(super::store::KEY);
            events.push(Event { revision, block, rest: [0; 6] });
        });
        black_box((newer, &events));
        for event in &events {
            black_box(touched(event.block));
            count += 1;
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::floor::store::Store;
    use crate::keyed::Keyed;
    use crate::load;

    #[test]
    fn lists_have_their_prefix() {
        let mut store = Store::<false>::filled(3000);
        store.put(load::key(1500).as_bytes(), b"w");
        let lister = Lister::from(store.reader());
        assert_eq!(lister.list(load::PREFIX, true), 3000);
        assert_eq!(lister.list(&load::namespace(1), true), load::NAMESPACE);
        let bytes: Vec<u64> = lister.items.borrow().iter().map(|block| touched(block)).collect();
        let of = |number| u64::from(if number == 500 { b'w' } else { b'v' });
        assert!(bytes.into_iter().eq((0..load::NAMESPACE).map(of)), "in the order of the keys, the newest of each");
        assert_eq!(take_state(store.reader()), 3000);
    }
}
