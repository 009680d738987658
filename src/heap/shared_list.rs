//! Values in one counted block, with room for more: what the nodes of a tree are.
//!
//! As `Arc<Vec<T>>`, but one block of a [`Memory`], and one word. Who alone has it may change it in place
//! ([`SharedList::is_unique`]); everybody else copies, or appends to its tail (`tail`). Two kinds of them can stand in
//! one word: [`Either`].

mod tail;

pub(crate) use tail::{TAIL, Tail};

use super::{ALIGN, BlockCount, Memory, footprint, free};
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::{self, NonNull};
use tail::TailWord;

/// What stands before the values.
#[repr(C)]
struct ListHead {
    len: u16,
    room: u16,
    note: u16,
    /// Which side of an [`Either`] it is.
    is_right: bool,
    tail: TailWord,
}

/// The count on a list.
///
/// # Safety
///
/// It is alive during 'a.
#[inline]
unsafe fn count_of<'a>(list: NonNull<ListHead>) -> &'a BlockCount {
    // SAFETY: the block of `with_room`, alive by the caller's promise.
    unsafe { BlockCount::of(list) }
}

/// See the module.
#[repr(transparent)]
pub(crate) struct SharedList<T>(NonNull<ListHead>, PhantomData<T>);

// SAFETY: as `Arc<Vec<T>>`.
unsafe impl<T: Send + Sync> Send for SharedList<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for SharedList<T> {}

impl<T> SharedList<T> {
    /// Nothing, with room for so many.
    pub(crate) fn with_room(room: usize, memory: &mut impl Memory) -> SharedList<T> {
        const { assert!(align_of::<T>() <= ALIGN) };
        let place = memory.allocate(Self::bytes_of(room)).cast::<ListHead>();
        let room = u16::try_from(room).expect("nodes are small");
        // SAFETY: a block of our own, with room for the head.
        unsafe {
            let tail = TailWord::new();
            place.write(ListHead { len: 0, room, note: 0, is_right: false, tail });
        }
        SharedList(place, PhantomData)
    }

    fn bytes_of(room: usize) -> usize {
        size_of::<ListHead>() + room * size_of::<T>()
    }

    /// Bytes of its block.
    pub(crate) fn bytes(&self) -> usize {
        footprint(Self::bytes_of(self.room()))
    }

    #[inline]
    fn head(&self) -> &ListHead {
        // SAFETY: alive while it is counted; written by `with_room`.
        unsafe { self.0.as_ref() }
    }

    #[inline]
    fn values(&self) -> *mut T {
        // SAFETY: they follow the head, in the same block.
        unsafe { self.0.as_ptr().add(1).cast() }
    }

    pub(crate) fn room(&self) -> usize {
        self.head().room as usize
    }

    fn count(&self) -> &BlockCount {
        // SAFETY: alive while it is counted.
        unsafe { count_of(self.0) }
    }

    /// Whether nobody else has it.
    #[inline]
    pub(crate) fn is_unique(&self) -> bool {
        self.count().is_one()
    }

    /// # Panics
    ///
    /// Where somebody else has it, too, or it has a tail.
    fn set_len(&mut self, len: usize) {
        assert!(self.is_unique() && self.head().tail.len() == 0, "only who alone has it changes it, and settled");
        // SAFETY: nobody else has it, and it is borrowed for changing.
        unsafe { self.0.as_mut() }.len = len as u16;
    }

    /// What its owner has noted: 0 at first.
    #[inline]
    pub(crate) fn note(&self) -> u16 {
        self.head().note
    }

    /// Notes something with it, which copies that are settled, and parts, have too; nobody else has it.
    pub(crate) fn set_note(&mut self, note: u16) {
        self.set_len(self.len());
        // SAFETY: as `set_len`.
        unsafe { self.0.as_mut() }.note = note;
    }

    /// Inserts a value; there is room, and nobody else has it.
    pub(crate) fn insert(&mut self, at: usize, value: T) {
        let len = self.len();
        assert!(at <= len && len < self.room(), "room is made first");
        self.set_len(len + 1);
        // SAFETY: as `set_len`; the place lies in the block, and what stood from there on is moved by one.
        unsafe {
            let place = self.values().add(at);
            ptr::copy(place, place.add(1), len - at);
            place.write(value);
        }
    }

