//! Limits that clients share: connections, watches.
//!
//! A lone client may hold nine tenths of the permits. The last tenth is for clients that hold less than an even share,
//! so that a late client gets a permit, however many another one holds.

use super::Who;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A limit, divided between clients.
pub(crate) struct ClientPlaces {
    limit: usize,
    taken: Mutex<TakenPlaces>,
}

#[derive(Default)]
struct TakenPlaces {
    all: usize,
    /// Permits held by each client; clients without permits are removed.
    of: HashMap<Who, usize>,
}

/// A permit, which is returned when it is dropped.
pub(crate) struct ClientPlace {
    places: Arc<ClientPlaces>,
    who: Who,
}

/// Why no permit was granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Full {
    /// All permits are in use; there are this many.
    All(usize),
    /// The client holds this many, which is its share; the remaining ones are reserved for others.
    Share(usize),
}

impl ClientPlaces {
    pub(crate) fn new(limit: usize) -> Arc<ClientPlaces> {
        Arc::new(ClientPlaces { limit, taken: Mutex::default() })
    }

    /// Grants a permit to a client. O(1).
    ///
    /// # Errors
    /// The reason if none is granted.
    pub(crate) fn take(self: &Arc<Self>, who: &Who) -> Result<ClientPlace, Full> {
        let mut taken = self.lock();
        if taken.all >= self.limit {
            return Err(Full::All(self.limit));
        }
        let has = taken.of.get(who).copied().unwrap_or(0);
        // Counts one client more than there are, so that even a lone client leaves some for a newcomer.
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

    /// Returns the number of permits in use.
    pub(crate) fn taken(&self) -> usize {
        self.lock().all
    }

    fn lock(&self) -> MutexGuard<'_, TakenPlaces> {
        // A panic cannot leave half a change: no code below this lock panics between two related writes.
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
