//! Work of the third kind: an informer that is written to, whose handler is called, and whose objects are listed.

#[cfg(feature = "kube")]
pub mod kube;

use crate::load::{Object, PREFIX, VALUE};
use std::hint::black_box;
use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::Duration;
use watchcore::{Builder, Cache, Change, Range, Record, Writer};
use watchcore_toolkit as toolkit;
use watchcore_toolkit::{HandlerFns, HandlerOptions, HandlerRun, Informer};

/// Lists the namespace, sees each object once, and says how many there are.
pub type List = Box<dyn Fn() -> usize + Send>;

pub trait Informed: Send + Sized {
    /// One of objects that are there already, synced.
    fn open(objects: usize) -> Self;

    /// Changes an object.
    fn write(&mut self, number: usize);

    /// Adds a handler, which is called for each change from now on.
    fn handle(&mut self, changed: Box<dyn FnMut() + Send>);

    fn reader(&self) -> List;
}

const NAMESPACE: &str = "default";

/// All of them lie in one namespace.
fn keys(objects: usize) -> Vec<String> {
    (0..objects).map(|number| format!("{PREFIX}{NAMESPACE}/p-{number:06}")).collect()
}

fn namespace() -> Range {
    Range::prefix(format!("{PREFIX}{NAMESPACE}/"))
}

const LONG: Duration = Duration::from_secs(60);

/// The toolkit's informer over a cache of decoded objects.
pub struct Ours {
    cache: Cache,
    writer: Writer,
    informer: Informer<toolkit::Object<Object>>,
    keys: Vec<String>,
    revision: u64,
    handlers: Vec<toolkit::Registration>,
}

impl Ours {
    /// Objects that a cache with these options has loaded.
    fn over(cache: Builder, objects: usize) -> Ours {
        let decode = |key: &[u8], value: &[u8]| Ok::<_, String>(Object::new(0, key, value));
        let cache = cache.expect_load(true).decoder(decode).build().expect("a cache");
        let mut writer = cache.writer().expect("is free");
        let keys = keys(objects);
        let revision = objects as u64;
        let listing = keys.iter().zip(1..).map(|(key, at)| Record {
            key: key.as_bytes(),
            value: &VALUE,
            create_revision: at,
            mod_revision: at,
            version: 1,
            lease: 0,
        });
        writer.load(revision, listing).expect("loads");
        let informer = Informer::new(&cache).expect("an informer");
        let ours = Ours { cache, writer, informer, keys, revision, handlers: Vec::new() };
        // Everything is decoded.
        assert_eq!(ours.reader()(), objects);
        ours
    }

    fn handler(&mut self, handler: HandlerFns<toolkit::Object<Object>>) {
        let registration = self.informer.add_handler(handler).expect("a handler");
        registration.wait_synced(LONG).expect("it has handled the state");
        self.handlers.push(registration);
    }

    /// What it and so many handlers that have handled everything take beyond the objects and their cache.
    pub fn bytes(objects: usize, handlers: usize, taken: fn() -> usize) -> usize {
        let mut ours = Ours::open(objects);
        let keep = ours.cache.clone();
        let before = taken();
        ours.informer = Informer::new(&keep).expect("an informer");
        for _ in 0..handlers {
            ours.handler(HandlerFns::new().on_added(|object: &toolkit::Object<Object>, _| {
                black_box(object.revision());
            }));
        }
        let bytes = taken().saturating_sub(before);
        drop(ours);
        bytes
    }
}

fn updated(mut changed: Box<dyn FnMut() + Send>) -> HandlerFns<toolkit::Object<Object>> {
    HandlerFns::new().on_updated(move |_, _, _| changed())
}

impl Informed for Ours {
    fn open(objects: usize) -> Ours {
        Ours::over(Cache::builder("/"), objects)
    }

    fn write(&mut self, number: usize) {
        self.revision += 1;
        self.writer.apply(self.revision, [Change::put(&self.keys[number], &VALUE)]).expect("applies");
    }

    fn handle(&mut self, changed: Box<dyn FnMut() + Send>) {
        self.handler(updated(changed));
    }

    fn reader(&self) -> List {
        let lister = self.informer.lister();
        let range = namespace();
        Box::new(move || {
            let mut count = 0;
            let seen = lister.visit(&range, |_, object| {
                black_box(object.expect("is decoded").revision);
                count += 1;
            });
            seen.expect("reads");
            count
        })
    }
}

/// The same, with handlers that run on the writer's thread, as in one task with what writes: their futures are polled
/// after each change.
pub struct InTask {
    ours: Ours,
    running: Vec<(toolkit::Registration, HandlerRun)>,
}

impl InTask {
    fn poll(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        for (_, run) in &mut self.running {
            assert!(Pin::new(run).poll(&mut context).is_pending(), "a handler has ended");
        }
    }
}

impl Informed for InTask {
    fn open(objects: usize) -> InTask {
        InTask { ours: Ours::over(Cache::builder("/").trust_wakers(true), objects), running: Vec::new() }
    }

    fn write(&mut self, number: usize) {
        self.ours.write(number);
        self.poll();
    }

    fn handle(&mut self, changed: Box<dyn FnMut() + Send>) {
        let run = self.ours.informer.handler(updated(changed), HandlerOptions::new());
        self.running.push(run.expect("a handler"));
        while !self.running.iter().all(|(registration, _)| registration.has_synced()) {
            self.poll();
        }
    }

    fn reader(&self) -> List {
        self.ours.reader()
    }
}
