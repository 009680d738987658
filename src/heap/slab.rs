//! A slab: blocks of one size in one allocation, and the word by which they come back to its owner.
//!
//! The word has the slab's state, the block that was freed last, the number of blocks freed since the owner looked, and,
//! unless the slab is in hand, the number of blocks in use when it was put away. A freed block names the one freed
//! before it. This is a stack on which all threads only push, and which the owner only takes whole, so there is no ABA.
//! A chain of several blocks is pushed at once.
//!
//! | state | owner | end of the state |
//! | --- | --- | --- |
//! | Current | the owner takes blocks from it | the owner puts it away when none is left: Full |
//! | Full | nobody | enough blocks for a look have come back: Announced |
//! | Announced | on its way to the owner, by [`Home`] | the owner accepts it: Listed |
//! | Listed | the owner knows that it has free blocks | the owner takes it: Current; the last block in use comes back: Announced |
//! | Orphan | nobody: its owner is gone | the thread that frees the last block frees it |
//!
//! The thread that makes it Announced pushes it on its home's list, once, and no thread frees it before it was taken
//! from there. When the owner goes, an Announced slab is taken by the later of two: the owner after it has closed the
//! home, or the thread that pushed, if it sees the home closed.
//!
//! | step | partner | order |
//! | --- | --- | --- |
//! | `give_back`: the blocks, then the word | `collect`, `take`, `accept`, `orphan`: the word, then the blocks | Release / Acquire |
//! | the owner's word | `give_back`: the word | Release / Acquire |
//! | `announce`: link, then `Home::announced` | `taken`: `Home::announced`, then links | Release / Acquire |
//! | `announce`: pushed, then `closed` | `close`: `closed`, then taken | AcqRel, both on the list: the second of the two sees the first |

use super::block::{ALIGN, Header, WIDE};
#[cfg(loom)]
use crate::sync::Track;
use crate::sync::{AcqRel, Acquire, Arc, AtomicBool, AtomicPtr, AtomicU64, Relaxed, Release, ord};
use crossbeam_utils::CachePadded;
use std::alloc::Layout;
use std::cell::Cell;
use std::ptr::{self, NonNull};
// Statistics carry no order: std's also under loom.
use std::sync::atomic::AtomicU64 as Count;

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub(super) enum SlabState {
    Current,
    Full,
    Announced,
    Listed,
    Orphan,
}

impl SlabState {
    const ALL: [SlabState; 5] =
        [SlabState::Current, SlabState::Full, SlabState::Announced, SlabState::Listed, SlabState::Orphan];
}

/// The word of a slab, taken apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Word {
    state: SlabState,
    /// The number of blocks in use when it was put away; valid in any state but Current.
    used: u16,
    /// The number of freed blocks; `top` is the place of the last of them, see [`Slab::at`].
    count: u16,
    top: u16,
}

impl Word {
    const CURRENT: Word = Word { state: SlabState::Current, used: 0, count: 0, top: 0 };

    fn pack(self) -> u64 {
        self.state as u64 | u64::from(self.used) << 16 | u64::from(self.count) << 32 | u64::from(self.top) << 48
    }

    fn unpack(word: u64) -> Word {
        Word {
            state: SlabState::ALL[word as u16 as usize],
            used: (word >> 16) as u16,
            count: (word >> 32) as u16,
            top: (word >> 48) as u16,
        }
    }
}

/// A chain of freed blocks: the place of the last, and their number.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Chain {
    pub(super) top: u16,
    pub(super) count: u16,
}

/// The lists of the slabs that an owner does not have in hand.
#[derive(Clone, Copy)]
pub(super) enum List {
    /// No block is known to have come back.
    Full,
    /// Some blocks have come back.
    Partial,
    /// All blocks have come back.
    Spare,
}

/// The size of a cache line.
const LINE: usize = 64;
/// The approximate distance of full slabs: about every second slab begins in a stretch of this size with an odd number.
pub(super) const SLAB_STRIDE: usize = 64 << 10;
/// A slab that was put away is announced once one in this many blocks has come back: each look costs the owner some
/// cache misses.
const WORTH: usize = 16;

/// The list on which the slabs of a heap are announced, and the heap's statistics.
pub(super) struct Home {
    announced: AtomicPtr<Slab>,
    /// Set when the owner is gone.
    closed: AtomicBool,
    /// Statistics, in bytes: of all slabs, of blocks that were taken, and of blocks freed by the reclaimer and by
    /// others. The owner and the reclaimer store with each block, so both counters have their own cache line, apart
    /// from the fields that the owner loads.
    slabs: Count,
    taken: CachePadded<Count>,
    reclaimed: CachePadded<Count>,
    freed: Count,
    /// See [`super::outlives`].
    outliving: Count,
}

