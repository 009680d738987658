//! The predicates that users know, and the one that all others are made of: what of an object is looked at to see whether
//! it has changed. See [`PredicateExt::predicate_filter`](crate::PredicateExt::predicate_filter).

#![forbid(unsafe_code)]

use crate::keyed::Keyed;
use std::hash::{DefaultHasher, Hash, Hasher};
use watchcore::KeyValue;

/// What is compared between two versions of an object: a hash of it, or `None` where it has no such thing, which lets every
/// change pass. A closure is one.
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
    /// What of the object is looked at.
    fn hash(&self, object: &O) -> Option<u64>;

    /// A change of this or the other; where one has nothing, of the one that has.
    fn combine<P: Predicate<O>>(self, other: P) -> impl Predicate<O>
    where
        Self: Sized,
    {
        move |object: &O| match (self.hash(object), other.hash(object)) {
            (None, None) => None,
            both => Some(hash_of(&both)),
        }
    }

    /// A change of this; where an object has no such thing, of the other.
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

/// Any part of an object: its generation, labels, annotations, finalizers.
pub fn by<O, H: Hash>(part: impl Fn(&O) -> Option<H> + Send) -> impl Predicate<O> {
    move |object: &O| part(object).map(|part| hash_of(&part))
}

/// The revision of its last change (Kubernetes' resource version): every change, each once, also where a watch delivers one
/// again. A source that was restored from a backup may use a revision twice: `revision().combine(value())` tells these apart.
pub fn revision<O: Keyed>() -> impl Predicate<O> {
    by(|object: &O| Some(object.object_revision()).filter(|revision| *revision != 0))
}

/// The bytes of its value.
pub fn value() -> impl Predicate<KeyValue> {
    by(|kv: &KeyValue| kv.value().map(hash_of))
}
