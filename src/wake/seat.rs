//! A seat is a parked waiter: one consumer's state, cursor and waker while it sleeps.
//!
//! | state | owner of sequence number, waker and place of count | next |
//! | --- | --- | --- |
//! | IDLE | the consumer, which is awake | PARKED, by the consumer |
//! | PARKED | nobody: they do not change | CLAIMED, by the thread that wakes or moves it; IDLE, by the consumer |
//! | CLAIMED | the claimer, for a few instructions | WOKEN or PARKED, by the claimer |
//! | WOKEN | the consumer, for which a claimer has found something | IDLE, by the consumer |
//!
//! | step | partner | order |
//! | --- | --- | --- |
//! | consumer: store PARKED, fence, look at the cache | writer and notifier: store or load head, fence, look at the seat | SeqCst fences |
//! | PARKED -> CLAIMED, by compare-exchange | what the consumer stored before PARKED, the waker with it | Acquire / Release |
//! | store WOKEN or PARKED | the consumer's load and compare-exchange in `unpark` | Release / Acquire |
//!
//! State, number and place of count are one word, so a claimer knows the cursor at which the seat was parked.
//!
//! See docs/internals/waking.md.

use super::due::{Due, DueTimes};
use super::owned::Owned;
use super::registration::Registration;
use super::wake_set::MemberWord;
use super::waker::{Membership, WakeUp, Waker, WakerSlot};
use crate::heap;
use crate::sync::{AcqRel, Acquire, Arc, AtomicU32, AtomicU64, OnceArc, Relaxed, Release, ord, spin};
use crate::sys::clock;
use crate::wake::FilterCode;
use std::sync::atomic::{AtomicU32 as PlainHalf, AtomicU64 as Plain};
use std::time::Instant;

/// The word of a seat: state, place of count, sequence number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct SeatWord(u64);

const IDLE: u64 = 0;
const PARKED: u64 = 1;
const CLAIMED: u64 = 2;
const WOKEN: u64 = 3;

/// The two lowest bits.
const STATE: u64 = 3;
/// The place where the seat is counted: the next two bits.
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
        // A seat that waits for no event may have a larger cursor.
        SeatWord(seq.min(LAST_SEQ) << SEQ_SHIFT | counted | state)
    }

    fn state(self) -> u64 {
        self.0 & STATE
    }

    /// This word with another state.
    fn in_state(self, state: u64) -> SeatWord {
        SeatWord(self.0 & !STATE | state)
    }

    /// The cursor of a parked or claimed seat: every event below was handed out, or does not match. In WOKEN the resume
    /// point; 0: its consumer continues at its cursor.
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

/// The place where a seat that is parked, or was woken, is counted, so that the writer looks for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CountedAt {
    /// In the hub's `waiting`, and in its filter group's where it has one.
    Hub,
    /// In the `waiting` of the bucket whose events it reads.
    Bucket,
    /// Nowhere: the thread that has woken it has subtracted it.
    Nowhere,
}

/// Whether a consumer sleeps, as other threads see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rest {
    /// Awake.
    Awake,
    /// Asleep: it has taken everything.
    Parked,
    /// Woken at that time (see [`clock`]) for the event at `resume` (0: for something else).
    Woken { at: u64, resume: u64 },
}

/// The state in which a consumer found its seat when it left it.
pub(super) struct LeftSeat {
    /// The sequence number at which it continues, if it was woken; 0: at its cursor.
    pub(super) resume: Option<u64>,
    /// The place where it was counted.
    pub(super) counted: CountedAt,
}

/// The place of a seat in the tables. For a list, the last number is the index in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SeatPlace {
    Nowhere,
    /// In the group of this id.
    InGroup(u64, u32),
    /// In its group, and in the map of requests for a bucket under this number.
    Asking(u64, u32),
    /// At the bucket of this id.
    AtBucket(u64, u32),
    /// At the bucket of this id, in the list of those that ask a filter about each event.
    AtFiltered(u64, u32),
    /// In the map of those that wait for no event, under this number.
    OfTheCache(u64),
}

/// The word of a place: its kind in three bits, a bit that says in which hub the seat is, and the id or number. There
/// are 2^60 of these.
const NOWHERE: u64 = 0;
const IN_GROUP: u64 = 1;
const ASKING: u64 = 2;
const AT_BUCKET_LIST: u64 = 3;
const OF_THE_CACHE: u64 = 4;
const AT_FILTERED: u64 = 5;
const PLACE_KIND: u64 = 7;
const OF_FOREIGN_CODE: u64 = 8;
const PLACE_ID_SHIFT: u32 = 4;

/// Set while the tables know the interest that was announced last, or will once they read a message that was posted.
/// Cleared when the tables have dropped it, or the consumer has another one.
const ANNOUNCED: u32 = 1;
/// The step from one announcement's number to the next.
const NEXT_INTEREST: u32 = 2;

/// A counted reference to a seat: its consumer, the tables and each handle that may close the subscription have one.
pub(crate) type SeatRef = Arc<Seat>;

