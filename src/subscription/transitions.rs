//! The ways from one phase of a subscription to the next.
//!
//! | phase | next |
//! | --- | --- |
//! | AwaitsListing | with the listing: the phase that its start asks for |
//! | AwaitsRevision | at the revision: Initial |
//! | Future | at the revision: Live |
//! | Initial | after the mark that ends the state: Live |
//! | Live | at a loss, with a policy that catches up: CatchUp |
//! | CatchUp | after the difference: Live |
//! | each | at a loss, by its policy ([`OnLag`]), or at an error: Ended |

#![forbid(unsafe_code)]

use super::awake::Awake;
use super::catch_up::CatchUp;
use super::delivered;
use super::frontier::{Frontier, newest_state};
use super::future;
use super::initial::Initial;
use super::loss::{Halt, Loss, Lost, Step, resynced};
use super::options::{OnLag, StartOptions};
use super::start::{self, Begun};
use super::state::{Flag, RareState, SubscriptionPhase};
use crate::batch::Batch;
use crate::error::Error;
use crate::read::view::At;

impl Awake<'_> {
    /// Fixes the start of a subscription that is being opened.
    pub(super) fn begin(&mut self, options: &StartOptions) -> Step<()> {
        let begun = start::begin(options, false, self.state.on_lag, &mut self.cursor, self.shared)?;
        self.enter(begun);
        Ok(())
    }

    /// Moves through the phases before the first event. True: a poll may have an event. A start that was fixed is
    /// stored at once, so that a panic later in this call does not undo it.
    pub(super) fn started(&mut self, frontier: &Frontier) -> Step<bool> {
        let policy = self.state.on_lag;
        while let Some(rare) = &mut self.state.rare {
            match &mut rare.phase {
                SubscriptionPhase::AwaitsListing(phase) => {
                    let Some(begun) = phase.poll(frontier, policy, &mut self.cursor, self.shared)? else {
                        return Ok(false);
                    };
                    self.enter(begun);
                }
                SubscriptionPhase::AwaitsRevision(phase) => {
                    let Some(initial) = phase.poll(frontier, self.shared)? else { return Ok(false) };
                    self.enter_initial(initial);
                }
                SubscriptionPhase::Future(phase) => {
                    let Some(above) = phase.poll(frontier, &mut self.cursor, self.shared)? else {
                        self.share();
                        return Ok(false);
                    };
                    let from = start::first_event(above, phase.within, self.inner())?;
                    // The consumer has the state of its revision, which only now exists in the cache and can be recorded.
                    let Ok(keys) = delivered::of_state(policy, self.shared, At::Head(self.inner(), from.seq)) else {
                        return Err(Halt::Lost(future::loss(&self.cursor, self.shared)));
                    };
                    self.state.set_delivered(keys);
                    self.cursor.begin_at(from);
                    self.state.enter(SubscriptionPhase::Live);
                }
                _ => return Ok(true),
            }
            self.share();
        }
        Ok(true)
    }

    fn enter(&mut self, begun: Begun) {
        match begun {
            Begun::Live(keys) => {
                self.state.set_delivered(keys);
                self.go_live();
            }
            Begun::Initial(initial) => self.enter_initial(initial),
            Begun::Future(future) => {
                self.go_live();
                self.state.enter(SubscriptionPhase::Future(Box::new(future)));
            }
            Begun::AwaitsRevision(phase) => _ = self.state.enter(SubscriptionPhase::AwaitsRevision(Box::new(phase))),
        }
    }

    fn enter_initial(&mut self, initial: Initial) {
        self.cursor.begin_at(initial.cursor());
        self.state.set_delivered(self.state.on_lag.needs_delivered_keys().then(Box::default));
        self.state.enter(SubscriptionPhase::Initial(Box::new(initial)));
    }

    /// Continues as a live subscription at its cursor. The next bookmark is due an interval from now.
    fn go_live(&mut self) {
        let position = self.position();
        if let Some(rare) = &mut self.state.rare {
            if let Some(bookmarks) = &mut rare.bookmarks {
                bookmarks.deliver(position);
            }
            rare.phase = SubscriptionPhase::Live;
        }
    }

    /// The next page of the initial state or of the difference. `None`: the phase has no pages.
    pub(super) fn page(&mut self, max: usize) -> Step<Option<Batch>> {
        let how = self.state.delivery();
        let Some(RareState { phase, delivered, .. }) = self.state.rare.as_deref_mut() else { return Ok(None) };
        let (batch, live) = match phase {
            SubscriptionPhase::Initial(phase) => phase.poll(max, delivered, self.shared)?,
            SubscriptionPhase::CatchUp(phase) => phase.poll(max, how, delivered, &self.cursor, self.shared)?,
            _ => return Ok(None),
        };
        if let Some(from) = live {
            self.cursor.begin_at(from);
            self.go_live();
        }
        Ok(Some(batch))
    }

    /// Follows the policy after a loss. Returns the error to report; `None`: the poll continues.
    pub(super) fn lose(&mut self, loss: Loss) -> Option<Error> {
        self.shared.lost();
        tracing::debug!(
            cache = self.shared.inner.name,
            subscription = self.shared.name(),
            id = self.shared.id(),
            from = loss.from,
            to = loss.to,
            "events were lost"
        );
        self.cursor.release();
        if let Some(rare) = &mut self.state.rare {
            rare.path.links = None;
        }
        let error = loss.error(self.position());
        match self.state.on_lag {
            OnLag::Stop => self.end(),
            OnLag::SkipToOldest if loss.of == Lost::State => self.end(),
            OnLag::SkipToOldest => self.skip_to(&loss),
            OnLag::Resnapshot | OnLag::Conflate if loss.of == Lost::Start => self.end(),
            // Its owner has closed it, and the state at the close has left the window.
            OnLag::Resnapshot | OnLag::Conflate if newest_state(self.shared).is_none() => self.end(),
            policy @ (OnLag::Resnapshot | OnLag::Conflate) => {
                if self.fall_behind(&loss) || policy == OnLag::Conflate {
                    // Stored now, because the difference begins in this call: if that panics, the loss stays recorded.
                    self.share();
                    return None;
                }
            }
        }
        Some(error)
    }

    /// Continues at the first event that is not lost.
    fn skip_to(&mut self, loss: &Loss) {
        let frontier = Frontier::load(self.shared);
        let over = frontier.closed && loss.next.seq >= frontier.head;
        if self.has(Flag::StopOnResync) && loss.next.position.epoch != self.position().epoch && !over {
            // The mark of that resync is among the lost events.
            let resynced = resynced(loss.current, "while events were lost", self.position());
            self.state.rare().failure = Some(Box::new(Halt::Over(resynced)));
        }
        self.cursor.begin_at(loss.next);
        self.state.enter(SubscriptionPhase::Live);
    }

    /// Enters the phase of the difference, which begins with its next page. True: the loss was reported before.
    fn fall_behind(&mut self, loss: &Loss) -> bool {
        // A lost initial state is reported whole, so nothing of it counts as reported before.
        let reported = if loss.of == Lost::State { 0 } else { loss.to };
        let base = self.cursor.seq();
        let catch_up = match self.state.enter(SubscriptionPhase::Ended) {
            SubscriptionPhase::CatchUp(mut catch_up) => {
                catch_up.begin_again(reported);
                catch_up
            }
            // The keys of the initial state that were handed out were delivered at its head, all others were not delivered.
            SubscriptionPhase::Initial(_) => Box::new(CatchUp::new(base, true, reported)),
            _ => Box::new(CatchUp::new(base, false, reported)),
        };
        let is_reported = catch_up.has_begun();
        self.state.enter(SubscriptionPhase::CatchUp(catch_up));
        is_reported
    }

    pub(super) fn end(&mut self) {
        self.cursor.release();
        self.state.release(self.shared);
        self.state.enter(SubscriptionPhase::Ended);
    }
}
