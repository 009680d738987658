//! What other watch caches got wrong, as tests that it does not happen here.

use crate::tools::*;
use std::time::Duration;
use watchcore::*;

/// A ring as long as a consumer's buffer disconnected that consumer at once.
#[test]
fn a_window_as_long_as_a_batch_disconnects_nobody() {
    let (cache, mut writer) = tiny();
    let mut subscription = cache.subscribe(Start::Now).open().unwrap();
    let mut revision = 0;
    for _ in 0..50 {
        // The guaranteed window: 7/8 of the segments but the one that is being written.
        let from = revision;
        for _ in 0..98 {
            revision += 1;
            writer.apply(revision, [Change::put("/a", "v")]).unwrap();
        }
        let mut seen = 0;
        while seen < revision - from {
            let batch = subscription.poll(128).unwrap();
            assert!(!batch.is_empty(), "{seen} of {}", revision - from);
            seen += batch.len() as u64;
        }
    }
    assert_eq!(subscription.stats().lagged, 0);
}

/// "Lagged" was taken for the end of the stream.
#[test]
fn a_loss_is_not_the_end_of_the_stream() {
    for (policy, goes_on) in [(OnLag::SkipToOldest, true), (OnLag::Resnapshot, true), (OnLag::Stop, false)] {
        let (cache, mut writer) = tiny();
        let mut subscription = cache.subscribe(Start::Now).on_lag(policy).open().unwrap();
        for revision in 1..=1000 {
            writer.apply(revision, [Change::put("/a", "v")]).unwrap();
        }
        assert_eq!(subscription.next_batch().unwrap_err().code(), Code::Lagged, "{policy:?}");
        assert_eq!(subscription.next_batch().unwrap().is_some(), goes_on, "{policy:?}");
    }
}

/// A resume below the oldest event began at the oldest, and no consumer learned of it.
#[test]
fn a_resume_below_the_window_is_never_silent() {
    let (cache, mut writer) = tiny();
    for revision in 1..=1000 {
        writer.apply(revision, [Change::put("/a", "v")]).unwrap();
    }
    let oldest = cache.oldest();
    assert!(oldest > 500);
    for policy in [OnLag::Stop, OnLag::SkipToOldest, OnLag::Resnapshot, OnLag::Conflate] {
        for revision in [0, 1, oldest - 2] {
            let refused = cache.subscribe(Start::After(revision)).on_lag(policy).open().unwrap_err();
            assert_eq!((refused.code(), refused.asked(), refused.oldest()), (Code::Compacted, revision, oldest));
        }
        let mut from_there = cache.subscribe(Start::After(oldest - 1)).on_lag(policy).open().unwrap();
        assert_eq!(from_there.poll(1).unwrap().events()[0].revision(), oldest);
    }
}

/// One flag for all: a reader that cleared it took the wake-up of the others.
#[test]
fn a_reader_takes_nobody_elses_wake_up() {
    let (cache, mut writer) = embedded();
    let mut members: Vec<(WakeSet, Subscription)> = (0..5)
        .map(|tag| {
            let set = WakeSet::new().unwrap();
            let mut subscription = cache.subscribe(Start::Now).open().unwrap();
            set.add(&mut subscription, tag).unwrap();
            (set, subscription)
        })
        .collect();
    for revision in 1..=20 {
        for (set, subscription) in &mut members {
            assert!(!subscription.arm().unwrap() && !set.arm());
        }
        writer.apply(revision, [Change::put("/a", "v")]).unwrap();
        // Each is woken and reads, one after the other.
        for (tag, (set, subscription)) in members.iter_mut().enumerate() {
            assert!(set.wait(BOUND), "member {tag} at revision {revision}");
            assert_eq!(set.take(&mut [0; 4]), 1);
            assert_eq!(subscription.poll(10).unwrap().len(), 1);
        }
    }
}

/// After a put and a delete of one key the consumer slept without having asked to be woken.
#[test]
fn who_read_a_put_and_a_delete_is_woken_for_what_comes_next() {
    for policy in [OnLag::Stop, OnLag::Conflate] {
        let (cache, mut writer) = embedded();
        let mut subscription = cache.subscribe(Start::State).key("/a").on_lag(policy).open().unwrap();
        assert_eq!(drain(&mut subscription).len(), 1, "the mark");
        let set = WakeSet::new().unwrap();
        set.add(&mut subscription, 1).unwrap();
        for round in 0..20 {
            let revision = 5 * round + 1;
            writer.apply(revision, [Change::put("/a", "v")]).unwrap();
            writer.apply(revision + 1, [Change::delete("/a")]).unwrap();
            assert_eq!(drain(&mut subscription).len(), 2);
            assert!(!subscription.arm().unwrap(), "nothing more");
            // Not its own, then its own.
            writer.apply(revision + 2, [Change::put("/b", "v")]).unwrap();
            writer.apply(revision + 3, [Change::put("/a", "v")]).unwrap();
            assert!(set.wait(BOUND) && set.take(&mut [0; 4]) == 1);
            assert!(subscription.wait(Duration::ZERO).unwrap());
            assert_eq!(drain(&mut subscription).len(), 1);
            writer.apply(revision + 4, [Change::delete("/a")]).unwrap();
            assert_eq!(drain(&mut subscription).len(), 1);
        }
    }
}
