//! From a listing to the difference with what was given.

#![forbid(unsafe_code)]

use super::source::{ListSource, Listing, ListingFuture};
use crate::event::{Origin, Payload, WatchEvent};
use crate::keyed::{Keyed, KeyedTable};
use std::collections::VecDeque;
use watchcore::Position;

/// What the policy to list needs of its objects, for a watch of any.
pub(super) trait Relist<O>: Send {
    fn list(&mut self) -> ListingFuture<O>;

    /// What becomes of an event that is about to be given: `None` where it was given already.
    fn give(&mut self, event: WatchEvent<O>) -> Option<WatchEvent<O>>;

    /// The events that lead from what was given to the listing: deletes first, then puts in the order of their revisions.
    /// `resumed` is the position that the last event was given at; it stays until the last of these.
    fn difference(&mut self, listing: Listing<O>, resumed: Position) -> VecDeque<WatchEvent<O>>;
}

/// A lister, and what the consumer was given: a counted object a key.
pub(super) struct Relisting<L, O> {
    lister: L,
    given: KeyedTable<O>,
}

impl<L, O: Keyed> Relisting<L, O> {
    pub(super) fn new(lister: L) -> Relisting<L, O> {
        Relisting { lister, given: KeyedTable::new() }
    }
}

impl<L: ListSource<O>, O: Keyed + Clone + Send> Relist<O> for Relisting<L, O> {
    fn list(&mut self) -> ListingFuture<O> {
        self.lister.list()
    }

    fn give(&mut self, event: WatchEvent<O>) -> Option<WatchEvent<O>> {
        let payload = match event.payload {
            Payload::Added(new) | Payload::Modified { new, .. } => match self.given.insert(new.clone()) {
                Some(old) if old.is_same(&new) => return None,
                Some(old) => Payload::Modified { old: Some(old), new },
                None => Payload::Added(new),
            },
            Payload::Deleted(last) => {
                self.given.remove(&last.object_key());
                Payload::Deleted(last)
            }
            other => other,
        };
        Some(WatchEvent { payload, ..event })
    }

    fn difference(&mut self, listing: Listing<O>, resumed: Position) -> VecDeque<WatchEvent<O>> {
        let mut state = KeyedTable::new();
        let mut puts = Vec::new();
        for object in listing.objects {
            let old = self.given.get(&object.object_key()).cloned();
            match old {
                Some(old) if old.is_same(&object) => {}
                Some(old) => puts.push((object.object_revision(), WatchEvent::modified(Some(old), object.clone()))),
                None => puts.push((object.object_revision(), WatchEvent::added(object.clone()))),
            }
            state.insert(object);
        }
        puts.sort_by_key(|(revision, _)| *revision);
        // No deletion of what is there and cannot be decoded: the last good one stays.
        for last in listing.refused.iter().filter_map(|key| self.given.get(key)) {
            if state.get(&last.object_key()).is_none() {
                state.insert(last.clone());
            }
        }
        let gone = self.given.iter().filter(|object| state.get(&object.object_key()).is_none());
        let deletes: Vec<_> = gone.map(|object| WatchEvent::deleted(object.clone())).collect();
        self.given = state;

        let first = resumed == Position::default();
        let origin = if first { Origin::InitialState } else { Origin::Difference };
        let events = deletes.into_iter().chain(puts.into_iter().map(|(_, event)| event));
        let mut events: VecDeque<_> = events.map(|event| event.with_origin(origin).at(resumed)).collect();
        if first {
            events.push_back(WatchEvent::synced());
        } else if let Some(event) = events.front_mut() {
            event.lost = listing.position.revision.saturating_sub(resumed.revision);
        }
        if let Some(last) = events.back_mut() {
            last.position = listing.position;
        }
        events
    }
}
