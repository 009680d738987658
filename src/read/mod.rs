//! Reads and waits: get, list, count, snapshot, wait_ready, wait_until, consistent reads.

pub(crate) mod continue_token;
mod diff;
mod page;
pub(crate) mod snapshot;
pub(crate) mod view;
mod waiter;

pub use page::Page;

use waiter::Wanted;
pub use waiter::{Waiter, Want};

use crate::cache::{Cache, StateView};
use crate::data::key_value::KeyValue;
use crate::error::show;
use crate::error::{Code, Error, Result, say};
use crate::filter::matcher::Matcher;
use crate::filter::range::{Filter, Range};
use crate::position::Position;
use crate::read::snapshot::Snapshot;
use crate::read::view::{At, Left, Scan};
use crate::reclaim;
use crate::sync::lock;
use std::time::Duration;

/// Which state a read answers from.
///
/// ```
/// use watchcore::{Cache, Change, Read};
///
/// let cache = Cache::builder("/").build()?;
/// let mut writer = cache.writer()?;
/// writer.apply(1, [Change::put("/a", "old")])?;
/// writer.apply(2, [Change::put("/a", "new")])?;
/// let value = |read| cache.get("/a", read).map(|answer| answer.kv.unwrap().value().unwrap().to_vec());
/// assert_eq!(value(Read::Any)?, b"new");
/// assert_eq!(value(Read::AtLeast(1))?, b"new");
/// assert_eq!(value(Read::Exact(1))?, b"old");
/// # Ok::<(), watchcore::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Read {
    /// The newest; never waits.
    Any,
    /// One at or above this revision; waits for it.
    AtLeast(u64),
    /// Exactly that after this revision; waits for a future one.
    Exact(u64),
    /// As `AtLeast`, of an epoch: COMPACTED where the history was reset since, RESYNCED where it is
    /// reset while this waits.
    AtLeastIn(Position),
    /// As `Exact`, of an epoch.
    ExactIn(Position),
}

impl Read {
    /// The position asked for (epoch 0: unchecked), and whether it is to be exact.
    pub(super) fn asked(self) -> Option<(Position, bool)> {
        let unchecked = |revision| Position { epoch: 0, revision };
        match self {
            Read::Any => None,
            Read::AtLeast(revision) => Some((unchecked(revision), false)),
            Read::Exact(revision) => Some((unchecked(revision), true)),
            Read::AtLeastIn(position) => Some((position, false)),
            Read::ExactIn(position) => Some((position, true)),
        }
    }
}

/// Options of a read beyond its key or range: see [`Cache::list_with`].
///
/// ```
/// use std::time::Duration;
/// use watchcore::{Cache, Change, Code, Range, Read, ReadOptions};
///
/// let cache = Cache::builder("/").build()?;
/// cache.writer()?.apply(1, [Change::put("/a", "1"), Change::put("/b", "2"), Change::put("/c", "3")])?;
/// let first = cache.list_with(&Range::all(), &ReadOptions::new(Read::Any).limit(2))?;
/// assert_eq!((first.len(), first.remaining()), (2, 1));
/// let token = first.continue_token().unwrap();
/// let second = cache.list_with(&Range::all(), &ReadOptions::new(Read::Any).continue_from(token))?;
/// assert_eq!(second.items()[0].key(), b"/c");
///
/// let soon = ReadOptions::new(Read::AtLeast(2)).timeout(Duration::from_millis(1));
/// assert_eq!(cache.get_with("/a", &soon).unwrap_err().code(), Code::FutureRevision);
/// # Ok::<(), watchcore::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ReadOptions {
    pub(super) read: Read,
    pub(super) filter: Filter,
    pub(super) limit: usize,
    pub(super) token: Option<String>,
    pub(super) timeout: Duration,
}

impl Default for ReadOptions {
    fn default() -> ReadOptions {
        ReadOptions::new(Read::Any)
    }
}

impl ReadOptions {
    /// A read of this mode: no filter, no limit, at most 3 s.
    pub fn new(read: Read) -> ReadOptions {
        ReadOptions { read, filter: Filter::any(), limit: 0, token: None, timeout: DEFAULT_WAIT }
    }

    /// Only what this filter lets pass (its types are not looked at), and what was asked before.
    pub fn filter(mut self, filter: Filter) -> ReadOptions {
        self.filter = self.filter.and(filter);
        self
    }

