//! The tables of a queue: the state under its lock, which neither waits nor reads a clock.
//!
//! Keys are handles (`interned`), so that no foreign code runs under the lock. A key that leaves a
//! table is returned, or collected in `removed`, which the caller drops after releasing the lock.

#![forbid(unsafe_code)]

use super::interned::KeyHandle;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::time::Instant;

/// The state of a key that is in the queue or has a worker.
#[derive(Clone, Copy, PartialEq, Eq)]
enum KeyState {
    /// The key waits in `order`.
    Queued,
    /// A worker has it.
    Processing,
    /// A worker has the key, and it was added since: it is appended to `order` when the worker is done.
    ProcessingAgain,
}

pub(super) struct QueueState<K> {
    keys: HashMap<KeyHandle<K>, KeyState>,
    order: VecDeque<KeyHandle<K>>,
    /// The delayed keys by due time; the number distinguishes keys that are due at the same time.
    delayed: BTreeMap<(Instant, u64), KeyHandle<K>>,
    due: HashMap<KeyHandle<K>, (Instant, u64)>,
    /// Keys that were passed to the limiter and that no worker has taken since: they wait already.
    limited: HashSet<KeyHandle<K>>,
    next_number: u64,
    /// Keys that have left the tables, to be dropped after the lock is released.
    removed: Vec<KeyHandle<K>>,
    pub(super) shut_down: bool,
    processing: usize,
    pub(super) added: u64,
    pub(super) retries: u64,
}

impl<K> QueueState<K> {
    pub(super) fn new() -> QueueState<K> {
        QueueState {
            keys: HashMap::new(),
            order: VecDeque::new(),
            delayed: BTreeMap::new(),
            due: HashMap::new(),
            limited: HashSet::new(),
            next_number: 0,
            removed: Vec::new(),
            shut_down: false,
            processing: 0,
            added: 0,
            retries: 0,
        }
    }

    /// Adds a key. Returns whether there is one more to take.
    pub(super) fn add(&mut self, key: &KeyHandle<K>) -> bool {
        !self.shut_down && self.enqueue(key)
    }

    fn enqueue(&mut self, key: &KeyHandle<K>) -> bool {
        if let Some(state) = self.keys.get_mut(key) {
            // A queued key stays once. The worker of a processed key may have read the object
            // already, so the key comes again afterwards.
            if *state == KeyState::Processing {
                *state = KeyState::ProcessingAgain;
                self.added += 1;
            }
            return false;
        }
        self.added += 1;
        self.keys.insert(key.clone(), KeyState::Queued);
        self.order.push_back(key.clone());
        true
    }

    /// Adds a key later. A key that is delayed already keeps the earlier time. Returns whether the
    /// earliest time has changed.
    pub(super) fn add_at(&mut self, key: &KeyHandle<K>, at: Instant) -> bool {
        if self.shut_down {
            return false;
        }
        let before = self.due.get(key).copied();
        if before.is_some_and(|(due, _)| due <= at) {
            return false;
        }
        self.removed.extend(before.and_then(|before| self.delayed.remove(&before)));
        self.next_number += 1;
        let place = (at, self.next_number);
        self.delayed.insert(place, key.clone());
        self.due.insert(key.clone(), place);
        self.delayed.first_key_value().is_some_and(|(first, _)| *first == place)
    }

    /// Whether the key may be passed to the limiter. False: it waits already, in the queue or for the limiter's earlier
    /// delay. A key that is only delayed may be passed, because the limiter's time may be earlier.
    pub(super) fn claim(&mut self, key: &KeyHandle<K>) -> bool {
        let is_queued = self.keys.get(key) == Some(&KeyState::Queued);
        !self.shut_down && !is_queued && self.limited.insert(key.clone())
    }

    /// The limiter has not answered: the key may be passed again.
    pub(super) fn unclaim(&mut self, key: &KeyHandle<K>) {
        self.removed.extend(self.limited.take(key));
    }