impl Home {
    pub(super) fn new() -> Arc<Home> {
        Arc::new(Home {
            announced: AtomicPtr::new(ptr::null_mut()),
            closed: AtomicBool::new(false),
            slabs: Count::new(0),
            taken: CachePadded::new(Count::new(0)),
            reclaimed: CachePadded::new(Count::new(0)),
            freed: Count::new(0),
            outliving: Count::new(0),
        })
    }

    /// Counts a block that the owner takes.
    #[inline]
    pub(super) fn took(&self, bytes: usize) {
        // Only the owner stores here.
        self.taken.store(self.taken.load(Relaxed) + bytes as u64, Relaxed);
    }

    /// Counts bytes of freed blocks.
    #[inline]
    pub(super) fn freed(&self, bytes: u64) {
        self.freed.fetch_add(bytes, Relaxed);
    }

    /// Counts bytes that the reclaimer frees, without an exchange. While another thread stands in for the reclaimer and
    /// a new one starts, two may add at once and one addition be lost: only the statistic drifts.
    #[inline]
    pub(super) fn reclaimed(&self, bytes: u64) {
        self.reclaimed.store(self.reclaimed.load(Relaxed) + bytes, Relaxed);
    }

    /// Bytes of the slabs outside blocks in use.
    pub(super) fn free_bytes(&self) -> u64 {
        // Loaded in this order, because a freed block was counted as taken before.
        let freed = self.freed.load(Relaxed) + self.reclaimed.load(Relaxed);
        let out = self.taken.load(Relaxed).saturating_sub(freed);
        self.slabs.load(Relaxed).saturating_sub(out)
    }

    pub(super) fn outliving(&self) -> u64 {
        self.outliving.load(Relaxed)
    }

    /// Whether a slab is announced. Relaxed: a hint, which saves the swap of an empty list.
    #[inline]
    pub(super) fn has_announced(&self) -> bool {
        !self.announced.load(Relaxed).is_null()
    }

    /// Takes the announced slabs, newest first; [`Slab::after`] leads from one to the next.
    pub(super) fn taken(&self) -> *mut Slab {
        if !self.has_announced() {
            return ptr::null_mut();
        }
        // Acquire: partner of the exchange in `announce`.
        self.announced.swap(ptr::null_mut(), ord!(SlabsTaken, Acquire))
    }

    fn announce(&self, slab: NonNull<Slab>) {
        let mut top = self.announced.load(Relaxed);
        loop {
            // SAFETY: an Announced slab is not freed before it was taken from the list.
            unsafe { slab.as_ref() }.link.store(top, Relaxed);
            // Release: partner of the swap in `taken`. Acquire: partner of the one in `abandon`.
            match self.announced.compare_exchange_weak(top, slab.as_ptr(), ord!(SlabAnnounced, AcqRel), Relaxed) {
                Ok(_) => break,
                Err(now) => top = now,
            }
        }
        if self.closed.load(Relaxed) {
            self.abandon();
        }
    }

    /// Closes the home when the owner is gone: the slabs that are announced from now on have no owner.
    pub(super) fn close(&self) {
        // Relaxed: the swap in `abandon` publishes it to threads that announce after it.
        self.closed.store(true, Relaxed);
        self.abandon();
    }

    fn abandon(&self) {
        // Acquire and Release: partner of the exchange in `announce`. Without the hint of `taken`, which might miss a slab.
        let mut next = self.announced.swap(ptr::null_mut(), ord!(HomeClosed, AcqRel));
        while let Some(slab) = NonNull::new(next) {
            // SAFETY: the slab is Announced and was taken from the list, so it is this thread's until `orphan`.
            unsafe {
                next = slab.as_ref().after();
                Slab::orphan(slab, 0, true);
            }
        }
    }
}

/// A chain of freed blocks on the way back to their slab: only this value has them, and each names the one before it.
pub(super) struct Returned {
    slab: NonNull<Slab>,
    chain: Chain,
    /// The first block of the chain, which names none yet.
    bottom: NonNull<Header>,
}

