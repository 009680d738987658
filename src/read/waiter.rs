//! A wait for a state of the cache: polled, blocking, in a wake set, or as a future.

#![forbid(unsafe_code)]

use crate::cache::Inner;
use crate::error::{Code, Error, Result, say};
use crate::position::Position;
use crate::reclaim;
use crate::sync::{Acquire, current_thread, lock};
use crate::wake::{Due, FilterCode, Interest, WaiterCell, WakeSet, Waker, not_in_a_set};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// The condition of a [`Waiter`].
///
/// ```
/// use std::time::Duration;
/// use watchcore::{Cache, Change, Want};
///
/// let cache = Cache::builder("/").build()?;
/// let mut waiter = cache.waiter(Want::Revision(3))?;
/// assert!(waiter.poll()?.is_none());
/// cache.writer()?.apply(3, [Change::put("/a", "1")])?;
/// assert_eq!(waiter.wait(Duration::from_secs(3))?.revision, 3);
/// # Ok::<(), watchcore::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Want {
    /// The first listing.
    Ready,
    /// The cache to reach this revision. RESYNCED where its history is reset meanwhile.
    Revision(u64),
    /// A revision of an epoch (0: that of now).
    RevisionIn(Position),
    /// A consistent revision: every change that was done before the waiter was made.
    Consistent,
}

/// A wait: await it as a future, block with [`Waiter::wait`], poll it, or let it join a wake set. Send.
///
/// The future ends with the position at which the condition held, or with the error of [`Waiter::poll`]. A waiter
/// needs no runtime: the task's waker is called by the thread that wakes all others, at the end of its
/// [`Waiter::timeout`] too. Waiters are cancel safe: a waiter takes nothing, so a dropped one has lost nothing, and
/// a waiter that was awaited by reference can be awaited again.
///
/// An arming lasts until the waiter is polled: one whose poll gave `None` must be armed again, or its
/// wake set is not woken for it.
///
/// ```
/// use std::time::Duration;
/// use watchcore::{Cache, Change, WakeSet, Want};
///
/// let cache = Cache::builder("/").build()?;
/// let mut waiter = cache.waiter(Want::Revision(3))?;
/// let set = WakeSet::new()?;
/// set.add_waiter(&mut waiter, 42)?;
/// if !waiter.arm()? {
///     cache.writer()?.apply(3, [Change::put("/a", "1")])?; // some other thread's
///     assert!(set.wait(Duration::from_secs(30)));
///     let mut tags = [0; 8];
///     let ready = set.take(&mut tags);
///     assert_eq!(&tags[..ready], [42]);
/// }
/// // Had this given `None`, the waiter would have to be armed again.
/// assert_eq!(waiter.poll()?.unwrap().revision, 3);
/// # Ok::<(), watchcore::Error>(())
/// ```
///
/// Awaited, here for a write of the task's own:
///
/// ```
/// use std::time::Duration;
/// use watchcore::{Cache, Result, Want};
///
/// async fn read_my_write(cache: Cache, written: u64) -> Result<Option<Vec<u8>>> {
///     cache.waiter(Want::Revision(written))?.timeout(Duration::from_secs(3)).await?;
///     Ok(cache.snapshot()?.get("/a").and_then(|kv| kv.value().map(Vec::from)))
/// }
/// ```
#[derive(Debug)]
#[must_use = "a waiter waits when it is awaited, polled, armed or blocked on"]
pub struct Waiter {
    pub(super) inner: Arc<Inner>,
    wanted: Wanted,
    /// The epoch in which a revision is waited for.
    epoch: u64,
    embedded: bool,
    limit: Option<TimeLimit>,
    /// Made with the first sleep.
    sleep: WaiterCell,
}

/// How long a waiter waits.
#[derive(Clone, Copy, Debug)]
struct TimeLimit {
    until: Instant,
    /// The time limit as it was asked for.
    timeout: Duration,
}

/// The condition, without the parts that change during the wait.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wanted {
    Ready,
    Revision(u64),
    /// The ticket of a consistent read.
    Consistent(u64),
}

