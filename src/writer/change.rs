//! The input of a writer: records of a listing, and changes.

#![forbid(unsafe_code)]

use crate::data::key_value::KeyMeta;
use crate::error::{DebugBytes, Length};
use std::fmt;
use std::sync::Arc;

/// A key-value as a listing or an exact put brings it.
///
/// ```
/// use watchcore::{Cache, Read, Record};
///
/// let cache = Cache::builder("/").expect_load(true).build()?;
/// let record = Record { key: b"/a", value: b"1", create_revision: 3, mod_revision: 8, version: 2, lease: 0 };
/// cache.writer()?.load(9, [record])?;
/// let answer = cache.get("/a", Read::Any)?;
/// assert_eq!((answer.revision, answer.kv.unwrap().mod_revision()), (9, 8));
/// # Ok::<(), watchcore::Error>(())
/// ```
#[derive(Clone, Copy)]
pub struct Record<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The value.
    pub value: &'a [u8],
    /// Revision at which the key was created.
    pub create_revision: u64,
    /// Revision of the last change.
    pub mod_revision: u64,
    /// Number of changes since it was created, from 1.
    pub version: u64,
    /// The lease, 0 for none.
    pub lease: i64,
}

impl fmt::Debug for Record<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record")
            .field("key", &DebugBytes(self.key))
            .field("value", &Length(Some(self.value)))
            .field("mod_revision", &self.mod_revision)
            .finish()
    }
}

impl Record<'_> {
    pub(super) fn meta(&self) -> KeyMeta {
        KeyMeta {
            create_revision: self.create_revision,
            mod_revision: self.mod_revision,
            version: self.version,
            lease: self.lease,
        }
    }
}

#[derive(Clone, Copy)]
pub(super) enum Operation<'a> {
    Put,
    Shared(&'a Arc<[u8]>),
    Exact(KeyMeta),
    Delete,
}

/// Key and value of a version, and who has the bytes of the value where they are not copied.
#[derive(Clone, Copy, Default)]
pub(super) struct Content<'a> {
    pub(super) key: &'a [u8],
    pub(super) value: Option<&'a [u8]>,
    pub(super) shared: Option<&'a Arc<[u8]>>,
}

/// A change of one key.
///
/// ```
/// use watchcore::{Cache, Change, Kind, Start};
///
/// let cache = Cache::builder("/").build()?;
/// let mut writer = cache.writer()?;
/// let mut all = cache.subscribe(Start::Now).open()?;
/// writer.apply(1, [Change::put("/a", "1")])?;
/// writer.apply(2, [Change::put("/a", "2"), Change::put("/b", "1")])?; // one revision, seen as a whole
/// writer.apply(3, [Change::delete("/a")])?;
/// let kinds: Vec<Kind> = all.poll(10)?.events().iter().map(|event| event.kind()).collect();
/// assert_eq!(kinds, [Kind::Added, Kind::Modified, Kind::Added, Kind::Deleted]);
/// # Ok::<(), watchcore::Error>(())
/// ```
#[derive(Clone, Copy)]
#[must_use = "a change is made when a writer applies it"]
pub struct Change<'a> {
    pub(super) key: &'a [u8],
    /// The value that it sets; `None`: it deletes.
    pub(super) value: Option<&'a [u8]>,
    pub(super) operation: Operation<'a>,
}

impl fmt::Debug for Change<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.operation {
            Operation::Put => "Put",
            Operation::Shared(_) => "PutShared",
            Operation::Exact(..) => "PutExact",
            Operation::Delete => "Delete",
        };
        f.debug_struct(name).field("key", &DebugBytes(self.key)).field("value", &Length(self.value)).finish()
    }
}

impl<'a> Change<'a> {
    /// The parts of the new version.
    #[inline]
    pub(super) fn content(&self) -> Content<'a> {
        let shared = if let Operation::Shared(value) = self.operation { Some(value) } else { None };
        Content { key: self.key, value: self.value, shared }
    }

    /// Sets a value; create revision and version follow from the key's state, the lease is 0.
    /// The apply copies key and value. A put of an equal value is a change like any other: an event, and a new version.
    ///
    /// ```
    /// use watchcore::{Cache, Change};
    ///
    /// let cache = Cache::builder("/").build()?;
    /// let mut writer = cache.writer()?;
    /// writer.apply(1, [Change::put("/a", "1")])?;
    /// writer.apply(2, [Change::put("/a", "2")])?;
    /// let numbers = |kv: &watchcore::KeyValue| (kv.create_revision(), kv.mod_revision(), kv.version());
    /// assert_eq!(numbers(&writer.get(b"/a").unwrap()), (1, 2, 2));
    /// writer.apply(3, [Change::delete("/a")])?;
    /// writer.apply(4, [Change::put("/a", "3")])?;
    /// assert_eq!(numbers(&writer.get(b"/a").unwrap()), (4, 4, 1), "created anew");
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn put(key: &'a (impl AsRef<[u8]> + ?Sized), value: &'a (impl AsRef<[u8]> + ?Sized)) -> Change<'a> {
        Change { key: key.as_ref(), value: Some(value.as_ref()), operation: Operation::Put }
    }

    /// Sets a value whose bytes are not copied: the cache has a count on them until the version is freed, and hands out
    /// these bytes. Meant for large values that the program has in such a form anyway: an apply copies the key alone, and
    /// each reader pays a line of memory more.
    ///
    /// Create revision and version follow from the key's state, as for [`Change::put`]. The whole length of the value counts
    /// as the cache's in all statistics and limits, though others may have the bytes, too. The last count is given back on
    /// the library's thread.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use watchcore::{Cache, Change, Read};
    ///
    /// let cache = Cache::builder("/").build()?;
    /// let page: Arc<[u8]> = Arc::from(vec![b'x'; 100_000]);
    /// cache.writer()?.apply(1, [Change::put_shared("/a", &page), Change::put_shared("/b", &page)])?;
    /// let kv = cache.get("/b", Read::Any)?.kv.unwrap();
    /// assert_eq!(kv.value().unwrap().as_ptr(), page.as_ptr(), "one copy for all");
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn put_shared(key: &'a (impl AsRef<[u8]> + ?Sized), value: &'a Arc<[u8]>) -> Change<'a> {
        Change { key: key.as_ref(), value: Some(value), operation: Operation::Shared(value) }
    }

    /// Sets a value that brings its own numbers; its `mod_revision` must be the revision applied.
    ///
    /// ```
    /// use watchcore::{Cache, Change, Code, Record};
    ///
    /// let cache = Cache::builder("/").build()?;
    /// let mut writer = cache.writer()?;
    /// let record = Record { key: b"/a", value: b"1", create_revision: 3, mod_revision: 9, version: 4, lease: 77 };
    /// let other = writer.apply(10, [Change::put_exact(record)]).unwrap_err();
    /// assert_eq!(other.code(), Code::InvalidArgument, "its mod_revision is 9");
    /// writer.apply(9, [Change::put_exact(record)])?;
    /// let kv = writer.get(b"/a").unwrap();
    /// assert_eq!((kv.create_revision(), kv.version(), kv.lease()), (3, 4, 77));
    /// # Ok::<(), watchcore::Error>(())
    /// ```
    pub fn put_exact(record: Record<'a>) -> Change<'a> {
        Change { key: record.key, value: Some(record.value), operation: Operation::Exact(record.meta()) }
    }

    /// Deletes a present key.
    pub fn delete(key: &'a (impl AsRef<[u8]> + ?Sized)) -> Change<'a> {
        Change { key: key.as_ref(), value: None, operation: Operation::Delete }
    }
}
