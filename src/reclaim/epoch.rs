//! The collector and the thread that frees.

use super::*;
use crate::sync::AtomicBool;
use crossbeam_epoch::{Collector, LocalHandle};
use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::thread::Thread;
use std::time::Duration;

struct Node {
    job: Option<Job>,
    next: *mut Node,
}

/// A stack of jobs: pushed by anybody, taken whole by the reclaimer.
struct Reclaimer {
    collector: Collector,
    list: AtomicPtr<Node>,
    /// Jobs handed over (retired or freed), and jobs done.
    given: AtomicU64,
    done: AtomicU64,
    asleep: AtomicBool,
    thread: OnceLock<Thread>,
}

/// How often the reclaimer looks while something waits for its grace period.
const TICK: Duration = Duration::from_millis(2);

thread_local! {
    static LOCAL: LocalHandle = reclaimer().collector.register();
    static IS_RECLAIMER: Cell<bool> = const { Cell::new(false) };
}

fn reclaimer() -> &'static Reclaimer {
    static GLOBAL: OnceLock<&'static Reclaimer> = OnceLock::new();
    GLOBAL.get_or_init(|| {
        let this: &'static Reclaimer = Box::leak(Box::new(Reclaimer {
            collector: Collector::new(),
            list: AtomicPtr::new(std::ptr::null_mut()),
            given: AtomicU64::new(0),
            done: AtomicU64::new(0),
            asleep: AtomicBool::new(false),
            thread: OnceLock::new(),
        }));
        if let Ok(handle) = crate::sys::spawn("watchcore-free", move || this.run()) {
            let _ = this.thread.set(handle.thread().clone());
        }
        this
    })
}

impl Reclaimer {
    fn push(&self, job: Job) {
        let node = Box::into_raw(Box::new(Node { job: Some(job), next: std::ptr::null_mut() }));
        let mut top = self.list.load(Relaxed);
        loop {
            // SAFETY: the node is ours until the CAS succeeds.
            unsafe { (*node).next = top };
            // Release: partner of the swap in `take`.
            match self.list.compare_exchange_weak(top, node, Release, Relaxed) {
                Ok(_) => break,
                Err(now) => top = now,
            }
        }
        self.wake();
    }

    fn wake(&self) {
        // Partner: `run` raises `asleep`, then looks at the list.
        if self.asleep.swap(false, AcqRel)
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }

    fn run(&self) {
        IS_RECLAIMER.with(|c| c.set(true));
        loop {
            self.work();
            if self.given.load(Acquire) != self.done.load(Relaxed) {
                std::thread::park_timeout(TICK);
                continue;
            }
            self.asleep.swap(true, AcqRel);
            if self.given.load(Acquire) == self.done.load(Relaxed) {
                std::thread::park();
            }
            self.asleep.swap(false, AcqRel);
        }
    }

    fn work(&self) {
        for _ in 0..3 {
            pin().flush();
        }
        loop {
            // Acquire: partner of the CAS in `push`.
            let mut node = self.list.swap(std::ptr::null_mut(), Acquire);
            if node.is_null() {
                return;
            }
            // Oldest first: a stack hands them out newest first.
            let mut jobs = Vec::new();
            while !node.is_null() {
                // SAFETY: the swap made the whole chain ours; each node is taken once.
                let mut taken = unsafe { Box::from_raw(node) };
                jobs.extend(taken.job.take());
                node = taken.next;
            }
            for job in jobs.into_iter().rev() {
                if std::panic::catch_unwind(std::panic::AssertUnwindSafe(job)).is_err() {
                    tracing::error!("a drop panicked on the reclaimer; it goes on");
                }
                self.done.fetch_add(1, Release);
            }
        }
    }
}

/// A pin: what was loaded under it stays until it is dropped.
pub(crate) struct Guard(crossbeam_epoch::Guard);

impl Guard {
    pub(crate) fn flush(&self) {
        self.0.flush();
    }
}

/// Pins this thread. Cheap (a store and a fence); nests.
pub(crate) fn pin() -> Guard {
    Guard(LOCAL.try_with(LocalHandle::pin).unwrap_or_else(|_| reclaimer().collector.register().pin()))
}

/// Runs `job` on the reclaimer once no thread pinned now is pinned any more.
pub(crate) fn retire(guard: &Guard, job: Job) {
    let this = reclaimer();
    this.given.fetch_add(1, Release);
    guard.0.defer(move || this.push(job));
    guard.0.flush();
    this.wake();
}

/// Runs `job` on the reclaimer soon.
pub(crate) fn free(job: Job) {
    let this = reclaimer();
    this.given.fetch_add(1, Release);
    this.push(job);
}

/// Whether this thread is the one that frees.
pub(crate) fn on_reclaimer() -> bool {
    IS_RECLAIMER.try_with(Cell::get).unwrap_or(true)
}

/// Waits until nothing that was handed over is left to be freed, also what the freeing itself
/// hands over (tests; a held pin or a busy cache delays it).
pub(crate) fn quiesce(bound: Duration) -> bool {
    let this = reclaimer();
    let until = std::time::Instant::now() + bound;
    // Done first: what is done was given before.
    while this.done.load(Acquire) != this.given.load(Acquire) {
        if std::time::Instant::now() > until {
            return false;
        }
        this.wake();
        std::thread::yield_now();
    }
    true
}
