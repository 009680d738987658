//! The feeder's position in etcd's history, and the evidence that the history is still the same.
//!
//! Only two things move the resume point: the revision of an applied event, and a progress notification. The header
//! of a message with events never does (it names the store's revision, which may be far ahead), and neither does
//! time.
//! The life of an [`Evidence`]: it is made from a listing, or from the last event of a revision when that was
//! applied; it replaces the previous evidence as a whole; and it is read again after a reconnect (`history`).
//! docs/internals/feeder.md has a worked example.

use super::connect::Header;
use super::integrity::{Live, is_delete};
use super::list::Listing;
use etcd_client::proto::{PbEvent, PbKeyValue};
use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};

/// The content of etcd at the evidence's revision.
#[derive(Clone, Debug)]
pub(super) enum Held {
    /// A listing: the number of keys, and the newest key-value.
    Listing { count: u64, newest: Option<PbKeyValue> },
    /// A put.
    Put(PbKeyValue),
    /// A deleted key, and the numbers of its last value.
    Deletion { key: Vec<u8>, before: Live },
}

/// The newest applied item and its revision, in one value so that both are always of the same moment. After a
/// reconnect, etcd must still hold that item.
#[derive(Clone, Debug)]
pub(super) struct Evidence {
    revision: u64,
    held: Held,
}

impl Evidence {
    fn of_listing(listing: &Listing) -> Evidence {
        let held = Held::Listing { count: listing.count, newest: listing.newest.clone() };
        Evidence { revision: listing.revision, held }
    }

    /// Evidence from the last event of a revision; `before` is the live value that the event replaced or deleted.
    /// `None` for events that [`super::integrity::check`] refuses: one without a key, or a deletion of a missing key.
    pub(super) fn of_event(event: PbEvent, before: Option<Live>) -> Option<Evidence> {
        let deletes = is_delete(&event) == Some(true);
        let kv = event.kv?;
        let revision = kv.mod_revision.max(0) as u64;
        let held = if deletes { Held::Deletion { key: kv.key, before: before? } } else { Held::Put(kv) };
        Some(Evidence { revision, held })
    }

    /// The revision at which etcd held the item.
    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    pub(super) fn held(&self) -> &Held {
        &self.held
    }
}

/// A position in one history of etcd.
#[derive(Clone, Debug)]
pub(super) struct Resume {
    /// Everything up to and including this revision was applied: the evidence's revision, or a progress
    /// notification's.
    point: u64,
    evidence: Evidence,
    /// While the point is below this revision, the feeder replays a requested history and is never "too far behind".
    replay_until: u64,
    /// The cluster of the history; 0 while no answer has named it.
    cluster: u64,
    /// The last applied revisions, each with a digest of its events.
    recent: VecDeque<(u64, u64)>,
}

/// How many past revisions are recognized when they come again.
const RECENT: usize = 1000;

/// A digest of the events of a revision: their kinds, keys and numbers, without the values.
pub(super) fn digest(run: &[PbEvent]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for event in run {
        event.r#type.hash(&mut hasher);
        if let Some(kv) = &event.kv {
            (&kv.key, kv.create_revision, kv.mod_revision, kv.version, kv.lease).hash(&mut hasher);
        }
    }
    hasher.finish()
}

/// How a revision from the stream relates to the applied ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Order {
    /// Above everything that was applied.
    Next,
    /// At or below the last applied: a repetition.
    Repeated,
    /// Below a revision that a progress notification called complete: another history.
    BelowProgress,
}

impl Resume {
    /// The position after a listing; `replays` if the listing was asked for at an older revision than the newest. A
    /// listing that names no cluster is taken to be of the previous cluster.
    pub(super) fn listed(listing: &Listing, replays: bool, before: Option<&Resume>) -> Resume {
        let cluster = listing.header.cluster;
        Resume {
            point: listing.revision,
            evidence: Evidence::of_listing(listing),
            replay_until: if replays { listing.header.revision } else { 0 },
            cluster: if cluster == 0 { before.map_or(0, |before| before.cluster) } else { cluster },
            recent: VecDeque::new(),
        }
    }

