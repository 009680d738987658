//! The writer: validate, prepare, commit.
//!
//! Prepare may fail and changes nothing; all foreign code (the caller's iterators, extractors) runs
//! there. Commit claims the log, which is refused once that is closed; after the claim it is stores only, in this order:
//! for each event its key's slot, the log, its buckets; then root, epochs, head, token, progress, fence, load of the
//! waiters; `docs/internals/memory-model.md` says why in this order. A panic inside a commit stops the writer for good,
//! and readers stay at the head before it (I2).

mod change;
mod loading;
mod prepared;
mod transaction;
mod validate;

use change::Content;
pub use change::{Change, Record};
pub use loading::Loading;
use prepared::{ChangeSet, Prepared};
use transaction::{Commit, Transaction};
use validate::{check_change, check_changes, rises, sort_listing};

use crate::cache::{Cache, Core, Info, Inner, NOT_READY, READY, Source, SourceReport, SourceState};
use crate::data::event::ResyncReason;
use crate::data::key_value::KeyValueRef;
use crate::error::{Code, Error, Result, say};
use crate::log::epochs::{EPOCH_BYTES, EpochChange};
use crate::position::Position;
use crate::store::table::FETCHED;
use crate::sync::{Relaxed, Release, lock};
use std::sync::Arc;
use std::time::SystemTime;

/// The requests to a feeder; see [`Writer::demand`].
///
/// ```
/// use watchcore::{Cache, Demand};
///
/// let cache = Cache::builder("/").build()?;
/// let writer = cache.writer()?;
/// assert_eq!(writer.demand(), Demand::default(), "nobody waits");
/// # Ok::<(), watchcore::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Demand {
    /// The highest revision that somebody waits for, above the current one; 0: nobody.
    pub progress_until: u64,
    /// The newest ticket of a consistent read that was not served; 0: none.
    pub consistent: u64,
}

impl Cache {
    /// Takes the writer. Only one writer lives at a time (I1): BUSY while another does; after it was dropped, the writer can
    /// be taken again. Never blocks.
    pub fn writer(&self) -> Result<Writer> {
        Writer::take(&self.inner)
    }
}

/// The one handle that may change a cache (I1). Send; dropping it lets another be taken.
///
/// Calls never wait for a reader (I6). Bad input is an error and changes nothing.
///
/// ```
/// use watchcore::{Cache, Change, Code};
///
/// let cache = Cache::builder("/").build()?;
/// let mut writer = cache.writer()?;
/// assert_eq!(cache.writer().unwrap_err().code(), Code::Busy, "one writer at a time");
///
/// writer.apply(10, [Change::put("/a", "1"), Change::put("/b", "2")])?;
/// let refused = writer.apply(10, [Change::put("/a", "3")]).unwrap_err();
/// assert_eq!(refused.code(), Code::OutOfOrder, "revisions rise");
/// writer.progress(12)?; // nothing happened at 11 and 12
/// assert_eq!(writer.get(b"/a").unwrap().value(), Some(&b"1"[..]));
/// # Ok::<(), watchcore::Error>(())
/// ```
pub struct Writer {
    inner: Arc<Inner>,
    core: Option<Box<Core>>,
    /// Room for the changes of one revision.
    scratch: ChangeSet,
}

impl Writer {
    pub(crate) fn is_of(&self, inner: &Arc<Inner>) -> bool {
        Arc::ptr_eq(&self.inner, inner)
    }

    pub(crate) fn take(inner: &Arc<Inner>) -> Result<Writer> {
        if inner.is_closing() {
            return Err(say::closed("take the writer of a cache"));
        }
        match lock(&inner.core).take() {
            Some(core) => Ok(Writer { inner: inner.clone(), core: Some(core), scratch: ChangeSet::default() }),
            None => Err(Error::new(
                Code::Busy,
                "take the writer of a cache: a writer lives already (a feeder has one too). Release that one first.",
            )),
        }
    }

