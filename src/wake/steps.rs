//! The bound of one pass of a notifier.
//!
//! All caches of the process share a notifier, so a pass is bounded by steps, never by time: a step is one event, message,
//! seat or waiter that is looked at. The work that a pass does not reach stays in the tables, and the notifier returns to
//! the cache after those that were called meanwhile. Work that needs no filter and work that does have steps of their own:
//! see docs/internals/waking.md, "What a pass does".

#![forbid(unsafe_code)]

/// Steps of a pass for each kind of work that evaluates no filter.
pub(super) const CHEAP: usize = 1024;
/// Steps of a pass for filters that no bucket answers: some 50 us.
pub(super) const FILTERS: usize = 2048;
/// Steps for visiting a filter group, in addition to one for each event that its filter is asked about.
pub(super) const VISIT: usize = 4;

/// Steps that are left.
pub(super) struct Steps(usize);

impl Steps {
    pub(super) fn new(steps: usize) -> Steps {
        #[cfg(loom)]
        let steps = super::notifier::model::steps().unwrap_or(steps);
        Steps(steps)
    }

    /// No steps at all.
    pub(super) fn none() -> Steps {
        Steps(0)
    }

    /// Splits off half of the steps that are left, for work that is not to take all of them.
    pub(super) fn half(&mut self) -> Steps {
        let half = self.0 / 2;
        self.0 -= half;
        Steps(half)
    }

    /// Adds the steps that are left of a half.
    pub(super) fn give_back(&mut self, rest: Steps) {
        self.0 += rest.0;
    }

    pub(super) fn are_over(&self) -> bool {
        self.0 == 0
    }

    /// The number of things that may be looked at now: at least one, so that each pass makes progress.
    pub(super) fn left(&self) -> usize {
        self.0.max(1)
    }

    pub(super) fn take(&mut self, steps: usize) {
        self.0 = self.0.saturating_sub(steps);
    }

    /// Takes one step. False: none was left.
    pub(super) fn take_one(&mut self) -> bool {
        let was_left = self.0 > 0;
        self.take(1);
        was_left
    }
}
