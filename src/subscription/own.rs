//! The state that only the consumer uses, kept between two calls: few words beside those that it shares, and a box for
//! state that is needed by few subscriptions, or only in rare phases.
//!
//! The box is made when it is first needed, and freed at the end of a call that leaves it empty: see
//! [`Cold::is_empty`]. `docs/internals/subscription.md` says what is in it in which phase.

#![forbid(unsafe_code)]

use super::catch_up::CatchUp;
use super::chain::Reader;
use super::future::FutureStart;
use super::initial::Initial;
use super::options::{Options, StartOptions};
use super::{Halt, OnLag};
use crate::cache::{Consumer, ConsumerRef, NOWHERE};
use crate::log::segment::SegmentRef;
use crate::position::Position;
use crate::store::key_set::KeySet;
use crate::sync::Relaxed;
use std::time::{Duration, Instant};

/// See the module.
pub(super) struct Own {
    /// The segment of its cursor, while it reads that.
    pub(super) segment: Option<SegmentRef>,
    pub(super) cold: Option<Box<Cold>>,
    /// Events that it looked at.
    pub(super) looked: u64,
    /// Its place in the cache's registry, given when it is opened.
    pub(super) slot: u32,
    /// The number of next polls whose time is not recorded.
    pub(super) unrecorded: u8,
    pub(super) on_lag: OnLag,
    flags: u8,
}

/// A bit of [`Own`].
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
pub(super) struct Cold {
    pub(super) phase: SubscriptionPhase,
    /// The asked start, until it is fixed.
    pub(super) start: Option<Box<StartOptions>>,
    pub(super) bookmarks: Option<Box<Bookmarks>>,
    /// Reported by the next poll, once.
    pub(super) failure: Option<Box<Halt>>,
    /// The last revision that was reported as lost.
    pub(super) reported: u64,
    /// The keys that were delivered to the consumer, for policies that need them.
    pub(super) delivered: Option<Box<KeySet>>,
    /// The bytes of `delivered` (times 2^16) and of collected links that the cache's statistics have counted.
    counted: u64,
    pub(super) reader: Reader,
}

#[derive(Debug, Default)]
pub(super) enum SubscriptionPhase {
    /// The cache has no listing yet.
    Unready,
    /// `StateAtLeast`: not reached yet.
    Revision { until: Option<Instant> },
    /// `After` a revision of the future: not reached yet.
    Future(Box<FutureStart>),
    /// The initial state at head `cursor`.
    Initial(Box<Initial>),
    /// LAGGED was reported: the difference begins with the next poll.
    Behind(Box<CatchUp>),
    /// The difference after a loss.
    CatchUp(Box<CatchUp>),
    #[default]
    Live,
    /// Polls answer CLOSED.
    Ended,
}

impl SubscriptionPhase {
    #[inline]
    pub(super) fn is_before_its_start(&self) -> bool {
        use SubscriptionPhase::{Future, Revision, Unready};
        matches!(self, Unready | Revision { .. } | Future(_))
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
    pub(super) fn is_due(&self, position: Position) -> bool {
        position != self.delivered && self.at.elapsed() >= self.interval
    }
}

impl Own {
    /// The state of a subscription that is being opened.
    pub(super) fn new(options: &Options, is_plain: bool) -> Own {
        let mut own = Own {
            segment: None,
            cold: None,
            looked: 0,
            slot: NOWHERE,
            unrecorded: 0,
            on_lag: options.on_lag,
            flags: 0,
        };
        own.set(Flag::Plain, is_plain && !options.stop_on_resync && !options.whole_revisions);
        own.set(Flag::WholeRevisions, options.whole_revisions);
        own.set(Flag::StopOnResync, options.stop_on_resync);
        if let Some(interval) = options.bookmark_interval {
            let bookmarks = Bookmarks { interval, delivered: Position::default(), at: Instant::now() };
            own.cold().bookmarks = Some(Box::new(bookmarks));
        }
        own
    }

    /// Keeps the asked start, which is fixed once the cache has its listing.
    pub(super) fn await_listing(&mut self, start: StartOptions) {
        let cold = self.cold();
        (cold.start, cold.phase) = (Some(Box::new(start)), SubscriptionPhase::Unready);
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
    pub(super) fn cold(&mut self) -> &mut Cold {
        self.cold.get_or_insert_default()
    }

    /// The phase; without the box it is live.
    #[inline]
    pub(super) fn phase(&self) -> &SubscriptionPhase {
        static LIVE: SubscriptionPhase = SubscriptionPhase::Live;
        self.cold.as_ref().map_or(&LIVE, |cold| &cold.phase)
    }

    #[inline]
    pub(super) fn is_live(&self) -> bool {
        self.cold.as_ref().is_none_or(|cold| matches!(cold.phase, SubscriptionPhase::Live))
    }

    /// Enters another phase, and returns the one before.
    pub(super) fn enter(&mut self, phase: SubscriptionPhase) -> SubscriptionPhase {
        if self.cold.is_none() && matches!(phase, SubscriptionPhase::Live) {
            return phase;
        }
        std::mem::replace(&mut self.cold().phase, phase)
    }

    /// The keys that were delivered, where it keeps them.
    #[inline]
    pub(super) fn delivered(&mut self) -> Option<&mut KeySet> {
        self.cold.as_mut().and_then(|cold| cold.delivered.as_deref_mut())
    }

    #[inline]
    pub(super) fn keeps_keys(&self) -> bool {
        self.cold.as_ref().is_some_and(|cold| cold.delivered.is_some())
    }

    #[inline]
    pub(super) fn has_failed(&self) -> bool {
        self.cold.as_ref().is_some_and(|cold| cold.failure.is_some())
    }

    /// Releases what it has of the cache: when it ends, and when it is dropped.
    pub(super) fn release(&mut self, shared: &ConsumerRef) {
        self.segment = None;
        if let Some(cold) = &mut self.cold {
            cold.delivered = None;
            cold.reader.leave(shared);
            cold.count(shared);
        }
        if self.take(Flag::KeepsOpen) {
            shared.inner.keep_open_no_more();
        }
    }
}

impl Cold {
    /// Whether the box has only default values, so that a live subscription needs none.
    pub(super) fn is_empty(&self) -> bool {
        self.reader.is_unused()
            && matches!(self.phase, SubscriptionPhase::Live)
            && self.start.is_none()
            && self.bookmarks.is_none()
            && self.failure.is_none()
            && self.delivered.is_none()
            && self.reported == 0
            && self.counted == 0
    }

    /// Updates the cache's statistics of delivered keys and collected links.
    #[inline]
    pub(super) fn count(&mut self, shared: &Consumer) {
        if self.delivered.is_some() || self.counted != 0 || self.reader.link_bytes() != 0 {
            self.count_anew(shared);
        }
    }

    #[cold]
    fn count_anew(&mut self, shared: &Consumer) {
        let delivered = self.delivered.as_ref().map_or(0, |delivered| delivered.bytes());
        let now = delivered << 16 | u64::from(self.reader.link_bytes());
        let before = std::mem::replace(&mut self.counted, now);
        let consumers = &shared.inner.consumers;
        consumers.delivered_bytes.fetch_add((now >> 16).wrapping_sub(before >> 16), Relaxed);
        consumers.link_bytes.fetch_add((now & 0xffff).wrapping_sub(before & 0xffff), Relaxed);
    }
}
