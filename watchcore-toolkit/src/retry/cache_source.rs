//! A cache as a source that can be listed and watched.

#![forbid(unsafe_code)]

use crate::event::Status;
use crate::object::{FromKeyValue, object_of};
use crate::objects::ObjectWatch;
use crate::source::{ListPage, ListRequest, ListerWatcher, SourceFuture, WatchRequest};
use std::fmt;
use std::future::ready;
use std::marker::PhantomData;
use watchcore::{Cache, Filter, OnLag, Start};

/// A cache as a source: for a [`RetryWatch`](crate::RetryWatch) of exact history, which ends with 410 (or lists) if the
/// cache's window overtakes it, and never skips an event. A list is the newest state, in one page. Cheap to clone.
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
/// let mut watch = RetryWatch::builder(pods, 0).relist().open()?;
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
    /// A source of the whole cache.
    pub fn new(cache: &Cache) -> CacheSource<O> {
        CacheSource { cache: cache.clone(), filter: Filter::any(), object: PhantomData }
    }

    /// Restricts the source to what this filter selects.
    pub fn filter(self, filter: Filter) -> CacheSource<O> {
        CacheSource { filter, ..self }
    }

    fn snapshot(&self) -> Result<ListPage<O>, Status> {
        let snapshot = self.cache.snapshot()?;
        let mut page = ListPage::new(snapshot.position(), []);
        for kv in snapshot.filtered(&self.filter)? {
            match object_of::<O>(&kv.to_owned()) {
                Ok(object) => page.objects.push(object),
                // As in a watch, a value that cannot be decoded is skipped, and reported.
                Err(error) => {
                    tracing::warn!(
                        cache = self.cache.name(), key = %String::from_utf8_lossy(kv.key()), %error,
                        "a value cannot be decoded, and a list skips it"
                    );
                    page.refused.push(kv.key().to_vec());
                }
            }
        }
        Ok(page)
    }
}

impl<O: FromKeyValue> ListerWatcher for CacheSource<O> {
    type Watch = ObjectWatch<O>;

    fn list(&mut self, _: ListRequest) -> SourceFuture<ListPage<O>> {
        Box::pin(ready(self.snapshot()))
    }

    fn watch(&mut self, request: WatchRequest) -> SourceFuture<Option<ObjectWatch<O>>> {
        let builder = ObjectWatch::builder(&self.cache).filter(self.filter.clone());
        let opened = builder.start(Start::AfterIn(request.from)).on_lag(OnLag::Stop).open();
        Box::pin(ready(opened.map(Some).map_err(Status::from)))
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
