//! The notifiers: two threads of the process, one for each [`FilterCode`].
//!
//! The first evaluates filters of the library's own and is started before the first cache is there. The second runs
//! predicates, which may take any time and may never return, and is started before the first subscription that has one.
//! So a predicate holds up only wake-ups of subscriptions with predicates.
//!
//! | step | partner | order |
//! | --- | --- | --- |
//! | push of a cache, then [`Worker::wake`](crate::worker::Worker::wake) | the thread goes to sleep or ends, then looks at the inbox | AcqRel, see `worker::duty`: one of the two sees the other |

#![forbid(unsafe_code)]

use crate::wake::sleep::group::FilterCode;
use std::sync::Arc;
use std::time::Instant;

#[cfg(loom)]
pub(crate) use model::push;
#[cfg(not(loom))]
pub(crate) use thread::{push, start, workers};

/// A cache, as the notifiers visit it.
pub(crate) trait Visited: Send + Sync {
    /// Does one pass over the waiters whose filters run this kind of code. `hand_on` calls the notifier again.
    fn pass(&self, code: FilterCode, visit: Visit, hand_on: &dyn Fn()) -> PassEnd;
    /// Records whether the notifier has the cache in its queue. True: it had it there before.
    fn queue(&self, code: FilterCode, is_queued: bool) -> bool;
}

/// Why a notifier passes over a cache.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Visit {
    /// The notifier was called, or a due time has come.
    Called,
    /// The last pass has left work, and the cache has come to the front of the queue.
    Queued,
    /// The last pass panicked and is tried once more.
    #[cfg_attr(loom, allow(dead_code, reason = "no pass of a model panics"))]
    Retried,
}

/// How a pass has ended.
pub(crate) struct PassEnd {
    /// The time of the next pass, if nobody calls before.
    #[cfg_attr(loom, allow(dead_code, reason = "models have no clock"))]
    pub(crate) again: Option<Instant>,
    /// Whether the pass has left work: the notifier comes again after it has served other caches.
    pub(crate) is_behind: bool,
}

#[cfg(not(loom))]
mod thread {
    use super::{Arc, FilterCode, Instant, Visit, Visited};
    use crate::foreign;
    use crate::sync::Inbox;
    use crate::worker::{Worker, needs};
    use std::collections::{BTreeMap, HashMap, VecDeque};
    use std::io;

    /// Caches to be looked at, and the thread that does it.
    struct Notifier {
        code: FilterCode,
        inbox: Inbox<Arc<dyn Visited>>,
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

    /// The two threads, for the shutdown of the process's workers.
    pub(crate) fn workers() -> [&'static Worker; 2] {
        [&OWN.worker, &FOREIGN.worker]
    }

    /// Starts the thread, if it does not run yet. After an error nothing has changed, and the next call tries again.
    pub(crate) fn start(code: FilterCode) -> io::Result<()> {
        notifier(code).worker.start(match code {
            FilterCode::Own => || OWN.run(),
            FilterCode::Foreign => || FOREIGN.run(),
        })
    }

    /// Hands a cache to the notifier; a futex call only if its thread sleeps.
    pub(crate) fn push(code: FilterCode, cache: Arc<dyn Visited>) {
        let this = notifier(code);
        this.inbox.push(cache);
        // The thread runs: it does not end while a cache lives.
        this.worker.wake();
    }

    impl Notifier {
        const fn new(code: FilterCode) -> Notifier {
            Notifier { code, inbox: Inbox::new(), worker: Worker::new(code.thread()) }
        }

        fn run(&self) {
            let mut agenda = Agenda::default();
            loop {
                let mut caches = self.inbox.take_all();
                agenda.take_due(&mut caches, self.worker.takes_all());
                let queued = agenda.queue.pop_front();
                if caches.is_empty() && queued.is_none() {
                    // The thread may end only where no cache lives; a timer keeps its cache alive, so it has none here.
                    if self.worker.is_over(|| needs() == 0 && self.inbox.is_empty()) {
                        return;
                    }
                    self.worker.sleep(agenda.next(), || self.inbox.is_empty());
                    continue;
                }
                // Serve every cache that was called, then one that has left work: a cache that calls waits for at most one
                // portion of a busy cache.
                for cache in caches {
                    self.visit(cache, Visit::Called, &mut agenda);
                }
                if let Some((cache, visit)) = queued {
                    self.visit(cache, visit, &mut agenda);
                }
            }
        }

