//! Reads and waits: get, list, count, snapshot, wait_ready, wait_until, consistent reads.

#![forbid(unsafe_code)]

pub(crate) mod continue_token;
pub(crate) mod snapshot;
mod waiter;

pub use waiter::{Waiter, Want};

use crate::batch::{Batch, Own};
use crate::cache::{Cache, Inner};
use crate::data::event::{Kind, Position};
use crate::data::key_value::{KeyValue, KeyValueRef, SlotPtr, VersionPtr};
use crate::error::{Code, Error, Result, say};
use crate::filter::matcher::Matcher;
use crate::filter::range::{Filter, Range};
use crate::log::ring::Place;
use crate::read::continue_token::{Token, stable_hash};
use crate::read::snapshot::Snapshot;
use crate::reclaim;
use crate::store::table::Span;
use crate::sync::lock;
use crate::wake::{SetShared, Want as Wanted};
use crate::writer::show;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// Which state a read answers from.
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
    fn asked(self) -> Option<(Position, bool)> {
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
#[derive(Clone, Debug)]
pub struct ReadOptions {
    read: Read,
    filter: Filter,
    limit: usize,
    token: Option<String>,
    timeout: Duration,
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

    /// Goes on behind the page that gave this token: same range, same filter, mode `Any`.
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

/// How long a read waits unless it is told.
pub const DEFAULT_WAIT: Duration = Duration::from_secs(3);

/// What [`Cache::get`] answers.
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
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counted {
    /// The revision it was answered at.
    pub revision: u64,
    /// Its epoch.
    pub epoch: u64,
    /// Live keys of the range.
    pub count: u64,
}

/// What [`Cache::list`] answers: key-values of one revision, in key order.
#[derive(Clone, Debug)]
pub struct Page {
    items: Vec<KeyValue>,
    position: Position,
    remaining: u64,
    token: Option<String>,
}

impl Page {
    /// The revision it was answered at.
    pub fn revision(&self) -> u64 {
        self.position.revision
    }
    /// Its epoch.
    pub fn epoch(&self) -> u64 {
        self.position.epoch
    }
    /// The key-values.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = KeyValueRef<'_>> + '_ {
        self.items.iter().map(|kv| KeyValueRef::new(kv.pointer()).expect("never null"))
    }
    /// The key-values as a slice.
    pub fn items(&self) -> &[KeyValue] {
        &self.items
    }
    /// The same, for the C ABI: a key-value is one pointer.
    #[doc(hidden)]
    pub fn as_raw(&self) -> &[KeyValue] {
        &self.items
    }
    /// One of them.
    pub fn get(&self, at: usize) -> Option<&KeyValue> {
        self.items.get(at)
    }
    /// Number of key-values.
    pub fn len(&self) -> usize {
        self.items.len()
    }
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
    /// Whether keys of the range remain behind the last one looked at, whether they match or not.
    pub fn more(&self) -> bool {
        self.token.is_some()
    }
    /// How many keys of the range remain behind the last one. Exact where the filter is only a range,
    /// else 0: they were not counted.
    pub fn remaining(&self) -> u64 {
        self.remaining
    }
    /// The token of the next page, where there is more: for [`ReadOptions::continue_from`]. It is good
    /// in another process too, while the revision of this page is in the window there.
    pub fn continue_token(&self) -> Option<&str> {
        self.token.as_deref()
    }
}

impl std::fmt::Debug for SetShared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SetShared")
    }
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache").field("name", &self.name).finish()
    }
}

/// A key of the epoch space of this cache: 32 bits, never 0.
pub(crate) fn birth_mark() -> u32 {
    (RandomState::new().hash_one(std::process::id()) as u32).max(1)
}

/// Keys looked at under one pin.
pub(crate) const PIN_KEYS: usize = 1024;