    /// Takes a value out; nobody else has it.
    pub(crate) fn remove(&mut self, at: usize) -> T {
        let len = self.len();
        assert!(at < len, "a value that is there");
        self.set_len(len - 1);
        // SAFETY: as `set_len`; the value is moved out, and what follows takes its place.
        unsafe {
            let place = self.values().add(at);
            let value = place.read();
            ptr::copy(place.add(1), place, len - at - 1);
            value
        }
    }

    /// The value at an index, for changing; nobody else has it.
    pub(crate) fn get_mut(&mut self, at: usize) -> &mut T {
        let len = self.len();
        assert!(at < len, "a value that is there");
        self.set_len(len);
        // SAFETY: as `set_len`.
        unsafe { &mut *self.values().add(at) }
    }

    /// Moves its values from an index on to the end of another one that has room; nobody else has either.
    fn move_to(&mut self, from: usize, other: &mut SharedList<T>) {
        let (len, end) = (self.len(), other.len());
        assert!(from <= len && end + (len - from) <= other.room(), "room is made first");
        self.set_len(from);
        other.set_len(end + (len - from));
        // SAFETY: as `set_len`; the values are moved from one block to the other.
        unsafe { ptr::copy_nonoverlapping(self.values().add(from), other.values().add(end), len - from) };
    }

    /// The values from an index on, with room for so many; nobody else has it.
    pub(crate) fn split_off(&mut self, at: usize, room: usize, memory: &mut impl Memory) -> SharedList<T> {
        let mut right = SharedList::with_room(room, memory);
        right.set_note(self.note());
        self.move_to(at, &mut right);
        right
    }

    /// Makes it one of so much room; nobody else has it.
    pub(crate) fn resize(&mut self, room: usize, memory: &mut impl Memory) {
        if room != self.room() {
            *self = self.split_off(0, room, memory);
        }
    }
}

impl<T: Clone> SharedList<T> {
    /// Adds copies of values; there is room, and nobody else has it.
    pub(crate) fn extend_from(&mut self, values: &[T]) {
        let len = self.len();
        assert!(len + values.len() <= self.room(), "room for all");
        self.set_len(len);
        for (at, value) in values.iter().enumerate() {
            // SAFETY: as `set_len`; the place lies in the block, behind the values that are there.
            unsafe { self.values().add(len + at).write(value.clone()) };
        }
        self.set_len(len + values.len());
    }

    /// Of copies of values, with room for so many.
    pub(crate) fn copied(values: &[T], room: usize, memory: &mut impl Memory) -> SharedList<T> {
        let mut copy = SharedList::with_room(room, memory);
        copy.extend_from(values);
        copy
    }
}

impl<T> Deref for SharedList<T> {
    type Target = [T];
    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: so many values are there, and nobody changes them while it is borrowed.
        unsafe { std::slice::from_raw_parts(self.values(), self.head().len as usize) }
    }
}

impl<T> Clone for SharedList<T> {
    #[inline]
    fn clone(&self) -> SharedList<T> {
        self.count().add();
        SharedList(self.0, PhantomData)
    }
}

impl<T> Drop for SharedList<T> {
    #[inline]
    fn drop(&mut self) {
        if self.count().sub() {
            // SAFETY: the last count is gone: nobody else has it.
            unsafe {
                ptr::slice_from_raw_parts_mut(self.values(), self.len() + self.head().tail.len()).drop_in_place();
                self.0.drop_in_place();
                free(self.0.cast());
            }
        }
    }
}

/// One of two kinds of counted values, in one word.
#[repr(transparent)]
pub(crate) struct Either<L, R>(NonNull<ListHead>, PhantomData<(L, R)>);

// SAFETY: as either of the two.
unsafe impl<L: Send + Sync, R: Send + Sync> Send for Either<L, R> {}
// SAFETY: as above.
unsafe impl<L: Send + Sync, R: Send + Sync> Sync for Either<L, R> {}