    /// At most so many key-values; 0 (the default) is all.
    pub fn limit(mut self, limit: usize) -> ReadOptions {
        self.limit = limit;
        self
    }

    /// Continues after the page that gave this token: same range, same filter, mode `Any`.
    pub fn continue_from(mut self, token: impl Into<String>) -> ReadOptions {
        self.token = Some(token.into());
        self
    }

    /// Waits at most this long (default 3 s).
    pub fn timeout(mut self, timeout: Duration) -> ReadOptions {
        self.timeout = timeout;
        self
    }
}

/// How long a read waits where no timeout is given.
pub const DEFAULT_WAIT: Duration = Duration::from_secs(3);

/// What [`Cache::get`] answers.
///
/// ```
/// use watchcore::{Cache, Change, Read};
///
/// let cache = Cache::builder("/").build()?;
/// cache.writer()?.apply(5, [Change::put("/a", "1")])?;
/// let absent = cache.get("/b", Read::Any)?;
/// assert_eq!(absent.revision, 5, "absent at revision 5");
/// assert!(absent.kv.is_none());
/// # Ok::<(), watchcore::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Answer {
    /// The revision it was answered at, also for an absent key.
    pub revision: u64,
    /// Its epoch.
    pub epoch: u64,
    /// The key-value; `None`: the key is absent there.
    pub kv: Option<KeyValue>,
}

/// What [`Cache::count`] answers.
///
/// ```
/// use watchcore::{Cache, Change, Range, Read};
///
/// let cache = Cache::builder("/").build()?;
/// cache.writer()?.apply(5, [Change::put("/a", "1"), Change::put("/b", "2")])?;
/// let counted = cache.count(&Range::prefix("/"), Read::Any)?;
/// assert_eq!((counted.revision, counted.count), (5, 2));
/// # Ok::<(), watchcore::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counted {
    /// The revision it was answered at.
    pub revision: u64,
    /// Its epoch.
    pub epoch: u64,
    /// Live keys of the range.
    pub count: u64,
}

impl Cache {
    /// Waits for the first listing. CLOSED, TIMEOUT, or the source's failure.
    pub fn wait_ready(&self, timeout: Duration) -> Result<()> {
        match self.waiter(Want::Ready)?.wait(timeout) {
            Ok(_) => Ok(()),
            Err(error) if error.code() == Code::Timeout => {
                let last = lock(&self.inner.info).last_error.clone();
                let why = last.map_or_else(String::new, |error| format!(" Last error: {error}"));
                Err(Error::new(
                    Code::Timeout,
                    format!(
                        "wait for the first listing: none within {} ms.{why} Ask again, or look at status.",
                        timeout.as_millis()
                    ),
                ))
            }
            Err(error) => Err(error),
        }
    }

    /// Waits until the cache reached a revision: read your own writes. FUTURE_REVISION after the
    /// timeout. With a feeder, etcd is asked for progress at once.
    pub fn wait_until(&self, revision: u64, timeout: Duration) -> Result<Position> {
        self.reach("wait until", Position { epoch: 0, revision }, timeout)
    }

    pub(super) fn reach(&self, what: &str, asked: Position, timeout: Duration) -> Result<Position> {
        match self.waiter(Want::RevisionIn(asked))?.wait(timeout) {
            Err(error) if error.code() == Code::Timeout => {
                Err(say::future(what, asked.revision, self.position().revision))
            }
            other => other,
        }
    }

    /// A revision that is at least every change done before this call: with a feeder one
    /// linearizable read of etcd for all readers that ask meanwhile; embedded, the current revision.
    pub fn consistent_revision(&self, timeout: Duration) -> Result<u64> {
        Ok(self.waiter(Want::Consistent)?.wait(timeout)?.revision)
    }