impl Returned {
    /// A chain of one block.
    ///
    /// # Safety
    ///
    /// The contract of [`super::free`]; the block is in a slab, `offset` bytes from the slab's begin.
    #[inline]
    pub(super) unsafe fn new(block: NonNull<Header>, offset: usize) -> Returned {
        // SAFETY: the block lies `offset` bytes from its slab's begin, in the same allocation.
        let slab = unsafe { block.byte_sub(offset) }.cast::<Slab>();
        let top = (offset / ALIGN) as u16;
        #[cfg(loom)]
        // SAFETY: a slab is alive while a block of it is not back.
        unsafe { slab.as_ref() }.track(top).written();
        Returned { slab, chain: Chain { top, count: 1 }, bottom: block }
    }

    /// The field in which a freed block names the one before it, in place of its count.
    #[inline]
    fn before(block: NonNull<Header>) -> NonNull<u16> {
        // SAFETY: the field lies in the block, so its address is not null.
        unsafe { NonNull::new_unchecked(&raw mut (*block.as_ptr()).count).cast() }
    }

    /// Whether both are of one slab.
    #[inline]
    pub(super) fn is_of(&self, other: &Returned) -> bool {
        self.slab == other.slab
    }

    /// Appends a chain of the same slab.
    ///
    /// # Panics
    ///
    /// If the chain is of another slab.
    #[inline]
    pub(super) fn join(&mut self, more: Returned) {
        assert!(self.is_of(&more), "blocks of one slab");
        // SAFETY: only the two chains have these blocks.
        unsafe { Returned::before(more.bottom).write(self.chain.top) };
        self.chain = Chain { top: more.chain.top, count: self.chain.count + more.chain.count };
    }

    /// Pushes the blocks on their slab's word, and counts their bytes.
    #[inline]
    pub(super) fn give_back(self, count: fn(&Home, u64)) {
        let Returned { slab, chain, bottom } = self;
        // SAFETY: a slab is alive while a block of it is not back.
        let this = unsafe { slab.as_ref() };
        count(&this.home, u64::from(this.size) * u64::from(chain.count));
        // Acquire: partner of the owner's stores.
        let mut packed = this.word.load(Acquire);
        let mut home = None;
        let (state, is_last) = loop {
            let word = Word::unpack(packed);
            let count = word.count + chain.count;
            let is_last = count == word.used;
            let state = match word.state {
                SlabState::Full if count >= this.worth => SlabState::Announced,
                SlabState::Listed if is_last => SlabState::Announced,
                same => same,
            };
            let announces = state == SlabState::Announced && word.state != SlabState::Announced;
            // Take a count on the home: after the exchange another thread may take the slab and free it.
            home = home.take().filter(|_| announces).or_else(|| announces.then(|| this.home.clone()));
            // SAFETY: only this chain has the block, until the exchange.
            unsafe { Returned::before(bottom).write(word.top) };
            let after = Word { state, count, top: chain.top, ..word };
            // Release: partner of the owner's Acquire. Acquire: uses of the blocks happen before the slab is freed.
            match this.word.compare_exchange_weak(packed, after.pack(), ord!(BlockFreed, AcqRel), Acquire) {
                Ok(_) => break (state, is_last),
                Err(now) => packed = now,
            }
        };
        match home {
            Some(home) => home.announce(slab),
            None if state == SlabState::Orphan && is_last => {
                // SAFETY: an Orphan has no owner, and this was its last block in use.
                unsafe { Slab::destroy(slab) }
            }
            None => {}
        }
    }
}

/// See the module.
pub(super) struct Slab {
    word: AtomicU64,
    home: Arc<Home>,
    link: AtomicPtr<Slab>,
    /// The size of a block with its header, and the number of blocks.
    size: u32,
    pub(super) blocks: u16,
    /// The number of blocks that have to come back before it is announced.
    worth: u16,
    pub(super) class: u16,
    /// Only the owner uses these: the list that the slab is in, and its neighbours there.
    pub(super) list: Cell<List>,
    pub(super) neighbours: [Cell<*mut Slab>; 2],
    /// Tracks of the owner's fields and of the blocks.
    #[cfg(loom)]
    pub(super) own: Track,
    #[cfg(loom)]
    tracks: Vec<Track>,
}

impl Slab {
    /// See [`super::outlives`].
    pub(super) fn outlives(&self, bytes: i64) {
        self.home.outliving.fetch_add(bytes as u64, Relaxed);
    }

