//! Models of the core for loom: the shipped types under every order of their memory accesses.
//!
//! Each file holds the models of one protocol, and its head says which order each of them proves. Every test has
//! twins that must fail: the same model with one named order of the shipped code weakened (`sync::ord`), a
//! store or load to Relaxed, a SeqCst fence to AcqRel. Some twins leave a step out or move it. The rows are those
//! of the tables in the heads of the modules, which `docs/internals/memory-model.md` lists.
//!
//! The order of the steps is proven by the same models. Each of these fails when it is turned round:
//! token before head in a snapshot; head before token, and before progress, in the writer; closed
//! before head in a poll; the notifier's swap before its load of the head; `oldest_seq` loaded after the root.
//! Log before store makes no difference yet: a version carries its own `older`.
//!
//! Loom cannot test these orders here, because another access orders the same already:
//! - the Release of `oldest_seq`: a reader that misses the purged key has loaded the root after it, and a
//!   reader that pins after a collection is ordered after all of it;
//! - the publisher's `call`: its fence comes before it; and `armed`: the set's list has a lock;
//! - a failure reported before the listing: both sides take the lock of the status.
//!
//! The collector under loom is a stand-in (`reclaim::loom_twin`): crossbeam's is not explored here. Of reclaimer and
//! notifier only the word that says which thread does their work is explored (`worker::duty`), not their loops.
//!
//! Freed versions and slots stay mapped to the end of an execution, and every plain object has a
//! `Track`: a read that is not ordered after the making, or before the end, fails as such.

mod chain;
mod close;
mod heap;
mod log;
mod reclaim;
mod store;
mod wake;
mod worker;

use crate::data::event::ResyncReason;
use crate::data::key_value::{KeyMeta, KeyValue as Version, VersionPtr};
use crate::reclaim as collector;
use crate::sync::Relaxed;
use crate::sync::weak::{self, Site};
use crate::wake::notifier_model as notifier;
use crate::*;
use ::loom::thread;
use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

const EVER: Duration = Duration::MAX;

/// Executions of one side of a model unless `WATCHCORE_LOOM_DEEP` is set: the longest models have four times as many.
const EXECUTIONS: usize = 10_000;

/// An order to weaken: its name, and the type where it is one of several of that name.
type Weak = (Site, &'static str);
const NOTHING: Weak = (Site::Nothing, "");

/// How a model is run.
#[derive(Clone, Copy)]
struct Model {
    /// Preemptions explored below the bound (`LOOM_MAX_PREEMPTIONS`, or 3): long models take fewer.
    less: usize,
    /// Whether its last preemption is explored only where `WATCHCORE_LOOM_DEEP` is set (`make test-loom`): it takes minutes.
    deep: bool,
    /// Whether retired objects are freed during the execution: then pins are steps, too.
    collects: bool,
    /// Whether a publisher does a pass itself where little is to be done. Otherwise the notifier does each pass.
    publisher_looks: bool,
    /// Steps of a pass of the notifier, where they are fewer than in the program.
    steps: Option<usize>,
    /// Whether commits claim the log: models of many executions leave it out where nobody closes the log.
    claims: bool,
}

const PLAIN: Model = Model { less: 0, deep: false, collects: false, publisher_looks: false, steps: None, claims: true };
const UNCLAIMED: Model = Model { claims: false, ..PLAIN };
const UNCLAIMED_LONG: Model = Model { less: 1, ..UNCLAIMED };
const LONG: Model = Model { less: 1, ..PLAIN };
const LONGEST: Model = Model { less: 2, ..PLAIN };
const COLLECTS: Model = Model { collects: true, ..LONG };
const COLLECTS_LONG: Model = Model { collects: true, ..LONGEST };
const COLLECTS_DEEP: Model = Model { collects: true, ..UNCLAIMED };
const PUBLISHER: Model = Model { publisher_looks: true, ..PLAIN };
const PORTIONS: Model = Model { steps: Some(1), ..PLAIN };
const PORTIONS_LONG: Model = Model { less: 1, ..PORTIONS };

thread_local! {
    /// The side of a race that the main thread of the model takes, and that so begins.
    static WRITER_FIRST: Cell<bool> = const { Cell::new(false) };
}

/// Clears the state that a failed execution left in this thread.
struct Clean;

impl Drop for Clean {
    fn drop(&mut self) {
        collector::begin(false);
        notifier::begin(false, None);
        weak::choose(Site::Nothing, "");
        weak::begin(true);
    }
}

impl Model {
    const fn deep(self) -> Model {
        Model { deep: true, ..self }
    }

    /// Explores the body twice, each side of its race beginning once. loom keeps one access of a word: a thread that
    /// loads it and then stores it hides that its store races with loads of others, so an order that was not run first
    /// would not be tried.
    fn run(self, weakened: Weak, body: impl Fn() + Send + Sync + 'static) {
        let _clean = Clean;
        let body = std::sync::Arc::new(body);
        weak::choose(weakened.0, weakened.1);
        for writer_first in [true, false] {
            WRITER_FIRST.with(|first| first.set(writer_first));
            let mut builder = ::loom::model::Builder::new();
            let all = std::env::var_os("WATCHCORE_LOOM_DEEP").is_some();
            let less = self.less + usize::from(self.deep && !all);
            builder.preemption_bound = Some(builder.preemption_bound.unwrap_or(3).saturating_sub(less));
            builder.max_branches = 5_000;
            builder.max_permutations = builder.max_permutations.or((!all).then_some(EXECUTIONS));
            let executions = std::sync::Arc::new(AtomicUsize::new(0));
            let (count, body, began) = (executions.clone(), body.clone(), Instant::now());
            builder.check(move || {
                count.fetch_add(1, Relaxed);
                collector::begin(self.collects);
                weak::begin(self.claims);
                notifier::begin(self.publisher_looks, self.steps);
                body();
                notifier::step();
                collector::collect();
            });
            println!("{} executions, {} ms", executions.load(Relaxed), began.elapsed().as_millis());
        }
    }
}

/// A value that a failed execution does not drop: after a deadlock no step can be taken.
struct Local<T>(ManuallyDrop<T>);

impl<T> Local<T> {
    fn new(value: T) -> Local<T> {
        Local(ManuallyDrop::new(value))
    }
}

impl<T> Deref for Local<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Local<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T> Drop for Local<T> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // SAFETY: this is the only place that drops it, and a drop runs once.
            unsafe { ManuallyDrop::drop(&mut self.0) }
        }
    }
}

