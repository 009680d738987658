//! A list of values in one counted block, with room for more: a node of a tree.
//!
//! Like `Arc<Vec<T>>`, but in one block of a [`Memory`], and one word large. The only owner may change it in place
//! ([`SharedList::is_unique`]); a shared list is copied, or gets values in its tail (`tail`). [`Either`] is a word that
//! holds one of two kinds of list.

mod tail;

pub(crate) use super::tail_word::TAIL;
pub(crate) use tail::Tail;

use super::tail_word::TailWord;
use super::{ALIGN, BlockCount, Memory, footprint, free};
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::{self, NonNull};

/// The head before the values.
#[repr(C)]
struct ListHead {
    len: u16,
    room: u16,
    note: u16,
    /// Whether it is the right side of an [`Either`].
    is_right: bool,
    tail: TailWord,
}

/// The count of a list.
///
/// # Safety
///
/// The list is alive during 'a.
#[inline]
unsafe fn count_of<'a>(list: NonNull<ListHead>) -> &'a BlockCount {
    // SAFETY: the head is at the begin of a block of `with_room`, which lives during 'a.
    unsafe { BlockCount::of(list) }
}

/// See the module.
#[repr(transparent)]
pub(crate) struct SharedList<T>(NonNull<ListHead>, PhantomData<T>);

// SAFETY: like `Arc<Vec<T>>`, it shares its values and may drop them on another thread; its count is atomic.
unsafe impl<T: Send + Sync> Send for SharedList<T> {}
// SAFETY: a shared handle gives `&T` and further counts, as `&Arc` does.
unsafe impl<T: Send + Sync> Sync for SharedList<T> {}

impl<T> SharedList<T> {
    /// Makes an empty list with room for `room` values.
    pub(crate) fn with_room(room: usize, memory: &mut impl Memory) -> SharedList<T> {
        const { assert!(align_of::<T>() <= ALIGN) };
        let place = memory.allocate(Self::bytes_of(room)).cast::<ListHead>();
        let room = u16::try_from(room).expect("nodes are small");
        // SAFETY: the block was just allocated, with room for the head.
        unsafe {
            let tail = TailWord::new();
            place.write(ListHead { len: 0, room, note: 0, is_right: false, tail });
        }
        SharedList(place, PhantomData)
    }

    fn bytes_of(room: usize) -> usize {
        size_of::<ListHead>() + room * size_of::<T>()
    }

    /// The bytes of its block.
    pub(crate) fn bytes(&self) -> usize {
        footprint(Self::bytes_of(self.room()))
    }

    #[inline]
    fn head(&self) -> &ListHead {
        // SAFETY: this handle has a count, so the block is alive; `with_room` has written the head.
        unsafe { self.0.as_ref() }
    }

    #[inline]
    fn values(&self) -> *mut T {
        // SAFETY: the values follow the head in the same block.
        unsafe { self.0.as_ptr().add(1).cast() }
    }

    pub(crate) fn room(&self) -> usize {
        self.head().room as usize
    }

    fn count(&self) -> &BlockCount {
        // SAFETY: this handle has a count, so the block is alive.
        unsafe { count_of(self.0) }
    }

    /// Whether the caller is the only owner.
    #[inline]
    pub(crate) fn is_unique(&self) -> bool {
        self.count().is_one()
    }

    /// # Panics
    ///
    /// If the list has another owner, or a tail.
    fn set_len(&mut self, len: usize) {
        assert!(self.is_unique() && self.head().tail.len() == 0, "only who alone has it changes it, and settled");
        // SAFETY: the assertion says that there is no other owner, and `self` is borrowed mutably.
        unsafe { self.0.as_mut() }.len = len as u16;
    }

    /// The owner's note: 0 at first.
    #[inline]
    pub(crate) fn note(&self) -> u16 {
        self.head().note
    }

    /// Sets the note, which settled copies and split-off parts inherit. Only for the only owner.
    pub(crate) fn set_note(&mut self, note: u16) {
        self.set_len(self.len());
        // SAFETY: `set_len` found no other owner, and `self` is borrowed mutably.
        unsafe { self.0.as_mut() }.note = note;
    }

    /// Inserts a value. Only for the only owner, and where there is room.
    pub(crate) fn insert(&mut self, at: usize, value: T) {
        let len = self.len();
        assert!(at <= len && len < self.room(), "room is made first");
        self.set_len(len + 1);
        // SAFETY: `set_len` found no other owner; the place lies in the block, and the values from there on are moved
        // up first.
        unsafe {
            let place = self.values().add(at);
            ptr::copy(place, place.add(1), len - at);
            place.write(value);
        }
    }

    /// Removes a value. Only for the only owner.
    pub(crate) fn remove(&mut self, at: usize) -> T {
        let len = self.len();
        assert!(at < len, "a value that is there");
        self.set_len(len - 1);
        // SAFETY: `set_len` found no other owner; the value is moved out once, and those after it are moved down.
        unsafe {
            let place = self.values().add(at);
            let value = place.read();
            ptr::copy(place.add(1), place, len - at - 1);
            value
        }
    }

    /// The value at an index, mutably. Only for the only owner.
    pub(crate) fn get_mut(&mut self, at: usize) -> &mut T {
        let len = self.len();
        assert!(at < len, "a value that is there");
        self.set_len(len);
        // SAFETY: `set_len` found no other owner, and `self` is borrowed mutably.
        unsafe { &mut *self.values().add(at) }
    }

