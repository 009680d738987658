//! The first listing: at once, or in the pieces in which it comes.
//!
//! Each record becomes a version when it is handed over, so that whoever reads a listing page by page holds one page
//! beside the cache, and not the listing. Slots are made at the end, before which nothing shows: so they lie side by
//! side, and not spread over the memory of all values, where a read of a key would find one more page of memory cold.

#![forbid(unsafe_code)]

use super::Writer;
use super::change::Record;
use super::prepared::extras;
use super::transaction::Commit;
use super::validate::{check_record, sort_by_key};
use crate::cache::{Core, Inner, READY};
use crate::data::key_value::{KeyValue, VersionPtr};
use crate::data::slot::OwnedSlot;
use crate::error::{Code, Error, Result, say};
use crate::heap::HeapArc;
use crate::store::root::Root;
use crate::sync::{Relaxed, step};
use std::sync::Arc;

/// A first listing under way: [`Writer::begin_load`] begins it, [`Writer::load_more`] hands records over, and
/// [`Writer::finish_load`] publishes it. If it is dropped before, it frees its records, and the cache is as it was.
///
/// Send. A loading keeps the memory of its cache.
///
/// ```
/// use watchcore::{Cache, Record};
///
/// let cache = Cache::builder("/").expect_load(true).build()?;
/// let mut writer = cache.writer()?;
/// let mut loading = writer.begin_load(9)?;
/// for page in [["/a", "/b"], ["/c", "/d"]] {
///     let record = |key: &'static str| Record {
///         key: key.as_bytes(), value: b"1", create_revision: 3, mod_revision: 3, version: 1, lease: 0,
///     };
///     writer.load_more(&mut loading, page.map(record))?;
/// }
/// assert!(loading.len() == 4 && cache.snapshot().is_err(), "nobody sees it yet");
/// writer.finish_load(loading)?;
/// assert_eq!(cache.snapshot()?.len(), 4);
/// # Ok::<(), watchcore::Error>(())
/// ```
#[must_use = "the cache has no listing before finish_load"]
pub struct Loading {
    revision: u64,
    versions: Vec<KeyValue>,
    /// Whether each key was above the one before it.
    is_sorted: bool,
    bytes: usize,
    /// Extractors that failed.
    extract_failures: u64,
    /// Declared after the versions, which are dropped first.
    inner: Arc<Inner>,
}

impl Loading {
    /// The revision of the listing.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// How many records were handed over.
    pub fn len(&self) -> usize {
        self.versions.len()
    }

    /// Whether there are none yet.
    pub fn is_empty(&self) -> bool {
        self.versions.is_empty()
    }
}

impl std::fmt::Debug for Loading {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loading").field("revision", &self.revision).field("len", &self.len()).finish_non_exhaustive()
    }
}

fn may_load(core: &Core, revision: u64) -> Result<()> {
    if core.loaded || core.written {
        let current = core.position.revision;
        return Err(Error::new(
            Code::OutOfOrder,
            format!("load at revision {revision}: the cache has its listing and stands at {current}. Use resync, or make the cache so that it expects a listing."),
        )
        .with_asked(revision)
        .with_current(current));
    }
    say::check_given("load", revision)
}

