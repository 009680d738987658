//! Represents keys of the program by handles, so that no table under a lock calls the program's `Eq` or `Hash`.
//!
//! [`Interner::intern`] returns the one handle for all equal keys, or makes it. It hashes the key before it takes the
//! interner's lock, and compares the key after releasing the lock, with one handle of the same hash after the other. It
//! repeats the search until there is no handle left with which the key was not compared; then it enters its own handle,
//! under the same lock. It holds the handles that were compared until then, so that none of them disappears meanwhile
//! and comes back as a new one. From then on a handle is hashed by a number and compared by its address.
//!
//! The interner does not keep a key alive: its entries are weak, and are swept when as many entries
//! as there were live ones have been added since the last sweep.

#![forbid(unsafe_code)]

use crate::sync::Lock;
use hashbrown::HashTable;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hash, Hasher};
use std::ops::Deref;
use std::sync::{Arc, Weak};

/// A key's handle, which is the same for all equal keys of an interner.
pub(super) struct KeyHandle<K>(Arc<HashedKey<K>>);

struct HashedKey<K> {
    hash: u64,
    key: K,
}

impl<K> Clone for KeyHandle<K> {
    fn clone(&self) -> KeyHandle<K> {
        KeyHandle(Arc::clone(&self.0))
    }
}

impl<K> PartialEq for KeyHandle<K> {
    fn eq(&self, other: &KeyHandle<K>) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl<K> Eq for KeyHandle<K> {}

impl<K> Hash for KeyHandle<K> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0.hash);
    }
}

impl<K> Deref for KeyHandle<K> {
    type Target = K;

    fn deref(&self) -> &K {
        &self.0.key
    }
}

/// The table of the live handles.
pub(super) struct Interner<K> {
    hasher: RandomState,
    entries: Lock<Entries<K>>,
}

struct Entries<K> {
    /// Found by the hash of the key, which is stored with the entry.
    table: HashTable<(u64, Weak<HashedKey<K>>)>,
    /// The number of entries that triggers a sweep.
    sweep_at: usize,
}

impl<K> Entries<K> {
    /// The minimum number of entries for a sweep.
    const MIN_SWEPT: usize = 64;

    /// Finds a live handle with this hash that is not among `seen`.
    fn unseen(&self, hash: u64, seen: &[KeyHandle<K>]) -> Option<KeyHandle<K>> {
        let is_seen = |entry: &Weak<HashedKey<K>>| seen.iter().any(|handle| entry.as_ptr() == Arc::as_ptr(&handle.0));
        let mut unseen = self.table.iter_hash(hash).filter(|entry| entry.0 == hash && !is_seen(&entry.1));
        unseen.find_map(|entry| entry.1.upgrade()).map(KeyHandle)
    }

    fn enter(&mut self, handle: &KeyHandle<K>) {
        if self.table.len() >= self.sweep_at {
            self.table.retain(|entry| entry.1.strong_count() > 0);
            self.sweep_at = 2 * self.table.len().max(Entries::<K>::MIN_SWEPT / 2);
            self.table.shrink_to(self.sweep_at, |entry| entry.0);
        }
        let hash = handle.0.hash;
        self.table.insert_unique(hash, (hash, Arc::downgrade(&handle.0)), |entry| entry.0);
    }
}

impl<K: Eq + Hash> Interner<K> {
    pub(super) fn new() -> Interner<K> {
        let entries = Entries { table: HashTable::new(), sweep_at: Entries::<K>::MIN_SWEPT };
        Interner { hasher: RandomState::new(), entries: Lock::new(entries) }
    }

    /// Returns the handle of a key.
    pub(super) fn intern(&self, key: K) -> KeyHandle<K> {
        let hash = self.hasher.hash_one(&key);
        // A key that has a handle needs no allocation.
        self.search(hash, &key, None).unwrap_or_else(|| {
            let made = KeyHandle(Arc::new(HashedKey { hash, key }));
            self.search(hash, &made, Some(&made)).unwrap_or(made)
        })
    }

    /// Returns the handle of a key, if there is one.
    pub(super) fn find(&self, key: &K) -> Option<KeyHandle<K>> {
        self.search(self.hasher.hash_one(key), key, None)
    }

    /// Returns the handle of an equal key. If there is none, it enters `new`.
    fn search(&self, hash: u64, key: &K, new: Option<&KeyHandle<K>>) -> Option<KeyHandle<K>> {
        let mut seen = Vec::new();
        loop {
            let mut entries = self.entries.lock();
            let Some(handle) = entries.unseen(hash, &seen) else {
                if let Some(new) = new {
                    entries.enter(new);
                }
                return None;
            };
            drop(entries);
            if *handle == *key {
                return Some(handle);
            }
            seen.push(handle);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A key whose hash equals that of all others.
    #[derive(PartialEq, Eq)]
    struct Alike(u32);

    impl Hash for Alike {
        fn hash<H: Hasher>(&self, _: &mut H) {}
    }

    /// Keys with equal hashes get separate handles, and a key that disappeared gets a new one.
    #[test]
    fn keys_of_one_hash_stay_apart() {
        let interner = Interner::new();
        let handles: Vec<_> = (0..10).map(|number| interner.intern(Alike(number))).collect();
        for (number, handle) in handles.iter().enumerate() {
            assert!(interner.intern(Alike(number as u32)) == *handle);
        }
        drop(handles);
        assert!(interner.find(&Alike(3)).is_none());
        assert!(*interner.intern(Alike(3)) == Alike(3));
    }

    /// Keys that disappear leave no entries behind.
    #[test]
    fn entries_of_keys_that_went_are_swept() {
        let interner = Interner::new();
        (0..10_000).for_each(|number| drop(interner.intern(number)));
        assert!(interner.entries.lock().table.capacity() < 256);
    }
}
