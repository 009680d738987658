//! An inbox: anybody pushes, one taker takes everything at once. No lock, no wait, no bound of its own.
//!
//! A stack of nodes. A push is one compare-exchange on its top, a take one swap of the whole; the taker
//! turns it round, so that what one thread pushed comes in that order.
//!
//! | push | take | order |
//! | --- | --- | --- |
//! | compare-exchange of the top | swap of the top, load in `is_empty` | Release / Acquire |
//!
//! A node is reached through the top alone and only the swap takes it from there, so a node that a push
//! has read as `next` is never looked at by the push: there is no ABA.

use super::{Acquire, AtomicPtr, Relaxed, Release, ord};
use std::alloc::Layout;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};

struct Node<T> {
    value: T,
    next: *mut Node<T>,
    /// Gives its memory back.
    free: unsafe fn(NonNull<u8>),
}

/// Frees a node of [`Inbox::push`].
///
/// # Safety
///
/// The place of a node that came from a box; once. Its value was moved out.
unsafe fn free_boxed<T>(place: NonNull<u8>) {
    // SAFETY: the caller promises that a box made the place, and that this is the only call for it.
    drop(unsafe { Box::from_raw(place.as_ptr().cast::<MaybeUninit<Node<T>>>()) });
}

/// See the module.
pub(crate) struct Inbox<T> {
    top: AtomicPtr<Node<T>>,
}

// SAFETY: the inbox owns its nodes; a value goes from the thread that pushes to the one that takes, and
// nobody sees it in between.
unsafe impl<T: Send> Send for Inbox<T> {}
// SAFETY: a thread that shares an inbox can only send values through it, and a `T` may be sent.
unsafe impl<T: Send> Sync for Inbox<T> {}

impl<T> Inbox<T> {
    #[cfg(not(loom))]
    pub(crate) const fn new() -> Inbox<T> {
        Inbox { top: AtomicPtr::new(ptr::null_mut()) }
    }

    #[cfg(loom)]
    pub(crate) fn new() -> Inbox<T> {
        Inbox { top: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Hands a value over. True: there was nothing before it. O(1); allocates one node.
    pub(crate) fn push(&self, value: T) -> bool {
        let place = NonNull::from(Box::leak(Box::new(MaybeUninit::<Node<T>>::uninit()))).cast();
        // SAFETY: a box of a node, which `free_boxed` takes back.
        unsafe { self.push_in(place, free_boxed::<T>, value) }
    }

    /// Memory for a node.
    pub(crate) const NODE: Layout = Layout::new::<Node<T>>();

    /// Like [`Inbox::push`], in memory of the caller's, which `free` gives back once the value was taken.
    ///
    /// # Safety
    ///
    /// `place` is memory of the layout [`Inbox::NODE`] that nobody else has, and `free` may be called with it once, by
    /// any thread.
    pub(crate) unsafe fn push_in(&self, place: NonNull<u8>, free: unsafe fn(NonNull<u8>), value: T) -> bool {
        let node = place.as_ptr().cast::<Node<T>>();
        // SAFETY: the place has the layout of a node, and nobody else has it (`# Safety`).
        unsafe { node.write(Node { value, next: ptr::null_mut(), free }) };
        let mut top = self.top.load(Relaxed);
        loop {
            // SAFETY: the node is ours alone until the exchange succeeds.
            unsafe { (*node).next = top };
            // Release: partner of the swap in `take_all`.
            match self.top.compare_exchange_weak(top, node, ord!(InboxPush, Release), Relaxed) {
                Ok(_) => return top.is_null(),
                Err(now) => top = now,
            }
        }
    }

    /// Takes everything, oldest first. O(what is there).
    pub(crate) fn take_all(&self) -> Vec<T> {
        if self.is_empty() {
            return Vec::new();
        }
        let mut values: Vec<T> = self.take_newest_first().collect();
        values.reverse();
        values
    }

    /// Takes everything, newest first, and reaches the values one by one: for a taker that may do only
    /// a few of them at a time. O(1).
    pub(crate) fn take_newest_first(&self) -> Taken<T> {
        // Acquire: partner of the exchange in `push`.
        Taken { top: self.top.swap(ptr::null_mut(), ord!(InboxTake, Acquire)) }
    }

    /// Whether there was nothing at some moment of this call. Acquire: partner of the exchange in `push`.
    pub(crate) fn is_empty(&self) -> bool {
        self.top.load(Acquire).is_null()
    }
}

impl<T> Drop for Inbox<T> {
    fn drop(&mut self) {
        self.take_all();
    }
}

/// The nodes taken out of an inbox; values that are not taken from it are dropped with it.
pub(crate) struct Taken<T> {
    top: *mut Node<T>,
}

// SAFETY: it alone has its nodes and their values, and a `T` may be sent.
unsafe impl<T: Send> Send for Taken<T> {}

impl<T> Default for Taken<T> {
    fn default() -> Taken<T> {
        Taken { top: ptr::null_mut() }
    }
}

impl<T> Taken<T> {
    /// Whether nothing is left of it.
    pub(crate) fn is_empty(&self) -> bool {
        self.top.is_null()
    }
}

impl<T> Iterator for Taken<T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        if self.top.is_null() {
            return None;
        }
        // SAFETY: the swap made the whole chain ours, and each node is taken once: the chain continues after it. Its
        // memory is given back by what came with it.
        unsafe {
            let place = NonNull::new_unchecked(self.top).cast();
            let Node { value, next, free } = self.top.read();
            free(place);
            self.top = next;
            Some(value)
        }
    }
}

impl<T> Drop for Taken<T> {
    fn drop(&mut self) {
        self.for_each(drop);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sync::often;
    use std::sync::Arc;

    #[test]
    fn pushed_values_are_taken_in_order() {
        let inbox = Inbox::new();
        assert!(inbox.is_empty() && inbox.take_all().is_empty());
        assert!(inbox.push(1) && !inbox.push(2));
        assert_eq!(inbox.take_all(), [1, 2]);
        assert!(inbox.push(3) && !inbox.push(4));
        assert_eq!(inbox.take_newest_first().collect::<Vec<_>>(), [4, 3]);
        let counted = Arc::new(());
        let inbox = Inbox::new();
        inbox.push(counted.clone());
        drop(inbox);
        assert_eq!(Arc::strong_count(&counted), 1, "what was never taken is dropped");
    }

    #[test]
    fn each_value_is_taken_once_by_somebody() {
        const EACH: u32 = often(2_000) as u32;
        let inbox = Inbox::new();
        let mut taken = std::thread::scope(|scope| {
            for thread in 0..4u32 {
                let inbox = &inbox;
                scope.spawn(move || {
                    (0..EACH).for_each(|value| {
                        inbox.push(thread * EACH + value);
                    })
                });
            }
            let mut taken = Vec::new();
            while taken.len() < 4 * EACH as usize {
                let more = inbox.take_all();
                let in_order = |thread| {
                    let own = more.iter().filter(|value| *value / EACH == thread);
                    own.clone().zip(own.skip(1)).all(|(first, second)| first < second)
                };
                assert!((0..4).all(in_order), "the order of one thread is kept");
                taken.extend(more);
                std::thread::yield_now();
            }
            taken
        });
        taken.sort_unstable();
        assert!(taken.iter().copied().eq(0..4 * EACH));
    }
}
