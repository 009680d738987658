//! A slab: blocks of one size in one allocation, and the word by which they come back to its owner.
//!
//! The word says in which state the slab is, which block was given back last, how many were since its owner looked, and,
//! where the owner does not have it in hand, how many it had handed out. A block that was given back names the one
//! that was before it: a stack, which others only push on and the owner only takes whole, so there is no ABA. Several
//! that name each other are pushed as one is.
//!
//! | state | who has it | who leaves it |
//! | --- | --- | --- |
//! | Current | the owner takes blocks from it | the owner, for Full, when none is left |
//! | Full | nobody | so many blocks that it is worth a look have come back: Announced |
//! | Announced | it is on its way to the owner, by [`Home`] | the owner: Listed |
//! | Listed | the owner knows that it has blocks | the owner, for Current; the last block that was out: Announced |
//! | Orphan | nobody: its owner is gone | the last block that was out frees it |
//!
//! Who makes it Announced pushes it on its home's list, once, and nobody frees it before it was taken from there. When
//! the owner goes, what is Announced is taken by whoever comes later: the owner after it has closed the home,
//! or the one who pushed, if it sees it closed.
//!
//! | step | partner | order |
//! | --- | --- | --- |
//! | `give_back`: the blocks, then the word | `collect`, `take`, `accept`, `orphan`: the word, then the blocks | Release / Acquire |
//! | the owner's word | `give_back`: the word | Release / Acquire |
//! | `announce`: link, then `Home::announced` | `taken`: `Home::announced`, then links | Release / Acquire |
//! | `announce`: pushed, then `closed` | `close`: `closed`, then taken | AcqRel, both on the list: who comes second sees the other |

use super::{ALIGN, Header, WIDE};
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
    /// Blocks that are out: of any state but Current.
    used: u16,
    /// Blocks that were given back; `top` is the place of the last of them, see [`Slab::at`].
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

/// Blocks that were given back: the place of the last, and how many.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Chain {
    pub(super) top: u16,
    pub(super) count: u16,
}

/// The lists of the slabs that an owner does not have in hand.
#[derive(Clone, Copy)]
pub(super) enum List {
    /// Nothing is known to have come back.
    Full,
    /// Some blocks have come back.
    Partial,
    /// All have.
    Spare,
}

/// Bytes of a line of memory.
const LINE: usize = 64;
/// About how far full slabs lie from each other: the number of the stretch that one begins in is odd for every second one.
pub(super) const SLAB_STRIDE: usize = 64 << 10;
/// A slab that was put away is worth a look once one block in so many has come back: each look costs its owner some
/// lines of memory that others had.
const WORTH: usize = 16;

/// Where the slabs of a heap are announced.
pub(super) struct Home {
    announced: AtomicPtr<Slab>,
    /// The owner is gone.
    closed: AtomicBool,
    /// Statistics, in bytes: of all slabs, of the blocks that were taken, and of those that came back, by the reclaimer
    /// and by others. The owner stores with each block, and so does the reclaimer: a line each, and none that the owner
    /// looks at.
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

    /// Counts a block that comes back.
    #[inline]
    pub(super) fn freed(&self, bytes: u64) {
        self.freed.fetch_add(bytes, Relaxed);
    }

    /// The same on the reclaimer, which stores without an exchange. Where somebody stands in for it while a new thread
    /// starts there may be two for a moment, and one addition is lost: a statistic drifts, nothing else.
    #[inline]
    pub(super) fn reclaimed(&self, bytes: u64) {
        self.reclaimed.store(self.reclaimed.load(Relaxed) + bytes, Relaxed);
    }

    /// Bytes of the slabs that are in no block that is out.
    pub(super) fn free_bytes(&self) -> u64 {
        // In this order: what came back was taken before.
        let freed = self.freed.load(Relaxed) + self.reclaimed.load(Relaxed);
        let out = self.taken.load(Relaxed).saturating_sub(freed);
        self.slabs.load(Relaxed).saturating_sub(out)
    }

    pub(super) fn outliving(&self) -> u64 {
        self.outliving.load(Relaxed)
    }

    /// Whether something is announced. Relaxed: a look, so that nothing is written where nothing is there.
    #[inline]
    pub(super) fn has_announced(&self) -> bool {
        !self.announced.load(Relaxed).is_null()
    }

    /// What was announced, newest first; [`Slab::after`] leads from one to the next.
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
            // SAFETY: it is Announced: not freed before it was taken from the list.
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

    /// The owner is gone: what is announced from now on is nobody's.
    pub(super) fn close(&self) {
        // Relaxed: the swap in `abandon` shows it to who announces after it.
        self.closed.store(true, Relaxed);
        self.abandon();
    }

    fn abandon(&self) {
        // Acquire: as in `taken`, without its look. Release: partner of the exchange in `announce`.
        let mut next = self.announced.swap(ptr::null_mut(), ord!(HomeClosed, AcqRel));
        while let Some(slab) = NonNull::new(next) {
            // SAFETY: taken from the list, and Announced: ours until `orphan`.
            unsafe {
                next = slab.as_ref().after();
                Slab::orphan(slab, 0, true);
            }
        }
    }
}