/// See the module.
pub(crate) struct Seat {
    /// A [`SeatWord`].
    word: AtomicU64,
    /// The number of the interest that was announced last, and [`ANNOUNCED`].
    announced: AtomicU32,
    /// The index of its [`SeatPlace`]. Only the thread that holds the turn uses it, and the turn orders the accesses.
    place_index: PlainHalf,
    /// The waker and the membership, owned as the state says.
    waker: Owned<WakerSlot>,
    /// Its membership of a wake set, and whether that is listed: see `wake_set`.
    member: MemberWord,
    // The rest needs no order of its own: it does not change while the seat is parked.
    woken_at: Plain,
    /// The due times, made when the consumer first parks with one.
    times: OnceArc<DueTimes>,
    /// Only the consumer uses this.
    registration: Owned<Registration>,
    /// Its hub, and its [`SeatPlace`] but for the index.
    place: Plain,
}

impl Seat {
    /// Makes an idle seat for a consumer whose filter runs this kind of code.
    pub(super) fn new(code: FilterCode) -> Seat {
        Seat {
            word: AtomicU64::new(IDLE),
            announced: AtomicU32::new(0),
            place_index: PlainHalf::new(0),
            waker: Owned::new(WakerSlot::Empty),
            member: MemberWord::new(),
            woken_at: Plain::new(0),
            times: OnceArc::new(),
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
    /// Only its consumer may call this, and no other reference from here lives.
    #[inline]
    #[allow(clippy::mut_from_ref, reason = "the caller promises that it is the only one")]
    pub(super) unsafe fn registration(&self) -> &mut Registration {
        // SAFETY: only the consumer calls this, for one reference at a time, so no other one lives.
        unsafe { self.registration.take() }
    }

    /// The kind of code that its filter runs, which names its hub.
    pub(super) fn code(&self) -> FilterCode {
        if self.place.load(Relaxed) & OF_FOREIGN_CODE != 0 { FilterCode::Foreign } else { FilterCode::Own }
    }

    /// Whether its consumer is awake. Only the consumer asks this.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        // Relaxed: only the consumer moves the seat out of IDLE, and into it.
        SeatWord(self.word.load(Relaxed)).state() == IDLE
    }

    /// Fills the seat and stores PARKED.
    ///
    /// # Safety
    ///
    /// Only its consumer may call this, while it is awake: the state is IDLE.
    pub(super) unsafe fn park(&self, cursor: u64, waker: Waker, due: &Due, counted: CountedAt) {
        if due.is_some() {
            self.times.get_or_make(DueTimes::never).store(due);
        } else if let Some(times) = self.times.get() {
            times.store(due);
        }
        // SAFETY: in IDLE the waker is the consumer's, and `unpark` has acquired what the last claimer did with it.
        let before = unsafe { self.waker.take() }.put(waker);
        // Release: partner of the compare-exchange in `claim_behind`.
        self.word.store(SeatWord::new(PARKED, cursor, counted).0, Release);
        // Foreign code: dropping the waker that a task has left, if it was never called.
        drop(before);
    }

    /// Ends the sleep, whether it was woken or not. Only its consumer calls this.
    pub(super) fn unpark(&self) -> LeftSeat {
        loop {
            // Acquire: partner of the store in `settle`.
            let word = self.word();
            let left = LeftSeat { resume: (word.state() == WOKEN).then_some(word.seq()), counted: word.counted() };
            match word.state() {
                WOKEN => {
                    // Only the consumer changes WOKEN.
                    self.word.store(IDLE, Relaxed);
                    return left;
                }
                // A failed exchange means that a thread has claimed the seat.
                PARKED if self.word.compare_exchange(word.0, IDLE, AcqRel, Relaxed).is_ok() => return left,
                // The claimer finishes within a few instructions and runs no foreign code meanwhile.
                PARKED | CLAIMED => spin(),
                _ => return left,
            }
        }
    }

    /// Its waker, and its membership of a wake set.
    ///
    /// # Safety
    ///
    /// Only its consumer may call this, in IDLE, and no other reference from here lives.
    #[allow(clippy::mut_from_ref, reason = "the caller promises that it is the only one")]
    pub(super) unsafe fn waker(&self) -> &mut WakerSlot {
        // SAFETY: in IDLE the waker is the consumer's, which has only this reference to it.
        unsafe { self.waker.take() }
    }

    pub(super) fn member(&self) -> &MemberWord {
        &self.member
    }

    /// Whether somebody has woken it. Acquire: partner of the store in `settle`.
    pub(super) fn is_woken(&self) -> bool {
        self.word().state() == WOKEN
    }

    /// Blocks a thread, parked with [`Waker::Thread`], until it is woken, or until the given time. True: it was woken.
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

    /// Claims a parked seat; `None`: it is not parked. Of several claimers exactly one wins.
    pub(super) fn claim(seat: &SeatRef) -> Option<Claim<'_>> {
        Seat::claim_behind(seat, u64::MAX).ok().flatten()
    }

