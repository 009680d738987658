//! Sections 5, 6 and 10: waits, waiters, wake sets, bookmarks of sleepers, closers.

use crate::tools::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;
use watchcore::*;

#[test]
fn next_blocks_for_a_batch_and_ends_with_none() {
    let (cache, mut writer) = embedded();
    let mut live = cache.subscribe(Start::Now).open().unwrap();
    let waits = spawn(move || {
        let mut all = Vec::new();
        while let Some(batch) = live.next_batch().unwrap() {
            all.extend(lines(&batch));
        }
        all
    });
    write(&mut writer, 1..=5);
    cache.close();
    assert_eq!(waits.end().len(), 5);
}

#[test]
fn a_close_of_the_cache_ends_every_wait_at_once() {
    let (cache, _writer) = embedded();
    let mut live = cache.subscribe(Start::Now).open().unwrap();
    let mut never = cache.subscribe(Start::StateAtLeast(9)).start_timeout(Duration::MAX).open().unwrap();
    let (waits, reads) = (cache.clone(), cache.clone());
    let sleepers = [
        spawn(move || live.wait(Duration::MAX).map(|_| ())),
        spawn(move || never.wait(Duration::MAX).and_then(|_| never.poll(1)).map(|_| ())),
        spawn(move || waits.wait_until(9, Duration::MAX).map(|_| ())),
        spawn(move || reads.get_with("/k", &ReadOptions::new(Read::Exact(9)).timeout(Duration::MAX)).map(|_| ())),
    ];
    until("all sleep", || cache.stats().waiting == 4);
    cache.close();
    for sleeper in sleepers {
        refused(sleeper.end(), Code::Closed);
    }
}

/// A close that falls into the middle of an apply, after its first look at the cache: a consumer that got CLOSED
/// is handed nothing after that, and the writer learns that its revision was not published.
#[test]
fn nothing_follows_closed() {
    let (cache, mut writer) = embedded();
    let mut waits = cache.subscribe(Start::Now).open().unwrap();
    let mut polls = cache.subscribe(Start::After(0)).key("/k").open().unwrap();
    write(&mut writer, [1]);
    let changes = (0..2).map(|number| {
        if number == 1 {
            cache.close();
            assert_eq!(drain(&mut waits), ["1 ADDED /k=1", "CLOSED"], "what was published before comes");
            refused(waits.wait(Duration::ZERO), Code::Closed);
        }
        Change::put(["/k", "/other"][number], "2")
    });
    refused(writer.apply(2, changes), Code::Closed);
    refused(waits.wait(Duration::ZERO), Code::Closed);
    refused(waits.poll(10), Code::Closed);
    assert_eq!(drain(&mut polls), ["1 ADDED /k=1", "CLOSED"]);
    assert_eq!((cache.position().revision, writer.position().revision), (1, 1));
}

#[test]
fn poll_with_a_maximum_of_zero_is_an_invalid_argument() {
    let (cache, mut writer) = embedded();
    let mut live = cache.subscribe(Start::Now).open().unwrap();
    write(&mut writer, [1]);
    refused(live.poll(0), Code::InvalidArgument);
    assert_eq!(revisions(&mut live), [1], "and ends nothing");
}

#[test]
fn waiters_are_woken_by_revision() {
    let (cache, mut writer) = embedded();
    let set = WakeSet::new().unwrap();
    let mut waiters: Vec<Waiter> = [10, 20, 30].map(|r| cache.waiter(Want::Revision(r)).unwrap()).into();
    for (tag, waiter) in (0..).zip(&mut waiters) {
        refused(waiter.arm(), Code::InvalidArgument);
        set.add_waiter(waiter, tag).unwrap();
        assert!(!waiter.arm().unwrap());
    }
    write(&mut writer, [5]);
    write(&mut writer, [25]);
    let mut tags = Vec::new();
    while tags.len() < 2 {
        assert!(set.wait(BOUND), "{tags:?}");
        let mut some = [0; 4];
        let taken = set.take(&mut some);
        tags.extend_from_slice(&some[..taken]);
    }
    tags.sort_unstable();
    assert_eq!(tags, [0, 1], "each once, and not the third");
    assert_eq!(waiters[0].poll().unwrap(), Some(cache.position()));
    assert_eq!(waiters[2].poll().unwrap(), None);
    refused(waiters[2].wait(Duration::from_millis(2)), Code::Timeout);
    assert!(set.remove_waiter(&mut waiters[2]) && !set.remove_waiter(&mut waiters[2]));
}