/// Blocks of one slab on their way back to it: nobody else knows them, and each names the one that was there before it.
pub(super) struct Returned {
    slab: NonNull<Slab>,
    chain: Chain,
    /// The first of them, which names none yet.
    bottom: NonNull<Header>,
}

impl Returned {
    /// One block.
    ///
    /// # Safety
    ///
    /// As [`super::free`]; the block is one of a slab, so many bytes behind the begin of that.
    #[inline]
    pub(super) unsafe fn new(block: NonNull<Header>, offset: usize) -> Returned {
        // SAFETY: both lie in one allocation, by the caller's promise.
        let slab = unsafe { block.byte_sub(offset) }.cast::<Slab>();
        let top = (offset / ALIGN) as u16;
        #[cfg(loom)]
        // SAFETY: a slab is alive while a block of it is out.
        unsafe { slab.as_ref() }.track(top).written();
        Returned { slab, chain: Chain { top, count: 1 }, bottom: block }
    }

    /// Where a block names the one before it: its count is of no use any more.
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

    /// Takes more of the same slab.
    ///
    /// # Panics
    ///
    /// Where they are of another one.
    #[inline]
    pub(super) fn join(&mut self, more: Returned) {
        assert!(self.is_of(&more), "blocks of one slab");
        // SAFETY: nobody else knows these blocks.
        unsafe { Returned::before(more.bottom).write(self.chain.top) };
        self.chain = Chain { top: more.chain.top, count: self.chain.count + more.chain.count };
    }

