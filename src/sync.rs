//! The synchronisation words of the core: std's, or loom's under `--cfg loom`.
//!
//! Everything that takes part in an ordering of the tables in the heads of the modules comes from here, so that
//! the loom tests run the shipped types. Bookkeeping that carries no ordering (statistics, the
//! writer's private state) uses std directly.
//!
//! An access whose order a loom test proves has a name: `ord!(Head, Release)` is `Release`. Under
//! loom a test may weaken one name, and must then fail.

mod inbox;
mod steps;

#[allow(unused_imports, reason = "the notifier and the writer's requests come to use it")]
pub(crate) use inbox::Inbox;
#[cfg(all(test, not(loom)))]
pub(crate) use steps::hooked;
pub(crate) use steps::step;

#[cfg(not(loom))]
pub(crate) use std::sync::{
    Arc, Condvar, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, fence},
};

#[cfg(loom)]
pub(crate) use loom::sync::{
    Arc, Condvar, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, fence},
};

pub(crate) use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

/// Locks a mutex; a poisoned one is used as it is (its data has no broken middle states).
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The value, if this was its last count.
#[cfg(not(loom))]
pub(crate) fn into_inner<T>(arc: Arc<T>) -> Option<T> {
    Arc::into_inner(arc)
}

/// Under loom the last count drops the value where it is given back.
#[cfg(loom)]
pub(crate) fn into_inner<T>(arc: Arc<T>) -> Option<T> {
    drop(arc);
    None
}

/// The order of a named access.
#[cfg(not(loom))]
macro_rules! ord {
    ($site:ident $(<$of:ty>)?, $order:expr) => {
        $order
    };
}
#[cfg(loom)]
macro_rules! ord {
    ($site:ident, $order:expr) => {
        $crate::sync::weak::order($crate::sync::weak::Site::$site, "", $order)
    };
    ($site:ident<$of:ty>, $order:expr) => {
        $crate::sync::weak::order($crate::sync::weak::Site::$site, std::any::type_name::<$of>(), $order)
    };
}
pub(crate) use ord;

/// Weakens one named access for a loom test that must fail then.
#[cfg(loom)]
pub(crate) mod weak {
    use std::cell::Cell;
    use std::sync::atomic::Ordering;

    /// The names. Where a lock makes an order redundant, a step is left out instead.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(crate) enum Site {
        Nothing,
        InboxPush,
        InboxTake,
        /// `Published`: the swap and the load, by the type that is published.
        Replace,
        Load,
        Entry,
        EntryLoad,
        Head,
        HeadLoad,
        Oldest,
        Progress,
        ProgressLoad,
        Newest,
        NewestLoad,
        GiveBack,
        GiveBackLast,
        Ready,
        Closed,
        ClosedLoad,
        End,
        EndLoad,
        PublishFence,
        RegisterFence,
        NotifierPending,
        BucketNewest,
        BucketNewestLoad,
        Answer,
        AnswerLoad,
        HandOver,
        /// Step: a bucket claims to be linked from the beginning.
        EarlyBoundary,
        /// Step: a bucket that is in use is evicted.
        EvictUsed,
        /// Step: what is retired goes at once, without a grace period.
        Grace,
        /// Step: what is replaced is handed to the reclaimer before it is unlinked.
        PushEarly,
        /// Step: a set drains its descriptor after it was armed, too.
        DrainLate,
    }

    thread_local! {
        // One test runs on one thread of the system, all threads of its model included.
        static CHOSEN: Cell<(Site, &'static str)> = const { Cell::new((Site::Nothing, "")) };
    }

    /// Weakens `site` (of the type whose name ends so) in the models that this thread runs next.
    pub(crate) fn choose(site: Site, of: &'static str) {
        CHOSEN.with(|chosen| chosen.set((site, of)));
    }

    pub(crate) fn is(site: Site) -> bool {
        CHOSEN.with(Cell::get).0 == site
    }

    /// Takes a step a second time, later than it belongs.
    pub(crate) fn late(site: Site, step: impl FnOnce()) {
        if is(site) {
            step();
        }
    }

    /// One step weaker: a SeqCst fence is AcqRel, everything else Relaxed.
    pub(crate) fn order(site: Site, of: &str, order: Ordering) -> Ordering {
        let (chosen, end) = CHOSEN.with(Cell::get);
        if chosen != site || !of.ends_with(end) {
            return order;
        }
        if order == Ordering::SeqCst { Ordering::AcqRel } else { Ordering::Relaxed }
    }
}