    /// Records an applied revision whose events have this digest.
    pub(super) fn applied(&mut self, evidence: Evidence, digest: u64) {
        self.point = evidence.revision;
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back((evidence.revision, digest));
        self.evidence = evidence;
    }

    /// Whether this revision was applied with events of this digest.
    pub(super) fn is_repeated(&self, revision: u64, digest: u64) -> bool {
        let found = self.recent.binary_search_by_key(&revision, |(revision, _)| *revision);
        found.is_ok_and(|at| self.recent[at].1 == digest)
    }

    /// Takes the cluster from an answer of the same history, if no answer has named it before.
    pub(super) fn is_of_cluster(&mut self, header: &Header) {
        if self.cluster == 0 {
            self.cluster = header.cluster;
        }
    }

    /// Whether this revision lies below the point.
    pub(super) fn is_above(&self, revision: u64) -> bool {
        revision < self.point
    }

    /// Moves the point to a progress notification that is not below it.
    pub(super) fn progressed(&mut self, revision: u64) {
        self.point = self.point.max(revision);
    }

    /// Whether a listing cannot be of the same history.
    pub(super) fn is_refuted_by(&self, listing: &Listing) -> bool {
        self.is_above(listing.revision) || self.is_of_another_cluster(&listing.header)
    }

    pub(super) fn is_of_another_cluster(&self, header: &Header) -> bool {
        header.cluster != 0 && self.cluster != 0 && header.cluster != self.cluster
    }

    /// How a revision from the stream relates to the applied ones.
    pub(super) fn order(&self, revision: u64) -> Order {
        if revision <= self.evidence.revision {
            Order::Repeated
        } else if revision <= self.point {
            Order::BelowProgress
        } else {
            Order::Next
        }
    }

    /// Everything up to and including this revision was applied.
    pub(super) fn point(&self) -> u64 {
        self.point
    }

    /// The first revision to watch: the one after the last event. A later point from progress is not used: in the
    /// same history there are no events in between, and in another history those events reveal it.
    pub(super) fn watch_from(&self) -> u64 {
        self.evidence.revision + 1
    }

    /// How many revisions a watch would replay to reach `newest`.
    pub(super) fn behind(&self, newest: u64) -> u64 {
        newest.saturating_sub(self.evidence.revision)
    }

    /// Whether the feeder still replays a requested history.
    pub(super) fn replays(&self) -> bool {
        self.point < self.replay_until
    }

    /// The revision at which the replay ends, while it lasts.
    pub(super) fn replays_to(&self) -> Option<u64> {
        Some(self.replay_until).filter(|_| self.replays())
    }

