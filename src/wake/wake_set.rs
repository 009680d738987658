//! Wake sets: many members behind one descriptor.
//!
//! Waking a member pushes the member, not its tag, on the set's ready list, unless it stands there
//! already. So a tag is listed at most once, `take` hands out only tags of those that are members
//! still, and what nobody takes stays bounded by the number of members.
//!
//! Several threads may sleep on the descriptor. It is drained only where the list is empty, and raised
//! again where something came in between: no thread takes the signal that was meant for another.
//! `armed` says that a thread may sleep; a raise resets it, and nothing else does.
//!
//! | who wakes | who arms | order |
//! | --- | --- | --- |
//! | push on the list; fence; `armed.swap(false)`, raise if it was true | drain; `armed.swap(true)`; fence; look at the list | SeqCst fences: one of the two sees the other |
//! | `listed.swap(true)`, then push | taken from the list, then `listed.store(false)` | AcqRel / Release |

#![forbid(unsafe_code)]

use crate::error::{Code, Error, Result, say};
use crate::sync::{AcqRel, Acquire, AtomicBool, Inbox, Mutex, Release, SeqCst, fence, lock, ord};
use crate::sys::Signal;
use std::collections::VecDeque;
#[cfg(not(loom))]
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// What the handles of a set share.
pub(crate) struct SetShared {
    pub(crate) signal: Signal,
    armed: AtomicBool,
    /// Pushed by the thread that wakes.
    ready: Inbox<Arc<Member>>,
    /// Of those that take: what had no room comes first next time. Who wakes never takes this lock.
    taken: Mutex<TakenMembers>,
}

#[derive(Default)]
struct TakenMembers {
    members: VecDeque<Arc<Member>>,
    /// How many of them have left the set since.
    gone: usize,
}

/// One membership: made when something is added to a set, ended when it is removed.
pub(crate) struct Member {
    /// Weak: the descriptor goes with the set, also while it has members.
    set: Weak<SetShared>,
    tag: u64,
    listed: AtomicBool,
    gone: AtomicBool,
}

impl Member {
    /// Puts it on the ready list, once until it is taken. Takes no lock and makes no system call.
    pub(crate) fn list(self: &Arc<Member>) {
        let Some(set) = self.set.upgrade() else { return };
        // Partner: the store in `WakeSet::take`.
        if !self.listed.swap(true, AcqRel) {
            set.ready.push(self.clone());
        }
    }

    /// Raises the descriptor if somebody was armed. After [`Member::list`].
    pub(crate) fn raise(&self) {
        let Some(set) = self.set.upgrade() else { return };
        fence(SeqCst);
        // Partner: `armed.swap(true)`, fence, look in `WakeSet::arm`.
        if set.armed.swap(false, AcqRel) {
            set.signal.raise();
        }
    }

    /// Whether it is a member of this set.
    pub(crate) fn is_of(&self, set: &WakeSet) -> bool {
        std::ptr::eq(self.set.as_ptr(), Arc::as_ptr(&set.shared))
    }

    /// Ends the membership. A tag that is listed is dropped: no later `take` hands it out.
    pub(crate) fn leave(&self) {
        let Some(set) = self.set.upgrade() else { return };
        let mut taken = lock(&set.taken);
        // Under the lock of those that take. Partner: the look in `TakenMembers::next`.
        if self.gone.swap(true, AcqRel) || !self.listed.load(Acquire) {
            return;
        }
        taken.gone += 1;
        taken.refill(&set.ready);
        if taken.gone > taken.members.len() / 2 {
            taken.members.retain(|member| !member.gone.load(Acquire));
            taken.gone = 0;
        }
    }
}

impl TakenMembers {
    fn refill(&mut self, ready: &Inbox<Arc<Member>>) {
        self.members.extend(ready.take_all());
    }

    /// Whether a member is listed; those that have left go.
    fn is_ready(&mut self, ready: &Inbox<Arc<Member>>) -> bool {
        self.refill(ready);
        while let Some(first) = self.members.front() {
            if !first.gone.load(Acquire) {
                return true;
            }
            self.members.pop_front();
            self.gone = self.gone.saturating_sub(1);
        }
        false
    }

