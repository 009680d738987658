//! Deferred freeing: an own epoch collector and the one thread that frees (I6).
//!
//! Two questions are kept apart. *When may it be freed?* When no reader that could have loaded the
//! pointer is still pinned: the collector answers, and what it runs (on whatever thread pins next)
//! only pushes on a list. *Who frees?* Always the thread `watchcore-free`: neither the writer nor a
//! consumer pays for freeing, and a big drop never happens inside somebody's poll.
//!
//! The collector is our own, never crossbeam's default one: any crate's forgotten guard would stop
//! our reclamation.
//!
//! | step | partner | order |
//! | --- | --- | --- |
//! | `Published::replace` swaps the pointer | `Published::load` | Release / Acquire |
//! | `List::push` CAS | `List::take` swap | Release / Acquire |
//! | `asleep.swap(false)` after a push | `asleep.swap(true)`, then a look at the list | AcqRel: one of the two sees the other |

#[cfg(not(loom))]
use crate::sync::{AcqRel, Relaxed};
use crate::sync::{Acquire, AtomicPtr, Release, ord};

/// Something to be done on the reclaimer thread.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

#[cfg(not(loom))]
pub(crate) use real::{Guard, free, on_reclaimer, pin, quiesce, retire};
#[cfg(loom)]
pub(crate) use small::{Guard, Track, begin, boxed, bury, collect, free, on_reclaimer, pin, read, retire, unboxed};

#[cfg(not(loom))]
mod real {
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
}

/// The same interface for loom: an epoch small enough to be explored.
///
/// A stand-in for the collector, not a model of it. It keeps the two promises that the core builds
/// on and no more: what was read under a pin happens before what was retired is freed, and a pin
/// taken after that sees everything before it. Jobs run in `collect`, if nobody is pinned then.
#[cfg(loom)]
mod small {
    use super::Job;
    use crate::sync::weak::{self, Site};
    use crate::sync::{Acquire, AtomicUsize, Release};
    use std::cell::{Cell, RefCell};
    use std::collections::HashMap;

    // Of one execution of a model; all its threads run on one thread of the system.
    thread_local! {
        static SHOWN: Cell<bool> = const { Cell::new(false) };
        static PINNED: Cell<usize> = const { Cell::new(0) };
        static UNPINS: Cell<usize> = const { Cell::new(0) };
        static WAITING: RefCell<Vec<Job>> = const { RefCell::new(Vec::new()) };
        static BOXES: RefCell<HashMap<usize, Track>> = RefCell::new(HashMap::new());
        static BURIED: RefCell<Vec<Box<dyn FnOnce()>>> = const { RefCell::new(Vec::new()) };
    }

    loom::lazy_static! {
        static ref UNPINNED: AtomicUsize = AtomicUsize::new(0);
        static ref COLLECTED: AtomicUsize = AtomicUsize::new(0);
    }

    /// Begins an execution. `collects`: pins and collections are steps that loom explores; a model
    /// that never collects has no use for that.
    pub(crate) fn begin(collects: bool) {
        SHOWN.with(|shown| shown.set(collects));
        PINNED.with(|pinned| pinned.set(0));
        // What a failed execution left behind belongs to objects that are gone.
        std::mem::forget(WAITING.take());
        std::mem::forget(BOXES.take());
        BURIED.take().into_iter().for_each(|dig| dig());
    }

    fn shown() -> bool {
        SHOWN.with(Cell::get)
    }

    pub(crate) struct Guard(());

    pub(crate) fn pin() -> Guard {
        if shown() {
            COLLECTED.fetch_add(0, Acquire);
        }
        PINNED.with(|pinned| pinned.set(pinned.get() + 1));
        Guard(())
    }

    impl Drop for Guard {
        fn drop(&mut self) {
            if shown() && !std::thread::panicking() {
                UNPINNED.fetch_add(0, Release);
            }
            PINNED.with(|pinned| pinned.set(pinned.get() - 1));
            UNPINS.with(|unpins| unpins.set(unpins.get() + 1));
        }
    }

    pub(crate) fn retire(_: &Guard, job: Job) {
        if weak::is(Site::Grace) {
            return job();
        }
        WAITING.with_borrow_mut(|waiting| waiting.push(job));
    }

    pub(crate) fn free(job: Job) {
        job();
    }

    pub(crate) fn on_reclaimer() -> bool {
        true
    }

    /// Frees what was retired, if nobody is pinned. The reclaimer's part: any thread of a model.
    pub(crate) fn collect() {
        UNPINNED.fetch_add(0, Acquire);
        let unpins = UNPINS.with(Cell::get);
        COLLECTED.fetch_add(1, Release);
        // Two words, so that an unpin releases nothing to a later pin: both must hold at once.
        if PINNED.with(Cell::get) == 0 && UNPINS.with(Cell::get) == unpins {
            WAITING.take().into_iter().for_each(|job| job());
        }
    }

    /// Shows loom the reads of a plain object, and its making and its end.
    pub(crate) struct Track {
        cell: loom::cell::UnsafeCell<()>,
        ended: Cell<bool>,
    }

