//! The list of a wake set's ready members, and the descriptor that says that it has some.
//!
//! Each membership has a unique number, which stands in one word of the member with a bit that says whether it is listed.
//! Waking a member pushes it with that number on the list, unless it is listed already; an entry counts as long as the
//! member's word has its number. So a tag is listed at most once, only tags of present members are taken, and a list that
//! nobody takes stays bounded by the number of members.
//!
//! Several threads may sleep on the descriptor. It is drained only where the list is empty, and raised again where
//! something came in between: no thread swallows the signal that was meant for another. `armed` says that a thread may
//! sleep; a raise resets it, and nothing else does.
//!
//! `WakeSet::next` records in the member's word that its tag was given out, so that the member's next poll lists or arms it;
//! docs/internals/waking.md has the states of a loop.
//!
//! | the thread that wakes | the thread that arms | order |
//! | --- | --- | --- |
//! | push on the list; fence; `armed.swap(false)`, raise if it was true | drain; `armed.swap(true)`; fence; look at the list | SeqCst fences: one of the two sees the other |
//! | LISTED set in the word, then push | taken from the list, then LISTED cleared | AcqRel / AcqRel |

#![forbid(unsafe_code)]

use crate::sync::{self, AcqRel, Acquire, AtomicBool, AtomicU64, Inbox, Mutex, Relaxed, SeqCst, fence, lock, ord};
use crate::sys::Signal;
use std::collections::VecDeque;
use std::sync::{Arc, Weak};

/// The descriptor of a set.
pub(crate) struct SetSignal {
    pub(crate) descriptor: Signal,
    armed: AtomicBool,
}

impl SetSignal {
    /// Raises the descriptor if the set was armed. Called after [`Membership::list`].
    pub(crate) fn raise(&self) {
        fence(SeqCst);
        // Partner: `armed.swap(true)`, fence, look in `ReadyList::arm`.
        if self.armed.swap(false, AcqRel) {
            self.descriptor.raise();
        }
    }
}

/// A consumer that may be in one set at a time.
pub(crate) trait SetMember {
    fn member(&self) -> &MemberWord;
}

/// See the module.
pub(crate) struct ReadyList<M> {
    pub(crate) signal: Arc<SetSignal>,
    /// Pushed by the thread that wakes.
    ready: Inbox<ListedMember<M>>,
    /// Members off `ready` that had no room in a caller's tags: they come first next time. No waking thread locks it.
    taken: Mutex<TakenMembers<M>>,
}

struct TakenMembers<M> {
    members: VecDeque<ListedMember<M>>,
    /// The number of them that have left the set since.
    gone: usize,
}

/// A member on the ready list of a set, in one of its memberships.
struct ListedMember<M> {
    member: sync::Arc<M>,
    number: u64,
    tag: u64,
}

impl<M: SetMember> ListedMember<M> {
    /// Whether the membership that was listed is over.
    fn is_gone(&self) -> bool {
        !self.member.member().is_listed(self.number)
    }
}

/// The number of a member's present membership, whether that is listed, and whether its tag was given out.
///
/// Only the consumer changes the number, while it is awake; a thread that wakes it sets LISTED while it sleeps. `next`
/// replaces LISTED by GIVEN, and the consumer's next poll clears that.
pub(crate) struct MemberWord(AtomicU64);

const LISTED: u64 = 1;
const MEMBER: u64 = 2;
const GIVEN: u64 = 4;
/// The step from one membership's number to the next; numbers are never used again.
const NUMBER: u64 = 8;

impl MemberWord {
    pub(crate) fn new() -> MemberWord {
        MemberWord(AtomicU64::new(0))
    }