    /// A wait that does not block. See [`Waiter`].
    pub fn waiter(&self, want: Want) -> Result<Waiter> {
        let inner = &self.inner;
        let embedded = !inner.has_source();
        if let Want::Revision(revision) | Want::RevisionIn(Position { revision, .. }) = want {
            say::check_revision("wait for", revision)?;
        }
        // Without a writer there is no newest revision to be consistent with.
        if embedded && matches!(want, Want::Consistent) && inner.is_closed() {
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

    /// The newest view of everything, in O(1). NOT_READY before the first listing.
    pub fn snapshot(&self) -> Result<Snapshot> {
        self.ready("take a snapshot")?;
        Ok(Snapshot::take(&self.inner))
    }

    /// One key, as [`Cache::get_with`] reads it with a timeout of 3 s and no filter.
    pub fn get(&self, key: impl AsRef<[u8]>, read: Read) -> Result<Answer> {
        self.get_one(key.as_ref(), read, DEFAULT_WAIT, None)
    }

    /// One key, from any number of threads while the writer continues.
    ///
    /// `Any` never waits; `AtLeast` and an `Exact` above the present revision block at most the options'
    /// timeout for it, then FUTURE_REVISION. COMPACTED where `Exact` lies below the window. A key-value
    /// that the options' filter does not let pass is absent. O(1).
    pub fn get_with(&self, key: impl AsRef<[u8]>, options: &ReadOptions) -> Result<Answer> {
        let matcher = if options.filter.is_any() { None } else { Some(self.matcher(&options.filter)?) };
        self.get_one(key.as_ref(), options.read, options.timeout, matcher)
    }

    fn get_one(&self, key: &[u8], read: Read, timeout: Duration, matcher: Option<Matcher>) -> Result<Answer> {
        if key.is_empty() || !key.starts_with(self.prefix()) {
            return Err(say::invalid(format!(
                "get {}: the key must start with the cache's prefix {}. Ask for a key below it.",
                show(key),
                show(self.prefix())
            )));
        }
        let exact = self.await_revision("get at", read, timeout)?;
        loop {
            let pin = reclaim::pin();
            let (now, newest) = self.inner.now(&pin);
            let (head, position) = match exact {
                None => (newest, now),
                Some((position, seq)) => (seq, position),
            };
            let kv = match StateView::find(&self.inner, head, key, &pin) {
                Ok(kv) => kv.map(|kv| kv.to_owned()),
                Err(Left) if exact.is_some() => return Err(self.inner.compacted("get at", position.revision)),
                Err(Left) => continue,
            };
            // The filter may be foreign code, which no pin waits for.
            drop(pin);
            let kv = kv.filter(|kv| matcher.as_ref().is_none_or(|matcher| matcher.holds(kv)));
            return Ok(Answer { revision: position.revision, epoch: position.epoch, kv });
        }
    }

    pub(super) fn matcher(&self, filter: &Filter) -> Result<Matcher> {
        Matcher::new(filter, false, &self.inner.prefix, &self.inner.schema)
    }

    /// The number of live keys of a range, as [`Cache::count_with`] counts them with a timeout of 3 s and
    /// no filter.
    pub fn count(&self, range: &Range, read: Read) -> Result<Counted> {
        self.count_with(range, &ReadOptions::new(read))
    }

    /// The number of live keys of a range that the options' filter lets pass; their limit is not looked
    /// at. Waits and errors as [`Cache::get_with`]. O(keys of the range).
    pub fn count_with(&self, range: &Range, options: &ReadOptions) -> Result<Counted> {
        range.check("count", self.prefix())?;
        let range = range.and(&options.filter.range);
        let matcher = self.matcher(&options.filter)?;
        let exact = self.await_revision("count at", options.read, options.timeout)?;
        let read = |at: At<'_>| {
            let mut scan = Scan::new(at, &range, None);
            let mut count = 0;
            let mut tried = Vec::new();
            while !scan.is_over() {
                // Without predicates the count needs no key-value.
                scan.page(usize::MAX, &mut tried, |_, _, live| {
                    let kv = live.filter(|kv| matcher.may_hold_value(kv))?;
                    count += u64::from(!matcher.has_predicates());
                    matcher.has_predicates().then(|| kv.to_owned())
                })?;
                count += tried.drain(..).filter(|kv| matcher.predicates_hold(kv)).count() as u64;
            }
            Ok(count)
        };
        match self.read_at(exact, read) {
            Ok((position, count)) => Ok(Counted { revision: position.revision, epoch: position.epoch, count }),
            Err(Left) => Err(self.inner.compacted("count at", exact.map_or(0, |(position, _)| position.revision))),
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_users_keep_is_owned_and_shared() {
        fn shared<T: Send + Sync + 'static>() {}
        fn sent<T: Send + 'static>() {}
        shared::<crate::Batch>();
        shared::<crate::OwnedEvent>();
        shared::<crate::KeyValue>();
        shared::<crate::Snapshot>();
        shared::<crate::Page>();
        shared::<crate::Cache>();
        shared::<crate::Closer>();
        shared::<crate::WakeSet>();
        sent::<crate::Subscription>();
        sent::<crate::Writer>();
        sent::<crate::Waiter>();
    }
}
