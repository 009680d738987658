//! Limits that clients share: connections, watches.
//!
//! A lone client may hold nine tenths of the permits. The last tenth is for clients that hold less than an even share,
//! so that a late client gets a permit, however many another one holds.

use super::ClientId;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A limit, divided between clients.
pub(crate) struct ClientPermits {
    limit: usize,
    held: Mutex<HeldPermits>,
}

#[derive(Default)]
struct HeldPermits {
    all: usize,
    /// Permits held by each client; clients without permits are removed.
    of: HashMap<ClientId, usize>,
}

/// A permit, which is returned when it is dropped.
pub(crate) struct ClientPermit {
    permits: Arc<ClientPermits>,
    client: ClientId,
}

/// Why no permit was granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Full {
    /// All permits are in use; there are this many.
    All(usize),
    /// The client holds this many, which is its share; the remaining ones are reserved for others.
    Share(usize),
}

impl ClientPermits {
    pub(crate) fn new(limit: usize) -> Arc<ClientPermits> {
        Arc::new(ClientPermits { limit, held: Mutex::default() })
    }

    /// Grants a permit to a client. O(1).
    ///
    /// # Errors
    /// The reason if none is granted.
    pub(crate) fn acquire(self: &Arc<Self>, client: &ClientId) -> Result<ClientPermit, Full> {
        let mut held = self.lock();
        if held.all >= self.limit {
            return Err(Full::All(self.limit));
        }
        let has = held.of.get(client).copied().unwrap_or(0);
        // Counts one client more than there are, so that even a lone client leaves some for a newcomer.
        let clients = held.of.len() + 1;
        if held.all >= self.limit - self.limit / 10 && has >= self.limit / clients {
            return Err(Full::Share(has));
        }
        held.all += 1;
        match held.of.get_mut(client) {
            Some(has) => *has += 1,
            None => drop(held.of.insert(client.clone(), 1)),
        }
        Ok(ClientPermit { permits: self.clone(), client: client.clone() })
    }

    /// Returns the number of permits in use.
    pub(crate) fn held(&self) -> usize {
        self.lock().all
    }

    fn lock(&self) -> MutexGuard<'_, HeldPermits> {
        // A panic cannot leave half a change: no code below this lock panics between two related writes.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ClientPermit {
    fn drop(&mut self) {
        let mut held = self.permits.lock();
        held.all -= 1;
        if let Some(has) = held.of.get_mut(&self.client) {
            *has -= 1;
            if *has == 0 {
                held.of.remove(&self.client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: &str) -> ClientId {
        ClientId::User(name.into())
    }

    fn acquire_all(permits: &Arc<ClientPermits>, client: &ClientId) -> (Vec<ClientPermit>, Full) {
        let mut held = Vec::new();
        loop {
            match permits.acquire(client) {
                Ok(permit) => held.push(permit),
                Err(full) => return (held, full),
            }
        }
    }

    #[test]
    fn last_tenth_is_for_those_who_have_little() {
        let permits = ClientPermits::new(100);
        let (mallory, full) = acquire_all(&permits, &user("mallory"));
        assert_eq!((mallory.len(), full), (90, Full::Share(90)));
        let (alice, full) = acquire_all(&permits, &user("alice"));
        assert_eq!((alice.len(), full), (10, Full::All(100)));
        drop(mallory);
        let (more, full) = acquire_all(&permits, &user("alice"));
        assert_eq!((more.len(), full), (80, Full::Share(90)), "who is alone again");
        drop((alice, more));
        assert_eq!((permits.held(), permits.lock().of.len()), (0, 0));
    }

    #[test]
    fn few_places_are_for_whoever_comes_first() {
        let permits = ClientPermits::new(2);
        let (held, full) = acquire_all(&permits, &ClientId::Unknown);
        assert_eq!((held.len(), full), (2, Full::All(2)));
    }
}
