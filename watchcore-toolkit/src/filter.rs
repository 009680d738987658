//! Watches that select events of another watch.

#![forbid(unsafe_code)]

use crate::event::{Payload, WatchEvent};
use crate::keyed::{Keyed, KeyedTable, refused_without_key};
use crate::watch::{Stopper, Watch};
use futures_core::Stream;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// The maximum number of events that one poll skips before it yields to other tasks.
pub(crate) const BUDGET: usize = 256;

/// A watch whose events a function changes or drops: see [`crate::WatchExt::filter_events`].
///
/// ```
/// use std::task::Poll;
/// use watchcore_toolkit::{RaceFreeFakeSource, WatchExt};
///
/// let (fake, watch) = RaceFreeFakeSource::pair();
/// let mut short = watch.filter_events(|event| (event.object().is_none_or(|name: &&str| name.len() < 4)).then_some(event));
/// fake.add("foo")?;
/// fake.add("barbar")?;
/// fake.add("zoo")?;
/// for expected in ["foo", "zoo"] {
///     let Poll::Ready(Some(event)) = short.try_recv() else { panic!("it is there") };
///     assert_eq!(event.object(), Some(&expected));
/// }
/// # Ok::<(), watchcore::Error>(())
/// ```
#[must_use = "dropping a watch stops it"]
pub struct FilterWatch<W, F> {
    watch: W,
    filter: F,
    /// The losses reported by events that were dropped.
    lost: u64,
    ended: bool,
}

impl<W, F> FilterWatch<W, F> {
    pub(crate) fn new(watch: W, filter: F) -> FilterWatch<W, F> {
        FilterWatch { watch, filter, lost: 0, ended: false }
    }
}

