//! A seat: the place where one consumer sleeps, and the states in which it is found.
//!
//! | state | whose are cursor, resume point, waker and `at_bucket` | next |
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
//! See docs/internals/waking.md.

use super::interest::Interest;
use super::owned::Owned;
use super::registration::Registration;
use super::waker::{WakeUp, Waker};
use crate::heap;
use crate::log::ring::progress_word;
use crate::position::Position;
use crate::sync::{AcqRel, Acquire, AtomicBool, AtomicU32, AtomicU64, OnceBox, Relaxed, Release, ord, spin};
use crate::sys::clock;
use crate::wake::FilterCode;
use std::sync::atomic::AtomicU64 as Plain;
// No order of its own: the turn has it.
use std::sync::{Mutex as TurnMutex, MutexGuard, PoisonError};
use std::time::Instant;

const IDLE: u32 = 0;
const PARKED: u32 = 1;
const CLAIMED: u32 = 2;
const WOKEN: u32 = 3;

/// No time: it is never due.
const NEVER: u64 = u64::MAX;

/// Where a parked seat is counted, so that the writer looks for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CountedAt {
    /// In the hub's `waiting`, and in its filter group's where it has one.
    Hub,
    /// In the `waiting` of the bucket whose events it reads.
    Bucket,
}

/// The times at which a sleeping consumer is woken, whatever happens.
#[derive(Clone, Copy, Default)]
pub(crate) struct Due {
    /// Woken then.
    pub(crate) deadline: Option<Instant>,
    /// Woken when the position is not this one any more, not before the time.
    pub(crate) bookmark: Option<(Instant, Position)>,
}

impl Due {
    pub(super) fn is_some(&self) -> bool {
        self.deadline.is_some() || self.bookmark.is_some()
    }
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

/// A count on a seat: its consumer's, the notifier's, that of who may close it.
pub(super) type SeatRef = crate::sync::Arc<Seat>;

/// See the module.
pub(crate) struct Seat {
    id: u64,
    state: AtomicU32,
    /// Which hub it is in.
    code: FilterCode,
    /// Whether the notifier's tables know its interest, or will with the next message.
    announced: AtomicBool,
    /// Whether the heap of due times has it, or will with the next message.
    timed: AtomicBool,
    /// Everything below was handed out, or does not match.
    cursor: AtomicU64,
    /// Where the consumer continues; 0: at its cursor.
    resume: AtomicU64,
    /// Where it is counted while it is parked.
    at_bucket: AtomicBool,
    /// The state says whose it is.
    waker: Owned<Option<Waker>>,
    // What follows carries no order of its own: it lies still while the seat is parked.
    woken_at: Plain,
    /// For those that were ever parked with a time.
    times: OnceBox<DueTimes>,
    /// The consumer's alone.
    registration: Owned<Registration>,
    /// Where the tables have it. Never contended: only who has the turn looks.
    entry: TurnMutex<Option<SeatEntry>>,
}

/// What a seat waits for as the tables know it, and its place in the list of its group or bucket.
pub(super) struct SeatEntry {
    pub(super) interest: Interest,
    pub(super) index: u32,
}

/// When a seat is due, as times of [`clock`].
struct DueTimes {
    deadline: Plain,
    bookmark: Plain,
    /// The position that the last bookmark showed, as a progress word.
    delivered: Plain,
}

impl DueTimes {
    fn store(&self, due: &Due) {
        self.deadline.store(due.deadline.map_or(NEVER, clock::of), Relaxed);
        self.bookmark.store(due.bookmark.map_or(NEVER, |(at, _)| clock::of(at)), Relaxed);
        self.delivered.store(due.bookmark.map_or(0, |(_, delivered)| progress_word(delivered)), Relaxed);
    }
}

impl Seat {
    /// For those who wake it from outside, who look how it stands, and the consumer's registration.
    pub(super) fn new(code: FilterCode) -> Seat {
        static NEXT: Plain = Plain::new(1);
        Seat {
            id: NEXT.fetch_add(1, Relaxed),
            state: AtomicU32::new(IDLE),
            code,
            announced: AtomicBool::new(false),
            timed: AtomicBool::new(false),
            cursor: AtomicU64::new(0),
            resume: AtomicU64::new(0),
            at_bucket: AtomicBool::new(false),
            waker: Owned::new(None),
            woken_at: Plain::new(0),
            times: OnceBox::new(),
            registration: Owned::new(Registration::default()),
            entry: TurnMutex::new(None),
        }
    }

