//! Compares a consumer's history with etcd's own: its list at the last revision, and a plain watch from the consumer's
//! start to that revision.

use std::collections::HashMap;
use std::time::Duration;

use etcd_client::{EventType, GetOptions, WatchOptions};
use tokio::time::timeout;

use crate::hash::{self, Fnv};
use crate::load::{self, Outcome, PREFIX};

/// A history as one reader saw it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct History {
    /// The revision after which the history begins.
    pub(crate) start: u64,
    /// The revision and the hash of each event.
    pub(crate) events: Vec<(u64, u64)>,
    /// The running hash over all events.
    pub(crate) hash: u64,
    /// The state at the end: the sum of its objects' hashes, and their number.
    pub(crate) state: u64,
    pub(crate) objects: u64,
    /// The number of relistings; 0 in a plain watch.
    pub(crate) resyncs: u64,
}

impl History {
    pub(crate) fn add(&mut self, running: &mut Fnv, revision: u64, kind: u8, key: &[u8], value: Option<&[u8]>) {
        running.event(revision, kind, key, value);
        self.events.push((revision, hash::of_event(revision, kind, key, value)));
        self.hash = running.0;
    }
}

/// Reads etcd's history from `start` to `end`.
pub(crate) async fn from_etcd(endpoint: &str, start: u64, end: u64) -> Outcome<History> {
    let mut client = load::connect(endpoint).await?;
    let mut history = History { start, hash: Fnv::default().0, ..History::default() };
    let mut running = Fnv::default();
    let options = WatchOptions::new().with_prefix().with_start_revision(start as i64 + 1);
    let mut stream = client.watch(PREFIX, Some(options)).await.map_err(|error| format!("the bare watch: {error}"))?;
    let mut reached = start;
    while reached < end {
        let message = timeout(Duration::from_secs(20), stream.message()).await;
        let message = message.map_err(|_| "the bare watch is silent".to_owned())?;
        let message = message.map_err(|error| format!("the bare watch: {error}"))?.ok_or("the bare watch ended")?;
        if message.canceled() {
            return Err(format!("the bare watch was refused: {}", message.cancel_reason()));
        }
        for event in message.events() {
            let kv = event.kv().ok_or("an event without a key")?;
            let revision = kv.mod_revision() as u64;
            let (kind, value) = match event.event_type() {
                EventType::Delete => (hash::DELETED, None),
                EventType::Put if kv.create_revision() == kv.mod_revision() => (hash::ADDED, Some(kv.value())),
                EventType::Put => (hash::MODIFIED, Some(kv.value())),
            };
            history.add(&mut running, revision, kind, kv.key(), value);
            reached = revision;
        }
    }
    let options = GetOptions::new().with_prefix().with_revision(end as i64);
    let listed = client.get(PREFIX, Some(options)).await.map_err(|error| format!("the last list: {error}"))?;
    for kv in listed.kvs() {
        history.state = history.state.wrapping_add(hash::of_object(kv.mod_revision() as u64, kv.key(), kv.value()));
        history.objects += 1;
    }
    Ok(history)
}

/// How a consumer's history differs from etcd's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Difference {
    pub(crate) lost: u64,
    pub(crate) duplicated: u64,
    /// How many events etcd does not have.
    pub(crate) foreign: u64,
    pub(crate) in_order: bool,
    pub(crate) same_hash: bool,
    pub(crate) same_state: bool,
    pub(crate) resyncs: u64,
}

impl Difference {
    pub(crate) fn of(consumer: &History, etcd: &History) -> Difference {
        let mut counts: HashMap<(u64, u64), (u64, u64)> = HashMap::new();
        for event in &etcd.events {
            counts.entry(*event).or_default().0 += 1;
        }
        for event in &consumer.events {
            counts.entry(*event).or_default().1 += 1;
        }
        let (mut lost, mut duplicated, mut foreign) = (0, 0, 0);
        for &(is, got) in counts.values() {
            lost += is.saturating_sub(got);
            if is == 0 {
                foreign += got;
            } else {
                duplicated += got.saturating_sub(is);
            }
        }
        // The order is only compared if the events are the same.
        let in_order = lost + duplicated + foreign > 0 || consumer.events == etcd.events;
        Difference {
            lost,
            duplicated,
            foreign,
            in_order,
            same_hash: consumer.hash == etcd.hash,
            same_state: (consumer.state, consumer.objects) == (etcd.state, etcd.objects),
            resyncs: consumer.resyncs,
        }
    }

    pub(crate) fn is_none(&self) -> bool {
        *self
            == Difference {
                lost: 0,
                duplicated: 0,
                foreign: 0,
                in_order: true,
                same_hash: true,
                same_state: true,
                resyncs: 0,
            }
    }
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "lost {}, duplicated {}, resyncs {}", self.lost, self.duplicated, self.resyncs)?;
        if self.foreign > 0 {
            write!(f, ", {} events that etcd does not have", self.foreign)?;
        }
        for (wrong, what) in [
            (!self.in_order, "out of order"),
            (!self.same_hash, "running hash differs"),
            (!self.same_state, "state differs from etcd's list"),
        ] {
            if wrong {
                write!(f, ", {what}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(events: &[u64]) -> History {
        let mut history = History { start: 1, hash: Fnv::default().0, ..History::default() };
        let mut running = Fnv::default();
        for &revision in events {
            history.add(&mut running, revision, hash::ADDED, b"k", Some(b"v"));
        }
        history
    }

    #[test]
    fn the_same_is_no_difference() {
        assert!(Difference::of(&history(&[2, 3, 4]), &history(&[2, 3, 4])).is_none());
    }

    #[test]
    fn each_fault_is_seen() {
        let etcd = history(&[2, 3, 4, 5]);
        let of = |events: &[u64]| Difference::of(&history(events), &etcd);
        let lost = of(&[2, 4, 5]);
        assert_eq!((lost.lost, lost.duplicated, lost.foreign, lost.same_hash), (1, 0, 0, false));
        let duplicated = of(&[2, 3, 3, 4, 5]);
        assert_eq!((duplicated.lost, duplicated.duplicated, duplicated.foreign), (0, 1, 0));
        let foreign = of(&[2, 3, 4, 5, 6]);
        assert_eq!((foreign.lost, foreign.duplicated, foreign.foreign), (0, 0, 1));
        let turned = of(&[3, 2, 4, 5]);
        assert_eq!((turned.lost, turned.duplicated, turned.in_order, turned.same_hash), (0, 0, false, false));
        for wrong in [lost, duplicated, foreign, turned] {
            assert!(!wrong.is_none(), "{wrong}");
        }
        let state = History { state: 7, ..etcd.clone() };
        assert!(!Difference::of(&state, &etcd).is_none());
        let resynced = History { resyncs: 1, ..etcd.clone() };
        assert!(!Difference::of(&resynced, &etcd).is_none());
    }
}
