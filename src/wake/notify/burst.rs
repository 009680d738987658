//! Guesses how fast events come, for the thread that wakes and the consumer that is about to sleep.
//!
//! To sleep and to be woken costs both sides a system call, and in a burst most of these are for nothing: the next event
//! is there a microsecond later. The publisher's calls tell two things, both no more than a guess of what comes:
//!
//! - whether the last call was a moment ago. The publisher wakes nobody itself then, but a task of its own thread;
//! - whether several events came between the last two calls: consumers were awake, and take many at a time. The notifier
//!   before a pass, and the first consumer that would sleep, yield their processor once: where the system has put one on
//!   that of the publisher, it would take the processor from the publisher for each event, and be woken for each.
//!
//! An example: a program publishes 96 events in 25 us, and again a millisecond later. With event 1 the publisher wakes Ann
//! itself, the last call lies far back. Ann reads it, finds nothing, and yields, for between the last two calls there were
//! 96 events. The publisher continues, on this processor or another; Ann finds 30 events, then the rest, and sleeps. She
//! was woken once. Were there one event each millisecond, there would be one event between two calls, and no yield.

#![forbid(unsafe_code)]

use crate::sync::{AtomicBool, Relaxed};
#[cfg(not(loom))]
use crate::sys::clock;
use std::sync::atomic::AtomicU64 as Statistic;

/// Nanoseconds within which the next call counts as part of a burst. A consumer that is woken for each event of a burst
/// pays a sleep for each; the notifier's pass takes all events that have come meanwhile.
#[cfg(not(loom))]
const MOMENT: u64 = 20_000;
/// Where more events than this lie between two calls, consumers that were awake took them.
const SINGLE: u64 = 2;

#[cfg(loom)]
thread_local! {
    /// Whether a publisher of a model may do a pass itself; false leaves all passes to the notifier.
    pub(crate) static PUBLISHERS_LOOK: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// See the module.
#[derive(Default)]
pub(crate) struct Burst {
    /// When a publisher called last, as a time of [`clock`]; 0: never.
    #[cfg(not(loom))]
    called_at: Statistic,
    /// The head that it called for.
    called_for: Statistic,
    /// A hint, which carries no order.
    is_on: AtomicBool,
    /// The thread on which a task parked last, as [`this_thread`] numbers it; 0: none has parked.
    #[cfg(not(loom))]
    parked_on: Statistic,
}

/// The number of the calling thread: the address of a variable of its own, so no other living thread has it.
#[cfg(not(loom))]
fn this_thread() -> u64 {
    thread_local! {
        static PLACE: u8 = const { 0 };
    }
    PLACE.with(|place| std::ptr::from_ref(place).addr() as u64)
}

impl Burst {
    /// Records that a publisher calls for the events below `head`. True: it called a moment ago.
    #[cfg(not(loom))]
    pub(crate) fn called(&self, head: u64) -> bool {
        let events = head.saturating_sub(self.called_for.swap(head, Relaxed));
        self.is_on.store(events > SINGLE, Relaxed);
        let now = clock::now().max(1);
        let before = self.called_at.swap(now, Relaxed);
        before != 0 && now.saturating_sub(before) < MOMENT
    }

    #[cfg(loom)]
    pub(crate) fn called(&self, head: u64) -> bool {
        let events = head.saturating_sub(self.called_for.swap(head, Relaxed));
        self.is_on.store(events > SINGLE, Relaxed);
        !PUBLISHERS_LOOK.get()
    }

    /// Records that a task parks on this thread.
    pub(crate) fn parks_here(&self) {
        #[cfg(not(loom))]
        {
            let here = this_thread();
            // A store only where the thread has changed, so that parking tasks of one thread leave the cache line shared.
            if self.parked_on.load(Relaxed) != here {
                self.parked_on.store(here, Relaxed);
            }
        }
    }

    /// Whether the task that parked last did so on the calling thread, the publisher's. It runs only once the publisher
    /// lets it, so it sleeps once for all events until then, though it is woken by the first.
    pub(crate) fn is_parked_here(&self) -> bool {
        #[cfg(not(loom))]
        return self.parked_on.load(Relaxed) == this_thread();
        #[cfg(loom)]
        false
    }

    /// Whether several events came between the last two calls.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Relaxed)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Calls for one event each are no burst, however soon they follow; a call for many is one until the next call.
    #[test]
    fn a_burst_is_many_events_a_call() {
        let burst = Burst::default();
        assert!(!burst.called(1) && !burst.is_on());
        burst.called(2);
        assert!(!burst.is_on());
        burst.called(98);
        assert!(burst.is_on());
        burst.called(99);
        assert!(!burst.is_on());
    }
}
