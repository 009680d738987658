//! ClientPlaces that clients take and give back: connections, watches.
//!
//! A client that is alone may have nine tenths of the places. The last tenth is for clients that have less than an even
//! share, so that a client that comes late finds a place, however many another one has taken.

use super::Who;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// So many places, divided between clients.
pub(crate) struct ClientPlaces {
    limit: usize,
    taken: Mutex<TakenPlaces>,
}

#[derive(Default)]
struct TakenPlaces {
    all: usize,
    /// Nobody is in it with none.
    of: HashMap<Who, usize>,
}

/// A place, until it is dropped.
pub(crate) struct ClientPlace {
    places: Arc<ClientPlaces>,
    who: Who,
}

/// Why there is no place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Full {
    /// All of so many are taken.
    All(usize),
    /// The client has its share, and the few that are left are for others.
    Share(usize),
}

impl ClientPlaces {
    pub(crate) fn new(limit: usize) -> Arc<ClientPlaces> {
        Arc::new(ClientPlaces { limit, taken: Mutex::default() })
    }

    /// A place for a client. O(1).
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) fn take(self: &Arc<Self>, who: &Who) -> Result<ClientPlace, Full> {
        let mut taken = self.lock();
        if taken.all >= self.limit {
            return Err(Full::All(self.limit));
        }
        let has = taken.of.get(who).copied().unwrap_or(0);
        // With one more, who may come: so somebody who is alone leaves room, too.
        let clients = taken.of.len() + 1;
        if taken.all >= self.limit - self.limit / 10 && has >= self.limit / clients {
            return Err(Full::Share(has));
        }
        taken.all += 1;
        match taken.of.get_mut(who) {
            Some(has) => *has += 1,
            None => drop(taken.of.insert(who.clone(), 1)),
        }
        Ok(ClientPlace { places: self.clone(), who: who.clone() })
    }

    /// How many are taken.
    pub(crate) fn taken(&self) -> usize {
        self.lock().all
    }

    fn lock(&self) -> MutexGuard<'_, TakenPlaces> {
        // No code under this lock panics between two changes that belong together.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ClientPlace {
    fn drop(&mut self) {
        let mut taken = self.places.lock();
        taken.all -= 1;
        if let Some(has) = taken.of.get_mut(&self.who) {
            *has -= 1;
            if *has == 0 {
                taken.of.remove(&self.who);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: &str) -> Who {
        Who::User(name.into())
    }

    fn take_all(places: &Arc<ClientPlaces>, who: &Who) -> (Vec<ClientPlace>, Full) {
        let mut taken = Vec::new();
        loop {
            match places.take(who) {
                Ok(place) => taken.push(place),
                Err(full) => return (taken, full),
            }
        }
    }

    #[test]
    fn last_tenth_is_for_those_who_have_little() {
        let places = ClientPlaces::new(100);
        let (mallory, full) = take_all(&places, &user("mallory"));
        assert_eq!((mallory.len(), full), (90, Full::Share(90)));
        let (alice, full) = take_all(&places, &user("alice"));
        assert_eq!((alice.len(), full), (10, Full::All(100)));
        drop(mallory);
        let (more, full) = take_all(&places, &user("alice"));
        assert_eq!((more.len(), full), (80, Full::Share(90)), "who is alone again");
        drop((alice, more));
        assert_eq!((places.taken(), places.lock().of.len()), (0, 0));
    }

    #[test]
    fn few_places_are_for_whoever_comes_first() {
        let places = ClientPlaces::new(2);
        let (taken, full) = take_all(&places, &Who::Somebody);
        assert_eq!((taken.len(), full), (2, Full::All(2)));
    }
}
