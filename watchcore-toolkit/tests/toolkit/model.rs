//! The whole crate against an oracle that is too simple to be wrong: random histories, and consumers of every make that
//! come, go, stall and panic.
//!
//! The oracle is a map, and for each consumer a map of what it was given. An event must fit that map: what is added was not
//! there, what is changed or deleted was there as `old` and `last` say. When all consumers have caught up their maps are the
//! oracle's. Everything is polled by hand on one thread, so that a failure shrinks and repeats; `PROPTEST_CASES` asks
//! for more of it.

use crate::support::{Text, small_cache};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use watchcore::{Cache, Change, Record, ResyncReason, Writer};
use watchcore_toolkit::{
    BoxWatch, CacheSource, Handler, HandlerOptions, HandlerRun, Informer, ObjectWatch, Origin, Payload, Predicate,
    PredicateExt, Registration, RetryWatch, WatchEvent, WatchExt, WorkQueue, predicates,
};

const KEYS: usize = 6;

fn key(number: usize) -> String {
    format!("/{}", number % KEYS)
}

/// What a consumer was given, and how it did not fit.
#[derive(Default)]
struct Given {
    objects: BTreeMap<String, String>,
    misfits: Vec<String>,
    synced: bool,
    calls: usize,
}

impl Given {
    fn expect(&mut self, what: &str, key: &str, before: Option<&str>) {
        let known = self.objects.get(key).map(String::as_str);
        if known != before {
            self.misfits.push(format!("{what} {key}: it was given {known:?}, the event says {before:?}"));
        }
    }

    fn added(&mut self, new: &Text) {
        self.expect("added", new.key_str().unwrap(), None);
        self.objects.insert(new.key_str().unwrap().to_owned(), (**new).clone());
    }

    fn updated(&mut self, old: &Text, new: &Text) {
        self.expect("updated", new.key_str().unwrap(), Some(&**old));
        self.objects.insert(new.key_str().unwrap().to_owned(), (**new).clone());
    }

    fn deleted(&mut self, last: &Text) {
        self.expect("deleted", last.key_str().unwrap(), Some(&**last));
        self.objects.remove(last.key_str().unwrap());
    }

    fn synced(&mut self) {
        if std::mem::replace(&mut self.synced, true) {
            self.misfits.push("synced twice".into());
        }
    }

    fn take(&mut self, event: &WatchEvent<Text>) {
        match &event.payload {
            Payload::Added(new) => self.added(new),
            Payload::Modified { old: Some(old), new } => self.updated(old, new),
            Payload::Deleted(last) => self.deleted(last),
            Payload::Synced => self.synced(),
            Payload::Bookmark => {}
            other => self.misfits.push(format!("{} at {:?}", event.name(), matches!(other, Payload::Error(_)))),
        }
    }
}

/// A handler that writes down what it was given, adds its keys to a queue, and panics with each call that it is told to.
struct Recording {
    given: Arc<Mutex<Given>>,
    queue: WorkQueue<String>,
    panic_every: usize,
}

impl Recording {
    fn called(&mut self, object: &Text, call: impl FnOnce(&mut Given)) {
        let calls = {
            let mut given = self.given.lock().unwrap();
            call(&mut given);
            given.calls += 1;
            given.calls
        };
        self.queue.add(object.key_str().unwrap().to_owned());
        if self.panic_every > 0 && calls.is_multiple_of(self.panic_every) {
            // Without the hook, which would print it.
            resume_unwind(Box::new("on purpose"));
        }
    }
}

impl Handler<Text> for Recording {
    fn added(&mut self, new: &Text, _: Origin) {
        self.called(new, |given| given.added(new));
    }

    fn updated(&mut self, old: &Text, new: &Text, _: Origin) {
        self.called(new, |given| given.updated(old, new));
    }

    fn deleted(&mut self, last: &Text, _: Origin) {
        self.called(last, |given| given.deleted(last));
    }

    fn synced(&mut self) {
        self.given.lock().unwrap().synced();
    }
}

/// A consumer of any make.
enum Consumer {
    Handler { registration: Registration, run: HandlerRun, queue: WorkQueue<String> },
    Watch(BoxWatch<Text>),
}

struct Follower {
    consumer: Consumer,
    given: Arc<Mutex<Given>>,
}

#[derive(Clone, Copy, Debug)]
enum Make {
    Handler { panic_every: usize },
    Watch,
    Retry,
    Predicate,
}

