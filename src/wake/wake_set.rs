//! Wake sets: many members behind one descriptor.
//!
//! A member is a seat. Each membership has a unique number, which stands in one word of the seat with a bit that says
//! whether it is listed. Waking a member pushes the seat with that number on the set's ready list, unless it is listed
//! already; an entry counts as long as the seat's word has its number. So a tag is listed at most once, `take` hands out
//! only tags of present members, and a list that nobody takes stays bounded by the number of members.
//!
//! Several threads may sleep on the descriptor. It is drained only where the list is empty, and raised again where
//! something came in between: no thread swallows the signal that was meant for another. `armed` says that a thread may
//! sleep; a raise resets it, and nothing else does.
//!
//! A tag can be taken in two ways. [`WakeSet::take`] leaves the member to its consumer, which polls it until a poll gives
//! nothing, and arms it. [`WakeSet::next`] notes in the member's word that it was given out; the next poll of that member
//! (`Subscription::poll_member`) lists it again where there is more, and arms it where there is not, so that a loop of
//! `next` and one poll misses no event. Where `next` finds nothing it has armed the set.
//!
//! | the thread that wakes | the thread that arms | order |
//! | --- | --- | --- |
//! | push on the list; fence; `armed.swap(false)`, raise if it was true | drain; `armed.swap(true)`; fence; look at the list | SeqCst fences: one of the two sees the other |
//! | LISTED set in the word, then push | taken from the list, then LISTED cleared | AcqRel / AcqRel |

#![forbid(unsafe_code)]

use super::seat::SeatRef;
use super::waker::Membership;
use crate::error::{Code, Error, Result, say};
use crate::sync::{AcqRel, Acquire, AtomicBool, AtomicU64, Inbox, Mutex, Relaxed, SeqCst, fence, lock, ord};
use crate::sys::Signal;
use std::collections::VecDeque;
#[cfg(not(loom))]
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The state that the handles of a set share.
pub(crate) struct SetShared {
    pub(crate) signal: Signal,
    armed: AtomicBool,
    /// Pushed by the thread that wakes.
    ready: Inbox<ListedSeat>,
    /// Members off `ready` that had no room in a caller's tags: they come first next time. No waking thread locks it.
    taken: Mutex<TakenMembers>,
}

#[derive(Default)]
struct TakenMembers {
    members: VecDeque<ListedSeat>,
    /// The number of them that have left the set since.
    gone: usize,
}

/// A seat on the ready list of a set, in one of its memberships.
struct ListedSeat {
    seat: SeatRef,
    number: u64,
    tag: u64,
}

impl ListedSeat {
    /// Whether the membership that was listed is over.
    fn is_gone(&self) -> bool {
        !self.seat.member().is_listed(self.number)
    }
}

/// The number of a seat's present membership, whether that is listed, and whether its tag was given out.
///
/// Only the consumer changes the number, while it is awake; a thread that wakes it sets LISTED while it sleeps. `next`
/// replaces LISTED by GIVEN, and the consumer's next poll clears that.
pub(super) struct MemberWord(AtomicU64);

const LISTED: u64 = 1;
const MEMBER: u64 = 2;
const GIVEN: u64 = 4;
/// The step from one membership's number to the next; numbers are never used again.
const NUMBER: u64 = 8;

impl MemberWord {
    pub(super) fn new() -> MemberWord {
        MemberWord(AtomicU64::new(0))
    }

    /// Whether the seat is in a set. Only its consumer asks this.
    pub(super) fn is_member(&self) -> bool {
        self.0.load(Relaxed) & MEMBER != 0
    }

    /// Sets LISTED; the number of the membership, if it was not listed before. Partner: `take`.
    fn list(&self) -> Option<u64> {
        let before = self.0.fetch_or(LISTED, AcqRel);
        (before & LISTED == 0).then_some(before & !GIVEN)
    }

    fn is_listed(&self, number: u64) -> bool {
        self.0.load(Acquire) & !GIVEN == number | LISTED
    }

