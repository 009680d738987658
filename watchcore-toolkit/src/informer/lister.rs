//! Reads of an informer's objects: from the newest state, a snapshot, or an index.

#![forbid(unsafe_code)]

use super::index::left;
use super::shared::InformerShared;
use crate::object::{FromKeyValue, object_of, view_of};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};
use watchcore::{Code, Error, Filter, KeyValue, Page, Position, Range, Read, ReadOptions, Result, Snapshot};

/// Reads an informer's objects from the cache's store, without copying them. Usable from any
/// thread; no read waits for another read, or for the writer. Reads by a function index share a
/// lock with the thread that maintains it: a read waits while that thread applies the changes of a
/// revision, and the thread waits while a reader counts the objects of a value, O(found).
///
/// ```
/// use std::time::Duration;
/// use watchcore::{Cache, Change, KeyValue};
/// use watchcore_toolkit::Informer;
///
/// let cache = Cache::builder("/pods/").build()?;
/// let informer = Informer::<KeyValue>::builder(&cache)
///     .index("node", |pod| pod.value_str().map(str::to_owned).into_iter().collect())
///     .build()?;
/// let lister = informer.lister();
/// cache.writer()?.apply(7, [Change::put("/pods/ns1/a", "node-1"), Change::put("/pods/ns2/b", "node-2")])?;
/// lister.wait_until(7, Duration::from_secs(10))?; // read your own writes, by index too
/// assert_eq!(lister.get("/pods/ns1/a")?.unwrap().value_str(), Some("node-1"));
/// assert_eq!(lister.namespace("ns2")?.len(), 1);
/// assert_eq!(lister.by_index("node", "node-2")?[0].key_str(), Some("/pods/ns2/b"));
/// assert_eq!(lister.list()?.position.revision, 7);
/// # Ok::<(), watchcore::Error>(())
/// ```
pub struct Lister<O> {
    shared: Arc<InformerShared<O>>,
}

impl<O> Clone for Lister<O> {
    fn clone(&self) -> Lister<O> {
        Lister { shared: Arc::clone(&self.shared) }
    }
}

/// The result of a read of several objects: all of one revision, in key order. It dereferences to a slice of objects.
///
/// ```
/// use watchcore::{Cache, KeyValue};
/// use watchcore_toolkit::Informer;
///
/// let cache = Cache::builder("/").build()?;
/// let all = Informer::<KeyValue>::new(&cache)?.lister().list()?;
/// assert!(all.is_empty() && all.refused.is_empty());
/// # Ok::<(), watchcore::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Listed<O> {
    /// The position of the state.
    pub position: Position,
    /// The objects.
    pub objects: Vec<O>,
    /// Values of the range that cannot be decoded.
    pub refused: Vec<(KeyValue, Error)>,
}

impl<O> Deref for Listed<O> {
    type Target = [O];

    fn deref(&self) -> &[O] {
        &self.objects
    }
}

impl<O> IntoIterator for Listed<O> {
    type Item = O;
    type IntoIter = std::vec::IntoIter<O>;

    fn into_iter(self) -> Self::IntoIter {
        self.objects.into_iter()
    }
}

impl<O: FromKeyValue> Listed<O> {
    fn of<'a>(position: Position, state: impl Iterator<Item = &'a KeyValue>) -> Listed<O> {
        let mut listed = Listed { position, objects: Vec::with_capacity(state.size_hint().0), refused: Vec::new() };
        state.for_each(|kv| listed.add(kv));
        listed
    }

    fn add(&mut self, kv: &KeyValue) {
        match object_of::<O>(kv) {
            Ok(object) => self.objects.push(object),
            Err(error) => self.refused.push((kv.clone(), error)),
        }
    }
}

impl<O: FromKeyValue> Lister<O> {
    pub(super) fn new(shared: Arc<InformerShared<O>>) -> Lister<O> {
        Lister { shared }
    }

