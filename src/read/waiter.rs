//! One wait for a state of the cache: polled, blocking, or in a wake set.

#![forbid(unsafe_code)]

use crate::cache::Inner;
use crate::error::{Code, Error, Result, say};
use crate::position::Position;
use crate::reclaim;
use crate::sync::{Acquire, lock};
use crate::wake::{Parker, SetShared, Ticket, Told, WakeSet, Waker, Want as Wanted};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a [`Waiter`] waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Want {
    /// The first listing.
    Ready,
    /// The cache to reach this revision. RESYNCED where its history is reset meanwhile.
    Revision(u64),
    /// The same, of an epoch (0: that of now).
    RevisionIn(Position),
    /// A consistent revision: every change that was done before the waiter was made.
    Consistent,
}

/// One wait, without blocking: poll it, join a wake set, or block with [`Waiter::wait`]. Send.
#[derive(Debug)]
pub struct Waiter {
    pub(super) inner: Arc<Inner>,
    pub(super) want: Wanted,
    /// The epoch in which a revision is waited for.
    pub(super) epoch: u64,
    pub(super) embedded: bool,
    pub(super) ticket: Option<Ticket>,
    pub(super) set: Option<(Arc<SetShared>, u64)>,
}

impl Waiter {
    /// What holds now: `Some(position)` once it holds. CLOSED when the cache was closed first, or
    /// the source's failure before the first listing. Never blocks.
    pub fn poll(&mut self) -> Result<Option<Position>> {
        self.disarm();
        let inner = self.inner.clone();
        let closed = inner.is_closed();
        let ready = inner.is_ready();
        let position = inner.position();
        if ready && matches!(self.want, Wanted::Revision(_)) && position.epoch != self.epoch {
            self.follow_epoch(position)?;
        }
        let holds = match self.want {
            Wanted::Ready => ready.then_some(position),
            Wanted::Revision(revision) => (ready && position.revision >= revision).then_some(position),
            Wanted::Consistent(ticket) => (inner.served.load(Acquire) >= ticket)
                .then(|| Position { epoch: position.epoch, revision: lock(&inner.info).consistent_revision }),
            Wanted::Event { .. } | Wanted::Chain { .. } | Wanted::RevisionIn(_) => None,
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
        if !ready && lock(&inner.info).failed {
            return Err(inner.not_ready("wait on a cache"));
        }
        Ok(None)
    }

    /// The history was replaced while it waited: RESYNCED where revisions cannot be compared any more.
    fn follow_epoch(&mut self, now: Position) -> Result<()> {
        let pin = reclaim::pin();
        let history = self.inner.ring.history(&pin);
        let from = Position { epoch: self.epoch, revision: 0 };
        if history.is_of_a_former_history(from, self.inner.ring.head()) {
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

    /// Blocks until it holds. TIMEOUT after `timeout`; `Duration::MAX` is for ever.
    pub fn wait(&mut self, timeout: Duration) -> Result<Position> {
        let until = Instant::now().checked_add(timeout);
        let parker = Arc::new(Parker::default());
        loop {
            if let Some(position) = self.poll()? {
                return Ok(position);
            }
            parker.reset();
            if self.register(Waker::Thread(parker.clone())).is_err() {
                continue;
            }
            if !self.embedded {
                self.inner.wake_source();
            }
            let woken = parker.wait_until(until);
            self.disarm();
            if !woken {
                return match self.poll()? {
                    Some(position) => Ok(position),
                    None => Err(say::timeout("wait on a cache", timeout.as_millis())),
                };
            }
        }
    }

    fn register(&mut self, waker: Waker) -> std::result::Result<(), Told> {
        let inner: &Inner = &self.inner;
        let want = match self.want {
            Wanted::Revision(revision) => Wanted::RevisionIn(Position { epoch: self.epoch, revision }),
            ref want => want.clone(),
        };
        self.ticket = Some(inner.hub.register(inner, want, waker, None, None)?);
        Ok(())
    }

    fn disarm(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.inner.hub.unregister(&ticket);
        }
    }

    /// As a member of a wake set: true if it is ready now (its tag is listed too); false: its tag
    /// will be listed when it is.
    pub fn arm(&mut self) -> Result<bool> {
        let Some((set, tag)) = self.set.clone() else {
            return Err(say::invalid("arm a waiter: it is in no wake set. Add it to one first."));
        };
        self.disarm();
        match self.register(Waker::Member(set.clone(), tag)) {
            Ok(()) => {
                if !self.embedded {
                    self.inner.wake_source();
                }
                return Ok(false);
            }
            Err(Told::No) => set.list(tag),
            // Once an arming.
            Err(Told::Yes) => {}
        }
        Ok(true)
    }

    pub(crate) fn join(&mut self, set: Option<(Arc<SetShared>, u64)>) -> bool {
        self.disarm();
        std::mem::replace(&mut self.set, set).is_some()
    }
}

impl WakeSet {
    /// Adds a waiter under a tag. It joins when it is armed.
    pub fn add_waiter(&self, waiter: &mut Waiter, tag: u64) -> Result<()> {
        waiter.join(Some((self.shared.clone(), tag)));
        Ok(())
    }

    /// Takes a waiter out; true if it was in a set.
    pub fn remove_waiter(&self, waiter: &mut Waiter) -> bool {
        waiter.join(None)
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.disarm();
    }
}
