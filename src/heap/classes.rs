//! The owner's side of the slabs: chooses the slab that a block is taken from, and the slabs that go back to the system.

use super::block::{ALIGN, HEADER, Memory, System, prefetch};
use super::count::BlockCount;
use super::slab::{Home, List, SLAB_STRIDE, Slab};
use crate::sync::Arc;
use std::ptr::{self, NonNull};

/// Size classes of blocks with their header: every 8 bytes up to SMALL, every 16 up to FINE, every 64 up to COARSE, every
/// 256 up to GREATEST. Above SMALL the steps are wider, because versions at any multiple of 8 bytes are slower to scan.
const SMALL: usize = 256;
const FINE: usize = (1 << 10) + 16;
const COARSE: usize = (4 << 10) + 16;
const FINE_CLASSES: usize = SMALL / ALIGN + (FINE - SMALL) / 16;
/// The size of the largest block in a slab, with its header.
pub(super) const GREATEST: usize = (16 << 10) + 16;
const CLASSES: usize = FINE_CLASSES + (COARSE - FINE) / 64 + (GREATEST - COARSE) / 256;
/// The largest size of a slab. Not a power of two, which the system's allocator would round up to the next one.
const SLAB: usize = SLAB_STRIDE - 512;
/// The blocks of the first slab of a class; each later slab has a quarter of the class's blocks.
const FEWEST: usize = if cfg!(loom) { 2 } else { 4 };
/// The bytes of a block that are prefetched before it is taken; the processor's own prefetcher fetches the rest.
const FETCHED: usize = 704;
/// The most announced slabs that are accepted in a refill, and in a revision.
const LOOK: usize = 8;
const TIDY: usize = 2;

/// The class for blocks of this many bytes, header included, and its block size; `None` for larger blocks.
#[inline(always)]
pub(super) const fn class_of(bytes: usize) -> Option<(usize, usize)> {
    if bytes <= SMALL {
        let size = bytes.next_multiple_of(ALIGN);
        return Some((size / ALIGN - 1, size));
    }
    if bytes <= FINE {
        let size = bytes.next_multiple_of(16);
        return Some((SMALL / ALIGN - 1 + (size - SMALL) / 16, size));
    }
    if bytes <= COARSE {
        let steps = (bytes - FINE).div_ceil(64);
        return Some((FINE_CLASSES + steps - 1, FINE + steps * 64));
    }
    if bytes <= GREATEST {
        let (before, steps) = (FINE_CLASSES + (COARSE - FINE) / 64, (bytes - COARSE).div_ceil(256));
        return Some((before + steps - 1, COARSE + steps * 256));
    }
    None
}

/// The slabs of blocks of one size.
#[derive(Clone, Copy)]
struct Class {
    /// The slab from which blocks are taken, "in hand"; null where there is none.
    current: *mut Slab,
    /// Its free blocks: a chain of freed blocks from the place `top` on, and never used ones from the number `fresh` on.
    top: u16,
    fresh: u16,
    blocks: u16,
    /// Its blocks that are in use.
    used: u16,
    /// The other slabs, by [`List`].
    lists: [*mut Slab; 3],
    /// The number of all slabs, and of spare ones.
    slabs: u32,
    spares: u32,
    /// The number of blocks of all slabs.
    all: usize,
}

impl Class {
    const EMPTY: Class = Class {
        current: ptr::null_mut(),
        top: 0,
        fresh: 0,
        blocks: 0,
        used: 0,
        lists: [ptr::null_mut(); 3],
        slabs: 0,
        spares: 0,
        all: 0,
    };

    /// Puts a slab into a list.
    ///
    /// # Safety
    ///
    /// The slab is of this class, alive, and in no list.
    unsafe fn link(&mut self, slab: NonNull<Slab>, list: List) {
        // SAFETY: I1: only the owner reads and writes the neighbours; both slabs are alive while they are in a list.
        unsafe {
            #[cfg(loom)]
            slab.as_ref().own.written();
            let first = &mut self.lists[list as usize];
            slab.as_ref().list.set(list);
            slab.as_ref().neighbours[0].set(ptr::null_mut());
            slab.as_ref().neighbours[1].set(*first);
            if let Some(next) = NonNull::new(*first) {
                next.as_ref().neighbours[0].set(slab.as_ptr());
            }
            *first = slab.as_ptr();
        }
        self.spares += u32::from(matches!(list, List::Spare));
    }

    /// Takes a slab out of its list.
    ///
    /// # Safety
    ///
    /// The slab is of this class, alive, and in a list.
    unsafe fn unlink(&mut self, slab: NonNull<Slab>) {
        // SAFETY: I1: only the owner reads and writes the neighbours; the slab and those beside it are in a list, so alive.
        unsafe {
            let list = slab.as_ref().list.get();
            let [before, next] = [0, 1].map(|side| slab.as_ref().neighbours[side].get());
            match NonNull::new(before) {
                Some(before) => before.as_ref().neighbours[1].set(next),
                None => self.lists[list as usize] = next,
            }
            if let Some(next) = NonNull::new(next) {
                next.as_ref().neighbours[0].set(before);
            }
            self.spares -= u32::from(matches!(list, List::Spare));
        }
    }