impl Waiter {
    pub(super) fn new(inner: Arc<Inner>, wanted: Wanted, epoch: u64, embedded: bool) -> Waiter {
        Waiter { inner, wanted, epoch, embedded, limit: None, sleep: WaiterCell::new() }
    }

    /// Waits at most this long, from now on: once that is over it answers TIMEOUT, as a future, to
    /// [`Waiter::poll`], and with its tag listed where it is armed. `Duration::MAX`, as without: for ever.
    pub fn timeout(mut self, timeout: Duration) -> Waiter {
        self.limit = Instant::now().checked_add(timeout).map(|until| TimeLimit { until, timeout });
        self
    }

    /// Looks whether the condition holds: `Some(position)` if so. CLOSED when the cache was closed first, TIMEOUT when
    /// its [`Waiter::timeout`] is over, or the source's failure before the first listing. Never blocks.
    ///
    /// A poll ends the arming in a wake set: after `None`, call [`Waiter::arm`] again to be woken.
    pub fn poll(&mut self) -> Result<Option<Position>> {
        self.unpark();
        let inner = self.inner.clone();
        let closed = inner.is_closed();
        let ready = inner.is_ready();
        let position = inner.position();
        if ready && matches!(self.wanted, Wanted::Revision(_)) && position.epoch != self.epoch {
            self.follow_epoch(position)?;
        }
        let holds = match self.wanted {
            Wanted::Ready => ready.then_some(position),
            Wanted::Revision(revision) => (ready && position.revision >= revision).then_some(position),
            Wanted::Consistent(ticket) => (inner.served.load(Acquire) >= ticket)
                .then(|| Position { epoch: position.epoch, revision: lock(&inner.info).consistent_revision }),
        };
        if holds.is_some() {
            return Ok(holds);
        }
        if closed {
            return Err(say::closed("wait on a cache"));
        }
        // Before the first listing, or after it and for good: nothing that is waited for comes.
        if let Some(error) = inner.broken() {
            return Err(error);
        }
        if !ready && inner.has_failed() {
            return Err(inner.not_ready("wait on a cache"));
        }
        match self.limit {
            Some(limit) if limit.until <= Instant::now() => Err(timed_out(limit.timeout)),
            _ => Ok(None),
        }
    }

    /// [`Waiter::poll`] for C: a member of a wake set is armed when this gives nothing, and a result that came between
    /// the poll and the arming is returned. `rests`: see `Awake::poll_member`.
    pub(crate) fn poll_for_loop(&mut self, rests: impl Fn()) -> Result<Option<Position>> {
        loop {
            let answer = self.poll()?;
            if answer.is_some() || self.sleep.waiter().is_none() {
                return Ok(answer);
            }
            let mut parker = self.sleep.parker(FilterCode::Own);
            if !parker.is_in_a_set() {
                return Ok(None);
            }
            // A tag of it is listed again only when it has come: there is nothing to be told from a tag that was taken.
            parker.take_given();
            rests();
            if self.park(Waker::Member) {
                return Ok(None);
            }
        }
    }

    /// The history was replaced while it waited: RESYNCED where revisions cannot be compared any more.
    fn follow_epoch(&mut self, now: Position) -> Result<()> {
        let pin = reclaim::pin();
        let epochs = self.inner.ring.epochs(&pin);
        let from = Position { epoch: self.epoch, revision: 0 };
        if epochs.is_of_a_former_history(from, self.inner.ring.head()) {
            return Err(Error::new(
                Code::Resynced,
                format!(
                    "wait for a revision of epoch {}: the history was replaced at revision {} meanwhile. Read the state again.",
                    self.epoch as u32, now.revision
                ),
            )
            .with_current(now.revision)
            .with_position(now));
        }
        self.epoch = now.epoch;
        Ok(())
    }

