//! The crate's locks, and the synchronisation types that loom instruments: std's, or loom's under `--cfg toolkit_loom`.
//!
//! [`Lock`] and [`SharedLock`] are the crate's only locks (`clippy.toml` forbids std's). They count
//! the guards that a thread holds, and [`crate::foreign`] asserts in debug builds that the thread
//! holds none when it calls foreign code: a waker, a limiter, a handler, the drop of an object.
//! Such code may call anything of this crate, so under a lock it could deadlock.
//!
//! The cfg has its own name, because tokio, which the tests use, does not build under `--cfg loom`:
//! with this one only the types here are loom's. The steps whose absence a model must detect have
//! names ([`weak::Site`]): a loom test leaves one of them out, and must then fail.

#![allow(clippy::disallowed_types)]

#[cfg(not(toolkit_loom))]
pub(crate) use std::sync::{Mutex, MutexGuard, atomic::AtomicU64};

#[cfg(toolkit_loom)]
pub(crate) use loom::sync::{Mutex, MutexGuard, atomic::AtomicU64};

#[cfg(toolkit_loom)]
pub(crate) use std::sync::atomic::Ordering::Release;
pub(crate) use std::sync::atomic::Ordering::{AcqRel, Acquire};

use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Locks a mutex that loom instruments, with the rule of [`Lock`].
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> HeldLock<MutexGuard<'_, T>> {
    HeldLock::new(mutex.lock().unwrap_or_else(PoisonError::into_inner))
}

thread_local! {
    /// The number of guards of this crate's locks that the thread holds.
    static HELD: Cell<u32> = const { Cell::new(0) };
}

/// Panics in a debug build if the calling thread holds a lock of this crate. `what` names the
/// foreign code that is about to be called.
#[inline]
pub(crate) fn assert_unlocked(what: &dyn std::fmt::Display) {
    if cfg!(debug_assertions) {
        // A thread that is ending has no counter any more, and no guard.
        let held = HELD.try_with(Cell::get).unwrap_or(0);
        assert!(held == 0, "{what} is called below a lock of the toolkit");
    }
}

/// Counts one guard of its thread.
struct Counted(());

impl Counted {
    fn new() -> Counted {
        // All threads of a loom model run on one thread of the system, so nothing is counted there.
        if cfg!(all(debug_assertions, not(toolkit_loom))) {
            HELD.try_with(|held| held.set(held.get() + 1)).ok();
        }
        Counted(())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        if cfg!(all(debug_assertions, not(toolkit_loom))) {
            HELD.try_with(|held| held.set(held.get() - 1)).ok();
        }
    }
}

/// A mutex under which no foreign code runs. Poisoning is ignored, because a panic under it is a bug of this crate.
#[derive(Default)]
pub(crate) struct Lock<T>(std::sync::Mutex<T>);

/// The guard of a [`Lock`], or of a [`SharedLock`].
pub(crate) struct HeldLock<G> {
    guard: G,
    _counted: Counted,
}

impl<G> HeldLock<G> {
    fn new(guard: G) -> HeldLock<G> {
        HeldLock { guard, _counted: Counted::new() }
    }
}

/// The guard of a [`Lock`].
pub(crate) type LockGuard<'a, T> = HeldLock<std::sync::MutexGuard<'a, T>>;

impl<G: Deref> Deref for HeldLock<G> {
    type Target = G::Target;

    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for HeldLock<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

impl<T> Lock<T> {
    pub(crate) fn new(value: T) -> Lock<T> {
        Lock(std::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> LockGuard<'_, T> {
        HeldLock::new(self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Stores a value, and returns the former one, which the caller drops after the lock is released.
    pub(crate) fn replace(&self, value: T) -> T {
        std::mem::replace(&mut *self.lock(), value)
    }
}

/// A lock that several readers hold at a time, with the rule of [`Lock`].
pub(crate) struct SharedLock<T>(RwLock<T>);

impl<T> SharedLock<T> {
    pub(crate) fn new(value: T) -> SharedLock<T> {
        SharedLock(RwLock::new(value))
    }

    pub(crate) fn read(&self) -> HeldLock<RwLockReadGuard<'_, T>> {
        HeldLock::new(self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn write(&self) -> HeldLock<RwLockWriteGuard<'_, T>> {
        HeldLock::new(self.0.write().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A step that a loom test may leave out, or take in another way.
#[cfg(not(toolkit_loom))]
macro_rules! step {
    ($site:ident, $step:expr, $instead:block) => {
        $step
    };
}
#[cfg(toolkit_loom)]
macro_rules! step {
    ($site:ident, $step:expr, $instead:block) => {
        if $crate::sync::weak::is($crate::sync::weak::Site::$site) { $instead } else { $step }
    };
}
pub(crate) use step;

/// Leaves one named step out, for a loom test that must then fail.
#[cfg(toolkit_loom)]
pub(crate) mod weak {
    use std::cell::Cell;

    /// The names of the steps.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(crate) enum Site {
        Nothing,
        /// A watcher swaps its word; weakened, it loads and stores it.
        TakeInOneStep,
        /// A publisher marks a member and gets its number; weakened, the number is older than the mark.
        MarkInOneStep,
        /// A publisher that leaves the line passes its wake-up on.
        LeaveLine,
        /// The removal of a member lets the publisher continue.
        MemberGone,
        /// A publisher that has published wakes the next in the line.
        NextInLine,
    }

    thread_local! {
        // One test runs on one thread of the system, including all threads of its model.
        static CHOSEN: Cell<Site> = const { Cell::new(Site::Nothing) };
    }

    /// Leaves `site` out in the models that this thread runs next.
    pub(crate) fn choose(site: Site) {
        CHOSEN.with(|chosen| chosen.set(site));
    }

    pub(crate) fn is(site: Site) -> bool {
        CHOSEN.with(Cell::get) == site
    }
}
