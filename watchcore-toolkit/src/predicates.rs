//! The usual predicates, and the function from which all others are made: a predicate selects the part of an object
//! that is compared to detect a change. See [`PredicateExt::predicate_filter`](crate::PredicateExt::predicate_filter).

#![forbid(unsafe_code)]

use crate::keyed::Keyed;
use std::hash::{DefaultHasher, Hash, Hasher};
use watchcore::KeyValue;

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

/// Compares any part of an object: its generation, labels, annotations, finalizers.
pub fn by<O, H: Hash>(part: impl Fn(&O) -> Option<H> + Send) -> impl Predicate<O> {
    move |object: &O| part(object).map(|part| hash_of(&part))
}

/// Compares the revision of the last change (Kubernetes' resource version): every change passes
/// once, even if a watch delivers it again. A source that was restored from a backup may use a
/// revision twice: `revision().combine(value())` distinguishes such changes.
pub fn revision<O: Keyed>() -> impl Predicate<O> {
    by(|object: &O| Some(object.object_revision()).filter(|revision| *revision != 0))
}

/// Compares the bytes of the value.
pub fn value() -> impl Predicate<KeyValue> {
    by(|kv: &KeyValue| kv.value().map(hash_of))
}
