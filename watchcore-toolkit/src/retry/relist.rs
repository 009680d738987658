//! The difference between a listing and the delivered objects.

#![forbid(unsafe_code)]

use crate::event::{Origin, Payload, WatchEvent};
use crate::keyed::{Keyed, KeyedTable};
use crate::source::ListPage;
use std::collections::{HashSet, VecDeque};
use watchcore::Position;

/// Whether a listing belongs to another history than the position: a restored backup, which may use revisions again.
pub(super) fn is_another_history(resumed: Position, listed: Position) -> bool {
    resumed.epoch == listed.epoch && listed.revision < resumed.revision
}

/// The policy to list after a 410; a trait object hides the object type.
pub(super) trait Relist<O>: Send {
    /// Makes the watch start with a list.
    fn begin(&mut self);

    /// Whether nothing was listed yet, so that the next list is the initial state.
    fn is_first(&self) -> bool;

    /// The revision of the last change of an event's object; 0 if unknown.
    fn own_revision(&self, event: &WatchEvent<O>) -> u64;

    /// Makes an event relative to the delivered objects; `None` if it was delivered already.
    fn give(&mut self, event: WatchEvent<O>) -> Option<WatchEvent<O>>;

    /// The events that lead from the delivered objects to the listing: deletions first, then the
    /// others in the order of their revisions. `resumed` is the position of the last delivered
    /// event; all but the last of these events keep it.
    fn difference(&mut self, listing: ListPage<O>, resumed: Position) -> VecDeque<WatchEvent<O>>;
}

/// The delivered objects by key, each with a count.
pub(super) struct Relisting<O> {
    given: KeyedTable<O>,
    /// The keys deleted at one position: a watch that resumes inside that revision repeats the deletions.
    deleted: HashSet<Vec<u8>>,
    deleted_at: Position,
    /// The watch starts with a list, which has not come yet.
    is_first: bool,
    /// A list has come, so `given` has every object that the consumer has.
    is_whole: bool,
}

impl<O: Keyed> Relisting<O> {
    pub(super) fn new() -> Relisting<O> {
        let (deleted, deleted_at) = (HashSet::new(), Position::default());
        Relisting { given: KeyedTable::new(), deleted, deleted_at, is_first: false, is_whole: false }
    }
}

impl<O: Keyed + Clone + Send> Relist<O> for Relisting<O> {
    fn begin(&mut self) {
        self.is_first = true;
    }

    fn is_first(&self) -> bool {
        self.is_first
    }

    fn own_revision(&self, event: &WatchEvent<O>) -> u64 {
        event.object().map_or(0, Keyed::object_revision)
    }

    fn give(&mut self, event: WatchEvent<O>) -> Option<WatchEvent<O>> {
        let position = event.position;
        let is_repeat = |key: &[u8]| self.given.get(key).is_none() && (self.is_whole || self.deleted.contains(key));
        match &event.payload {
            Payload::Deleted(last) if is_repeat(&last.object_key()) => return None,
            Payload::DeletedUnknown(key) if is_repeat(key) => return None,
            _ => {}
        }
        if position != self.deleted_at {
            self.deleted.clear();
            self.deleted_at = position;
        }
        let payload = match event.payload {
            Payload::Added(ref new) | Payload::Modified { ref new, .. } => {
                let new = new.clone();
                match self.given.insert(new.clone()) {
                    Some(old) if old.is_same(&new) => return None,
                    Some(old) => Payload::Modified { old: Some(old), new },
                    None if self.is_whole => Payload::Added(new),
                    // The consumer may have the object from before: only the source's event is known.
                    None => event.payload,
                }
            }
            Payload::Deleted(last) => {
                let key = last.object_key();
                self.given.remove(&key);
                self.deleted.insert(key.into_owned());
                Payload::Deleted(last)
            }
            Payload::DeletedUnknown(key) => {
                let last = self.given.remove(&key);
                self.deleted.insert(key.clone());
                last.map_or(Payload::DeletedUnknown(key), Payload::Deleted)
            }
            other => other,
        };
        Some(WatchEvent { payload, ..event })
    }

    fn difference(&mut self, listing: ListPage<O>, resumed: Position) -> VecDeque<WatchEvent<O>> {
        // Revisions of two histories cannot be compared.
        let another = is_another_history(resumed, listing.position);
        let mut state = KeyedTable::new();
        let mut puts = Vec::new();
        for object in listing.objects {
            let old = self.given.get(&object.object_key()).cloned();
            match old {
                Some(old) if !another && old.is_same(&object) => {}
                Some(old) => puts.push((object.object_revision(), WatchEvent::modified(Some(old), object.clone()))),
                None => puts.push((object.object_revision(), WatchEvent::added(object.clone()))),
            }
            state.insert(object);
        }
        puts.sort_by_key(|(revision, _)| *revision);
        // An object that cannot be decoded is not deleted: its last good value stays.
        for last in listing.refused.iter().filter_map(|key| self.given.get(key)) {
            if state.get(&last.object_key()).is_none() {
                state.insert(last.clone());
            }
        }
        let gone = self.given.iter().filter(|object| state.get(&object.object_key()).is_none());
        let deletes: Vec<_> = gone.map(|object| WatchEvent::deleted(object.clone())).collect();
        (self.given, self.is_whole) = (state, true);
        self.deleted.clear();

        let first = std::mem::replace(&mut self.is_first, false);
        let origin = if first { Origin::InitialState } else { Origin::Difference };
        let events = deletes.into_iter().chain(puts.into_iter().map(|(_, event)| event));
        let mut events: VecDeque<_> = events.map(|event| event.with_origin(origin).at(resumed)).collect();
        if first {
            events.push_back(WatchEvent::synced());
        }
        if let Some(last) = events.back_mut() {
            last.position = listing.position;
        }
        events
    }
}