/// A poll that gives nothing ends the arming, of subscriptions and waiters alike: nobody is woken before
/// the next one, which then finds what came in between.
#[test]
fn poll_ends_an_arming() {
    let (cache, mut writer) = embedded();
    let (set, witness) = (WakeSet::new().unwrap(), WakeSet::new().unwrap());
    let mut waiter = cache.waiter(Want::Revision(3)).unwrap();
    let mut member = cache.subscribe(Start::Now).open().unwrap();
    let mut asleep = cache.waiter(Want::Revision(3)).unwrap();
    set.add_waiter(&mut waiter, 1).unwrap();
    set.add(&mut member, 2).unwrap();
    witness.add_waiter(&mut asleep, 3).unwrap();
    assert!(!waiter.arm().unwrap() && !member.arm().unwrap() && !asleep.arm().unwrap());
    assert_eq!(waiter.poll().unwrap(), None);
    assert!(member.poll(1).unwrap().is_empty());
    write(&mut writer, [3]);
    assert!(witness.wait(BOUND));
    assert_eq!(set.take(&mut [0; 4]), 0, "both are awake");
    assert!(waiter.arm().unwrap() && member.arm().unwrap());
    let mut tags = [0; 4];
    assert_eq!(set.take(&mut tags), 2);
    tags[..2].sort_unstable();
    assert_eq!(tags[..2], [1, 2]);
    assert_eq!((waiter.poll().unwrap().unwrap().revision, member.poll(1).unwrap().len()), (3, 1));
}

#[test]
fn a_wake_set_lists_a_tag_once_an_arming_and_keeps_what_has_no_room() {
    let (cache, mut writer) = embedded();
    let set = WakeSet::new().unwrap();
    let mut members: Vec<Subscription> =
        (0..5).map(|_| cache.subscribe(Start::Now).key("/k").open().unwrap()).collect();
    for (tag, member) in (0..).zip(&mut members) {
        refused(member.arm(), Code::InvalidArgument);
        set.add(member, tag).unwrap();
        assert!(!member.arm().unwrap());
    }
    assert!(!set.arm(), "nothing is ready");
    write(&mut writer, [1, 2, 3]);
    let mut tags = Vec::new();
    while tags.len() < 5 {
        assert!(set.wait(BOUND), "{tags:?}");
        let mut two = [0; 2];
        let taken = set.take(&mut two);
        tags.extend_from_slice(&two[..taken]);
    }
    tags.sort_unstable();
    assert_eq!(tags, [0, 1, 2, 3, 4]);
    assert!(!set.arm());
    // Ready at once: it says so, and is listed.
    assert!(members[3].arm().unwrap());
    assert!(set.arm());
    let mut tags = [9; 4];
    assert_eq!((set.take(&mut tags), tags[0]), (1, 3));
    assert_eq!(set.take(&mut tags), 0);
    assert!(set.remove(&mut members[3]) && !set.remove(&mut members[3]));
}

/// A segment is closed before it is full where values are large. The numbers of its free slots are no events to whoever
/// looks for sleepers, and no place for a sleeper to stand at.
#[test]
fn sleepers_follow_segments_that_are_closed_early() {
    const SLEEPERS: usize = 40;
    let cache = Cache::builder("/").capacity_bytes(16 << 20).build().unwrap();
    let mut writer = cache.writer().unwrap();
    let value = "x".repeat(300_000);
    let set = WakeSet::new().unwrap();
    let mut all: Vec<Subscription> = (0..SLEEPERS)
        .map(|at| {
            // No index answers these filters, and each has one event in the end.
            let filter = Filter::any().predicate(move |kv| kv.key() == b"/even" && kv.version() == at as u64 + 1);
            let filter = if at % 2 == 0 { filter } else { Filter::any().range(Range::key(format!("/{at:03}"))) };
            let mut one = cache.subscribe(Start::Now).filter(filter).open().unwrap();
            set.add(&mut one, at as u64).unwrap();
            assert!(!one.arm().unwrap());
            one
        })
        .collect();
    let mut revision = 0;
    for (round, sleeper) in all.iter_mut().enumerate() {
        // The version of /even is the number of the round; then comes a key of an odd sleeper.
        for key in ["/even".to_string(), format!("/{round:03}")] {
            revision += 1;
            writer.apply(revision, [Change::put(&key, &value)]).unwrap();
        }
        let mut tags = [0; SLEEPERS];
        loop {
            assert!(set.wait(BOUND), "sleeper {round} was not woken");
            let count = set.take(&mut tags);
            if tags[..count].contains(&(round as u64)) {
                break;
            }
        }
        let batch = sleeper.poll(10).unwrap_or_else(|error| panic!("{round}: {error}"));
        assert_eq!(batch.len(), 1, "{round}");
    }
    assert_eq!(cache.stats().notifier_overruns, 0, "nobody's place was lost");
}

