//! Subscriptions as others see them: lists, status and statistics, whatever their consumers do.

use crate::tools::*;
use std::time::{Duration, Instant};
use watchcore::*;

fn write(writer: &mut Writer, revisions: impl Iterator<Item = u64>) {
    for revision in revisions {
        writer.apply(revision, [Change::put("/k", &revision.to_string())]).unwrap();
    }
}

#[track_caller]
fn only(cache: &Cache) -> SubscriptionInfo {
    let all = cache.subscriptions();
    assert_eq!(all.len(), 1, "{all:?}");
    all.into_iter().next().unwrap()
}

/// A short revision never straddles two segments, so some are left before they are full: what was never written is
/// no lag in the window, nor of a subscription that began before all events.
#[test]
fn lag_is_of_events() {
    let (cache, mut writer) = tiny();
    let idle = cache.subscribe(Start::Now).open().unwrap();
    let mut slow = cache.subscribe(Start::Now).open().unwrap();
    let mut written = 0;
    for revision in 1..=400 {
        // Of 16 slots the single one and seven pairs take 15.
        let keys = ["/a", "/b"];
        let count = if revision % 8 == 1 { 1 } else { 2 };
        writer.apply(revision, keys[..count].iter().map(|key| Change::put(key, "1"))).unwrap();
        written += count as u64;
        let all = cache.subscriptions();
        assert_eq!((all[0].lag.events, cache.stats().events), (written, written), "at {revision}");
        // Within the window it takes all that there is, and finds its own lag.
        if revision % 40 == 0 {
            while !slow.poll(1_000).unwrap().is_empty() {}
        }
    }
    let status = cache.status();
    assert_eq!((status.max_lag_events, status.max_lag_seen), (written, written));
    drop(idle);
}

/// Each segment of 16 has 15 events. The lag of an overrun subscription is at least the events that it has not taken, and
/// counts at most the free slot of each segment that has left in addition.
#[test]
fn overrun_lag_is_an_upper_bound() {
    for first in 1..=16 {
        let (cache, mut writer) = tiny();
        let mut written = 0;
        let mut pairs = |count: u64| {
            for _ in 0..count {
                written += 1;
                let keys = ["/a", "/b"];
                let count = if written % 8 == 1 { 1 } else { 2 };
                writer.apply(written, keys[..count].iter().map(|key| Change::put(key, "1"))).unwrap();
            }
            cache.stats().events
        };
        let before = pairs(first);
        let late = cache.subscribe(Start::Now).open().unwrap();
        let mut polls = cache.subscribe(Start::Now).open().unwrap();
        let mut filtered = cache.subscribe(Start::Now).prefix("/a").open().unwrap();
        let polled = pairs(20);
        while !polls.poll(7).unwrap().is_empty() {}
        while !filtered.poll(7).unwrap().is_empty() {}
        for _ in 0..20 {
            let now = pairs(10);
            let lags: Vec<u64> = cache.subscriptions().into_iter().map(|info| info.lag.events).collect();
            for (lag, events) in lags.iter().zip([now - before, now - polled, now - polled]) {
                let most = now.min(events * 16 / 15 + 1);
                assert!((events..=most).contains(lag), "from {first} on: {lag} for {events}");
            }
            assert_eq!(cache.status().max_lag_events, lags[0]);
        }
        drop(late);
    }
}

/// A poll counts the lag that it finds as lists do: of events, while they are in the window.
#[test]
fn lag_of_a_poll_is_of_events() {
    let (cache, mut writer) = tiny();
    let mut slow = cache.subscribe(Start::Now).open().unwrap();
    for revision in 1..=48 {
        let keys = ["/a", "/b"];
        writer
            .apply(revision, keys[..if revision % 8 == 1 { 1 } else { 2 }].iter().map(|key| Change::put(key, "1")))
            .unwrap();
    }
    while !slow.poll(1_000).unwrap().is_empty() {}
    assert_eq!(cache.status().max_lag_seen, 90, "six segments of 15 events");
}