    /// Whether it is in a set. Only its consumer asks this.
    pub(crate) fn is_member(&self) -> bool {
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
    pub(crate) fn take_given(&self) -> bool {
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

/// The set that a member is in, and the member's tag there.
pub(crate) struct Membership<M> {
    /// Weak: the descriptor goes with the set, also while it has members.
    set: Weak<ReadyList<M>>,
    tag: u64,
}

impl<M: SetMember> Membership<M> {
    /// Joins a set, for a member that is awake and in none.
    pub(crate) fn new(set: &Arc<ReadyList<M>>, tag: u64, member: &M) -> Membership<M> {
        member.member().join();
        Membership { set: Arc::downgrade(set), tag }
    }

    pub(crate) fn is_of(&self, set: &Arc<ReadyList<M>>) -> bool {
        std::ptr::eq(self.set.as_ptr(), Arc::as_ptr(set))
    }

    /// Whether its set still exists.
    pub(crate) fn has_a_set(&self) -> bool {
        self.set.strong_count() > 0
    }

    /// Puts the member on the ready list, unless it is listed already; the signal that the caller then raises. Takes no lock
    /// and makes no system call.
    pub(crate) fn list(&self, member: &sync::Arc<M>) -> Option<Arc<SetSignal>> {
        let set = self.set.upgrade()?;
        if let Some(number) = member.member().list() {
            set.ready.push(ListedMember { member: member.clone(), number, tag: self.tag });
        }
        Some(set.signal.clone())
    }

    /// Ends the membership. A tag that is listed is dropped: no later `take` hands it out. Its consumer is awake.
    pub(crate) fn leave(self, member: &M) {
        let Some(set) = self.set.upgrade() else {
            member.member().leave();
            return;
        };
        let mut taken = lock(&set.taken);
        // Under the lock that `take` holds. Partner: the look in `TakenMembers::next`.
        if !member.member().leave() {
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

impl<M: SetMember> ReadyList<M> {
    pub(crate) fn new(descriptor: Signal) -> ReadyList<M> {
        ReadyList {
            signal: Arc::new(SetSignal { descriptor, armed: AtomicBool::new(false) }),
            ready: Inbox::new(),
            taken: Mutex::new(TakenMembers { members: VecDeque::new(), gone: 0 }),
        }
    }

    /// Whether a present member is listed; otherwise the set is armed: see `WakeSet::arm`.
    pub(crate) fn arm(&self) -> bool {
        // The descriptor stays as it is: another thread may sleep on it for the rest of the list.
        if self.is_ready() {
            return true;
        }
        let SetSignal { descriptor, armed } = &*self.signal;
        let drained = descriptor.drain();
        armed.swap(true, AcqRel);
        // Partner: push, fence, `armed.swap(false)` in `SetSignal::raise`.
        fence(ord!(ArmFence, SeqCst));
        let ready = self.is_ready();
        #[cfg(loom)]
        crate::sync::weak::late(crate::sync::weak::Site::DrainLate, || {
            descriptor.drain();
        });
        if ready && drained {
            // The drained signal may have been meant for another thread.
            descriptor.raise();
        }
        ready
    }

    /// Whether a present member is listed; entries of members that have left are dropped.
    fn is_ready(&self) -> bool {
        let mut taken = lock(&self.taken);
        taken.refill(&self.ready);
        while let Some(first) = taken.members.front() {
            if !first.is_gone() {
                return true;
            }
            taken.members.pop_front();
            taken.gone = taken.gone.saturating_sub(1);
        }
        false
    }

    /// Takes up to `most` present members off the list, and calls `each` with their tags. `is_given`: records in each that
    /// it was given out, for its next poll.
    pub(crate) fn take(&self, most: usize, is_given: bool, mut each: impl FnMut(u64)) {
        let mut taken = lock(&self.taken);
        taken.refill(&self.ready);
        let given = if is_given { GIVEN } else { 0 };
        (0..most).map_while(|_| taken.next(given)).for_each(&mut each);
    }
}

impl<M: SetMember> TakenMembers<M> {
    /// Appends the new entries. An empty queue is replaced to free its memory: all members may have been listed at once.
    fn refill(&mut self, ready: &Inbox<ListedMember<M>>) {
        let fresh = ready.take_all();
        if self.members.is_empty() { self.members = fresh.into() } else { self.members.extend(fresh) }
    }

    /// Takes the next present member and returns its tag. `given` is GIVEN or 0.
    fn next(&mut self, given: u64) -> Option<u64> {
        while let Some(ListedMember { member, number, tag }) = self.members.pop_front() {
            // Clears LISTED before the tag is returned: it may be listed again from here on. Partner: `Membership::list`.
            if member.member().take(number, given) {
                return Some(tag);
            }
            self.gone = self.gone.saturating_sub(1);
        }
        None
    }
}
