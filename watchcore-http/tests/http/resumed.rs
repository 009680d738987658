//! Clients whose connection breaks inside a revision of several objects, and that resume after their last event: rows
//! HW-40 to HW-43 of docs/HTTP.md.

use crate::support::client::Watching;
use crate::support::ground::{SHOP, WIDGETS, node, node_key, widget, widget_key};
use crate::support::{Ground, get};
use crate::websocket::{next_event, open};
use std::collections::BTreeMap;
use watchcore::raw::TestBuilder as _;
use watchcore::{Change, Record, ResyncReason};

/// Everything, and selections that the changes move objects into and out of.
const SELECTIONS: [(&str, &str); 5] = [
    (WIDGETS, ""),
    (SHOP, ""),
    (WIDGETS, "&labelSelector=app%3Dred"),
    (WIDGETS, "&fieldSelector=spec.color%21%3Dred"),
    (SHOP, "&fieldSelector=metadata.name%3Da1"),
];

/// Returns the name of widget number `at`: `a0`, `a1` and so on, in the namespaces shop and farm.
fn name(at: usize) -> String {
    format!("{}/a{at}", if at.is_multiple_of(3) { "farm" } else { "shop" })
}

/// Writes one revision that puts each widget with its color, or deletes it.
fn transaction(ground: &Ground, widgets: &[(String, Option<&str>)]) -> u64 {
    let all: Vec<_> =
        widgets.iter().map(|(name, color)| (widget_key(name), color.map(|c| widget(name, c).to_string()))).collect();
    let changes = all.iter().map(|(key, value)| match value {
        Some(value) => Change::put(key.as_bytes(), value.as_bytes()),
        None => Change::delete(key.as_bytes()),
    });
    ground.apply(&changes.collect::<Vec<_>>())
}

/// Writes red and blue widgets, then a revision of 20 objects that creates, changes, recolors and deletes some; returns
/// it.
fn write(ground: &Ground) -> u64 {
    for at in 0..16 {
        ground.put_widget(&name(at), if at.is_multiple_of(2) { "red" } else { "blue" });
    }
    let change = |at: usize| {
        (
            name(at),
            match at % 4 {
                _ if at >= 16 => Some(if at == 17 { "red" } else { "white" }),
                0 => None,
                1 => Some("red"),
                2 => Some("blue"),
                _ => Some("black"),
            },
        )
    };
    transaction(ground, &(0..20).map(change).collect::<Vec<_>>())
}

async fn watch(ground: &Ground, (path, selector): (&str, &str), revision: u64) -> Watching {
    Watching::open(ground.address, &format!("{path}?watch=1&resourceVersion={revision}{selector}")).await
}

/// Applies an event of the form `TYPE name@revision` to a client's state.
fn apply_event(known: &mut BTreeMap<String, String>, event: &str) {
    let (kind, object) = event.split_once(' ').expect("a type");
    let (name, revision) = object.split_once('@').expect("a revision");
    match kind {
        "DELETED" => drop(known.remove(name)),
        _ => drop(known.insert(name.to_owned(), revision.to_owned())),
    }
}

async fn listed(ground: &Ground, (path, selector): (&str, &str)) -> BTreeMap<String, String> {
    let list = get(ground.address, &format!("{path}?{}", selector.trim_start_matches('&'))).await;
    let versions = list.json()["items"]
        .as_array()
        .expect("items")
        .iter()
        .map(|item| item["metadata"]["resourceVersion"].as_str().expect("a version").to_owned())
        .collect::<Vec<_>>();
    list.names().into_iter().zip(versions).collect()
}

