//! kube-rs: its reflector, whose source is an event that the writer gives it.

use super::{Informed, List, NAMESPACE, keys};
use crate::load::{Object, VALUE};
use futures_core::Stream;
use kube_runtime::reflector::{self, Lookup, ReflectHandle, Store, store::Writer};
use kube_runtime::watcher::{Error, Event};
use std::borrow::Cow;
use std::future::poll_fn;
use std::hint::black_box;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

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

/// The event that comes next, where there is one.
#[derive(Clone, Default)]
struct Source(Arc<Mutex<Option<Event<Pod>>>>);

impl Stream for Source {
    type Item = Result<Event<Pod>, Error>;

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let event = self.0.lock().expect("nobody panics").take();
        event.map_or(Poll::Pending, |event| Poll::Ready(Some(Ok(event))))
    }
}

/// A reflector as `kube_runtime::reflector` makes it: a stream that stores each event of its source, and passes it on.
/// The writer's thread polls it.
struct Reflector {
    events: Pin<Box<dyn Stream<Item = Result<Event<Pod>, Error>> + Send>>,
    source: Source,
    store: Store<Pod>,
    keys: Vec<String>,
    revision: u64,
}

impl Reflector {
    fn new(objects: usize, (store, mut writer): (Store<Pod>, Writer<Pod>)) -> Reflector {
        let keys = keys(objects);
        fill(&mut writer, pods(&keys));
        let source = Source::default();
        let events = Box::pin(reflector::reflector(writer, source.clone()));
        Reflector { events, source, store, keys, revision: objects as u64 }
    }

    /// Gives it an event, which is stored and has come out of the stream when this returns.
    fn write(&mut self, number: usize) {
        self.revision += 1;
        let pod = Pod(Object::new(self.revision, self.keys[number].as_bytes(), &VALUE));
        *self.source.0.lock().expect("nobody panics") = Some(Event::Apply(pod));
        let mut context = Context::from_waker(Waker::noop());
        // It waits only for subscribers that are as many changes behind as their buffer has room for.
        assert!(self.events.as_mut().poll_next(&mut context).is_ready(), "the subscribers are not so far behind");
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
}

/// A handler is called for what comes out of the reflector's stream.
pub struct InStream {
    reflector: Reflector,
    handlers: Vec<Box<dyn FnMut() + Send>>,
}

/// A handler has a subscription of the store, and a thread that follows it.
pub struct Subscribed {
    reflector: Reflector,
    /// The handler's, until there is one: a subscription that nobody follows would hold up the store.
    subscription: Option<ReflectHandle<Pod>>,
}

fn pods(keys: &[String]) -> Vec<Pod> {
    keys.iter().zip(1..).map(|(key, at)| Pod(Object::new(at, key.as_bytes(), &VALUE))).collect()
}

fn fill(writer: &mut Writer<Pod>, pods: Vec<Pod>) {
    writer.apply_watcher_event(&Event::Init);
    for pod in pods {
        writer.apply_watcher_event(&Event::InitApply(pod));
    }
    writer.apply_watcher_event(&Event::InitDone);
}

/// What the store takes beyond the objects; it has no handlers.
pub fn bytes(objects: usize, taken: fn() -> usize) -> usize {
    let keys = keys(objects);
    let pods = pods(&keys);
    // With the objects, and without the store.
    let before = taken();
    let (store, mut writer) = reflector::store();
    fill(&mut writer, pods);
    let bytes = taken().saturating_sub(before);
    drop((store, writer));
    bytes
}

impl Informed for InStream {
    fn open(objects: usize) -> InStream {
        InStream { reflector: Reflector::new(objects, reflector::store()), handlers: Vec::new() }
    }

    fn write(&mut self, number: usize) {
        self.reflector.write(number);
        self.handlers.iter_mut().for_each(|changed| changed());
    }

    fn handle(&mut self, changed: Box<dyn FnMut() + Send>) {
        self.handlers.push(changed);
    }

    fn reader(&self) -> List {
        self.reflector.reader()
    }
}

impl Informed for Subscribed {
    fn open(objects: usize) -> Subscribed {
        /// Changes that a subscriber may be behind, as in kube's own examples of a shared store.
        const BUFFER: usize = 128;
        let (store, writer) = reflector::store_shared(BUFFER);
        let subscription = writer.subscribe();
        Subscribed { reflector: Reflector::new(objects, (store, writer)), subscription }
    }

    fn write(&mut self, number: usize) {
        self.reflector.write(number);
    }

    fn handle(&mut self, mut changed: Box<dyn FnMut() + Send>) {
        let subscription = self.subscription.take().expect("one handler");
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
            runtime.block_on(async {
                let mut subscription = pin!(subscription);
                while poll_fn(|context| subscription.as_mut().poll_next(context)).await.is_some() {
                    changed();
                }
            });
        });
    }

    fn reader(&self) -> List {
        self.reflector.reader()
    }
}
