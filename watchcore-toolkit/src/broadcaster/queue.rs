//! The queue of a watcher that drops emulates a bounded channel: the reader computes which events a
//! channel of this capacity would have accepted.
//!
//! Between two takes of its consumer a channel only fills up: of the events published meanwhile, the first ones find
//! the free slots, the others find the channel full. So three numbers suffice: the head at the last look, the head now,
//! and the number of accepted events that were not taken. `docs/internals/toolkit.md` has an example in numbers.

#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::ops::Range;

/// The queue, described in the module's documentation. Numbers are those of the events: 1, 2, 3.
pub(super) struct DropQueue {
    /// The capacity.
    places: u64,
    /// Everything below this number was accepted or lost.
    looked: u64,
    /// Accepted and not taken, in order: at most one run per slot.
    accepted: VecDeque<Range<u64>>,
    /// The number of events in `accepted`.
    pending: u64,
    /// Slots that events of the prefix occupy.
    prefix: u64,
    lost: u64,
}

impl DropQueue {
    /// The queue of a watcher that takes first the `prefix`, then the events from `from` on. Events
    /// below `head` are accepted whatever the capacity, because the watcher requested them.
    pub(super) fn new(queue: u64, prefix: u64, from: u64, head: u64) -> DropQueue {
        let pending = head - from;
        let accepted = (pending > 0).then_some(from..head).into_iter().collect();
        let asked = prefix + pending;
        // The capacity exceeds the initial events by at least one, as in apimachinery; without
        // capacity nothing would be delivered.
        let places = if asked > 0 { queue.max(asked + 1) } else { queue.max(1) };
        DropQueue { places, looked: head, accepted, pending, prefix, lost: 0 }
    }

    /// How many of `new` events are accepted now.
    fn accepts(&self, new: u64) -> u64 {
        new.min(self.places.saturating_sub(self.pending + self.prefix))
    }

    /// Processes all events below `head`.
    pub(super) fn look(&mut self, head: u64) {
        if head <= self.looked {
            return;
        }
        let new = head - self.looked;
        let count = self.accepts(new);
        if count > 0 {
            let run = self.looked..self.looked + count;
            match self.accepted.back_mut() {
                Some(back) if back.end == run.start => back.end = run.end,
                _ => self.accepted.push_back(run),
            }
        }
        self.pending += count;
        self.lost += new - count;
        self.looked = head;
    }

    /// The next event to be taken.
    pub(super) fn next(&self) -> Option<u64> {
        self.accepted.front().map(|run| run.start)
    }

    /// Takes the next event.
    pub(super) fn take(&mut self) {
        let Some(run) = self.accepted.front_mut() else { return };
        run.start += 1;
        if run.is_empty() {
            self.accepted.pop_front();
        }
        self.pending -= 1;
    }

    /// Takes `count` events of the prefix.
    pub(super) fn take_prefix(&mut self, count: u64) {
        self.prefix -= count;
    }

    /// Marks accepted events below `oldest`, which have left the log, as lost.
    pub(super) fn skip_to(&mut self, oldest: u64) {
        while let Some(run) = self.accepted.front_mut() {
            if run.start >= oldest {
                return;
            }
            let gone = run.end.min(oldest) - run.start;
            run.start += gone;
            self.pending -= gone;
            self.lost += gone;
            if run.is_empty() {
                self.accepted.pop_front();
            }
        }
    }

    /// The number of lost events, if everything below `head` is published.
    pub(super) fn lost(&self, head: u64) -> u64 {
        let new = head.saturating_sub(self.looked);
        self.lost + new - self.accepts(new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The example of the design page.
    #[test]
    fn queue_of_two_gives_first_two() {
        let mut queue = DropQueue::new(2, 0, 10, 10);
        let mut taken = Vec::new();
        let mut take = |head| {
            queue.look(head);
            taken.extend(queue.next());
            queue.take();
        };
        take(15);
        take(17);
        take(17);
        assert_eq!(taken, [10, 11, 15]);
        assert_eq!(queue.lost(17), 4);
        assert_eq!(queue.lost(20), 5, "two places are free, of three one is lost");
    }

    /// Events that left the log before they were taken are lost, and free their slots.
    #[test]
    fn evicted_numbers_are_lost() {
        let mut queue = DropQueue::new(4, 0, 1, 1);
        queue.look(10);
        queue.skip_to(3);
        assert_eq!((queue.next(), queue.lost(10)), (Some(3), 7));
        queue.look(13);
        queue.skip_to(100);
        assert_eq!((queue.next(), queue.lost(13)), (None, 12));
    }

    /// A channel with a counter, as the reference.
    #[derive(Default)]
    struct Channel {
        places: usize,
        inside: VecDeque<u64>,
        lost: u64,
    }

    impl Channel {
        fn send(&mut self, number: u64) {
            if self.inside.len() < self.places {
                self.inside.push_back(number);
            } else {
                self.lost += 1;
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Whatever is published and taken in whatever order, the queue takes the same events as a channel.
        #[test]
        fn arithmetic_equals_a_channel(
            places in 1..6u64,
            prefix in 0..4u64,
            steps in prop::collection::vec((0..8u64, any::<bool>()), 0..200),
        ) {
            let mut queue = DropQueue::new(places, prefix, 1, 1);
            let mut channel = Channel { places: places.max(if prefix > 0 { prefix + 1 } else { 1 }) as usize, ..Channel::default() };
            // The prefix has the number 0.
            channel.inside.extend((0..prefix).map(|_| 0));
            let mut head = 1;
            let mut left = prefix;
            for (published, takes) in steps {
                for number in head..head + published {
                    channel.send(number);
                }
                head += published;
                prop_assert_eq!(queue.lost(head), channel.lost);
                if takes {
                    queue.look(head);
                    let taken = if left > 0 {
                        left -= 1;
                        queue.take_prefix(1);
                        Some(0)
                    } else {
                        let next = queue.next();
                        queue.take();
                        next
                    };
                    prop_assert_eq!(taken, channel.inside.pop_front());
                }
                prop_assert!(queue.accepted.len() as u64 <= places.max(prefix + 1));
            }
        }
    }
}
