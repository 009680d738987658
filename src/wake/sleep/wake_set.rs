//! Wake sets: many members behind one descriptor. The protocol is that of [`ready_list`](super::ready_list).

#![forbid(unsafe_code)]

use super::parked_waiter::ParkedWaiter;
use super::ready_list::ReadyList;
use crate::error::{Code, Error, Result, say};
use crate::sys::Signal;
#[cfg(not(loom))]
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

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
    pub(crate) shared: Arc<ReadyList<ParkedWaiter>>,
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
        Ok(WakeSet { shared: Arc::new(ReadyList::new(signal)) })
    }

    /// False: the set is armed, the descriptor becomes readable when something is ready. True: something is ready now, call
    /// [`WakeSet::take`], and the set is not armed: arm it again before you sleep, also where there was nothing to take,
    /// for a member that was ready may have left the set meanwhile.
    pub fn arm(&self) -> bool {
        self.shared.arm()
    }

    /// Writes the tags of ready members into `tags` and returns their number; members that have no room stay listed. A
    /// member's tag is listed at most once until it is taken, and not any more once the member has left.
    ///
    /// ```
    /// use std::time::Duration;
    /// use watchcore::{Cache, Change, Start, WakeSet};
    ///
    /// let cache = Cache::builder("/").build()?;
    /// let set = WakeSet::new()?;
    /// let open = |key| cache.subscribe(Start::Now).key(key).open();
    /// let mut members = [open("/a")?, open("/b")?];
    /// for (tag, member) in (0..).zip(&mut members) {
    ///     set.add(member, tag)?;
    ///     member.arm()?;
    /// }
    /// cache.writer()?.apply(1, [Change::put("/a", "1"), Change::put("/b", "1")])?;
    /// let (mut events, mut tags) = (0, [0; 1]); // room for one tag: the other stays listed
    /// while events < 2 && set.wait(Duration::from_secs(30)) {
    ///     let ready = set.take(&mut tags);
    ///     for tag in &tags[..ready] {
    ///         let member = &mut members[*tag as usize];
    ///         events += member.poll(64)?.len();
    ///         member.arm()?; // lists it again at once if the poll has left something, or more has come
    ///     }
    /// }
    /// assert_eq!(events, 2);
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn take(&self, tags: &mut [u64]) -> usize {
        let mut count = 0;
        self.shared.take(tags.len(), false, |tag| {
            tags[count] = tag;
            count += 1;
        });
        count
    }

    /// The tag of a ready member. The poll that follows lists the member again where there is more. `None`: none is ready,
    /// and the set is armed.
    pub(crate) fn next(&self) -> Option<u64> {
        let mut next = None;
        loop {
            self.shared.take(1, true, |tag| next = Some(tag));
            if next.is_some() || !self.arm() {
                return next;
            }
        }
    }

    /// The descriptor: non-blocking, close-on-exec, owned by the set and closed with its last handle.
    /// Only poll it. For event loops of Rust (mio, tokio's `AsyncFd`) the set is `AsFd` and `AsRawFd`.
    pub fn fd(&self) -> i32 {
        self.shared.signal.descriptor.fd()
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
            self.shared.signal.descriptor.wait(left);
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
        self.shared.signal.descriptor.as_fd()
    }
}

#[cfg(not(loom))]
impl AsRawFd for WakeSet {
    fn as_raw_fd(&self) -> RawFd {
        self.fd()
    }
}
