//! The parked waiter of one consumer: its state, cursor and waker while it sleeps.
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
//! | consumer: store PARKED, fence, look at the cache | writer and notifier: store or load head, fence, look at the waiter | SeqCst fences |
//! | PARKED -> CLAIMED, by compare-exchange | what the consumer stored before PARKED, the waker with it | Acquire / Release |
//! | store WOKEN or PARKED | the consumer's load and compare-exchange in `unpark` | Release / Acquire |
//!
//! State, number and place of count are one word, so a claimer knows the cursor at which the waiter was parked.
//!
//! See docs/internals/waking.md.

use super::due::{Due, DueTimes};
use super::exclusive_cell::ExclusiveCell;
use super::group::FilterCode;
use super::interest::Interest;
use super::ready_list::{MemberWord, SetMember};
use super::waker::{WakeUp, Waker, WakerSlot};
use crate::heap;
use crate::sync::{AcqRel, Acquire, Arc, AtomicU32, AtomicU64, OnceArc, Relaxed, Release, ord, spin};
use crate::sys::clock;
use std::sync::atomic::{AtomicU32 as PlainHalf, AtomicU64 as Plain};
use std::time::Instant;

/// The word of a waiter: state, place of count, sequence number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct WaiterWord(u64);

const IDLE: u64 = 0;
const PARKED: u64 = 1;
const CLAIMED: u64 = 2;
const WOKEN: u64 = 3;

/// The two lowest bits.
const STATE: u64 = 3;
/// The place where the waiter is counted: the next two bits.
const COUNTED_SHIFT: u32 = 2;
/// The rest: a sequence number. There are 2^60: enough for a thousand years of 35 million events a second.
const SEQ_SHIFT: u32 = 4;
const LAST_SEQ: u64 = u64::MAX >> SEQ_SHIFT;

impl WaiterWord {
    fn new(state: u64, seq: u64, counted: CountedAt) -> WaiterWord {
        // A waiter that waits for no event may have a larger cursor.
        WaiterWord(seq.min(LAST_SEQ) << SEQ_SHIFT | (counted as u64) << COUNTED_SHIFT | state)
    }

    fn state(self) -> u64 {
        self.0 & STATE
    }

    /// This word with another state.
    fn in_state(self, state: u64) -> WaiterWord {
        WaiterWord(self.0 & !STATE | state)
    }

    /// The cursor of a parked or claimed waiter: every event below was handed out, or does not match. In WOKEN the resume
    /// point; 0: its consumer continues at its cursor.
    fn seq(self) -> u64 {
        self.0 >> SEQ_SHIFT
    }

    fn counted(self) -> CountedAt {
        match self.0 >> COUNTED_SHIFT & 3 {
            0 => CountedAt::Hub,
            1 => CountedAt::Bucket,
            _ => CountedAt::Nowhere,
        }
    }
}

/// The place where a waiter that is parked, or was woken, is counted, so that the writer looks for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CountedAt {
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

/// The state in which a consumer found its waiter when it left it.
pub(crate) struct EndedSleep {
    /// The sequence number at which it continues, if it was woken; 0: at its cursor.
    pub(crate) resume: Option<u64>,
    /// The place where it was counted.
    pub(crate) counted: CountedAt,
}

/// The part of the tables in which a waiter is filed, under an id of that part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Filed {
    Nowhere,
    /// In the group of this id.
    InGroup,
    /// In its group, and in the map of requests for a bucket under this number.
    Asking,
    /// At the bucket of this id.
    AtBucket,
    /// At the bucket of this id, in the list of those that ask a filter about each event.
    AtFiltered,
    /// In the map of those that wait for no event, under this number.
    OfTheCache,
}

impl Filed {
    /// In the order of their numbers.
    const ALL: [Filed; 6] =
        [Filed::Nowhere, Filed::InGroup, Filed::Asking, Filed::AtBucket, Filed::AtFiltered, Filed::OfTheCache];
}

/// The word that says where a waiter is filed: the part in three bits, a bit that says in which hub the waiter is, and the id,
/// of which there are 2^60.
const PART: u64 = 7;
const OF_FOREIGN_CODE: u64 = 8;
const ID_SHIFT: u32 = 4;