impl Writer {
    /// Sets the first listing, all at once; then the cache is Ready. Once, and only while NotReady:
    /// else OUT_OF_ORDER. Records may come in any order, each key once. O(n), O(n log n) where they are not sorted.
    ///
    /// Refused, changing nothing: a key twice, an empty or too long key, a key outside the prefix, a too long value,
    /// revisions that cannot be (INVALID_ARGUMENT).
    ///
    /// ```
    /// use watchcore::{Cache, Code, Record};
    ///
    /// let record = |key: &'static str, revision| Record {
    ///     key: key.as_bytes(), value: b"x", create_revision: 1, mod_revision: revision, version: 1, lease: 0,
    /// };
    /// let cache = Cache::builder("/").expect_load(true).build()?;
    /// let mut writer = cache.writer()?;
    /// let newer = writer.load(7, [record("/a", 8)]).unwrap_err();
    /// assert_eq!(newer.code(), Code::InvalidArgument, "a listing at 7 has nothing of revision 8");
    /// writer.load(7, [record("/b", 7), record("/a", 3)])?; // in any order
    /// assert_eq!(writer.load(8, []).unwrap_err().code(), Code::OutOfOrder, "once: then `resync`");
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn load<'a>(&mut self, revision: u64, records: impl IntoIterator<Item = Record<'a>>) -> Result<()> {
        let mut loading = self.begin_load(revision)?;
        self.load_more(&mut loading, records)?;
        self.finish_load(loading)
    }

    /// Begins a first listing that comes in pieces, as [`Writer::load`]: what was handed over is copied, and can be
    /// dropped, while the rest is still to come.
    ///
    /// ```
    /// use watchcore::{Cache, Read, Record};
    ///
    /// let record = |key: &'static str| Record {
    ///     key: key.as_bytes(), value: b"x", create_revision: 1, mod_revision: 1, version: 1, lease: 0,
    /// };
    /// let cache = Cache::builder("/").expect_load(true).build()?;
    /// let mut writer = cache.writer()?;
    /// let mut loading = writer.begin_load(7)?;
    /// writer.load_more(&mut loading, [record("/a"), record("/b")])?;
    /// writer.load_more(&mut loading, [record("/c")])?;
    /// assert!(!writer.is_loaded() && loading.len() == 3);
    /// writer.finish_load(loading)?;
    /// assert_eq!(cache.list(&watchcore::Range::all(), Read::Any, 0)?.len(), 3);
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn begin_load(&mut self, revision: u64) -> Result<Loading> {
        let (inner, core) = self.open("load")?;
        may_load(core, revision)?;
        Ok(Loading {
            revision,
            versions: Vec::new(),
            is_sorted: true,
            bytes: 0,
            extract_failures: 0,
            inner: inner.clone(),
        })
    }

    /// Copies records into a listing that this writer has begun. After an error, which names the record, those
    /// before it are part of the listing. O(n).
    pub fn load_more<'a>(
        &mut self,
        loading: &mut Loading,
        records: impl IntoIterator<Item = Record<'a>>,
    ) -> Result<()> {
        let (inner, core) = self.open("load")?;
        if !Arc::ptr_eq(inner, &loading.inner) {
            return Err(say::invalid(
                "load: the listing was begun by the writer of another cache. Give it to that one.",
            ));
        }
        let records = records.into_iter();
        loading.versions.reserve(records.size_hint().0);
        for record in records {
            check_record(inner, loading.revision, &record)?;
            let extras =
                extras(&mut core.attributes, &mut loading.extract_failures, inner, record.key, Some(record.value));
            let (value, meta, older) = (Some(record.value), record.meta(), VersionPtr::NULL);
            let version = KeyValue::with_extras(&mut core.heap, record.key, value, meta, 0, older, extras);
            loading.bytes += version.bytes();
            loading.is_sorted &= loading.versions.last().is_none_or(|last| last.key() < record.key);
            loading.versions.push(version);
        }
        Ok(())
    }

    /// Publishes a listing that this writer has begun: then the cache is Ready. Errors as of [`Writer::load`]; the
    /// listing is gone then. O(n), O(n log n) where it is not sorted.
    pub fn finish_load(&mut self, loading: Loading) -> Result<()> {
        self.publish_listing(loading, true)
    }

    /// Publishes a listing of the past, whose history up to now the writer is about to apply: the writer takes changes, but
    /// for readers the cache stays NotReady until [`Writer::caught_up`]. The log begins at the listing all the same.
    ///
    /// ```
    /// use watchcore::{Cache, Change, Read, Start, State};
    ///
    /// let cache = Cache::builder("/").expect_load(true).build()?;
    /// let mut writer = cache.writer()?;
    /// let loading = writer.begin_load(7)?;
    /// writer.finish_load_behind(loading)?;
    /// writer.apply(8, [Change::put("/a", "old")])?;
    /// assert!(cache.get("/a", Read::Any).is_err() && cache.state() == State::NotReady, "nobody is shown the past");
    /// writer.apply(9, [Change::put("/a", "new")])?;
    /// writer.caught_up();
    /// assert_eq!(cache.get("/a", Read::Any)?.revision, 9);
    /// assert_eq!(cache.subscribe(Start::After(7)).open()?.poll(10)?.len(), 2, "it can be asked for");
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn finish_load_behind(&mut self, loading: Loading) -> Result<()> {
        self.publish_listing(loading, false)
    }

    fn publish_listing(&mut self, loading: Loading, is_newest: bool) -> Result<()> {
        let Loading { revision, mut versions, is_sorted, bytes, extract_failures, inner: begun_for } = loading;
        let (inner, core) = self.open("load")?;
        if !Arc::ptr_eq(inner, &begun_for) {
            return Err(say::invalid(
                "load: the listing was begun by the writer of another cache. Give it to that one.",
            ));
        }
        may_load(core, revision)?;
        if !is_sorted {
            sort_by_key(&mut versions, |version| version.key())?;
        }
        let (count, mut slot_bytes) = (versions.len() as u64, 0);
        let mut slots = Vec::with_capacity(versions.len());
        // From here on only stores: nothing that others see is half done.
        let commit = Commit::begin("load", inner, core)?;
        for version in versions {
            let slot = OwnedSlot::new(version, &mut core.heap);
            slot_bytes += slot.get().bytes();
            slots.push(slot);
        }
        let index = Root::from_sorted(slots.iter().map(OwnedSlot::pointer), &mut core.heap);
        core.slots.fill(slots, &mut core.heap);
        step("listing stored");
        core.index = index;
        core.position.revision = revision;
        core.highest = revision;
        core.written = true;
        core.ring.set_listing(&inner.ring, revision);
        core.ring.set_oldest_revision(&inner.ring, revision + 1);
        let index = HeapArc::new(core.index.clone(), &mut core.heap);
        inner.root.replace(index, 0, &mut core.heap);
        core.ring.set_progress(&inner.ring, core.position);
        let gauges = &inner.gauges;
        gauges.version_bytes.store(bytes as u64, Relaxed);
        gauges.slot_bytes.store(slot_bytes as u64, Relaxed);
        gauges.objects.store(count, Relaxed);
        gauges.extract_failures.store(extract_failures, Relaxed);
        gauges.tree_bytes.store(core.index.bytes() as u64, Relaxed);
        gauges.table_bytes.store(core.table_bytes(), Relaxed);
        step("listing published");
        core.loaded = true;
        if is_newest {
            inner.set_ready(READY);
        }
        commit.end_at_the_same_head(core);
        Ok(())
    }
}