    /// Moves its values from an index on to the end of another list that has room. Only for the only owner of both.
    fn move_to(&mut self, from: usize, other: &mut SharedList<T>) {
        let (len, end) = (self.len(), other.len());
        assert!(from <= len && end + (len - from) <= other.room(), "room is made first");
        self.set_len(from);
        other.set_len(end + (len - from));
        // SAFETY: `set_len` found no other owner of either; the values are moved once, to a block that has room.
        unsafe { ptr::copy_nonoverlapping(self.values().add(from), other.values().add(end), len - from) };
    }

    /// Moves the values from an index on into a new list with this room. Only for the only owner.
    pub(crate) fn split_off(&mut self, at: usize, room: usize, memory: &mut impl Memory) -> SharedList<T> {
        let mut right = SharedList::with_room(room, memory);
        right.set_note(self.note());
        self.move_to(at, &mut right);
        right
    }

    /// Replaces its block by one with this room. Only for the only owner.
    pub(crate) fn resize(&mut self, room: usize, memory: &mut impl Memory) {
        if room != self.room() {
            *self = self.split_off(0, room, memory);
        }
    }
}

impl<T: Clone> SharedList<T> {
    /// Adds copies of values. Only for the only owner, and where there is room.
    pub(crate) fn extend_from(&mut self, values: &[T]) {
        let len = self.len();
        assert!(len + values.len() <= self.room(), "room for all");
        self.set_len(len);
        for (at, value) in values.iter().enumerate() {
            // SAFETY: `set_len` found no other owner; the place lies in the block, after the present values.
            unsafe { self.values().add(len + at).write(value.clone()) };
        }
        self.set_len(len + values.len());
    }

    /// Makes a list of copies of values, with this room.
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
        // SAFETY: `len` values are initialized, and only an only owner that borrows the list mutably changes them.
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
            // SAFETY: the last count is gone, so no other thread has the block.
            unsafe {
                ptr::slice_from_raw_parts_mut(self.values(), self.len() + self.head().tail.len()).drop_in_place();
                self.0.drop_in_place();
                free(self.0.cast());
            }
        }
    }
}

/// One of two kinds of [`SharedList`], in one word.
#[repr(transparent)]
pub(crate) struct Either<L, R>(NonNull<ListHead>, PhantomData<(L, R)>);

// SAFETY: it is one of the two lists, and both may be sent.
unsafe impl<L: Send + Sync, R: Send + Sync> Send for Either<L, R> {}
// SAFETY: a shared handle gives `&T` and further counts, as `&Arc` does.
unsafe impl<L: Send + Sync, R: Send + Sync> Sync for Either<L, R> {}

/// The list of an [`Either`] that is being changed, and the place that it goes back to.
struct Moved<'a, L, R> {
    side: ManuallyDrop<Side<SharedList<L>, SharedList<R>>>,
    to: &'a mut Either<L, R>,
}

impl<L, R> Drop for Moved<'_, L, R> {
    fn drop(&mut self) {
        // SAFETY: `side` is taken only here, once; the value of `to` was moved out before, so the write must not drop it.
        unsafe {
            let whole = match ManuallyDrop::take(&mut self.side) {
                Side::Left(values) => Either::left(values),
                Side::Right(values) => Either::right(values),
            };
            ptr::write(self.to, whole);
        }
    }
}

/// One of the two sides.
pub(crate) enum Side<L, R> {
    Left(L),
    Right(R),
}

impl<L, R> Either<L, R> {
    /// # Panics
    ///
    /// If the list is the right side of another [`Either`].
    pub(crate) fn left(values: SharedList<L>) -> Either<L, R> {
        assert!(!values.head().is_right, "a side is chosen once");
        Either(ManuallyDrop::new(values).0, PhantomData)
    }

    /// # Panics
    ///
    /// If the list has another owner and is not a right side yet.
    pub(crate) fn right(values: SharedList<R>) -> Either<L, R> {
        let mut place = ManuallyDrop::new(values).0;
        // SAFETY: `values` has a count, so the block is alive; it is changed only where that is the only count.
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
        // SAFETY: this handle has a count, so the block is alive.
        unsafe { self.0.as_ref() }.is_right
    }

    #[inline]
    pub(crate) fn side(&self) -> Side<&SharedList<L>, &SharedList<R>> {
        // SAFETY: `Either` and both lists are a transparent pointer, and the block says which list it is.
        unsafe {
            if self.is_right() {
                Side::Right(&*ptr::from_ref(self).cast::<SharedList<R>>())
            } else {
                Side::Left(&*ptr::from_ref(self).cast::<SharedList<L>>())
            }
        }
    }

    /// Changes its list, which may become another list in another block.
    pub(crate) fn renew<T>(&mut self, change: impl FnOnce(&mut Side<SharedList<L>, SharedList<R>>) -> T) -> T {
        // SAFETY: the value that is moved out here is written back when `moved` is dropped, also if `change` panics.
        let side = unsafe { ptr::read(self) }.into_side();
        let mut moved = Moved { side: ManuallyDrop::new(side), to: self };
        change(&mut moved.side)
    }

    fn count(&self) -> &BlockCount {
        // SAFETY: this handle has a count, so the block is alive.
        unsafe { count_of(self.0) }
    }

    pub(crate) fn is_unique(&self) -> bool {
        self.count().is_one()
    }

    /// Releases its count. Returns the list if the count was the last.
    pub(crate) fn into_last(self) -> Option<Self> {
        let this = ManuallyDrop::new(self);
        this.count().sub().then(|| {
            // The last count was this one, so no other thread has the block: take the count again.
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
        // The count passes to a list of the right kind, which is dropped here.
        if self.is_right() {
            drop(SharedList::<R>(self.0, PhantomData));
        } else {
            drop(SharedList::<L>(self.0, PhantomData));
        }
    }
}
