//! The collector, the thread that frees, and the bound of what waits for it.

use super::Job;
use crate::foreign;
use crate::heap::{self, Memory, System};
use crate::sync::{AcqRel, Acquire, AtomicBool, Inbox, Relaxed, Release};
use crossbeam_epoch::{Collector, LocalHandle};
use crossbeam_utils::CachePadded;
use std::cell::Cell;
use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Something that was retired.
struct Queued {
    job: Job,
    /// What it frees.
    bytes: u64,
    /// Readers may have loaded its pointer: not before they are unpinned.
    grace: bool,
}

/// Jobs, retired by any thread, done by one.
struct Reclaimer {
    collector: Collector,
    inbox: Inbox<Queued>,
    /// Batches whose grace period is over.
    ripe: Inbox<Vec<Queued>>,
    /// Raised by the threads that retire.
    queued: CachePadded<Sums>,
    /// Raised by the reclaimer. Done is loaded first: what is done was retired before.
    done: CachePadded<Sums>,
    /// Bytes deferred, and bytes whose grace period is over.
    deferred: AtomicU64,
    ripened: AtomicU64,
    /// What of them readers held back when the reclaimer last tried. Its own delay is not theirs.
    unripe: AtomicU64,
    /// Rises whenever anything was freed: the reclaimer stores it with each version.
    progress: CachePadded<AtomicU64>,
    /// Bytes that may wait before writers do.
    bound: AtomicU64,
    asleep: AtomicBool,
    thread: OnceLock<Thread>,
    starting: Mutex<()>,
}

/// How many things, and how many bytes they free.
#[derive(Default)]
struct Sums {
    jobs: AtomicU64,
    bytes: AtomicU64,
}

/// How often the reclaimer looks while it is busy: nobody has to wake it meanwhile.
const TICK: Duration = Duration::from_millis(2);
/// With more than this to free it does not pause.
const MUCH: u64 = 1 << 20;
/// What may wait in a process, beside the caches' allowances.
const BASE: u64 = 64 << 20;
/// A writer's pause.
const STEP: Duration = Duration::from_micros(250);
/// A writer does not wait for a reclaimer that has freed nothing for so long.
const PATIENCE: Duration = Duration::from_secs(1);

thread_local! {
    static LOCAL: LocalHandle = reclaimer().collector.register();
    static IS_RECLAIMER: Cell<bool> = const { Cell::new(false) };
}

#[cfg(test)]
thread_local! {
    /// Pins and deferrals of this thread.
    pub(crate) static WORK: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

#[cfg(test)]
fn count(pins: u64, deferrals: u64) {
    let _ = WORK.try_with(|work| work.set((work.get().0 + pins, work.get().1 + deferrals)));
}

fn reclaimer() -> &'static Reclaimer {
    static GLOBAL: OnceLock<Reclaimer> = OnceLock::new();
    GLOBAL.get_or_init(|| Reclaimer {
        collector: Collector::new(),
        inbox: Inbox::new(),
        ripe: Inbox::new(),
        queued: CachePadded::default(),
        done: CachePadded::default(),
        deferred: AtomicU64::new(0),
        ripened: AtomicU64::new(0),
        unripe: AtomicU64::new(0),
        progress: CachePadded::default(),
        bound: AtomicU64::new(BASE),
        asleep: AtomicBool::new(false),
        thread: OnceLock::new(),
        starting: Mutex::new(()),
    })
}

impl Reclaimer {
    fn enqueue(&self, bytes: usize, grace: bool, job: Job, memory: &mut impl Memory) {
        // Relaxed: statistics. Release: partner of the Acquire in `run`.
        self.queued.bytes.fetch_add(bytes as u64, Relaxed);
        self.queued.jobs.fetch_add(1, Release);
        const { assert!(Inbox::<Queued>::NODE.align() <= heap::ALIGN) };
        let place = memory.allocate(Inbox::<Queued>::NODE.size());
        // SAFETY: a block of our own, of that layout, that any thread may free.
        if unsafe { self.inbox.push_in(place, heap::free, Queued { job, bytes: bytes as u64, grace }) } {
            self.wake();
        }
    }

    fn wake(&self) {
        // Partner: `run` sets `asleep`, then loads the count of what was retired.
        if self.asleep.swap(false, AcqRel)
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }

    /// Bytes queued and not freed.
    fn held(&self) -> u64 {
        let done = self.done.bytes.load(Relaxed);
        self.queued.bytes.load(Relaxed).saturating_sub(done)
    }

    /// Bytes that nobody but the reclaimer keeps.
    fn freeable(&self) -> u64 {
        self.held().saturating_sub(self.unripe.load(Relaxed))
    }

    fn is_done(&self) -> bool {
        let done = self.done.jobs.load(Acquire);
        self.queued.jobs.load(Acquire) == done
    }

    fn run(&'static self) {
        IS_RECLAIMER.with(|is| is.set(true));
        loop {
            let did = self.work();
            if did || !self.is_done() {
                if self.held() < MUCH {
                    std::thread::park_timeout(TICK);
                }
                continue;
            }
            self.asleep.swap(true, AcqRel);
            if self.is_done() {
                std::thread::park();
            }
            self.asleep.swap(false, AcqRel);
        }
    }

    /// Defers what needs a grace period, and frees what needs none or has had it. True: something was
    /// there.
    fn work(&'static self) -> bool {
        let (unripe, now): (Vec<_>, Vec<_>) = self.inbox.take_all().into_iter().partition(|queued| queued.grace);
        let mut did = !(unripe.is_empty() && now.is_empty());
        if !unripe.is_empty() {
            self.defer(unripe);
        }
        // An epoch advances by one a time, and is old enough after two.
        for _ in 0..3 {
            pin().0.flush();
        }
        let ripened = self.ripened.load(Relaxed);
        self.unripe.store(self.deferred.load(Relaxed).saturating_sub(ripened), Relaxed);
        now.into_iter().for_each(|queued| self.free(queued));
        for batch in self.ripe.take_all() {
            did = true;
            batch.into_iter().for_each(|queued| self.free(queued));
        }
        did
    }

