//! The phases of a subscription before its first event.

#![forbid(unsafe_code)]

use super::awake::{Awake, Frontier};
use super::loss::{Loss, Lost};
use super::options::StartOptions;
use super::own::SubscriptionPhase;
use super::{Halt, Start, Step};
use crate::cache::OPEN;
use crate::error::say;
use crate::position::Position;
use crate::read::snapshot::Snapshot;
use crate::reclaim;
use crate::sync::{Acquire, lock};
use std::time::Instant;

impl Awake<'_> {
    /// Fixes the start once there is a listing. `late`: the listing came after the subscription.
    ///
    /// Predicates run in `seed`, before anything is changed, so that a predicate that panics leaves the start unfixed.
    pub(super) fn begin(&mut self, options: &StartOptions, late: bool) -> Step<()> {
        let inner = self.inner().clone();
        match options.start {
            Start::Now if late => {
                let (begun, position) = self.begun();
                let seeded = self.seed(begun);
                self.live(begun, position);
                if !seeded {
                    return Err(Halt::Lost(Loss { of: Lost::Start, ..self.loss() }));
                }
            }
            Start::Now => {
                let (position, head) = inner.now(&reclaim::pin());
                if self.seed(head) {
                    self.live(head, position);
                } else {
                    // The state has left the window while it was read: read it again in a snapshot.
                    let snapshot = Snapshot::take(&inner);
                    self.seed_held(&snapshot);
                    self.live(snapshot.head(), snapshot.position());
                }
            }
            Start::State if late => {
                let (begun, position) = self.begun();
                self.initial(begun, position, options.batch_bytes);
            }
            Start::State => {
                let (position, head) = inner.now(&reclaim::pin());
                self.initial(head, position, options.batch_bytes);
            }
            Start::StateAtLeast(_) => {
                // The cursor lies above every event, so the subscription has no lag while it waits.
                self.cursor.begin_at(u64::MAX, self.position());
                let until = Instant::now().checked_add(options.timeout);
                let cold = self.own.cold();
                cold.phase = SubscriptionPhase::Revision { until };
                cold.start = Some(Box::new(options.clone()));
            }
            Start::After(revision) => self.begin_after(Position { epoch: 0, revision }, false)?,
            Start::AfterIn(position) => self.begin_after(position, false)?,
            Start::Within(revision) => self.begin_after(Position { epoch: 0, revision }, true)?,
        }
        Ok(())
    }

    /// Starts after a revision. `within`: at the first event of that revision, where it has several.
    fn begin_after(&mut self, asked: Position, within: bool) -> Step<()> {
        let found = self.inner().resolve("subscribe after", asked, true)?;
        let position = Position { epoch: found.epoch, ..asked };
        if found.future {
            self.await_future(found.seq, position, within);
            return Ok(());
        }
        let (seq, position) = self.first_event((found.seq, position), within)?;
        let seeded = self.seed(seq);
        self.live(seq, position);
        if !seeded {
            return Err(self.inner().compacted("subscribe after", asked.revision).into());
        }
        Ok(())
    }

    /// Returns the place of the first event to deliver, with the position before it. `above` is the first event above a
    /// revision, with that revision's position; with `within` it is replaced by the first event of the revision itself,
    /// if the revision has several.
    pub(super) fn first_event(&self, above: (u64, Position), within: bool) -> Step<(u64, Position)> {
        let first = if within { self.inner().first_within(above.1)? } else { None };
        Ok(first.unwrap_or(above))
    }

    /// The head and position at which the cache became Ready: at its first listing, or at the end of the history after
    /// it.
    fn begun(&self) -> (u64, Position) {
        let inner = &self.shared.inner;
        let caught_up = lock(&inner.info).began;
        caught_up.unwrap_or_else(|| (inner.ring.first_seq(), self.listing()))
    }

    /// The position of the first listing.
    fn listing(&self) -> Position {
        let pin = reclaim::pin();
        let epochs = self.shared.inner.ring.epochs(&pin);
        Position { epoch: epochs.first_epoch, revision: epochs.listing }
    }

    fn start_options(&self) -> Option<&StartOptions> {
        self.own.cold.as_ref().and_then(|cold| cold.start.as_deref())
    }

    pub(super) fn start(&self) -> Option<Start> {
        self.start_options().map(|options| options.start)
    }

    pub(super) fn live(&mut self, seq: u64, position: Position) {
        self.cursor.begin_at(seq, position);
        let Some(cold) = &mut self.own.cold else { return };
        if let Some(bookmarks) = &mut cold.bookmarks {
            (bookmarks.delivered, bookmarks.at) = (position, Instant::now());
        }
        (cold.start, cold.phase) = (None, SubscriptionPhase::Live);
    }

    /// Moves through the phases before the first event. True: a poll may have an event. A start that was fixed is
    /// stored at once, so that a panic later in this call does not undo it.
    pub(super) fn started(&mut self, frontier: &Frontier) -> Step<bool> {
        if matches!(self.own.phase(), SubscriptionPhase::Unready) {
            if frontier.head == 0 {
                return Err(say::closed("subscription").into());
            } else if self.shared.inner.is_ready() {
                let start = self.own.cold().start.clone();
                let begun = start.map_or(Ok(()), |start| self.begin(&start, true));
                self.share();
                begun?;
            } else if frontier.closed {
                return Err(say::closed("subscription").into());
            } else if self.shared.inner.has_failed() {
                return Err(self.shared.inner.not_ready("subscription").into());
            } else {
                return Ok(false);
            }
        }
        if matches!(self.own.phase(), SubscriptionPhase::Future(_)) {
            let began = self.future_began(frontier)?;
            self.share();
            return Ok(began);
        }
        if let (
            SubscriptionPhase::Revision { until },
            Some(&StartOptions { start: Start::StateAtLeast(revision), batch_bytes, .. }),
        ) = (self.own.phase(), self.start_options())
        {
            // A subscription that its owner has closed while it waited does not begin.
            let ended = self.shared.end.load(Acquire) != OPEN;
            let (position, head) = self.shared.inner.now(&reclaim::pin());
            if position.revision >= revision && !ended {
                self.initial(head, position, batch_bytes);
                self.share();
            } else if frontier.closed {
                return Err(say::closed("subscription").into());
            } else if let Some(error) = self.shared.inner.broken() {
                return Err(error.into());
            } else if until.is_some_and(|until| Instant::now() >= until) {
                return Err(say::future("subscribe to the state at least at", revision, position.revision).into());
            } else {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
