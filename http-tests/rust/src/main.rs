//! kube-rs as a client of `watchcore serve`: `kube-client URL` watches the test's two resources in each way that kube-rs
//! has, and prints what it is told.
//!
//! A line is a JSON object with the name of a log and an entry, as the tests in Go read them: `list` with the revision of
//! each object, when a state is complete; `event`, APPLIED or DELETED. kube-rs does not tell the revision of a list, nor
//! whether an object is new.
//!
//! Each line of standard input asks for the states of the stores, which come as entries of kind `state`. The program ends
//! when its input does.

#![forbid(unsafe_code)]

use futures::future::select_all;
use futures::{FutureExt, Stream, StreamExt};
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, PartialObjectMeta};
#[expect(deprecated, reason = "see main")]
use kube::runtime::metadata_watcher;
use kube::runtime::reflector::{self, Store};
use kube::runtime::watcher::{Config, Event, Result as Watched};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource};
use serde_json::{Map, Value, json};
use std::error::Error;
use std::pin::pin;
use tokio::io::{AsyncBufReadExt, BufReader, stdin};

/// The watched resources: the plural and the kind.
const RESOURCES: [(&str, &str); 2] = [("widgets", "Widget"), ("gizmos", "Gizmo")];

fn resource(plural: &str, kind: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("matrix.test", "v1", kind), plural)
}

/// plural/namespace/name or plural/name, and the revision.
fn place<K: Resource>(plural: &str, object: &K) -> (String, i64) {
    let metadata = object.meta();
    let name = metadata.name.as_deref().unwrap_or_default();
    let revision = metadata.resource_version.as_deref().unwrap_or_default().parse().unwrap_or(-1);
    match &metadata.namespace {
        Some(namespace) => (format!("{plural}/{namespace}/{name}"), revision),
        None => (format!("{plural}/{name}"), revision),
    }
}

fn print(log: &str, entry: Value) {
    println!("{}", json!({ "log": log, "entry": entry }));
}

/// Prints what a watcher says, as long as it says something.
async fn follow<K: Resource>(log: String, plural: &str, events: impl Stream<Item = Watched<Event<K>>>) {
    let mut events = pin!(events);
    let mut initial = Map::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => initial.clear(),
            Ok(Event::InitApply(object)) => {
                let (key, revision) = place(plural, &object);
                initial.insert(key, revision.into());
            }
            Ok(Event::InitDone) => print(&log, json!({ "kind": "list", "items": std::mem::take(&mut initial) })),
            Ok(Event::Apply(object)) => happened(&log, "APPLIED", place(plural, &object)),
            Ok(Event::Delete(object)) => happened(&log, "DELETED", place(plural, &object)),
            // The watcher tries again by itself.
            Err(error) => eprintln!("{log}: {error}"),
        }
    }
}

fn happened(log: &str, kind: &str, (key, revision): (String, i64)) {
    print(log, json!({ "kind": "event", "type": kind, "key": key, "revision": revision }));
}

/// Prints each store whenever a line of input asks for it, until the input ends.
async fn answer(stores: Vec<(String, &str, Store<DynamicObject>)>) {
    let mut lines = BufReader::new(stdin()).lines();
    while let Ok(Some(_)) = lines.next_line().await {
        for (log, plural, store) in &stores {
            let items: Map<String, Value> = store
                .state()
                .iter()
                .map(|object| place(plural, object.as_ref()))
                .map(|(key, revision)| (key, revision.into()))
                .collect();
            print(log, json!({ "kind": "state", "items": items }));
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).ok_or("usage: kube-client URL")?;
    let client = Client::try_from(kube::Config::new(url.parse()?))?;
    let mut all = Vec::new();
    let mut stores = Vec::new();
    for (plural, kind) in RESOURCES {
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource(plural, kind));
        let writer = reflector::store::Writer::new(resource(plural, kind));
        stores.push((format!("reflector {plural}"), plural, writer.as_reader()));
        let paged = Config::default().page_size(97);
        let streamed = Config::default().streaming_lists();

        let reflected = reflector::reflector(writer, watcher(api.clone(), paged.clone()).default_backoff());
        all.push(follow(format!("reflector {plural}"), plural, reflected).boxed_local());
        let events = watcher(api.clone(), streamed.clone()).default_backoff();
        all.push(follow(format!("streaming {plural}"), plural, events).boxed_local());
        #[expect(deprecated, reason = "programs still have it, and it asks in a way of its own")]
        let events = metadata_watcher(api, paged).default_backoff();
        all.push(
            follow::<PartialObjectMeta<DynamicObject>>(format!("metadata {plural}"), plural, events).boxed_local(),
        );
        let metadata: Api<PartialObjectMeta<DynamicObject>> = Api::all_with(client.clone(), &resource(plural, kind));
        let events = watcher(metadata, streamed).default_backoff();
        all.push(follow(format!("streaming metadata {plural}"), plural, events).boxed_local());
    }
    all.push(answer(stores).boxed_local());
    // A watcher never ends; the input does.
    select_all(all).await;
    Ok(())
}