/// Set while the tables know the interest that was announced last, or will once they read a message that was posted.
/// Cleared when the tables have dropped it, or the consumer has another one.
const ANNOUNCED: u32 = 1;
/// The step from one announcement's number to the next.
const NEXT_INTEREST: u32 = 2;

/// A counted reference to a waiter: its consumer, the tables and each handle that may close the subscription have one.
pub(crate) type WaiterRef = Arc<ParkedWaiter>;

/// See the module.
pub(crate) struct ParkedWaiter {
    /// A [`WaiterWord`].
    word: AtomicU64,
    /// The number of the interest that was announced last, and [`ANNOUNCED`].
    announced: AtomicU32,
    /// Its index in the list of its group or bucket. Only the thread that holds the pass lock uses it, and the lock orders the
    /// accesses.
    index: PlainHalf,
    /// The waker and the membership, owned as the state says.
    pub(crate) waker: ExclusiveCell<WakerSlot<ParkedWaiter>>,
    /// Its membership of a wake set, and whether that is listed: see `ready_list`.
    member: MemberWord,
    // The rest needs no order of its own: it does not change while the waiter is parked.
    woken_at: Plain,
    /// The due times, made when the consumer first parks with one.
    times: OnceArc<DueTimes>,
    /// The thing that it waits for whenever it is parked. Only the consumer uses this.
    pub(crate) interest: ExclusiveCell<Option<Interest>>,
    /// Its hub, and where it is filed.
    filed: Plain,
}

impl ParkedWaiter {
    /// Makes an idle waiter for a consumer whose filter runs this kind of code.
    pub(crate) fn new(code: FilterCode) -> ParkedWaiter {
        ParkedWaiter {
            word: AtomicU64::new(IDLE),
            announced: AtomicU32::new(0),
            index: PlainHalf::new(0),
            waker: ExclusiveCell::new(WakerSlot::Empty),
            member: MemberWord::new(),
            woken_at: Plain::new(0),
            times: OnceArc::new(),
            interest: ExclusiveCell::new(None),
            filed: Plain::new(if code == FilterCode::Foreign { OF_FOREIGN_CODE } else { 0 }),
        }
    }

    /// Acquire: partner of the stores in `park`, `settle` and `put_back`.
    fn word(&self) -> WaiterWord {
        WaiterWord(self.word.load(Acquire))
    }

    // ---- The consumer's side ----------------------------------------------------------------------

    /// The kind of code that its filter runs, which names its hub.
    pub(crate) fn code(&self) -> FilterCode {
        if self.filed.load(Relaxed) & OF_FOREIGN_CODE != 0 { FilterCode::Foreign } else { FilterCode::Own }
    }

