//! The waits of a cache's callers: each wait blocks, or is a future.
//!
//! Both are the same [`Waiter`], which either blocks its thread or hands its task's waker to the parked waiter where it
//! sleeps. A future has its time limit there too, so that it needs no timer of a runtime: docs/internals/waking.md.

#![forbid(unsafe_code)]

use super::waiter::Wanted;
use super::{Read, Waiter, Want};
use crate::cache::Cache;
use crate::error::{Code, Error, Result, say};
use crate::position::Position;
use crate::reclaim;
use crate::sync::lock;
use std::time::Duration;

impl Cache {
    /// Waits for the first listing. CLOSED, TIMEOUT, or the source's failure.
    ///
    /// ```
    /// use std::time::Duration;
    /// use watchcore::{Cache, Code};
    ///
    /// let cache = Cache::builder("/").expect_load(true).build()?;
    /// assert_eq!(cache.wait_ready(Duration::ZERO).unwrap_err().code(), Code::Timeout);
    /// cache.writer()?.load(5, [])?;
    /// cache.wait_ready(Duration::from_secs(30))?; // at once
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn wait_ready(&self, timeout: Duration) -> Result<()> {
        let held = self.waiter(Want::Ready)?.wait(timeout);
        held.map(|_| ()).map_err(|error| self.no_listing(timeout, error))
    }

    /// [`Cache::wait_ready`] as a future. Cancel safe.
    pub async fn wait_ready_async(&self, timeout: Duration) -> Result<()> {
        let held = self.waiter(Want::Ready)?.timeout(timeout).await;
        held.map(|_| ()).map_err(|error| self.no_listing(timeout, error))
    }

    fn no_listing(&self, timeout: Duration, error: Error) -> Error {
        if error.code() != Code::Timeout {
            return error;
        }
        let last = lock(&self.inner.info).source_error().cloned();
        let why = last.map_or_else(String::new, |error| format!(" Last error: {error}"));
        Error::new(
            Code::Timeout,
            format!(
                "wait for the first listing: none within {} ms.{why} Ask again, or look at status.",
                timeout.as_millis()
            ),
        )
    }

    /// Waits until the cache reached a revision: read your own writes. FUTURE_REVISION after the
    /// timeout. With a feeder, etcd is asked for progress at once. Behind a proxy that drops such requests the wait ends
    /// with the next event, or with the notification that etcd sends by itself each ten minutes.
    ///
    /// ```
    /// use std::time::Duration;
    /// use watchcore::{Cache, Change, Code};
    ///
    /// let cache = Cache::builder("/").build()?;
    /// cache.writer()?.apply(3, [Change::put("/a", "1")])?;
    /// assert_eq!(cache.wait_until(3, Duration::from_secs(3))?.revision, 3);
    /// let soon = cache.wait_until(4, Duration::from_millis(1)).unwrap_err();
    /// assert_eq!((soon.code(), soon.asked(), soon.current()), (Code::FutureRevision, 4, 3));
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn wait_until(&self, revision: u64, timeout: Duration) -> Result<Position> {
        let held = self.waiter(Want::Revision(revision))?.wait(timeout);
        held.map_err(|error| self.not_reached("wait until", revision, error))
    }

    /// [`Cache::wait_until`] as a future. Cancel safe.
    ///
    /// ```
    /// use std::time::Duration;
    /// use watchcore::{Cache, Read, Result};
    ///
    /// async fn changed(cache: &Cache, key: &str, written: u64) -> Result<bool> {
    ///     cache.wait_until_async(written, Duration::from_secs(3)).await?;
    ///     Ok(cache.get(key, Read::Any)?.kv.is_some_and(|kv| kv.mod_revision() >= written))
    /// }
    /// ```
    pub async fn wait_until_async(&self, revision: u64, timeout: Duration) -> Result<Position> {
        let held = self.waiter(Want::Revision(revision))?.timeout(timeout).await;
        held.map_err(|error| self.not_reached("wait until", revision, error))
    }

    fn not_reached(&self, what: &str, asked: u64, error: Error) -> Error {
        if error.code() == Code::Timeout { say::future(what, asked, self.position().revision) } else { error }
    }

    /// A revision at which the cache has every change of its keys that was done before this call: with a feeder one
    /// linearizable read of etcd for all readers that ask meanwhile; embedded, the current revision.
    ///
    /// The answer is etcd's revision, and may be above the cache's position: read at least there. Before the watch has
    /// its first notification of progress, and behind a proxy that drops them, the answer may be the cache's position,
    /// once the state there is proven to be etcd's.
    /// TIMEOUT after `timeout`; CLOSED; before the first listing the source's failure.
    ///
    /// ```
    /// use std::time::Duration;
    /// use watchcore::{Cache, Change, Read};
    ///
    /// let cache = Cache::builder("/").build()?;
    /// cache.writer()?.apply(3, [Change::put("/a", "1")])?;
    /// let revision = cache.consistent_revision(Duration::from_secs(3))?;
    /// assert_eq!(revision, 3, "embedded: the current one");
    /// assert!(cache.get("/a", Read::AtLeast(revision))?.kv.is_some(), "every change done before is seen");
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn consistent_revision(&self, timeout: Duration) -> Result<u64> {
        Ok(self.waiter(Want::Consistent)?.wait(timeout)?.revision)
    }

