//! The owner's side of the slabs: which one a block is taken from, and which are given back to the system.

use super::slab::{Home, List, SLAB_STRIDE, Slab};
use super::{ALIGN, BlockCount, HEADER, Memory, System, prefetch};
use crate::sync::Arc;
use std::ptr::{self, NonNull};

/// Classes of blocks, header included: up to the first there is one every 8 bytes, up to the second every 16, then every
/// 64, up to the last every 256. Versions of more than the first lie in wider steps: at any eighth of a line they are
/// slower to go over.
const SMALL: usize = 256;
const FINE: usize = (1 << 10) + 16;
const COARSE: usize = (4 << 10) + 16;
const FINE_CLASSES: usize = SMALL / ALIGN + (FINE - SMALL) / 16;
/// Bytes of the largest block of a slab, with its header.
pub(super) const GREATEST: usize = (16 << 10) + 16;
const CLASSES: usize = FINE_CLASSES + (COARSE - FINE) / 64 + (GREATEST - COARSE) / 256;
/// Bytes of a slab, at most; not a power of two, so that the system's allocator does not take the next one for it.
const SLAB: usize = SLAB_STRIDE - 512;
/// The fewest blocks of a slab: the first of its class. Each slab after it has a quarter of those there are.
const FEWEST: usize = if cfg!(loom) { 2 } else { 4 };
/// Bytes of a block that are fetched before it is taken: what follows is a run that the processor sees itself.
const FETCHED: usize = 704;
/// Announced slabs that are accepted for one that is looked for, and for one revision.
const LOOK: usize = 8;
const TIDY: usize = 2;

/// The class of blocks of so many bytes, header included, and their size; none for larger ones.
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
    /// The slab in hand; null before the first.
    current: *mut Slab,
    /// Of what it has: a chain of blocks that came back, and blocks that were never out, from `fresh` on.
    top: u16,
    fresh: u16,
    blocks: u16,
    /// Blocks of it that are out.
    used: u16,
    /// Slabs that are not in hand, by [`List`].
    lists: [*mut Slab; 3],
    /// All slabs, and the spare ones.
    slabs: u32,
    spares: u32,
    /// Blocks of all of them.
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
    /// The slab is this class's, alive, and in no list.
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
    /// The slab is this class's, alive, and in a list.
    unsafe fn unlink(&mut self, slab: NonNull<Slab>) {
        // SAFETY: I1: as `link`.
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

    /// Gives a spare slab back where more than one in eight is, and beside one.
    fn trim(&mut self, discard: fn(Gone)) {
        if self.spares > 1 + self.slabs / 8
            && let Some(slab) = self.first(List::Spare)
        {
            // SAFETY: I1: what is in a list is alive; no block of this one is out, and from here on nobody knows it.
            unsafe {
                self.unlink(slab);
                self.slabs -= 1;
                self.all -= usize::from(slab.as_ref().blocks);
                discard(Gone(slab));
            }
        }
    }

    /// More of what came back to the slab in hand. False: nothing did, and the slab is put away.
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
            // SAFETY: the same; and in hand it was in no list.
            unsafe {
                if current.as_ref().leave(self.used) {
                    self.link(current, List::Full);
                    self.current = ptr::null_mut();
                    return false;
                }
            }
        }
    }

    /// Takes a slab in hand of which blocks have come back.
    fn resume(&mut self) -> bool {
        while let Some(slab) = self.first(List::Partial).or_else(|| self.first(List::Spare)) {
            // SAFETY: I1: what is in a list is alive.
            unsafe {
                self.unlink(slab);
                let Some((chain, used)) = slab.as_ref().take() else {
                    // It is on its way here again.
                    self.link(slab, List::Full);
                    continue;
                };
                self.hold(slab, chain.top, used);
                // Nothing of it was never out: it was put away when it was full.
                self.fresh = self.blocks;
            }
            return true;
        }
        false
    }

    fn hold(&mut self, slab: NonNull<Slab>, top: u16, used: u16) {
        // SAFETY: alive: it is about to be the one in hand.
        let blocks = unsafe { slab.as_ref() }.blocks;
        (self.current, self.top, self.used, self.blocks) = (slab.as_ptr(), top, used, blocks);
    }

    /// A new slab in hand.
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
    /// Where slabs go that are not needed: the owner does not free them itself (I6).
    discard: fn(Gone),
}

