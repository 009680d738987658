//! The synchronisation words of the core: std's, or loom's under `--cfg loom`.
//!
//! Everything that takes part in an ordering of the tables in the heads of the modules comes from here, so that
//! the loom tests run the shipped types. Bookkeeping that carries no ordering (statistics, the
//! writer's private state) uses std directly.
//!
//! `docs/internals/memory-model.md` lists them, and has the order of a commit with an example in numbers.
//!
//! An access whose order a loom test proves has a name: `ord!(Head, Release)` is `Release`. Under
//! loom a test may weaken one name, and must then fail.

mod inbox;
mod once;
mod steps;
#[cfg(loom)]
mod track;

pub(crate) use inbox::{Inbox, Taken};
pub(crate) use once::OnceArc;
#[cfg(all(test, not(loom)))]
pub(crate) use steps::hooked;
pub(crate) use steps::step;
#[cfg(loom)]
pub(crate) use track::Track;

#[cfg(not(loom))]
pub(crate) use std::sync::{
    Arc, Mutex, MutexGuard, RwLock,
    atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, fence},
};

#[cfg(loom)]
pub(crate) use loom::sync::{
    Arc, Mutex, MutexGuard, RwLock,
    atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, fence},
};

pub(crate) use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

/// Locks a mutex; a poisoned one is used as it is (its data has no broken middle states).
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(loom)]
pub(crate) use loom::thread::yield_now as spin;
#[cfg(loom)]
pub(crate) use loom_sleep::{Thread, current_thread, park};
#[cfg(not(loom))]
pub(crate) use std::thread::{Thread, current as current_thread, park, park_timeout};

/// How many of what a test does often: Miri takes some thousand times as long.
#[cfg(all(test, not(loom)))]
pub(crate) const fn often(many: usize) -> usize {
    if cfg!(miri) { many.div_ceil(50) } else { many }
}

/// Lets the others continue: for a wait of a few instructions of another thread.
#[cfg(not(loom))]
pub(crate) fn spin() {
    std::thread::yield_now();
}

/// Sleeping threads for loom. Its own `unpark` wakes a thread out of any wait, a join too, and a late one is
/// legal: here it leaves a token, as the system's does.
#[cfg(loom)]
mod loom_sleep {
    use super::lock;
    use loom::sync::{Condvar, Mutex};
    use std::sync::Arc;

    #[derive(Clone)]
    pub(crate) struct Thread(Arc<(Mutex<bool>, Condvar)>);

    loom::thread_local! {
        static CURRENT: Thread = Thread(Arc::new((Mutex::new(false), Condvar::new())));
    }

    pub(crate) fn current_thread() -> Thread {
        CURRENT.with(Thread::clone)
    }

    pub(crate) fn park() {
        let thread = current_thread();
        let mut token = lock(&thread.0.0);
        while !std::mem::take(&mut *token) {
            token = thread.0.1.wait(token).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }

    impl Thread {
        pub(crate) fn unpark(&self) {
            *lock(&self.0.0) = true;
            self.0.1.notify_one();
        }
    }
}

/// loom has no time: a thread that sleeps is woken.
#[cfg(loom)]
pub(crate) fn park_timeout(_: std::time::Duration) {
    park();
}

/// The value, if this was its last count.
#[cfg(not(loom))]
pub(crate) fn into_inner<T>(arc: Arc<T>) -> Option<T> {
    Arc::into_inner(arc)
}

/// Under loom the last count drops the value where it is released.
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

