//! The synchronisation words of what loom looks at: std's, or loom's under `--cfg toolkit_loom`.
//!
//! A cfg of the crate's own, because tokio, which the tests use, does not build under `--cfg loom`: with this one only the
//! types here are loom's. The steps that a model must find missing have names ([`weak::Site`]): under loom a test leaves one of
//! them out, and must then fail.

#[cfg(not(toolkit_loom))]
pub(crate) use std::sync::{Mutex, MutexGuard, atomic::AtomicU64};

#[cfg(toolkit_loom)]
pub(crate) use loom::sync::{Mutex, MutexGuard, atomic::AtomicU64};

#[cfg(toolkit_loom)]
pub(crate) use std::sync::atomic::Ordering::Release;
pub(crate) use std::sync::atomic::Ordering::{AcqRel, Acquire};

/// Locks a mutex; a poisoned one is used as it is (its data has no broken middle states).
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// A step that a model may leave out, or take in another way.
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

/// Leaves one named step out, for a loom test that must fail then.
#[cfg(toolkit_loom)]
pub(crate) mod weak {
    use std::cell::Cell;

    /// The names.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(crate) enum Site {
        Nothing,
        /// A watcher swaps its word; weakened, it loads and stores it.
        TakeInOneStep,
        /// A publisher marks a seat and gets its number; weakened, the number is older than the mark.
        MarkInOneStep,
        /// Who leaves the line passes on what it was woken for.
        LeaveLine,
        /// A seat that goes lets the publisher go on.
        SeatGone,
        /// Who has published looks for the next in the line.
        NextInLine,
    }

    thread_local! {
        // One test runs on one thread of the system, all threads of its model included.
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
