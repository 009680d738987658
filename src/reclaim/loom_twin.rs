//! The reclaimer for loom: an epoch small enough to be explored.
//!
//! A stand-in for the collector, not a model of it. It keeps the two promises that the core builds
//! on and no more: what was read under a pin happens before what was retired is freed, and a pin
//! taken after that sees everything before it. What is retired goes through the shipped inbox; jobs
//! run in `collect`, if nobody is pinned then.

use super::Job;
use crate::heap::Memory;
use crate::sync::weak::{self, Site};
use crate::sync::{Acquire, AtomicUsize, Inbox, Release, Track};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::mem::ManuallyDrop;

// These belong to one execution of a model; all its threads run on one thread of the system.
thread_local! {
    static EXPLORED: Cell<bool> = const { Cell::new(false) };
    static PINNED: Cell<usize> = const { Cell::new(0) };
    static UNPINS: Cell<usize> = const { Cell::new(0) };
    static WAITING: RefCell<Vec<Job>> = const { RefCell::new(Vec::new()) };
    static BOXES: RefCell<HashMap<usize, Track>> = RefCell::new(HashMap::new());
    static BURIED: RefCell<Vec<Box<dyn FnOnce()>>> = const { RefCell::new(Vec::new()) };
}

loom::lazy_static! {
    static ref UNPINNED: AtomicUsize = AtomicUsize::new(0);
    static ref COLLECTED: AtomicUsize = AtomicUsize::new(0);
    /// The jobs that were retired, in models that collect. Jobs that a model leaves are not run: the memory that they
    /// would free is gone with it.
    static ref RETIRED: ManuallyDrop<Inbox<ManuallyDrop<Job>>> = ManuallyDrop::new(Inbox::new());
}

/// Begins an execution. `collects`: pins and collections are steps that loom explores; a model
/// that never collects has no use for that.
pub(crate) fn begin(collects: bool) {
    EXPLORED.with(|explored| explored.set(collects));
    PINNED.with(|pinned| pinned.set(0));
    // The jobs that a failed execution has left belong to objects that are gone.
    std::mem::forget(WAITING.take());
    std::mem::forget(BOXES.take());
    BURIED.take().into_iter().for_each(|dig| dig());
}

fn explored() -> bool {
    EXPLORED.with(Cell::get)
}

pub(crate) struct Guard(());

pub(crate) fn pin() -> Guard {
    if explored() {
        COLLECTED.fetch_add(0, Acquire);
    }
    PINNED.with(|pinned| pinned.set(pinned.get() + 1));
    Guard(())
}

impl Drop for Guard {
    fn drop(&mut self) {
        if explored() && !std::thread::panicking() {
            UNPINNED.fetch_add(0, Release);
        }
        PINNED.with(|pinned| pinned.set(pinned.get() - 1));
        UNPINS.with(|unpins| unpins.set(unpins.get() + 1));
    }
}

pub(crate) fn retire(_bytes: usize, job: impl Into<Job>, _memory: &mut impl Memory) {
    let job = job.into();
    if weak::is(Site::Grace) {
        return job.run();
    }
    if explored() {
        RETIRED.push(ManuallyDrop::new(job));
    } else {
        WAITING.with_borrow_mut(|waiting| waiting.push(job));
    }
}

pub(crate) fn free(_bytes: usize, job: impl Into<Job>) {
    job.into().run();
}

/// A model has no backlog.
#[derive(Default)]
pub(crate) struct Backpressure;

impl Backpressure {
    pub(crate) fn wait_for_room(&mut self) {}
}

/// The twin of [`super::Allowance`]: nothing is counted.
pub(crate) struct Allowance;

impl Allowance {
    pub(crate) fn new(_bytes: u64) -> Allowance {
        Allowance
    }
}

pub(crate) fn held_bytes() -> u64 {
    0
}

pub(crate) fn progressed() {}

pub(crate) fn on_reclaimer() -> bool {
    true
}

/// Frees what was retired, if nobody is pinned. The reclaimer's part: any thread of a model.
pub(crate) fn collect() {
    // Taken before the pins are counted: a pin that comes after the take is no reader of these.
    let taken = RETIRED.take_all();
    UNPINNED.fetch_add(0, Acquire);
    let unpins = UNPINS.with(Cell::get);
    COLLECTED.fetch_add(1, Release);
    // Two words, so that an unpin releases nothing to a later pin: both must hold at once.
    let all_unpinned = PINNED.with(Cell::get) == 0 && UNPINS.with(Cell::get) == unpins;
    if all_unpinned {
        WAITING.take().into_iter().for_each(Job::run);
    }
    for job in taken {
        if all_unpinned {
            ManuallyDrop::into_inner(job).run();
        } else {
            RETIRED.push(job);
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
