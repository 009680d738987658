//! Reads: get, list, count, snapshot; what they wait for.

pub(crate) mod continue_token;
mod diff;
mod many;
mod page;
pub(crate) mod snapshot;
pub(crate) mod view;
mod wait;
mod waiter;

pub use many::Answers;
pub use page::Page;
pub use waiter::{Waiter, Want};

use crate::batch::Batch;
use crate::cache::{Cache, StateView};
use crate::data::key_value::KeyValue;
use crate::error::show;
use crate::error::{Error, Result, say};
use crate::filter::matcher::Matcher;
use crate::filter::range::{Filter, Range};
use crate::position::Position;
use crate::read::snapshot::Snapshot;
use crate::read::view::{At, Left, Scan, read_at};
use crate::reclaim;
use crate::store::root::starts_with;
use crate::writer::Writer;
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
#[non_exhaustive]
pub enum Read {
    /// The newest; never waits.
    Any,
    /// A state at or above this revision; the read waits for it.
    AtLeast(u64),
    /// Exactly that after this revision; waits for a future one.
    Exact(u64),
    /// Like `AtLeast`, of an epoch: COMPACTED if the history was reset since, RESYNCED if it is reset during the wait.
    AtLeastIn(Position),
    /// Like `Exact`, of an epoch.
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
#[must_use = "options do nothing before a read takes them"]
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

/// The answer of [`Cache::get`].
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
#[non_exhaustive]
pub struct Answer {
    /// The revision it was answered at, also for an absent key.
    pub revision: u64,
    /// Its epoch.
    pub epoch: u64,
    /// The key-value; `None`: the key is absent there.
    pub kv: Option<KeyValue>,
}

impl Answer {
    /// The revision and its epoch.
    pub fn position(&self) -> Position {
        Position { epoch: self.epoch, revision: self.revision }
    }
}

/// The answer of [`Cache::count`].
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
#[non_exhaustive]
pub struct Counted {
    /// The revision it was answered at.
    pub revision: u64,
    /// Its epoch.
    pub epoch: u64,
    /// Live keys of the range.
    pub count: u64,
}

impl Counted {
    /// The revision and its epoch.
    pub fn position(&self) -> Position {
        Position { epoch: self.epoch, revision: self.revision }
    }
}

impl Writer {
    /// The state at [`Writer::position`], in O(1): for a source that compares it with what it has at that revision while
    /// the writer goes on. NOT_READY before the first listing. Like every snapshot it keeps the log from there on until
    /// it is dropped, and it does not keep the cache open.
    ///
    /// ```
    /// use watchcore::{Cache, Change};
    ///
    /// let cache = Cache::builder("/").build()?;
    /// let mut writer = cache.writer()?;
    /// writer.apply(3, [Change::put("/a", "1")])?;
    /// let then = writer.snapshot()?;
    /// writer.apply(4, [Change::delete("/a")])?;
    /// assert_eq!((then.position().revision, then.len(), writer.objects()), (3, 1, 0));
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn snapshot(&self) -> Result<Snapshot> {
        if !self.is_loaded() {
            return Err(self.inner().not_ready("take a snapshot"));
        }
        Ok(Snapshot::take(self.inner()))
    }
}

impl Cache {
    /// The newest view of everything, in O(1). NOT_READY before the first listing.
    /// A snapshot keeps the log from its revision on until it is dropped. [`Cache::list`] and [`Cache::get_many`] read
    /// several keys of one state without that.
    pub fn snapshot(&self) -> Result<Snapshot> {
        self.inner.check_ready("take a snapshot")?;
        Ok(Snapshot::take(&self.inner))
    }

    /// Reads one key, like [`Cache::get_with`] with a timeout of 3 s and no filter.
    pub fn get(&self, key: impl AsRef<[u8]>, read: Read) -> Result<Answer> {
        let key = self.key_of_get(key.as_ref())?;
        let exact = self.await_revision("get at", read, DEFAULT_WAIT)?;
        self.find(key, exact, None)
    }

