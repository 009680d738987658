//! Watches for controllers: what kube-rs users know, with deletions delivered.

use crate::fakes::all;
use crate::script::Server;
use std::borrow::Cow;
use std::task::Poll;
use watchcore::{Cache, Change, KeyValue};
use watchcore_toolkit::{
    Action, Broadcaster, Keyed, Object, ObjectWatch, Predicate, PredicateExt, Status, Watch, WatchEvent, WatchExt,
    WhenFull, predicates,
};

#[derive(Clone, PartialEq, Eq, Debug)]
struct Pod {
    name: String,
    uid: u64,
    revision: u64,
    generation: Option<u64>,
    labels: &'static str,
}

impl Keyed for Pod {
    fn object_key(&self) -> Cow<'_, [u8]> {
        self.name.as_bytes().into()
    }

    fn object_revision(&self) -> u64 {
        self.revision
    }

    fn object_identity(&self) -> u64 {
        self.uid
    }
}

fn pod(name: &str, revision: u64, generation: u64) -> Pod {
    Pod { name: name.to_owned(), uid: 1, revision, generation: Some(generation), labels: "" }
}

fn generation() -> impl Predicate<Pod> {
    predicates::by(|pod: &Pod| pod.generation)
}

fn watch_of(events: Vec<WatchEvent<Pod>>) -> impl Watch<Object = Pod, Item = WatchEvent<Pod>> {
    Server::new([]).watch_of(events, false)
}

/// The events that a watch gives until its end, as names and revisions of their objects.
fn given(mut watch: impl Watch<Object = Pod, Item = WatchEvent<Pod>>) -> Vec<(&'static str, u64)> {
    let mut events = Vec::new();
    while let Poll::Ready(Some(event)) = watch.try_recv() {
        events.push((event.name(), event.object().map_or(0, |pod| pod.revision)));
    }
    events
}

fn modified(pod: Pod) -> WatchEvent<Pod> {
    WatchEvent::modified(None, pod)
}

#[test]
fn kr_01_predicate_filter_passes_changes_only() {
    let events = vec![
        WatchEvent::added(pod("a", 1, 1)),
        modified(pod("a", 2, 1)),
        modified(pod("a", 3, 1)),
        WatchEvent::added(pod("b", 4, 1)),
        modified(pod("a", 5, 2)),
    ];
    let expected = [("ADDED", 1), ("ADDED", 4), ("MODIFIED", 5)];
    assert_eq!(given(watch_of(events).predicate_filter(generation())), expected);
}

/// Over a broadcaster with a function for keys: object by object. The numbers of a prefix are not taken for the log's.
#[test]
fn kr_01_predicate_filter_over_a_broadcaster() {
    let broadcaster = Broadcaster::builder(10, WhenFull::Wait).keys(|pod: &Pod| pod.name.clone()).build().unwrap();
    let open = || broadcaster.with_prefix([WatchEvent::added(pod("a", 1, 1))]).unwrap();
    let mut changed = open().predicate_filter(predicates::by(|pod: &Object<Pod>| pod.generation));
    let mut each = open().predicate_filter(predicates::revision());
    for (action, pod) in [
        (Action::Added, pod("a", 2, 1)),
        (Action::Added, pod("b", 3, 1)),
        (Action::Modified, pod("b", 4, 1)),
        (Action::Modified, pod("a", 5, 2)),
    ] {
        broadcaster.action(action, pod).unwrap();
    }
    broadcaster.shutdown();
    let revisions = |events: Vec<WatchEvent<Object<Pod>>>| -> Vec<u64> {
        events.iter().map(|event| event.object().unwrap().revision).collect()
    };
    assert_eq!(revisions(all(&mut changed)), [1, 3, 5]);
    assert_eq!(revisions(all(&mut each)), [1, 2, 3, 4, 5]);
}

/// An object without the property passes each time.
#[test]
fn kr_02_absent_property_passes() {
    let without = |revision| Pod { generation: None, ..pod("a", revision, 0) };
    let events =
        vec![WatchEvent::added(without(1)), modified(without(2)), modified(pod("a", 3, 1)), modified(without(4))];
    let expected = [("ADDED", 1), ("MODIFIED", 2), ("MODIFIED", 3), ("MODIFIED", 4)];
    assert_eq!(given(watch_of(events).predicate_filter(generation())), expected);
}

/// Made again with the same generation: another object, also where its deletion was not seen.
#[test]
fn kr_03_object_made_again_is_another() {
    let again = |revision| Pod { uid: 2, ..pod("a", revision, 1) };
    let seen =
        vec![WatchEvent::added(pod("a", 1, 1)), WatchEvent::deleted(pod("a", 1, 1)), WatchEvent::added(pod("a", 3, 1))];
    assert_eq!(given(watch_of(seen).predicate_filter(generation())).len(), 3);
    let unseen = vec![WatchEvent::added(pod("a", 1, 1)), modified(again(3)), modified(again(4))];
    assert_eq!(given(watch_of(unseen).predicate_filter(generation())), [("ADDED", 1), ("MODIFIED", 3)]);
}