    // SAFETY: loom runs the threads of a model one at a time.
    unsafe impl Sync for Track {}
    // SAFETY: as above.
    unsafe impl Send for Track {}

    impl Track {
        pub(crate) fn new() -> Track {
            let track = Track { cell: loom::cell::UnsafeCell::new(()), ended: Cell::new(false) };
            track.written();
            track
        }

        pub(crate) fn written(&self) {
            self.cell.with_mut(|_| ());
        }

        #[track_caller]
        pub(crate) fn read(&self) {
            if !std::thread::panicking() {
                assert!(!self.ended.get(), "used after it was freed");
                self.cell.with(|_| ());
            }
        }

        pub(crate) fn end(&self) {
            if !std::thread::panicking() {
                assert!(!self.ended.replace(true), "freed twice");
                self.cell.with_mut(|_| ());
            }
        }
    }

    /// Frees memory when the next execution begins: a late read finds its [`Track`] ended.
    pub(crate) fn bury(dig: Box<dyn FnOnce()>) {
        BURIED.with_borrow_mut(|buried| buried.push(dig));
    }

    /// The [`Track`] of something that is reached by its address: what a `Published` holds, a segment.
    pub(crate) fn boxed(place: usize) {
        let track = Track::new();
        BOXES.with_borrow_mut(|boxes| boxes.insert(place, track));
    }

    #[track_caller]
    pub(crate) fn read(place: usize) {
        BOXES.with_borrow(|boxes| boxes.get(&place).expect("used after it was freed").read());
    }

    pub(crate) fn unboxed(place: usize) {
        if let Some(track) = BOXES.with_borrow_mut(|boxes| boxes.remove(&place)) {
            track.end();
        }
    }
}

/// A pointer that one writer replaces and any reader follows under a pin.
///
/// What was replaced is dropped on the reclaimer after the grace period.
pub(crate) struct Published<T: Send + Sync + 'static> {
    pointer: AtomicPtr<T>,
}

impl<T: Send + Sync + 'static> Published<T> {
    pub(crate) fn new(value: T) -> Published<T> {
        let place = Box::into_raw(Box::new(value));
        #[cfg(loom)]
        small::boxed(place as usize);
        Published { pointer: AtomicPtr::new(place) }
    }

    /// The value now. Acquire: partner of the swap in [`Published::replace`].
    #[inline]
    pub(crate) fn load<'g>(&self, _pin: &'g Guard) -> &'g T {
        let place = self.pointer.load(ord!(Load<T>, Acquire));
        #[cfg(loom)]
        small::read(place as usize);
        // SAFETY: I4, I9: never null, and a replaced value is dropped only after every pin that
        // could have loaded it has gone; the reference does not outlive the pin.
        unsafe { &*place }
    }

    /// Publishes a new value and retires the old one.
    pub(crate) fn replace(&self, value: Box<T>, pin: &Guard) {
        // Release: partner of the load above.
        let place = Box::into_raw(value);
        #[cfg(loom)]
        small::boxed(place as usize);
        let old = self.pointer.swap(place, ord!(Replace<T>, Release));
        // SAFETY: it came from a box and left the only place that had it.
        let old = unsafe { Box::from_raw(old) };
        retire(pin, Box::new(move || unbox(old)));
    }
}

impl<T: Send + Sync + 'static> Drop for Published<T> {
    fn drop(&mut self) {
        let pointer = self.pointer.load(Acquire);
        // SAFETY: the last owner is here, nobody can load it any more.
        let value = unsafe { Box::from_raw(pointer) };
        if on_reclaimer() { unbox(value) } else { free(Box::new(move || unbox(value))) }
    }
}

fn unbox<T>(value: Box<T>) {
    #[cfg(loom)]
    small::unboxed(&raw const *value as usize);
    drop(value);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    struct Noisy(Arc<AtomicUsize>);
    impl Drop for Noisy {
        fn drop(&mut self) {
            assert!(on_reclaimer());
            self.0.fetch_add(1, Release);
        }
    }

    #[test]
    fn replaced_values_are_dropped_on_the_reclaimer() {
        let drops = Arc::new(AtomicUsize::new(0));
        let published = Published::new(Noisy(drops.clone()));
        for _ in 0..100 {
            published.replace(Box::new(Noisy(drops.clone())), &pin());
        }
        assert!(quiesce(Duration::from_secs(30)));
        assert_eq!(drops.load(Acquire), 100);
        drop(published);
        assert!(quiesce(Duration::from_secs(30)));
        assert_eq!(drops.load(Acquire), 101);
    }

    #[test]
    fn a_pin_keeps_what_it_loaded() {
        let drops = Arc::new(AtomicUsize::new(0));
        let published = Published::new(Noisy(drops.clone()));
        let guard = pin();
        let _held = published.load(&guard);
        published.replace(Box::new(Noisy(drops.clone())), &pin());
        assert!(!quiesce(Duration::from_millis(30)));
        assert_eq!(drops.load(Acquire), 0);
        drop(guard);
        assert!(quiesce(Duration::from_secs(30)));
        assert_eq!(drops.load(Acquire), 1);
    }
}
