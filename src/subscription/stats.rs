//! The statistics of a subscription, and the standing that it publishes.

#![forbid(unsafe_code)]

use super::awake::{Awake, Frontier};
use super::own::SubscriptionPhase;
use super::{Start, Subscription};
use crate::cache::{ReadPath, Standing};
use crate::sys::clock;

/// The polls that follow a recorded one at once and are not recorded themselves: reading a clock costs more than
/// the rest of a small poll.
const UNRECORDED: u8 = 15;

/// The statistics of a subscription.
///
/// ```
/// use watchcore::{Cache, Change, Index, ReadPath, Start};
///
/// let cache = Cache::builder("/").index(Index::key()).build()?;
/// let mut writer = cache.writer()?;
/// let mut one = cache.subscribe(Start::Now).key("/a").open()?;
/// writer.apply(1, [Change::put("/a", "1"), Change::put("/b", "1")])?;
/// one.poll(10)?;
/// writer.apply(2, [Change::put("/b", "2"), Change::put("/a", "2")])?;
/// one.poll(10)?;
/// assert_eq!(one.stats().read_path, ReadPath::Chain { index: "key".into() });
/// # Ok::<(), watchcore::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SubscriptionStats {
    /// Its present read path.
    pub read_path: ReadPath,
    /// Events that it has looked at.
    pub looked_at: u64,
    /// Events of the log that it passed over without a look: not of its bucket, or in a segment that the summary
    /// excluded.
    pub skipped: u64,
    /// Events and marks that it handed out.
    pub handed_out: u64,
    /// The number of its losses, reported ones and those that [`OnLag::Conflate`](crate::OnLag::Conflate) does not report.
    pub lagged: u64,
    /// Keys that it records as delivered (policies Resnapshot and Conflate).
    pub delivered_keys: u64,
    /// The memory of these keys, in bytes.
    pub delivered_bytes: u64,
}

impl Subscription {
    /// Its statistics, and its present read path.
    pub fn stats(&self) -> SubscriptionStats {
        let read_path = self.index_name().map_or(ReadPath::Scan, |index| ReadPath::Chain { index: index.to_string() });
        let cold = self.own.cold.as_ref();
        let delivered = cold.and_then(|cold| cold.delivered.as_ref());
        SubscriptionStats {
            read_path,
            looked_at: self.own.looked,
            skipped: cold.map_or(0, |cold| cold.reader.skipped),
            handed_out: self.shared.handed_out(),
            lagged: self.shared.losses(),
            delivered_keys: delivered.map_or(0, |delivered| delivered.len()),
            delivered_bytes: delivered.map_or(0, |delivered| delivered.bytes()),
        }
    }
}

impl Awake<'_> {
    #[inline]
    pub(super) fn standing(&self) -> Standing {
        let Some(cold) = &self.own.cold else { return self.standing_live() };
        match cold.phase {
            SubscriptionPhase::Unready => match self.start() {
                Some(Start::State) => Standing::AwaitsListingThenState,
                Some(Start::StateAtLeast(_)) => Standing::AwaitsListingThenRevision,
                _ => Standing::AwaitsListingThenLog,
            },
            SubscriptionPhase::Revision { .. } => Standing::AwaitsRevision,
            SubscriptionPhase::Future(_) => Standing::AwaitsFuture,
            SubscriptionPhase::Initial(_) => Standing::InitialState,
            SubscriptionPhase::Behind(_) | SubscriptionPhase::CatchUp(_) => Standing::CatchingUp,
            SubscriptionPhase::Live => self.standing_live(),
            SubscriptionPhase::Ended => Standing::Ended,
        }
    }

    #[inline]
    fn standing_live(&self) -> Standing {
        if self.cursor.is_in_segment() { Standing::LiveInSegment } else { Standing::Live }
    }

    /// Records the time of a poll that handed out events, and whether it has everything now; see [`UNRECORDED`].
    #[inline]
    pub(super) fn record_poll(&mut self, frontier: &Frontier) {
        if let Some(left) = self.own.unrecorded.checked_sub(1) {
            self.own.unrecorded = left;
            return;
        }
        let now = clock::soon();
        self.own.unrecorded = if self.shared.polled_at(now) { UNRECORDED } else { 0 };
        if self.has_everything(frontier) {
            self.shared.caught_up(now);
        }
    }
}
