//! Where the feeder stands in etcd's history, and what proves that the history is still the same.
//!
//! The resume point moves by two things only: the revision of an applied event, and a progress
//! notification. Never by the header of a message with events (it is the store's revision, which
//! may be far ahead), and never by time.

use super::integrity::is_delete;
use etcd_client::proto::{PbEvent, PbKeyValue};

/// The newest thing that was applied. After a reconnect etcd must still hold it.
#[derive(Clone, Debug)]
pub(super) enum Evidence {
    /// A listing: how many keys, and the newest of them.
    Listing { count: u64, newest: Option<Box<PbKeyValue>> },
    /// A put.
    Put(Box<PbKeyValue>),
    /// A deletion, with the numbers of the value that went: (create, modified, version).
    Delete { key: Vec<u8>, revision: u64, before: (u64, u64, u64) },
}

/// A place in one history of etcd.
#[derive(Clone, Debug)]
pub(super) struct Resume {
    /// Everything up to and with it was applied.
    point: u64,
    /// The last revision with events that were applied, or the listing's.
    firm: u64,
    /// The newest thing applied.
    evidence: Evidence,
    /// While the point is below, the feeder replays on request: there is no "too far behind".
    replay_until: u64,
    /// Whose history it is.
    cluster: u64,
}

/// What a revision that came on the stream is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Order {
    /// Above all that was applied.
    Next,
    /// At or below the last applied: a repetition.
    Repeated,
    /// Below what a progress notification had called complete: another history.
    BelowProgress,
}

impl Resume {
    /// After a listing at `revision`; `replay_until` is 0, or the newest revision where the listing
    /// was asked at an older one.
    pub(super) fn listed(
        revision: u64,
        cluster: u64,
        count: u64,
        newest: Option<PbKeyValue>,
        replay_until: u64,
    ) -> Self {
        let evidence = Evidence::Listing { count, newest: newest.map(Box::new) };
        Resume { point: revision, firm: revision, evidence, replay_until, cluster }
    }

    /// After the events of `revision` were applied.
    pub(super) fn applied(&mut self, revision: u64) {
        self.point = revision;
        self.firm = revision;
    }

    /// The last event of those applied; `before` are the numbers of the value that it deleted.
    pub(super) fn proved_by(&mut self, event: PbEvent, before: (u64, u64, u64)) {
        let deleted = is_delete(&event) == Some(true);
        let Some(kv) = event.kv else { return };
        self.evidence = if deleted {
            Evidence::Delete { key: kv.key, revision: kv.mod_revision.max(0) as u64, before }
        } else {
            Evidence::Put(Box::new(kv))
        };
    }

    /// After a progress notification; false if it lies below what was applied.
    pub(super) fn progressed(&mut self, revision: u64) -> bool {
        if revision < self.point {
            return false;
        }
        self.point = revision;
        true
    }

    /// What a revision on the stream is.
    pub(super) fn order(&self, revision: u64) -> Order {
        if revision <= self.firm {
            Order::Repeated
        } else if revision <= self.point {
            Order::BelowProgress
        } else {
            Order::Next
        }
    }

    /// Everything up to and with it was applied.
    pub(super) fn point(&self) -> u64 {
        self.point
    }

    /// The first revision to watch from: the one after the last event. A point from progress is
    /// not taken: in the same history nothing lies between, in another one this is what shows it.
    pub(super) fn watch_from(&self) -> u64 {
        self.firm + 1
    }

    /// How many revisions a watch would replay.
    pub(super) fn behind(&self, newest: u64) -> u64 {
        newest.saturating_sub(self.firm)
    }

    /// Whether the feeder still replays a history that was asked for.
    pub(super) fn replays(&self) -> bool {
        self.point < self.replay_until
    }

    pub(super) fn evidence(&self) -> &Evidence {
        &self.evidence
    }

    /// The revision of the listing, where the evidence is one.
    pub(super) fn firm(&self) -> u64 {
        self.firm
    }

    pub(super) fn cluster(&self) -> u64 {
        self.cluster
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(revision: u64) -> Resume {
        Resume::listed(revision, 1, 0, None, 0)
    }

    fn put(revision: i64) -> PbEvent {
        let kv = PbKeyValue { key: b"/a".to_vec(), mod_revision: revision, ..Default::default() };
        PbEvent { r#type: 0, kv: Some(kv), prev_kv: None }
    }

    #[test]
    fn events_and_progress_move_the_point() {
        let mut resume = at(10);
        assert_eq!((resume.point(), resume.watch_from()), (10, 11));
        resume.applied(12);
        assert_eq!((resume.point(), resume.watch_from()), (12, 13));
        assert!(resume.progressed(20));
        assert_eq!(resume.point(), 20);
    }

    #[test]
    fn after_progress_the_watch_begins_behind_the_last_event() {
        let mut resume = at(10);
        resume.applied(12);
        resume.progressed(500);
        assert_eq!(resume.watch_from(), 13);
        assert_eq!(resume.behind(600), 588);
    }

    #[test]
    fn progress_below_is_not_taken() {
        let mut resume = at(10);
        assert!(!resume.progressed(9));
        assert_eq!(resume.point(), 10);
        assert!(resume.progressed(10), "the same again is fine");
    }

    #[test]
    fn the_order_of_what_comes() {
        let mut resume = at(10);
        resume.applied(12);
        resume.progressed(20);
        assert_eq!(resume.order(12), Order::Repeated);
        assert_eq!(resume.order(13), Order::BelowProgress);
        assert_eq!(resume.order(20), Order::BelowProgress);
        assert_eq!(resume.order(21), Order::Next);
    }

    #[test]
    fn a_replay_ends_where_it_was_asked_to() {
        let mut resume = Resume::listed(10, 1, 0, None, 30);
        assert!(resume.replays());
        resume.applied(29);
        assert!(resume.replays());
        resume.progressed(30);
        assert!(!resume.replays());
        assert!(!at(10).replays());
    }

    #[test]
    fn the_newest_event_is_the_evidence() {
        let mut resume = at(10);
        resume.proved_by(put(11), (0, 0, 0));
        assert!(matches!(resume.evidence(), Evidence::Put(kv) if kv.mod_revision == 11));
        let delete = PbEvent { r#type: 1, ..put(12) };
        resume.proved_by(delete, (3, 11, 4));
        assert!(matches!(resume.evidence(), Evidence::Delete { revision: 12, before: (3, 11, 4), .. }));
    }
}
