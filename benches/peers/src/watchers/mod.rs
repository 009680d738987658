//! Work of the first kind: one publisher, many watchers that sleep until there is something for them.
//!
//! A contestant opens a publisher and one receiver for each watcher. Who receives by blocking a thread is a
//! [`Blocking`] receiver, who does it as a task an [`Asynchronous`] one; the rows take either, wrapped
//! as [`Threads`] or [`Tasks`], and never know which.

pub mod broadcast;
pub mod broadcaster;
pub mod channels;
pub mod watchcore;

use crate::load;
use crate::measure::Section;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What a watcher wants to see.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Interest {
    Everything,
    /// One object.
    Key(usize),
    /// All objects of one namespace.
    Namespace(usize),
    /// An object that is never published.
    Nothing(usize),
}

/// Asserts that a publisher without a filter is asked for everything.
fn all(interests: &[Interest]) {
    assert!(interests.iter().all(|one| *one == Interest::Everything), "it has no filter");
}

/// Reads the head of an event.
fn read(object: &load::Object) {
    std::hint::black_box(object.revision.wrapping_add(object.key().as_ptr() as u64));
}

/// The publishing side.
pub trait Fanout: Sized {
    type Receiver: Send + 'static;

    /// A publisher, and a receiver for each watcher.
    fn open(interests: &[Interest]) -> (Self, Vec<Self::Receiver>);

    /// The same as it is after it has served for a while: who keeps a history has a full one, and takes no memory that is
    /// new to the process any more. `opens` is called before the first receiver is made.
    fn open_worn(interests: &[Interest], opens: impl FnOnce()) -> (Self, Vec<Self::Receiver>) {
        opens();
        Self::open(interests)
    }

    /// Does what the publisher still owes so many selective receivers that were just opened, by events for nobody.
    fn warm_up(&mut self, _receivers: usize) {}

    /// Copies the key and the value, and hands them to whom they interest.
    fn publish(&mut self, key: &str, value: &[u8]);
}

/// A receiver that blocks its thread.
pub trait Blocking: Send + 'static {
    /// Waits for something, takes all that is there, and says how many events that were.
    fn take(&mut self) -> u64;
}

/// A receiver that is awaited.
pub trait Asynchronous: Send + 'static {
    /// The same as a future.
    fn take(&mut self) -> impl Future<Output = u64> + Send;
}

/// How watchers run. Both sides end with the process.
pub trait Watchers {
    type Publisher: Fanout + 'static;
    fn run(receivers: Vec<<Self::Publisher as Fanout>::Receiver>, seen: Arc<Seen>);
}

/// A thread for each watcher.
pub struct Threads<P>(P);

/// A task for each watcher, all on one thread that runs nothing else.
pub struct Tasks<P>(P);

impl<P: Fanout<Receiver: Blocking> + 'static> Watchers for Threads<P> {
    type Publisher = P;

    fn run(receivers: Vec<P::Receiver>, seen: Arc<Seen>) {
        for mut receiver in receivers {
            let seen = seen.clone();
            let body = move || {
                seen.begin();
                loop {
                    let events = receiver.take();
                    seen.add(events);
                }
            };
            std::thread::Builder::new().stack_size(64 << 10).spawn(body).expect("a thread starts");
        }
    }
}

impl<P: Fanout<Receiver: Asynchronous> + 'static> Watchers for Tasks<P> {
    type Publisher = P;

    fn run(receivers: Vec<P::Receiver>, seen: Arc<Seen>) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        for mut receiver in receivers {
            let seen = seen.clone();
            runtime.spawn(async move {
                seen.begin();
                loop {
                    let events = receiver.take().await;
                    seen.add(events);
                }
            });
        }
        std::thread::spawn(move || runtime.block_on(std::future::pending::<()>()));
    }
}

/// What the watchers have taken: each adds once for each time that it woke.
pub struct Seen {
    /// Watchers that have begun.
    begun: AtomicU64,
    events: AtomicU64,
    /// Nanoseconds from `birth` to the last addition.
    last: AtomicU64,
    birth: Instant,
}

impl Seen {
    fn new() -> Arc<Seen> {
        Arc::new(Seen {
            begun: AtomicU64::new(0),
            events: AtomicU64::new(0),
            last: AtomicU64::new(0),
            birth: Instant::now(),
        })
    }

    /// A watcher runs, and waits next.
    fn begin(&self) {
        self.begun.fetch_add(1, Ordering::Relaxed);
    }

    fn add(&self, events: u64) {
        self.last.store(self.now(), Ordering::Relaxed);
        // Release: who sees the count sees the time. Partner: the load in `events`.
        self.events.fetch_add(events, Ordering::Release);
    }