    pub(super) fn evidence(&self) -> &Evidence {
        &self.evidence
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(revision: u64, newest: u64) -> Listing {
        Listing::for_tests(Header { revision: newest, cluster: 1, member: 0 }, revision)
    }

    fn at(revision: u64) -> Resume {
        Resume::listed(&listing(revision, revision), false, None)
    }

    fn put(revision: i64) -> PbEvent {
        let kv = PbKeyValue { key: b"/a".to_vec(), mod_revision: revision, ..Default::default() };
        PbEvent { r#type: 0, kv: Some(kv), prev_kv: None }
    }

    fn applies(resume: &mut Resume, revision: i64) {
        resume.applied(Evidence::of_event(put(revision), None).unwrap(), digest(&[put(revision)]));
    }

    #[test]
    fn events_and_progress_move_the_point() {
        let mut resume = at(10);
        assert_eq!((resume.point(), resume.watch_from()), (10, 11));
        applies(&mut resume, 12);
        assert_eq!((resume.point(), resume.watch_from()), (12, 13));
        resume.progressed(20);
        assert_eq!(resume.point(), 20);
    }

    #[test]
    fn after_progress_the_watch_begins_after_the_last_event() {
        let mut resume = at(10);
        applies(&mut resume, 12);
        resume.progressed(500);
        assert_eq!(resume.watch_from(), 13);
        assert_eq!(resume.behind(600), 588);
    }

    #[test]
    fn progress_below_is_not_taken() {
        let mut resume = at(10);
        assert!(resume.is_above(9));
        resume.progressed(9);
        assert_eq!(resume.point(), 10);
        assert!(!resume.is_above(10), "the same again is fine");
    }

    #[test]
    fn the_order_of_what_comes() {
        let mut resume = at(10);
        applies(&mut resume, 12);
        resume.progressed(20);
        assert_eq!(resume.order(12), Order::Repeated);
        assert_eq!(resume.order(13), Order::BelowProgress);
        assert_eq!(resume.order(20), Order::BelowProgress);
        assert_eq!(resume.order(21), Order::Next);
    }

    #[test]
    fn a_replay_ends_where_it_was_asked_to() {
        let mut resume = Resume::listed(&listing(10, 30), true, None);
        assert!(resume.replays());
        applies(&mut resume, 29);
        assert!(resume.replays());
        resume.progressed(30);
        assert!(!resume.replays());
        assert!(!at(10).replays());
    }

    #[test]
    fn a_listing_that_goes_back_refutes() {
        let resume = at(10);
        assert!(resume.is_refuted_by(&listing(9, 9)));
        assert!(!resume.is_refuted_by(&listing(10, 10)));
        let other = Header { revision: 20, cluster: 2, member: 0 };
        assert!(resume.is_refuted_by(&Listing::for_tests(other, 20)));
    }

    #[test]
    fn evidence_has_its_events_revision() {
        let before = Live { create: 3, modified: 11, version: 4 };
        let mut resume = at(10);
        assert!(matches!((resume.evidence().revision(), resume.evidence().held()), (10, Held::Listing { .. })));
        applies(&mut resume, 11);
        let evidence = resume.evidence();
        assert!(matches!((evidence.revision(), evidence.held()), (11, Held::Put(kv)) if kv.mod_revision == 11));
        let delete = PbEvent { r#type: 1, ..put(12) };
        resume.applied(Evidence::of_event(delete, Some(before)).unwrap(), 0);
        let evidence = resume.evidence();
        assert!(
            matches!((evidence.revision(), evidence.held()), (12, Held::Deletion { before: of, .. }) if *of == before)
        );
        assert!(Evidence::of_event(PbEvent::default(), None).is_none());
    }

    #[test]
    fn applied_revisions_are_recognized() {
        let mut resume = at(10);
        let newest = 12 + RECENT as i64;
        for revision in 11..=newest {
            applies(&mut resume, revision);
        }
        let knows = |revision: i64, run: &[PbEvent]| resume.is_repeated(revision as u64, digest(run));
        assert!(knows(newest, &[put(newest)]) && knows(13, &[put(13)]));
        assert!(!knows(newest, &[put(newest), put(newest)]), "other events");
        assert!(!knows(12, &[put(12)]), "too long ago");
    }

    #[test]
    fn unnamed_cluster_is_the_known_one() {
        let named = |cluster| Header { cluster, revision: 10, ..Header::default() };
        let of = |cluster| Listing::for_tests(named(cluster), 10);
        let mut resume = Resume::listed(&of(0), false, None);
        assert!(!resume.is_of_another_cluster(&named(1)));
        resume.is_of_cluster(&named(1));
        assert!(!resume.is_of_another_cluster(&named(0)) && resume.is_of_another_cluster(&named(2)));
        let next = Resume::listed(&of(0), false, Some(&resume));
        assert!(next.is_of_another_cluster(&named(2)), "it is known still");
    }
}