/// A client that is cut off after any event of the revision, and resumes from that event's revision, ends with the
/// state of a list. A revision of several events is sent again whole; a single event is not.
#[tokio::test]
async fn client_cut_inside_a_revision_loses_nothing() {
    let ground = Ground::start().await;
    let revision = write(&ground);
    let mut counts = Vec::new();
    for selection in SELECTIONS {
        let mut whole = watch(&ground, selection, revision - 1).await;
        // Each selection sees this change, because the object was red.
        let next = ground.put_widget("shop/a1", "blue");
        let mut events = Vec::new();
        while events.last().is_none_or(|event: &String| !event.ends_with(&format!("@{}", next))) {
            events.push(whole.next_event().await);
        }
        let count = events.iter().filter(|event| event.ends_with(&format!("@{revision}"))).count();
        counts.push(count);
        let state = listed(&ground, selection).await;
        for cut in 1..=count {
            let mut known = BTreeMap::new();
            let mut before = watch(&ground, selection, revision - 1).await;
            for event in before.next_events(cut).await {
                apply_event(&mut known, &event);
            }
            drop(before);
            let rest = if count == 1 { &events[1..] } else { &events[..] };
            let again = watch(&ground, selection, revision).await.next_events(rest.len()).await;
            assert_eq!(again, rest, "{selection:?}, cut behind {cut} of {count}");
            again.iter().for_each(|event| apply_event(&mut known, event));
            let of_it = |known: &BTreeMap<String, String>| {
                known
                    .iter()
                    .filter(|(_, at)| at.parse::<u64>().unwrap() >= revision)
                    .map(|(n, _)| n.clone())
                    .collect::<Vec<_>>()
            };
            assert_eq!(of_it(&known), of_it(&state), "{selection:?}, cut behind {cut} of {count}");
        }
        ground.put_widget("shop/a1", "red");
    }
    assert!(counts[0] == 20 && counts.contains(&1) && counts[1..4].iter().all(|count| *count > 1), "{counts:?}");
    let mut socket = open(&ground, &format!("{WIDGETS}?watch=1&resourceVersion={revision}")).await;
    for _ in 0..20 {
        assert_eq!(next_event(&mut socket).await["object"]["metadata"]["resourceVersion"], revision.to_string());
    }
}

/// A client may resume at a server that is behind: it gets the whole revision when that server has reached it.
#[tokio::test]
async fn revision_that_is_to_come_is_given_whole() {
    let ground = Ground::start().await;
    let at = ground.put_widget("shop/a", "red");
    let (mut several, mut one) =
        (watch(&ground, SELECTIONS[0], at + 1).await, watch(&ground, SELECTIONS[0], at + 2).await);
    transaction(&ground, &[("shop/a".into(), None), ("shop/b".into(), Some("red"))]);
    ground.put_widget("shop/c", "red");
    ground.put_widget("shop/d", "red");
    let expected = ["DELETED shop/a@2", "ADDED shop/b@2", "ADDED shop/c@3", "ADDED shop/d@4"];
    assert_eq!(several.next_events(4).await, expected);
    assert_eq!(one.next_event().await, expected[3]);
}

/// A client that may have a part of a revision that has left the window gets 410.
#[tokio::test]
async fn revision_of_several_that_left_is_410() {
    let ground = Ground::builder().cache(|cache| cache.capacity(128).segment_slots(16)).start().await;
    let mut seen = Vec::new();
    for number in 0..300 {
        let before = ground.cache.oldest();
        let events = if ground.revision().is_multiple_of(3) { 4 } else { 1 };
        transaction(
            &ground,
            &(0..events).map(|at| (name(at), Some(if number % 2 == 0 { "red" } else { "blue" }))).collect::<Vec<_>>(),
        );
        let left = ground.cache.oldest() - 1;
        if ground.cache.oldest() == before || left == 0 {
            continue;
        }
        let several = (left - 1).is_multiple_of(3);
        let told = watch(&ground, SELECTIONS[0], left).await.next_event().await;
        assert_eq!(told == "ERROR 410 Expired", several, "behind {left}: {told}");
        seen.push(several);
    }
    assert!(seen.contains(&true) && seen.contains(&false));
}

/// A resync ends with the objects of its own revision, so a client that has one of them lacks at most the others.
#[tokio::test]
async fn objects_of_the_end_of_a_difference_come_again() {
    for (of_its_end, expected) in [
        (&["shop/c"][..], &["ADDED shop/z@41"][..]),
        (&["shop/c", "shop/d"], &["ADDED shop/c@40", "ADDED shop/d@40", "ADDED shop/z@41"]),
    ] {
        let ground = Ground::start().await;
        ground.put_widget("shop/a", "red");
        ground.put_node("n");
        let records: Vec<_> =
            of_its_end.iter().map(|name| (widget_key(name), widget(name, "red").to_string(), 40)).collect();
        let other = [
            (widget_key("shop/e"), widget("shop/e", "red").to_string(), 30),
            (node_key("n"), node("n").to_string(), 2),
        ];
        let records = records.iter().chain(&other).map(|(key, value, revision)| Record {
            key: key.as_bytes(),
            value: value.as_bytes(),
            create_revision: *revision,
            mod_revision: *revision,
            version: 1,
            lease: 0,
        });
        ground.writer().resync(40, records, ResyncReason::Compacted).unwrap();
        ground.put_widget("shop/z", "red");
        assert_eq!(watch(&ground, SELECTIONS[0], 40).await.next_events(expected.len()).await, expected);
    }
}