    /// Claims a parked seat whose cursor is not above `seq`. `Err`: the cursor, which is above; the seat stays parked.
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
            // Acquire: partner of the store in `park`. Failed: the consumer has left the seat, or parked at another cursor.
            if seat.word.compare_exchange(word.0, claimed.0, ord!(Claim, AcqRel), Relaxed).is_ok() {
                return Ok(Some(Claim { seat, word: claimed }));
            }
        }
    }

    /// Wakes the consumer, whatever it waits for, because its subscription was closed.
    pub(crate) fn wake(seat: &SeatRef) {
        loop {
            if let Some(claim) = Seat::claim(seat) {
                return claim.settle(0, clock::now()).into_iter().for_each(WakeUp::call);
            }
            // Another claimer may move the seat to a bucket and store PARKED again: then this claims it.
            if !matches!(seat.word().state(), PARKED | CLAIMED) {
                return;
            }
            spin();
        }
    }

    // ---- The notifier's side ------------------------------------------------------------------------

    /// Prefetches the fields that a claim uses.
    #[inline]
    pub(super) fn prefetch(&self) {
        heap::prefetch(std::ptr::from_ref(&self.word).cast());
        heap::prefetch(std::ptr::from_ref(&self.waker).cast());
    }

    /// The cursor, if it is parked. Called after the notifier's fence.
    pub(super) fn parked_at(&self) -> Option<u64> {
        let word = self.word();
        (word.state() == PARKED).then(|| word.seq())
    }

    /// Wakes a consumer that has not handed out the event of `seq`; `now` is a time of [`clock`]. `Err`: it sleeps on,
    /// because its cursor (the value) is above that event. With `uncounted`, a seat that is counted at the hub is added
    /// there, for the caller to subtract.
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

    /// Its place in the tables. Only the thread that holds the turn changes it.
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

    /// The index in its list.
    pub(super) fn index(&self) -> u32 {
        self.place_index.load(Relaxed)
    }

    pub(super) fn set_index(&self, index: u32) {
        self.place_index.store(index, Relaxed);
    }

    /// Its due times, if it was ever parked with one.
    pub(super) fn times(&self) -> Option<&DueTimes> {
        self.times.get()
    }

    // ---- What it waits for ------------------------------------------------------------------------------

    /// Clears [`ANNOUNCED`], because the consumer will wait for something else. Called before PARKED, so that a claimer
    /// of the next sleep sees it.
    pub(super) fn announce_anew(&self) {
        self.announced.fetch_and(!ANNOUNCED, Relaxed);
    }

    /// The number under which the consumer's interest is to be announced; `None`: it is announced already. Called by
    /// its consumer, after PARKED and a fence. Partner: [`Seat::forget`].
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

    /// Whether the consumer waits for the interest that it announced under this number. Asked by a claimer.
    pub(super) fn waits_for(&self, number: u32) -> bool {
        self.announced.load(Relaxed) == number
    }

    /// Whether its interest is announced. Acquire: partner of `forget`.
    pub(super) fn is_announced(&self) -> bool {
        self.announced.load(Acquire) & ANNOUNCED != 0
    }

    /// Records that the tables have dropped the interest of this number. False: its consumer has announced another one.
    pub(super) fn forget(&self, number: u32) -> bool {
        self.announced.compare_exchange(number, number & !ANNOUNCED, AcqRel, Relaxed).is_ok()
    }
}

impl std::fmt::Debug for Seat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "seat, {:?}", self.rest())
    }
}

/// A claimed seat, which its claimer settles or puts back.
#[must_use]
pub(super) struct Claim<'a> {
    seat: &'a SeatRef,
    word: SeatWord,
}

impl Claim<'_> {
    /// Ends the sleep: the consumer continues at `resume` (0: at its cursor). `now` is a time of [`clock`], not before
    /// the event or change that it is woken for. The caller calls the wake-up when it holds no lock and no turn.
    pub(super) fn settle(self, resume: u64, now: u64) -> Option<WakeUp> {
        let counted = self.counted();
        self.settle_counted(resume, now, counted)
    }

    /// Like `settle`; `counted` is the place where the consumer will find its count.
    fn settle_counted(self, resume: u64, now: u64, counted: CountedAt) -> Option<WakeUp> {
        let seat = self.seat;
        seat.woken_at.store(now, Relaxed);
        // SAFETY: in CLAIMED only the claimer uses the waker, and its exchange has acquired the consumer's store of it.
        let slot = unsafe { seat.waker.take() };
        let wake = match slot.take() {
            None => None,
            Some(Waker::Thread(thread)) => Some(WakeUp::Thread(thread)),
            Some(Waker::Task(task)) => Some(WakeUp::Task(task)),
            // Listed before its consumer can see WOKEN. Listing makes no system call and runs no foreign code.
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

    /// Lets it sleep on, with this cursor and this place of count.
    pub(super) fn put_back(self, cursor: u64, counted: CountedAt) {
        // Release: partner of the compare-exchanges in `claim_behind` and `unpark`.
        self.seat.word.store(SeatWord::new(PARKED, cursor, counted).0, Release);
    }

    pub(super) fn cursor(&self) -> u64 {
        self.word.seq()
    }

    pub(super) fn counted(&self) -> CountedAt {
        self.word.counted()
    }
}