#[test]
fn one_consistent_read_serves_all_that_came_before_it_began() {
    let (cache, mut writer) = unloaded();
    let source = Arc::new(Counting::default());
    writer.attach(source.clone()).unwrap();
    writer.load(5, []).unwrap();
    let wakes = source.0.load(SeqCst);
    let (mut first, mut second) = (cache.waiter(Want::Consistent).unwrap(), cache.waiter(Want::Consistent).unwrap());
    assert!(source.0.load(SeqCst) > wakes, "the source is asked at once");
    let ticket = writer.demand().consistent;
    let mut late = cache.waiter(Want::Consistent).unwrap();
    writer.serve_consistent(ticket, 9);
    for early in [&mut first, &mut second] {
        assert_eq!(early.poll().unwrap().map(|position| position.revision), Some(9));
    }
    assert_eq!(late.poll().unwrap(), None, "it came after the read began");
    assert!(writer.demand().consistent > ticket);
    writer.serve_consistent(writer.demand().consistent, 12);
    assert_eq!(late.poll().unwrap().map(|position| position.revision), Some(12));
    assert_eq!(writer.demand(), Demand::default());
}

#[test]
fn a_cache_is_given_back_before_a_deadline_that_nobody_waits_for_any_more() {
    let kept = Arc::new(());
    let held = kept.clone();
    let cache = Cache::builder("/").decoder(move |_, _| Ok::<_, String>(Arc::strong_count(&held))).build().unwrap();
    let mut late = cache.subscribe(Start::StateAtLeast(9)).start_timeout(Duration::from_secs(3600)).open().unwrap();
    let set = WakeSet::new().unwrap();
    set.add(&mut late, 1).unwrap();
    assert!(!late.arm().unwrap());
    drop((late, cache));
    until("its memory is released", || Arc::strong_count(&kept) == 1);
}

#[test]
fn a_cache_is_given_back_before_the_deadline_of_a_wait_that_is_over() {
    let kept = Arc::new(());
    let held = kept.clone();
    let cache = Cache::builder("/").decoder(move |_, _| Ok::<_, String>(Arc::strong_count(&held))).build().unwrap();
    let mut writer = cache.writer().unwrap();
    let mut waiter = cache.waiter(Want::Revision(1)).unwrap().timeout(Duration::from_secs(3600));
    let set = WakeSet::new().unwrap();
    set.add_waiter(&mut waiter, 1).unwrap();
    assert!(!waiter.arm().unwrap());
    write(&mut writer, [1]);
    assert!(set.wait(BOUND));
    assert!(waiter.poll().unwrap().is_some());
    drop((waiter, writer, cache));
    until("its memory is released", || Arc::strong_count(&kept) == 1);
}

/// One sleeps until its start, and then for events, while a pass of the notifier stands still in a predicate of another.
#[test]
fn a_filter_goes_with_its_subscription_also_behind_a_start() {
    let (cache, mut writer) = embedded();
    let kept = Arc::new(());
    let held = kept.clone();
    let one = cache.subscribe(Start::StateAtLeast(5)).start_timeout(Duration::from_secs(3600));
    let mut one = one.filter(Filter::any().predicate(move |_| Arc::strong_count(&held) > 0)).open().unwrap();
    let (gate, evaluated) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let (shut, counter) = (gate.clone(), evaluated.clone());
    let stands_still = move |_: &KeyValue| {
        if std::thread::current().name() == Some("watchcore-pred") {
            counter.fetch_add(1, SeqCst);
            while shut.load(SeqCst) {
                std::thread::yield_now();
            }
        }
        false
    };
    let mut other = cache.subscribe(Start::Now).filter(Filter::any().predicate(stands_still)).open().unwrap();
    let set = WakeSet::new().unwrap();
    set.add(&mut one, 1).unwrap();
    set.add(&mut other, 2).unwrap();
    assert!(!one.arm().unwrap() && !other.arm().unwrap());
    writer.apply(1, [Change::put("/a", "1")]).unwrap();
    until("the notifier knows both", || evaluated.load(SeqCst) > 0);
    gate.store(true, SeqCst);
    let before = evaluated.load(SeqCst);
    writer.apply(5, [Change::put("/a", "2")]).unwrap();
    until("it stands still", || evaluated.load(SeqCst) > before);
    while !one.poll(8).unwrap().is_empty() {}
    assert!(!one.arm().unwrap());
    gate.store(false, SeqCst);
    let before = evaluated.load(SeqCst);
    let mut revision = 5;
    let mut apply_until = |what: &str, holds: &dyn Fn() -> bool| {
        until(what, || {
            revision += 1;
            writer.apply(revision, [Change::put("/a", "3")]).unwrap();
            holds()
        });
    };
    apply_until("a later pass", &|| evaluated.load(SeqCst) > before + 1);
    drop(one);
    apply_until("its predicate goes", &|| Arc::strong_count(&kept) == 1);
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
