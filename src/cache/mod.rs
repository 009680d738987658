//! The cache: log, store and waiters of one prefix, and the handle on it.
//!
//! [`Inner`] is the state that all parts of one cache share. [`Cache`] is the user's handle: each storey above adds its
//! methods to it, the writer `writer`, reads `get` and `list`, subscriptions `subscribe`.

mod builder;
mod consumer;
mod core;
mod gauges;
mod observed;
mod registry;
mod reported_phase;
mod shared;
mod source;
mod status;
mod subscriptions;
mod view;
mod within;

pub use builder::Builder;
pub(crate) use consumer::{MaxLag, OPEN};
pub(crate) use core::Core;
pub(crate) use gauges::Gauges;
pub(crate) use registry::NOWHERE;
pub(crate) use reported_phase::ReportedPhase;
pub(crate) use shared::{Consumer, ConsumerRef, Info, Inner, NOT_READY, READY, living};
pub use source::{Source, SourceMetric, SourceReport, SourceState};
pub use status::{State, Stats, Status};
pub use subscriptions::{Lag, ReadPath, SubscriptionInfo, SubscriptionState};
pub(crate) use view::{Left, PIN_KEYS, StateView};

use crate::error::Error;
use crate::position::Position;
use crate::sync::{Relaxed, lock};
use std::sync::Arc;

/// A cache of one prefix: a bounded log of its changes and a keyed store of its state.
///
/// Clone, Send and Sync. It is open until [`Cache::close`], or until its last handle and its last
/// subscription are gone: a subscription that has not ended keeps it open, a writer, a waiter or a snapshot
/// does not. Batches, key-values and snapshots outlive it.
///
/// ```
/// use watchcore::{Cache, Change, Read, Start};
///
/// let cache = Cache::builder("/registry/").capacity(4096).build()?;
/// let reader = cache.clone(); // for another thread
/// cache.writer()?.apply(7, [Change::put("/registry/a", "1")])?;
///
/// assert_eq!(reader.position().revision, 7);
/// assert_eq!(reader.get("/registry/a", Read::Any)?.kv.unwrap().value(), Some(&b"1"[..]));
/// let mut subscription = reader.subscribe(Start::State).open()?;
/// assert_eq!(subscription.poll(10)?.events()[0].key(), b"/registry/a");
/// # Ok::<(), watchcore::Error>(())
/// ```
pub struct Cache {
    pub(crate) inner: Arc<Inner>,
}

impl Cache {
    pub(super) fn new(inner: Inner) -> Cache {
        inner.keep_open();
        Cache { inner: Arc::new(inner) }
    }

    /// The position of the cache.
    pub fn position(&self) -> Position {
        self.inner.position()
    }

    /// `After(R)` and `Exact(R)` work for R from one below this up to the current revision.
    pub fn oldest(&self) -> u64 {
        self.inner.window().0
    }

    /// Whether the first listing is there and the cache open, so that reads are answered. [`Cache::wait_ready`] waits
    /// for this. It stays true while the source is out of reach, which `status` reports.
    ///
    /// ```
    /// use watchcore::Cache;
    ///
    /// let cache = Cache::builder("/").expect_load(true).build()?;
    /// assert!(!cache.is_ready());
    /// cache.writer()?.load(5, [])?;
    /// assert!(cache.is_ready());
    /// cache.close();
    /// assert!(!cache.is_ready());
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn is_ready(&self) -> bool {
        self.inner.is_ready() && !self.inner.has_failed() && !self.inner.is_closing()
    }

    /// The prefix of every key.
    pub fn prefix(&self) -> &[u8] {
        &self.inner.prefix
    }

    /// The number of the attribute that was declared with this name ([`Builder::field`]), for
    /// [`KeyValue::attribute`](crate::KeyValue::attribute). It holds for the life of the cache. O(attributes).
    pub fn attribute_number(&self, name: &str) -> Option<usize> {
        self.inner.schema.field(name)
    }

