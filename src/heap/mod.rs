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

/// The header before each block.
#[repr(C)]
struct Header {
    /// See [`Header::origin`].
    origin: u32,
    count: BlockCount,
}

/// The size of the header.
pub(crate) const HEADER: usize = size_of::<Header>();
/// The alignment of blocks.
pub(crate) const ALIGN: usize = 8;
/// The alignment of the second word of a block whose size with the header is an odd multiple of this.
pub(crate) const WIDE: usize = 2 * HEADER;

const _: () = assert!(HEADER == ALIGN);

/// The origin of a block.
enum BlockOrigin {
    /// A slab; its header lies at this offset from the slab's begin.
    Slab(usize),
    /// A separate allocation of this many bytes, outside any slab.
    Alone(usize),
}

impl Header {
    /// The header of a block in a slab.
    fn in_slab(offset: usize) -> Header {
        Header { origin: offset as u32, count: BlockCount::new() }
    }

    /// The header of a separate allocation. Offsets and sizes are multiples of [`ALIGN`], so the lowest bit tells which it
    /// is.
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

/// The number of slabs of this thread's model that are not freed.
#[cfg(loom)]
pub(crate) fn living_slabs<T>(with: impl FnOnce(&mut usize) -> T) -> T {
    thread_local! {
        // A loom test runs all threads of its model on one thread of the system.
        static LIVING: std::cell::RefCell<usize> = const { std::cell::RefCell::new(0) };
    }
    LIVING.with_borrow_mut(with)
}

/// A source of blocks.
pub(crate) trait Memory {
    /// Allocates a block of this many bytes, with a count of one, aligned to [`ALIGN`]. If its size with the [`HEADER`] is
    /// an odd multiple of [`WIDE`], its second word is aligned to that. [`free`] takes it back. Out of memory aborts the
    /// process, as with a `Box`.
    fn allocate(&mut self, bytes: usize) -> NonNull<u8>;
}

/// Memory without a heap: each block is a separate allocation.
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

/// The bytes that a block takes, with its header and rounded up to its class.
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

/// Prefetches a cache line that is used soon. `--cfg watchcore_no_prefetch` builds without prefetches:
/// `docs/internals/store.md` says what they buy.
#[inline]
pub(crate) fn prefetch(place: *const u8) {
    hint::<3>(place);
}

/// Prefetches a cache line that is used after many others, into the second level only: few lines can be on their way to
/// the first level at a time, and these should be the ones that are used next.
#[inline]
pub(crate) fn prefetch_early(place: *const u8) {
    hint::<2>(place);
}

/// `LEVEL` is that of `_MM_HINT_T0` and `_MM_HINT_T1`: 3 is the first level, 2 the second.
#[inline]
fn hint<const LEVEL: i32>(place: *const u8) {
    // SAFETY: a prefetch does not access memory as far as the program can tell, so any address is allowed.
    #[cfg(all(target_arch = "x86_64", not(watchcore_no_prefetch)))]
    unsafe {
        std::arch::x86_64::_mm_prefetch::<LEVEL>(place.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(watchcore_no_prefetch))))]
    let _ = place;
}

/// Frees a block. Any thread may call this; no lock, no wait.
///
/// # Safety
///
/// The block is from [`Memory::allocate`], no thread uses it any more, and it is freed once. Every use of it happens
/// before this call.
pub(crate) unsafe fn free(block: NonNull<u8>) {
    // SAFETY: the contracts are the same.
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