    /// The names. For an order that a lock makes redundant, the mutation leaves out a step instead.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(crate) enum Site {
        Nothing,
        InboxPush,
        InboxTake,
        /// A slab: a block that comes back, and the owner that takes what came; announced, and taken.
        BlockFreed,
        BlocksTaken,
        SlabAnnounced,
        SlabsTaken,
        SlabOrphan,
        HomeClosed,
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
        /// A leaf of the index: what is appended to it.
        Tail,
        TailLoad,
        /// The table of slots: an entry in its cell, a page in the place of another.
        TableEntry,
        TableEntryLoad,
        TablePage,
        TablePageLoad,
        CountRelease,
        CountReleaseLast,
        /// A worker: it is called; it rests; who stands in leaves. Step: it ends though it was called.
        DutyCall,
        DutyRest,
        DutyLeave,
        BlindEnd,
        Ready,
        Closed,
        /// A parked waiter: claimed, settled.
        Claim,
        Settle,
        /// Step: a consumer takes off what who woke it has taken off.
        UncountedTwice,
        ArmFence,
        NotifierFence,
        /// Steps of a pass in portions: the scan says that it has come to the head before it has come to every group; a wake-up that
        /// goes on at a later head says that its members were looked at up to there; a member that is moved to its bucket is not
        /// asked what that has for it.
        ScannedEarly,
        WokenToNow,
        MovedUnasked,
        UnlistFence,
        End,
        EndLoad,
        CloserFence,
        PublishFence,
        RegisterFence,
        /// A hub: what was called for is answered; step: a call that came meanwhile is dropped.
        TurnAnswer,
        CallDropped,
        /// Step: a publisher's look at events answers a call for everything.
        AnswerAll,
        BucketNewest,
        BucketNewestLoad,
        Answer,
        AnswerLoad,
        MoveToBucket,
        /// Step: a bucket claims to be linked from the beginning.
        EarlyLinkedFrom,
        /// Step: a bucket that is in use is evicted.
        EvictUsed,
        /// Step: what is retired goes at once, without a grace period.
        Grace,
        /// Step: what is replaced is pushed to the reclaimer before it is unlinked.
        PushEarly,
        /// Step: a revision is published without asking whether the log was closed.
        BlindPublish,
        /// Step: the oldest event is loaded before a key is looked for.
        OldestEarly,
        /// Step: of a version that was replaced already no count is taken.
        KeepAll,
        /// Step: who misses a key in a page does not look whether pages were divided.
        LookOnce,
        /// Step: a set drains its descriptor after it was armed, too.
        DrainLate,
        /// A set is raised for each member that a pass has listed: without need.
        RaisedEach,
        /// Step: who leaves a set keeps the number of its membership.
        SameMembership,
        /// Step: a sleeper that ends its own sleep takes over what a pass says.
        TakeOver,
    }

    thread_local! {
        // All threads of a model run on the system thread of its test.
        static CHOSEN: Cell<(Site, &'static str)> = const { Cell::new((Site::Nothing, "")) };
        static CLAIMS: Cell<bool> = const { Cell::new(true) };
    }

    /// Whether commits claim the log in the next model. If nobody closes the log, the claim decides nothing, and is one more
    /// value of the head word that every load of it may find.
    pub(crate) fn begin(claims: bool) {
        CLAIMS.with(|cell| cell.set(claims));
    }

    pub(crate) fn claims() -> bool {
        CLAIMS.with(Cell::get)
    }

    /// Weakens `site` (of the type whose name ends so) in the models that this thread runs next.
    pub(crate) fn choose(site: Site, of: &'static str) {
        CHOSEN.with(|chosen| chosen.set((site, of)));
    }

    pub(crate) fn is(site: Site) -> bool {
        CHOSEN.with(Cell::get).0 == site
    }

    /// A value in the place of the right one.
    pub(crate) fn instead<T>(site: Site, wrong: T, right: T) -> T {
        if is(site) { wrong } else { right }
    }

    /// Takes a step a second time, later than it belongs.
    pub(crate) fn late(site: Site, step: impl FnOnce()) {
        if is(site) {
            step();
        }
    }

    /// The next weaker order: a SeqCst fence becomes AcqRel, everything else Relaxed.
    pub(crate) fn order(site: Site, of: &str, order: Ordering) -> Ordering {
        let (chosen, end) = CHOSEN.with(Cell::get);
        if chosen != site || !of.ends_with(end) {
            return order;
        }
        if order == Ordering::SeqCst { Ordering::AcqRel } else { Ordering::Relaxed }
    }
}
