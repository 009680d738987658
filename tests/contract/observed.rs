//! Subscriptions as others see them: lists, status and figures, whatever their consumers do.

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

#[track_caller]
fn is(cache: &Cache, state: SubscriptionState) {
    assert_eq!(only(cache).state, state);
}

/// Waits for the one subscription to stand so.
#[track_caller]
fn becomes(cache: &Cache, state: SubscriptionState) {
    let begin = Instant::now();
    while only(cache).state != state {
        assert!(begin.elapsed() < BOUND, "{state:?} never came: {:?}", only(cache));
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn idle_consumer_is_seen() {
    let (cache, mut writer) = tiny();
    let idle = cache.subscribe(Start::Now).name("billing").open().unwrap();
    let info = only(&cache);
    assert_eq!(
        (&*info.name, info.state, info.read_path, info.last_poll),
        ("billing", SubscriptionState::Live, ReadPath::Scan, None)
    );
    assert_eq!((info.lag, info.handed_out, info.lagged), (Lag::default(), 0, 0));
    write(&mut writer, 1..=50);
    let status = cache.status();
    assert_eq!((status.subscriptions, status.max_lag_events, status.max_lag_seen, status.lapped), (1, 50, 50, 0));
    let lag = only(&cache).lag;
    assert_eq!((lag.events, lag.revisions), (50, 50));
    assert!(lag.age > Duration::ZERO);
    // Its place leaves the window: lost, and not reported yet.
    write(&mut writer, 51..=500);
    let status = cache.status();
    assert_eq!((status.max_lag_events, status.lapped, cache.stats().lagged), (500, 1, 1));
    let info = only(&cache);
    assert_eq!((info.state, info.lagged, info.lag.events), (SubscriptionState::Lapped, 1, 500));
    // Gone, but for what happened.
    drop(idle);
    assert!(cache.subscriptions().is_empty());
    let status = cache.status();
    assert_eq!((status.subscriptions, status.max_lag_events, status.max_lag_seen, status.lapped), (0, 0, 500, 0));
    assert_eq!(cache.stats().lagged, 1);
}

/// A short revision never straddles two segments, so some are left before they are full: what was never written is
/// no lag, in the window and beyond.
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

/// Each segment of 16 has 15 events. One that begins in their middle is lapped as far as the others are: of what has
/// left it knows how many events there were.
#[test]
fn lapped_lag_is_of_events() {
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
            let lags = cache.subscriptions().into_iter().map(|info| info.lag.events);
            assert_eq!(Vec::from_iter(lags), [now - before, now - polled, now - polled], "from {first} on");
            assert_eq!(cache.status().max_lag_events, now - before);
        }
        drop(late);
    }
}

/// A poll counts the lag that it finds as lists do.
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

#[test]
fn loss_counts_once() {
    for policy in [OnLag::Stop, OnLag::SkipToOldest, OnLag::Resnapshot, OnLag::Conflate] {
        let (cache, mut writer) = tiny();
        let mut slow = cache.subscribe(Start::Now).on_lag(policy).open().unwrap();
        write(&mut writer, 1..=500);
        let figures = || (cache.status().lapped, cache.stats().lagged, only(&cache).lagged);
        assert_eq!(figures(), (1, 1, 1), "{policy:?}");
        let reported = slow.poll(1).is_err();
        assert_eq!(reported, policy != OnLag::Conflate);
        assert_eq!(figures(), (0, 1, 1), "{policy:?}");
        let after = match policy {
            OnLag::Stop => SubscriptionState::Ended,
            OnLag::SkipToOldest => SubscriptionState::Live,
            _ => SubscriptionState::CatchingUp,
        };
        // A difference of one page is over with it.
        let state = only(&cache).state;
        assert!(state == after || policy == OnLag::Conflate, "{policy:?}: {state:?}");
        while slow.poll(100).is_ok_and(|batch| !batch.is_empty()) {}
        assert_eq!(cache.status().max_lag_events, 0, "{policy:?}");
        if policy == OnLag::Stop {
            continue;
        }
        is(&cache, SubscriptionState::Live);
        write(&mut writer, 501..=1000);
        assert_eq!(figures(), (1, 2, 2), "{policy:?}");
        drop(slow);
        assert_eq!((cache.status().lapped, cache.stats().lagged), (0, 2), "{policy:?}");
    }
}