    /// The object of a key; `None` if it is absent, or excluded by the informer's filter. NOT_READY before the first
    /// listing; INVALID_ARGUMENT if it cannot be decoded. O(log n), without a lock.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<O>> {
        let answer = match &self.shared.filter {
            None => self.shared.cache.get(key, Read::Any)?,
            Some(filter) => self.shared.cache.get_with(key, &ReadOptions::new(Read::Any).filter(filter.clone()))?,
        };
        answer.kv.as_ref().map(object_of::<O>).transpose()
    }

    /// All objects. NOT_READY before the first listing.
    pub fn list(&self) -> Result<Listed<O>> {
        self.read(&Range::all(), None)
    }

    /// The objects of a range of keys.
    pub fn range(&self, range: &Range) -> Result<Listed<O>> {
        self.read(range, None)
    }

    /// The objects of a namespace: those with keys like `PREFIX/NAMESPACE/NAME`, where PREFIX is the cache's.
    pub fn namespace(&self, namespace: &str) -> Result<Listed<O>> {
        self.read(&self.shared.namespace(namespace), None)
    }

    /// The objects that a filter selects, such as `Filter::any().labels("app=web")?`.
    /// INVALID_ARGUMENT if it uses a label or field that the cache does not declare.
    pub fn select(&self, filter: &Filter) -> Result<Listed<O>> {
        self.read(&Range::all(), Some(filter))
    }

    fn read(&self, range: &Range, filter: Option<&Filter>) -> Result<Listed<O>> {
        let page = self.page(range, filter)?;
        Ok(Listed::of(page.position(), page.items().iter()))
    }

    fn page(&self, range: &Range, filter: Option<&Filter>) -> Result<Page> {
        let mut options = ReadOptions::new(Read::Any);
        if let Some(filter) = self.shared.with(filter) {
            options = options.filter(filter);
        }
        self.shared.cache.list_with(range, &options)
    }

    /// Calls `visit` with each object of a range, in key order, at one revision, which is returned. It neither counts
    /// nor keeps objects, which suits reads of little from many objects. A value that cannot be decoded is passed as
    /// its error. The visited objects stay in memory until the last call has returned.
    ///
    /// ```
    /// use watchcore::{Cache, Change, KeyValue, Range};
    /// use watchcore_toolkit::Informer;
    ///
    /// let cache = Cache::builder("/pods/").build()?;
    /// cache.writer()?.apply(1, [Change::put("/pods/a", "1"), Change::put("/pods/b", "2")])?;
    /// let lister = Informer::<KeyValue>::new(&cache)?.lister();
    /// let mut bytes = 0;
    /// lister.visit(&Range::all(), |pod, _| bytes += pod.value().map_or(0, <[u8]>::len))?;
    /// assert_eq!(bytes, 2);
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn visit(&self, range: &Range, mut visit: impl FnMut(&KeyValue, Result<&O::View>)) -> Result<Position> {
        let page = self.page(range, None)?;
        page.items().iter().for_each(|kv| visit(kv, view_of::<O>(kv)));
        Ok(page.position())
    }

    /// The objects that a function index has under a value, in key order, at the index's own position: see
    /// [`Lister::wait_until`]. NOT_READY before the index is complete; INVALID_ARGUMENT if there is no such index;
    /// CLOSED if it has failed. O(found), under a lock that otherwise only the thread which maintains the index takes.
    pub fn by_index(&self, index: &str, value: &str) -> Result<Listed<O>> {
        let (position, objects) = self.shared.indexes(index)?.objects(index, value)?;
        Ok(Listed { position, objects, refused: Vec::new() })
    }

    /// The values of an index under which there is an object, in order. CLOSED as for [`Lister::by_index`].
    pub fn index_values(&self, index: &str) -> Result<Vec<String>> {
        self.shared.indexes(index)?.values(index)
    }

    /// Waits until reads, also those by index, show a revision: read your own writes. FUTURE_REVISION after the
    /// timeout; CLOSED if the cache, the informer or its indexes have ended.
    pub fn wait_until(&self, revision: u64, timeout: Duration) -> Result<Position> {
        let begin = Instant::now();
        let position = self.shared.cache.wait_until(revision, timeout)?;
        if let Some(indexes) = &self.shared.indexes {
            let deadline = Instant::now().checked_add(left(begin, timeout));
            // An index in a later history is past the revision.
            if !indexes.wait(deadline, |at, synced| synced && at >= position)? {
                return Err(not_indexed(revision, position, timeout));
            }
        }
        Ok(position)
    }

    /// [`Lister::wait_until`] as a future. Cancel safe.
    pub async fn wait_until_async(&self, revision: u64, timeout: Duration) -> Result<Position> {
        let begin = Instant::now();
        let position = self.shared.cache.wait_until_async(revision, timeout).await?;
        if let Some(indexes) = &self.shared.indexes {
            let timeout_left = left(begin, timeout);
            if !indexes.wait_async(timeout_left, |at, synced| synced && at >= position).await? {
                return Err(not_indexed(revision, position, timeout));
            }
        }
        Ok(position)
    }

    /// Returns a lister of a snapshot, for several informers of one cache at one revision.
    ///
    /// ```
    /// use watchcore::{Cache, Change, Filter, KeyValue};
    /// use watchcore_toolkit::Informer;
    ///
    /// let cache = Cache::builder("/").build()?;
    /// let of = |path| Informer::<KeyValue>::builder(&cache).filter(Filter::any().path(path)).build();
    /// let (pods, nodes) = (of("/pods")?, of("/nodes")?);
    /// cache.writer()?.apply(3, [Change::put("/pods/a", "1"), Change::put("/nodes/n", "2")])?;
    ///
    /// let state = cache.snapshot()?;
    /// let (pods, nodes) = (pods.lister(), nodes.lister());
    /// let (pods, nodes) = (pods.at(&state)?, nodes.at(&state)?);
    /// assert_eq!((pods.list()?.len(), nodes.list()?.len()), (1, 1));
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    ///
    /// INVALID_ARGUMENT for a snapshot of another cache.
    pub fn at<'a>(&'a self, snapshot: &'a Snapshot) -> Result<SnapshotLister<'a, O>> {
        let cache = self.shared.cache.name();
        if snapshot.cache_name() != cache {
            return Err(Error::new(
                Code::InvalidArgument,
                format!("read cache {cache} at a snapshot of cache {}: take one of its own.", snapshot.cache_name()),
            ));
        }
        Ok(SnapshotLister { shared: &self.shared, snapshot })
    }
}

