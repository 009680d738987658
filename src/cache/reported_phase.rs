//! The phase of a subscription as its consumer publishes it, and the number of its losses, in one word.
//!
//! One load finds both, so an observer can count a loss exactly once: see the table in `observed`.

#![forbid(unsafe_code)]

use crate::data::numbered::numbered;

numbered! {
    /// The phase that the consumer publishes: the low byte of `Consumer::reported_phase`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    #[repr(u8)]
    pub(crate) enum ReportedPhase {
        /// The cache has no listing yet; after it come the state, the log, or a wait for a revision.
        AwaitsListingThenState = 0,
        AwaitsListingThenLog,
        AwaitsListingThenRevision,
        /// `StateAtLeast`: the poll that finds the revision reached fixes the beginning.
        AwaitsRevision,
        /// `After` a revision of the future: events above it count as lag, whether it is polled or not.
        AwaitsFuture,
        InitialState,
        Live,
        /// Live, and it keeps the segment of its cursor.
        LiveInSegment,
        CatchingUp,
        /// A loss was counted; the new cursor is not published yet.
        LossReported,
        Ended,
    }
}

/// The word `Consumer::reported_phase`: the phase in the low byte, the number of losses above it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct ReportedWord(pub(super) u64);

impl ReportedWord {
    /// The word of a new consumer.
    pub(super) fn of_new(phase: ReportedPhase) -> ReportedWord {
        ReportedWord(phase as u64)
    }

    pub(super) fn reported_phase(self) -> ReportedPhase {
        ReportedPhase::with_number(u32::from(self.0 as u8)).unwrap_or(ReportedPhase::Ended)
    }

    pub(super) fn losses(self) -> u64 {
        self.0 >> 8
    }

    /// The same losses with this phase.
    pub(super) fn with(self, phase: ReportedPhase) -> ReportedWord {
        ReportedWord(self.losses() << 8 | phase as u64)
    }

    /// One loss more, which has no new cursor yet.
    pub(super) fn with_a_loss(self) -> ReportedWord {
        ReportedWord((self.losses() + 1) << 8 | ReportedPhase::LossReported as u64)
    }
}
