//! Whose turn it is to look over the tables of a hub.
//!
//! One word. Who has something that others wait for calls; where nobody was called and nobody looks, the caller
//! sees to it that somebody does. Who looks holds the turn meanwhile: the notifier, or the publisher where little
//! is to be done. Who finds it held leaves a call behind, and who gives it back hands that on. Nobody waits for it.
//!
//! There are two calls. A publisher calls for its events; everybody else for the whole: for messages, due times, limits
//! of lag. The notifier's look answers both. The publisher's is at events alone, and a call for the whole outlasts it.
//!
//! | word | who sees to it that somebody looks |
//! | --- | --- |
//! | 0 | nobody: everything was looked at |
//! | CALLED, WHOLE, both | who has called first, or has handed on |
//! | HELD | who holds it: the look may be behind it already |
//! | HELD, and a call | who holds it, when it is given back: the call stays, or came meanwhile |
//!
//! | step | partner | order |
//! | --- | --- | --- |
//! | what is to be seen, then `call` | `answer`, `answer_events`, then the look | AcqRel: the look sees it, or the call stays |
//! | what is to be seen, then `call_for_all` | `answer`, then the look | the same |
//! | the look, then `give_back` | `take`, then the look | AcqRel: the tables lie as they were left |

#![forbid(unsafe_code)]

#[cfg(loom)]
use crate::sync::weak;
use crate::sync::{AcqRel, AtomicU32, ord};

/// Events are to be looked at.
const CALLED: u32 = 1;
/// Everything is.
const WHOLE: u32 = 2;
/// Somebody looks.
const HELD: u32 = 4;

/// See the module.
pub(super) struct Turn(AtomicU32);

impl Turn {
    pub(super) fn new() -> Turn {
        Turn(AtomicU32::new(0))
    }

    /// A publisher has events to be looked at. True: the caller sees to it that somebody does.
    #[inline]
    pub(super) fn call(&self) -> bool {
        // Partner: `answer`, `answer_events`.
        self.0.fetch_or(CALLED, AcqRel) == 0
    }

    /// Everything is to be looked at. True: the caller sees to it that the notifier does.
    pub(super) fn call_for_all(&self) -> bool {
        // Partner: `answer`.
        self.0.fetch_or(WHOLE, AcqRel) == 0
    }

    /// Takes the turn; `None`: somebody holds it. `hand_on` is called when it is given back with a call that was not
    /// answered.
    pub(super) fn take<F: Fn()>(&self, hand_on: F) -> Option<HeldTurn<'_, F>> {
        // Partner: `give_back`.
        (self.0.fetch_or(HELD, AcqRel) & HELD == 0).then(|| HeldTurn { turn: self, hand_on })
    }

    /// As [`Turn::take`], for a look at everything; `None`: somebody holds it, and hands the call that is left on.
    pub(super) fn take_or_call<F: Fn() + Copy>(&self, hand_on: F) -> Option<HeldTurn<'_, F>> {
        loop {
            let held = self.take(hand_on);
            // Given back in between: nobody would hand the call on.
            if held.is_some() || !self.call_for_all() {
                return held;
            }
        }
    }
}

/// The turn, held: given back when it is dropped, by a panic, too.
#[must_use]
pub(super) struct HeldTurn<'a, F: Fn()> {
    turn: &'a Turn,
    hand_on: F,
}

impl<F: Fn()> HeldTurn<'_, F> {
    /// The look that follows answers every call until now. Partner: `Turn::call`, `Turn::call_for_all`.
    pub(super) fn answer(&self) {
        self.turn.0.fetch_and(!(CALLED | WHOLE), ord!(TurnAnswer, AcqRel));
    }

    /// The look that follows is at events alone: a call for more stays. Partner: `Turn::call`.
    pub(super) fn answer_events(&self) {
        #[cfg(loom)]
        if weak::is(weak::Site::AnswerAll) {
            return self.answer();
        }
        self.turn.0.fetch_and(!CALLED, ord!(TurnAnswer, AcqRel));
    }

    /// Leaves it to who is called when it is given back.
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

    /// Who does not get the turn leaves it with who has it, and a call that came meanwhile is handed on once.
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

    /// A due time has come while the publisher holds the turn: its look is at events alone, and the notifier comes again.
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
