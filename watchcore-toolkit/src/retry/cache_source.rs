//! A cache as something that can be watched and listed.

#![forbid(unsafe_code)]

use super::source::{ListSource, Listing, ListingFuture, Opening, WatchSource};
use crate::event::Status;
use crate::object::{FromKeyValue, object_of};
use crate::objects::ObjectWatch;
use std::fmt;
use std::future::ready;
use std::marker::PhantomData;
use watchcore::{Cache, Filter, OnLag, Position, Start};

/// A cache as a source of watches, and as a lister: for a [`RetryWatch`](crate::RetryWatch) of exact history, which ends with
/// 410 (or lists) where the cache's window has left it behind, and never skips. Cheap to clone.
///
/// ```
/// use std::time::Duration;
/// use watchcore::{Cache, Change, Filter, KeyValue, Range};
/// use watchcore_toolkit::{CacheSource, RetryWatch, WatchExt};
///
/// let cache = Cache::builder("/").build()?;
/// let mut writer = cache.writer()?;
/// writer.apply(1, [Change::put("/pods/a", "1"), Change::put("/other", "1")])?;
/// let pods = CacheSource::<KeyValue>::new(&cache).filter(Filter::any().range(Range::prefix("/pods/")));
/// let mut watch = RetryWatch::builder(pods.clone(), 0).relist(pods).open()?;
/// let names: Vec<&str> = (0..2).map(|_| watch.recv(Duration::from_secs(10)).unwrap().unwrap().name()).collect();
/// assert_eq!(names, ["ADDED", "SYNCED"]);
/// # Ok::<(), watchcore::Error>(())
/// ```
pub struct CacheSource<O> {
    cache: Cache,
    filter: Filter,
    object: PhantomData<fn() -> O>,
}

impl<O: FromKeyValue> CacheSource<O> {
    /// Everything in the cache.
    pub fn new(cache: &Cache) -> CacheSource<O> {
        CacheSource { cache: cache.clone(), filter: Filter::any(), object: PhantomData }
    }

    /// Only what this filter lets pass.
    pub fn filter(self, filter: Filter) -> CacheSource<O> {
        CacheSource { filter, ..self }
    }

    fn snapshot(&self) -> Result<Listing<O>, Status> {
        let snapshot = self.cache.snapshot()?;
        let mut listing = Listing::new(snapshot.position(), []);
        for kv in snapshot.filtered(&self.filter)? {
            match object_of::<O>(&kv.to_owned()) {
                Ok(object) => listing.objects.push(object),
                // As in a watch: a value that cannot be decoded is left out, and reported.
                Err(error) => {
                    tracing::warn!(
                        cache = self.cache.name(), key = %String::from_utf8_lossy(kv.key()), %error,
                        "a value cannot be decoded and is left out of a list"
                    );
                    listing.refused.push(kv.key().to_vec());
                }
            }
        }
        Ok(listing)
    }
}

impl<O: FromKeyValue> WatchSource for CacheSource<O> {
    type Watch = ObjectWatch<O>;

    fn watch(&mut self, from: Position) -> Opening<ObjectWatch<O>> {
        let builder = ObjectWatch::builder(&self.cache).filter(self.filter.clone());
        let opened = builder.start(Start::AfterIn(from)).on_lag(OnLag::Stop).open();
        Box::pin(ready(opened.map(Some).map_err(Status::from)))
    }
}

impl<O: FromKeyValue> ListSource<O> for CacheSource<O> {
    fn list(&mut self) -> ListingFuture<O> {
        Box::pin(ready(self.snapshot()))
    }
}

impl<O> Clone for CacheSource<O> {
    fn clone(&self) -> CacheSource<O> {
        CacheSource { cache: self.cache.clone(), filter: self.filter.clone(), object: PhantomData }
    }
}

impl<O> fmt::Debug for CacheSource<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CacheSource").field("cache", &self.cache.name()).finish_non_exhaustive()
    }
}