    /// [`Cache::get`] as a future: see [`Cache::get_with_async`].
    pub async fn get_async(&self, key: impl AsRef<[u8]>, read: Read) -> Result<Answer> {
        let key = self.key_of_get(key.as_ref())?;
        let exact = self.await_revision_async("get at", read, DEFAULT_WAIT).await?;
        self.find(key, exact, None)
    }

    /// Reads one key, from any number of threads while the writer continues.
    ///
    /// `Any` never waits; `AtLeast` and an `Exact` above the present revision block at most the options'
    /// timeout for it, then FUTURE_REVISION. COMPACTED if `Exact` lies below the window. A key-value
    /// that the options' filter does not let pass is absent. O(1).
    /// INVALID_ARGUMENT for a key outside the prefix, and for a filter that names what the cache does not declare.
    /// NOT_READY before the first listing, at once: a read does not wait for that ([`Cache::wait_ready`] does).
    ///
    /// ```
    /// use std::time::Duration;
    /// use watchcore::{Cache, Change, Code, Filter, Read, ReadOptions};
    ///
    /// let cache = Cache::builder("/pods/").build()?;
    /// cache.writer()?.apply(3, [Change::put("/pods/a", "1")])?;
    /// let of_2 = ReadOptions::new(Read::Any).filter(Filter::any().predicate(|kv| kv.value() == Some(&b"2"[..])));
    /// assert!(cache.get_with("/pods/a", &of_2)?.kv.is_none(), "it does not pass, so it is absent");
    /// let soon = ReadOptions::new(Read::AtLeast(4)).timeout(Duration::from_millis(1));
    /// let error = cache.get_with("/pods/a", &soon).unwrap_err();
    /// assert_eq!((error.code(), error.current()), (Code::FutureRevision, 3));
    /// assert_eq!(cache.get("/nodes/a", Read::Any).unwrap_err().code(), Code::InvalidArgument, "outside the prefix");
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn get_with(&self, key: impl AsRef<[u8]>, options: &ReadOptions) -> Result<Answer> {
        let key = self.key_of_get(key.as_ref())?;
        let matcher = self.matcher_of_get(options)?;
        let exact = self.await_revision("get at", options.read, options.timeout)?;
        self.find(key, exact, matcher)
    }

    /// [`Cache::get_with`] as a future: what would block there is awaited here, on any runtime. Cancel safe: a
    /// read takes nothing.
    pub async fn get_with_async(&self, key: impl AsRef<[u8]>, options: &ReadOptions) -> Result<Answer> {
        let key = self.key_of_get(key.as_ref())?;
        let matcher = self.matcher_of_get(options)?;
        let exact = self.await_revision_async("get at", options.read, options.timeout).await?;
        self.find(key, exact, matcher)
    }

