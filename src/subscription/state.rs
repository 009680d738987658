//! The state of a subscription that only its consumer uses, kept between two calls: few words beside those that other threads
//! see, and a box for state that is needed by few subscriptions, or only in rare phases.
//!
//! The box is made when it is first needed, and freed at the end of a call that leaves it empty: see
//! [`RareState::is_empty`]. `docs/internals/subscription.md` says what is in it in which phase.

#![forbid(unsafe_code)]

use super::catch_up::CatchUp;
use super::delivered::Delivered;
use super::future::FutureStart;
use super::initial::Initial;
use super::loss::Halt;
use super::options::{Delivery, OnLag, Start};
use super::path::ReadPathState;
use super::start::{AwaitsListing, AwaitsRevision};
use crate::cache::{Consumer, ConsumerRef, NOWHERE, ReportedPhase};
use crate::log::segment::SegmentRef;
use crate::position::Position;
use crate::store::key_set::KeySet;
use crate::sync::Relaxed;
use crate::wake::Interest;
use std::time::{Duration, Instant};

/// See the module.
pub(super) struct ConsumerState {
    /// The segment of its cursor, while it reads that.
    pub(super) segment: Option<SegmentRef>,
    pub(super) rare: Option<Box<RareState>>,
    /// Events that it looked at.
    pub(super) looked: u64,
    /// Its place in the cache's registry, given when it is opened.
    pub(super) slot: u32,
    /// The number of next polls whose time is not recorded.
    pub(super) unrecorded: u8,
    pub(super) on_lag: OnLag,
    flags: u8,
}

/// A bit of [`ConsumerState`].
#[derive(Clone, Copy)]
#[repr(u8)]
pub(super) enum Flag {
    /// Every event passes unchanged: batches are views.
    Plain = 1,
    WholeRevisions = 2,
    StopOnResync = 4,
    /// It is counted as keeping its cache open, until it ends.
    KeepsOpen = 8,
    /// It sleeps, or slept and has not looked since.
    Parked = 16,
    /// The notifier moved its cursor over events: its position may be below their revision.
    MovedUnseen = 32,
    /// Every event of its bucket passes unchanged.
    WholeBucket = 64,
    /// It joined a wake set, and has not left it. The set may be gone.
    Member = 128,
}

/// State needed only by few subscriptions or in rare phases, boxed to keep idle subscriptions small.
#[derive(Default)]
pub(super) struct RareState {
    pub(super) phase: SubscriptionPhase,
    pub(super) bookmarks: Option<Box<Bookmarks>>,
    /// Reported by the next poll, once.
    pub(super) failure: Option<Box<Halt>>,
    pub(super) delivered: Delivered,
    /// The bytes of `delivered` (times 2^16) and of collected links that the cache's statistics have counted.
    counted: u64,
    pub(super) path: ReadPathState,
}

/// The phases of a subscription. Each that has a state is a struct with a `poll`, in a file of its own; `transitions` leads
/// from one to the next.
#[derive(Debug, Default)]
pub(super) enum SubscriptionPhase {
    AwaitsListing(Box<AwaitsListing>),
    AwaitsRevision(Box<AwaitsRevision>),
    Future(Box<FutureStart>),
    Initial(Box<Initial>),
    CatchUp(Box<CatchUp>),
    /// It reads the log: see `live`.
    #[default]
    Live,
    /// Polls answer CLOSED.
    Ended,
}

impl SubscriptionPhase {
    #[inline]
    pub(super) fn is_before_its_start(&self) -> bool {
        use SubscriptionPhase::{AwaitsListing, AwaitsRevision, Future};
        matches!(self, AwaitsListing(_) | AwaitsRevision(_) | Future(_))
    }

    /// Whether it waits for a revision, and so has no lag.
    pub(super) fn awaits_a_revision(&self) -> bool {
        matches!(self, SubscriptionPhase::AwaitsRevision(_) | SubscriptionPhase::Future(_))
    }

    /// The change of the cache that ends the wait of this phase, and the time at which it ends anyway. `None`: an event.
    pub(super) fn interest(&self, position: Position) -> (Option<Interest>, Option<Instant>) {
        match self {
            SubscriptionPhase::AwaitsListing(_) => (Some(Interest::Ready), None),
            SubscriptionPhase::AwaitsRevision(state) => {
                (Some(Interest::revision(state.revision().into(), None)), state.until)
            }
            SubscriptionPhase::Future(start) => (Some(start.interest(position)), None),
            _ => (None, None),
        }
    }

    /// The phase as other threads see it.
    pub(super) fn reported_phase(&self, in_segment: bool) -> ReportedPhase {
        match self {
            SubscriptionPhase::AwaitsListing(state) => match state.0.start {
                Start::State => ReportedPhase::AwaitsListingThenState,
                Start::StateAtLeast(_) => ReportedPhase::AwaitsListingThenRevision,
                _ => ReportedPhase::AwaitsListingThenLog,
            },
            SubscriptionPhase::AwaitsRevision(_) => ReportedPhase::AwaitsRevision,
            SubscriptionPhase::Future(_) => ReportedPhase::AwaitsFuture,
            SubscriptionPhase::Initial(_) => ReportedPhase::InitialState,
            SubscriptionPhase::CatchUp(_) => ReportedPhase::CatchingUp,
            SubscriptionPhase::Live if in_segment => ReportedPhase::LiveInSegment,
            SubscriptionPhase::Live => ReportedPhase::Live,
            SubscriptionPhase::Ended => ReportedPhase::Ended,
        }
    }
}