#[test]
fn kr_04_combine_and_fallback() {
    let labels = || predicates::by(|pod: &Pod| Some(pod.labels));
    let labelled = |revision, labels| Pod { labels, ..pod("a", revision, 1) };
    let events = || vec![WatchEvent::added(labelled(1, "x")), modified(labelled(2, "y")), modified(labelled(3, "y"))];
    assert_eq!(
        given(watch_of(events()).predicate_filter(generation().combine(labels()))),
        [("ADDED", 1), ("MODIFIED", 2)]
    );
    assert_eq!(given(watch_of(events()).predicate_filter(generation().fallback(labels()))), [("ADDED", 1)]);
    let none = || predicates::by(|_: &Pod| None::<u64>);
    assert_eq!(given(watch_of(events()).predicate_filter(none().fallback(labels()))), [("ADDED", 1), ("MODIFIED", 2)]);
    assert_eq!(given(watch_of(events()).predicate_filter(none().combine(none()))).len(), 3);
}

#[test]
fn kr_05_applied_and_touched() {
    let events = || {
        vec![
            WatchEvent::added(pod("a", 1, 1)),
            WatchEvent::synced(),
            modified(pod("a", 2, 2)),
            WatchEvent::deleted(pod("a", 2, 2)),
            WatchEvent::bookmark(9),
            WatchEvent::error(Status::new(410, "gone")),
        ]
    };
    assert_eq!(given(watch_of(events()).applied()), [("ADDED", 1), ("MODIFIED", 2), ("ERROR", 0)]);
    assert_eq!(given(watch_of(events()).touched()), [("ADDED", 1), ("MODIFIED", 2), ("DELETED", 2), ("ERROR", 0)]);
}

/// What an event that was left out had lost is said with the next one.
#[test]
fn ft_58_lost_survives_what_is_left_out() {
    let events = vec![WatchEvent::bookmark(4).with_lost(3), WatchEvent::added(pod("a", 5, 1)).with_lost(1)];
    assert_eq!(watch_of(events).touched().try_recv().map(|event| event.unwrap().lost), Poll::Ready(4));
    let events = vec![
        WatchEvent::added(pod("a", 1, 1)),
        modified(pod("a", 2, 1)).with_origin(watchcore_toolkit::Origin::Difference).with_lost(7),
        modified(pod("a", 3, 2)),
    ];
    let mut watch = watch_of(events).predicate_filter(generation());
    assert!(watch.try_recv().is_ready());
    assert_eq!(watch.try_recv().map(|event| event.unwrap().lost), Poll::Ready(7));
}

/// Each revision of an object once, also where a watch gives it again.
#[test]
fn kr_09_revision_predicate_leaves_out_repeats() {
    let events = vec![WatchEvent::added(pod("a", 1, 1)), WatchEvent::added(pod("a", 1, 1)), modified(pod("a", 2, 1))];
    assert_eq!(given(watch_of(events).predicate_filter(predicates::revision())), [("ADDED", 1), ("MODIFIED", 2)]);
}

#[test]
fn kr_10_stop_reaches_the_source() {
    let server = Server::<Pod>::new([]);
    let mut watch = server.watch_of(vec![], true).touched().predicate_filter(generation());
    assert!(watch.try_recv().is_pending());
    watch.stop();
    assert_eq!(watch.try_recv(), Poll::Ready(None));
}

/// Objects that come and go leave nothing behind: the original keeps each for an hour.
#[test]
fn fault_predicate_filter_forgets_the_deleted() {
    let mut events = Vec::new();
    for round in 0..100_000u64 {
        let object = pod(&format!("pod-{round}"), round + 1, 1);
        events.push(WatchEvent::added(object.clone()));
        events.push(WatchEvent::deleted(object));
    }
    let mut watch = watch_of(events).predicate_filter(generation());
    while let Poll::Ready(Some(_)) = watch.try_recv() {
        assert!(watch.known() <= 1);
    }
    assert_eq!(watch.known(), 0);
}

/// Where a watch has skipped events it may have skipped deletions: what is known of before is not trusted.
#[test]
fn fault_predicate_filter_forgets_after_a_gap() {
    let events = vec![
        WatchEvent::added(pod("a", 1, 1)),
        WatchEvent::added(pod("b", 9, 1)).with_lost(5),
        modified(pod("a", 10, 1)),
    ];
    let mut watch = watch_of(events).predicate_filter(generation());
    assert_eq!(
        [(); 3].map(|()| watch.try_recv().map(|event| event.unwrap().name())),
        ["ADDED", "ADDED", "MODIFIED"].map(Poll::Ready)
    );
    assert_eq!(watch.known(), 2);
}

/// Deletions are dispatched: the original's shared readers never see one.
#[test]
fn fault_deletes_are_delivered() {
    let cache = Cache::builder("/").build().unwrap();
    let mut writer = cache.writer().unwrap();
    writer.apply(1, [Change::put("/a", "1")]).unwrap();
    let mut watch = ObjectWatch::<KeyValue>::open(&cache).unwrap().touched().predicate_filter(predicates::value());
    assert!(watch.try_recv().is_ready());
    writer.apply(2, [Change::put("/a", "1")]).unwrap();
    writer.apply(3, [Change::delete("/a")]).unwrap();
    match watch.try_recv() {
        Poll::Ready(Some(event)) => {
            assert_eq!((event.name(), event.object().unwrap().value_str()), ("DELETED", Some("1")))
        }
        other => panic!("{other:?}"),
    }
}
