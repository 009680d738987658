//! The usual predicates, and the function from which all others are made: a predicate selects the part of an object
//! that is compared to detect a change. See [`PredicateExt::predicate_filter`](crate::PredicateExt::predicate_filter).

#![forbid(unsafe_code)]

use crate::keyed::Keyed;
use crate::touched::{Predicate, hash_of};
use std::hash::Hash;
use watchcore::KeyValue;

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
