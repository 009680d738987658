//! A seat: the place where one consumer sleeps, and the states in which it is found.
//!
//! | state | whose are sequence number, waker and where it is counted | next |
//! | --- | --- | --- |
//! | IDLE | the consumer's: it is awake | PARKED, by the consumer |
//! | PARKED | nobody's: they lie still | CLAIMED, by who wakes or moves it; IDLE, by the consumer |
//! | CLAIMED | the claimer's, for a handful of instructions | WOKEN or PARKED, by the claimer |
//! | WOKEN | the consumer's: somebody has something for it | IDLE, by the consumer |
//!
//! | step | partner | order |
//! | --- | --- | --- |
//! | consumer: store PARKED, fence, look at the cache | writer and notifier: store or load head, fence, look at the seat | SeqCst fences |
//! | PARKED -> CLAIMED, by compare-exchange | what the consumer stored before PARKED, the waker with it | Acquire / Release |
//! | store WOKEN or PARKED | the consumer's load and compare-exchange in `unpark` | Release / Acquire |
//!
//! State, number and where it is counted are one word: who claims a seat has seen at which cursor it was parked.
//!
//! See docs/internals/waking.md.

use super::due::{Due, DueTimes};
use super::owned::Owned;
use super::registration::Registration;
use super::wake_set::MemberWord;
use super::waker::{Membership, WakeUp, Waker, WakerSlot};
use crate::heap;
use crate::sync::{AcqRel, Acquire, AtomicU32, AtomicU64, LeanArc, OnceBox, Relaxed, Release, ord, spin};
use crate::sys::clock;
use crate::wake::FilterCode;
use std::sync::atomic::{AtomicU32 as PlainHalf, AtomicU64 as Plain};
use std::time::Instant;

/// What a seat's word says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct SeatWord(u64);

const IDLE: u64 = 0;
const PARKED: u64 = 1;
const CLAIMED: u64 = 2;
const WOKEN: u64 = 3;

/// The two lowest bits.
const STATE: u64 = 3;
/// Where it is counted: the next two bits.
const AT_BUCKET: u64 = 4;
const UNCOUNTED: u64 = 8;
/// The rest: a sequence number. There are 2^60: enough for a thousand years of 35 million events a second.
const SEQ_SHIFT: u32 = 4;
const LAST_SEQ: u64 = u64::MAX >> SEQ_SHIFT;

impl SeatWord {
    fn new(state: u64, seq: u64, counted: CountedAt) -> SeatWord {
        let counted = match counted {
            CountedAt::Hub => 0,
            CountedAt::Bucket => AT_BUCKET,
            CountedAt::Nowhere => UNCOUNTED,
        };
        // One that waits for no event may stand behind all of them.
        SeatWord(seq.min(LAST_SEQ) << SEQ_SHIFT | counted | state)
    }

    fn state(self) -> u64 {
        self.0 & STATE
    }

    /// The same in another state.
    fn in_state(self, state: u64) -> SeatWord {
        SeatWord(self.0 & !STATE | state)
    }

    /// The cursor of a parked or claimed seat: everything below was handed out, or does not match. The resume point of
    /// one that was woken; 0: its consumer continues at its cursor.
    fn seq(self) -> u64 {
        self.0 >> SEQ_SHIFT
    }

    fn counted(self) -> CountedAt {
        match self.0 & (AT_BUCKET | UNCOUNTED) {
            0 => CountedAt::Hub,
            AT_BUCKET => CountedAt::Bucket,
            _ => CountedAt::Nowhere,
        }
    }
}

/// Where a seat that is parked, or was woken, is counted, so that the writer looks for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CountedAt {
    /// In the hub's `waiting`, and in its filter group's where it has one.
    Hub,
    /// In the `waiting` of the bucket whose events it reads.
    Bucket,
    /// Who has woken it has taken its count off.
    Nowhere,
}

/// How a consumer stands, as others see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rest {
    /// Awake.
    Awake,
    /// It has everything, and sleeps.
    Parked,
    /// Woken at that time (see [`clock`]) for the event at `resume` (0: for something else).
    Woken { at: u64, resume: u64 },
}