        fn visit(&self, cache: Arc<dyn Visited>, visit: Visit, agenda: &mut Agenda) {
            if visit != Visit::Called {
                cache.queue(self.code, false);
            }
            let end = foreign::guard(|| cache.pass(self.code, visit, &|| push(self.code, cache.clone())));
            if end.is_none() {
                foreign::report(|| tracing::error!("the notifier caught a panic and continues"));
            }
            // A pass that panics leaves its work in the tables: it is tried once more. If that panics too, the next call
            // does the rest.
            let next = match &end {
                Some(end) if end.is_behind => Some(Visit::Queued),
                None if visit != Visit::Retried => Some(Visit::Retried),
                _ => None,
            };
            if let Some(next) = next
                && !cache.queue(self.code, true)
            {
                agenda.queue.push_back((cache.clone(), next));
            }
            agenda.plan(cache, end.and_then(|end| end.again));
        }
    }

    /// The work of the thread when nobody calls.
    #[derive(Default)]
    struct Agenda {
        /// Caches whose last pass has left work, in the order in which they are served, with the reason.
        queue: VecDeque<(Arc<dyn Visited>, Visit)>,
        /// The caches with a due time, keyed by that time and the address of the cache.
        timers: BTreeMap<(Instant, usize), Arc<dyn Visited>>,
        /// The due time of each, keyed by the address of the cache.
        times: HashMap<usize, Instant>,
    }

    impl Agenda {
        /// Replaces the due time of a cache by the one that its last pass has returned, if any.
        fn plan(&mut self, cache: Arc<dyn Visited>, at: Option<Instant>) {
            let address = Arc::as_ptr(&cache).cast::<()>() as usize;
            let before = match at {
                Some(at) => self.times.insert(address, at),
                None => self.times.remove(&address),
            };
            // Never the last reference: `cache` is one.
            drop(before.and_then(|before| self.timers.remove(&(before, address))));
            match at {
                Some(at) => drop(self.timers.insert((at, address), cache)),
                // This may be the last reference, and dropping a cache runs foreign code.
                None => foreign::drop_guarded(cache, "a cache"),
            }
        }

        fn next(&self) -> Option<Instant> {
            self.timers.first_key_value().map(|((at, _), _)| *at)
        }

        /// Adds the caches whose time has come to `caches`; `all`: every cache with a due time.
        fn take_due(&mut self, caches: &mut Vec<Arc<dyn Visited>>, all: bool) {
            if self.timers.is_empty() {
                return;
            }
            let now = Instant::now();
            while let Some(entry) = self.timers.first_entry()
                && (all || entry.key().0 <= now)
            {
                let ((_, address), cache) = entry.remove_entry();
                self.times.remove(&address);
                caches.push(cache);
            }
        }
    }
}

/// The notifier of loom models: a thread of the model does its passes.
#[cfg(loom)]
pub(crate) mod model {
    use super::{Arc, FilterCode, Visit, Visited};
    use crate::sync::{AcqRel, AtomicUsize};
    use crate::wake::notify::burst;
    use crate::wake::tables::steps;
    use std::cell::RefCell;

    thread_local! {
        static HANDED: RefCell<Vec<(FilterCode, Arc<dyn Visited>)>> = const { RefCell::new(Vec::new()) };
    }

    loom::lazy_static! {
        // Stands for the inbox: a push happens before the step that takes the cache.
        static ref INBOX: AtomicUsize = AtomicUsize::new(0);
    }

    /// Begins an execution, in which a publisher may do a pass itself or leaves all to the notifier, whose passes have so many
    /// steps. Caches that a failed execution has left are forgotten, because loom's objects in them are gone.
    pub(crate) fn begin(publishers_look: bool, bound: Option<usize>) {
        std::mem::forget(HANDED.take());
        burst::PUBLISHERS_LOOK.set(publishers_look);
        steps::BOUND.set(bound);
    }

    pub(crate) fn push(code: FilterCode, cache: Arc<dyn Visited>) {
        INBOX.fetch_add(1, AcqRel);
        HANDED.with_borrow_mut(|handed| handed.push((code, cache)));
    }

    /// Makes the notifier look at this cache though nobody has called, as when a due time has come.
    pub(crate) fn is_due(cache: Arc<dyn Visited>) {
        push(FilterCode::Own, cache);
    }

    /// Looks at the caches that were handed over.
    pub(crate) fn step() {
        INBOX.fetch_add(0, AcqRel);
        HANDED.take().into_iter().for_each(|(code, cache)| {
            let pass = |visit| cache.pass(code, visit, &|| push(code, cache.clone())).is_behind;
            let mut is_behind = pass(Visit::Called);
            while is_behind {
                is_behind = pass(Visit::Queued);
            }
        });
    }
}