    /// Clears LISTED and sets `given`, which is GIVEN or 0. False: the membership is over. Partner: `list`.
    fn take(&self, number: u64, given: u64) -> bool {
        // GIVEN may be set with LISTED: the member was given out, and woken again before its consumer cleared GIVEN.
        let mut word = self.0.load(Relaxed);
        while word & !GIVEN == number | LISTED {
            match self.0.compare_exchange(word, word & !LISTED | given, AcqRel, Relaxed) {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
        false
    }

    /// Whether `next` has given it out since the last call. Only its consumer asks this.
    pub(super) fn take_given(&self) -> bool {
        // Relaxed: the thread that called `next` reaches the consumer through the lock of its handle, which orders the two.
        self.0.load(Relaxed) & GIVEN != 0 && self.0.fetch_and(!GIVEN, AcqRel) & GIVEN != 0
    }

    fn join(&self) {
        self.0.fetch_or(MEMBER, AcqRel);
    }

    /// Ends the membership. True: it was listed.
    fn leave(&self) -> bool {
        // A taker may clear LISTED meanwhile; no other thread changes the word.
        let number = self.0.load(Relaxed) & !(NUMBER - 1);
        #[cfg(loom)]
        if crate::sync::weak::is(crate::sync::weak::Site::SameMembership) {
            return self.0.swap(number, AcqRel) & LISTED != 0;
        }
        let next = number.wrapping_add(NUMBER);
        self.0.swap(next, AcqRel) & LISTED != 0
    }
}

impl SetShared {
    /// Puts a member on the ready list, unless it is listed already. Takes no lock and makes no system call.
    pub(super) fn list(&self, seat: &SeatRef, tag: u64) {
        if let Some(number) = seat.member().list() {
            self.ready.push(ListedSeat { seat: seat.clone(), number, tag });
        }
    }

    /// Raises the descriptor if the set was armed. Called after [`SetShared::list`].
    pub(super) fn raise(&self) {
        fence(SeqCst);
        // Partner: `armed.swap(true)`, fence, look in `WakeSet::arm`.
        if self.armed.swap(false, AcqRel) {
            self.signal.raise();
        }
    }
}

impl Membership {
    /// Makes a membership for this seat, whose consumer is awake and in no set.
    pub(super) fn new(set: &WakeSet, tag: u64, seat: &SeatRef) -> Membership {
        seat.member().join();
        Membership { set: Arc::downgrade(&set.shared), tag }
    }

    pub(super) fn is_of(&self, set: &WakeSet) -> bool {
        std::ptr::eq(self.set.as_ptr(), Arc::as_ptr(&set.shared))
    }

    /// Ends the membership. A tag that is listed is dropped: no later `take` hands it out. Its consumer is awake.
    pub(super) fn leave(self, seat: &SeatRef) {
        let Some(set) = self.set.upgrade() else {
            seat.member().leave();
            return;
        };
        let mut taken = lock(&set.taken);
        // Under the lock that `take` and `next` hold. Partner: the look in `TakenMembers::next`.
        if !seat.member().leave() {
            return;
        }
        taken.gone += 1;
        taken.refill(&set.ready);
        if taken.gone > taken.members.len() / 2 {
            taken.members.retain(|member| !member.is_gone());
            taken.gone = 0;
        }
    }
}

impl TakenMembers {
    /// Appends the new entries. An empty queue is replaced to free its memory: all members may have been listed at once.
    fn refill(&mut self, ready: &Inbox<ListedSeat>) {
        let fresh = ready.take_all();
        if self.members.is_empty() { self.members = fresh.into() } else { self.members.extend(fresh) }
    }

    /// Whether a present member is listed; entries of members that have left are dropped.
    fn is_ready(&mut self, ready: &Inbox<ListedSeat>) -> bool {
        self.refill(ready);
        while let Some(first) = self.members.front() {
            if !first.is_gone() {
                return true;
            }
            self.members.pop_front();
            self.gone = self.gone.saturating_sub(1);
        }
        false
    }

    /// Takes the next present member and returns its tag. `given` is GIVEN or 0.
    fn next(&mut self, given: u64) -> Option<u64> {
        while let Some(ListedSeat { seat, number, tag }) = self.members.pop_front() {
            // Clears LISTED before the tag is returned: it may be listed again from here on. Partner: `SetShared::list`.
            if seat.member().take(number, given) {
                return Some(tag);
            }
            self.gone = self.gone.saturating_sub(1);
        }
        None
    }
}

/// Many subscriptions and waiters behind one descriptor.
///
/// Members join under a tag of the user's. [`WakeSet::arm`] says whether something is ready; otherwise the descriptor
/// ([`WakeSet::fd`]) becomes readable when something is. [`WakeSet::take`] returns the tags of the ready members. Send
/// and Sync: several threads may arm, sleep and take at once; each tag goes to one of them. No call blocks but
/// [`WakeSet::wait`].
///
/// ```
/// use watchcore::{Cache, Change, Start, WakeSet};
/// # fn main() -> watchcore::Result<()> {
/// let cache = Cache::builder("/").build()?;
/// let mut writer = cache.writer()?;
/// let set = WakeSet::new()?;
/// let mut all = cache.subscribe(Start::Now).open()?;
/// set.add(&mut all, 7)?;
/// assert!(!all.arm()?);
/// writer.apply(1, [Change::put("/a", "1")])?;
/// assert!(set.wait(std::time::Duration::from_secs(30)));
/// let mut tags = [0; 8];
/// assert_eq!(set.take(&mut tags), 1);
/// assert_eq!(tags[0], 7);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct WakeSet {
    pub(crate) shared: Arc<SetShared>,
}

impl WakeSet {
    /// Makes an empty set with its own descriptor (an eventfd on Linux, a pipe elsewhere).
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED where there is no descriptor left.
    pub fn new() -> Result<WakeSet> {
        let signal = Signal::new().map_err(|error| {
            Error::new(
                Code::ResourceExhausted,
                format!("a wake set needs a descriptor: {error}. Close others, or raise the limit of open files."),
            )
        })?;
        Ok(WakeSet {
            shared: Arc::new(SetShared {
                signal,
                armed: AtomicBool::new(false),
                ready: Inbox::new(),
                taken: Mutex::new(TakenMembers::default()),
            }),
        })
    }