/// How a consumer found its seat when it left it.
pub(super) struct LeftSeat {
    /// Where it continues, if somebody has woken it; 0: at its cursor.
    pub(super) resume: Option<u64>,
    /// Where it was counted.
    pub(super) counted: CountedAt,
}

/// Where the tables have a seat; the last number of those in a list is the place in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SeatPlace {
    Nowhere,
    /// In the group of this id.
    InGroup(u64, u32),
    /// In its group, and among those who ask for a bucket under this number.
    Asking(u64, u32),
    /// At the bucket of this id.
    AtBucket(u64, u32),
    /// The same, among those that ask a filter about each event of the bucket.
    AtFiltered(u64, u32),
    /// Among those who wait for no event, under this number.
    OfTheCache(u64),
}

/// The word of a place: which of them it is, in three bits; a bit that says in which hub the seat is; the id or number.
/// There are 2^60 of these.
const NOWHERE: u64 = 0;
const IN_GROUP: u64 = 1;
const ASKING: u64 = 2;
const AT_BUCKET_LIST: u64 = 3;
const OF_THE_CACHE: u64 = 4;
const AT_FILTERED: u64 = 5;
const PLACE_KIND: u64 = 7;
const OF_FOREIGN_CODE: u64 = 8;
const PLACE_ID_SHIFT: u32 = 4;

/// An interest that its consumer has announced: the notifier's tables know it, or will with the messages that are on
/// their way to them. The first bit is down where the one of this number is known no more.
const ANNOUNCED: u32 = 1;
/// From one number to the next.
const NEXT_INTEREST: u32 = 2;

/// A count on a seat: its consumer's, the notifier's, that of who may close it.
pub(crate) type SeatRef = LeanArc<Seat>;

/// See the module.
pub(crate) struct Seat {
    /// A [`SeatWord`].
    word: AtomicU64,
    /// The number of the interest that was announced last, and [`ANNOUNCED`].
    announced: AtomicU32,
    /// The second half of its [`SeatPlace`], of who has the turn, which orders it.
    place_index: PlainHalf,
    /// The state says whose it is.
    waker: Owned<WakerSlot>,
    /// Which membership of a wake set it is in, and whether that is listed: see `wake_set`.
    member: MemberWord,
    // What follows carries no order of its own: it lies still while the seat is parked.
    woken_at: Plain,
    /// For those that were ever parked with a time.
    times: OnceBox<DueTimes>,
    /// The consumer's alone.
    registration: Owned<Registration>,
    /// In which hub it is, and the first half of its [`SeatPlace`].
    place: Plain,
}

impl Seat {
    /// For those who wake it from outside, who look how it stands, and the consumer's registration.
    pub(super) fn new(code: FilterCode) -> Seat {
        Seat {
            word: AtomicU64::new(IDLE),
            announced: AtomicU32::new(0),
            place_index: PlainHalf::new(0),
            waker: Owned::new(WakerSlot::Empty),
            member: MemberWord::new(),
            woken_at: Plain::new(0),
            times: OnceBox::new(),
            registration: Owned::new(Registration::default()),
            place: Plain::new(if code == FilterCode::Foreign { OF_FOREIGN_CODE } else { 0 }),
        }
    }

    /// Acquire: partner of the stores in `park`, `settle` and `put_back`.
    fn word(&self) -> SeatWord {
        SeatWord(self.word.load(Acquire))
    }

    // ---- The consumer's side ----------------------------------------------------------------------

    /// The consumer's side.
    ///
    /// # Safety
    ///
    /// Only its consumer, and nobody has it already.
    #[inline]
    #[allow(clippy::mut_from_ref, reason = "the caller promises that it is the only one")]
    pub(super) unsafe fn registration(&self) -> &mut Registration {
        // SAFETY: by the caller's promise.
        unsafe { self.registration.take() }
    }

    /// In which hub it is.
    pub(super) fn code(&self) -> FilterCode {
        if self.place.load(Relaxed) & OF_FOREIGN_CODE != 0 { FilterCode::Foreign } else { FilterCode::Own }
    }

