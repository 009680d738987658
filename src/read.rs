//! Reads and waits: get, list, count, snapshot, wait_ready, wait_until, consistent reads.

#![forbid(unsafe_code)]

use crate::cache::{Cache, Inner};
use crate::error::{Error, Result, say};
use crate::event::Position;
use crate::reclaim;
use crate::route::filter::Range;
use crate::store::index::Span;
use crate::store::snapshot::Snapshot;
use crate::store::version::{KeyValue, KeyValueRef, SlotPtr};
use crate::sync::{Acquire, lock};
use crate::wake::{Parker, SetShared, Ticket, Told, WakeSet, Waker, Want as Wanted};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Which state a read answers from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Read {
    /// The newest; never waits.
    Any,
    /// One at or above this revision; waits for it.
    AtLeast(u64),
    /// Exactly that after this revision; waits for a future one.
    Exact(u64),
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
    /// Whether keys of the range remain behind the last one.
    pub fn more(&self) -> bool {
        self.remaining > 0
    }
    /// How many keys of the range remain behind the last one.
    pub fn remaining(&self) -> u64 {
        self.remaining
    }
}

/// What a [`Waiter`] waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Want {
    /// The first listing.
    Ready,
    /// The cache to reach this revision.
    Revision(u64),
    /// A consistent revision: every change that was done before the waiter was made.
    Consistent,
}