    /// Blocks until it holds. TIMEOUT after `timeout` (`Duration::MAX`: for ever), or after
    /// [`Waiter::timeout`] where that is over before.
    pub fn wait(&mut self, timeout: Duration) -> Result<Position> {
        let until = Instant::now().checked_add(timeout);
        loop {
            if let Some(position) = self.poll()? {
                return Ok(position);
            }
            if !self.park(Waker::Thread(current_thread())) {
                continue;
            }
            let woken = self.sleep.waiter().is_none_or(|waiter| waiter.sleep(until));
            self.unpark();
            if !woken {
                return match self.poll()? {
                    Some(position) => Ok(position),
                    None => Err(timed_out(timeout)),
                };
            }
        }
    }

    /// Parks, and wakes the source for what is wanted. False: it may hold already.
    fn park(&mut self, waker: Waker) -> bool {
        let interest = match self.wanted {
            Wanted::Ready => Interest::Ready,
            Wanted::Revision(revision) => Interest::revision(Position { epoch: self.epoch, revision }, None),
            Wanted::Consistent(ticket) => Interest::Consistent(ticket),
        };
        let due = Due { deadline: self.limit.map(|limit| limit.until), ..Due::default() };
        let mut parker = self.sleep.parker(FilterCode::Own);
        parker.wait_for(interest);
        let parked = parker.park(&self.inner, 0, waker, &due).is_ok();
        if parked && !self.embedded {
            self.inner.wake_source();
        }
        parked
    }

    fn unpark(&mut self) {
        if self.sleep.waiter().is_some() {
            self.sleep.parker(FilterCode::Own).unpark(&self.inner);
        }
    }

    /// Arms a member of a wake set: true if it is ready now (its tag is listed too); false: its tag
    /// will be listed when it is, unless it is polled before. Whenever a poll gave `None`, arm it again;
    /// a result that came between the two is found here. Never blocks.
    pub fn arm(&mut self) -> Result<bool> {
        let mut parker = self.sleep.parker(FilterCode::Own);
        if !parker.is_member() {
            return Err(not_in_a_set("waiter"));
        }
        let (_, waker) = parker.unpark_with_waker(&self.inner);
        if !parker.is_in_a_set() {
            waker.into_iter().for_each(Waker::call);
            return Err(not_in_a_set("waiter"));
        }
        if self.park(Waker::Member) {
            return Ok(false);
        }
        self.sleep.parker(FilterCode::Own).list();
        Ok(true)
    }
}

fn timed_out(timeout: Duration) -> Error {
    say::timeout("wait on a cache", timeout.as_millis())
}

impl Future for Waiter {
    type Output = Result<Position>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Position>> {
        let waiter = self.get_mut();
        loop {
            if let Some(answer) = waiter.poll().transpose() {
                return Poll::Ready(answer);
            }
            if waiter.park(Waker::Task(context.waker().clone())) {
                return Poll::Pending;
            }
        }
    }
}

impl WakeSet {
    /// Adds a waiter under a tag; it leaves the set it was in, and joins this one when it is armed.
    pub fn add_waiter(&self, waiter: &mut Waiter, tag: u64) -> Result<()> {
        waiter.unpark();
        waiter.sleep.parker(FilterCode::Own).join_set(self, tag);
        Ok(())
    }

    /// Takes a waiter out; true if it was in this set. A tag of it that is listed is dropped.
    pub fn remove_waiter(&self, waiter: &mut Waiter) -> bool {
        if waiter.sleep.waiter().is_none() {
            return false;
        }
        let mut parker = waiter.sleep.parker(FilterCode::Own);
        if !parker.is_member() {
            return false;
        }
        let (_, waker) = parker.unpark_with_waker(&waiter.inner);
        let was_member = parker.leave_set(self);
        match waker {
            // The waiter is armed in another set, and stays so.
            Some(Waker::Member) if !was_member => _ = waiter.arm(),
            waker => waker.into_iter().for_each(Waker::call),
        }
        was_member
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if self.sleep.waiter().is_some() {
            self.sleep.parker(FilterCode::Own).leave(&self.inner);
        }
    }
}