    /// The most bytes before the first block. The first block begins a cache line, so that small blocks whose size
    /// divides a line do not cross one.
    pub(super) const HEAD: usize = size_of::<Slab>().next_multiple_of(LINE) + LINE;

    fn layout(size: usize, blocks: usize) -> Layout {
        const { assert!(align_of::<Slab>() <= LINE && LINE.is_multiple_of(WIDE)) };
        Layout::from_size_align(Slab::HEAD + size * blocks, LINE).expect("slabs are small")
    }

    /// The bytes before the first block, chosen so that it begins with an odd line in about every second slab and with
    /// an even one in the others. Otherwise blocks of an even number of lines would have all their first lines in half
    /// of the sets of a cache.
    #[inline]
    fn before_blocks(slab: NonNull<Slab>) -> usize {
        let address = slab.addr().get();
        Slab::HEAD - ((address / LINE) ^ (address / SLAB_STRIDE)) % 2 * LINE
    }

    /// Makes a slab that its owner has in hand.
    pub(super) fn new(home: &Arc<Home>, class: usize, size: usize, blocks: usize) -> NonNull<Slab> {
        let layout = Slab::layout(size, blocks);
        // SAFETY: the layout is not empty; the head is written before the pointer leaves this function.
        unsafe {
            let place = std::alloc::alloc(layout).cast::<Slab>();
            let Some(slab) = NonNull::new(place) else { std::alloc::handle_alloc_error(layout) };
            #[cfg(loom)]
            super::block::living_slabs(|living| *living += 1);
            home.slabs.fetch_add(layout.size() as u64, Relaxed);
            slab.write(Slab {
                word: AtomicU64::new(Word::CURRENT.pack()),
                home: home.clone(),
                link: AtomicPtr::new(ptr::null_mut()),
                size: size as u32,
                blocks: blocks as u16,
                worth: (blocks / WORTH).max(1) as u16,
                class: class as u16,
                neighbours: [const { Cell::new(ptr::null_mut()) }; 2],
                list: Cell::new(List::Full),
                #[cfg(loom)]
                own: Track::new(),
                #[cfg(loom)]
                tracks: (0..blocks).map(|_| Track::new()).collect(),
            });
            slab
        }
    }

    /// The size of the allocation.
    pub(super) fn bytes(&self) -> usize {
        Slab::HEAD + self.size as usize * self.blocks as usize
    }

    /// The slab that was announced before this one.
    pub(super) fn after(&self) -> *mut Slab {
        self.link.load(Relaxed)
    }

    /// Writes the header of the never used block of this number, counted from 0, and returns it.
    ///
    /// # Safety
    ///
    /// The caller owns the slab, which has a block of this number that was never used.
    #[inline]
    pub(super) unsafe fn fresh(slab: NonNull<Slab>, number: u16) -> NonNull<Header> {
        // SAFETY: the slab has a block of this number, so it lies in the allocation, whose provenance `slab` has.
        unsafe {
            let offset = Slab::before_blocks(slab) + slab.as_ref().size as usize * usize::from(number);
            let block = slab.byte_add(offset).cast::<Header>();
            block.write(Header::in_slab(offset));
            block
        }
    }

    /// The block at a place, which is its offset from the slab's begin in steps of [`ALIGN`], so never 0.
    ///
    /// # Safety
    ///
    /// A block of the slab lies there.
    #[inline]
    pub(super) unsafe fn at(slab: NonNull<Slab>, place: u16) -> NonNull<Header> {
        // SAFETY: a block lies at the place, so the address lies in the allocation, whose provenance `slab` has.
        unsafe { slab.byte_add(usize::from(place) * ALIGN).cast() }
    }

    /// The place of the block below the one at this place in a chain, which was freed before it; 0: there is none.
    ///
    /// # Safety
    ///
    /// The chain came from this slab's word, and only the owner has it.
    #[inline]
    pub(super) unsafe fn below(slab: NonNull<Slab>, place: u16) -> u16 {
        // SAFETY: the block was freed, and the owner has taken its chain, so only the owner uses it.
        unsafe {
            #[cfg(loom)]
            slab.as_ref().track(place).written();
            Returned::before(Slab::at(slab, place)).read()
        }
    }

    /// The track of the block at a place.
    #[cfg(loom)]
    fn track(&self, place: u16) -> &Track {
        let offset = usize::from(place) * ALIGN - Slab::before_blocks(NonNull::from(self));
        &self.tracks[offset / self.size as usize]
    }

