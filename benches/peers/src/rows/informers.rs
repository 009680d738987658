//! The rows about informers: in the shape of client-go's own benchmark, see go/informers.go.

use super::Contestant;
use crate::informing::{InTask, Informed, Ours};
use crate::load::Scattered;
use crate::measure::{Measured, allocated, at_least, process_time, repeat};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// Changes that are under way to a handler at most.
const UNDER_WAY: u64 = 10;
const OURS: &str = "over a cache: what the cache does is in it";
const OURS_IN_TASK: &str = "the same, the handler as a future that the writer's thread polls";

pub const OF_OURS: &[Contestant] = &[
    Contestant::new("informer-write-0", "watchcore", OURS, writes::<Ours, 0>),
    Contestant::new("informer-write-8", "watchcore", OURS, writes::<Ours, 8>),
    Contestant::new("informer-write-80", "watchcore", OURS, writes::<Ours, 80>),
    Contestant::new("informer-task", "watchcore", OURS_IN_TASK, writes::<InTask, 0>),
    Contestant::new("informer-read-8", "watchcore", OURS, reads::<Ours, 8>),
    Contestant::new("informer-read-80", "watchcore", OURS, reads::<Ours, 80>),
    Contestant::new("informer-beside-stalled", "watchcore", OURS, beside_stalled),
    Contestant::new("informer-stalled-bytes", "watchcore", OURS, bytes_of_stalled),
    Contestant::new("informer-bytes-1", "watchcore", OURS, bytes::<1>),
    Contestant::new("informer-bytes-10", "watchcore", OURS, bytes::<10>),
];

#[cfg(feature = "kube")]
pub const OF_KUBE: &[Contestant] = {
    use crate::informing::kube::{InStream, Subscribed};
    const SUBSCRIBED: &str =
        "kube-runtime's reflector with a shared store; the handler's thread follows a subscription of it";
    const IN_STREAM: &str = "kube-runtime's reflector; the handler is called for what comes out of its stream";
    const STORE: &str = "its store: it has no handlers";
    &[
        Contestant::new("informer-write-0", "kube-rs", SUBSCRIBED, writes::<Subscribed, 0>),
        Contestant::new("informer-write-8", "kube-rs", SUBSCRIBED, writes::<Subscribed, 8>),
        Contestant::new("informer-write-80", "kube-rs", SUBSCRIBED, writes::<Subscribed, 80>),
        Contestant::new("informer-task", "kube-rs", IN_STREAM, writes::<InStream, 0>),
        Contestant::new("informer-read-8", "kube-rs", SUBSCRIBED, reads::<Subscribed, 8>),
        Contestant::new("informer-read-80", "kube-rs", SUBSCRIBED, reads::<Subscribed, 80>),
        Contestant::new("informer-bytes-1", "kube-rs", STORE, bytes_of_kube),
        Contestant::new("informer-bytes-10", "kube-rs", STORE, bytes_of_kube),
    ]
};
#[cfg(not(feature = "kube"))]
pub const OF_KUBE: &[Contestant] = &[];

/// The changes that a handler was not called for yet, and the thread that waits until there are none.
#[derive(Default)]
struct UnderWay {
    count: AtomicU64,
    writer: Mutex<Option<Thread>>,
}

impl UnderWay {
    /// Waits until the handler has everything.
    fn settle(&self) {
        *self.writer.lock().expect("nobody panics") = Some(thread::current());
        while self.count.load(Ordering::Acquire) > 0 {
            thread::park();
        }
    }

    fn begin(&self) {
        if self.count.load(Ordering::Relaxed) == UNDER_WAY {
            self.settle();
        }
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    fn end(&self) {
        if self.count.fetch_sub(1, Ordering::Release) == 1 {
            // The writer may run on this processor at once: the lock is released before it is woken.
            let writer = self.writer.lock().expect("nobody panics").take();
            writer.inspect(Thread::unpark);
        }
    }
}

/// A writer that has some changes under way to a handler: where they are ten, it waits until all are handled.
struct Flow<I> {
    informed: I,
    under_way: Arc<UnderWay>,
    handled: Arc<AtomicU64>,
    order: Scattered,
}

impl<I: Informed> Flow<I> {
    fn begun(mut informed: I, objects: usize) -> Flow<I> {
        let (handled, under_way) = (Arc::new(AtomicU64::new(0)), Arc::new(UnderWay::default()));
        informed.handle({
            let (handled, under_way) = (handled.clone(), under_way.clone());
            Box::new(move || {
                handled.fetch_add(1, Ordering::Relaxed);
                under_way.end();
            })
        });
        Flow { informed, under_way, handled, order: Scattered::below(objects) }
    }

