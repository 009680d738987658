//! Watches for controllers: without deletions, without marks, without the changes that a predicate finds irrelevant.

#![forbid(unsafe_code)]

use crate::event::{Origin, Payload, WatchEvent};
use crate::filter::Selection;
use crate::keyed::{Keyed, refused_without_key};
use crate::watch::{Stopper, Watch};
use futures_core::Stream;
use std::collections::HashMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::pin::Pin;
use std::task::{Context, Poll};

/// Returns a hash of the part of an object that is compared between two versions, or `None` if the
/// object has no such part, in which case every change passes. Closures implement it.
///
/// ```
/// use watchcore_toolkit::{Predicate, predicates};
///
/// struct Pod { generation: Option<u64>, labels: Vec<String> }
///
/// let generation = predicates::by(|pod: &Pod| pod.generation);
/// let labels = predicates::by(|pod: &Pod| Some(pod.labels.clone()));
/// // A change of either; of the labels alone where there is no generation.
/// let either = generation.combine(labels);
/// let pod = |generation, label: &str| Pod { generation, labels: vec![label.to_owned()] };
/// assert_ne!(either.hash(&pod(Some(1), "a")), either.hash(&pod(Some(2), "a")));
/// assert_ne!(either.hash(&pod(Some(1), "a")), either.hash(&pod(Some(1), "b")));
/// assert_eq!(either.hash(&pod(Some(1), "a")), either.hash(&pod(Some(1), "a")));
/// ```
pub trait Predicate<O>: Send {
    /// The hash of the compared part of the object.
    fn hash(&self, object: &O) -> Option<u64>;

    /// Detects a change of either part; if an object lacks one of them, of the other.
    fn combine<P: Predicate<O>>(self, other: P) -> impl Predicate<O>
    where
        Self: Sized,
    {
        move |object: &O| match (self.hash(object), other.hash(object)) {
            (None, None) => None,
            both => Some(hash_of(&both)),
        }
    }

    /// Detects a change of this part or, if an object lacks it, of the other.
    fn fallback<P: Predicate<O>>(self, other: P) -> impl Predicate<O>
    where
        Self: Sized,
    {
        move |object: &O| self.hash(object).or_else(|| other.hash(object))
    }
}

impl<O, F: Fn(&O) -> Option<u64> + Send> Predicate<O> for F {
    fn hash(&self, object: &O) -> Option<u64> {
        self(object)
    }
}

pub(crate) fn hash_of(value: &(impl Hash + ?Sized)) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Adapters of every watch for controllers.
///
/// ```
/// use std::time::Duration;
/// use watchcore::{Cache, Change, KeyValue};
/// use watchcore_toolkit::{ObjectWatch, PredicateExt, WatchExt, predicates};
///
/// let cache = Cache::builder("/").build()?;
/// let mut writer = cache.writer()?;
/// writer.apply(1, [Change::put("/a", "1")])?;
/// // Who writes the same value again does not wake the controller.
/// let mut watch = ObjectWatch::<KeyValue>::open(&cache)?.touched().predicate_filter(predicates::value());
/// assert_eq!(watch.recv(Duration::from_secs(10))?.unwrap().name(), "ADDED");
/// writer.apply(2, [Change::put("/a", "1")])?;
/// writer.apply(3, [Change::put("/a", "2")])?;
/// assert_eq!(watch.recv(Duration::from_secs(10))?.unwrap().position.revision, 3);
/// # Ok::<(), watchcore::Error>(())
/// ```
pub trait PredicateExt: Watch + Sized {
    /// Only Added and Modified events. An Error still ends the watch.
    fn applied(self) -> Touched<Self> {
        Touched { selection: Selection::new(self), deletes: false }
    }

    /// Only Added, Modified and Deleted events. An Error still ends the watch.
    fn touched(self) -> Touched<Self> {
        Touched { selection: Selection::new(self), deletes: true }
    }

    /// Only changes of the part that the predicate compares, and all deletions. It uses keys: at an object without one
    /// ([`Keyed::has_own_key`]) it ends with an Error event (400). It stores the key and 8 bytes for each present
    /// object; a deleted object is forgotten, and an object that is created again counts as a new one. `old` stays the
    /// version directly before `new`, even if that was not delivered.
    fn predicate_filter<P: Predicate<Self::Object>>(self, predicate: P) -> PredicateFilter<Self, P>
    where
        Self::Object: Keyed,
    {
        PredicateFilter { selection: Selection::new(self), hashes: Hashes { predicate, seen: HashMap::new() } }
    }
}

impl<W: Watch + Sized> PredicateExt for W {}

/// A watch of the changes of objects: see [`PredicateExt::applied`] and [`PredicateExt::touched`].
///
/// ```
/// use std::time::Duration;
/// use watchcore::{Cache, Change, KeyValue};
/// use watchcore_toolkit::{ObjectWatch, PredicateExt, WatchExt};
///
/// let cache = Cache::builder("/").build()?;
/// let mut writer = cache.writer()?;
/// let mut watch = ObjectWatch::<KeyValue>::open(&cache)?.applied();
/// writer.apply(1, [Change::put("/a", "1")])?;
/// writer.apply(2, [Change::delete("/a")])?;
/// writer.apply(3, [Change::put("/a", "2")])?;
/// let revisions = [(); 2].map(|()| watch.recv(Duration::from_secs(10)).unwrap().unwrap().position.revision);
/// assert_eq!(revisions, [1, 3]);
/// # Ok::<(), watchcore::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "dropping a watch ends it"]
pub struct Touched<W> {
    selection: Selection<W>,
    deletes: bool,
}