    /// One closure for all of it. The thread whose pin runs it only pushes.
    fn defer(&'static self, batch: Vec<Queued>) {
        let bytes: u64 = batch.iter().map(|queued| queued.bytes).sum();
        self.deferred.fetch_add(bytes, Relaxed);
        #[cfg(test)]
        count(0, 1);
        pin().0.defer(move || {
            self.ripened.fetch_add(bytes, Relaxed);
            self.ripe.push(batch);
        });
    }

    fn free(&self, queued: Queued) {
        if foreign::guard(|| queued.job.run()).is_none() {
            tracing::error!("a drop panicked on the reclaimer; it continues");
        }
        self.done.bytes.fetch_add(queued.bytes, Relaxed);
        self.done.jobs.fetch_add(1, Release);
        progressed();
    }
}

/// Starts the reclaimer, if this process has none yet.
pub(crate) fn start() -> io::Result<()> {
    let this = reclaimer();
    if this.thread.get().is_some() {
        return Ok(());
    }
    let _starting = this.starting.lock().unwrap_or_else(PoisonError::into_inner);
    if this.thread.get().is_none() {
        let handle = crate::sys::spawn("watchcore-free", move || this.run())?;
        let _ = this.thread.set(handle.thread().clone());
        // It may have gone to sleep before its handle stood here.
        handle.thread().unpark();
    }
    Ok(())
}

/// A pin: what was loaded under it stays until it is dropped.
pub(crate) struct Guard(crossbeam_epoch::Guard);

/// Pins this thread. Cheap (a store and a fence); nests. A reader's affair: the writer takes none.
pub(crate) fn pin() -> Guard {
    #[cfg(test)]
    count(1, 0);
    Guard(LOCAL.try_with(LocalHandle::pin).unwrap_or_else(|_| reclaimer().collector.register().pin()))
}

/// Whether this thread holds a pin.
#[cfg(test)]
pub(crate) fn is_pinned() -> bool {
    LOCAL.with(LocalHandle::is_pinned)
}

/// Runs `job`, which frees so many bytes, on the reclaimer once no thread pinned now is pinned any
/// more. The caller has unlinked before what the job frees. Where it waits until then is a block of `memory`.
pub(crate) fn retire(bytes: usize, job: impl Into<Job>, memory: &mut impl Memory) {
    reclaimer().enqueue(bytes, true, job.into(), memory);
}

/// Runs `job`, which frees so many bytes, on the reclaimer soon.
pub(crate) fn free(bytes: usize, job: impl Into<Job>) {
    reclaimer().enqueue(bytes, false, job.into(), &mut System);
}

/// Whether this thread is the one that frees.
pub(crate) fn on_reclaimer() -> bool {
    IS_RECLAIMER.try_with(Cell::get).unwrap_or(true)
}

/// Something was freed: writers that wait see that the reclaimer gets on. Only the reclaimer.
pub(crate) fn progressed() {
    let progress = &reclaimer().progress;
    progress.store(progress.load(Relaxed) + 1, Relaxed);
}

/// Bytes of this process that were retired and are not freed yet.
pub(crate) fn held_bytes() -> u64 {
    reclaimer().held()
}

/// What a cache adds to the bound, while it lives.
pub(crate) struct Allowance(u64);

impl Allowance {
    pub(crate) fn new(bytes: u64) -> Allowance {
        reclaimer().bound.fetch_add(bytes, Relaxed);
        Allowance(bytes)
    }
}

impl Drop for Allowance {
    fn drop(&mut self) {
        reclaimer().bound.fetch_sub(self.0, Relaxed);
    }
}

/// How a writer waits for the reclaimer.
#[derive(Default)]
pub(crate) struct Patience {
    /// The progress at which waiting was given up: not again before it has moved.
    stuck: Option<u64>,
}

impl Patience {
    /// Waits while more than the bound could be freed now, and the reclaimer gets on. Never for a
    /// reader: what waits for its grace period is left out.
    #[inline]
    pub(crate) fn wait_for_room(&mut self) {
        let this = reclaimer();
        if this.freeable() > this.bound.load(Relaxed) {
            self.wait(this);
        }
    }

    #[cold]
    fn wait(&mut self, this: &Reclaimer) {
        // A user's drop may write: it would wait for itself.
        if on_reclaimer() || this.thread.get().is_none() {
            return;
        }
        let mut seen = this.progress.load(Relaxed);
        let mut since = Instant::now();
        loop {
            if this.freeable() <= this.bound.load(Relaxed) || self.stuck == Some(seen) {
                return;
            }
            std::thread::sleep(STEP);
            let now = this.progress.load(Relaxed);
            if now != seen {
                (seen, since) = (now, Instant::now());
            } else if since.elapsed() > PATIENCE {
                self.stuck = Some(seen);
                return;
            }
        }
    }
}

/// Waits until nothing that was retired is left to be freed, also what the freeing itself
/// retires (tests; a held pin or a busy cache delays it).
pub(crate) fn quiesce(bound: Duration) -> bool {
    let this = reclaimer();
    if start().is_err() {
        return false;
    }
    let until = Instant::now() + bound;
    while !this.is_done() {
        if Instant::now() > until {
            return false;
        }
        this.wake();
        std::thread::yield_now();
    }
    // The collector keeps the memory of its own lists until epochs have passed.
    for _ in 0..64 {
        pin().0.flush();
    }
    true
}