    pub fn now(&self) -> u64 {
        self.birth.elapsed().as_nanos() as u64
    }

    pub fn last(&self) -> u64 {
        self.last.load(Ordering::Relaxed)
    }

    fn events(&self) -> u64 {
        // Partner: the addition in `add`.
        self.events.load(Ordering::Acquire)
    }

    /// Sleeps in short steps until all watchers have begun.
    fn wait_for_watchers(&self, watchers: usize) {
        until(|| self.begun.load(Ordering::Relaxed) == watchers as u64, || format!("{watchers} watchers begin"));
    }

    /// The same until so many events were taken.
    fn wait_for(&self, events: u64) {
        until(|| self.events() >= events, || format!("{} of {events} events were delivered", self.events()));
        assert_eq!(self.events(), events, "each event is delivered once");
    }
}

/// Sleeps in short steps until it holds.
fn until(holds: impl Fn() -> bool, what: impl Fn() -> String) {
    let until = Instant::now() + BOUND;
    while !holds() {
        assert!(Instant::now() < until, "{}", what());
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// A window that takes longer has lost something.
const BOUND: Duration = Duration::from_secs(60);
/// Events that are published before the watchers are waited for.
pub const WINDOW: usize = 96;
/// Time enough for a watcher that has taken everything to fall asleep.
const FALL_ASLEEP: Duration = Duration::from_micros(500);

/// A publisher and its receivers.
type Opened<W> = (<W as Watchers>::Publisher, Vec<<<W as Watchers>::Publisher as Fanout>::Receiver>);

/// A publisher whose watchers sleep.
pub struct Stage<W: Watchers> {
    /// It lives as long as the process does, and so do the watchers.
    publisher: &'static mut W::Publisher,
    pub seen: Arc<Seen>,
    keys: Vec<String>,
    takers: u64,
    /// Events that must have been taken before the next window.
    expected: u64,
}

impl<W: Watchers> Stage<W> {
    /// Opened, warmed up and asleep: each object was published once. `takers` watchers take each.
    pub fn open(keys: Vec<String>, interests: &[Interest], takers: u64) -> Stage<W> {
        Stage::of(W::Publisher::open_worn(interests, || {}), keys, interests, takers).warmed_up(interests)
    }

    /// Nothing was published since the watchers came; with what is measured from the moment on at which the first came.
    pub fn open_cold(keys: Vec<String>, interests: &[Interest], takers: u64) -> (Stage<W>, Section) {
        let mut section = None;
        let opened = W::Publisher::open_worn(interests, || section = Some(Section::begin()));
        let stage = Stage::of(opened, keys, interests, takers);
        (stage, section.expect("watchers were opened"))
    }

    /// The same of a publisher that is new: for what its watchers take of the memory.
    pub fn open_new(keys: Vec<String>, interests: &[Interest], takers: u64) -> Stage<W> {
        Stage::of(W::Publisher::open(interests), keys, interests, takers).warmed_up(interests)
    }

    fn of(opened: Opened<W>, keys: Vec<String>, interests: &[Interest], takers: u64) -> Stage<W> {
        let (publisher, receivers) = opened;
        let seen = Seen::new();
        W::run(receivers, seen.clone());
        seen.wait_for_watchers(interests.len());
        std::thread::sleep(FALL_ASLEEP);
        Stage { publisher: Box::leak(Box::new(publisher)), seen, keys, takers, expected: 0 }
    }

    fn warmed_up(mut self, interests: &[Interest]) -> Stage<W> {
        let selective = interests.iter().filter(|one| **one != Interest::Everything).count();
        if selective > 0 {
            self.publisher.warm_up(selective);
        }
        let objects = self.keys.len();
        // In windows, so that no bounded queue overflows.
        for first in (0..objects).step_by(WINDOW) {
            (first..objects.min(first + WINDOW)).for_each(|at| self.publish(at));
            self.settle();
        }
        self
    }

    pub fn publish(&mut self, object: usize) {
        self.publisher.publish(&self.keys[object], &load::VALUE);
        self.expected += self.takers;
    }

    /// As [`Stage::settle`], outside of what is measured: time counts until the last event was taken.
    pub fn settle_in(&self, section: &mut Section) {
        section.waiting(|| self.settle());
        section.paused(Duration::from_nanos(self.seen.now() - self.seen.last()));
    }

    /// Waits until all is taken and all sleep again.
    pub fn settle(&self) {
        self.seen.wait_for(self.expected);
        std::thread::sleep(FALL_ASLEEP);
    }
}