// SAFETY: I1: the owner's part of a slab is used by who has the heap; the rest is atomic.
unsafe impl Send for Heap {}

impl Heap {
    /// A heap that has nothing yet. `discard` gets the slabs that are not needed any more.
    pub(crate) fn new(discard: fn(Gone)) -> Heap {
        let classes = (0..CLASSES).map(|_| Class::EMPTY).collect();
        Heap { home: Home::new(), classes, pending: ptr::null_mut(), discard }
    }

    /// Counted by each slab.
    #[cfg(test)]
    pub(super) fn home(&self) -> Arc<Home> {
        self.home.clone()
    }

    /// Bytes that it keeps for what is taken next; any thread may ask.
    pub(crate) fn free_bytes(&self) -> HeapBytes {
        HeapBytes(self.home.clone())
    }

    /// Looks after slabs that came back: at most a few, so that a writer can do it with each revision.
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
            // SAFETY: I1: announced, so alive, in a list of its class, and ours since it was taken from the home.
            unsafe {
                self.pending = slab.as_ref().after();
                let class = &mut self.classes[slab.as_ref().class as usize];
                class.unlink(slab);
                let list = if slab.as_ref().accept() { List::Spare } else { List::Partial };
                class.link(slab, list);
                // Twice: the fewer slabs there are, the fewer may be spare.
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

/// What a heap keeps for what is taken next.
pub(crate) struct HeapBytes(Arc<Home>);

impl HeapBytes {
    pub(crate) fn get(&self) -> u64 {
        self.0.free_bytes()
    }

    /// Bytes of blocks that others have, and that the owner counts no more: see [`super::outlives`].
    pub(crate) fn outliving(&self) -> u64 {
        self.0.outliving()
    }
}

/// A slab of which no block is out, and that is in no list.
pub(crate) struct Gone(NonNull<Slab>);

// SAFETY: nobody else knows it.
unsafe impl Send for Gone {}

impl Gone {
    pub(crate) fn bytes(&self) -> usize {
        // SAFETY: alive until it is dropped.
        unsafe { self.0.as_ref() }.bytes()
    }
}

impl Drop for Gone {
    fn drop(&mut self) {
        // SAFETY: nobody else knows it, see the type.
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

/// Asks for the block of a slab that is taken after the next one, of this size: somebody else had it last, and its lines
/// are on their way here for longer than a revision takes. At place 0 is none.
///
/// # Safety
///
/// The slab is the caller's.
#[inline(always)]
unsafe fn fetch(slab: NonNull<Slab>, place: u16, size: usize) {
    if place > 0 {
        // SAFETY: by the caller's promise; a block lies there.
        let block = unsafe { Slab::at(slab, place) }.cast::<u8>().as_ptr();
        (0..size.min(FETCHED)).step_by(64).for_each(|at| prefetch(block.wrapping_add(at)));
    }
}

impl Heap {
    /// A block of a class.
    #[inline(always)]
    pub(super) fn take(&mut self, (class, size): (usize, usize)) -> NonNull<u8> {
        loop {
            let this = &mut self.classes[class];
            let block = match (NonNull::new(this.current), this.top) {
                (Some(slab), 1..) => {
                    // SAFETY: I1: the chain is the owner's, and of the slab in hand; so is the block with its header.
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
                    // SAFETY: I1: the slab in hand has the block, and it was never out.
                    unsafe { Slab::fresh(slab, this.fresh - 1) }
                }
                _ => {
                    self.refill((class, size));
                    continue;
                }
            };
            this.used += 1;
            self.home.took(size);
            // SAFETY: it is longer than its header.
            return unsafe { block.add(1) }.cast();
        }
    }

    /// A block of two in a slab, for models.
    #[cfg(loom)]
    pub(crate) fn take_of_two(&mut self) -> NonNull<u8> {
        self.take((0, 32))
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        for class in &mut self.classes {
            // SAFETY: I1: the slabs of the lists and the one in hand are alive until they are let go, each once; those
            // that are announced are let go below.
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
            // SAFETY: announced, taken from the home, and skipped above.
            unsafe {
                self.pending = slab.as_ref().after();
                Slab::orphan(slab, 0, true);
            }
        }
        self.home.close();
    }
}
