//! Keys of the program as handles, so that no table below a lock calls the program's `Eq` or `Hash`.
//!
//! [`Interner::intern`] finds the one handle that lives for all equal keys, or makes it. It hashes the key before it takes the
//! interner's lock, and compares it behind the lock, with one handle of the same hash after the other. It looks again until
//! there is none left with which the key was not compared; then its own handle is entered, below the same lock. The handles that
//! were compared are held until then, so none of them goes meanwhile and comes back as another one. From there on a
//! handle is hashed by a number and compared by its address.
//!
//! The interner does not keep a key alive: its entry is weak, and is swept when as many entries as there were live ones
//! have come since the last sweep.

#![forbid(unsafe_code)]

use crate::sync::Lock;
use hashbrown::HashTable;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hash, Hasher};
use std::ops::Deref;
use std::sync::{Arc, Weak};

/// A key: the same handle for all equal keys of an interner.
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

/// The handles that live.
pub(super) struct Interner<K> {
    hasher: RandomState,
    entries: Lock<Entries<K>>,
}

struct Entries<K> {
    /// By the hash of the key, which is kept beside.
    table: HashTable<(u64, Weak<HashedKey<K>>)>,
    /// As many entries lead to a sweep.
    sweep_at: usize,
}

impl<K> Entries<K> {
    /// The fewest entries that are swept.
    const FEW: usize = 64;

    /// A live handle of a hash that is not among `seen`.
    fn unseen(&self, hash: u64, seen: &[KeyHandle<K>]) -> Option<KeyHandle<K>> {
        let is_seen = |entry: &Weak<HashedKey<K>>| seen.iter().any(|handle| entry.as_ptr() == Arc::as_ptr(&handle.0));
        let mut unseen = self.table.iter_hash(hash).filter(|entry| entry.0 == hash && !is_seen(&entry.1));
        unseen.find_map(|entry| entry.1.upgrade()).map(KeyHandle)
    }

    fn enter(&mut self, handle: &KeyHandle<K>) {
        if self.table.len() >= self.sweep_at {
            self.table.retain(|entry| entry.1.strong_count() > 0);
            self.sweep_at = 2 * self.table.len().max(Entries::<K>::FEW / 2);
            self.table.shrink_to(self.sweep_at, |entry| entry.0);
        }
        let hash = handle.0.hash;
        self.table.insert_unique(hash, (hash, Arc::downgrade(&handle.0)), |entry| entry.0);
    }
}

impl<K: Eq + Hash> Interner<K> {
    pub(super) fn new() -> Interner<K> {
        let entries = Entries { table: HashTable::new(), sweep_at: Entries::<K>::FEW };
        Interner { hasher: RandomState::new(), entries: Lock::new(entries) }
    }

    /// The handle of a key.
    pub(super) fn intern(&self, key: K) -> KeyHandle<K> {
        let hash = self.hasher.hash_one(&key);
        // A key that is there takes no memory.
        self.search(hash, &key, None).unwrap_or_else(|| {
            let made = KeyHandle(Arc::new(HashedKey { hash, key }));
            self.search(hash, &made, Some(&made)).unwrap_or(made)
        })
    }

    /// The handle of a key, if there is one.
    pub(super) fn find(&self, key: &K) -> Option<KeyHandle<K>> {
        self.search(self.hasher.hash_one(key), key, None)
    }

    /// The handle of an equal key. Where there is none, `new` is entered.
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

    /// Keys of one hash.
    #[derive(PartialEq, Eq)]
    struct Alike(u32);

    impl Hash for Alike {
        fn hash<H: Hasher>(&self, _: &mut H) {}
    }

    /// Keys that have one hash have a handle each, and a key that went is made anew.
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

    /// Keys that went leave no entries behind.
    #[test]
    fn entries_of_keys_that_went_are_swept() {
        let interner = Interner::new();
        (0..10_000).for_each(|number| drop(interner.intern(number)));
        assert!(interner.entries.lock().table.capacity() < 256);
    }
}