    #[inline(always)]
    fn key_of_get<'a>(&self, key: &'a [u8]) -> Result<&'a [u8]> {
        if !key.is_empty() && starts_with(key, self.prefix()) { Ok(key) } else { Err(self.outside(key)) }
    }

    #[cold]
    fn outside(&self, key: &[u8]) -> Error {
        say::invalid(format!(
            "get {}: the key must start with the cache's prefix {}. Ask for a key below it.",
            show(key),
            show(self.prefix())
        ))
    }

    fn matcher_of_get(&self, options: &ReadOptions) -> Result<Option<Matcher>> {
        if options.filter.is_any() { Ok(None) } else { self.matcher(&options.filter).map(Some) }
    }

    /// Reads one key of the newest state, or of the exact one.
    fn find(&self, key: &[u8], exact: Option<(Position, u64)>, matcher: Option<Matcher>) -> Result<Answer> {
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

    /// [`Cache::count`] as a future: see [`Cache::count_with_async`].
    pub async fn count_async(&self, range: &Range, read: Read) -> Result<Counted> {
        self.count_with_async(range, &ReadOptions::new(read)).await
    }

    /// The number of live keys of a range that the options' filter lets pass; their limit is not looked
    /// at. Waits and errors as [`Cache::get_with`]. O(keys of the range).
    ///
    /// ```
    /// use watchcore::{Cache, Change, Filter, Range, Read, ReadOptions};
    ///
    /// let cache = Cache::builder("/").build()?;
    /// let mut writer = cache.writer()?;
    /// writer.apply(1, [Change::put("/a/1", "x"), Change::put("/a/2", ""), Change::put("/b/1", "")])?;
    /// writer.apply(2, [Change::delete("/a/1")])?;
    /// let empty = Filter::any().predicate(|kv| kv.value() == Some(&b""[..]));
    /// let options = ReadOptions::new(Read::Exact(1)).filter(empty);
    /// assert_eq!(cache.count_with(&Range::prefix("/a/"), &options)?.count, 1, "of the two keys of revision 1");
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn count_with(&self, range: &Range, options: &ReadOptions) -> Result<Counted> {
        let (range, matcher) = self.matcher_of_range("count", range, options)?;
        let exact = self.await_revision("count at", options.read, options.timeout)?;
        self.count_live(&range, &matcher, exact)
    }

    /// [`Cache::count_with`] as a future. Cancel safe. The count runs in one go, without giving way to other tasks.
    pub async fn count_with_async(&self, range: &Range, options: &ReadOptions) -> Result<Counted> {
        let (range, matcher) = self.matcher_of_range("count", range, options)?;
        let exact = self.await_revision_async("count at", options.read, options.timeout).await?;
        self.count_live(&range, &matcher, exact)
    }

    /// The range and the matcher of a read.
    fn matcher_of_range(&self, what: &str, range: &Range, options: &ReadOptions) -> Result<(Range, Matcher)> {
        range.check(what, self.prefix())?;
        Ok((range.and(&options.filter.range), self.matcher(&options.filter)?))
    }

    fn count_live(&self, range: &Range, matcher: &Matcher, exact: Option<(Position, u64)>) -> Result<Counted> {
        let read = |at: At<'_>| {
            let mut scan = Scan::new(at, range, None);
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
        match read_at(&self.inner, exact, read) {
            Ok((position, count)) => Ok(Counted { revision: position.revision, epoch: position.epoch, count }),
            Err(Left) => Err(self.inner.compacted("count at", exact.map_or(0, |(position, _)| position.revision))),
        }
    }

    /// The net changes from the state at `from` to that at `to`, both in the window, the latest of
    /// each key, in key order: Added, Modified or Deleted by what the key was at `from`. Each has the
    /// revision of its own newest change, and `prev` is the value at `from`.
    ///
    /// A revision is unchecked, a [`Position`] is of its epoch. COMPACTED below the window,
    /// FUTURE_REVISION above the current revision, INVALID_ARGUMENT where `to` is before `from`.
    /// Never waits. O(keys of the filter's range).
    ///
    /// ```
    /// use watchcore::{Cache, Change, Filter, Kind};
    ///
    /// let cache = Cache::builder("/").build()?;
    /// let mut writer = cache.writer()?;
    /// writer.apply(1, [Change::put("/a", "1"), Change::put("/b", "1")])?;
    /// writer.apply(2, [Change::put("/a", "2"), Change::put("/c", "1")])?;
    /// writer.apply(3, [Change::delete("/b"), Change::delete("/c")])?;
    /// let net = cache.diff(1, 3, &Filter::any())?;
    /// let seen: Vec<_> = net.events().iter().map(|event| (event.key_str().unwrap(), event.kind())).collect();
    /// assert_eq!(seen, [("/a", Kind::Modified), ("/b", Kind::Deleted)], "/c came and went");
    /// assert_eq!(net.events()[0].prev_value(), Some(&b"1"[..]));
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn diff(&self, from: impl Into<Position>, to: impl Into<Position>, filter: &Filter) -> Result<Batch> {
        self.inner.check_ready("diff")?;
        diff::diff(&self.inner, from.into(), to.into(), &self.matcher(filter)?)
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
