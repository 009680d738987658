//! The bound of one pass of a notifier.
//!
//! All caches of the process share a notifier, so a pass is bounded by steps, never by time: a step is one event, message,
//! or waiter that is looked at. The work that a pass does not reach stays in the tables, and the notifier returns to
//! the cache after those that were called meanwhile. Work that needs no filter and work that does have steps of their own:
//! see docs/internals/waking.md, "What a pass does".

#![forbid(unsafe_code)]

/// Steps of a pass for each kind of work that evaluates no filter.
pub(crate) const CHEAP: usize = 1024;
/// Steps of a pass for filters that no bucket answers: some 50 us.
pub(crate) const FILTERS: usize = 2048;
/// Steps for visiting a filter group, in addition to one for each event that its filter is asked about.
pub(crate) const VISIT: usize = 4;

#[cfg(loom)]
thread_local! {
    /// The steps of a pass in a model that bounds them.
    pub(crate) static BOUND: std::cell::Cell<Option<usize>> = const { std::cell::Cell::new(None) };
}

/// Steps that are left.
pub(crate) struct Steps(usize);

impl Steps {
    pub(crate) fn new(steps: usize) -> Steps {
        #[cfg(loom)]
        let steps = BOUND.get().unwrap_or(steps);
        Steps(steps)
    }

    /// No steps at all.
    pub(crate) fn none() -> Steps {
        Steps(0)
    }

    /// Splits off half of the steps that are left, for work that is not to take all of them.
    pub(crate) fn half(&mut self) -> Steps {
        let half = self.0 / 2;
        self.0 -= half;
        Steps(half)
    }

    /// Adds the steps that are left of a half.
    pub(crate) fn put_back(&mut self, rest: Steps) {
        self.0 += rest.0;
    }

    pub(crate) fn are_over(&self) -> bool {
        self.0 == 0
    }

    /// The number of things that may be looked at now: at least one, so that each pass makes progress.
    pub(crate) fn left(&self) -> usize {
        self.0.max(1)
    }

    pub(crate) fn take(&mut self, steps: usize) {
        self.0 = self.0.saturating_sub(steps);
    }

    /// Takes one step. False: none was left.
    pub(crate) fn take_one(&mut self) -> bool {
        let was_left = self.0 > 0;
        self.take(1);
        was_left
    }
}