/// One wait, without blocking: poll it, join a wake set, or block with [`Waiter::wait`]. Send.
#[derive(Debug)]
pub struct Waiter {
    inner: Arc<Inner>,
    want: Wanted,
    embedded: bool,
    ticket: Option<Ticket>,
    set: Option<(Arc<SetShared>, u64)>,
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
const PIN_KEYS: usize = 1024;

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
            Err(error) if error.code() == crate::Code::Timeout => {
                let last = lock(&self.inner.info).last_error.clone();
                let why = last.map_or_else(String::new, |error| format!(" Last error: {error}"));
                Err(Error::new(
                    crate::Code::Timeout,
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
        match self.waiter(Want::Revision(revision))?.wait(timeout) {
            Err(error) if error.code() == crate::Code::Timeout => {
                Err(say::future("wait until", revision, self.position().revision))
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
        let wanted = match want {
            Want::Ready => Wanted::Ready,
            Want::Revision(revision) => Wanted::Revision(revision),
            Want::Consistent if embedded => Wanted::Ready,
            Want::Consistent => Wanted::Consistent(inner.asked.fetch_add(1, crate::sync::SeqCst) + 1),
        };
        let waiter = Waiter { inner: inner.clone(), want: wanted, embedded, ticket: None, set: None };
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

    /// One key. Waits like [`Cache::get_within`] with 3 s.
    pub fn get(&self, key: impl AsRef<[u8]>, read: Read) -> Result<Answer> {
        self.get_within(key, read, DEFAULT_WAIT)
    }

    /// One key, from any number of threads while the writer goes on. `Any` never waits; the others
    /// wait at most `timeout` for their revision, then FUTURE_REVISION. COMPACTED where `Exact` lies
    /// below the window. O(log n).
    pub fn get_within(&self, key: impl AsRef<[u8]>, read: Read, timeout: Duration) -> Result<Answer> {
        let key = key.as_ref();
        if key.is_empty() || !key.starts_with(self.prefix()) {
            return Err(say::invalid(format!(
                "get {:?}: the key must start with the cache's prefix {:?}",
                String::from_utf8_lossy(key),
                String::from_utf8_lossy(self.prefix())
            )));
        }
        let exact = self.settle("get at", read, timeout)?;
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
                if let Read::Exact(revision) = read {
                    return Err(self.inner.compacted("get at", revision));
                }
                continue;
            }
            let version = slot.map(|slot| slot.at(head));
            let live = version.as_ref().and_then(|version| version.get()).filter(|kv| !kv.is_tombstone());
            return Ok(Answer { revision: position.revision, epoch: position.epoch, kv: live.cloned() });
        }
    }

    /// The key-values of a range. Waits like [`Cache::list_within`] with 3 s.
    pub fn list(&self, range: &Range, read: Read, limit: usize) -> Result<Page> {
        self.list_within(range, read, limit, DEFAULT_WAIT)
    }

    /// The key-values of a range in key order, at most `limit` (0: all), all of one revision.
    /// Errors as [`Cache::get_within`]. O(keys of the range).
    pub fn list_within(&self, range: &Range, read: Read, limit: usize, timeout: Duration) -> Result<Page> {
        let mut items = Vec::new();
        let mut remaining = 0;
        let position = self.visit("list at", range, read, timeout, &mut |kv| match kv {
            None => {
                items.clear();
                remaining = 0;
            }
            Some(kv) if limit == 0 || items.len() < limit => items.push(kv.clone()),
            Some(_) => remaining += 1,
        })?;
        Ok(Page { items, position, remaining })
    }

    /// The number of live keys of a range. Errors as [`Cache::get_within`]. O(keys of the range).
    pub fn count(&self, range: &Range, read: Read) -> Result<Counted> {
        self.count_within(range, read, DEFAULT_WAIT)
    }

    /// As [`Cache::count`], with a timeout of its own.
    pub fn count_within(&self, range: &Range, read: Read, timeout: Duration) -> Result<Counted> {
        let mut count = 0;
        let position = self.visit("count at", range, read, timeout, &mut |kv| match kv {
            None => count = 0,
            Some(_) => count += 1,
        })?;
        Ok(Counted { revision: position.revision, epoch: position.epoch, count })
    }

    /// Visits every live key of a range at one head; `None` says "again from the start".
    fn visit(
        &self,
        what: &str,
        range: &Range,
        read: Read,
        timeout: Duration,
        each: &mut dyn FnMut(Option<&KeyValue>),
    ) -> Result<Position> {
        let exact = self.settle(what, read, timeout)?;
        loop {
            let (now, newest) = self.inner.now(&reclaim::pin());
            let (head, position) = match exact {
                None => (newest, now),
                Some((position, seq)) => (seq, position),
            };
            let walked = walk(&self.inner, head, range, &mut None, |_, kv| {
                if kv.is_some() {
                    each(kv);
                }
                true
            });
            match (walked, read) {
                (Ok(_), _) => return Ok(position),
                (Err(()), Read::Exact(revision)) => {
                    return Err(self.inner.compacted(what, revision));
                }
                (Err(()), _) => each(None),
            }
        }
    }

    fn ready(&self, what: &str) -> Result<()> {
        if self.inner.is_ready() { Ok(()) } else { Err(self.inner.not_ready(what)) }
    }

    /// Waits until the read can be answered. For `Exact`: (position, head to read at).
    fn settle(&self, what: &str, read: Read, timeout: Duration) -> Result<Option<(Position, u64)>> {
        self.ready(what)?;
        let (Read::AtLeast(revision) | Read::Exact(revision)) = read else { return Ok(None) };
        if self.position().revision < revision {
            match self.waiter(Want::Revision(revision))?.wait(timeout) {
                Err(error) if error.code() == crate::Code::Timeout => {
                    return Err(say::future(what, revision, self.position().revision));
                }
                other => other?,
            };
        }
        if matches!(read, Read::AtLeast(_)) {
            return Ok(None);
        }
        let found = self.inner.find(what, Position { epoch: 0, revision }, false)?;
        if found.future {
            return Err(self.inner.compacted(what, revision));
        }
        Ok(Some((Position { epoch: found.epoch, revision }, found.seq)))
    }
}

impl Waiter {
    /// What holds now: `Some(position)` once it holds. CLOSED when the cache was closed first, or
    /// the source's failure before the first listing. Never blocks.
    pub fn poll(&mut self) -> Result<Option<Position>> {
        self.disarm();
        let inner = &self.inner;
        let closed = inner.is_closed();
        let ready = inner.is_ready();
        let position = inner.position();
        let holds = match self.want {
            Wanted::Ready => ready.then_some(position),
            Wanted::Revision(revision) => (ready && position.revision >= revision).then_some(position),
            Wanted::Consistent(ticket) => (inner.served.load(Acquire) >= ticket)
                .then(|| Position { epoch: position.epoch, revision: lock(&inner.info).consistent_revision }),
            Wanted::Event { .. } => None,
        };
        if holds.is_some() {
            return Ok(holds);
        }
        if closed {
            return Err(say::closed("wait on a cache"));
        }
        if !ready && lock(&inner.info).failed {
            return Err(inner.not_ready("wait on a cache"));
        }
        Ok(None)
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
        self.ticket = Some(inner.hub.register(inner, self.want.clone(), waker, None, None)?);
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
