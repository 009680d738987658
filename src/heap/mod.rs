//! The writer's memory: blocks of one size in slabs, which come back to the writer when they are freed.
//!
//! A [`Heap`] belongs to one writer, which alone takes blocks from it, without a lock and without an atomic
//! access where the slab in use has one left. Any thread gives a block back ([`free`]): by the word of its slab
//! (`slab`). What a writer replaces, the reclaimer frees, and the writer takes again. The system's
//! allocator sees slabs of up to 64 KiB, and nothing of what is in them: so it has little to sort, to join or to lock
//! inside an apply, which is what the slowest single applies were made of.
//!
//! `docs/internals/heap.md` has the states of a slab, what is kept for later, and an example in numbers.
//!
//! Before each block stands a header of eight bytes. One half says where it came from: how far behind the begin of its
//! slab it lies, or the size of a block that is an allocation of its own. Those are what is larger than
//! [`classes::GREATEST`], and everything of who has no heap ([`System`]). The other half counts who has the block
//! ([`BlockCount`]), so that a count takes no memory, and lies in the line that who frees the block looks at anyway.
//!
//! Rejected: an allocator as a library. mimalloc has heaps, but a heap belongs to a thread, and a writer moves;
//! a program that links this one chooses its allocator, not we. Bounded lists of freed blocks: what goes beyond the
//! bound is what the system's allocator sorts.

mod batch;
mod classes;
mod count;
mod one;
pub(crate) mod shared_list;
mod slab;
#[cfg(all(test, not(any(loom, watchcore_plain_heap))))]
mod tests;

pub(crate) use batch::FreeBatch;
pub(crate) use classes::{Heap, HeapBytes};
#[cfg(all(test, unix, not(miri)))]
pub(crate) use count::MOST_COUNTS;
pub(crate) use count::{BlockCount, check_count};
pub(crate) use one::One;

use slab::{Home, Returned};
use std::alloc::Layout;
use std::ptr::NonNull;

/// What stands before a block.
#[repr(C)]
struct Header {
    /// See [`Header::origin`].
    origin: u32,
    count: BlockCount,
}

/// Bytes before a block.
pub(crate) const HEADER: usize = size_of::<Header>();
/// What blocks are aligned to.
pub(crate) const ALIGN: usize = 8;
/// What lies one word behind the begin of a block is aligned to this, where the block with its header is an odd multiple
/// of it.
pub(crate) const WIDE: usize = 2 * HEADER;

const _: () = assert!(HEADER == ALIGN);

/// Where a block came from.
enum BlockOrigin {
    /// A slab, behind whose begin it lies so many bytes with its header.
    Slab(usize),
    /// An allocation of its own of so many bytes.
    Alone(usize),
}

impl Header {
    /// Of a block of a slab.
    fn in_slab(offset: usize) -> Header {
        Header { origin: offset as u32, count: BlockCount::new() }
    }

    /// Of an allocation of its own. Both offsets and sizes are multiples of [`ALIGN`]: the lowest bit says which it is.
    fn alone(bytes: usize) -> Header {
        let origin = u32::try_from(bytes / ALIGN * 2 + 1).expect("lengths are limited");
        Header { origin, count: BlockCount::new() }
    }

    #[inline]
    fn origin(&self) -> BlockOrigin {
        if self.origin & 1 == 1 {
            BlockOrigin::Alone(self.origin as usize / 2 * ALIGN)
        } else {
            BlockOrigin::Slab(self.origin as usize)
        }
    }
}

/// Slabs of this thread's model that are not freed.
#[cfg(loom)]
pub(crate) fn living_slabs<T>(with: impl FnOnce(&mut usize) -> T) -> T {
    thread_local! {
        // One test runs on one thread of the system, all threads of its model included.
        static LIVING: std::cell::RefCell<usize> = const { std::cell::RefCell::new(0) };
    }
    LIVING.with_borrow_mut(with)
}

/// Where memory comes from.
pub(crate) trait Memory {
    /// A block of so many bytes, with a count of one, aligned to [`ALIGN`], and where they are an odd multiple of [`WIDE`]
    /// with the [`HEADER`], behind its first word to that; [`free`] takes it back. Where the system has none the process
    /// ends, as with a `Box`.
    fn allocate(&mut self, bytes: usize) -> NonNull<u8>;
}

/// Memory of who has no heap: each block is an allocation of its own.
pub(crate) struct System;

impl Memory for System {
    fn allocate(&mut self, bytes: usize) -> NonNull<u8> {
        let whole = layout(bytes + HEADER);
        // SAFETY: the layout is not empty; the header lies in it.
        unsafe {
            let place = std::alloc::alloc(whole).cast::<Header>();
            let Some(header) = NonNull::new(place) else { std::alloc::handle_alloc_error(whole) };
            header.write(Header::alone(whole.size()));
            header.add(1).cast()
        }
    }
}

/// Bytes that a block takes, with its header and what is left over.
#[inline]
pub(crate) fn footprint(bytes: usize) -> usize {
    match classes::class_of(bytes + HEADER) {
        Some((_, size)) => size,
        None => layout(bytes + HEADER).size(),
    }
}

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes.next_multiple_of(ALIGN), WIDE).expect("lengths are limited")
}

/// Asks the processor for a line of memory, for who looks at it soon.
#[inline]
pub(crate) fn prefetch(place: *const u8) {
    hint::<3>(place);
}

/// The same for who looks at it after many others: into the cache of the second level, so that the few lines that can
/// be on their way to the first at a time are those that are looked at next.
#[inline]
pub(crate) fn prefetch_early(place: *const u8) {
    hint::<2>(place);
}

/// `LEVEL` as `_MM_HINT_T0` and `_MM_HINT_T1` have it: 3 is the first level, 2 the second.
#[inline]
fn hint<const LEVEL: i32>(place: *const u8) {
    // SAFETY: a hint: it reads nothing as far as the program can tell, and any address will do.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::x86_64::_mm_prefetch::<LEVEL>(place.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

/// Gives a block back. Any thread; no lock, no wait.
///
/// # Safety
///
/// The block is from [`Memory::allocate`], nobody uses it any more, and it is given back once. What others did with it
/// happens before this call.
pub(crate) unsafe fn free(block: NonNull<u8>) {
    // SAFETY: by the caller's promise.
    if let Some(returned) = unsafe { returned(block) } {
        returned.give_back(Home::freed);
    }
}

/// Counts bytes with a block of a slab that outlive what the heap's owner knows of it; see [`HeapBytes::outliving`].
///
/// # Safety
///
/// The block is from [`Memory::allocate`], and the caller has it.
pub(crate) unsafe fn outlives<T>(block: NonNull<T>, bytes: i64) {
    // SAFETY: a header stands before it; its slab is alive while it is out.
    unsafe {
        let header = block.cast::<Header>().sub(1);
        if let BlockOrigin::Slab(offset) = header.as_ref().origin() {
            header.byte_sub(offset).cast::<slab::Slab>().as_ref().outlives(bytes);
        }
    }
}

/// A block of a slab that goes back to it; an allocation of its own is freed here.
///
/// # Safety
///
/// As [`free`].
#[inline]
unsafe fn returned(block: NonNull<u8>) -> Option<Returned> {
    // SAFETY: by the caller's promise a header stands before it, and the block is ours.
    unsafe {
        let header = block.cast::<Header>().sub(1);
        match header.as_ref().origin() {
            BlockOrigin::Slab(offset) => Some(Returned::new(header, offset)),
            BlockOrigin::Alone(bytes) => {
                std::alloc::dealloc(header.cast().as_ptr(), layout(bytes));
                None
            }
        }
    }
}