/// For every place of the window: the state Overrun is that exactly of those whose polls then report a loss.
#[test]
fn overrun_is_what_polls_meet() {
    let mut seen = [0, 0];
    for (first, to) in (0..40).flat_map(|first| (130..200).step_by(3).map(move |to| (first, to))) {
        let (cache, mut writer) = tiny();
        let mut one = cache.subscribe(Start::Now).open().unwrap();
        write(&mut writer, 1..=50);
        // It keeps the segment that it stands in, and reads that to its end whatever has left.
        if first > 0 {
            assert_eq!(one.poll(first).unwrap().len().min(1), 1);
        }
        write(&mut writer, 51..=to);
        let overrun = cache.status().overrun;
        let lost = loop {
            match one.poll(100) {
                Ok(batch) if batch.is_empty() => break 0,
                Ok(_) => {}
                Err(error) => {
                    assert_eq!(error.code(), Code::Lagged);
                    break 1;
                }
            }
        };
        assert_eq!(overrun, lost, "{first} polled, {to} written");
        seen[lost as usize] += 1;
    }
    assert!(seen[0] > 100 && seen[1] > 100, "{seen:?}");
}

/// A compaction forgets what others may ask for; events that are there are not lost by it. Here everything up to the
/// start has left, and nothing above; the rest is row 6.45.
#[test]
fn future_start_is_not_overrun_by_a_compaction() {
    let (cache, mut writer) = tiny();
    let mut future = cache.subscribe(Start::After(304)).open().unwrap();
    write(&mut writer, 1..=304);
    let oldest = cache.oldest();
    while cache.oldest() < 305 {
        assert_eq!((only(&cache).state == SubscriptionState::Overrun, cache.oldest() >= oldest), (false, true));
        let next = cache.position().revision + 1;
        write(&mut writer, next..=next);
    }
    let newest = cache.position().revision;
    writer.compact(newest - 1).unwrap();
    assert_eq!((only(&cache).state, only(&cache).lag.events), (SubscriptionState::Live, newest - 304));
    assert_eq!(revisions(&mut future), (305..=newest).collect::<Vec<_>>());
}

#[test]
fn last_poll_has_an_age() {
    let (cache, mut writer) = embedded();
    let mut one = cache.subscribe(Start::Now).open().unwrap();
    assert_eq!(only(&cache).last_poll, None);
    let before = Instant::now();
    assert!(one.poll(1).unwrap().is_empty());
    assert!(only(&cache).last_poll.unwrap() <= before.elapsed());
    until("the age grows", || only(&cache).last_poll.unwrap() >= Duration::from_millis(100));
    // With events, too.
    write(&mut writer, 1..=1);
    until("its lag has an age", || only(&cache).lag.age > Duration::ZERO);
    let before = Instant::now();
    assert_eq!(one.poll(1).unwrap().len(), 1);
    let (age, most) = (only(&cache).last_poll.unwrap(), before.elapsed());
    assert!(age <= most, "{age:?} of at most {most:?}");
    assert_eq!((only(&cache).handed_out, one.stats().handed_out), (1, 1));
}

#[test]
fn ten_thousand_come_and_go() {
    let (cache, mut writer) = embedded();
    let open = |at: usize| cache.subscribe(Start::Now).name(at.to_string()).open().unwrap();
    let mut all: Vec<Option<Subscription>> = (0..10_000).map(|at| Some(open(at))).collect();
    write(&mut writer, 1..=3);
    assert_eq!((cache.subscriptions().len(), cache.status().max_lag_events), (10_000, 3));
    // In no order; their places are used again.
    let step = 7_919;
    (0..5_000).for_each(|turn| drop(all[turn * step % 10_000].take()));
    let left = || all.iter().enumerate().filter_map(|(at, one)| one.as_ref().map(|_| at.to_string()));
    let listed: Vec<String> = cache.subscriptions().into_iter().map(|info| info.name).collect();
    assert!(left().eq(listed));
    let new: Vec<Subscription> = (10_000..15_000).map(open).collect();
    let listed = cache.subscriptions();
    assert!(listed.iter().map(|info| info.id).is_sorted());
    let names = listed.into_iter().map(|info| info.name);
    assert!(left().chain((10_000..15_000).map(|at| at.to_string())).eq(names));
    drop((all, new));
    assert_eq!((cache.subscriptions().len(), cache.status().max_lag_events, cache.stats().subscriptions), (0, 0, 0));
}