    pub(super) fn id(&self) -> u64 {
        self.id
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

    pub(super) fn code(&self) -> FilterCode {
        self.code
    }

    /// Whether its consumer has not parked since it left it last: for the consumer itself.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        // Only the consumer leaves IDLE, and returns to it.
        self.state.load(Relaxed) == IDLE
    }

    /// Fills the seat and stores PARKED.
    ///
    /// # Safety
    ///
    /// Only its consumer, which is awake: the state is IDLE.
    pub(super) unsafe fn park(&self, cursor: u64, waker: Waker, due: &Due, counted: CountedAt) {
        self.cursor.store(cursor, Relaxed);
        self.resume.store(0, Relaxed);
        self.count_at(counted);
        if due.is_some() {
            let never =
                || DueTimes { deadline: Plain::new(NEVER), bookmark: Plain::new(NEVER), delivered: Plain::new(0) };
            self.times.get_or_make(never).store(due);
        } else if let Some(times) = self.times.get() {
            times.store(due);
        }
        // SAFETY: in IDLE the waker is the consumer's, which has seen what the last claimer did: see `unpark`.
        let before = unsafe { self.waker.take() }.replace(waker);
        // Release: partner of the compare-exchange in `claim`.
        self.state.store(PARKED, Release);
        // Foreign code: what a task left here, if it was never woken.
        drop(before);
    }

    /// Leaves the seat. True: somebody has woken it. Only its consumer.
    pub(super) fn unpark(&self) -> bool {
        loop {
            // Acquire: partner of the store in `settle`.
            match self.state.load(Acquire) {
                WOKEN => {
                    // Nobody else leaves this state.
                    self.state.store(IDLE, Relaxed);
                    return true;
                }
                // Failed: somebody has claimed it.
                PARKED if self.state.compare_exchange(PARKED, IDLE, AcqRel, Relaxed).is_ok() => return false,
                // Between a claim and its end lie a few instructions and no foreign code.
                PARKED | CLAIMED => spin(),
                _ => return false,
            }
        }
    }

    /// Takes the waker back, so that a task does not live on in a seat that it has left.
    ///
    /// # Safety
    ///
    /// As [`Seat::park`].
    pub(super) unsafe fn clear(&self) {
        // SAFETY: as in `park`.
        let waker = unsafe { self.waker.take() }.take();
        drop(waker);
    }

    /// Whether somebody has woken it. Acquire: partner of the store in `settle`.
    pub(super) fn is_woken(&self) -> bool {
        self.state.load(Acquire) == WOKEN
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

    /// Where the consumer continues, when it was woken.
    pub(super) fn resume(&self) -> u64 {
        self.resume.load(Relaxed)
    }

    pub(super) fn woken_at(&self) -> u64 {
        self.woken_at.load(Relaxed)
    }

    pub(super) fn counted(&self) -> CountedAt {
        if self.at_bucket.load(Relaxed) { CountedAt::Bucket } else { CountedAt::Hub }
    }

    fn count_at(&self, place: CountedAt) {
        self.at_bucket.store(place == CountedAt::Bucket, Relaxed);
    }

    // ---- Everybody ----------------------------------------------------------------------------------

    pub(crate) fn rest(&self) -> Rest {
        // Acquire: partner of the store in `settle`.
        match self.state.load(Acquire) {
            PARKED | CLAIMED => Rest::Parked,
            WOKEN => Rest::Woken { at: self.woken_at.load(Relaxed), resume: self.resume() },
            _ => Rest::Awake,
        }
    }

    /// Takes hold of a parked seat; `None`: it is not parked. Exactly one wins.
    pub(super) fn claim(&self) -> Option<Claim<'_>> {
        let claimed = self.state.compare_exchange(PARKED, CLAIMED, ord!(Claim, AcqRel), Relaxed).is_ok();
        claimed.then_some(Claim(self))
    }

    /// Wakes the consumer, whatever it waits for: its subscription was closed.
    pub(crate) fn wake(&self) {
        loop {
            if let Some(claim) = self.claim() {
                return claim.settle(0, clock::now()).into_iter().for_each(WakeUp::call);
            }
            // The notifier may only move it to another place, and let it sleep on.
            if self.state.load(Acquire) != CLAIMED {
                return;
            }
            spin();
        }
    }

