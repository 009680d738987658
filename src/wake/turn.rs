//! The turn: the lock of a pass over the tables of a hub, in one word with the calls that are pending.
//!
//! A thread that has something for sleepers calls. If no call is pending and nobody holds the turn, it must start a pass.
//! The thread that does the pass holds the turn: the notifier, or the publisher where little is to be done. Where the turn
//! is held, a call stays in the word, and the holder hands it on when it gives the turn back. Nobody waits for the turn.
//!
//! There are two calls. A publisher calls for its events; all others call for everything: messages, due times, limits of
//! lag. The notifier's pass answers both; a publisher's answers the call for events alone.
//!
//! | word | thread that must see to a pass |
//! | --- | --- |
//! | 0 | none: everything was looked at |
//! | CALLED, WHOLE, both | the first caller, or the holder that has handed the call on |
//! | HELD | the holder: its look may be over already |
//! | HELD, and a call | the holder, when it gives the turn back: the call stayed, or came meanwhile |
//!
//! | step | partner | order |
//! | --- | --- | --- |
//! | the store that the look has to see, then `call` | `answer`, `answer_events`, then the look | AcqRel: the look sees it, or the call stays |
//! | the store that the look has to see, then `call_for_all` | `answer`, then the look | the same |
//! | the look, then `give_back` | `take`, then the look | AcqRel: the tables are as the last look left them |

#![forbid(unsafe_code)]

#[cfg(loom)]
use crate::sync::weak;
use crate::sync::{AcqRel, AtomicU32, ord};

/// New events are to be looked at.
const CALLED: u32 = 1;
/// Everything is to be looked at: events, messages, due times, limits of lag.
const WHOLE: u32 = 2;
/// A thread holds the turn.
const HELD: u32 = 4;

/// See the module.
pub(super) struct Turn(AtomicU32);

impl Turn {
    pub(super) fn new() -> Turn {
        Turn(AtomicU32::new(0))
    }

    /// Records that there are new events. True: no pass is pending or running, so the caller must start one.
    #[inline]
    pub(super) fn call(&self) -> bool {
        // Partner: `answer`, `answer_events`.
        self.0.fetch_or(CALLED, AcqRel) == 0
    }

    /// Records that everything is to be looked at. True: no pass is pending or running, so the notifier must be called.
    pub(super) fn call_for_all(&self) -> bool {
        // Partner: `answer`.
        self.0.fetch_or(WHOLE, AcqRel) == 0
    }

    /// Takes the turn; `None`: another thread holds it. `hand_on` is called when the turn is given back with a call
    /// that was not answered.
    pub(super) fn take<F: Fn()>(&self, hand_on: F) -> Option<HeldTurn<'_, F>> {
        // Partner: `give_back`.
        (self.0.fetch_or(HELD, AcqRel) & HELD == 0).then(|| HeldTurn { turn: self, hand_on })
    }

    /// Like [`Turn::take`], for a look at everything; `None`: the holder will hand on the call that this leaves.
    pub(super) fn take_or_call<F: Fn() + Copy>(&self, hand_on: F) -> Option<HeldTurn<'_, F>> {
        loop {
            let held = self.take(hand_on);
            // If the turn was given back in between, nobody would hand the call on: take it again.
            if held.is_some() || !self.call_for_all() {
                return held;
            }
        }
    }
}

/// The turn, held. Dropping it gives the turn back, also when a panic unwinds.
#[must_use]
pub(super) struct HeldTurn<'a, F: Fn()> {
    turn: &'a Turn,
    hand_on: F,
}

impl<F: Fn()> HeldTurn<'_, F> {
    /// Clears every call until now, which the look that follows answers. Partner: `Turn::call`, `Turn::call_for_all`.
    pub(super) fn answer(&self) {
        self.turn.0.fetch_and(!(CALLED | WHOLE), ord!(TurnAnswer, AcqRel));
    }

    /// Clears the calls for events alone, for a look at these: a call for everything stays. Partner: `Turn::call`.
    pub(super) fn answer_events(&self) {
        #[cfg(loom)]
        if weak::is(weak::Site::AnswerAll) {
            return self.answer();
        }
        self.turn.0.fetch_and(!CALLED, ord!(TurnAnswer, AcqRel));
    }

    /// Leaves a call for everything, which is handed on when the turn is given back.
    pub(super) fn call_again(&self) {
        self.turn.call_for_all();
    }
}

impl<F: Fn()> Drop for HeldTurn<'_, F> {
    fn drop(&mut self) {
        // Partner: `take`.
        let before = self.turn.0.fetch_and(!HELD, AcqRel);
        #[cfg(loom)]
        if weak::is(weak::Site::CallDropped) {
            return;
        }
        if before & (CALLED | WHOLE) != 0 {
            (self.hand_on)();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// A thread that does not get the turn leaves it with its holder, and a call that came meanwhile is handed on once.
    #[test]
    fn turn_is_of_one_until_it_is_given_back() {
        let (turn, handed_on) = (Turn::new(), Cell::new(0));
        let hand_on = || handed_on.set(handed_on.get() + 1);
        assert!(turn.call());
        let held = turn.take(hand_on).expect("nobody has it");
        held.answer();
        assert!(turn.take(hand_on).is_none() && turn.take_or_call(hand_on).is_none() && !turn.call());
        assert!(turn.take(hand_on).is_none(), "it was taken from its holder");
        assert_eq!(handed_on.get(), 0);
        drop(held);
        assert_eq!(handed_on.get(), 1);
        turn.take(hand_on).expect("it was given back").answer();
        assert_eq!(handed_on.get(), 1, "the call was answered");
    }

    /// A due time comes while the publisher holds the turn: the publisher looks at events alone, and the call is handed on.
    #[test]
    fn call_for_more_outlasts_a_look_at_events() {
        let (turn, handed_on) = (Turn::new(), Cell::new(0));
        let hand_on = || handed_on.set(handed_on.get() + 1);
        assert!(turn.call());
        let publisher = turn.take(hand_on).expect("nobody has it");
        assert!(turn.take_or_call(hand_on).is_none());
        publisher.answer_events();
        drop(publisher);
        assert_eq!(handed_on.get(), 1, "nobody looks at the due time");
        assert!(!turn.call() && !turn.call_for_all(), "the notifier is on its way");
        turn.take(hand_on).expect("it was given back").answer();
        assert_eq!(handed_on.get(), 1, "the notifier has looked at everything");
    }
}