    /// Whether its consumer is awake. Only the consumer asks this.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        // Relaxed: only the consumer moves the waiter out of IDLE, and into it.
        WaiterWord(self.word.load(Relaxed)).state() == IDLE
    }

    /// Fills the waiter and stores PARKED.
    ///
    /// # Safety
    ///
    /// Only its consumer may call this, while it is awake: the state is IDLE.
    pub(crate) unsafe fn park(&self, cursor: u64, waker: Waker, due: &Due, counted: CountedAt) {
        if due.is_some() {
            self.times.get_or_make(DueTimes::never).store(due);
        } else if let Some(times) = self.times.get() {
            times.store(due);
        }
        // SAFETY: in IDLE the waker is the consumer's, and `unpark` has acquired what the last claimer did with it.
        let before = unsafe { self.waker.take() }.put(waker);
        // Release: partner of the compare-exchange in `claim_behind`.
        self.word.store(WaiterWord::new(PARKED, cursor, counted).0, Release);
        // Foreign code: dropping the waker that a task has left, if it was never called.
        drop(before);
    }

    /// Ends the sleep, whether it was woken or not. Only its consumer calls this.
    pub(crate) fn unpark(&self) -> EndedSleep {
        loop {
            // Acquire: partner of the store in `settle`.
            let word = self.word();
            let left = EndedSleep { resume: (word.state() == WOKEN).then_some(word.seq()), counted: word.counted() };
            match word.state() {
                WOKEN => {
                    // Only the consumer changes WOKEN.
                    self.word.store(IDLE, Relaxed);
                    return left;
                }
                // A failed exchange means that a thread has claimed the waiter.
                PARKED if self.word.compare_exchange(word.0, IDLE, AcqRel, Relaxed).is_ok() => return left,
                // The claimer finishes within a few instructions and runs no foreign code meanwhile.
                PARKED | CLAIMED => spin(),
                _ => return left,
            }
        }
    }

    /// Whether somebody has woken it. Acquire: partner of the store in `settle`.
    pub(crate) fn is_woken(&self) -> bool {
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

    pub(crate) fn woken_at(&self) -> u64 {
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

    /// Claims a parked waiter; `None`: it is not parked. Of several claimers exactly one wins.
    pub(crate) fn claim(waiter: &WaiterRef) -> Option<Claim<'_>> {
        ParkedWaiter::claim_behind(waiter, u64::MAX).ok().flatten()
    }

    /// Claims a parked waiter whose cursor is not above `seq`. `Err`: the cursor, which is above; the waiter stays parked.
    fn claim_behind(waiter: &WaiterRef, seq: u64) -> Result<Option<Claim<'_>>, u64> {
        loop {
            let word = WaiterWord(waiter.word.load(Relaxed));
            if word.state() != PARKED {
                return Ok(None);
            }
            if word.seq() > seq {
                return Err(word.seq());
            }
            let claimed = word.in_state(CLAIMED);
            // Acquire: partner of the store in `park`. Failed: the consumer has left the waiter, or parked at another cursor.
            if waiter.word.compare_exchange(word.0, claimed.0, ord!(Claim, AcqRel), Relaxed).is_ok() {
                return Ok(Some(Claim { waiter, word: claimed }));
            }
        }
    }

    /// Wakes the consumer, whatever it waits for, because its subscription was closed.
    pub(crate) fn wake(waiter: &WaiterRef) {
        loop {
            if let Some(claim) = ParkedWaiter::claim(waiter) {
                return claim.settle(0, clock::now()).into_iter().for_each(WakeUp::call);
            }
            // Another claimer may move the waiter to a bucket and store PARKED again: then this claims it.
            if !matches!(waiter.word().state(), PARKED | CLAIMED) {
                return;
            }
            spin();
        }
    }

    // ---- The notifier's side ------------------------------------------------------------------------

    /// Prefetches the fields that a claim uses.
    #[inline]
    pub(crate) fn prefetch(&self) {
        heap::prefetch(std::ptr::from_ref(&self.word).cast());
        heap::prefetch(std::ptr::from_ref(&self.waker).cast());
    }

    /// The cursor, if it is parked. Called after the notifier's fence.
    pub(crate) fn parked_at(&self) -> Option<u64> {
        let word = self.word();
        (word.state() == PARKED).then(|| word.seq())
    }

    /// Wakes a consumer that has not handed out the event of `seq`; `now` is a time of [`clock`]. `Err`: it sleeps on,
    /// because its cursor (the value) is above that event. With `uncounted`, a waiter that is counted at the hub is added
    /// there, for the caller to subtract.
    pub(crate) fn wake_behind(
        waiter: &WaiterRef,
        seq: u64,
        now: u64,
        uncounted: Option<&mut usize>,
    ) -> Result<Option<WakeUp>, u64> {
        let Some(claim) = ParkedWaiter::claim_behind(waiter, seq)? else { return Ok(None) };
        let counted = match (uncounted, claim.counted()) {
            (Some(uncounted), CountedAt::Hub) => {
                *uncounted += 1;
                CountedAt::Nowhere
            }
            (_, counted) => counted,
        };
        Ok(claim.settle_counted(seq, now, counted))
    }

    /// Where it is filed, and the id there. Only the thread that holds the pass lock changes it.
    pub(crate) fn filed(&self) -> (Filed, u64) {
        let word = self.filed.load(Relaxed);
        (Filed::ALL[(word & PART) as usize], word >> ID_SHIFT)
    }

    pub(crate) fn file(&self, part: Filed, id: u64) {
        let code = self.filed.load(Relaxed) & OF_FOREIGN_CODE;
        self.filed.store(id << ID_SHIFT | code | part as u64, Relaxed);
    }

    /// Its index in the list of its group or bucket.
    pub(crate) fn index(&self) -> u32 {
        self.index.load(Relaxed)
    }

    pub(crate) fn set_index(&self, index: u32) {
        self.index.store(index, Relaxed);
    }

    /// Its due times, if it was ever parked with one.
    pub(crate) fn times(&self) -> Option<&DueTimes> {
        self.times.get()
    }

    // ---- What it waits for ------------------------------------------------------------------------------

    /// Clears [`ANNOUNCED`], because the consumer will wait for something else. Called before PARKED, so that a claimer
    /// of the next sleep sees it.
    pub(crate) fn announce_anew(&self) {
        self.announced.fetch_and(!ANNOUNCED, Relaxed);
    }

    /// The number under which the consumer's interest is to be announced; `None`: it is announced already. Called by
    /// its consumer, after PARKED and a fence. Partner: [`ParkedWaiter::forget`].
    #[inline]
    pub(crate) fn announce(&self) -> Option<u32> {
        let before = self.announced.load(Relaxed);
        if before & ANNOUNCED != 0 {
            return None;
        }
        let number = before.wrapping_add(NEXT_INTEREST) | ANNOUNCED;
        self.announced.swap(number, AcqRel);
        Some(number)
    }

    /// Whether the consumer waits for the interest that it announced under this number. Asked by a claimer.
    pub(crate) fn waits_for(&self, number: u32) -> bool {
        self.announced.load(Relaxed) == number
    }

    /// Whether its interest is announced. Acquire: partner of `forget`.
    pub(crate) fn is_announced(&self) -> bool {
        self.announced.load(Acquire) & ANNOUNCED != 0
    }

    /// Records that the tables have dropped the interest of this number. False: its consumer has announced another one.
    pub(crate) fn forget(&self, number: u32) -> bool {
        self.announced.compare_exchange(number, number & !ANNOUNCED, AcqRel, Relaxed).is_ok()
    }
}