    /// False: the set is armed, the descriptor becomes readable when something is ready. True: something is ready now, call
    /// [`WakeSet::take`], and the set is not armed: arm it again before you sleep, also where there was nothing to take,
    /// for a member that was ready may have left the set meanwhile.
    pub fn arm(&self) -> bool {
        let set = &*self.shared;
        // The descriptor stays as it is: another thread may sleep on it for the rest of the list.
        if lock(&set.taken).is_ready(&set.ready) {
            return true;
        }
        let drained = set.signal.drain();
        set.armed.swap(true, AcqRel);
        // Partner: push, fence, `armed.swap(false)` in `SetShared::raise`.
        fence(ord!(ArmFence, SeqCst));
        let ready = lock(&set.taken).is_ready(&set.ready);
        #[cfg(loom)]
        crate::sync::weak::late(crate::sync::weak::Site::DrainLate, || {
            set.signal.drain();
        });
        if ready && drained {
            // The drained signal may have been meant for another thread.
            set.signal.raise();
        }
        ready
    }

    /// Writes the tags of ready members into `tags` and returns their number; members that have no room stay listed. A
    /// member's tag is listed at most once until it is taken, and not any more once the member has left.
    pub fn take(&self, tags: &mut [u64]) -> usize {
        let mut taken = lock(&self.shared.taken);
        taken.refill(&self.shared.ready);
        let mut count = 0;
        while count < tags.len()
            && let Some(tag) = taken.next(0)
        {
            tags[count] = tag;
            count += 1;
        }
        count
    }

    /// The tag of a ready member. The poll that follows lists the member again where there is more. `None`: none is ready,
    /// and the set is armed.
    pub(crate) fn next(&self) -> Option<u64> {
        loop {
            let mut taken = lock(&self.shared.taken);
            taken.refill(&self.shared.ready);
            let tag = taken.next(GIVEN);
            drop(taken);
            if tag.is_some() {
                return tag;
            }
            if !self.arm() {
                return None;
            }
        }
    }

    /// The descriptor: non-blocking, close-on-exec, owned by the set and closed with its last handle.
    /// Only poll it. For event loops of Rust (mio, tokio's `AsyncFd`) the set is `AsFd` and `AsRawFd`.
    pub fn fd(&self) -> i32 {
        self.shared.signal.fd()
    }

    /// Arms and blocks until something is ready. False: the time is up.
    pub fn wait(&self, timeout: Duration) -> bool {
        let until = Instant::now().checked_add(timeout);
        loop {
            if self.arm() {
                return true;
            }
            let left = match until {
                None => -1,
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return false;
                    }
                    left.as_millis().clamp(1, i32::MAX as u128) as i32
                }
            };
            self.shared.signal.wait(left);
        }
    }
}

/// The error of arming a subscription or waiter that is in no set, or in a set that was dropped.
#[cold]
pub(crate) fn not_in_a_set(what: &str) -> Error {
    say::invalid(format!("arm a {what}: it is in no wake set. Add it to one first."))
}

impl std::fmt::Debug for WakeSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WakeSet").field("fd", &self.fd()).finish()
    }
}

#[cfg(not(loom))]
impl AsFd for WakeSet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.signal.as_fd()
    }
}

#[cfg(not(loom))]
impl AsRawFd for WakeSet {
    fn as_raw_fd(&self) -> RawFd {
        self.fd()
    }
}