/// The values of an [`Either`] that change, and where they go back to.
struct Moved<'a, L, R> {
    side: ManuallyDrop<Side<SharedList<L>, SharedList<R>>>,
    to: &'a mut Either<L, R>,
}

impl<L, R> Drop for Moved<'_, L, R> {
    fn drop(&mut self) {
        // SAFETY: taken out once, here; what `to` has was moved out before, so nothing is dropped there.
        unsafe {
            let whole = match ManuallyDrop::take(&mut self.side) {
                Side::Left(values) => Either::left(values),
                Side::Right(values) => Either::right(values),
            };
            ptr::write(self.to, whole);
        }
    }
}

/// Which of the two it is.
pub(crate) enum Side<L, R> {
    Left(L),
    Right(R),
}

impl<L, R> Either<L, R> {
    /// # Panics
    ///
    /// Where they are the right side of another one.
    pub(crate) fn left(values: SharedList<L>) -> Either<L, R> {
        assert!(!values.head().is_right, "a side is chosen once");
        Either(ManuallyDrop::new(values).0, PhantomData)
    }

    /// # Panics
    ///
    /// Where somebody else has them, and not as the right side.
    pub(crate) fn right(values: SharedList<R>) -> Either<L, R> {
        let mut place = ManuallyDrop::new(values).0;
        // SAFETY: alive while it is counted; changed only where nobody else has it.
        unsafe {
            if !place.as_ref().is_right {
                assert!(count_of(place).is_one(), "a side is chosen once");
                place.as_mut().is_right = true;
            }
        }
        Either(place, PhantomData)
    }

    fn into_side(self) -> Side<SharedList<L>, SharedList<R>> {
        let this = ManuallyDrop::new(self);
        if this.is_right() {
            Side::Right(SharedList(this.0, PhantomData))
        } else {
            Side::Left(SharedList(this.0, PhantomData))
        }
    }

    #[inline]
    fn is_right(&self) -> bool {
        // SAFETY: alive while it is counted.
        unsafe { self.0.as_ref() }.is_right
    }

    #[inline]
    pub(crate) fn side(&self) -> Side<&SharedList<L>, &SharedList<R>> {
        // SAFETY: all three are one pointer, and the block says which it is.
        unsafe {
            if self.is_right() {
                Side::Right(&*ptr::from_ref(self).cast::<SharedList<R>>())
            } else {
                Side::Left(&*ptr::from_ref(self).cast::<SharedList<L>>())
            }
        }
    }

    /// Changes its values, which may become others, in another block.
    pub(crate) fn renew<T>(&mut self, change: impl FnOnce(&mut Side<SharedList<L>, SharedList<R>>) -> T) -> T {
        // SAFETY: what is moved out here comes back when `moved` is dropped, also where `change` panics.
        let side = unsafe { ptr::read(self) }.into_side();
        let mut moved = Moved { side: ManuallyDrop::new(side), to: self };
        change(&mut moved.side)
    }

    fn count(&self) -> &BlockCount {
        // SAFETY: alive while it is counted.
        unsafe { count_of(self.0) }
    }

    pub(crate) fn is_unique(&self) -> bool {
        self.count().is_one()
    }

    /// Gives the count away; itself, if it was the last.
    pub(crate) fn into_last(self) -> Option<Self> {
        let this = ManuallyDrop::new(self);
        this.count().sub().then(|| {
            // Nobody else has it: the count is this one's.
            this.count().renew();
            Either(this.0, PhantomData)
        })
    }
}

impl<L, R> Clone for Either<L, R> {
    #[inline]
    fn clone(&self) -> Self {
        self.count().add();
        Either(self.0, PhantomData)
    }
}

impl<L, R> Drop for Either<L, R> {
    #[inline]
    fn drop(&mut self) {
        // The count goes to the one that is dropped here, of the side that the block says.
        if self.is_right() {
            drop(SharedList::<R>(self.0, PhantomData));
        } else {
            drop(SharedList::<L>(self.0, PhantomData));
        }
    }
}