    /// Returns the keys that have left the tables since the last call: the caller drops them after releasing the lock.
    pub(super) fn take_removed(&mut self) -> Vec<KeyHandle<K>> {
        std::mem::take(&mut self.removed)
    }

    /// Adds the keys that are due. Returns how many more there are to take.
    pub(super) fn move_due(&mut self, now: Instant) -> usize {
        let mut moved = 0;
        while let Some(first) = self.delayed.first_entry() {
            if first.key().0 > now {
                break;
            }
            let key = first.remove();
            let due = self.due.remove_entry(&key);
            moved += usize::from(self.enqueue(&key));
            self.removed.extend(due.map(|(key, _)| key));
            self.removed.push(key);
        }
        // Capacity from a past burst is returned, at most once per as many keys as it held.
        if self.due.capacity() > 4 * self.due.len().max(64) {
            self.due.shrink_to(2 * self.due.len().max(32));
        }
        moved
    }

    /// When the next key is due.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.delayed.first_key_value().map(|((due, _), _)| *due)
    }

    pub(super) fn take(&mut self) -> Option<KeyHandle<K>> {
        let key = self.order.pop_front()?;
        *self.keys.get_mut(&key).expect("what is in order has a state") = KeyState::Processing;
        self.removed.extend(self.limited.take(&key));
        self.processing += 1;
        self.shrink();
        Some(key)
    }

    /// Marks a key as done. Returns whether there is one more to take.
    pub(super) fn done(&mut self, key: &KeyHandle<K>) -> bool {
        let Some(state) = self.keys.get_mut(key) else { return false };
        self.processing -= 1;
        if *state == KeyState::ProcessingAgain {
            *state = KeyState::Queued;
            self.order.push_back(key.clone());
            return true;
        }
        // The caller has the same key, so nothing is dropped here.
        self.keys.remove(key);
        false
    }

    /// Refuses new keys from now on, and drops the delayed ones.
    pub(super) fn shut_down(&mut self) -> usize {
        self.shut_down = true;
        let (due, delayed) = (std::mem::take(&mut self.due), std::mem::take(&mut self.delayed));
        let dropped = delayed.len();
        self.removed.extend(due.into_keys().chain(delayed.into_values()));
        self.removed.extend(std::mem::take(&mut self.limited));
        dropped
    }

    pub(super) fn ready(&self) -> usize {
        self.order.len()
    }

    pub(super) fn processing(&self) -> usize {
        self.processing
    }

    pub(super) fn delayed(&self) -> usize {
        self.delayed.len()
    }

    /// Whether all added keys are done.
    pub(super) fn is_drained(&self) -> bool {
        self.order.is_empty() && self.processing == 0
    }

    /// Returns capacity from a past burst, at most once per as many takes as it held keys.
    fn shrink(&mut self) {
        if self.order.capacity() > 4 * self.order.len().max(64) {
            self.order.shrink_to(2 * self.order.len().max(32));
            self.keys.shrink_to(2 * self.keys.len());
            self.limited.shrink_to(2 * self.limited.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::interned::Interner;
    use super::*;
    use std::time::Duration;

    /// A burst of delayed keys that become due one by one, and are taken at once, leaves no capacity behind.
    #[test]
    fn burst_of_delayed_keys_leaves_no_room() {
        let (mut state, keys) = (QueueState::new(), Interner::new());
        let begin = Instant::now();
        for key in 0..10_000 {
            state.add_at(&keys.intern(key), begin + Duration::from_millis(key));
        }
        for key in 0..10_000 {
            assert_eq!(state.move_due(begin + Duration::from_millis(key)), 1);
            let taken = state.take().unwrap();
            assert_eq!(*taken, key);
            state.done(&taken);
            state.take_removed();
        }
        assert!(state.due.capacity() < 1000, "room for {} keys", state.due.capacity());
    }
}