impl Follower {
    fn new(cache: &Cache, informer: &Informer<Text>, make: Make) -> Follower {
        let given = Arc::new(Mutex::new(Given::default()));
        let consumer = match make {
            Make::Handler { panic_every } => {
                let queue = WorkQueue::new();
                let handler = Recording { given: Arc::clone(&given), queue: queue.clone(), panic_every };
                let (registration, run) = informer.handler(handler, HandlerOptions::new()).unwrap();
                Consumer::Handler { registration, run, queue }
            }
            Make::Watch => Consumer::Watch(ObjectWatch::open(cache).unwrap().boxed()),
            Make::Retry => {
                let source = CacheSource::<Text>::new(cache);
                let watch = RetryWatch::builder(source, 0).relist().min_restart_delay(Duration::ZERO);
                Consumer::Watch(watch.open().unwrap().boxed())
            }
            Make::Predicate => {
                // A history that went back uses revisions twice.
                let both = predicates::revision().combine(predicates::by(|object: &Text| Some((**object).clone())));
                Consumer::Watch(ObjectWatch::open(cache).unwrap().touched().predicate_filter(both).boxed())
            }
        };
        Follower { consumer, given }
    }

    /// Lets it take so much; `usize::MAX`: until it has everything.
    fn poll(&mut self, steps: usize) {
        let mut context = Context::from_waker(Waker::noop());
        // A poll lets others run now and then: a few that give nothing are the end.
        let mut idle = 0;
        for _ in 0..steps {
            match &mut self.consumer {
                Consumer::Handler { run, .. } => {
                    let before = self.given.lock().unwrap().calls;
                    if Pin::new(run).poll(&mut context).is_ready() {
                        return;
                    }
                    idle = if self.given.lock().unwrap().calls == before { idle + 1 } else { 0 };
                }
                Consumer::Watch(watch) => match watch.try_recv() {
                    Poll::Ready(Some(event)) => {
                        self.given.lock().unwrap().take(&event);
                        idle = 0;
                    }
                    Poll::Ready(None) => return,
                    Poll::Pending => idle += 1,
                },
            }
            if idle > 4 {
                return;
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Op {
    /// These keys, in one revision; those that are there are deleted where the flag says so.
    Apply(Vec<(usize, bool)>),
    /// So many revisions, which move the window on.
    Burst(usize, usize),
    /// A state that replaces the one before: keys that stay, keys that are new or changed.
    Resync {
        stay: Vec<usize>,
        put: Vec<usize>,
        back: bool,
    },
    Compact,
    Come(Make),
    Go(usize),
    Poll(usize, usize),
}

fn make() -> impl Strategy<Value = Make> {
    prop_oneof![
        (0..4usize).prop_map(|panic_every| Make::Handler { panic_every }),
        Just(Make::Watch),
        Just(Make::Retry),
        Just(Make::Predicate),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let keys = || prop::collection::vec(0..KEYS, 0..KEYS);
    prop_oneof![
        8 => prop::collection::vec((0..KEYS, any::<bool>()), 1..4).prop_map(Op::Apply),
        2 => (0..KEYS, 1..300usize).prop_map(|(key, count)| Op::Burst(key, count)),
        1 => (keys(), keys(), any::<bool>()).prop_map(|(stay, put, back)| Op::Resync { stay, put, back }),
        1 => Just(Op::Compact),
        2 => make().prop_map(Op::Come),
        1 => (0..8usize).prop_map(Op::Go),
        6 => ((0..8usize), 1..20usize).prop_map(|(who, steps)| Op::Poll(who, steps)),
    ]
}

struct World {
    cache: Cache,
    writer: Writer,
    informer: Informer<Text>,
    state: BTreeMap<String, String>,
    values: u64,
    followers: Vec<Follower>,
}

impl World {
    fn new() -> World {
        let cache = small_cache();
        let writer = cache.writer().unwrap();
        let informer = Informer::new(&cache).unwrap();
        World { cache, writer, informer, state: BTreeMap::new(), values: 0, followers: Vec::new() }
    }

    fn value(&mut self) -> String {
        self.values += 1;
        self.values.to_string()
    }

    fn apply(&mut self, changes: &[(usize, bool)]) {
        let mut made = BTreeMap::new();
        for (number, delete) in changes {
            let (key, value) = (key(*number), self.value());
            made.insert(key.clone(), (!*delete || !self.state.contains_key(&key)).then_some(value));
        }
        let revision = self.writer.position().revision + 1;
        let changes = made.iter().map(|(key, value)| match value {
            Some(value) => Change::put(key, value),
            None => Change::delete(key),
        });
        self.writer.apply(revision, changes).unwrap();
        for (key, value) in made {
            match value {
                Some(value) => self.state.insert(key, value),
                None => self.state.remove(&key),
            };
        }
    }

    fn resync(&mut self, stay: &[usize], put: &[usize], back: bool) {
        let current = self.writer.position().revision;
        let revision = if back { (current / 2).max(1) } else { current + 3 };
        let put: BTreeSet<String> = put.iter().map(|number| key(*number)).collect();
        let mut state = BTreeMap::new();
        for key in stay.iter().map(|number| key(*number)).filter(|key| !put.contains(key)) {
            if let Some(value) = self.state.get(&key) {
                state.insert(key, (value.clone(), true));
            }
        }
        for key in put {
            let value = self.value();
            state.insert(key, (value, false));
        }
        let records: Vec<Record<'_>> = state
            .iter()
            .map(|(key, (value, stays))| {
                let kv = self.writer.get(key.as_bytes());
                let (create_revision, mod_revision, version) = match (kv, stays) {
                    (Some(kv), true) if !back => (kv.create_revision(), kv.mod_revision(), kv.version()),
                    _ => (1, revision, 1),
                };
                Record {
                    key: key.as_bytes(),
                    value: value.as_bytes(),
                    create_revision,
                    mod_revision,
                    version,
                    lease: 0,
                }
            })
            .collect();
        self.writer.resync(revision, records, ResyncReason::Requested).unwrap();
        self.state = state.into_iter().map(|(key, (value, _))| (key, value)).collect();
    }

    fn run(&mut self, op: &Op) {
        match op {
            Op::Apply(changes) => self.apply(changes),
            Op::Burst(number, count) => (0..*count).for_each(|_| self.apply(&[(*number, false)])),
            Op::Resync { stay, put, back } => self.resync(stay, put, *back),
            Op::Compact => {
                let revision = self.writer.position().revision;
                if revision > 0 {
                    self.writer.compact(revision).unwrap();
                }
            }
            Op::Come(make) => {
                if self.followers.len() < 8 {
                    self.followers.push(Follower::new(&self.cache, &self.informer, *make));
                }
            }
            Op::Go(who) => {
                if *who < self.followers.len() {
                    let follower = self.followers.swap_remove(*who);
                    if let Consumer::Handler { registration, .. } = &follower.consumer {
                        registration.remove();
                    }
                }
            }
            Op::Poll(who, steps) => {
                if let Some(follower) = self.followers.get_mut(*who) {
                    follower.poll(*steps);
                }
            }
        }
    }

    /// All catch up: what each was given is the state, and its queue has had every key of it.
    fn check(&mut self) -> Result<(), TestCaseError> {
        let listed: BTreeMap<String, String> = self.informer.lister().list().unwrap().iter().map(text).collect();
        prop_assert_eq!(&listed, &self.state, "the lister");
        for follower in &mut self.followers {
            follower.poll(usize::MAX);
            let given = follower.given.lock().unwrap();
            prop_assert!(given.misfits.is_empty(), "{:?}", given.misfits);
            prop_assert_eq!(&given.objects, &self.state, "what a consumer was given");
            if let Consumer::Handler { registration, queue, .. } = &follower.consumer {
                prop_assert!(given.synced && registration.has_synced());
                let mut queued = BTreeSet::new();
                while let Poll::Ready(Some(item)) = queue.try_get() {
                    queued.insert(item.clone());
                }
                for key in self.state.keys() {
                    prop_assert!(queued.contains(key), "{} never came into the queue", key);
                }
            }
        }
        Ok(())
    }
}

fn text(object: &Text) -> (String, String) {
    (object.key_str().unwrap().to_owned(), (**object).clone())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Random histories, random consumers: what each is given fits, and in the end it is the state.
    #[test]
    fn si_12_consumers_follow_random_histories(ops in prop::collection::vec(op(), 1..60)) {
        let mut world = World::new();
        for op in &ops {
            world.run(op);
        }
        world.check()?;
    }
}