/// For every place of the window: lapped is said exactly of those whose polls then report a loss.
#[test]
fn lapped_is_what_polls_meet() {
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
        let lapped = cache.status().lapped;
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
        assert_eq!(lapped, lost, "{first} polled, {to} written");
        seen[lost as usize] += 1;
    }
    assert!(seen[0] > 100 && seen[1] > 100, "{seen:?}");
}

#[test]
fn chain_reader_loses_only_its_own() {
    let cache = Cache::builder("/").capacity(128).segment_slots(16).index(Index::key()).build().unwrap();
    let mut writer = cache.writer().unwrap();
    let mut one = cache.subscribe(Start::Now).name("one").key("/mine").open().unwrap();
    writer.apply(1, [Change::put("/mine", "1")]).unwrap();
    writer.apply(2, [Change::put("/mine", "2")]).unwrap();
    while !one.poll(10).unwrap().is_empty() {}
    assert_eq!(only(&cache).read_path, ReadPath::Chain { index: "key".into() });
    assert_eq!(only(&cache).read_path.to_string(), "chain by key");
    write(&mut writer, 3..=500);
    // Others' events, all of them: nothing of its own has left.
    assert_eq!((only(&cache).state, cache.status().lapped), (SubscriptionState::Live, 0));
    writer.apply(501, [Change::put("/mine", "3")]).unwrap();
    assert_eq!((only(&cache).state, cache.stats().lagged), (SubscriptionState::Live, 0));
    write(&mut writer, 502..=1000);
    assert_eq!((only(&cache).state, cache.stats().lagged), (SubscriptionState::Lapped, 1));
    assert_eq!(refused(one.poll(10), Code::Lagged).lost_to(), cache.oldest() - 1);
    assert_eq!((only(&cache).state, cache.stats().lagged), (SubscriptionState::Ended, 1));
    assert_eq!(only(&cache).read_path, ReadPath::Scan, "it gave its bucket back");
}

#[test]
fn states_follow_the_consumer() {
    use SubscriptionState::*;
    let (cache, mut writer) = unloaded();
    let mut one = cache.subscribe(Start::State).open().unwrap();
    is(&cache, AwaitsListing);
    writer.load(5, [record("/a", "1", 1, 1, 1), record("/b", "1", 2, 2, 1)]).unwrap();
    is(&cache, InitialState);
    assert_eq!(one.poll(1).unwrap().len(), 1);
    is(&cache, InitialState);
    drain(&mut one);
    is(&cache, Live);
    let set = WakeSet::new().unwrap();
    set.add(&mut one, 1).unwrap();
    assert!(!one.arm().unwrap());
    is(&cache, Parked);
    write(&mut writer, 6..=6);
    becomes(&cache, Live);
    drain(&mut one);
    one.close();
    is(&cache, Closing);
    refused(one.poll(1), Code::Closed);
    is(&cache, Ended);
    drop(one);

    let mut later = cache.subscribe(Start::StateAtLeast(10)).open().unwrap();
    is(&cache, AwaitsRevision);
    write(&mut writer, 7..=12);
    assert_eq!((only(&cache).lag.events, only(&cache).state), (0, AwaitsRevision), "it begins where it is polled");
    later.poll(1).unwrap();
    is(&cache, InitialState);
    drop(later);

    let limited = cache.subscribe(Start::Now).max_lag_events(3).open().unwrap();
    write(&mut writer, 13..=20);
    // The notifier closes it: nobody polls.
    becomes(&cache, TooSlow);
    assert_eq!((only(&cache).lag, cache.status().max_lag_events), (Lag::default(), 0));
    drop(limited);

    let _open = cache.subscribe(Start::Now).open().unwrap();
    cache.close();
    is(&cache, Closing);
}