    fn core(&self) -> &Core {
        self.core.as_deref().expect("taken only by drop")
    }

    #[inline]
    fn open(&mut self, what: &str) -> Result<(&Arc<Inner>, &mut Core)> {
        let core = self.core.as_deref_mut().expect("taken only by drop");
        if core.poisoned || self.inner.is_closing() {
            return Err(over(what, core.poisoned));
        }
        Ok((&self.inner, core))
    }

    /// The position of the last revision that was written.
    pub fn position(&self) -> Position {
        self.core().position
    }

    /// The live value of a key. O(1).
    pub fn get(&self, key: &[u8]) -> Option<KeyValueRef<'_>> {
        let core = self.core();
        let slot = core.slot_of(core.hash_of(key), key)?;
        // Above the head lies only what a panic inside of a commit has left.
        // SAFETY: I1: this is the writer, so the window stands still, and it reaches up to the head and beyond.
        unsafe { slot.live_at(self.inner.ring.head()) }
    }

    /// See [`crate::Cache::oldest`].
    pub fn oldest(&self) -> u64 {
        self.inner.ring.oldest_revision()
    }

    /// Whether the cache has its first listing (an embedded one is born with an empty one).
    pub fn is_loaded(&self) -> bool {
        self.core().loaded
    }

    /// Makes a cache Ready whose listing was finished by [`Writer::finish_load_behind`]; else it does nothing. Consumers that
    /// wait for the listing begin here: a subscription that was opened before has the state of this position, or the
    /// events after it.
    pub fn caught_up(&mut self) {
        let core = self.core();
        if !core.loaded || self.inner.is_ready() || self.inner.is_closing() {
            return;
        }
        let (head, position) = (self.inner.ring.head(), core.position);
        lock(&self.inner.info).began = Some((head, position));
        self.inner.set_ready(READY);
        self.inner.hubs.published(&self.inner);
    }

    /// Live keys at [`Writer::position`]. O(1).
    ///
    /// ```
    /// use watchcore::{Cache, Change};
    ///
    /// let cache = Cache::builder("/").build()?;
    /// let mut writer = cache.writer()?;
    /// writer.apply(3, [Change::put("/a", "1"), Change::put("/b", "2")])?;
    /// assert_eq!((writer.position().revision, writer.objects()), (3, 2));
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn objects(&self) -> u64 {
        self.inner.gauges.objects.load(Relaxed)
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    /// The prefix of every key.
    pub fn prefix(&self) -> &[u8] {
        &self.inner.prefix
    }

    /// The name of its cache.
    pub fn cache_name(&self) -> &str {
        &self.inner.name
    }

    /// Whether the cache was closed: a feeder ends then.
    pub fn is_closed(&self) -> bool {
        self.inner.is_closing()
    }

    /// Applies the changes of one revision: readers see all of them or none (I2).
    ///
    /// Refused, changing nothing: a revision that does not rise (OUT_OF_ORDER); a delete of an absent key, a key twice,
    /// an empty or too long key, a key outside the prefix, a too long value, numbers of [`Change::put_exact`] that
    /// cannot be (INVALID_ARGUMENT); anything before the first listing (NOT_READY) or after the close (CLOSED). No
    /// changes at all is [`Writer::progress`].
    ///
    /// Never waits for a reader; it waits for the thread that frees memory while more than a bound is to be freed
    /// ([`Stats::unfreed_bytes`](crate::Stats::unfreed_bytes)). O(changes); runs each extractor once for each put.
    ///
    /// ```
    /// use watchcore::{Cache, Change, Code, Read};
    ///
    /// let cache = Cache::builder("/").build()?;
    /// let mut writer = cache.writer()?;
    /// writer.apply(1, [Change::put("/a", "1")])?;
    /// let refused = writer.apply(2, [Change::put("/b", "1"), Change::delete("/absent")]).unwrap_err();
    /// assert_eq!(refused.code(), Code::InvalidArgument);
    /// assert!(writer.get(b"/b").is_none(), "nothing of it was applied");
    /// writer.apply(2, [Change::put("/b", "1"), Change::delete("/a")])?; // the revision can still be used
    /// assert_eq!(cache.get("/a", Read::Exact(1))?.kv.unwrap().value_str(), Some("1"));
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn apply<'a>(&mut self, revision: u64, changes: impl IntoIterator<Item = Change<'a>>) -> Result<()> {
        let mut changes = changes.into_iter();
        // The common case takes no list.
        let (Some(first), second) = (changes.next(), changes.next()) else { return self.progress(revision) };
        match second {
            None => self.apply_one(revision, &first),
            Some(second) => {
                let all: Vec<Change<'a>> = [first, second].into_iter().chain(changes).collect();
                self.apply_all(revision, &all)
            }
        }
    }

    /// A revision of one change, as most are: where the segment in hand has room, nothing is planned.
    fn apply_one(&mut self, revision: u64, change: &Change<'_>) -> Result<()> {
        let (inner, core) = self.open("apply")?;
        rises("apply", revision, inner, core)?;
        check_change(inner, change)?;
        core.purge_tombstones(inner, 2);
        core.begin_revision(inner);
        let one = core.prepare(revision, 0, change)?;
        let Some(seq) = core.ring.room_for_one(one.added()) else {
            return self.apply_planned(revision, change);
        };
        let made = core.make_version(inner, (0, seq), one, change.content());
        core.commit_one(inner, revision, seq, one, made)
    }

    /// Applies a change for which the segment has no room, or segments have to leave. The change is prepared again:
    /// `apply_one` keeps its preparation in registers.
    #[cold]
    fn apply_planned(&mut self, revision: u64, change: &Change<'_>) -> Result<()> {
        let mut set = std::mem::take(&mut self.scratch);
        set.prepared.push(self.core().prepare(revision, 0, change)?);
        self.apply_prepared(revision, std::slice::from_ref(change), set)
    }

    fn apply_all(&mut self, revision: u64, changes: &[Change<'_>]) -> Result<()> {
        let mut set = std::mem::take(&mut self.scratch);
        let (inner, core) = self.open("apply")?;
        rises("apply", revision, inner, core)?;
        check_changes(inner, changes)?;
        core.purge_tombstones(inner, 2 * changes.len());
        core.begin_revision(inner);
        for some in changes.chunks(FETCHED) {
            core.slots.fetch(some.iter().map(|change| change.key));
            for change in some {
                set.prepared.push(core.prepare(revision, set.prepared.len(), change)?);
            }
        }
        self.apply_prepared(revision, changes, set)
    }

    fn apply_prepared(&mut self, revision: u64, changes: &[Change<'_>], mut set: ChangeSet) -> Result<()> {
        let (inner, core) = self.open("apply")?;
        let plan = core.ring.plan(&inner.ring, set.prepared.iter().map(Prepared::added));
        core.make_versions(inner, &plan, 0, &mut set, |input| changes[input].content());
        let committed = core.commit("apply", inner, Transaction { revision, epoch_change: None }, plan, &mut set);
        // Changes that a closed log has not taken are dropped now.
        set.clear();
        self.scratch = set;
        committed
    }

    /// Replaces the state by a listing: the difference is one atomic revision, deletes first, then
    /// puts, each by key, between the RESYNC marks of a new epoch. `revision` may lie below the current
    /// one: then nothing of the history before can be asked for any more. An empty difference at the
    /// same revision of the same history publishes nothing. O(n log n).
    ///
    /// Returns the position of the new state. NOT_READY before the first listing; INVALID_ARGUMENT, changing nothing,
    /// for records that [`Writer::load`] refuses, and for the reason [`ResyncReason::Lagged`].
    ///
    /// ```
    /// use watchcore::{Cache, Change, Code, Read, Record, ResyncReason};
    ///
    /// let cache = Cache::builder("/").build()?;
    /// let mut writer = cache.writer()?;
    /// writer.apply(5, [Change::put("/a", "1")])?;
    /// let before = writer.position();
    /// let same = Record { key: b"/a", value: b"1", create_revision: 5, mod_revision: 5, version: 1, lease: 0 };
    /// assert_eq!(writer.resync(5, [same], ResyncReason::Requested)?, before, "nothing differs");
    /// let back = writer.resync(2, [], ResyncReason::Requested)?; // whatever the reason given: the history went back
    /// assert_eq!((back.revision, back.epoch), (2, before.epoch + 1));
    /// assert_eq!(cache.get("/a", Read::ExactIn(before)).unwrap_err().code(), Code::Compacted);
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn resync<'a>(
        &mut self,
        revision: u64,
        records: impl IntoIterator<Item = Record<'a>>,
        reason: ResyncReason,
    ) -> Result<Position> {
        let mut records: Vec<Record<'a>> = records.into_iter().collect();
        let (inner, core) = self.open("resync")?;
        if !core.loaded {
            return Err(inner.not_ready("resync"));
        }
        if reason == ResyncReason::Lagged {
            return Err(say::invalid("resync: the reason Lagged belongs to a single subscription. Use Requested."));
        }
        say::check_given("resync", revision)?;
        sort_listing(inner, revision, &mut records)?;
        let from = core.position.revision;
        let reason = if revision < from { ResyncReason::HistoryReset } else { reason };
        core.purge_tombstones(inner, 2 * records.len().max(64));
        core.begin_revision(inner);
        let prepared = core.difference(&records);
        if prepared.is_empty() && revision == from && reason != ResyncReason::HistoryReset {
            return Ok(core.position);
        }
        let epoch = core.position.epoch + 1;
        let sizes: Vec<u64> =
            std::iter::once(EPOCH_BYTES).chain(prepared.iter().map(Prepared::added)).chain([0]).collect();
        let plan = core.ring.plan(&inner.ring, sizes.into_iter());
        let mut set = ChangeSet::of(prepared);
        core.make_versions(inner, &plan, 1, &mut set, |input| {
            let record = &records[input];
            Content { key: record.key, value: Some(record.value), shared: None }
        });
        let (seq, end) = (plan.seqs.first(), plan.seqs.last());
        // The oldest revision from before is filled in by the commit, once it has made room.
        let epoch_change =
            EpochChange { seq, end, epoch, from, to: revision, reason, highest_before: core.highest, oldest_before: 0 };
        core.commit("resync", inner, Transaction { revision, epoch_change: Some(epoch_change) }, plan, &mut set)?;
        Ok(core.position)
    }

    /// Says that nothing happened up to and with `revision`. A revision that is not above the
    /// current one is OUT_OF_ORDER, unless it is the current one.
    ///
    /// ```
    /// use watchcore::{Cache, Change, Code, Read};
    ///
    /// let cache = Cache::builder("/").build()?;
    /// let mut writer = cache.writer()?;
    /// writer.apply(4, [Change::put("/a", "1")])?;
    /// writer.progress(7)?;
    /// writer.progress(7)?; // again
    /// assert_eq!(writer.progress(6).unwrap_err().code(), Code::OutOfOrder);
    /// assert_eq!(cache.get("/a", Read::Exact(6))?.revision, 6, "a revision without events can be read, too");
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn progress(&mut self, revision: u64) -> Result<()> {
        let (inner, core) = self.open("progress")?;
        if !core.loaded {
            return Err(inner.not_ready("progress"));
        }
        let rose = revision != core.position.revision;
        if rose {
            rises("progress", revision, inner, core)?;
        }
        let commit = Commit::begin("progress", inner, core)?;
        core.ring.age(&inner.ring);
        core.heap.tidy();
        inner.gauges.window_segments.store(core.ring.segments_live() as u64, Relaxed);
        inner.gauges.window_bytes.store(core.ring.bytes(), Relaxed);
        inner.gauges.window_log_bytes.store(core.ring.log_bytes(), Relaxed);
        if rose {
            core.position.revision = revision;
            core.highest = core.highest.max(revision);
            core.written = true;
            core.ring.set_progress(&inner.ring, core.position);
        }
        commit.end_at_the_same_head(core);
        Ok(())
    }

    /// Drops the events up to and with `revision`; the state there stays. Then `After(revision)`
    /// works and `After(revision - 1)` is COMPACTED. Live cursors below it read on.
    /// A revision that was compacted before changes nothing. NOT_READY before the first listing, FUTURE_REVISION above
    /// the current revision.
    ///
    /// ```
    /// use watchcore::{Cache, Change, Code, Read};
    ///
    /// let cache = Cache::builder("/").build()?;
    /// let mut writer = cache.writer()?;
    /// for revision in 1..=3 {
    ///     writer.apply(revision, [Change::put("/a", "1")])?;
    /// }
    /// writer.compact(2)?;
    /// assert_eq!(cache.oldest(), 3);
    /// assert_eq!(cache.get("/a", Read::Exact(2))?.revision, 2, "the state at 2 stays");
    /// assert_eq!(cache.get("/a", Read::Exact(1)).unwrap_err().code(), Code::Compacted);
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn compact(&mut self, revision: u64) -> Result<()> {
        let (inner, core) = self.open("compact")?;
        if !core.loaded {
            return Err(inner.not_ready("compact"));
        }
        say::check_given("compact", revision)?;
        let (oldest, current) = (inner.ring.oldest_revision(), core.position.revision);
        if revision > current {
            return Err(Error::new(
                Code::FutureRevision,
                format!("compact at revision {revision}: the cache is at {current}. Compact at most there."),
            )
            .with_asked(revision)
            .with_current(current));
        }
        // Inside a resync there is no state: the one before it stays.
        let revision =
            core.ring.epochs().gap_around(revision, u64::MAX).map_or(revision, |epoch_change| epoch_change.from);
        let commit = Commit::begin("compact", inner, core)?;
        if revision >= oldest {
            core.ring.set_oldest_revision(&inner.ring, revision + 1);
        }
        commit.end_at_the_same_head(core);
        Ok(())
    }

    /// For feeders: how fresh the source is. A failure before the first listing is what reads and
    /// waits answer until it is mended.
    ///
    /// ```
    /// use std::time::Duration;
    /// use watchcore::{Cache, Code, Error, Read, SourceState};
    ///
    /// let cache = Cache::builder("/").expect_load(true).build()?;
    /// let mut writer = cache.writer()?;
    /// writer.set_state(SourceState::Failed(Error::new(Code::PermissionDenied, "no right to read /")));
    /// assert_eq!(cache.wait_ready(Duration::from_secs(30)).unwrap_err().code(), Code::PermissionDenied);
    /// writer.load(5, [])?;
    /// writer.set_state(SourceState::Stale(Error::new(Code::Unavailable, "away")));
    /// assert_eq!(cache.get("/a", Read::Any)?.revision, 5, "reads continue from the listing");
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn set_state(&mut self, state: SourceState) {
        let mut info = lock(&self.inner.info);
        if self.inner.is_broken() {
            // The writer of this cache is stopped for good; its source changes nothing about it.
            return;
        }
        let Info { stale_since, last_error, .. } = &mut *info;
        // Under the lock: a reader that finds it failed finds the error too.
        self.inner.set_failed(matches!(state, SourceState::Failed(_)));
        match state {
            SourceState::Fresh => *stale_since = None,
            SourceState::Stale(error) | SourceState::Failed(error) => {
                stale_since.get_or_insert_with(SystemTime::now);
                *last_error = Some(error);
            }
        }
        drop(info);
        self.inner.hubs.published(&self.inner);
    }

    /// For feeders: joins a source, which is called on demand and on the close. A cache that was never
    /// written becomes NotReady. Once attached, dropping the writer closes the cache.
    ///
    /// BUSY while subscriptions of a cache that was born Ready are open: the listing to come would be
    /// no event for them.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use watchcore::{Cache, Source, State};
    ///
    /// struct Feeder;
    /// impl Source for Feeder {
    ///     fn wake(&self) {}
    /// }
    /// let cache = Cache::builder("/").build()?;
    /// let mut writer = cache.writer()?;
    /// writer.attach(Arc::new(Feeder))?;
    /// assert_eq!(cache.state(), State::NotReady, "a listing is to come");
    /// writer.load(5, [])?;
    /// drop(writer);
    /// assert_eq!(cache.state(), State::Closed);
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn attach(&mut self, source: Arc<dyn Source>) -> Result<()> {
        // The lock under which a subscription is counted and looks whether the cache is Ready.
        let mut info = lock(&self.inner.info);
        if !self.core().written && self.inner.is_ready() {
            let open = self.inner.consumers.subscriptions.load(Relaxed);
            if open > 0 {
                return Err(Error::new(
                    Code::Busy,
                    format!(
                        "start a feeder: {open} subscriptions of the empty cache are open and would miss its listing. Make the cache so that it expects a listing, or subscribe after the start."
                    ),
                ));
            }
            self.inner.set_ready(NOT_READY);
            self.core.as_deref_mut().expect("taken only by drop").loaded = false;
        }
        info.source = Some(source);
        Ok(())
    }

    /// For feeders: what is waited for now.
    pub fn demand(&self) -> Demand {
        let wanted = self.inner.hubs.highest_revision_wanted();
        let asked = self.inner.asked.load(Relaxed);
        let served = self.inner.served.load(Relaxed);
        Demand {
            progress_until: if wanted > self.core().position.revision { wanted } else { 0 },
            consistent: if asked > served { asked } else { 0 },
        }
    }

    /// For feeders: a linearizable read that began after [`Writer::demand`] gave `ticket` said
    /// `revision`. Serves every ticket up to that one.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use watchcore::{Cache, Source, Want};
    ///
    /// struct Feeder;
    /// impl Source for Feeder {
    ///     fn wake(&self) {} // a feeder that sleeps is woken here
    /// }
    /// let cache = Cache::builder("/").expect_load(true).build()?;
    /// let mut writer = cache.writer()?;
    /// writer.attach(Arc::new(Feeder))?;
    /// let mut reader = cache.waiter(Want::Consistent)?;
    /// let ticket = writer.demand().consistent;
    /// writer.serve_consistent(ticket, 12); // what the source answers to a read that begins after `demand`
    /// assert_eq!(reader.poll()?.unwrap().revision, 12);
    /// assert_eq!(writer.demand().consistent, 0, "every reader that asked before is served");
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn serve_consistent(&mut self, ticket: u64, revision: u64) {
        lock(&self.inner.info).consistent_revision = revision;
        self.inner.served.fetch_max(ticket, Release);
        self.inner.hubs.published(&self.inner);
    }

    /// For feeders: what [`crate::Status::source`] shows.
    pub fn set_report(&mut self, report: SourceReport) {
        lock(&self.inner.info).report = report;
    }
}

/// Why a writer takes nothing any more.
#[cold]
fn over(what: &str, poisoned: bool) -> Error {
    if !poisoned {
        return say::closed(what);
    }
    let message = format!("{what}: a panic inside an earlier commit stopped this writer. Build a new cache.");
    Error::new(Code::Panic, message)
}

impl Drop for Writer {
    fn drop(&mut self) {
        *lock(&self.inner.core) = self.core.take();
        // Closed first: a reader that finds no source does not take the cache for an embedded one.
        if self.inner.has_source() {
            self.inner.close();
        }
        let source = lock(&self.inner.info).source.take();
        drop(source);
    }
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").field("position", &self.position()).finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
