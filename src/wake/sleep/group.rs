//! The groups of a hub: waiters with equal filters, so that each filter is evaluated once an event.
//!
//! A subscription joins the group of its filter when it sleeps for the first time, and leaves it when it is dropped. In
//! between it counts itself there each time that it sleeps without a bucket: a group in which nobody sleeps is not
//! evaluated.

#![forbid(unsafe_code)]

use crate::filter::matcher::Matcher;
use crate::sync::{AtomicUsize, Mutex, Relaxed, lock};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64 as Statistic;

/// Whether a waiter's filter runs code of the user. Each kind has its own hub in a cache and its own thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FilterCode {
    /// Only the library's code, which returns.
    Own,
    /// A predicate of the user's, which may never return.
    Foreign,
}

impl FilterCode {
    pub(crate) fn of(matcher: &Matcher) -> FilterCode {
        if matcher.has_predicates() { FilterCode::Foreign } else { FilterCode::Own }
    }

    /// The name of the thread that runs it.
    pub(crate) const fn thread(self) -> &'static str {
        match self {
            FilterCode::Own => "watchcore-wake",
            FilterCode::Foreign => "watchcore-pred",
        }
    }
}

/// A count on a group.
pub(crate) type GroupRef = crate::sync::Arc<FilterGroup>;

/// The subscriptions of one filter; equal filters share it, and are evaluated once an event.
pub(crate) struct FilterGroup {
    id: u64,
    pub(crate) matcher: Arc<Matcher>,
    /// Whether every event of the filter's bucket passes the filter.
    pub(crate) passes_its_bucket: bool,
    /// Members that sleep without a bucket. Each adds itself; the thread that wakes it, or the member itself, subtracts it.
    parked: AtomicUsize,
}

impl FilterGroup {
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Called after the notifier's fence. Partner: [`FilterGroup::add_parked`], before the fence in `Parker::park`.
    pub(crate) fn has_parked(&self) -> bool {
        self.parked.load(Relaxed) != 0
    }

    #[inline]
    pub(crate) fn add_parked(&self) {
        self.parked.fetch_add(1, Relaxed);
    }

    #[inline]
    pub(crate) fn remove_parked(&self, count: usize) {
        self.parked.fetch_sub(count, Relaxed);
    }
}

/// A filter and how many registrations share it.
struct SharedGroup {
    group: GroupRef,
    users: usize,
}

/// The groups of one hub, by their filters. Used when a subscription sleeps for the first time and when it is dropped.
#[derive(Default)]
pub(crate) struct FilterGroups(Mutex<HashMap<Arc<Matcher>, SharedGroup>>);

impl FilterGroups {
    /// Returns the filter's group, which equal filters share. Takes a short lock that neither the writer nor the notifier
    /// nor a poll takes.
    pub(crate) fn join(&self, matcher: &Arc<Matcher>, passes_its_bucket: bool) -> GroupRef {
        static NEXT: Statistic = Statistic::new(1);
        let mut groups = lock(&self.0);
        if let Some(shared) = groups.get_mut(matcher) {
            shared.users += 1;
            return shared.group.clone();
        }
        let id = NEXT.fetch_add(1, Relaxed);
        let group =
            GroupRef::new(FilterGroup { id, matcher: matcher.clone(), passes_its_bucket, parked: AtomicUsize::new(0) });
        groups.insert(matcher.clone(), SharedGroup { group: group.clone(), users: 1 });
        group
    }

    pub(crate) fn leave(&self, group: &GroupRef) {
        let mut groups = lock(&self.0);
        let Some(shared) = groups.get_mut(&group.matcher) else { return };
        shared.users -= 1;
        if shared.users == 0 {
            let last = groups.remove_entry(&group.matcher);
            drop(groups);
            // The predicates of the filter are foreign code: dropped outside the lock.
            drop(last);
        }
    }
}