    /// Whether its consumer has not parked since it left it last: for the consumer itself.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        // Only the consumer leaves IDLE, and returns to it.
        SeatWord(self.word.load(Relaxed)).state() == IDLE
    }

    /// Fills the seat and stores PARKED.
    ///
    /// # Safety
    ///
    /// Only its consumer, which is awake: the state is IDLE.
    pub(super) unsafe fn park(&self, cursor: u64, waker: Waker, due: &Due, counted: CountedAt) {
        if due.is_some() {
            self.times.get_or_make(DueTimes::never).store(due);
        } else if let Some(times) = self.times.get() {
            times.store(due);
        }
        // SAFETY: in IDLE the waker is the consumer's, which has seen what the last claimer did: see `unpark`.
        let before = unsafe { self.waker.take() }.put(waker);
        // Release: partner of the compare-exchange in `claim_behind`.
        self.word.store(SeatWord::new(PARKED, cursor, counted).0, Release);
        // Foreign code: what a task left here, if it was never woken.
        drop(before);
    }

    /// Leaves the seat, in which it is parked, or was woken. Only its consumer.
    pub(super) fn unpark(&self) -> LeftSeat {
        loop {
            // Acquire: partner of the store in `settle`.
            let word = self.word();
            let left = LeftSeat { resume: (word.state() == WOKEN).then_some(word.seq()), counted: word.counted() };
            match word.state() {
                WOKEN => {
                    // Nobody else leaves this state.
                    self.word.store(IDLE, Relaxed);
                    return left;
                }
                // Failed: somebody has claimed it.
                PARKED if self.word.compare_exchange(word.0, IDLE, AcqRel, Relaxed).is_ok() => return left,
                // Between a claim and its end lie a few instructions and no foreign code.
                PARKED | CLAIMED => spin(),
                _ => return left,
            }
        }
    }

    /// Its waker, and its membership of a wake set.
    ///
    /// # Safety
    ///
    /// As [`Seat::park`], and nobody has it already.
    #[allow(clippy::mut_from_ref, reason = "the caller promises that it is the only one")]
    pub(super) unsafe fn waker(&self) -> &mut WakerSlot {
        // SAFETY: as in `park`.
        unsafe { self.waker.take() }
    }

    pub(super) fn member(&self) -> &MemberWord {
        &self.member
    }

    /// Whether somebody has woken it. Acquire: partner of the store in `settle`.
    pub(super) fn is_woken(&self) -> bool {
        self.word().state() == WOKEN
    }

    /// Sleeps until somebody wakes it, at most until then. True: it was woken. For wakers of threads.
    pub(crate) fn sleep(&self, until: Option<Instant>) -> bool {
        loop {
            if self.is_woken() {
                return true;
            }
            let Some(until) = until else {
                crate::sync::park();
                continue;
            };
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return self.is_woken();
            }
            crate::sync::park_timeout(left);
        }
    }

    pub(super) fn woken_at(&self) -> u64 {
        self.woken_at.load(Relaxed)
    }

    // ---- Everybody ----------------------------------------------------------------------------------

    pub(crate) fn rest(&self) -> Rest {
        // Acquire: partner of the store in `settle`.
        let word = self.word();
        match word.state() {
            PARKED | CLAIMED => Rest::Parked,
            WOKEN => Rest::Woken { at: self.woken_at.load(Relaxed), resume: word.seq() },
            _ => Rest::Awake,
        }
    }

    /// Takes hold of a parked seat; `None`: it is not parked. Exactly one wins.
    pub(super) fn claim(seat: &SeatRef) -> Option<Claim<'_>> {
        Seat::claim_behind(seat, u64::MAX).ok().flatten()
    }

    /// The same of one whose cursor is not above `seq`. `Err`: it is, and the seat was left alone.
    fn claim_behind(seat: &SeatRef, seq: u64) -> Result<Option<Claim<'_>>, u64> {
        loop {
            let word = SeatWord(seat.word.load(Relaxed));
            if word.state() != PARKED {
                return Ok(None);
            }
            if word.seq() > seq {
                return Err(word.seq());
            }
            let claimed = word.in_state(CLAIMED);
            // Acquire: partner of the store in `park`. Failed: it was left, or parks elsewhere by now.
            if seat.word.compare_exchange(word.0, claimed.0, ord!(Claim, AcqRel), Relaxed).is_ok() {
                return Ok(Some(Claim { seat, word: claimed }));
            }
        }
    }

    /// Wakes the consumer, whatever it waits for: its subscription was closed.
    pub(crate) fn wake(seat: &SeatRef) {
        loop {
            if let Some(claim) = Seat::claim(seat) {
                return claim.settle(0, clock::now()).into_iter().for_each(WakeUp::call);
            }
            // Who has claimed it may move it to another place, and let it sleep on: then it is PARKED again.
            if !matches!(seat.word().state(), PARKED | CLAIMED) {
                return;
            }
            spin();
        }
    }

    // ---- The notifier's side ------------------------------------------------------------------------

    /// Asks the processor for what a claim looks at.
    #[inline]
    pub(super) fn prefetch(&self) {
        heap::prefetch(std::ptr::from_ref(&self.word).cast());
        heap::prefetch(std::ptr::from_ref(&self.waker).cast());
    }

    /// The cursor, while it is parked. Behind the notifier's fence.
    pub(super) fn parked_at(&self) -> Option<u64> {
        let word = self.word();
        (word.state() == PARKED).then(|| word.seq())
    }

    /// Wakes a consumer that has not handed out the event of `seq`; `now` is a time of [`clock`]. `Err`: it sleeps on, for
    /// its cursor, which this is, stands behind that event. With `uncounted`, a count at the hub is the caller's to take off
    /// from now on, and is added there.
    pub(super) fn wake_behind(
        seat: &SeatRef,
        seq: u64,
        now: u64,
        uncounted: Option<&mut usize>,
    ) -> Result<Option<WakeUp>, u64> {
        let Some(claim) = Seat::claim_behind(seat, seq)? else { return Ok(None) };
        let counted = match (uncounted, claim.counted()) {
            (Some(uncounted), CountedAt::Hub) => {
                *uncounted += 1;
                CountedAt::Nowhere
            }
            (_, counted) => counted,
        };
        Ok(claim.settle_counted(seq, now, counted))
    }

    /// Where the tables have it: for who has the turn.
    pub(super) fn place(&self) -> SeatPlace {
        let (place, index) = (self.place.load(Relaxed), self.place_index.load(Relaxed));
        let of = place >> PLACE_ID_SHIFT;
        match place & PLACE_KIND {
            IN_GROUP => SeatPlace::InGroup(of, index),
            ASKING => SeatPlace::Asking(of, index),
            AT_BUCKET_LIST => SeatPlace::AtBucket(of, index),
            AT_FILTERED => SeatPlace::AtFiltered(of, index),
            OF_THE_CACHE => SeatPlace::OfTheCache(of),
            _ => SeatPlace::Nowhere,
        }
    }

    pub(super) fn put_at(&self, place: SeatPlace) {
        let (kind, of, index) = match place {
            SeatPlace::Nowhere => (NOWHERE, 0, 0),
            SeatPlace::InGroup(group, index) => (IN_GROUP, group, index),
            SeatPlace::Asking(number, index) => (ASKING, number, index),
            SeatPlace::AtBucket(bucket, index) => (AT_BUCKET_LIST, bucket, index),
            SeatPlace::AtFiltered(bucket, index) => (AT_FILTERED, bucket, index),
            SeatPlace::OfTheCache(number) => (OF_THE_CACHE, number, 0),
        };
        let code = self.place.load(Relaxed) & OF_FOREIGN_CODE;
        self.place.store(of << PLACE_ID_SHIFT | code | kind, Relaxed);
        self.set_index(index);
    }

    /// Its place in the list that it is in.
    pub(super) fn index(&self) -> u32 {
        self.place_index.load(Relaxed)
    }

    pub(super) fn set_index(&self, index: u32) {
        self.place_index.store(index, Relaxed);
    }

    /// When it is due, of those that were ever parked with a time.
    pub(super) fn times(&self) -> Option<&DueTimes> {
        self.times.get()
    }

    // ---- What it waits for ------------------------------------------------------------------------------

    /// Its consumer will wait for something else: what was announced is not that any more. Before PARKED, whose claim
    /// shows it to the notifier.
    pub(super) fn announce_anew(&self) {
        self.announced.fetch_and(!ANNOUNCED, Relaxed);
    }

    /// The number under which what its consumer waits for is to be announced; `None`: it was. Of its consumer, behind
    /// PARKED and a fence. Partner: [`Seat::forget`].
    #[inline]
    pub(super) fn announce(&self) -> Option<u32> {
        let before = self.announced.load(Relaxed);
        if before & ANNOUNCED != 0 {
            return None;
        }
        let number = before.wrapping_add(NEXT_INTEREST) | ANNOUNCED;
        self.announced.swap(number, AcqRel);
        Some(number)
    }

    /// Whether what its consumer waits for is what it announced under this number: of a seat that is claimed.
    pub(super) fn waits_for(&self, number: u32) -> bool {
        self.announced.load(Relaxed) == number
    }

    /// Whether it was announced. Acquire: partner of `forget`.
    pub(super) fn is_announced(&self) -> bool {
        self.announced.load(Acquire) & ANNOUNCED != 0
    }

    /// The tables know what was announced under this number no more. False: its consumer has announced something else.
    pub(super) fn forget(&self, number: u32) -> bool {
        self.announced.compare_exchange(number, number & !ANNOUNCED, AcqRel, Relaxed).is_ok()
    }
}

