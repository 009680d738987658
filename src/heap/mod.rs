//! The writer's memory: blocks of one size in slabs, which come back to the writer when they are freed.
//!
//! A [`Heap`] belongs to one writer, which alone takes blocks from it, without a lock, and without an atomic access
//! where the slab in use has a free block. Any thread may free a block ([`free`]), through the word of its slab
//! (`slab`). The reclaimer frees blocks that a writer has replaced, and the writer takes them again. The system's
//! allocator sees only slabs of up to 64 KiB, so it has little to sort, join or lock inside an apply; that work made
//! the slowest single applies.
//!
//! `docs/internals/heap.md` has the life of a slab, the memory that is kept for later, and an example in numbers.
//!
//! Before each block stands a header of eight bytes. One half says where it came from: its offset in its slab, or the
//! size of a block that is a separate allocation, as blocks larger than [`classes::GREATEST`] and all blocks of
//! [`System`] are. The other half is its reference count ([`BlockCount`]), which so takes no further memory, and lies
//! in the cache line that the thread which frees the block loads anyway.
//!
//! Rejected: an allocator as a library. mimalloc has heaps, but a heap belongs to a thread, and a writer moves; a
//! program that links this one chooses its allocator, not we. Bounded lists of freed blocks: the system's allocator
//! would still sort the blocks beyond the bound (measured: `docs/internals/heap.md`).

mod batch;
mod block;
mod classes;
mod count;
mod heap_arc;
pub(crate) mod shared_list;
mod slab;
mod tail_word;
#[cfg(all(test, not(any(loom, watchcore_plain_heap))))]
mod tests;

pub(crate) use batch::FreeBatch;
#[cfg(loom)]
pub(crate) use block::living_slabs;
pub(crate) use block::{ALIGN, HEADER, Memory, System, WIDE, prefetch, prefetch_early};
pub(crate) use classes::{Heap, HeapBytes};
#[cfg(all(test, unix, not(miri)))]
pub(crate) use count::MOST_COUNTS;
pub(crate) use count::{BlockCount, check_count};
pub(crate) use heap_arc::HeapArc;

use block::{BlockOrigin, Header, layout};
use slab::{Home, Returned};
use std::ptr::NonNull;

/// The bytes that a block takes, with its header and rounded up to its class.
#[inline]
pub(crate) fn footprint(bytes: usize) -> usize {
    match classes::class_of(bytes + HEADER) {
        Some((_, size)) => size,
        None => layout(bytes + HEADER).size(),
    }
}

/// Frees a block. Any thread may call this; no lock, no wait.
///
/// # Safety
///
/// The block is from [`Memory::allocate`], no thread uses it any more, and it is freed once. Every use of it happens
/// before this call.
pub(crate) unsafe fn free(block: NonNull<u8>) {
    // SAFETY: no thread uses the block any more, and this call alone frees it (`# Safety`).
    if let Some(returned) = unsafe { returned(block) } {
        returned.give_back(Home::freed);
    }
}

/// Counts bytes of a slab's block in use that the heap's owner no longer counts; see [`HeapBytes::outliving`].
///
/// # Safety
///
/// The block is from [`Memory::allocate`], and the caller has it.
pub(crate) unsafe fn outlives<T>(block: NonNull<T>, bytes: i64) {
    // SAFETY: `allocate` has put a header before it, and a slab is alive while a block of it is in use.
    unsafe {
        let header = block.cast::<Header>().sub(1);
        if let BlockOrigin::Slab(offset) = header.as_ref().origin() {
            header.byte_sub(offset).cast::<slab::Slab>().as_ref().outlives(bytes);
        }
    }
}

/// Returns a block of a slab for its slab; frees a separate allocation.
///
/// # Safety
///
/// The contract of [`free`].
#[inline]
unsafe fn returned(block: NonNull<u8>) -> Option<Returned> {
    // SAFETY: `allocate` has put a header before the block, and no thread uses the block any more, so this may free it.
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