/// Walks a range at a head in pages of one pin each. `each` returns false to stop.
/// `Err(())`: the head has left the window.
pub(crate) fn walk(
    inner: &Inner,
    head: u64,
    range: &Range,
    from: &mut Option<Vec<u8>>,
    mut each: impl FnMut(SlotPtr, Option<&KeyValue>) -> bool,
) -> std::result::Result<bool, ()> {
    loop {
        let pin = reclaim::pin();
        let root = inner.root.load(&pin);
        // After root, inside the pin: what the root forgot, it forgot at heads above ours.
        if inner.ring.oldest_seq() > head {
            return Err(());
        }
        let mut span: Span = range.span.clone();
        if let Some(from) = from.take() {
            span.from = from;
        }
        for (looked, slot) in root.range(&span).enumerate() {
            if looked == PIN_KEYS {
                *from = Some(slot.key().to_vec());
                break;
            }
            if !range.contains(slot.key()) {
                continue;
            }
            let version = slot.at(head);
            let live = version.get().filter(|kv| !kv.is_tombstone());
            if !each(slot, live) {
                let mut next = slot.key().to_vec();
                next.push(0);
                *from = Some(next);
                return Ok(false);
            }
        }
        if from.is_none() {
            return Ok(true);
        }
    }
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

    fn reach(&self, what: &str, asked: Position, timeout: Duration) -> Result<Position> {
        match self.waiter(Want::RevisionIn(asked))?.wait(timeout) {
            Err(error) if error.code() == Code::Timeout => {
                Err(say::future(what, asked.revision, self.position().revision))
            }
            other => other,
        }
    }

    /// A revision that is at least every change done before this call: with a feeder one
    /// linearizable read of etcd for all who ask meanwhile; embedded, the current revision.
    pub fn consistent_revision(&self, timeout: Duration) -> Result<u64> {
        Ok(self.waiter(Want::Consistent)?.wait(timeout)?.revision)
    }

    /// A wait that does not block. See [`Waiter`].
    pub fn waiter(&self, want: Want) -> Result<Waiter> {
        let inner = &self.inner;
        let embedded = !inner.has_source();
        // What nobody writes any more is not consistent with anything.
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
        let waiter = Waiter { inner: inner.clone(), want: wanted, epoch, embedded, ticket: None, set: None };
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
        self.get_with(key, &ReadOptions::new(read))
    }

    /// One key, from any number of threads while the writer goes on.
    ///
    /// `Any` never waits; `AtLeast` and an `Exact` above the present revision block at most the options'
    /// timeout for it, then FUTURE_REVISION. COMPACTED where `Exact` lies below the window. A key-value
    /// that the options' filter does not let pass is absent. O(log n).
    pub fn get_with(&self, key: impl AsRef<[u8]>, options: &ReadOptions) -> Result<Answer> {
        let key = key.as_ref();
        if key.is_empty() || !key.starts_with(self.prefix()) {
            return Err(say::invalid(format!(
                "get {}: the key must start with the cache's prefix {}. Ask for a key below it.",
                show(key),
                show(self.prefix())
            )));
        }
        let matcher = self.matcher(&options.filter)?;
        let exact = self.settle("get at", options.read, options.timeout)?;
        loop {
            let pin = reclaim::pin();
            let (now, newest) = self.inner.now(&pin);
            let root = self.inner.root.load(&pin);
            let (head, position) = match exact {
                None => (newest, now),
                Some((position, seq)) => (seq, position),
            };
            let slot = root.get(key);
            if self.inner.ring.oldest_seq() > head {
                if exact.is_some() {
                    return Err(self.inner.compacted("get at", position.revision));
                }
                continue;
            }
            let version = slot.map(|slot| slot.at(head));
            let live = version.as_ref().and_then(|version| version.get()).filter(|kv| !kv.is_tombstone());
            let kv = live.filter(|kv| matcher.holds(kv)).cloned();
            return Ok(Answer { revision: position.revision, epoch: position.epoch, kv });
        }
    }

    /// The key-values of a range, at most `limit` of them (0: all), as [`Cache::list_with`] reads them
    /// with a timeout of 3 s and no filter.
    pub fn list(&self, range: &Range, read: Read, limit: usize) -> Result<Page> {
        self.list_with(range, &ReadOptions::new(read).limit(limit))
    }

    /// The key-values of a range in key order, all of one revision, page by page: later pages are of
    /// exactly the revision of the first. Waits and errors as [`Cache::get_with`].
    ///
    /// Where that has left the window: COMPACTED, with a token ([`Error::continue_token`]) that goes on
    /// at the same key in the newest state. A token that is damaged, or of another cache, range or
    /// filter: INVALID_ARGUMENT. O(keys looked at); counting what remains is O(keys behind).
    pub fn list_with(&self, range: &Range, options: &ReadOptions) -> Result<Page> {
        let range = range.and(&options.filter.range);
        let matcher = self.matcher(&options.filter)?;
        let filter = {
            let mut described = Vec::new();
            range.describe(&mut described);
            options.filter.describe(&mut described);
            stable_hash(&described)
        };
        let mut token = Token { scope: self.scope(), epoch: 0, revision: 0, filter, next: Vec::new() };
        let (read, start) = match &options.token {
            None => (options.read, None),
            Some(text) => {
                let (read, start) = self.resume(text, &token, options.read)?;
                (read, Some(start))
            }
        };
        let exact = match self.settle("list at", read, options.timeout) {
            Err(error) if error.code() == Code::Compacted => return Err(going_on(error, token, start)),
            other => other?,
        };
        let counts = options.filter.is_only_a_range();
        let mut held: Option<Snapshot> = None;
        loop {
            let (head, position) = self.at(exact, &held);
            let mut items: Vec<KeyValue> = Vec::new();
            let (mut remaining, mut more) = (0, false);
            let each = |_: SlotPtr, live: Option<&KeyValue>| {
                let Some(kv) = live else { return true };
                if options.limit == 0 || items.len() < options.limit {
                    if matcher.holds(kv) {
                        items.push(kv.clone());
                    }
                    return true;
                }
                more = true;
                remaining += 1;
                counts
            };
            if let Some(snapshot) = &held {
                snapshot.walk(&range, &start, each);
            } else if walk(&self.inner, head, &range, &mut start.clone(), each).is_err() {
                if exact.is_some() {
                    let error = self.inner.compacted("list at", position.revision);
                    return Err(going_on(error, token, start));
                }
                // Once overtaken, it holds what it reads: it ends however fast the writer is.
                held = Some(Snapshot::take(&self.inner));
                continue;
            }
            let token = more.then(|| {
                (token.epoch, token.revision) = (position.epoch, position.revision);
                token.next = items.last().map_or_else(Vec::new, |kv| kv.key().to_vec());
                token.next.push(0);
                token.encode()
            });
            return Ok(Page { items, position, remaining: if counts { remaining } else { 0 }, token });
        }
    }

    /// What tokens of this cache have in common.
    fn scope(&self) -> u64 {
        let cluster = lock(&self.inner.info).report.cluster_id;
        let of = if cluster == 0 { self.inner.name.as_bytes().to_vec() } else { cluster.to_le_bytes().to_vec() };
        stable_hash(&[&(self.prefix().len() as u64).to_le_bytes()[..], self.prefix(), &of].concat())
    }

    /// The read and the first key of a token.
    fn resume(&self, text: &str, own: &Token, read: Read) -> Result<(Read, Vec<u8>)> {
        let token = Token::decode(text.as_bytes())?;
        let foreign = |what: &str| {
            say::invalid(format!(
                "continue token: it is of another {what}. Use it where it was given, or list from the start."
            ))
        };
        if token.scope != own.scope {
            return Err(foreign("cache"));
        }
        if token.filter != own.filter {
            return Err(foreign("range or filter"));
        }
        if read != Read::Any {
            return Err(say::invalid("continue token: it brings its own revision. Leave the mode of the read at Any."));
        }
        let at = Position { epoch: token.epoch, revision: token.revision };
        Ok((if at.revision == 0 { Read::Any } else { Read::ExactIn(at) }, token.next))
    }

    fn matcher(&self, filter: &Filter) -> Result<Matcher> {
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
        let range = range.and(&options.filter.range);
        let matcher = self.matcher(&options.filter)?;
        let exact = self.settle("count at", options.read, options.timeout)?;
        let mut held: Option<Snapshot> = None;
        loop {
            let (head, position) = self.at(exact, &held);
            let mut count = 0;
            let each = |_: SlotPtr, live: Option<&KeyValue>| {
                count += u64::from(live.is_some_and(|kv| matcher.holds(kv)));
                true
            };
            if let Some(snapshot) = &held {
                snapshot.walk(&range, &None, each);
            } else if walk(&self.inner, head, &range, &mut None, each).is_err() {
                if exact.is_some() {
                    return Err(self.inner.compacted("count at", position.revision));
                }
                held = Some(Snapshot::take(&self.inner));
                continue;
            }
            return Ok(Counted { revision: position.revision, epoch: position.epoch, count });
        }
    }

    /// The head to read at and its position: the exact one, that of what is held, or the newest.
    fn at(&self, exact: Option<(Position, u64)>, held: &Option<Snapshot>) -> (u64, Position) {
        match (exact, held) {
            (Some((position, seq)), _) => (seq, position),
            (None, Some(snapshot)) => (snapshot.head(), snapshot.position()),
            (None, None) => {
                let (position, head) = self.inner.now(&reclaim::pin());
                (head, position)
            }
        }
    }

    /// The net changes from the state at `from` to that at `to`, both in the window, the latest of
    /// each key, in key order: Added, Modified or Deleted by what the key was at `from`. Each has the
    /// revision of its own newest change, and `prev` is the value at `from`.
    ///
    /// A revision is unchecked, a [`Position`] is of its epoch. COMPACTED below the window,
    /// FUTURE_REVISION above the current revision, INVALID_ARGUMENT where `to` is before `from`.
    /// Never waits. O(keys of the filter's range).
    pub fn diff(&self, from: impl Into<Position>, to: impl Into<Position>, filter: &Filter) -> Result<Batch> {
        self.ready("diff")?;
        let (from, to) = (from.into(), to.into());
        let matcher = self.matcher(filter)?;
        let inner = &self.inner;
        let mut heads = [0; 2];
        let mut epoch = 0;
        for (head, asked) in heads.iter_mut().zip([from, to]) {
            let found = inner.find("diff at", asked, true)?;
            if found.future {
                let current = self.position().revision;
                return Err(Error::new(
                    Code::FutureRevision,
                    format!(
                        "diff at revision {}: the cache is at {current}. Wait for it with wait_until.",
                        asked.revision
                    ),
                )
                .with_asked(asked.revision)
                .with_current(current));
            }
            (*head, epoch) = (found.seq, found.epoch);
        }
        let [first, last] = heads;
        if first > last || from.revision > to.revision {
            return Err(say::invalid(format!(
                "diff from revision {} to {}: the second must not be before the first. Swap them.",
                from.revision, to.revision
            )));
        }
        let range = matcher.range().cloned().unwrap_or_else(Range::all);
        let mut own = Own::default();
        let mut failed = false;
        let walked = walk(inner, first, &range, &mut None, |slot, before| {
            let version = slot.at(last);
            let Some(now) = version.get().filter(|kv| kv.seq() >= first) else { return true };
            let cur = !now.is_tombstone() && matcher.holds(now);
            let old = before.is_some_and(|kv| matcher.holds(kv));
            let kind = match (cur, old) {
                (true, false) => Kind::Added,
                (true, true) => Kind::Modified,
                (false, true) => Kind::Deleted,
                (false, false) => return true,
            };
            if !matcher.shows(kind) {
                return true;
            }
            let Place::At(segment) = inner.ring.place(now.seq(), &reclaim::pin()) else {
                failed = true;
                return false;
            };
            let mut event = segment.event(now.seq()).clone();
            let kv = if kind == Kind::Deleted {
                let numbers = before.map(KeyValue::numbers).unwrap_or_default();
                KeyValue::new(now.key(), None, numbers, now.seq(), VersionPtr::NULL)
            } else {
                now.clone()
            };
            (event.kind, event.kv, event.prev) = (kind, kv.pointer(), VersionPtr::NULL);
            own.versions.push(kv);
            if let Some(before) = before {
                event.prev = before.pointer();
                own.versions.push(before.clone());
            }
            own.events.push(event);
            true
        });
        if walked.is_err() || failed {
            return Err(inner.compacted("diff at", from.revision));
        }
        Ok(Batch::own(own, false, Position { epoch, revision: to.revision }))
    }

    fn ready(&self, what: &str) -> Result<()> {
        if self.inner.is_ready() { Ok(()) } else { Err(self.inner.not_ready(what)) }
    }

    /// Waits until the read can be answered. For exact ones: (position, head to read at).
    fn settle(&self, what: &str, read: Read, timeout: Duration) -> Result<Option<(Position, u64)>> {
        self.ready(what)?;
        let Some((asked, exact)) = read.asked() else { return Ok(None) };
        let revision = asked.revision;
        let former = || {
            let pin = reclaim::pin();
            let (_, head) = self.inner.now(&pin);
            self.inner.ring.history(&pin).is_of_a_former_history(asked, head)
        };
        if asked.epoch != 0 && former() {
            return Err(self.inner.compacted(what, revision));
        }
        if self.position().revision < revision {
            self.reach(what, asked, timeout)?;
        }
        if !exact {
            return Ok(None);
        }
        let found = self.inner.find(what, asked, false)?;
        if found.future {
            return Err(self.inner.compacted(what, revision));
        }
        Ok(Some((Position { epoch: found.epoch, revision }, found.seq)))
    }
}

/// COMPACTED in the middle of a list: with the token that goes on in the newest state.
fn going_on(error: Error, mut token: Token, start: Option<Vec<u8>>) -> Error {
    let Some(next) = start else { return error };
    (token.epoch, token.revision, token.next) = (0, 0, next);
    error.with_continue_token(token.encode())
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_users_keep_is_owned_and_shared() {
        fn shared<T: Send + Sync + 'static>() {}
        fn sent<T: Send + 'static>() {}
        shared::<crate::Batch>();
        shared::<crate::Event>();
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
