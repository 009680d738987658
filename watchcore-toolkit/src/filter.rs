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

/// The loop of every watch that selects events of another one.
#[derive(Debug)]
pub(crate) struct Selection<W> {
    watch: W,
    /// The losses reported by events that were dropped.
    lost: u64,
    ended: bool,
}

impl<W: Watch> Selection<W> {
    pub(crate) fn new(watch: W) -> Selection<W> {
        Selection { watch, lost: 0, ended: false }
    }

    pub(crate) fn stopper(&self) -> Stopper {
        self.watch.stopper()
    }

    /// Polls for the next event for which `select` returns one, which also reports the losses of those that were
    /// dropped before it. An Error is the last event, and stops the source.
    pub(crate) fn poll<P>(
        &mut self,
        context: &mut Context<'_>,
        mut select: impl FnMut(WatchEvent<W::Object>) -> Option<WatchEvent<P>>,
    ) -> Poll<Option<WatchEvent<P>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        for _ in 0..BUDGET {
            let Some(event) = ready!(Pin::new(&mut self.watch).poll_next(context)) else {
                self.ended = true;
                return Poll::Ready(None);
            };
            let lost = self.lost + event.lost;
            if let Some(event) = select(event) {
                self.lost = 0;
                self.ended = event.status().is_some();
                if self.ended {
                    self.watch.stopper().stop();
                }
                return Poll::Ready(Some(event.with_lost(lost)));
            }
            self.lost = lost;
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

/// A watch whose events a function changes or drops: see [`crate::WatchExt::filter_events`].
///
/// ```
/// use std::task::Poll;
/// use watchcore_toolkit::{FakeWatch, WatchExt};
///
/// let (fake, watch) = FakeWatch::race_free();
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
    selection: Selection<W>,
    filter: F,
}

impl<W: Watch, F> FilterWatch<W, F> {
    pub(crate) fn new(watch: W, filter: F) -> FilterWatch<W, F> {
        FilterWatch { selection: Selection::new(watch), filter }
    }
}

impl<W, F, P> Stream for FilterWatch<W, F>
where
    W: Watch,
    F: FnMut(WatchEvent<W::Object>) -> Option<WatchEvent<P>> + Unpin,
{
    type Item = WatchEvent<P>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<WatchEvent<P>>> {
        let FilterWatch { selection, filter } = &mut *self;
        selection.poll(context, filter)
    }
}

impl<W, F, P> Watch for FilterWatch<W, F>
where
    W: Watch,
    F: FnMut(WatchEvent<W::Object>) -> Option<WatchEvent<P>> + Unpin + Send,
{
    type Object = P;

    fn stopper(&self) -> Stopper {
        self.selection.stopper()
    }
}

impl<W: fmt::Debug, F> fmt::Debug for FilterWatch<W, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FilterWatch").field("selection", &self.selection).finish_non_exhaustive()
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
    selection: Selection<W>,
    selected: Selected<W::Object, P>,
}

impl<W: Watch<Object: Keyed>, P> ObjectFilter<W, P> {
    pub(crate) fn new(watch: W, predicate: P) -> ObjectFilter<W, P> {
        let selected = Selected { predicate, given: KeyedTable::new() };
        ObjectFilter { selection: Selection::new(watch), selected }
    }
}

/// A predicate, and the selected objects that the consumer has.
struct Selected<O, P> {
    predicate: P,
    given: KeyedTable<O>,
}

impl<O: Keyed + Clone, P: FnMut(&O) -> bool> Selected<O, P> {
    /// Translates a new version of an object for the consumer.
    fn put(&mut self, new: O) -> Option<Payload<O>> {
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
    fn remove(&mut self, last: O) -> Option<Payload<O>> {
        let given = self.given.remove(&last.object_key())?;
        Some(Payload::Deleted(if (self.predicate)(&last) { last } else { given }))
    }

    fn translate(&mut self, event: WatchEvent<O>) -> Option<WatchEvent<O>> {
        if let Some(error) = refused_without_key("filter objects", event.object()) {
            return Some(WatchEvent::error(error));
        }
        let payload = match event.payload {
            Payload::Added(new) | Payload::Modified { new, .. } => self.put(new)?,
            Payload::Deleted(last) => self.remove(last)?,
            Payload::DeletedUnknown(key) => self.given.remove(&key).map(Payload::Deleted)?,
            mark @ (Payload::Synced | Payload::Bookmark | Payload::Error(_)) => mark,
        };
        Some(WatchEvent { payload, ..event })
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
        let ObjectFilter { selection, selected } = &mut *self;
        selection.poll(context, |event| selected.translate(event))
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
        self.selection.stopper()
    }
}

impl<W: Watch + fmt::Debug, P> fmt::Debug for ObjectFilter<W, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectFilter").field("selection", &self.selection).finish_non_exhaustive()
    }
}