impl<W, F, P> Stream for FilterWatch<W, F>
where
    W: Watch,
    F: FnMut(WatchEvent<W::Object>) -> Option<WatchEvent<P>> + Unpin,
{
    type Item = WatchEvent<P>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<WatchEvent<P>>> {
        let this = &mut *self;
        if this.ended {
            return Poll::Ready(None);
        }
        for _ in 0..BUDGET {
            let Some(event) = ready!(Pin::new(&mut this.watch).poll_next(context)) else {
                this.ended = true;
                return Poll::Ready(None);
            };
            let lost = this.lost + event.lost;
            if let Some(event) = (this.filter)(event) {
                this.lost = 0;
                this.ended = event.status().is_some();
                if this.ended {
                    this.watch.stopper().stop();
                }
                return Poll::Ready(Some(event.with_lost(lost)));
            }
            this.lost = lost;
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

impl<W, F, P> Watch for FilterWatch<W, F>
where
    W: Watch,
    F: FnMut(WatchEvent<W::Object>) -> Option<WatchEvent<P>> + Unpin + Send,
{
    type Object = P;

    fn stopper(&self) -> Stopper {
        self.watch.stopper()
    }
}

impl<W: fmt::Debug, F> fmt::Debug for FilterWatch<W, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FilterWatch").field("watch", &self.watch).finish_non_exhaustive()
    }
}

/// A watch of only the objects that a predicate selects, with the right types: see [`crate::WatchExt::filter_objects`].
///
/// ```
/// use std::time::Duration;
/// use watchcore::{Cache, Change, KeyValue};
/// use watchcore_toolkit::{ObjectWatch, WatchExt};
///
/// let cache = Cache::builder("/").build()?;
/// let mut writer = cache.writer()?;
/// let on = |kv: &KeyValue| kv.value() == Some(b"on");
/// let mut watch = ObjectWatch::<KeyValue>::open(&cache)?.filter_objects(on);
/// for (revision, value) in [(1, "off"), (2, "on"), (3, "off")] {
///     writer.apply(revision, [Change::put("/lamp", value)])?;
/// }
/// let mut objects = Vec::new();
/// while objects.len() < 2 {
///     let event = watch.recv(Duration::from_secs(10))?.unwrap();
///     if let Some(kv) = event.object() {
///         objects.push((event.name(), event.position.revision, kv.value_str().unwrap().to_owned()));
///     }
/// }
/// // It came in with revision 2, and left with revision 3: its last value in the filter.
/// assert_eq!(objects, [("ADDED", 2, "on".to_owned()), ("DELETED", 3, "on".to_owned())]);
/// # Ok::<(), watchcore::Error>(())
/// ```
#[must_use = "dropping a watch stops it"]
pub struct ObjectFilter<W: Watch, P> {
    watch: W,
    predicate: P,
    /// The objects that the consumer has.
    given: KeyedTable<W::Object>,
    lost: u64,
    ended: bool,
}

impl<W, P> ObjectFilter<W, P>
where
    W: Watch,
    W::Object: Keyed + Clone,
    P: FnMut(&W::Object) -> bool,
{
    pub(crate) fn new(watch: W, predicate: P) -> ObjectFilter<W, P> {
        ObjectFilter { watch, predicate, given: KeyedTable::new(), lost: 0, ended: false }
    }

    /// Translates a new version of an object for the consumer.
    fn put(&mut self, new: W::Object) -> Option<Payload<W::Object>> {
        if (self.predicate)(&new) {
            return Some(match self.given.insert(new.clone()) {
                Some(old) => Payload::Modified { old: Some(old), new },
                None => Payload::Added(new),
            });
        }
        let old = self.given.remove(&new.object_key())?;
        Some(Payload::Deleted(old))
    }

    /// Translates a deletion for the consumer.
    fn remove(&mut self, last: W::Object) -> Option<Payload<W::Object>> {
        let given = self.given.remove(&last.object_key())?;
        Some(Payload::Deleted(if (self.predicate)(&last) { last } else { given }))
    }

    fn translate(&mut self, payload: Payload<W::Object>) -> Option<Payload<W::Object>> {
        match payload {
            Payload::Added(new) | Payload::Modified { new, .. } => self.put(new),
            Payload::Deleted(last) => self.remove(last),
            Payload::DeletedUnknown(key) => self.given.remove(&key).map(Payload::Deleted),
            mark @ (Payload::Synced | Payload::Bookmark | Payload::Error(_)) => Some(mark),
        }
    }
}

impl<W, P> Stream for ObjectFilter<W, P>
where
    W: Watch,
    W::Object: Keyed + Clone + Unpin,
    P: FnMut(&W::Object) -> bool + Unpin,
{
    type Item = WatchEvent<W::Object>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<WatchEvent<W::Object>>> {
        let this = &mut *self;
        if this.ended {
            return Poll::Ready(None);
        }
        for _ in 0..BUDGET {
            let Some(event) = ready!(Pin::new(&mut this.watch).poll_next(context)) else {
                this.ended = true;
                return Poll::Ready(None);
            };
            let lost = this.lost + event.lost;
            if let Some(error) = refused_without_key("filter objects", event.object()) {
                this.ended = true;
                this.watch.stopper().stop();
                return Poll::Ready(Some(WatchEvent::error(error).with_lost(lost)));
            }
            if let Some(payload) = this.translate(event.payload) {
                this.lost = 0;
                this.ended = matches!(payload, Payload::Error(_));
                return Poll::Ready(Some(WatchEvent { position: event.position, lost, origin: event.origin, payload }));
            }
            this.lost = lost;
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

impl<W, P> Watch for ObjectFilter<W, P>
where
    W: Watch,
    W::Object: Keyed + Clone + Unpin + Send,
    P: FnMut(&W::Object) -> bool + Unpin + Send,
{
    type Object = W::Object;

    fn stopper(&self) -> Stopper {
        self.watch.stopper()
    }
}

impl<W: Watch + fmt::Debug, P> fmt::Debug for ObjectFilter<W, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectFilter").field("watch", &self.watch).finish_non_exhaustive()
    }
}
