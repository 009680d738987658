//! Reclaimers of a test's own: what their threads do at a step no other test sees.

use super::*;
use crate::heap::System;
use crate::sync::hooked;
use std::mem::take;
use std::sync::atomic::AtomicBool;
use std::thread::{self, spawn};

const BOUND: Duration = Duration::from_secs(30);

/// Waits for a condition.
fn until(what: &str, holds: impl Fn() -> bool) {
    let end = Instant::now() + BOUND;
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        thread::yield_now();
    }
}

/// Starts the thread, and sees it end.
fn start_and_end(reclaimer: &'static Reclaimer, body: fn()) {
    reclaimer.worker.start(body).unwrap();
    until("the thread ends", || reclaimer.worker.ask_to_end());
}

/// Hands a job over that needs no grace period.
fn hand_over(reclaimer: &'static Reclaimer, job: impl FnOnce() + Send + 'static) {
    reclaimer.enqueue(0, false, Job::Call(Box::new(job)), &mut System);
}

/// The last cache is gone, the thread is about to end, and somebody releases what he kept: he must not leave it to a
/// thread that is gone, and the next one must not leave it to him.
#[test]
fn what_comes_while_the_thread_ends_is_done() {
    static OWN: Reclaimer = Reclaimer::new();
    static DONE: AtomicU64 = AtomicU64::new(0);
    fn release() {
        hand_over(&OWN, || _ = DONE.fetch_add(1, Release));
    }
    fn body() {
        let mut first = true;
        let meanwhile = move |at| {
            if at == "worker rests" && take(&mut first) {
                spawn(release).join().unwrap();
            }
        };
        hooked(meanwhile, || OWN.run(|| true));
    }
    start_and_end(&OWN, body);
    assert_eq!(DONE.load(Acquire), 1, "the thread is gone, and what came meanwhile is there");
    release();
    assert_eq!(DONE.load(Acquire), 2, "who comes later does it himself");
}

/// Who stands in gives up on what a reader holds back, and somebody hands over before he has said so.
#[test]
fn what_comes_while_a_stand_in_gives_up_is_done() {
    static OWN: Reclaimer = Reclaimer::new();
    static DONE: AtomicU64 = AtomicU64::new(0);
    fn release() {
        hand_over(&OWN, || _ = DONE.fetch_add(1, Release));
    }
    start_and_end(&OWN, || OWN.run(|| true));
    let guard = pin();
    let stand_in = spawn(|| {
        let mut first = true;
        let meanwhile = move |at| {
            if at == "stand-in gives up" && take(&mut first) {
                spawn(release).join().unwrap();
            }
        };
        hooked(meanwhile, || OWN.enqueue(0, true, Job::Call(Box::new(|| ())), &mut System));
    });
    stand_in.join().unwrap();
    assert_eq!(DONE.load(Acquire), 1, "it was handed over while somebody stood in");
    drop(guard);
    release();
    assert_eq!(DONE.load(Acquire), 2);
}

/// Others hand over without a pause: once the thread is there again, who stood in is free.
#[test]
fn stand_in_leaves_to_a_thread_that_starts() {
    const MANY: u64 = 10_000;
    static OWN: Reclaimer = Reclaimer::new();
    static DONE: AtomicU64 = AtomicU64::new(0);
    static MAY_RUN: AtomicBool = AtomicBool::new(true);
    static STOPS: AtomicBool = AtomicBool::new(false);
    fn body() {
        until("the thread may run", || MAY_RUN.load(Acquire));
        OWN.run(|| true);
    }
    fn one_after_the_other() {
        match DONE.fetch_add(1, Release) {
            10 => OWN.worker.start(body).unwrap(),
            MANY => return,
            _ => {}
        }
        if !STOPS.load(Acquire) {
            hand_over(&OWN, one_after_the_other);
        }
    }
    start_and_end(&OWN, body);
    MAY_RUN.store(false, Release);
    spawn(|| hand_over(&OWN, one_after_the_other)).join().unwrap();
    let done = DONE.load(Acquire);
    MAY_RUN.store(true, Release);
    until("the thread has it", || DONE.load(Acquire) > done || done > MANY);
    STOPS.store(true, Release);
    until("the thread ends", || OWN.worker.ask_to_end());
    assert!(done < MANY, "he did all of it, and the thread was there");
    assert!(OWN.is_done());
}

/// A reader stands still inside a pin, and much waits for it: a thread that spins meanwhile takes its processor.
#[test]
fn it_pauses_while_a_pin_holds_much() {
    static OWN: Reclaimer = Reclaimer::new();
    static ROUNDS: AtomicU64 = AtomicU64::new(0);
    static PAUSES: AtomicU64 = AtomicU64::new(0);
    fn body() {
        let counts = |at| match at {
            "reclaimer looks" => _ = ROUNDS.fetch_add(1, Relaxed),
            "reclaimer pauses" => _ = PAUSES.fetch_add(1, Relaxed),
            _ => {}
        };
        hooked(counts, || OWN.run(|| true));
    }
    let guard = pin();
    OWN.worker.start(body).unwrap();
    OWN.enqueue(4 * MUCH as usize, true, Job::Call(Box::new(|| ())), &mut System);
    until("it has found the job", || OWN.deferred.load(Relaxed) > 0);
    let (rounds, pauses) = (ROUNDS.load(Relaxed), PAUSES.load(Relaxed));
    until("it looks again", || ROUNDS.load(Relaxed) >= rounds + 20);
    // It may be on its way between the two counts.
    let paused = PAUSES.load(Relaxed) - pauses;
    assert!(paused >= 18, "it paused {paused} times in 20 rounds in which nothing could be freed");
    drop(guard);
    until("the thread ends", || OWN.worker.ask_to_end());
    assert_eq!(OWN.held(), 0);
}

/// Allowances that no machine has do not wrap the sum: at 0 each commit would wait.
#[test]
fn allowances_do_not_wrap() {
    static OWN: Reclaimer = Reclaimer::new();
    let each: Vec<u64> = (0..4096).map(|_| OWN.allow(u64::MAX / 8)).collect();
    assert!(OWN.bound.load(Relaxed) >= BASE + each[0], "{}", OWN.bound.load(Relaxed));
    assert!(OWN.allow(1 << 32) == 1 << 32 && OWN.bound.load(Relaxed) > 1 << 50);
}
