//! Gets of many keys at once.

#![forbid(unsafe_code)]

use super::view::{At, read_at};
use super::{Read, ReadOptions};
use crate::cache::Cache;
use crate::data::key_value::KeyValue;
use crate::error::Result;
use crate::filter::matcher::Matcher;
use crate::position::Position;

/// The answer of [`Cache::get_many`].
///
/// ```
/// use watchcore::{Cache, Change, Read};
///
/// let cache = Cache::builder("/").build()?;
/// cache.writer()?.apply(5, [Change::put("/a", "1"), Change::put("/b", "2")])?;
/// let answers = cache.get_many(&["/b", "/c", "/a"], Read::Any)?;
/// assert_eq!(answers.revision, 5);
/// let values: Vec<_> = answers.kvs.iter().map(|kv| kv.as_ref().and_then(|kv| kv.value_str())).collect();
/// assert_eq!(values, [Some("2"), None, Some("1")]);
/// # Ok::<(), watchcore::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Answers {
    /// The revision that all of them were answered at.
    pub revision: u64,
    /// Its epoch.
    pub epoch: u64,
    /// The key-value of each key, in the order of the keys; `None`: the key is absent there.
    pub kvs: Vec<Option<KeyValue>>,
}

impl Answers {
    /// The revision and its epoch.
    pub fn position(&self) -> Position {
        Position { epoch: self.epoch, revision: self.revision }
    }
}

impl Cache {
    /// Reads several keys, like [`Cache::get_many_with`] with a timeout of 3 s and no filter.
    pub fn get_many(&self, keys: &[impl AsRef<[u8]>], read: Read) -> Result<Answers> {
        self.get_many_with(keys, &ReadOptions::new(read))
    }

    /// [`Cache::get_many`] as a future: see [`Cache::get_many_with_async`].
    pub async fn get_many_async(&self, keys: &[impl AsRef<[u8]>], read: Read) -> Result<Answers> {
        self.get_many_with_async(keys, &ReadOptions::new(read)).await
    }

    /// Reads several keys of one state, in the order of the keys: each as [`Cache::get_with`] reads one, and with its
    /// waits and errors. A key outside of the prefix refuses all. A key that is given twice is answered twice.
    ///
    /// O(1) a key. Misses of the processor's caches overlap, so that many keys that lie scattered in memory take a third
    /// of the time of as many gets. The only allocation is that of [`Answers::kvs`]. However many keys there are, memory
    /// is freed meanwhile and the writer never waits; each key-value that is kept keeps as much as one of a get.
    pub fn get_many_with(&self, keys: &[impl AsRef<[u8]>], options: &ReadOptions) -> Result<Answers> {
        let matcher = self.matcher_of_many(keys, options)?;
        let exact = self.await_revision("get at", options.read, options.timeout)?;
        self.find_many(keys, exact, matcher)
    }

    /// [`Cache::get_many_with`] as a future: it awaits its revision, and then reads in one go, without giving way to other
    /// tasks. Cancel safe: a read takes nothing.
    pub async fn get_many_with_async(&self, keys: &[impl AsRef<[u8]>], options: &ReadOptions) -> Result<Answers> {
        let matcher = self.matcher_of_many(keys, options)?;
        let exact = self.await_revision_async("get at", options.read, options.timeout).await?;
        self.find_many(keys, exact, matcher)
    }

    fn matcher_of_many(&self, keys: &[impl AsRef<[u8]>], options: &ReadOptions) -> Result<Option<Matcher>> {
        keys.iter().try_for_each(|key| self.key_of_get(key.as_ref()).map(drop))?;
        self.matcher_of_get(options)
    }

    fn find_many(
        &self,
        keys: &[impl AsRef<[u8]>],
        exact: Option<(Position, u64)>,
        matcher: Option<Matcher>,
    ) -> Result<Answers> {
        let read = |at: At<'_>| {
            let mut kvs = Vec::with_capacity(keys.len());
            at.find_all(keys, |kv| kvs.push(kv.map(|kv| kv.to_owned())))?;
            Ok(kvs)
        };
        let Ok((Position { epoch, revision }, mut kvs)) = read_at(&self.inner, exact, read) else {
            return Err(self.inner.compacted("get at", exact.map_or(0, |(position, _)| position.revision)));
        };
        if let Some(matcher) = matcher {
            kvs.iter_mut().for_each(|kv| *kv = kv.take().filter(|kv| matcher.holds(kv)));
        }
        Ok(Answers { revision, epoch, kvs })
    }
}