    fn next(&mut self) -> Option<Arc<Member>> {
        while let Some(member) = self.members.pop_front() {
            if !member.gone.load(Acquire) {
                return Some(member);
            }
            self.gone = self.gone.saturating_sub(1);
        }
        None
    }
}

/// Many subscriptions and waiters behind one descriptor.
///
/// Members join under a tag of the user's. [`WakeSet::arm`] says whether something is ready;
/// otherwise the descriptor ([`WakeSet::fd`]) becomes readable when something is.
/// [`WakeSet::take`] names what is ready. Send and Sync: several threads may arm, sleep and take at
/// once; each tag goes to one of them. No call blocks but [`WakeSet::wait`].
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
    /// An empty set with a descriptor of its own (an eventfd on Linux, a pipe elsewhere).
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

    /// A membership under this tag.
    pub(crate) fn member(&self, tag: u64) -> Arc<Member> {
        Arc::new(Member {
            set: Arc::downgrade(&self.shared),
            tag,
            listed: AtomicBool::new(false),
            gone: AtomicBool::new(false),
        })
    }

    /// True: something is ready now, call [`WakeSet::take`]. False: the set is armed, the descriptor
    /// becomes readable when something is.
    pub fn arm(&self) -> bool {
        let set = &*self.shared;
        // The descriptor stays as it is: another thread may sleep on it for the rest of the list.
        if lock(&set.taken).is_ready(&set.ready) {
            return true;
        }
        let drained = set.signal.drain();
        set.armed.swap(true, AcqRel);
        // Partner: push, fence, `armed.swap(false)` in `Member::raise`.
        fence(ord!(ArmFence, SeqCst));
        let ready = lock(&set.taken).is_ready(&set.ready);
        #[cfg(loom)]
        crate::sync::weak::late(crate::sync::weak::Site::DrainLate, || {
            set.signal.drain();
        });
        if ready && drained {
            // What was drained may have been meant for another thread.
            set.signal.raise();
        }
        ready
    }

    /// Writes the tags of what is ready into `tags` and returns how many; what has no room stays
    /// listed. A member's tag is listed at most once until it is taken, and not any more once the
    /// member has left.
    pub fn take(&self, tags: &mut [u64]) -> usize {
        let mut taken = lock(&self.shared.taken);
        taken.refill(&self.shared.ready);
        let mut count = 0;
        while count < tags.len()
            && let Some(member) = taken.next()
        {
            // Release, before the tag is out of our hands: partner of the swap in `Member::list`.
            member.listed.store(false, Release);
            tags[count] = member.tag;
            count += 1;
        }
        count
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

/// The membership of one subscription or waiter; it leaves its set when it is dropped.
#[derive(Default)]
pub(crate) struct Membership(Option<Arc<Member>>);

impl Membership {
    pub(crate) fn join(&mut self, set: &WakeSet, tag: u64) {
        self.leave();
        self.0 = Some(set.member(tag));
    }

    /// True: it was a member of this set, and is none any more.
    pub(crate) fn leave_set(&mut self, set: &WakeSet) -> bool {
        let is_of = self.0.as_ref().is_some_and(|member| member.is_of(set));
        if is_of {
            self.leave();
        }
        is_of
    }

    fn leave(&mut self) {
        if let Some(member) = self.0.take() {
            member.leave();
        }
    }

    /// The member, or an error that says what to do: also where the set is gone.
    pub(crate) fn member(&self, what: &str) -> Result<Arc<Member>> {
        let member = self.0.as_ref().filter(|member| member.set.strong_count() > 0);
        member.cloned().ok_or_else(|| say::invalid(format!("arm a {what}: it is in no wake set. Add it to one first.")))
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.leave();
    }
}

impl std::fmt::Debug for Membership {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.0.as_ref().map(|member| member.tag))
    }
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