/// The error if the cache has a revision, and the indexes do not reach it in time.
fn not_indexed(revision: u64, position: Position, timeout: Duration) -> Error {
    let message = format!(
        "wait until the indexes show revision {revision}: not within {} ms, though the cache does. Ask again, or look at what \
         the index functions do.",
        timeout.as_millis()
    );
    Error::new(Code::FutureRevision, message).with_asked(revision).with_current(position.revision)
}

impl<O> fmt::Debug for Lister<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lister").field("cache", &self.shared.cache.name()).finish()
    }
}

/// An informer's objects in a snapshot. It keeps the log in memory as the snapshot does: do not hold it for long.
///
/// ```
/// use watchcore::{Cache, Change, KeyValue};
/// use watchcore_toolkit::Informer;
///
/// let cache = Cache::builder("/").build()?;
/// let mut writer = cache.writer()?;
/// writer.apply(1, [Change::put("/a", "1")])?;
/// let lister = Informer::<KeyValue>::new(&cache)?.lister();
/// let state = cache.snapshot()?;
/// writer.apply(2, [Change::delete("/a")])?;
/// assert!(lister.at(&state)?.get("/a")?.is_some());
/// assert!(lister.get("/a")?.is_none());
/// # Ok::<(), watchcore::Error>(())
/// ```
#[derive(Clone, Copy)]
pub struct SnapshotLister<'a, O> {
    shared: &'a InformerShared<O>,
    snapshot: &'a Snapshot,
}

impl<O: FromKeyValue> SnapshotLister<'_, O> {
    /// The position of the snapshot.
    pub fn position(&self) -> Position {
        self.snapshot.position()
    }

    /// The object of a key. O(log n).
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<O>> {
        let Some(kv) = self.snapshot.get(&key) else { return Ok(None) };
        if self.shared.filter.is_some() && self.read(&Range::key(key), None)?.is_empty() {
            return Ok(None);
        }
        object_of::<O>(&kv).map(Some)
    }

    /// All objects.
    pub fn list(&self) -> Result<Listed<O>> {
        self.read(&Range::all(), None)
    }

    /// The objects of a range of keys.
    pub fn range(&self, range: &Range) -> Result<Listed<O>> {
        self.read(range, None)
    }

    /// The objects of a namespace: see [`Lister::namespace`].
    pub fn namespace(&self, namespace: &str) -> Result<Listed<O>> {
        self.read(&self.shared.namespace(namespace), None)
    }

    /// The objects that a filter selects: see [`Lister::select`].
    pub fn select(&self, filter: &Filter) -> Result<Listed<O>> {
        self.read(&Range::all(), Some(filter))
    }

    /// The objects that an index function has under a value. The index shows the present and not
    /// the snapshot, so the function is called with every object: O(n).
    pub fn by_index(&self, index: &str, value: &str) -> Result<Listed<O>> {
        let indexes = self.shared.indexes(index)?;
        let mut listed = self.list()?;
        let mut kept = Ok(());
        listed.objects.retain(|object| match indexes.is_under(index, value, object) {
            Ok(under) => under,
            Err(error) => {
                kept = Err(error);
                false
            }
        });
        kept.map(|()| listed)
    }

    fn read(&self, range: &Range, filter: Option<&Filter>) -> Result<Listed<O>> {
        let filter = self.shared.with(filter).unwrap_or_else(Filter::any).range(range.clone());
        let mut listed = Listed { position: self.snapshot.position(), objects: Vec::new(), refused: Vec::new() };
        for kv in self.snapshot.filtered(&filter)? {
            listed.add(&kv);
        }
        Ok(listed)
    }
}

impl<O> fmt::Debug for SnapshotLister<'_, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SnapshotLister").field("position", &self.snapshot.position()).finish()
    }
}
