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
    fn combine<P: Predicate<O>>(self, other: P) -> Combined<Self, P>
    where
        Self: Sized,
    {
        Combined(self, other)
    }

    /// A change of this; where an object has no such thing, of the other.
    fn fallback<P: Predicate<O>>(self, other: P) -> Fallback<Self, P>
    where
        Self: Sized,
    {
        Fallback(self, other)
    }
}

impl<O, F: Fn(&O) -> Option<u64> + Send> Predicate<O> for F {
    fn hash(&self, object: &O) -> Option<u64> {
        self(object)
    }
}

/// Two predicates, each of which counts: see [`Predicate::combine`].
///
/// ```
/// use watchcore_toolkit::{Predicate, predicates};
///
/// let either = predicates::by(|pair: &(u8, u8)| Some(pair.0)).combine(predicates::by(|pair: &(u8, u8)| Some(pair.1)));
/// assert_ne!(either.hash(&(1, 1)), either.hash(&(1, 2)));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Combined<A, B>(A, B);

impl<O, A: Predicate<O>, B: Predicate<O>> Predicate<O> for Combined<A, B> {
    fn hash(&self, object: &O) -> Option<u64> {
        match (self.0.hash(object), self.1.hash(object)) {
            (None, None) => None,
            both => Some(hash_of(&both)),
        }
    }
}

/// A predicate, and another where it has nothing: see [`Predicate::fallback`].
///
/// ```
/// use watchcore_toolkit::{Predicate, predicates};
///
/// let first = predicates::by(|pair: &(Option<u8>, u8)| pair.0);
/// let both = first.fallback(predicates::by(|pair: &(Option<u8>, u8)| Some(pair.1)));
/// assert_eq!(both.hash(&(Some(1), 1)), both.hash(&(Some(1), 2)));
/// assert_ne!(both.hash(&(None, 1)), both.hash(&(None, 2)));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Fallback<A, B>(A, B);

impl<O, A: Predicate<O>, B: Predicate<O>> Predicate<O> for Fallback<A, B> {
    fn hash(&self, object: &O) -> Option<u64> {
        self.0.hash(object).or_else(|| self.1.hash(object))
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
