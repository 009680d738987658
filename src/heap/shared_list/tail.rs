//! What is added to a list that others read: a tail behind its values, with its order in one word.
//!
//! A list in key order takes what comes in the middle without a copy and without a lock: the value goes behind the
//! list, beside it stands before which value it belongs, and one store of the word shows it, with its rank
//! among the other ones of the tail. What stands in a cell never moves while the list lives, so a reader that has
//! loaded the word reads all that it says; what comes later it does not see.
//!
//! In numbers, for `b d f` and then `e`, `a`, `c`: the cells are `b d f | e a c`, the places 2, 0, 1, the order of
//! the tail by ranks `1 2 0`, and a reader finds a b c d e f.
//!
//! | step | partner | order |
//! | --- | --- | --- |
//! | `append` stores the word | `SharedList::tail` loads it | Release / Acquire |
//! | `append` claims the word | the store of the append before | Acquire / Release |

use super::SharedList;
use crate::sync::{Acquire, AtomicU64, Relaxed, Release, ord};
// What carries no order of its own: the word publishes it.
use std::sync::atomic::AtomicU64 as Plain;

/// Most values of a tail.
pub(crate) const TAIL: usize = 8;
/// Bits of a rank, and of their number, which stands below them.
const BITS: usize = 4;
const MASK: u64 = (1 << BITS) - 1;
/// Somebody appends.
const CLAIMED: u64 = 1 << 63;

const _: () = assert!((TAIL + 1) * BITS < 63 && TAIL as u64 <= MASK && TAIL <= size_of::<Plain>());

/// The part of a list's head that its tail needs.
pub(super) struct TailWord {
    /// How many there are, and by rank which.
    word: AtomicU64,
    /// Before which value of the list each belongs: a byte each, by cell. Stored by who has claimed the word.
    places: Plain,
}

impl TailWord {
    pub(super) fn new() -> TailWord {
        TailWord { word: AtomicU64::new(0), places: Plain::new(0) }
    }

    /// Number of values. For who alone has the list.
    pub(super) fn len(&self) -> usize {
        // Relaxed: who alone has the list has acquired what others did with it.
        (self.word.load(Relaxed) & MASK) as usize
    }
}

/// The tail of a list, as it was when it was looked at.
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

    /// The value of a rank, and before which value of the list it belongs.
    pub(crate) fn get(self, rank: usize) -> (usize, &'a T) {
        assert!(rank < self.len(), "a value that is there");
        let cell = (self.word >> (BITS * (rank + 1)) & MASK) as usize;
        let place = self.list.head().tail.places.load(Relaxed) >> (8 * cell) & 0xff;
        // SAFETY: the word that names the cell was stored after the value was written, which stays as it is while the
        // list is borrowed: who changes it has it alone.
        (place as usize, unsafe { &*self.list.values().add(self.list.len() + cell) })
    }

    /// The rank of the first value of which this is not true.
    pub(crate) fn rank(self, below: impl Fn(usize, &'a T) -> bool) -> usize {
        let is_below = |rank: &usize| {
            let (place, value) = self.get(*rank);
            below(place, value)
        };
        (0..self.len()).find(|rank| !is_below(rank)).unwrap_or(self.len())
    }
}

impl<T> SharedList<T> {
    /// What was appended so far.
    #[inline]
    pub(crate) fn tail(&self) -> Tail<'_, T> {
        Tail { list: self, word: self.head().tail.word.load(ord!(TailLoad, Acquire)) }
    }

    /// Number of values, with the tail.
    pub(crate) fn len_with_tail(&self) -> usize {
        self.len() + self.tail().len()
    }

    /// Adds a value that belongs before the value `place` of the list, as the `rank`th of the tail: also where others
    /// have the list, who see it or do not. The value comes back where there is no room, or somebody else
    /// appends.
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
        // SAFETY: who has claimed the word alone writes, and the cell is named by no word yet; there is room for it.
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
    /// Copies of the values and of the tail, each in its place, with room for so many.
    pub(crate) fn settled(&self, room: usize, memory: &mut impl super::Memory) -> SharedList<T> {
        let mut settled = SharedList::with_room(room, memory);
        settled.set_note(self.note());
        settled.extend_settled(self);
        settled
    }

    /// Adds copies of another list's values and of its tail, each in its place; there is room, and nobody else
    /// has this one.
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
