//! kube-rs: the store of its reflector, fed by hand.

use super::{Informed, List, NAMESPACE, keys};
use crate::load::{Object, VALUE};
use kube_runtime::reflector::{self, Lookup, Store, store::Writer};
use kube_runtime::watcher::Event;
use std::borrow::Cow;
use std::hint::black_box;

/// What it looks at in an object is in its key: no object of Kubernetes, whose metadata would be measured.
#[derive(Clone)]
pub struct Pod(Object);

impl Lookup for Pod {
    type DynamicType = ();

    fn kind((): &()) -> Cow<'_, str> {
        "Pod".into()
    }
    fn group((): &()) -> Cow<'_, str> {
        "".into()
    }
    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }
    fn plural((): &()) -> Cow<'_, str> {
        "pods".into()
    }
    fn name(&self) -> Option<Cow<'_, str>> {
        let key = std::str::from_utf8(self.0.key()).expect("UTF-8");
        key.rsplit('/').next().map(Cow::Borrowed)
    }
    fn namespace(&self) -> Option<Cow<'_, str>> {
        Some(NAMESPACE.into())
    }
    fn resource_version(&self) -> Option<Cow<'_, str>> {
        Some(self.0.revision.to_string().into())
    }
    fn uid(&self) -> Option<Cow<'_, str>> {
        None
    }
}

pub struct Kube {
    writer: Writer<Pod>,
    store: Store<Pod>,
    keys: Vec<String>,
    revision: u64,
    handlers: Vec<Box<dyn FnMut() + Send>>,
}

fn pods(keys: &[String]) -> Vec<Pod> {
    keys.iter().zip(1..).map(|(key, at)| Pod(Object::new(at, key.as_bytes(), &VALUE))).collect()
}

fn filled(pods: Vec<Pod>) -> (Store<Pod>, Writer<Pod>) {
    let (store, mut writer) = reflector::store();
    writer.apply_watcher_event(&Event::Init);
    for pod in pods {
        writer.apply_watcher_event(&Event::InitApply(pod));
    }
    writer.apply_watcher_event(&Event::InitDone);
    (store, writer)
}

impl Informed for Kube {
    fn open(objects: usize) -> Kube {
        let keys = keys(objects);
        let (store, writer) = filled(pods(&keys));
        Kube { writer, store, keys, revision: objects as u64, handlers: Vec::new() }
    }

    fn write(&mut self, number: usize) {
        self.revision += 1;
        let pod = Pod(Object::new(self.revision, self.keys[number].as_bytes(), &VALUE));
        self.writer.apply_watcher_event(&Event::Apply(pod));
        self.handlers.iter_mut().for_each(|changed| changed());
    }

    fn handle(&mut self, changed: Box<dyn FnMut() + Send>) {
        self.handlers.push(changed);
    }

    fn reader(&self) -> List {
        let store = self.store.clone();
        Box::new(move || {
            let state = store.state();
            state.iter().for_each(|pod| {
                black_box(pod.0.revision);
            });
            state.len()
        })
    }

    fn bytes(objects: usize, _: usize, taken: fn() -> usize) -> usize {
        let keys = keys(objects);
        let pods = pods(&keys);
        // With the objects, and without the store.
        let before = taken();
        let kept = filled(pods);
        let bytes = taken().saturating_sub(before);
        drop(kept);
        bytes
    }
}
