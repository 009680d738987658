//! The notifiers: two threads of the process, one for each [`FilterCode`].
//!
//! The first evaluates filters of the library's own and is started before the first cache is there. The second
//! runs predicates, which may take any time and may never return, and is started before the first subscription
//! that has one: what a predicate holds up are the wake-ups of subscriptions with predicates.
//!
//! | step | partner | order |
//! | --- | --- | --- |
//! | push of a cache, then [`Worker::wake`](crate::worker::Worker::wake) | it rests or ends, then a look at the inbox | AcqRel, see `worker::duty`: one of the two sees the other |

#![forbid(unsafe_code)]

#[cfg(loom)]
pub(super) use model::push;
#[cfg(not(loom))]
pub(super) use thread::push;
#[cfg(not(loom))]
pub(crate) use thread::{start, workers};

#[cfg(not(loom))]
mod thread {
    use crate::foreign;
    use crate::sync::Inbox;
    use crate::wake::{FilterCode, Watched};
    use crate::worker::{Worker, needs};
    use std::io;
    use std::sync::Arc;
    use std::time::Instant;

    /// Caches to be looked at, and the thread that does it.
    struct Notifier {
        code: FilterCode,
        inbox: Inbox<Arc<dyn Watched>>,
        worker: Worker,
    }

    static OWN: Notifier = Notifier::new(FilterCode::Own);
    static FOREIGN: Notifier = Notifier::new(FilterCode::Foreign);

    fn notifier(code: FilterCode) -> &'static Notifier {
        match code {
            FilterCode::Own => &OWN,
            FilterCode::Foreign => &FOREIGN,
        }
    }

    /// The two threads, for who ends them.
    pub(crate) fn workers() -> [&'static Worker; 2] {
        [&OWN.worker, &FOREIGN.worker]
    }

    /// Starts the thread, if it does not run yet. Where it cannot, nothing has changed, and the next
    /// call tries again.
    pub(crate) fn start(code: FilterCode) -> io::Result<()> {
        notifier(code).worker.start(match code {
            FilterCode::Own => || OWN.run(),
            FilterCode::Foreign => || FOREIGN.run(),
        })
    }

    /// Hands a cache to the notifier: a futex only if it sleeps.
    pub(in crate::wake) fn push(code: FilterCode, cache: Arc<dyn Watched>) {
        let this = notifier(code);
        this.inbox.push(cache);
        // Its thread is there: it does not end while there is a cache.
        this.worker.wake();
    }

    impl Notifier {
        const fn new(code: FilterCode) -> Notifier {
            Notifier { code, inbox: Inbox::new(), worker: Worker::new(code.thread()) }
        }

        fn run(&self) {
            let mut timers: Vec<(Instant, Arc<dyn Watched>)> = Vec::new();
            loop {
                let mut caches = self.inbox.take_all();
                if self.worker.takes_all() {
                    caches.extend(timers.drain(..).map(|(_, cache)| cache));
                } else {
                    take_due(&mut timers, &mut caches);
                }
                if caches.is_empty() {
                    // A timer has a cache, and that is a need.
                    if self.worker.is_over(|| needs() == 0 && self.inbox.is_empty()) {
                        return;
                    }
                    self.worker.sleep(timers.iter().map(|(at, _)| *at).min(), || self.inbox.is_empty());
                    continue;
                }
                for cache in caches {
                    let again = foreign::guard(|| cache.hubs().of(self.code).pass(&cache));
                    if again.is_none() {
                        foreign::report(|| tracing::error!("the notifier caught a panic and continues"));
                    }
                    // What was wanted before holds no more: nobody may be left who wants it.
                    timers.retain(|(_, other)| !Arc::ptr_eq(other, &cache));
                    match again.flatten() {
                        Some(at) => timers.push((at, cache)),
                        // The last handle may be this one: what a cache drops is foreign code.
                        None => foreign::drop_guarded(cache, "a cache"),
                    }
                }
            }
        }
    }

    /// Caches whose time has come join those that were handed over.
    fn take_due(timers: &mut Vec<(Instant, Arc<dyn Watched>)>, caches: &mut Vec<Arc<dyn Watched>>) {
        if timers.is_empty() {
            return;
        }
        let now = Instant::now();
        timers.retain(|(at, cache)| {
            let due = *at <= now;
            if due {
                caches.push(cache.clone());
            }
            !due
        });
    }
}

/// The same for loom: a thread of the model takes the notifier's steps.
#[cfg(loom)]
pub(crate) mod model {
    use crate::sync::{AcqRel, AtomicUsize};
    use crate::wake::{FilterCode, Watched};
    use std::cell::{Cell, RefCell};
    use std::sync::Arc;

    thread_local! {
        static HANDED: RefCell<Vec<(FilterCode, Arc<dyn Watched>)>> = const { RefCell::new(Vec::new()) };
        /// Whether a publisher looks itself: else every model is one of the notifier.
        static PUBLISHERS_LOOK: Cell<bool> = const { Cell::new(false) };
    }

    loom::lazy_static! {
        // The inbox: what was pushed happens before what takes it.
        static ref INBOX: AtomicUsize = AtomicUsize::new(0);
    }

    /// Begins an execution; what a failed one left behind belongs to objects that are gone.
    pub(crate) fn begin(publishers_look: bool) {
        std::mem::forget(HANDED.take());
        PUBLISHERS_LOOK.set(publishers_look);
    }

    pub(in crate::wake) fn do_publishers_look() -> bool {
        PUBLISHERS_LOOK.get()
    }

    pub(in crate::wake) fn push(code: FilterCode, cache: Arc<dyn Watched>) {
        INBOX.fetch_add(1, AcqRel);
        HANDED.with_borrow_mut(|handed| handed.push((code, cache)));
    }

    /// A time has come: the notifier looks at this cache, though nobody has called.
    pub(crate) fn is_due(cache: Arc<dyn Watched>) {
        push(FilterCode::Own, cache);
    }

    /// Looks at the caches that were handed over.
    pub(crate) fn step() {
        INBOX.fetch_add(0, AcqRel);
        HANDED.take().into_iter().for_each(|(code, cache)| {
            cache.hubs().of(code).pass(&cache);
        });
    }
}
