//! Objects that have a key, and tables of them.

#![forbid(unsafe_code)]

use crate::object::{FromKeyValue, OF_PREFIX, Object};
use hashbrown::{DefaultHashBuilder, HashTable};
use std::borrow::Cow;
use std::hash::BuildHasher;
use watchcore::{Code, Error, KeyValue};

/// An object with a key and the revision of its last change, by which versions are compared.
///
/// ```
/// use std::borrow::Cow;
/// use std::sync::Arc;
/// use watchcore_toolkit::Keyed;
///
/// #[derive(Clone)]
/// struct Pod { namespace: String, name: String, resource_version: u64 }
///
/// impl Keyed for Pod {
///     fn object_key(&self) -> Cow<'_, [u8]> {
///         Cow::Owned(format!("{}/{}", self.namespace, self.name).into_bytes())
///     }
///     fn object_revision(&self) -> u64 {
///         self.resource_version
///     }
/// }
/// let pod = Pod { namespace: "a".into(), name: "b".into(), resource_version: 7 };
/// assert!(Arc::new(pod.clone()).is_same(&Arc::new(pod)));
/// ```
pub trait Keyed {
    /// The key, which is unique among the objects of a watch and never changes.
    fn object_key(&self) -> Cow<'_, [u8]>;

    /// The revision of its last change; 0 if unknown.
    fn object_revision(&self) -> u64;

    /// A value that differs when an object is deleted and created again with the same key, such as
    /// its create revision or a hash of its uid; 0 if there is none.
    fn object_identity(&self) -> u64 {
        0
    }

    /// Whether the key distinguishes the object from others. It does not for the objects of a [`crate::Broadcaster`]
    /// without [`keys`](crate::BroadcasterBuilder::keys): adapters that use keys end with an error there.
    fn has_own_key(&self) -> bool {
        true
    }

    /// Whether two objects of one key are the same version: their revisions are known and equal. If
    /// a revision may be used twice (after a restored backup), compare the contents too.
    fn is_same(&self, other: &Self) -> bool {
        self.object_revision() != 0 && self.object_revision() == other.object_revision()
    }
}

impl Keyed for KeyValue {
    fn object_key(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(self.key())
    }

    fn object_revision(&self) -> u64 {
        self.mod_revision()
    }

    fn object_identity(&self) -> u64 {
        self.create_revision()
    }

    fn is_same(&self, other: &KeyValue) -> bool {
        self.mod_revision() == other.mod_revision() && self.value() == other.value()
    }
}

impl<T: Send + Sync + 'static> Keyed for Object<T> {
    fn object_key(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(self.key())
    }

    fn object_revision(&self) -> u64 {
        // The numbers of a prefix are not revisions of the log.
        if let Some([OF_PREFIX, ..]) = self.broadcast() { 0 } else { self.revision() }
    }

    fn object_identity(&self) -> u64 {
        // The log's only key was created once, whatever is published under it.
        if self.broadcast().is_some() { 0 } else { self.key_value().create_revision() }
    }

    fn has_own_key(&self) -> bool {
        self.broadcast().is_none_or(|value| value.len() > 1)
    }

    fn is_same(&self, other: &Object<T>) -> bool {
        self.object_revision() != 0 && self.key_value().is_same(other.key_value())
    }
}

impl<O: Keyed + ?Sized> Keyed for std::sync::Arc<O> {
    fn object_key(&self) -> Cow<'_, [u8]> {
        (**self).object_key()
    }

    fn object_revision(&self) -> u64 {
        (**self).object_revision()
    }

    fn object_identity(&self) -> u64 {
        (**self).object_identity()
    }

    fn has_own_key(&self) -> bool {
        (**self).has_own_key()
    }

    fn is_same(&self, other: &std::sync::Arc<O>) -> bool {
        (**self).is_same(other)
    }
}

/// The error that ends a watch whose adapter uses keys, at an object without its own key.
pub(crate) fn refused_without_key(what: &str, object: Option<&impl Keyed>) -> Option<Error> {
    let refused = object.is_some_and(|object| !object.has_own_key());
    refused.then(|| {
        Error::new(
            Code::InvalidArgument,
            format!(
                "{what}: its objects have no keys of their own, so none can be told from another. For those of a broadcaster, give \
                 Broadcaster::builder(..).keys(..) a function."
            ),
        )
    })
}

/// Objects by their keys, which are part of the objects.
#[derive(Debug)]
pub(crate) struct KeyedTable<O> {
    table: HashTable<O>,
    hasher: DefaultHashBuilder,
}

impl<O: Keyed> KeyedTable<O> {
    pub(crate) fn new() -> KeyedTable<O> {
        KeyedTable { table: HashTable::new(), hasher: DefaultHashBuilder::default() }
    }

    fn hash(&self, key: &[u8]) -> u64 {
        self.hasher.hash_one(key)
    }

    pub(crate) fn get(&self, key: &[u8]) -> Option<&O> {
        self.table.find(self.hash(key), |object| *object.object_key() == *key)
    }

    /// Inserts an object and returns the former one.
    pub(crate) fn insert(&mut self, object: O) -> Option<O> {
        let key = object.object_key();
        let hash = self.hash(&key);
        if let Some(there) = self.table.find_mut(hash, |other| *other.object_key() == *key) {
            drop(key);
            return Some(std::mem::replace(there, object));
        }
        drop(key);
        let hasher = &self.hasher;
        self.table.insert_unique(hash, object, |other| hasher.hash_one(&*other.object_key()));
        None
    }

    pub(crate) fn remove(&mut self, key: &[u8]) -> Option<O> {
        let hash = self.hash(key);
        let (removed, _) = self.table.find_entry(hash, |object| *object.object_key() == *key).ok()?.remove();
        // Frees the capacity that a burst has left.
        if self.table.capacity() > 4 * self.table.len().max(64) {
            let hasher = &self.hasher;
            self.table.shrink_to(2 * self.table.len(), |other| hasher.hash_one(&*other.object_key()));
        }
        Some(removed)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &O> {
        self.table.iter()
    }
}