    /// The name given to the builder.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The number of live keys, like [`Status::objects`], by a single load.
    ///
    /// ```
    /// use watchcore::{Cache, Change};
    ///
    /// let cache = Cache::builder("/").build()?;
    /// cache.writer()?.apply(3, [Change::put("/a", "1"), Change::put("/b", "2")])?;
    /// assert_eq!(cache.objects(), 2);
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn objects(&self) -> u64 {
        self.inner.gauges.objects.load(Relaxed)
    }

    /// How fresh it is, like [`Status::state`], without asking the subscriptions.
    ///
    /// ```
    /// use watchcore::{Cache, State};
    ///
    /// let cache = Cache::builder("/").build()?;
    /// assert_eq!(cache.state(), State::Ready);
    /// cache.close();
    /// assert_eq!(cache.state(), State::Closed);
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn state(&self) -> State {
        self.state_of(&lock(&self.inner.info))
    }

    /// The reason why the source is not followed now, if it is not. [`Status::last_error`] stays when the source is back;
    /// this error does not, so it can be given as the reason of a present failure.
    ///
    /// ```
    /// use watchcore::{Cache, Code, Error, SourceState};
    ///
    /// let cache = Cache::builder("/").build()?;
    /// let mut writer = cache.writer()?;
    /// writer.set_state(SourceState::Stale(Error::new(Code::Unavailable, "away")));
    /// assert_eq!(cache.source_error().unwrap().message(), "away");
    /// writer.set_state(SourceState::Fresh);
    /// assert!(cache.source_error().is_none() && cache.status().last_error.is_some());
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn source_error(&self) -> Option<Error> {
        lock(&self.inner.info).source_error().cloned()
    }

    /// State, position, window, lag and the source's last error. Takes short locks that the
    /// writer does not take while it publishes, and no poll takes. O(open subscriptions).
    pub fn status(&self) -> Status {
        self.status_and_stats().0
    }

    fn state_of(&self, info: &Info) -> State {
        if self.inner.is_closing() {
            State::Closed
        } else if self.inner.has_failed() {
            State::Failed
        } else if !self.inner.is_ready() {
            State::NotReady
        } else {
            info.stale_since.map_or(State::Ready, |since| State::Stale { since })
        }
    }

    /// Status and statistics, both computed from one pass over the subscriptions.
    pub(crate) fn status_and_stats(&self) -> (Status, Stats) {
        let inner = &self.inner;
        let totals = inner.totals();
        let stats = inner.stats(&totals);
        let (oldest, position) = inner.window();
        let info = lock(&inner.info);
        let state = self.state_of(&info);
        let status = Status {
            window_age: self.inner.ring.window_age(),
            name: inner.name.clone(),
            state,
            position,
            oldest,
            objects: stats.objects,
            bytes: stats.bytes(),
            last_error: info.last_error.clone(),
            subscriptions: stats.subscriptions,
            max_lag_events: totals.max_lag_events,
            max_lag_seen: inner.consumers.max_lag.load(Relaxed),
            overrun: totals.overrun,
            source: info.report.at_least(position.revision),
        };
        (status, stats)
    }

    /// Counts and bytes of the parts of the cache. O(open subscriptions).
    pub fn stats(&self) -> Stats {
        self.inner.stats(&self.inner.totals())
    }

    /// The open subscriptions in the order of their opening, each with its present state, also if it never polls. Takes
    /// a short lock that otherwise only opening and dropping a subscription take: no poll, no wait, no writer. O(open
    /// subscriptions).
    pub fn subscriptions(&self) -> Vec<SubscriptionInfo> {
        let mut all: Vec<_> = self.inner.registry.all().iter().map(|one| one.info()).collect();
        all.sort_unstable_by_key(|info| info.id);
        all
    }

    /// Closes the cache for every handle: idempotent, from any thread. Waiters end at once; subscriptions deliver the
    /// events that are left, then answer CLOSED.
    pub fn close(&self) {
        self.inner.close();
    }
}

impl Clone for Cache {
    fn clone(&self) -> Cache {
        self.inner.keep_open();
        Cache { inner: self.inner.clone() }
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        self.inner.keep_open_no_more();
    }
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache").field("name", &self.name()).field("position", &self.position()).finish()
    }
}