/// A cache of `segments` segments of `slots` slots.
fn cache(slots: u64, segments: u64) -> (Local<Cache>, Local<Writer>) {
    let cache = Cache::builder("/").segment_slots(slots).capacity((slots * segments) as usize).build().unwrap();
    let writer = cache.writer().unwrap();
    (Local::new(cache), Local::new(writer))
}

/// A cache that waits for its listing.
fn unlisted() -> (Local<Cache>, Local<Writer>) {
    let cache = Cache::builder("/").segment_slots(4).capacity(8).expect_load(true).build().unwrap();
    let writer = cache.writer().unwrap();
    (Local::new(cache), Local::new(writer))
}

/// A subscription to all events from now on.
fn follow(cache: &Cache) -> Local<Subscription> {
    Local::new(cache.subscribe(Start::Now).open().unwrap())
}

/// Two threads, of which each begins once: see [`Model::run`].
fn both<A: 'static, B: 'static>(one: impl FnOnce() -> A + 'static, other: impl FnOnce() -> B + 'static) -> (A, B) {
    if WRITER_FIRST.with(Cell::get) {
        let other = thread::spawn(other);
        (one(), other.join().unwrap())
    } else {
        let one = thread::spawn(one);
        let other = other();
        (one.join().unwrap(), other)
    }
}

/// Writes while another thread reads. The writer comes back: its drop is no part of the race.
fn race<T: 'static>(
    mut writer: Local<Writer>,
    write: impl FnOnce(&mut Writer) + 'static,
    read: impl FnOnce() -> T + 'static,
) -> (Local<Writer>, T) {
    let write = move || {
        write(&mut writer);
        writer
    };
    both(write, read)
}

/// Applies a revision that sets each of these keys to the revision's number.
fn put(writer: &mut Writer, revision: u64, keys: &[&str]) {
    let value = revision.to_string();
    writer.apply(revision, keys.iter().map(|key| Change::put(*key, &value))).unwrap();
}

/// Reads every field of a batch, and returns its revisions.
fn read(batch: &Batch) -> Vec<u64> {
    for event in batch {
        assert_eq!(event.value().map(<[u8]>::to_vec), Some(event.revision().to_string().into_bytes()));
        assert!(event.prev_value().is_none_or(|value| !value.is_empty()));
    }
    batch.events().iter().map(Event::revision).collect()
}

/// A test, and its twins: one order weakened each, and what fails then.
macro_rules! proof {
    ($model:ident, $name:ident $(, $twin:ident: $site:ident $($of:literal)? => $failure:literal)* $(,)?) => {
        #[test]
        fn $name() {
            $model(NOTHING);
        }
        $(
            #[test]
            #[should_panic(expected = $failure)]
            fn $twin() {
                $model((Site::$site, concat!($($of)?)));
            }
        )*
    };
}
use proof;