    // ---- The notifier's side ------------------------------------------------------------------------

    /// Asks the processor for what a claim looks at.
    #[inline]
    pub(super) fn prefetch(&self) {
        heap::prefetch(std::ptr::from_ref(&self.state).cast());
        heap::prefetch(std::ptr::from_ref(&self.waker).cast());
    }

    /// The cursor, while it is parked. Behind the notifier's fence.
    pub(super) fn parked_at(&self) -> Option<u64> {
        // Acquire: partner of the store in `park`.
        (self.state.load(Acquire) == PARKED).then(|| self.cursor.load(Relaxed))
    }

    /// Wakes a consumer that has not handed out the event of `seq`; `now` is a time of [`clock`]. `Err`: it sleeps on, for
    /// its cursor, which this is, stands behind that event.
    pub(super) fn wake_behind(&self, seq: u64, now: u64) -> Result<Option<WakeUp>, u64> {
        match self.parked_at() {
            None => return Ok(None),
            Some(cursor) if cursor > seq => return Err(cursor),
            Some(_) => {}
        }
        let Some(claim) = self.claim() else { return Ok(None) };
        let (cursor, counted) = (claim.cursor(), claim.counted());
        if cursor > seq {
            // It went on, and sleeps again, behind that event.
            claim.put_back(cursor, counted);
            return Err(cursor);
        }
        Ok(claim.settle(seq, now))
    }

    /// Where the tables have it: for who has the turn. What is taken out is foreign code: dropped outside.
    pub(super) fn entry(&self) -> MutexGuard<'_, Option<SeatEntry>> {
        self.entry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The two flags: see the fields.
    pub(super) fn announced(&self) -> &AtomicBool {
        &self.announced
    }

    pub(super) fn timed(&self) -> &AtomicBool {
        &self.timed
    }

    /// When it is due first: a time of [`clock`]; `None`: never.
    pub(super) fn first_due(&self) -> Option<u64> {
        let times = self.times.get()?;
        let first = times.deadline.load(Relaxed).min(times.bookmark.load(Relaxed));
        (first != NEVER).then_some(first)
    }

    pub(super) fn is_past_deadline(&self, now: u64) -> bool {
        self.times.get().is_some_and(|times| times.deadline.load(Relaxed) <= now)
    }

    /// Whether the time of its bookmark has come.
    pub(super) fn awaits_a_move(&self, now: u64) -> bool {
        self.times.get().is_some_and(|times| times.bookmark.load(Relaxed) <= now)
    }

    /// Whether the position is another than that of its last bookmark.
    pub(super) fn has_moved_to(&self, position: Position) -> bool {
        self.times.get().is_some_and(|times| times.delivered.load(Relaxed) != progress_word(position))
    }
}

impl std::fmt::Debug for Seat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "seat {}", self.id)
    }
}

/// A seat that somebody has taken hold of: to be settled or put back.
#[must_use]
pub(super) struct Claim<'a>(&'a Seat);

impl<'a> Claim<'a> {
    /// Ends the sleep: the consumer continues at `resume` (0: at its cursor). `now` is a time of [`clock`] that is not
    /// before what it is woken for. What comes back is to be called outside of everything.
    pub(super) fn settle(self, resume: u64, now: u64) -> Option<WakeUp> {
        let seat = self.0;
        seat.resume.store(resume, Relaxed);
        seat.woken_at.store(now, Relaxed);
        // SAFETY: in CLAIMED the waker is who has claimed it's alone, and the exchange there has seen the consumer's store.
        let wake = unsafe { seat.waker.take() }.take().map(Waker::settle);
        // Release: partner of the compare-exchange in `unpark` and of the load in `is_woken`.
        seat.state.store(WOKEN, ord!(Settle, Release));
        wake
    }

    /// Lets it sleep on, with this cursor, counted elsewhere.
    pub(super) fn put_back(self, cursor: u64, counted: CountedAt) {
        let seat = self.0;
        seat.cursor.store(cursor, Relaxed);
        seat.count_at(counted);
        // Release: as in `settle`.
        seat.state.store(PARKED, Release);
    }

    pub(super) fn cursor(&self) -> u64 {
        self.0.cursor.load(Relaxed)
    }

    pub(super) fn counted(&self) -> CountedAt {
        self.0.counted()
    }
}