    /// [`Cache::consistent_revision`] as a future: it asks when it is awaited first, and what was done before that
    /// is in its answer. Cancel safe.
    ///
    /// ```
    /// use std::time::Duration;
    /// use watchcore::{Answer, Cache, Read, Result};
    ///
    /// /// Reads what nobody can have overtaken.
    /// async fn linearizable(cache: &Cache, key: &str) -> Result<Answer> {
    ///     let revision = cache.consistent_revision_async(Duration::from_secs(3)).await?;
    ///     cache.get_async(key, Read::AtLeast(revision)).await
    /// }
    /// ```
    pub async fn consistent_revision_async(&self, timeout: Duration) -> Result<u64> {
        Ok(self.waiter(Want::Consistent)?.timeout(timeout).await?.revision)
    }

    /// A wait that does not block. See [`Waiter`].
    pub fn waiter(&self, want: Want) -> Result<Waiter> {
        let inner = &self.inner;
        let embedded = !inner.has_source();
        if let Want::Revision(revision) | Want::RevisionIn(Position { revision, .. }) = want {
            say::check_asked("wait for a revision", revision, || self.position().revision)?;
        }
        // Without a writer there is no newest revision to be consistent with.
        if embedded && matches!(want, Want::Consistent) && inner.is_closing() {
            return Err(say::closed("wait on a cache"));
        }
        let wanted = match want {
            Want::Ready => Wanted::Ready,
            Want::Revision(revision) | Want::RevisionIn(Position { revision, .. }) => Wanted::Revision(revision),
            Want::Consistent if embedded => Wanted::Ready,
            Want::Consistent => Wanted::Consistent(inner.asked.fetch_add(1, crate::sync::SeqCst) + 1),
        };
        let epoch = match want {
            Want::RevisionIn(Position { epoch, .. }) if epoch != 0 => epoch,
            _ => inner.position().epoch,
        };
        let waiter = Waiter::new(inner.clone(), wanted, epoch, embedded);
        if !matches!(want, Want::Ready) && !embedded {
            inner.wake_source();
        }
        Ok(waiter)
    }
}

/// The wait of a read, which comes before it.
impl Cache {
    /// Blocks until the read can be answered. For exact ones: (position, head to read at).
    #[inline(always)]
    pub(super) fn await_revision(&self, what: &str, read: Read, timeout: Duration) -> Result<Option<(Position, u64)>> {
        self.inner.check_ready(what)?;
        read.asked().map_or(Ok(None), |asked| self.await_asked(what, asked, timeout))
    }

    /// Out of line: most reads ask for no revision.
    #[inline(never)]
    fn await_asked(
        &self,
        what: &str,
        (asked, exact): (Position, bool),
        timeout: Duration,
    ) -> Result<Option<(Position, u64)>> {
        if let Some(mut waiter) = self.waiter_of_read(what, asked)? {
            waiter.wait(timeout).map_err(|error| self.not_reached(what, asked.revision, error))?;
        }
        self.head_of_read(what, asked, exact)
    }

    /// The wait for a revision as a future.
    pub(super) async fn await_revision_async(
        &self,
        what: &str,
        read: Read,
        timeout: Duration,
    ) -> Result<Option<(Position, u64)>> {
        self.inner.check_ready(what)?;
        let Some((asked, exact)) = read.asked() else { return Ok(None) };
        if let Some(waiter) = self.waiter_of_read(what, asked)? {
            waiter.timeout(timeout).await.map_err(|error| self.not_reached(what, asked.revision, error))?;
        }
        self.head_of_read(what, asked, exact)
    }

    /// The wait before a read; `None`: the cache has reached the revision.
    fn waiter_of_read(&self, what: &str, asked: Position) -> Result<Option<Waiter>> {
        say::check_asked(what, asked.revision, || self.position().revision)?;
        let former = || {
            let pin = reclaim::pin();
            let (_, head) = self.inner.now(&pin);
            self.inner.ring.epochs(&pin).is_of_a_former_history(asked, head)
        };
        if asked.epoch != 0 && former() {
            return Err(self.inner.compacted(what, asked.revision));
        }
        (self.position().revision < asked.revision).then(|| self.waiter(Want::RevisionIn(asked))).transpose()
    }

    /// The position and the head of an exact read, once the cache has reached its revision.
    fn head_of_read(&self, what: &str, asked: Position, exact: bool) -> Result<Option<(Position, u64)>> {
        if !exact {
            return Ok(None);
        }
        let found = self.inner.resolve(what, asked, false)?;
        if found.future {
            return Err(self.inner.compacted(what, asked.revision));
        }
        Ok(Some((Position { epoch: found.epoch, revision: asked.revision }, found.seq)))
    }
}