impl std::fmt::Debug for Seat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "seat, {:?}", self.rest())
    }
}

/// A seat that somebody has taken hold of: to be settled or put back.
#[must_use]
pub(super) struct Claim<'a> {
    seat: &'a SeatRef,
    word: SeatWord,
}

impl Claim<'_> {
    /// Ends the sleep: the consumer continues at `resume` (0: at its cursor). `now` is a time of [`clock`] that is not
    /// before what it is woken for. What comes back is to be called outside of everything.
    pub(super) fn settle(self, resume: u64, now: u64) -> Option<WakeUp> {
        let counted = self.counted();
        self.settle_counted(resume, now, counted)
    }

    /// The same, and its consumer finds it counted there.
    fn settle_counted(self, resume: u64, now: u64, counted: CountedAt) -> Option<WakeUp> {
        let seat = self.seat;
        seat.woken_at.store(now, Relaxed);
        // SAFETY: in CLAIMED the waker is who has claimed it's alone, and the exchange there has seen the consumer's store.
        let slot = unsafe { seat.waker.take() };
        let wake = match slot.take() {
            None => None,
            Some(Waker::Thread(thread)) => Some(WakeUp::Thread(thread)),
            Some(Waker::Task(task)) => Some(WakeUp::Task(task)),
            // On the list of its set before its consumer can see that it was woken: no system call and no foreign code.
            Some(Waker::Member) => slot.membership().and_then(|Membership { set, tag }| {
                let set = set.upgrade()?;
                set.list(seat, *tag);
                Some(WakeUp::Raise(set))
            }),
        };
        // Release: partner of the compare-exchange in `unpark` and of the load in `is_woken`.
        seat.word.store(SeatWord::new(WOKEN, resume, counted).0, ord!(Settle, Release));
        wake
    }

    /// Lets it sleep on, with this cursor, counted elsewhere.
    pub(super) fn put_back(self, cursor: u64, counted: CountedAt) {
        // Release: as in `settle`.
        self.seat.word.store(SeatWord::new(PARKED, cursor, counted).0, Release);
    }

    pub(super) fn cursor(&self) -> u64 {
        self.word.seq()
    }

    pub(super) fn counted(&self) -> CountedAt {
        self.word.counted()
    }
}
