//! A worker: work that is handed over is done, by its thread or by a thread that stands in.
//!
//! | row | test `loom_...` | weakened in the twins |
//! | --- | --- | --- |
//! | handed over, then called; goes to sleep, then a look | `work_for_a_sleeper` | the swap of a call; the swap of the thread that goes to sleep |
//! | called, and the thread ends | `work_at_the_end` | both swaps; step: it ends though it was called |
//! | called, and the stand-in leaves; a thread starts | `work_of_a_stand_in` | the swap of a call; the swap of the stand-in that leaves |
//!
//! The lock of a worker's life is a lock of the model, which says whether there is a thread.

use super::*;
use crate::sync::{Inbox, Mutex, current_thread, lock, park};
use crate::worker::duty::Duty;
use std::sync::Arc;

/// The worker of a model, and counts of its work. Plain, because only the numbers at the end are checked.
struct Shop {
    duty: Duty,
    inbox: Inbox<usize>,
    has_thread: Mutex<bool>,
    done: AtomicUsize,
}

impl Shop {
    fn new() -> Arc<Local<Shop>> {
        let (duty, inbox) = (Duty::new(), Inbox::new());
        Arc::new(Local::new(Shop { duty, inbox, has_thread: Mutex::new(false), done: AtomicUsize::new(0) }))
    }

    fn work(&self) {
        self.done.fetch_add(self.inbox.take_all().into_iter().sum(), Relaxed);
    }

    /// Hands over work like the reclaimer's users: only the thread that finds the inbox empty calls.
    fn hand_over(&self) {
        if self.inbox.push(1) && !self.duty.call() {
            self.stand_in();
        }
    }

    fn stand_in(&self) {
        loop {
            self.work();
            let has_thread = lock(&self.has_thread);
            if *has_thread || self.duty.leave(|| self.inbox.is_empty()) {
                return;
            }
        }
    }

    /// The worker's thread, until this much is done.
    fn sleep_until(&self, done: usize) {
        loop {
            self.work();
            if self.done.load(Relaxed) == done {
                return;
            }
            if self.duty.rest(|| self.inbox.is_empty()) {
                park();
                self.duty.wake_up();
            }
        }
    }

    /// The worker's thread, which was asked to end.
    fn end(&self) {
        loop {
            self.work();
            let mut has_thread = lock(&self.has_thread);
            if self.duty.end(|| self.inbox.is_empty()) {
                *has_thread = false;
                return;
            }
        }
    }

    /// Makes this thread of the model the worker's thread.
    fn begin(&self) {
        let mut has_thread = lock(&self.has_thread);
        self.duty.begin(current_thread());
        *has_thread = true;
    }
}

/// Row "handed over": nobody sleeps before work that nobody else will do.
fn work_for_a_sleeper(weakened: Weak) {
    PLAIN.run(weakened, || {
        let shop = Shop::new();
        shop.begin();
        let other = shop.clone();
        let sleeper = move || shop.sleep_until(2);
        // The thread of the model that has begun.
        let hands_over = thread::spawn(move || (0..2).for_each(|_| other.hand_over()));
        sleeper();
        hands_over.join().unwrap();
    });
}

proof!(
    work_for_a_sleeper, loom_work_for_a_sleeper,
    loom_work_for_a_sleeper_weak_call: DutyCall => "deadlock",
    loom_work_for_a_sleeper_weak_rest: DutyRest => "deadlock",
);

/// Row "at the end": work that is handed over while the thread ends is done, and so is the next.
fn work_at_the_end(weakened: Weak) {
    PLAIN.run(weakened, || {
        let shop = Shop::new();
        shop.begin();
        let (ends, late) = (shop.clone(), shop.clone());
        both(move || ends.end(), move || late.hand_over());
        assert_eq!(shop.done.load(Relaxed), 1, "nobody has done it");
        shop.hand_over();
        assert_eq!(shop.done.load(Relaxed), 2, "nobody does what comes later");
    });
}

proof!(
    work_at_the_end, loom_work_at_the_end,
    loom_work_at_the_end_weak_call: DutyCall => "nobody has done it",
    loom_work_at_the_end_weak_rest: DutyRest => "nobody has done it",
    loom_work_at_the_end_blind: BlindEnd => "nobody has done it",
);

/// Row "of a stand-in": two threads hand over work where there is no worker thread, and one starts meanwhile.
fn work_of_a_stand_in(weakened: Weak) {
    PLAIN.run(weakened, || {
        let shop = Shop::new();
        let (one, other) = (shop.clone(), shop.clone());
        both(move || one.hand_over(), move || other.hand_over());
        assert_eq!(shop.done.load(Relaxed), 2, "nobody has done it");
    });
    LONG.run(weakened, || {
        let shop = Shop::new();
        let (one, other) = (shop.clone(), shop.clone());
        let starts = move || {
            other.begin();
            other.sleep_until(2);
        };
        both(move || (0..2).for_each(|_| one.hand_over()), starts);
    });
}

proof!(
    work_of_a_stand_in, loom_work_of_a_stand_in,
    loom_work_of_a_stand_in_weak_call: DutyCall => "nobody has done it",
    loom_work_of_a_stand_in_weak_leave: DutyLeave => "nobody has done it",
);