/// Bookmarks that were asked for.
#[derive(Debug)]
pub(super) struct Bookmarks {
    pub(super) interval: Duration,
    /// The last position that was delivered, and when.
    pub(super) delivered: Position,
    pub(super) at: Instant,
}

impl Bookmarks {
    pub(super) fn new(interval: Duration) -> Bookmarks {
        Bookmarks { interval, delivered: Position::default(), at: Instant::now() }
    }

    pub(super) fn is_due(&self, position: Position) -> bool {
        position != self.delivered && self.at.elapsed() >= self.interval
    }

    /// Records that this position is delivered now.
    pub(super) fn deliver(&mut self, position: Position) {
        (self.delivered, self.at) = (position, Instant::now());
    }
}

impl ConsumerState {
    /// The state of a subscription that is being opened.
    pub(super) fn new(how: Delivery, is_plain: bool) -> ConsumerState {
        let mut state = ConsumerState {
            segment: None,
            rare: None,
            looked: 0,
            slot: NOWHERE,
            unrecorded: 0,
            on_lag: how.on_lag,
            flags: 0,
        };
        state.set(Flag::Plain, is_plain && !how.stop_on_resync && !how.whole_revisions);
        state.set(Flag::WholeRevisions, how.whole_revisions);
        state.set(Flag::StopOnResync, how.stop_on_resync);
        state
    }

    pub(super) fn delivery(&self) -> Delivery {
        Delivery {
            whole_revisions: self.has(Flag::WholeRevisions),
            stop_on_resync: self.has(Flag::StopOnResync),
            on_lag: self.on_lag,
        }
    }

    #[inline]
    pub(super) fn has(&self, flag: Flag) -> bool {
        self.flags & flag as u8 != 0
    }

    #[inline]
    pub(super) fn set(&mut self, flag: Flag, on: bool) {
        self.flags = self.flags & !(flag as u8) | if on { flag as u8 } else { 0 };
    }

    /// Clears a flag, and returns whether it was set.
    #[inline]
    pub(super) fn take(&mut self, flag: Flag) -> bool {
        let was = self.has(flag);
        self.flags &= !(flag as u8);
        was
    }

    /// The box, made if it is not there.
    #[inline]
    pub(super) fn rare(&mut self) -> &mut RareState {
        self.rare.get_or_insert_default()
    }

    /// The phase; without the box it is live.
    #[inline]
    pub(super) fn phase(&self) -> &SubscriptionPhase {
        static LIVE: SubscriptionPhase = SubscriptionPhase::Live;
        self.rare.as_ref().map_or(&LIVE, |rare| &rare.phase)
    }

    #[inline]
    pub(super) fn is_live(&self) -> bool {
        matches!(self.phase(), SubscriptionPhase::Live)
    }

    /// Enters another phase, and returns the one before.
    pub(super) fn enter(&mut self, phase: SubscriptionPhase) -> SubscriptionPhase {
        if self.rare.is_none() && matches!(phase, SubscriptionPhase::Live) {
            return phase;
        }
        std::mem::replace(&mut self.rare().phase, phase)
    }

    /// The keys that were delivered, where it keeps them.
    #[inline]
    pub(super) fn delivered(&mut self) -> Option<&mut KeySet> {
        self.rare.as_mut().and_then(|rare| rare.delivered.as_deref_mut())
    }

    /// Replaces the delivered keys.
    pub(super) fn set_delivered(&mut self, keys: Delivered) {
        if keys.is_some() || self.keeps_keys() {
            self.rare().delivered = keys;
        }
    }

    #[inline]
    pub(super) fn keeps_keys(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| rare.delivered.is_some())
    }

    #[inline]
    pub(super) fn has_failed(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| rare.failure.is_some())
    }

    pub(super) fn bookmarks(&self) -> Option<&Bookmarks> {
        self.rare.as_ref().and_then(|rare| rare.bookmarks.as_deref())
    }

    /// Whether it has collected links of its chain that it has not followed yet.
    pub(super) fn has_links(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| rare.path.links.is_some())
    }

    /// Releases what it has of the cache: when it ends, and when it is dropped.
    pub(super) fn release(&mut self, shared: &ConsumerRef) {
        self.segment = None;
        if let Some(rare) = &mut self.rare {
            rare.delivered = None;
            rare.path.leave(shared);
            rare.count(shared);
        }
        if self.take(Flag::KeepsOpen) {
            shared.inner.keep_open_no_more();
        }
    }
}

impl RareState {
    /// Whether the box has only default values, so that a live subscription needs none.
    pub(super) fn is_empty(&self) -> bool {
        self.path.is_unused()
            && matches!(self.phase, SubscriptionPhase::Live)
            && self.bookmarks.is_none()
            && self.failure.is_none()
            && self.delivered.is_none()
            && self.counted == 0
    }

    /// Updates the cache's statistics of delivered keys and collected links.
    #[inline]
    pub(super) fn count(&mut self, shared: &Consumer) {
        if self.delivered.is_some() || self.counted != 0 || self.path.link_bytes() != 0 {
            self.count_anew(shared);
        }
    }

    #[cold]
    fn count_anew(&mut self, shared: &Consumer) {
        let delivered = self.delivered.as_ref().map_or(0, |delivered| delivered.bytes());
        let now = delivered << 16 | u64::from(self.path.link_bytes());
        let before = std::mem::replace(&mut self.counted, now);
        let consumers = &shared.inner.consumers;
        consumers.delivered_bytes.fetch_add((now >> 16).wrapping_sub(before >> 16), Relaxed);
        consumers.link_bytes.fetch_add((now & 0xffff).wrapping_sub(before & 0xffff), Relaxed);
    }
}
