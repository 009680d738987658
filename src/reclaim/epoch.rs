//! The collector, the thread that frees, and the bound of what waits for it.

use super::job::Job;
use crate::foreign;
use crate::heap::{self, Memory, System};
use crate::sync::{Acquire, Inbox, Mutex, Relaxed, Release, lock, step};
use crate::worker::{Worker, needs};
use crossbeam_epoch::{Collector, LocalHandle};
use crossbeam_utils::CachePadded;
use std::cell::Cell;
use std::io;
use std::mem::ManuallyDrop;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

/// Something that was retired.
struct Queued {
    job: Job,
    /// The bytes that it frees.
    bytes: u64,
    /// Readers may have loaded its pointer: not before they are unpinned.
    grace: bool,
}

/// Jobs, retired by any thread, done by one.
struct Reclaimer {
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
    /// The bytes that readers held back when the reclaimer last tried, without those that its own delay keeps.
    unripe: AtomicU64,
    /// Rises whenever anything was freed: the reclaimer stores it with each version.
    progress: CachePadded<AtomicU64>,
    /// Bytes that may wait before writers do.
    bound: AtomicU64,
    worker: Worker,
}

static RECLAIMER: Reclaimer = Reclaimer::new();

/// How many things, and how many bytes they free.
struct Sums {
    jobs: AtomicU64,
    bytes: AtomicU64,
}

impl Sums {
    const fn new() -> Sums {
        Sums { jobs: AtomicU64::new(0), bytes: AtomicU64::new(0) }
    }
}

/// How often the reclaimer looks while it is busy: nobody has to wake it meanwhile.
const TICK: Duration = Duration::from_millis(2);
/// With more than this to free it does not pause.
const MUCH: u64 = 1 << 20;
/// The bytes that may wait in a process, beside the caches' allowances.
const BASE: u64 = 64 << 20;
/// An allowance is no larger: sixteen TiB, so that a million of them do not wrap the sum.
const MOST_ALLOWED: u64 = 1 << 44;
/// A writer's pause.
const STEP: Duration = Duration::from_micros(250);
/// A writer does not wait for a reclaimer that has freed nothing for so long.
const STALL_LIMIT: Duration = Duration::from_secs(1);
/// How often who stands in for the thread tries while a grace period lasts.
const TRIES: u32 = 64;

/// The collector of all threads that are registered with it, and their number. The last thread drops it: two collectors
/// at once would not know of each other's pins.
struct Registered {
    collector: Option<Collector>,
    threads: usize,
}

static REGISTERED: Mutex<Registered> = Mutex::new(Registered { collector: None, threads: 0 });

/// A thread's registration.
struct ThreadRegistration(ManuallyDrop<LocalHandle>);

impl ThreadRegistration {
    fn new() -> ThreadRegistration {
        let mut registered = lock(&REGISTERED);
        registered.threads += 1;
        ThreadRegistration(ManuallyDrop::new(registered.collector.get_or_insert_with(Collector::new).register()))
    }
}

impl Drop for ThreadRegistration {
    fn drop(&mut self) {
        // SAFETY: here alone, and it is not used after.
        unsafe { ManuallyDrop::drop(&mut self.0) };
        leave();
    }
}

/// A thread is not registered any more.
fn leave() {
    let mut registered = lock(&REGISTERED);
    registered.threads -= 1;
    // With what was deferred to it: without the lock, since that may be much.
    let last = if registered.threads == 0 { registered.collector.take() } else { None };
    drop(registered);
    drop(last);
}

/// The registration of one pin, made because its thread's own registration is gone.
struct LatePin(bool);

impl Drop for LatePin {
    #[inline]
    fn drop(&mut self) {
        if self.0 {
            leave();
        }
    }
}