impl SetMember for ParkedWaiter {
    fn member(&self) -> &MemberWord {
        &self.member
    }
}

impl std::fmt::Debug for ParkedWaiter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "waiter, {:?}", self.rest())
    }
}

/// A claimed waiter, which its claimer settles or puts back.
#[must_use]
pub(crate) struct Claim<'a> {
    waiter: &'a WaiterRef,
    word: WaiterWord,
}

impl Claim<'_> {
    /// Ends the sleep: the consumer continues at `resume` (0: at its cursor). `now` is a time of [`clock`], not before
    /// the event or change that it is woken for. The caller calls the wake-up when it holds no lock and no turn.
    pub(crate) fn settle(self, resume: u64, now: u64) -> Option<WakeUp> {
        let counted = self.counted();
        self.settle_counted(resume, now, counted)
    }

    /// Like `settle`; `counted` is the place where the consumer will find its count.
    fn settle_counted(self, resume: u64, now: u64, counted: CountedAt) -> Option<WakeUp> {
        let waiter = self.waiter;
        waiter.woken_at.store(now, Relaxed);
        // SAFETY: in CLAIMED only the claimer uses the waker, and its exchange has acquired the consumer's store of it.
        let slot = unsafe { waiter.waker.take() };
        let wake = match slot.take() {
            None => None,
            Some(Waker::Thread(thread)) => Some(WakeUp::Thread(thread)),
            Some(Waker::Task(task)) => Some(WakeUp::Task(task)),
            // Listed before its consumer can see WOKEN. Listing makes no system call and runs no foreign code.
            Some(Waker::Member) => slot.membership().and_then(|membership| membership.list(waiter)).map(WakeUp::Raise),
        };
        // Release: partner of the compare-exchange in `unpark` and of the load in `is_woken`.
        waiter.word.store(WaiterWord::new(WOKEN, resume, counted).0, ord!(Settle, Release));
        wake
    }

    /// Lets it sleep on, with this cursor and this place of count.
    pub(crate) fn put_back(self, cursor: u64, counted: CountedAt) {
        // Release: partner of the compare-exchanges in `claim_behind` and `unpark`.
        self.waiter.word.store(WaiterWord::new(PARKED, cursor, counted).0, Release);
    }

    pub(crate) fn cursor(&self) -> u64 {
        self.word.seq()
    }

    pub(crate) fn counted(&self) -> CountedAt {
        self.word.counted()
    }
}
