//! Waking: where consumers sleep, and the threads of the process that wake them.
//!
//! A consumer sleeps in its [`seat::Seat`]. The writer pays a fence and a load per revision while nobody
//! sleeps. Else somebody looks who is to be woken: the writer itself where few events, filters and seats are to be
//! looked at, or the notifier. Whoever has the turn owns the tables that say who waits for what; consumers and
//! feeders reach it by the words and the inbox of the [`hub::Hub`].
//! Filters run on its thread, and nothing is locked meanwhile that anybody else could want. Filters with a
//! predicate of the user's have a hub and a notifier of their own ([`FilterCode`]).
//!
//! | file | what |
//! | --- | --- |
//! | `hub` | what a cache's threads share: counts, the inbox |
//! | `group` | sleepers with equal filters |
//! | `interest` | what a sleeper waits for |
//! | `registration` | a consumer's side of its seat |
//! | `seat` | the states of one sleeper; `owned`: what the state says who has |
//! | `turn` | whose turn it is to look |
//! | `tables` | who waits for what, and one pass over it |
//! | `steps` | how much a pass does |
//! | `timers` | the notifier's: bookmarks and deadlines |
//! | `notifier` | its thread |
//! | `waker`, `wake_set` | how a sleeper is woken |
//!
//! | writer, notifier | consumer | order |
//! | --- | --- | --- |
//! | head or progress or state; fence; `waiting.load` | count in `waiting`, PARKED; fence; look | SeqCst fences: one of the two sees the other |
//! | notifier: look; fence; inbox and seats | the same | SeqCst fences: as above |
//! | call; who has the turn: answer, then look | | AcqRel: no lost wake-up (`turn`) |
//! | notifier: `scanned_to` stored at the end of a pass | loaded before PARKED is left | Release / Acquire |
//!
//! The protocol with a worked example: docs/internals/waking.md.

mod burst;
mod due;
mod group;
mod hub;
mod interest;
mod notifier;
mod owned;
mod registration;
mod seat;
mod steps;
mod tables;
#[cfg(all(test, not(loom)))]
mod tests;
mod timers;
mod turn;
mod wake_set;
mod waker;

pub(crate) use due::Due;
pub(crate) use group::GroupRef;
pub(crate) use hub::{Hub, Hubs};
pub(crate) use interest::Interest;
#[cfg(all(test, loom))]
pub(crate) use notifier::model as notifier_model;
#[cfg(not(loom))]
pub(crate) use notifier::{start, workers};
pub(crate) use registration::{OwnSeat, Sleeper, Unparked};
pub(crate) use seat::{Rest, Seat};
pub use wake_set::WakeSet;
pub(crate) use wake_set::not_in_a_set;
pub(crate) use waker::Waker;

use crate::data::event::Event;
use crate::filter::matcher::Matcher;
use crate::log::ring::LogEnd;
use crate::position::Position;
use std::time::Instant;

/// What [`Watched::first_match`] has found.
pub(crate) struct FirstMatch {
    /// The sequence number of the event that passes.
    pub(crate) found: Option<u64>,
    /// Where the look has ended: at that event, or behind the last one that was looked at. Never among the free slots of a
    /// segment that was closed early, for a reader that stands there when the segment leaves has lost its place.
    pub(crate) looked_to: u64,
    /// How many events were looked at.
    pub(crate) looked: usize,
}

/// What the notifier and the sleepers ask of a cache.
pub(crate) trait Watched: Send + Sync {
    /// Where the cache stands now; progress is loaded before head.
    fn frontier(&self) -> CacheFrontier;
    /// The head and whether the log was closed there: what a sleeper looks at that waits for events.
    fn end(&self) -> LogEnd;
    /// The first event in [from, head) that passes, among at most so many; `Err` where `from` has left the window.
    fn first_match(&self, matcher: &Matcher, from: u64, head: u64, most: usize) -> Result<FirstMatch, Overtaken>;
    /// Every event in [from, head) with its buckets, until one is not to be followed by another; `Err` as above.
    fn visit_buckets(&self, from: u64, head: u64, each: &mut VisitEvent<'_>) -> Result<(), Overtaken>;
    /// Events that the window holds.
    fn window(&self) -> u64;
    /// The newest resync mark; to be asked after `frontier`.
    fn newest_mark(&self) -> u64;
    /// Closes the subscriptions that are too far behind; when to look again.
    fn enforce_lag_limits(&self) -> Option<Instant>;
    /// Asks the source, if there is one, to look at what is wanted. It does not panic.
    fn wake_source(&self);
    /// Whether a publisher may call the wakers of tasks itself.
    fn trusts_wakers(&self) -> bool;
    fn hubs(&self) -> &Hubs;
}

/// Whose code a sleeper's filter runs. Each has its own hub in a cache and its own thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FilterCode {
    /// The library's: it returns.
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
            FilterCode::Foreign => "watchcore-judge",
        }
    }
}

/// Called with an event of the log and its buckets. False: it was the last.
pub(crate) type VisitEvent<'a> = dyn FnMut(&Event, &mut dyn Iterator<Item = u64>) -> bool + 'a;

/// What was to be read has left the window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Overtaken;

/// Where a cache stands, as one look sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CacheFrontier {
    pub(crate) position: Position,
    pub(crate) head: u64,
    pub(crate) ready: bool,
    /// The source failed before the first listing: no wait for the cache continues.
    pub(crate) failed: bool,
    pub(crate) closed: bool,
    /// Consistent reads served up to this ticket.
    pub(crate) consistent: u64,
}
