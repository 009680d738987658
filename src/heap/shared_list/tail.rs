//! The tail of a list that other threads read: values appended after its own, with their order in one word.
//!
//! A list in key order takes a new key in the middle without a copy and without a lock: the value is written after the
//! list, `places` gets the index of the value that it belongs before, and one store of the word publishes it, with its
//! rank among the values of the tail. A value never moves in its cell while the list lives, so a reader sees all values
//! that its load of the word names, and no later ones.
//!
//! In numbers, for `b d f` and then `e`, `a`, `c`: the cells are `b d f | e a c`, the places 2, 0, 1, the order of
//! the tail by ranks `1 2 0`, and a reader finds a b c d e f.
//!
//! | step | partner | order |
//! | --- | --- | --- |
//! | `append` stores the word | `SharedList::tail` loads it | Release / Acquire |
//! | `append` claims the word | the store of the append before | Acquire / Release |

use super::SharedList;
use crate::heap::tail_word::{BITS, CLAIMED, MASK, TAIL};
use crate::sync::{Acquire, Relaxed, Release, ord};

/// The tail of a list, as one load of its word found it.
pub(crate) struct Tail<'a, T> {
    list: &'a SharedList<T>,
    word: u64,
}

impl<T> Clone for Tail<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Tail<'_, T> {}

impl<'a, T> Tail<'a, T> {
    pub(crate) fn len(self) -> usize {
        (self.word & MASK) as usize
    }

    pub(crate) fn is_empty(self) -> bool {
        self.word & MASK == 0
    }

    /// The value of a rank, and the index of the list's value that it belongs before.
    pub(crate) fn get(self, rank: usize) -> (usize, &'a T) {
        assert!(rank < self.len(), "a value that is there");
        let cell = (self.word >> (BITS * (rank + 1)) & MASK) as usize;
        let place = self.list.head().tail.places.load(Relaxed) >> (8 * cell) & 0xff;
        // SAFETY: the word that names the cell was stored after the value was written; the value does not change while
        // the list is borrowed, because only an only owner with a mutable borrow changes it.
        (place as usize, unsafe { &*self.list.values().add(self.list.len() + cell) })
    }

    /// The rank of the first value for which `below` is false.
    pub(crate) fn rank(self, below: impl Fn(usize, &'a T) -> bool) -> usize {
        let is_below = |rank: &usize| {
            let (place, value) = self.get(*rank);
            below(place, value)
        };
        (0..self.len()).find(|rank| !is_below(rank)).unwrap_or(self.len())
    }
}

impl<T> SharedList<T> {
    /// The values that were appended so far.
    #[inline]
    pub(crate) fn tail(&self) -> Tail<'_, T> {
        Tail { list: self, word: self.head().tail.word.load(ord!(TailLoad, Acquire)) }
    }

    /// The number of values, with the tail.
    pub(crate) fn len_with_tail(&self) -> usize {
        self.len() + self.tail().len()
    }

    /// Adds a value that belongs before the value `place` of the list, as the `rank`th of the tail, also if the list is
    /// shared: other threads see it or do not. Returns the value if there is no room, or another thread appends.
    pub(crate) fn append(&self, place: usize, rank: usize, value: T) -> Result<(), T> {
        let (len, tail) = (self.len(), &self.head().tail);
        let word = tail.word.load(Relaxed);
        let count = (word & MASK) as usize;
        if count == TAIL || len + count == self.room() || word & CLAIMED != 0 {
            return Err(value);
        }
        let byte = u8::try_from(place).ok().filter(|_| place <= len && rank <= count).expect("a place of the list");
        if tail.word.compare_exchange(word, word | CLAIMED, Acquire, Relaxed).is_err() {
            return Err(value);
        }
        // SAFETY: only the thread that has claimed the word writes, and the cell is in the block and named by no word.
        unsafe { self.values().add(len + count).write(value) };
        tail.places.store(tail.places.load(Relaxed) | u64::from(byte) << (8 * count), Relaxed);
        let at = BITS * (rank + 1);
        let (above, below) = (word >> at << at, word & ((1 << at) - 1));
        let ranks = above << BITS | (count as u64) << at | below;
        tail.word.store(ranks + 1, ord!(Tail, Release));
        Ok(())
    }
}

impl<T: Clone> SharedList<T> {
    /// Copies the values, with those of the tail in their places, into a list with this room.
    pub(crate) fn settled(&self, room: usize, memory: &mut impl super::Memory) -> SharedList<T> {
        let mut settled = SharedList::with_room(room, memory);
        settled.set_note(self.note());
        settled.extend_settled(self);
        settled
    }

    /// Adds copies of another list's values, with those of its tail in their places. Only for the only owner, and where
    /// there is room.
    pub(crate) fn extend_settled(&mut self, other: &SharedList<T>) {
        let (tail, mut from) = (other.tail(), 0);
        for rank in 0..tail.len() {
            let (place, value) = tail.get(rank);
            self.extend_from(&other[from..place]);
            self.extend_from(std::slice::from_ref(value));
            from = place;
        }
        self.extend_from(&other[from..]);
    }
}