thread_local! {
    static LOCAL: ThreadRegistration = ThreadRegistration::new();
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

impl Reclaimer {
    const fn new() -> Reclaimer {
        Reclaimer {
            inbox: Inbox::new(),
            ripe: Inbox::new(),
            queued: CachePadded::new(Sums::new()),
            done: CachePadded::new(Sums::new()),
            deferred: AtomicU64::new(0),
            ripened: AtomicU64::new(0),
            unripe: AtomicU64::new(0),
            progress: CachePadded::new(AtomicU64::new(0)),
            bound: AtomicU64::new(BASE),
            worker: Worker::new("watchcore-free"),
        }
    }

    fn enqueue(&'static self, bytes: usize, grace: bool, job: Job, memory: &mut impl Memory) {
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

    /// Raises the bound; by how much.
    fn allow(&self, bytes: u64) -> u64 {
        let bytes = bytes.min(MOST_ALLOWED);
        self.bound.fetch_add(bytes, Relaxed);
        bytes
    }

    fn wake(&'static self) {
        // Partner: `run` and `stand_in`, which look once more before they leave.
        if !self.worker.wake() {
            self.stand_in();
        }
    }

    /// Frees in place of the reclaimer, whose thread has ended with a shutdown, on the thread that releases something after
    /// it. The caller returns when nothing is left, or as soon as there is a thread again.
    #[cold]
    fn stand_in(&'static self) {
        let was = IS_RECLAIMER.try_with(|is| is.replace(true));
        let mut tries = 0;
        loop {
            tries += u32::from(!self.work());
            if tries == TRIES {
                step("stand-in gives up");
            }
            // Somebody may be inside a pin: what is left is freed with what comes next.
            if self.worker.may_leave(|| self.inbox.is_empty() && (self.is_done() || tries >= TRIES)) {
                break;
            }
        }
        let _ = IS_RECLAIMER.try_with(|is| is.set(was.unwrap_or(true)));
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

    /// The thread, which ends only while it `is_free` to.
    fn run(&'static self, is_free: impl Fn() -> bool) {
        IS_RECLAIMER.with(|is| is.set(true));
        loop {
            step("reclaimer looks");
            let did = self.work();
            if did || !self.is_done() {
                // What readers hold back is nothing to hurry for.
                if self.freeable() < MUCH {
                    step("reclaimer pauses");
                    std::thread::park_timeout(TICK);
                }
                continue;
            }
            if self.worker.is_over(|| is_free() && self.is_done()) {
                return;
            }
            self.worker.sleep(None, || self.is_done());
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

    /// Defers one closure for the whole batch. The thread whose pin runs it only pushes.
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
            foreign::report(|| tracing::error!("a drop panicked on the reclaimer; it continues"));
        }
        self.done.bytes.fetch_add(queued.bytes, Relaxed);
        self.done.jobs.fetch_add(1, Release);
        progressed();
    }
}

/// Starts the reclaimer, if this process has none.
pub(crate) fn start() -> io::Result<()> {
    RECLAIMER.worker.start(|| RECLAIMER.run(|| needs() == 0))
}

/// The thread, for who ends it.
pub(crate) fn worker() -> &'static Worker {
    &RECLAIMER.worker
}

/// A pin: what was loaded under it stays until it is dropped.
pub(crate) struct Guard(crossbeam_epoch::Guard, #[allow(dead_code, reason = "its drop")] LatePin);

/// Pins this thread. Cheap (a store and a fence); nests. A reader's affair: the writer takes none.
pub(crate) fn pin() -> Guard {
    #[cfg(test)]
    count(1, 0);
    match LOCAL.try_with(|local| local.0.pin()) {
        Ok(guard) => Guard(guard, LatePin(false)),
        Err(_) => pin_late(),
    }
}

/// The thread's own registration is gone: its destructors run, or the process's.
#[cold]
fn pin_late() -> Guard {
    let mut local = ManuallyDrop::new(ThreadRegistration::new());
    let guard = local.0.pin();
    // SAFETY: here alone, and `local` is not dropped. A handle may go before its guard; that the thread is counted
    // ends after it, with `LatePin`.
    unsafe { ManuallyDrop::drop(&mut local.0) };
    Guard(guard, LatePin(true))
}

/// Whether this thread holds a pin.
#[cfg(test)]
pub(crate) fn is_pinned() -> bool {
    LOCAL.with(|local| local.0.is_pinned())
}

/// Runs `job`, which frees so many bytes, on the reclaimer once no thread pinned now is pinned any
/// more. The caller has unlinked before what the job frees. Where it waits until then is a block of `memory`.
pub(crate) fn retire(bytes: usize, job: impl Into<Job>, memory: &mut impl Memory) {
    RECLAIMER.enqueue(bytes, true, job.into(), memory);
}

/// Runs `job`, which frees so many bytes, on the reclaimer soon.
pub(crate) fn free(bytes: usize, job: impl Into<Job>) {
    RECLAIMER.enqueue(bytes, false, job.into(), &mut System);
}

/// Whether this thread is the one that frees.
pub(crate) fn on_reclaimer() -> bool {
    IS_RECLAIMER.try_with(Cell::get).unwrap_or(true)
}

/// Something was freed: writers that wait see that the reclaimer gets on. Only the reclaimer.
pub(crate) fn progressed() {
    let progress = &RECLAIMER.progress;
    progress.store(progress.load(Relaxed) + 1, Relaxed);
}

/// Bytes of this process that were retired and are not freed yet.
pub(crate) fn held_bytes() -> u64 {
    RECLAIMER.held()
}

/// The bytes that a cache adds to the bound, while it lives.
pub(crate) struct Allowance(u64);

impl Allowance {
    pub(crate) fn new(bytes: u64) -> Allowance {
        Allowance(RECLAIMER.allow(bytes))
    }
}

impl Drop for Allowance {
    fn drop(&mut self) {
        RECLAIMER.bound.fetch_sub(self.0, Relaxed);
    }
}

/// How a writer waits for the reclaimer.
#[derive(Default)]
pub(crate) struct Backpressure {
    /// The progress at which waiting was given up: not again before it has moved.
    stuck: Option<u64>,
}

impl Backpressure {
    /// Waits while more than the bound could be freed now, and the reclaimer gets on. Never for a
    /// reader: what waits for its grace period is left out.
    #[inline]
    pub(crate) fn wait_for_room(&mut self) {
        let this = &RECLAIMER;
        if this.freeable() > this.bound.load(Relaxed) {
            self.wait(this);
        }
    }

    #[cold]
    fn wait(&mut self, this: &'static Reclaimer) {
        // A user's drop may write: it would wait for itself.
        if on_reclaimer() || !this.worker.is_running() {
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
            } else if since.elapsed() > STALL_LIMIT {
                self.stuck = Some(seen);
                return;
            }
        }
    }
}

/// Waits until nothing that was retired is left to be freed, also what the freeing itself
/// retires (tests; a held pin or a busy cache delays it).
pub(crate) fn quiesce(bound: Duration) -> bool {
    let this = &RECLAIMER;
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

#[cfg(test)]
mod tests;
