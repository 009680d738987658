//! Waking: where consumers sleep, and the threads of the process that wake them.
//!
//! A consumer sleeps in its [`seat::Seat`]. The writer pays a fence and a load per revision while nobody sleeps. Else a
//! pass finds the consumers to wake. The writer does it itself where few events, filters and seats are to be looked at;
//! otherwise the notifier does. The thread that holds the turn (the lock of a pass) owns the tables, which say who
//! waits for what; consumers and feeders reach it by the words and the inbox of the [`hub::Hub`]. Filters run on its
//! thread, and it holds no lock meanwhile that another thread could wait for. Filters with a predicate of the user's
//! have a hub and a notifier of their own ([`FilterCode`]).
//!
//! | file | what |
//! | --- | --- |
//! | `hub` | the counts and the inbox that a cache's threads share |
//! | `group` | sleepers with equal filters |
//! | `interest` | the thing that a sleeper waits for |
//! | `registration` | a consumer's side of its seat |
//! | `seat` | the states of one sleeper; `owned`: a cell that belongs to the side that the state names |
//! | `turn` | the lock of a pass, with the calls that are pending |
//! | `tables` | which seat waits for what, and one pass over them |
//! | `steps` | the bound of a pass |
//! | `timers` | bookmarks and deadlines |
//! | `notifier` | the threads that do the passes |
//! | `waker`, `wake_set` | how a sleeper is woken |
//!
//! | writer, notifier | consumer | order |
//! | --- | --- | --- |
//! | head or progress or state; fence; `waiting.load` | count in `waiting`, PARKED; fence; look | SeqCst fences: one of the two sees the other |
//! | notifier: look; fence; inbox and seats | the same | SeqCst fences: one of the two sees the other |
//! | call; the holder of the turn: answer, then look | | AcqRel: no lost wake-up (`turn`) |
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

/// The result of [`Watched::first_match`].
pub(crate) struct FirstMatch {
    /// The sequence number of the event that passes.
    pub(crate) found: Option<u64>,
    /// The sequence number at which the look has ended: that event, or the one after the last that was looked at. Never
    /// among the free slots of a segment that was closed early: a cursor there is lapped once the segment leaves the
    /// window.
    pub(crate) looked_to: u64,
    /// How many events were looked at.
    pub(crate) looked: usize,
}

/// The functions of a cache that the notifier and the sleepers call.
pub(crate) trait Watched: Send + Sync {
    /// The present position, head and state of the cache; progress is loaded before head.
    fn frontier(&self) -> CacheFrontier;
    /// The head, and whether the log was closed there: a sleeper that waits for events looks at these.
    fn end(&self) -> LogEnd;
    /// The first event in [from, head) that passes, among the first `most`; `Err` where `from` has left the window.
    fn first_match(&self, matcher: &Matcher, from: u64, head: u64, most: usize) -> Result<FirstMatch, Overtaken>;
    /// Calls `each` with each event of [from, head) and its buckets until it returns false; `Err` where `from` has left.
    fn visit_buckets(&self, from: u64, head: u64, each: &mut VisitEvent<'_>) -> Result<(), Overtaken>;
    /// Events that the window holds.
    fn window(&self) -> u64;
    /// The newest resync mark; to be asked after `frontier`.
    fn newest_mark(&self) -> u64;
    /// Closes the subscriptions that are too far behind, and returns the time of the next check.
    fn enforce_lag_limits(&self) -> Option<Instant>;
    /// Wakes the source, if there is one, so that it looks at the wanted revision. Does not panic.
    fn wake_source(&self);
    /// Whether a publisher may call the wakers of tasks itself.
    fn trusts_wakers(&self) -> bool;
    fn hubs(&self) -> &Hubs;
}

/// Whether a sleeper's filter runs code of the user. Each kind has its own hub in a cache and its own thread.
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
            FilterCode::Foreign => "watchcore-judge",
        }
    }
}

/// Called with an event of the log and its buckets. False ends the visit.
pub(crate) type VisitEvent<'a> = dyn FnMut(&Event, &mut dyn Iterator<Item = u64>) -> bool + 'a;

/// The events to be read have left the window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Overtaken;

/// The position and state of a cache, loaded together.
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