impl<W: Watch> Stream for Touched<W> {
    type Item = WatchEvent<W::Object>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<WatchEvent<W::Object>>> {
        let Touched { selection, deletes } = &mut *self;
        selection.poll(context, |event| {
            let passes = match &event.payload {
                Payload::Added(_) | Payload::Modified { .. } | Payload::Error(_) => true,
                Payload::Deleted(_) | Payload::DeletedUnknown(_) => *deletes,
                Payload::Synced | Payload::Bookmark => false,
            };
            passes.then_some(event)
        })
    }
}

impl<W: Watch> Watch for Touched<W> {
    type Object = W::Object;

    fn stopper(&self) -> Stopper {
        self.selection.stopper()
    }
}

/// A watch of relevant changes: see [`PredicateExt::predicate_filter`].
///
/// ```
/// use std::time::Duration;
/// use watchcore::{Cache, Change, KeyValue};
/// use watchcore_toolkit::{ObjectWatch, PredicateExt, WatchExt, predicates};
///
/// let cache = Cache::builder("/").build()?;
/// let mut writer = cache.writer()?;
/// writer.apply(1, [Change::put("/a", "1")])?;
/// // Only what comes and goes: every version of an object has the same hash.
/// let same = predicates::by(|_: &KeyValue| Some(0));
/// let mut watch = ObjectWatch::<KeyValue>::open(&cache)?.touched().predicate_filter(same);
/// writer.apply(2, [Change::put("/a", "2")])?;
/// writer.apply(3, [Change::delete("/a")])?;
/// let names = [(); 2].map(|()| watch.recv(Duration::from_secs(10)).unwrap().unwrap().name());
/// assert_eq!(names, ["ADDED", "DELETED"]);
/// # Ok::<(), watchcore::Error>(())
/// ```
#[must_use = "dropping a watch ends it"]
pub struct PredicateFilter<W, P> {
    selection: Selection<W>,
    hashes: Hashes<P>,
}

impl<W, P> PredicateFilter<W, P> {
    /// The number of objects that it knows.
    pub fn known(&self) -> usize {
        self.hashes.seen.len()
    }
}

/// A predicate, and its hashes of the objects that the consumer has.
struct Hashes<P> {
    predicate: P,
    /// The predicate's hash of the last version, combined with its object's identity.
    seen: HashMap<Box<[u8]>, u64>,
}

impl<P> Hashes<P> {
    fn passes<O: Keyed>(&mut self, event: &WatchEvent<O>) -> bool
    where
        P: Predicate<O>,
    {
        if event.lost > 0 && event.origin == Origin::Change {
            // The watch has skipped events, possibly deletions, so it is unknown which objects to forget.
            self.seen = HashMap::new();
        }
        match &event.payload {
            Payload::Added(new) | Payload::Modified { new, .. } => {
                let key = new.object_key();
                let Some(hash) = self.predicate.hash(new) else {
                    self.seen.remove(&*key);
                    return true;
                };
                let hash = hash_of(&(hash, new.object_identity()));
                match self.seen.get_mut(&*key) {
                    Some(seen) => std::mem::replace(seen, hash) != hash,
                    None => {
                        self.seen.insert(key.into_owned().into_boxed_slice(), hash);
                        true
                    }
                }
            }
            Payload::Deleted(last) => self.forget(&last.object_key()),
            Payload::DeletedUnknown(key) => self.forget(key),
            Payload::Synced | Payload::Bookmark | Payload::Error(_) => true,
        }
    }

    /// A deletion passes, and forgets the key: an object that is created again counts as a new one.
    fn forget(&mut self, key: &[u8]) -> bool {
        self.seen.remove(key);
        if self.seen.capacity() > 4 * self.seen.len().max(64) {
            self.seen.shrink_to(2 * self.seen.len());
        }
        true
    }
}

impl<W: Watch, P> Unpin for PredicateFilter<W, P> {}

impl<W: Watch<Object: Keyed>, P: Predicate<W::Object>> Stream for PredicateFilter<W, P> {
    type Item = WatchEvent<W::Object>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<WatchEvent<W::Object>>> {
        let PredicateFilter { selection, hashes } = &mut *self;
        selection.poll(context, |event| match refused_without_key("filter by a predicate", event.object()) {
            Some(error) => Some(WatchEvent::error(error)),
            None => hashes.passes(&event).then_some(event),
        })
    }
}

impl<W: Watch<Object: Keyed>, P: Predicate<W::Object>> Watch for PredicateFilter<W, P> {
    type Object = W::Object;

    fn stopper(&self) -> Stopper {
        self.selection.stopper()
    }
}

impl<W: fmt::Debug, P> fmt::Debug for PredicateFilter<W, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PredicateFilter").field("selection", &self.selection).field("known", &self.known()).finish()
    }
}
