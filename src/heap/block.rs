//! A block: its header, the sources of blocks, and prefetching.

use super::count::BlockCount;
use std::alloc::Layout;
use std::ptr::NonNull;

/// The header before each block.
#[repr(C)]
pub(super) struct Header {
    /// See [`Header::origin`].
    origin: u32,
    pub(super) count: BlockCount,
}

/// The size of the header.
pub(crate) const HEADER: usize = size_of::<Header>();
/// The alignment of blocks.
pub(crate) const ALIGN: usize = 8;
/// The alignment of the second word of a block whose size with the header is an odd multiple of this.
pub(crate) const WIDE: usize = 2 * HEADER;

const _: () = assert!(HEADER == ALIGN);

/// The origin of a block.
pub(super) enum BlockOrigin {
    /// A slab; its header lies at this offset from the slab's begin.
    Slab(usize),
    /// A separate allocation of this many bytes, outside any slab.
    Alone(usize),
}

impl Header {
    /// The header of a block in a slab.
    pub(super) fn in_slab(offset: usize) -> Header {
        Header { origin: offset as u32, count: BlockCount::new() }
    }

    /// The header of a separate allocation. Offsets and sizes are multiples of [`ALIGN`], so the lowest bit tells which it
    /// is.
    fn alone(bytes: usize) -> Header {
        let origin = u32::try_from(bytes / ALIGN * 2 + 1).expect("lengths are limited");
        Header { origin, count: BlockCount::new() }
    }

    #[inline]
    pub(super) fn origin(&self) -> BlockOrigin {
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
    /// an odd multiple of [`WIDE`], its second word is aligned to that. [`free`](super::free) takes it back. Out of memory aborts the
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

pub(super) fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes.next_multiple_of(ALIGN), WIDE).expect("lengths are limited")
}

impl BlockCount {
    /// The count of a block.
    ///
    /// # Safety
    ///
    /// The block is from [`Memory::allocate`], and not freed during 'a.
    #[inline]
    pub(crate) unsafe fn of<'a, T>(block: NonNull<T>) -> &'a BlockCount {
        // SAFETY: `allocate` has put a header before the block, which lives during 'a.
        unsafe { &(*block.cast::<Header>().sub(1).as_ptr()).count }
    }
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