    /// The first slab of a list.
    fn first(&self, list: List) -> Option<NonNull<Slab>> {
        NonNull::new(self.lists[list as usize])
    }

    /// Discards a spare slab if more than one, plus an eighth of all slabs, are spare.
    fn trim(&mut self, discard: fn(Gone)) {
        if self.spares > 1 + self.slabs / 8
            && let Some(slab) = self.first(List::Spare)
        {
            // SAFETY: I1: slabs in a list are alive; a spare slab has no block in use, and `unlink` removes the last
            // pointers.
            unsafe {
                self.unlink(slab);
                self.slabs -= 1;
                self.all -= usize::from(slab.as_ref().blocks);
                discard(Gone(slab));
            }
        }
    }

    /// Takes the blocks that came back to the slab in hand. False: none did, and the slab is put away as Full.
    fn collect(&mut self) -> bool {
        let Some(current) = NonNull::new(self.current) else { return false };
        loop {
            // SAFETY: I1: the slab in hand is the owner's.
            let chain = unsafe { current.as_ref() }.collect();
            if chain.count > 0 {
                self.used -= chain.count;
                self.top = chain.top;
                return true;
            }
            // SAFETY: I1: the slab in hand is the owner's, and in no list.
            unsafe {
                if current.as_ref().leave(self.used) {
                    self.link(current, List::Full);
                    self.current = ptr::null_mut();
                    return false;
                }
            }
        }
    }

    /// Takes a slab in hand that has returned blocks.
    fn resume(&mut self) -> bool {
        while let Some(slab) = self.first(List::Partial).or_else(|| self.first(List::Spare)) {
            // SAFETY: I1: slabs in a list are alive.
            unsafe {
                self.unlink(slab);
                let Some((chain, used)) = slab.as_ref().take() else {
                    // It was announced again, and will be accepted later.
                    self.link(slab, List::Full);
                    continue;
                };
                self.hold(slab, chain.top, used);
                // It has no never used block, because it was put away when it was full.
                self.fresh = self.blocks;
            }
            return true;
        }
        false
    }

    fn hold(&mut self, slab: NonNull<Slab>, top: u16, used: u16) {
        // SAFETY: the caller passes a living slab, which becomes the one in hand.
        let blocks = unsafe { slab.as_ref() }.blocks;
        (self.current, self.top, self.used, self.blocks) = (slab.as_ptr(), top, used, blocks);
    }

    /// Makes a new slab and takes it in hand.
    fn grow(&mut self, home: &Arc<Home>, (class, size): (usize, usize)) {
        let most = ((SLAB - Slab::HEAD) / size).max(1);
        let blocks = (self.all / 4).max(FEWEST).min(most);
        let slab = Slab::new(home, class, size, blocks);
        self.hold(slab, 0, 0);
        self.fresh = 0;
        self.slabs += 1;
        self.all += blocks;
    }
}

/// See the module.
pub(crate) struct Heap {
    home: Arc<Home>,
    classes: Box<[Class]>,
    /// Announced slabs that were taken from the home and are not accepted yet.
    pending: *mut Slab,
    /// Called with slabs that are not needed, because the owner does not free them itself (I6).
    discard: fn(Gone),
}

// SAFETY: I1: only the thread that has the heap uses the owner's part of its slabs; the rest is atomic.
unsafe impl Send for Heap {}

impl Heap {
    /// Makes an empty heap. `discard` gets the slabs that are no longer needed.
    pub(crate) fn new(discard: fn(Gone)) -> Heap {
        let classes = (0..CLASSES).map(|_| Class::EMPTY).collect();
        Heap { home: Home::new(), classes, pending: ptr::null_mut(), discard }
    }

    /// The heap's home, on which each slab has a count.
    #[cfg(test)]
    pub(super) fn home(&self) -> Arc<Home> {
        self.home.clone()
    }

    /// Free bytes that the heap keeps for later blocks; any thread may read them.
    pub(crate) fn free_bytes(&self) -> HeapBytes {
        HeapBytes(self.home.clone())
    }

    /// Accepts announced slabs, at most [`TIDY`], so that a writer can call it with each revision.
    #[inline]
    pub(crate) fn tidy(&mut self) {
        if !self.pending.is_null() || self.home.has_announced() {
            self.accept(TIDY);
        }
    }

    fn accept(&mut self, most: usize) {
        for _ in 0..most {
            if self.pending.is_null() {
                self.pending = self.home.taken();
            }
            let Some(slab) = NonNull::new(self.pending) else { return };
            // SAFETY: I1: an announced slab is alive, in a list of its class, and the owner's once taken from the home.
            unsafe {
                self.pending = slab.as_ref().after();
                let class = &mut self.classes[slab.as_ref().class as usize];
                class.unlink(slab);
                let list = if slab.as_ref().accept() { List::Spare } else { List::Partial };
                class.link(slab, list);
                // Twice, because with fewer slabs fewer may be spare.
                class.trim(self.discard);
                class.trim(self.discard);
            }
        }
    }