    /// Takes the blocks that came back to the slab in hand. Only the owner calls this.
    pub(super) fn collect(&self) -> Chain {
        // Relaxed: a hint, which saves the swap where no block came back.
        if Word::unpack(self.word.load(Relaxed)).top == 0 {
            return Chain::default();
        }
        // Acquire: partner of the exchange in `give_back`.
        let word = Word::unpack(self.word.swap(Word::CURRENT.pack(), ord!(BlocksTaken, AcqRel)));
        Chain { top: word.top, count: word.count }
    }

    /// Puts the slab in hand away, with `used` blocks in use. False: some came back meanwhile. Only the owner calls this.
    pub(super) fn leave(&self, used: u16) -> bool {
        let full = Word { state: SlabState::Full, used, count: 0, top: 0 };
        // Release: partner of the load in `give_back`.
        self.word.compare_exchange(Word::CURRENT.pack(), full.pack(), Release, Relaxed).is_ok()
    }

    /// Accepts an announced slab. True: no block of it is in use. Only the owner calls this.
    pub(super) fn accept(&self) -> bool {
        let mut packed = self.word.load(Acquire);
        loop {
            let word = Word::unpack(packed);
            debug_assert_eq!(word.state, SlabState::Announced);
            let listed = Word { state: SlabState::Listed, ..word };
            // Acquire: the owner may free an empty slab, after all uses of its blocks.
            match self.word.compare_exchange_weak(packed, listed.pack(), AcqRel, Acquire) {
                Ok(_) => return word.count == word.used,
                Err(now) => packed = now,
            }
        }
    }

    /// Takes a listed slab in hand; returns its freed blocks and the number of blocks in use. `None`: it was announced
    /// again. Only the owner calls this.
    pub(super) fn take(&self) -> Option<(Chain, u16)> {
        let mut packed = self.word.load(Acquire);
        loop {
            let word = Word::unpack(packed);
            if word.state != SlabState::Listed {
                return None;
            }
            // Acquire: partner of the exchange in `give_back`.
            match self.word.compare_exchange_weak(packed, Word::CURRENT.pack(), ord!(BlocksTaken, AcqRel), Acquire) {
                Ok(_) => return Some((Chain { top: word.top, count: word.count }, word.used - word.count)),
                Err(now) => packed = now,
            }
        }
    }

    /// Makes a slab an Orphan, as its owner goes: this call frees it, or the thread that frees its last block. `used`: the
    /// blocks in use, for the slab in hand. An Announced slab stays so until the thread that has `taken` it calls this.
    ///
    /// # Safety
    ///
    /// Called once by the owner, once by the thread that has taken it from the home; neither uses the slab after it.
    pub(super) unsafe fn orphan(slab: NonNull<Slab>, used: u16, taken: bool) {
        // SAFETY: no thread frees the slab before it is an Orphan.
        let this = unsafe { slab.as_ref() };
        let mut packed = this.word.load(Acquire);
        loop {
            let word = Word::unpack(packed);
            if word.state == SlabState::Announced && !taken {
                return;
            }
            let used = if word.state == SlabState::Current { used } else { word.used };
            let orphan = Word { state: SlabState::Orphan, used, ..word };
            // Acquire: uses of the blocks happen before the free below. Release: partner of the load in `give_back`.
            match this.word.compare_exchange_weak(packed, orphan.pack(), ord!(SlabOrphan, AcqRel), Acquire) {
                Ok(_) if word.count == used => {
                    // SAFETY: no block is in use, and the caller was the last that had the slab.
                    return unsafe { Slab::destroy(slab) };
                }
                Ok(_) => return,
                Err(now) => packed = now,
            }
        }
    }

    /// Frees a slab.
    ///
    /// # Safety
    ///
    /// No block of it is in use, no other thread has a pointer to it, and this is called once.
    pub(super) unsafe fn destroy(slab: NonNull<Slab>) {
        // SAFETY: no other thread can reach the slab, and `new` has allocated it with this layout.
        unsafe {
            #[cfg(loom)]
            super::block::living_slabs(|living| *living -= 1);
            #[cfg(loom)]
            slab.as_ref().tracks.iter().chain([&slab.as_ref().own]).for_each(Track::end);
            let layout = Slab::layout(slab.as_ref().size as usize, slab.as_ref().blocks as usize);
            slab.as_ref().home.slabs.fetch_sub(layout.size() as u64, Relaxed);
            slab.drop_in_place();
            std::alloc::dealloc(slab.as_ptr().cast(), layout);
        }
    }
}