    fn write_one(&mut self) {
        self.under_way.begin();
        self.informed.write(self.order.next());
    }

    fn settle(&self) {
        self.under_way.settle();
    }
}

/// What happened in a section.
struct Reading {
    wall: Duration,
    cpu: Duration,
    read: u64,
    handled: u64,
}

impl Reading {
    fn of(&self, count: u64) -> Measured {
        assert!(count > 0, "nothing happened within {:?}", self.wall);
        let each = |time: Duration| time.as_nanos() as f64 / count as f64;
        Measured::with_beside(each(self.wall), each(self.cpu), count)
    }
}

/// Readers list the namespace again and again while one writer writes.
fn read_beside<I: Informed>(objects: usize, readers: usize) -> Reading {
    /// How many reads and writes make a measurement, and how long they are waited for.
    const LEAST: u64 = 20;
    const BOUND: Duration = Duration::from_secs(60);
    let mut flow = Flow::begun(I::open(objects), objects);
    flow.write_one();
    flow.settle();
    let (read, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let handled = flow.handled.clone();
    std::thread::scope(|scope| {
        for _ in 0..readers {
            let list = flow.informed.reader();
            let (read, stop) = (&read, &stop);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    assert_eq!(list(), objects, "the whole namespace");
                    read.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let (begun, before) = (Instant::now(), process_time());
        let (reads, writes) = (read.load(Ordering::Relaxed), handled.load(Ordering::Relaxed));
        let flow = &mut flow;
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                flow.write_one();
            }
        });
        let enough = || {
            begun.elapsed() >= at_least()
                && handled.load(Ordering::Relaxed) - writes >= LEAST
                && (readers == 0 || read.load(Ordering::Relaxed) - reads >= LEAST)
        };
        while !enough() && begun.elapsed() < BOUND {
            std::thread::sleep(Duration::from_millis(1));
        }
        let reading = Reading {
            wall: begun.elapsed(),
            cpu: process_time() - before,
            read: read.load(Ordering::Relaxed) - reads,
            handled: handled.load(Ordering::Relaxed) - writes,
        };
        stop.store(true, Ordering::Relaxed);
        reading
    })
}

fn writes<I: Informed, const READERS: usize>(objects: usize) -> Measured {
    let reading = read_beside::<I>(objects, READERS);
    reading.of(reading.handled)
}

fn reads<I: Informed, const READERS: usize>(objects: usize) -> Measured {
    let reading = read_beside::<I>(objects, READERS);
    reading.of(reading.read)
}

/// An informer with a handler that never returns from its first change.
fn stalled(objects: usize) -> Ours {
    let mut informed = Ours::open(objects);
    informed.handle(Box::new(|| {
        loop {
            std::thread::park();
        }
    }));
    informed
}

fn beside_stalled(objects: usize) -> Measured {
    const CHUNK: u64 = 100;
    let mut flow = Flow::begun(stalled(objects), objects);
    repeat(|section| {
        (0..CHUNK).for_each(|_| flow.write_one());
        section.waiting(|| flow.settle());
        CHUNK
    })
}

/// What each change takes that a stalled handler was not given.
fn bytes_of_stalled(changes: usize) -> Measured {
    const OBJECTS: usize = 1000;
    let mut flow = Flow::begun(stalled(OBJECTS), OBJECTS);
    // The thread that frees is let keep up: the writer's heap keeps the memory of what waits for it.
    let mut write = |changes: usize| {
        for number in 0..changes {
            flow.write_one();
            if number % 1000 == 0 {
                flow.settle();
                thread::sleep(Duration::from_millis(5));
            }
        }
        flow.settle();
    };
    // The log is as long as it becomes.
    write(200_000);
    let before = settled();
    write(changes);
    let bytes = settled().saturating_sub(before);
    // The stalled handler never ends: the process does.
    std::mem::forget(flow);
    Measured::plain(bytes as f64 / changes as f64, changes as u64)
}

/// What the allocator has handed out, once what is freed on another thread is freed.
fn settled() -> usize {
    let mut least = allocated();
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(10));
        least = least.min(allocated());
    }
    least
}

/// What an object takes beyond itself, and beyond the cache that it comes from.
fn bytes<const HANDLERS: usize>(objects: usize) -> Measured {
    Measured::plain(Ours::bytes(objects, HANDLERS, settled) as f64 / objects as f64, objects as u64)
}

#[cfg(feature = "kube")]
fn bytes_of_kube(objects: usize) -> Measured {
    Measured::plain(crate::informing::kube::bytes(objects, settled) as f64 / objects as f64, objects as u64)
}