    /// Gives the blocks back, and counts their bytes.
    #[inline]
    pub(super) fn give_back(self, count: fn(&Home, u64)) {
        let Returned { slab, chain, bottom } = self;
        // SAFETY: a slab is alive while a block of it is out.
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
            // A count of its own: from the exchange on the slab may be taken, and freed.
            home = home.take().filter(|_| announces).or_else(|| announces.then(|| this.home.clone()));
            // SAFETY: the block is ours until the exchange.
            unsafe { Returned::before(bottom).write(word.top) };
            let after = Word { state, count, top: chain.top, ..word };
            // Release: partner of the owner's Acquire. Acquire: the last one frees what the others used.
            match this.word.compare_exchange_weak(packed, after.pack(), ord!(BlockFreed, AcqRel), Acquire) {
                Ok(_) => break (state, is_last),
                Err(now) => packed = now,
            }
        };
        match home {
            Some(home) => home.announce(slab),
            None if state == SlabState::Orphan && is_last => {
                // SAFETY: nobody has a block of it, nor knows it.
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
    /// Bytes of a block with its header; how many there are.
    size: u32,
    pub(super) blocks: u16,
    /// As many have to come back before the owner hears of it.
    worth: u16,
    pub(super) class: u16,
    /// The owner's: which of its lists has it, and beside whom.
    pub(super) list: Cell<List>,
    pub(super) neighbours: [Cell<*mut Slab>; 2],
    /// Of what the owner writes, and of the blocks.
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

    /// Bytes before the first block, at most. It begins with a line of memory, so that small ones of which so many fit
    /// into a line lie in one each.
    pub(super) const HEAD: usize = size_of::<Slab>().next_multiple_of(LINE) + LINE;

    fn layout(size: usize, blocks: usize) -> Layout {
        const { assert!(align_of::<Slab>() <= LINE && LINE.is_multiple_of(WIDE)) };
        Layout::from_size_align(Slab::HEAD + size * blocks, LINE).expect("slabs are small")
    }

    /// Bytes before the first block: such that this begins with an odd line in about every second slab, and with an even
    /// one in the others. Else blocks of an even number of lines would have all their first lines in half of the sets of
    /// a cache.
    #[inline]
    fn before_blocks(slab: NonNull<Slab>) -> usize {
        let address = slab.addr().get();
        Slab::HEAD - ((address / LINE) ^ (address / SLAB_STRIDE)) % 2 * LINE
    }

    /// A slab that its owner has in hand.
    pub(super) fn new(home: &Arc<Home>, class: usize, size: usize, blocks: usize) -> NonNull<Slab> {
        let layout = Slab::layout(size, blocks);
        // SAFETY: the layout is not empty; its head is written before anybody sees it.
        unsafe {
            let place = std::alloc::alloc(layout).cast::<Slab>();
            let Some(slab) = NonNull::new(place) else { std::alloc::handle_alloc_error(layout) };
            #[cfg(loom)]
            super::living_slabs(|living| *living += 1);
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

    /// Bytes of the allocation.
    pub(super) fn bytes(&self) -> usize {
        Slab::HEAD + self.size as usize * self.blocks as usize
    }

    /// The slab that was announced before this one.
    pub(super) fn after(&self) -> *mut Slab {
        self.link.load(Relaxed)
    }

    /// The block of a number, counted from 0, that was never out.
    ///
    /// # Safety
    ///
    /// The slab is the caller's, and has as many.
    #[inline]
    pub(super) unsafe fn fresh(slab: NonNull<Slab>, number: u16) -> NonNull<Header> {
        // SAFETY: it lies in the allocation, by the caller's promise. From the pointer of the whole.
        unsafe {
            let offset = Slab::before_blocks(slab) + slab.as_ref().size as usize * usize::from(number);
            let block = slab.byte_add(offset).cast::<Header>();
            block.write(Header::in_slab(offset));
            block
        }
    }

    /// The block at a place: so many steps of [`ALIGN`] behind the begin of the slab, so never 0.
    ///
    /// # Safety
    ///
    /// A block of the slab lies there.
    #[inline]
    pub(super) unsafe fn at(slab: NonNull<Slab>, place: u16) -> NonNull<Header> {
        // SAFETY: by the caller's promise. From the pointer of the whole.
        unsafe { slab.byte_add(usize::from(place) * ALIGN).cast() }
    }

    /// The place of the block that was given back before the one at this place, and lies below it in a chain; 0: there is
    /// none.
    ///
    /// # Safety
    ///
    /// The chain came from this slab's word, and only the owner has it.
    #[inline]
    pub(super) unsafe fn below(slab: NonNull<Slab>, place: u16) -> u16 {
        // SAFETY: a block of the slab, which was given back and the owner has taken.
        unsafe {
            #[cfg(loom)]
            slab.as_ref().track(place).written();
            Returned::before(Slab::at(slab, place)).read()
        }
    }

    /// Of the block at a place.
    #[cfg(loom)]
    fn track(&self, place: u16) -> &Track {
        let offset = usize::from(place) * ALIGN - Slab::before_blocks(NonNull::from(self));
        &self.tracks[offset / self.size as usize]
    }

    /// The blocks that came back to the slab in hand. Only the owner.
    pub(super) fn collect(&self) -> Chain {
        // Relaxed: a look, so that nothing is written where nothing is there.
        if Word::unpack(self.word.load(Relaxed)).top == 0 {
            return Chain::default();
        }
        // Acquire: partner of the exchange in `give_back`.
        let word = Word::unpack(self.word.swap(Word::CURRENT.pack(), ord!(BlocksTaken, AcqRel)));
        Chain { top: word.top, count: word.count }
    }

    /// Puts the slab in hand away, with so many blocks out. False: some came back meanwhile. Only the owner.
    pub(super) fn leave(&self, used: u16) -> bool {
        let full = Word { state: SlabState::Full, used, count: 0, top: 0 };
        // Release: partner of the load in `give_back`.
        self.word.compare_exchange(Word::CURRENT.pack(), full.pack(), Release, Relaxed).is_ok()
    }

    /// Notes that an announced slab came. True: none of its blocks is out. Only the owner.
    pub(super) fn accept(&self) -> bool {
        let mut packed = self.word.load(Acquire);
        loop {
            let word = Word::unpack(packed);
            debug_assert_eq!(word.state, SlabState::Announced);
            let listed = Word { state: SlabState::Listed, ..word };
            // Acquire: who finds it empty frees it, after all that others did with its blocks.
            match self.word.compare_exchange_weak(packed, listed.pack(), AcqRel, Acquire) {
                Ok(_) => return word.count == word.used,
                Err(now) => packed = now,
            }
        }
    }

    /// Takes a listed slab in hand: what came back, and how many blocks are out beside that. None: it was announced
    /// again. Only the owner.
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

    /// Lets a slab go whose owner goes: its last block frees it, or this call. `used`: the blocks that are out of the
    /// one in hand. One that is announced stays so, and is let go by who has `taken` it from its home.
    ///
    /// # Safety
    ///
    /// Once by the owner, once by who has taken it. The slab is not used after it.
    pub(super) unsafe fn orphan(slab: NonNull<Slab>, used: u16, taken: bool) {
        // SAFETY: nobody frees it before it is an orphan.
        let this = unsafe { slab.as_ref() };
        let mut packed = this.word.load(Acquire);
        loop {
            let word = Word::unpack(packed);
            if word.state == SlabState::Announced && !taken {
                return;
            }
            let used = if word.state == SlabState::Current { used } else { word.used };
            let orphan = Word { state: SlabState::Orphan, used, ..word };
            // Acquire: who finds it empty frees it. Release: partner of the load in `give_back`.
            match this.word.compare_exchange_weak(packed, orphan.pack(), ord!(SlabOrphan, AcqRel), Acquire) {
                Ok(_) if word.count == used => {
                    // SAFETY: no block is out, and nobody else has it.
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
    /// No block of it is out, and nobody else knows it; once.
    pub(super) unsafe fn destroy(slab: NonNull<Slab>) {
        // SAFETY: by the caller's promise; made by `new` with this layout.
        unsafe {
            #[cfg(loom)]
            super::living_slabs(|living| *living -= 1);
            #[cfg(loom)]
            slab.as_ref().tracks.iter().chain([&slab.as_ref().own]).for_each(Track::end);
            let layout = Slab::layout(slab.as_ref().size as usize, slab.as_ref().blocks as usize);
            slab.as_ref().home.slabs.fetch_sub(layout.size() as u64, Relaxed);
            slab.drop_in_place();
            std::alloc::dealloc(slab.as_ptr().cast(), layout);
        }
    }
}