#[test]
fn future_start_is_behind_once_reached() {
    let (cache, mut writer) = tiny();
    write(&mut writer, 1..=10);
    let mut future = cache.subscribe(Start::After(20)).open().unwrap();
    write(&mut writer, 11..=20);
    assert_eq!((only(&cache).state, only(&cache).lag.events), (SubscriptionState::AwaitsRevision, 0));
    write(&mut writer, 21..=25);
    assert_eq!((only(&cache).state, only(&cache).lag.events), (SubscriptionState::Live, 5));
    assert_eq!(cache.status().max_lag_events, 5);
    write(&mut writer, 26..=500);
    assert_eq!((only(&cache).state, cache.status().lapped), (SubscriptionState::Lapped, 1));
    // Counted from its last look, at which its revision was ten away.
    assert_eq!((only(&cache).lag.events, only(&cache).lag.revisions), (490, 480));
    assert_eq!(refused(future.poll(1), Code::Lagged).lost_from(), 21);
    assert_eq!(cache.stats().lagged, 1);
}

/// A compaction forgets what others may ask for; events that are there are not lost by it.
#[test]
fn future_start_is_not_lapped_by_a_compaction() {
    let (cache, mut writer) = tiny();
    write(&mut writer, 1..=5);
    let mut future = cache.subscribe(Start::After(10)).max_lag_events(12).open().unwrap();
    write(&mut writer, 6..=20);
    writer.compact(15).unwrap();
    assert_eq!(cache.oldest(), 16);
    assert_eq!((only(&cache).state, only(&cache).lag.events), (SubscriptionState::Live, 10));
    assert_eq!((cache.status().lapped, only(&cache).lagged, cache.stats().lagged), (0, 0, 0));
    assert_eq!(revisions(&mut future), (11..=20).collect::<Vec<_>>());
    drop(future);
    assert_eq!(cache.stats().lagged, 0);

    // Others that have left were below it.
    let mut future = cache.subscribe(Start::After(200)).open().unwrap();
    write(&mut writer, 21..=210);
    writer.compact(205).unwrap();
    assert_eq!((only(&cache).state, only(&cache).lag.events), (SubscriptionState::Live, 10));
    assert_eq!(revisions(&mut future), (201..=210).collect::<Vec<_>>());

    // At the border: everything up to it has left, and nothing above.
    drop(future);
    let mut future = cache.subscribe(Start::After(304)).open().unwrap();
    write(&mut writer, 211..=304);
    let oldest = cache.oldest();
    while cache.oldest() < 305 {
        assert_eq!((only(&cache).state == SubscriptionState::Lapped, cache.oldest() >= oldest), (false, true));
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
    let before = Instant::now();
    assert_eq!(one.poll(1).unwrap().len(), 1);
    let (age, most) = (only(&cache).last_poll.unwrap(), before.elapsed());
    assert!(age <= most, "{age:?} of at most {most:?}");
    assert_eq!((only(&cache).handed_out, one.stats().handed_out), (1, 1));
}

#[test]
fn named_errors_say_whose_they_are() {
    let (cache, mut writer) = tiny();
    let subscribe = |name| cache.subscribe(Start::Now).name(name).open().unwrap();
    let (mut named, mut other, mut nameless) = (subscribe("bill \"ing\""), subscribe("b"), subscribe(""));
    let names: Vec<String> = cache.subscriptions().into_iter().map(|info| info.name).collect();
    assert_eq!(names, ["bill \"ing\"", "b", ""]);
    write(&mut writer, 1..=500);
    let text = |one: &mut Subscription| one.poll(1).unwrap_err().to_string();
    assert!(text(&mut named).starts_with(r#"subscription "bill \"ing\"": revisions 1 to "#));
    assert!(text(&mut nameless).starts_with("subscription: revisions 1 to "));
    assert!(text(&mut other).starts_with(r#"subscription "b": revisions 1 to "#));
    assert_eq!(text(&mut other), r#"subscription "b": it was closed. Open a new one."#);
    assert!(other.wait(Duration::ZERO).unwrap_err().to_string().starts_with(r#"subscription "b": "#));
    let refused = cache.subscribe(Start::After(1)).name("late").open().unwrap_err();
    assert!(
        refused.to_string().starts_with(r#"subscription "late": subscribe after revision 1: compacted"#),
        "{refused}"
    );
    assert_eq!(refused.oldest(), cache.oldest());
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
