//! The table of counted objects that a consumer has received.

#![forbid(unsafe_code)]

use crate::object::FromKeyValue;
use hashbrown::hash_table::Entry;
use hashbrown::{DefaultHashBuilder, HashTable};
use std::hash::BuildHasher;

/// An object with the key by which a table finds it.
pub(crate) trait KeyOf {
    fn key_of(&self) -> &[u8];
}

impl<O: FromKeyValue> KeyOf for O {
    fn key_of(&self) -> &[u8] {
        self.key_value().key()
    }
}

/// The objects that a consumer has received and not seen deleted, by key.
///
/// Each entry takes a pointer and a byte, because the key is in the object's own allocation. Objects are held by count,
/// so the table keeps an object's newest delivered version in memory and nothing of the log.
pub(crate) struct Known<O> {
    table: HashTable<O>,
    hasher: DefaultHashBuilder,
}

impl<O: KeyOf> Known<O> {
    pub(crate) fn new() -> Known<O> {
        Known { table: HashTable::new(), hasher: DefaultHashBuilder::default() }
    }

    pub(crate) fn with_capacity(objects: usize) -> Known<O> {
        Known { table: HashTable::with_capacity(objects), hasher: DefaultHashBuilder::default() }
    }

    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Stores an object, and returns the former one of its key. O(1).
    pub(crate) fn insert(&mut self, object: O) -> Option<O> {
        let Known { table, hasher } = self;
        let hash = hasher.hash_one(object.key_of());
        let same = |other: &O| other.key_of() == object.key_of();
        match table.entry(hash, same, |other| hasher.hash_one(other.key_of())) {
            Entry::Occupied(mut place) => Some(std::mem::replace(place.get_mut(), object)),
            Entry::Vacant(place) => {
                place.insert(object);
                None
            }
        }
    }

    /// Removes and returns the object of a key. The table shrinks when it has become mostly empty. O(1), amortised.
    pub(crate) fn remove(&mut self, key: &[u8]) -> Option<O> {
        let Known { table, hasher } = self;
        let hash = hasher.hash_one(key);
        let place = table.find_entry(hash, |object| object.key_of() == key).ok()?;
        let (removed, _) = place.remove();
        if table.capacity() > 64 && table.len() < table.capacity() / 8 {
            table.shrink_to(table.len() * 2, |other| hasher.hash_one(other.key_of()));
        }
        Some(removed)
    }

    /// All objects, unordered.
    pub(crate) fn to_vec(&self) -> Vec<O>
    where
        O: Clone,
    {
        self.table.iter().cloned().collect()
    }

    pub(crate) fn into_objects(self) -> impl Iterator<Item = O> {
        self.table.into_iter()
    }

    /// The size of the table in bytes, without the objects.
    pub(crate) fn bytes(&self) -> usize {
        self.table.allocation_size()
    }
}