    #[cold]
    fn refill(&mut self, (class, size): (usize, usize)) {
        if self.classes[class].collect() {
            return;
        }
        self.accept(LOOK);
        if !self.classes[class].resume() {
            self.classes[class].grow(&self.home, (class, size));
        }
    }
}

/// The byte counts of a heap, for statistics.
pub(crate) struct HeapBytes(Arc<Home>);

impl HeapBytes {
    pub(crate) fn get(&self) -> u64 {
        self.0.free_bytes()
    }

    /// Bytes of blocks in use that the owner no longer counts: see [`super::outlives`].
    pub(crate) fn outliving(&self) -> u64 {
        self.0.outliving()
    }
}

/// A slab that has no block in use and is in no list.
pub(crate) struct Gone(NonNull<Slab>);

// SAFETY: a slab in no list and without a block in use has no other pointer to it.
unsafe impl Send for Gone {}

impl Gone {
    pub(crate) fn bytes(&self) -> usize {
        // SAFETY: only the drop of `Gone` frees the slab.
        unsafe { self.0.as_ref() }.bytes()
    }
}

impl Drop for Gone {
    fn drop(&mut self) {
        // SAFETY: no block is in use and no other pointer exists (see the type), and a drop runs once.
        unsafe { Slab::destroy(self.0) }
    }
}

impl Memory for Heap {
    #[inline(always)]
    fn allocate(&mut self, bytes: usize) -> NonNull<u8> {
        match class_of(bytes + HEADER) {
            // Under loom only the models of this module have slabs.
            Some(class) if !cfg!(any(loom, watchcore_plain_heap)) => self.take(class),
            _ => System.allocate(bytes),
        }
    }
}

/// Prefetches the block at `place`, which is taken after the next one: another core had it last, and its lines take
/// longer to arrive than a revision takes. Place 0 means no block.
///
/// # Safety
///
/// The caller owns the slab, and a block lies at `place`, unless that is 0.
#[inline(always)]
unsafe fn fetch(slab: NonNull<Slab>, place: u16, size: usize) {
    if place > 0 {
        // SAFETY: `place` is not 0, so a block lies there (`# Safety`).
        let block = unsafe { Slab::at(slab, place) }.cast::<u8>().as_ptr();
        (0..size.min(FETCHED)).step_by(64).for_each(|at| prefetch(block.wrapping_add(at)));
    }
}

impl Heap {
    /// Takes a block of a class.
    #[inline(always)]
    pub(super) fn take(&mut self, (class, size): (usize, usize)) -> NonNull<u8> {
        loop {
            let this = &mut self.classes[class];
            let block = match (NonNull::new(this.current), this.top) {
                (Some(slab), 1..) => {
                    // SAFETY: I1: the chain is the owner's, and of the slab in hand; so the block and its header are,
                    // too.
                    unsafe {
                        let block = Slab::at(slab, this.top);
                        this.top = Slab::below(slab, this.top);
                        if this.top > 0 {
                            fetch(slab, Slab::below(slab, this.top), size);
                        }
                        (*block.as_ptr()).count = BlockCount::new();
                        block
                    }
                }
                (Some(slab), 0) if this.fresh < this.blocks => {
                    this.fresh += 1;
                    // SAFETY: I1: the slab in hand is the owner's, and the block of this number exists and was never used.
                    unsafe { Slab::fresh(slab, this.fresh - 1) }
                }
                _ => {
                    self.refill((class, size));
                    continue;
                }
            };
            this.used += 1;
            self.home.took(size);
            // SAFETY: a block is larger than its header, so the address after the header lies in it.
            return unsafe { block.add(1) }.cast();
        }
    }

    /// Takes a block of a class whose slabs have two blocks, for models.
    #[cfg(loom)]
    pub(crate) fn take_of_two(&mut self) -> NonNull<u8> {
        self.take((0, 32))
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        for class in &mut self.classes {
            // SAFETY: I1: the slabs of the lists and the one in hand are alive until `orphan`, called once for each; it
            // skips Announced slabs, which are orphaned below.
            unsafe {
                if let Some(slab) = NonNull::new(class.current) {
                    Slab::orphan(slab, class.used, false);
                }
                for list in class.lists {
                    let mut next = list;
                    while let Some(slab) = NonNull::new(next) {
                        next = slab.as_ref().neighbours[1].get();
                        Slab::orphan(slab, 0, false);
                    }
                }
            }
        }
        while let Some(slab) = NonNull::new(self.pending) {
            // SAFETY: it is Announced and taken from the home, and the `orphan` above has skipped it.
            unsafe {
                self.pending = slab.as_ref().after();
                Slab::orphan(slab, 0, true);
            }
        }
        self.home.close();
    }
}
