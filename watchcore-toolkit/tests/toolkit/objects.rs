//! The typed watch over a cache.

use crate::support::{BOUND, Text, delete, lap, line, next, put, small_cache, wide_cache};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use watchcore::raw::TestBuilder as _;
use watchcore::{Cache, Change, Code, Filter, KeyValue, OnLag, Record, ResyncReason, Start, Writer};
use watchcore_toolkit::{Informer, ObjectWatch, Origin, WatchExt};

fn lines(watch: &mut ObjectWatch<Text>, count: usize) -> Vec<String> {
    (0..count).map(|_| line(&next(watch))).collect()
}

/// A watch that resumes at an event's position neither repeats nor misses one: inside a revision it repeats it.
#[test]
fn rf_02_position_resumes_behind_its_event() {
    let cache = wide_cache();
    let mut writer = cache.writer().unwrap();
    put(&mut writer, "/a", "1");
    let mut watch = ObjectWatch::<Text>::open(&cache).unwrap();
    writer.apply(2, [Change::put("/b", "1"), Change::put("/c", "1")]).unwrap();
    put(&mut writer, "/d", "1");
    let positions: Vec<(String, u64)> =
        (0..5).map(|_| next(&mut watch)).map(|event| (line(&event), event.position.revision)).collect();
    let expected = [("+ /a=1", 0), ("synced", 1), ("+ /b=1", 1), ("+ /c=1", 2), ("+ /d=1", 3)];
    assert_eq!(positions, expected.map(|(line, revision)| (line.to_owned(), revision)));
}

/// Overtaken, the consumer gets the exact difference: deletes first, with the last value that it was given, then what
/// changed in the order of its revisions, with the old value that it was given.
#[test]
fn iw_05_deleted_while_overtaken_has_its_last_value() {
    let cache = small_cache();
    let mut writer = cache.writer().unwrap();
    writer
        .apply(1, [("/a", "1"), ("/b", "1"), ("/c", "1"), ("/z", "1")].map(|(key, value)| Change::put(key, value)))
        .unwrap();
    let mut watch = ObjectWatch::<Text>::open(&cache).unwrap();
    assert_eq!(lines(&mut watch, 5).last().unwrap(), "synced");
    put(&mut writer, "/b", "2");
    delete(&mut writer, "/c");
    put(&mut writer, "/d", "1");
    put(&mut writer, "/a", "2");
    lap(&mut writer, "/z");
    let first = next(&mut watch);
    assert_eq!((line(&first).as_str(), first.origin), ("- /c=1", Origin::Difference));
    assert_eq!(first.lost, cache.oldest() - 2, "every revision from 2 on that has left the window");
    assert_eq!(first.position.revision, 1, "a watch that resumes here gets the difference again");
    assert_eq!(lines(&mut watch, 3), ["~ /b=1>2", "+ /d=1", "~ /a=1>2"]);
    let last = next(&mut watch);
    assert_eq!((line(&last).as_str(), last.lost), ("~ /z=1>199", 0));
    assert_eq!(last.position, cache.position());
    put(&mut writer, "/a", "3");
    assert_eq!(lines(&mut watch, 1), ["~ /a=2>3"], "then live");
    assert_eq!(watch.stats().compared, 1);
}

/// A predicate that panics at any point of a comparison costs nothing: polled again, the difference is exact.
#[test]
fn iw_05_predicate_panics_while_overtaken() {
    for calls_before in 0..3 {
        let cache = small_cache();
        let mut writer = cache.writer().unwrap();
        for number in 0..10 {
            put(&mut writer, &format!("/k{number}"), "1");
        }
        let fuse = Arc::new(AtomicU64::new(u64::MAX));
        let burning = Arc::clone(&fuse);
        let filter = Filter::any().predicate(move |kv| {
            assert!(kv.key() != b"/k5" || burning.fetch_sub(1, Ordering::Relaxed) != 0, "on purpose");
            true
        });
        let mut watch = ObjectWatch::<Text>::builder(&cache).filter(filter).open().unwrap();
        assert_eq!(lines(&mut watch, 11).last().unwrap(), "synced");
        put(&mut writer, "/k3", "2");
        delete(&mut writer, "/k7");
        lap(&mut writer, "/z");
        fuse.store(calls_before, Ordering::Relaxed);
        let first = loop {
            match catch_unwind(AssertUnwindSafe(|| watch.try_recv())) {
                Ok(Poll::Ready(event)) => break line(&event.unwrap()),
                Ok(Poll::Pending) | Err(_) => {}
            }
        };
        assert_eq!(first, "- /k7=1");
        assert_eq!(lines(&mut watch, 2), ["~ /k3=1>2", "+ /z=199"]);
        assert_eq!(watch.try_recv(), Poll::Pending);
        assert_eq!(watch.stats().known, 10);
    }
}

/// A consumer that is overtaken in the initial state gets the rest of a newer state, and the mark once.
#[test]
fn iw_03_state_that_is_overtaken_is_completed() {
    let cache = small_cache();
    let mut writer = cache.writer().unwrap();
    for number in 0..1000 {
        put(&mut writer, &format!("/k{number:04}"), "1");
    }
    let mut watch = ObjectWatch::<Text>::open(&cache).unwrap();
    assert_eq!(lines(&mut watch, 1), ["+ /k0000=1"]);
    delete(&mut writer, "/k0001");
    lap(&mut writer, "/z");
    let mut seen = Vec::new();
    while seen.last().is_none_or(|last| last != "synced") {
        seen.push(line(&next(&mut watch)));
    }
    assert_eq!(seen.iter().filter(|line| line.starts_with("+ /k")).count(), 999);
    assert!(seen.contains(&"- /k0001=1".to_owned()) || !seen.contains(&"+ /k0001=1".to_owned()));
    assert_eq!(watch.try_recv(), Poll::Pending);
    assert_eq!(watch.stats().known, 1000);
}

/// The policy Stop: one Error event that says 410, then the end.
#[test]
fn rf_19_stop_ends_with_gone() {
    let cache = small_cache();
    let mut writer = cache.writer().unwrap();
    let mut watch = ObjectWatch::<Text>::builder(&cache).on_lag(OnLag::Stop).open().unwrap();
    assert_eq!(lines(&mut watch, 1), ["synced"]);
    lap(&mut writer, "/z");
    let gone = next(&mut watch);
    assert!(gone.status().unwrap().is_gone());
    assert!(gone.lost > 0);
    assert_eq!(watch.recv(BOUND).unwrap(), None);
    assert_eq!(watch.recv(BOUND).unwrap(), None, "and stays ended");
}

/// The policy SkipToOldest: the next event says how many revisions are missing before it.
#[test]
fn rf_19_skip_says_how_much_is_lost() {
    let cache = small_cache();
    let mut writer = cache.writer().unwrap();
    let mut watch = ObjectWatch::<Text>::builder(&cache).on_lag(OnLag::SkipToOldest).open().unwrap();
    assert_eq!(lines(&mut watch, 1), ["synced"]);
    lap(&mut writer, "/z");
    let oldest = cache.oldest();
    let first = next(&mut watch);
    assert_eq!((first.lost, first.position.revision), (oldest - 1, oldest));
}

/// A history that is replaced reaches the consumer as a difference with old and last values.
#[test]
fn si_03_replaced_history_is_a_difference() {
    let cache = wide_cache();
    let mut writer = cache.writer().unwrap();
    writer.apply(1, [Change::put("/a", "0"), Change::put("/b", "1")]).unwrap();
    writer.apply(5, [Change::put("/a", "1")]).unwrap();
    let mut watch = ObjectWatch::<Text>::open(&cache).unwrap();
    assert_eq!(lines(&mut watch, 3), ["+ /a=1", "+ /b=1", "synced"]);
    let record = Record { key: b"/a", value: b"2", create_revision: 1, mod_revision: 2, version: 1, lease: 0 };
    writer.resync(3, [record], ResyncReason::HistoryReset).unwrap();
    put(&mut writer, "/a", "3");
    let mut events = [next(&mut watch), next(&mut watch)];
    events.sort_by_key(|event| event.name());
    assert_eq!(events.iter().map(line).collect::<Vec<_>>(), ["- /b=1", "~ /a=1>2"]);
    assert!(events.iter().all(|event| event.origin == Origin::Difference));
    assert_eq!(events.iter().map(|event| event.lost.min(1)).sum::<u64>(), 1, "said once");
    let live = next(&mut watch);
    assert_eq!((line(&live).as_str(), live.origin, live.position), ("~ /a=2>3", Origin::Change, cache.position()));
}

/// Overtaken by another history, in which a revision was used again: what is compared then is the values.
#[test]
fn si_03_revision_that_another_history_uses_again() {
    let cache = small_cache();
    let mut writer = cache.writer().unwrap();
    writer.apply(1, [Change::put("/a", "0"), Change::put("/b", "0")]).unwrap();
    writer.apply(2, [Change::put("/a", "1"), Change::put("/b", "1")]).unwrap();
    put(&mut writer, "/c", "1");
    let mut watch = ObjectWatch::<Text>::open(&cache).unwrap();
    assert_eq!(lines(&mut watch, 4).last().unwrap(), "synced");
    let record = |key, value| Record { key, value, create_revision: 1, mod_revision: 2, version: 2, lease: 0 };
    writer.resync(2, [record(b"/a", b"another"), record(b"/b", b"1")], ResyncReason::HistoryReset).unwrap();
    lap(&mut writer, "/z");
    assert_eq!(lines(&mut watch, 3), ["- /c=1", "~ /a=1>another", "+ /z=199"]);
    assert_eq!(watch.position(), cache.position());
}

/// A stop that comes before or during a comparison ends the watch.
#[test]
fn rf_01_stop_of_an_overtaken_watch() {
    let cache = small_cache();
    let mut writer = cache.writer().unwrap();
    for number in 0..5000 {
        put(&mut writer, &format!("/k{number}"), "1");
    }
    for polls in 0..3 {
        let mut watch = ObjectWatch::<Text>::open(&cache).unwrap();
        while line(&next(&mut watch)) != "synced" {}
        lap(&mut writer, "/z");
        // The first poll begins the comparison, which takes two slices.
        for _ in 0..polls {
            let _ = watch.try_recv();
        }
        watch.stop();
        while watch.recv(BOUND).unwrap().is_some() {}
        put(&mut writer, "/z", "after");
        assert_eq!(watch.recv(BOUND).unwrap(), None);
    }
}

/// A value that the decoder refuses is no deletion: the last good value stays, and the next one comes with it.
#[test]
fn rf_14_refused_value_is_no_deletion() {
    let cache = wide_cache();
    let mut writer = cache.writer().unwrap();
    put(&mut writer, "/a", "1");
    let refused = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&refused);
    let mut watch = ObjectWatch::<Text>::builder(&cache)
        .on_refused(move |kv, error| {
            assert_eq!(kv.key(), b"/a");
            assert!(error.to_string().contains("/a"), "{error}");
            count.fetch_add(1, Ordering::Relaxed);
        })
        .open()
        .unwrap();
    writer.apply(2, [Change::put("/a", &[0xff_u8])]).unwrap();
    put(&mut writer, "/a", "3");
    writer.apply(4, [Change::put("/a", &[0xff_u8])]).unwrap();
    delete(&mut writer, "/a");
    assert_eq!(lines(&mut watch, 4), ["+ /a=1", "synced", "~ /a=1>3", "- /a=3"]);
    assert_eq!((refused.load(Ordering::Relaxed), watch.stats().refused), (2, 2));
}

/// A function for refused values that panics takes nothing with it.
#[test]
fn rf_14_panic_over_a_refused_value() {
    let cache = wide_cache();
    let mut writer = cache.writer().unwrap();
    writer.apply(1, [Change::put("/a", &[0xff_u8]), Change::put("/b", "1")]).unwrap();
    let wanted = ObjectWatch::<Text>::builder(&cache).on_refused(|_, _| panic!("on purpose"));
    let mut watch = wanted.open().unwrap();
    assert_eq!(lines(&mut watch, 2), ["+ /b=1", "synced"]);
}

/// The same where the value comes to be refused while the consumer is overtaken.
#[test]
fn rf_14_refused_while_overtaken_stays() {
    let cache = small_cache();
    let mut writer = cache.writer().unwrap();
    put(&mut writer, "/a", "1");
    let mut watch = ObjectWatch::<Text>::open(&cache).unwrap();
    assert_eq!(lines(&mut watch, 2), ["+ /a=1", "synced"]);
    writer.apply(2, [Change::put("/a", &[0xff_u8])]).unwrap();
    lap(&mut writer, "/z");
    assert_eq!(lines(&mut watch, 1), ["+ /z=199"]);
    delete(&mut writer, "/a");
    assert_eq!(lines(&mut watch, 1), ["- /a=1"]);
    assert_eq!(watch.stats().refused, 1);
}

/// A second filter narrows the first one, for a watch and for an informer, as a subscription's does.
#[test]
fn filters_given_twice_narrow() {
    let cache = wide_cache();
    let mut writer = cache.writer().unwrap();
    writer.apply(1, ["/a/1", "/a/2", "/b/1"].map(|key| Change::put(key, "1"))).unwrap();
    let (first, second) = (Filter::any().prefix("/a/"), Filter::any().predicate(|kv| kv.key().ends_with(b"1")));
    let builder = ObjectWatch::<Text>::builder(&cache).filter(first.clone()).filter(second.clone());
    assert_eq!(lines(&mut builder.open().unwrap(), 2), ["+ /a/1=1", "synced"]);
    let informer = Informer::<Text>::builder(&cache).filter(first).filter(second).build().unwrap();
    assert_eq!(informer.lister().list().unwrap().len(), 1);
}

/// A watch from now, or from a revision, knows the state there, although it is not given it.
#[test]
fn rf_13_watch_from_now_knows_the_state() {
    let cache = wide_cache();
    let mut writer = cache.writer().unwrap();
    writer.apply(1, [Change::put("/a", "1"), Change::put("/b", "1")]).unwrap();
    put(&mut writer, "/b", "2");
    let open = |start| ObjectWatch::<Text>::builder(&cache).start(start).open().unwrap();
    let (mut now, mut after) = (open(Start::Now), open(Start::After(1)));
    assert_eq!(now.try_recv(), Poll::Pending);
    assert_eq!(lines(&mut after, 1), ["~ /b=1>2"]);
    put(&mut writer, "/a", "2");
    delete(&mut writer, "/b");
    assert_eq!(lines(&mut now, 2), ["~ /a=1>2", "- /b=2"]);
    assert_eq!(lines(&mut after, 2), ["~ /a=1>2", "- /b=2"]);
}

/// A start above the current revision cannot know the state there: the log's old values stand in.
#[test]
fn rf_13_start_in_the_future_has_old_values() {
    let cache = wide_cache();
    let mut writer = cache.writer().unwrap();
    writer.apply(1, [Change::put("/a", "1"), Change::put("/b", "1")]).unwrap();
    let mut watch = ObjectWatch::<Text>::builder(&cache).start(Start::After(3)).open().unwrap();
    put(&mut writer, "/a", "2");
    put(&mut writer, "/a", "3");
    put(&mut writer, "/a", "4");
    delete(&mut writer, "/b");
    assert_eq!(lines(&mut watch, 2), ["~ /a=3>4", "- /b=1"]);
}

/// A start in the future is known when it has come: overtaken later, the watch gives the exact difference.
#[test]
fn rf_13_start_in_the_future_is_overtaken() {
    let cache = small_cache();
    let mut writer = cache.writer().unwrap();
    writer.apply(1, [Change::put("/a", "1"), Change::put("/b", "1")]).unwrap();
    let mut watch = ObjectWatch::<Text>::builder(&cache).start(Start::After(3)).open().unwrap();
    for value in ["2", "3", "4"] {
        put(&mut writer, "/c", value);
    }
    assert_eq!(lines(&mut watch, 1), ["~ /c=3>4"]);
    lap(&mut writer, "/z");
    delete(&mut writer, "/a");
    lap(&mut writer, "/z");
    let mut seen = Vec::new();
    while watch.position() != cache.position() {
        seen.push(line(&next(&mut watch)));
    }
    seen.retain(|line| !line.contains("/z"));
    assert_eq!((seen, watch.stats().compared), (vec!["- /a=1".to_owned()], 1));
}

/// A predicate that panics while the state of such a start is read: polled again, nothing is missing.
#[test]
fn rf_13_predicate_panics_at_the_start() {
    let cache = wide_cache();
    let mut writer = cache.writer().unwrap();
    writer.apply(1, [Change::put("/a", "1"), Change::put("/b", "1")]).unwrap();
    let burning = Arc::new(AtomicBool::new(true));
    let fuse = Arc::clone(&burning);
    let filter = Filter::any().predicate(move |kv| {
        assert!(kv.key() != b"/b" || !fuse.swap(false, Ordering::Relaxed), "on purpose");
        true
    });
    let mut watch = ObjectWatch::<Text>::builder(&cache).filter(filter).start(Start::After(2)).open().unwrap();
    put(&mut writer, "/a", "2");
    put(&mut writer, "/a", "3");
    assert!(catch_unwind(AssertUnwindSafe(|| watch.try_recv())).is_err());
    assert_eq!(lines(&mut watch, 1), ["~ /a=2>3"]);
    delete(&mut writer, "/b");
    assert_eq!(lines(&mut watch, 1), ["- /b=1"]);
}

/// A start in the future that had left the window before it was looked at: no difference is made up of what is not known.
#[test]
fn rf_13_future_that_has_left_is_gone() {
    let cache = small_cache();
    let mut writer = cache.writer().unwrap();
    writer.apply(1, [Change::put("/a", "1"), Change::put("/b", "1")]).unwrap();
    let mut watch = ObjectWatch::<Text>::builder(&cache).start(Start::After(3)).open().unwrap();
    delete(&mut writer, "/a");
    lap(&mut writer, "/z");
    let gone = next(&mut watch);
    assert!(gone.status().is_some_and(|status| status.is_gone()), "{gone:?}");
    assert!(gone.lost > 0);
    assert_eq!(watch.recv(BOUND).unwrap(), None);
}

/// A cache without a listing: a watch from now is not given the listing, and knows it.
#[test]
fn rf_13_now_before_the_first_listing() {
    let cache = Cache::builder("/").expect_load(true).build().unwrap();
    let mut writer = cache.writer().unwrap();
    let mut watch = ObjectWatch::<KeyValue>::builder(&cache).start(Start::Now).open().unwrap();
    assert!(watch.try_recv().is_pending());
    let record = Record { key: b"/a", value: b"1", create_revision: 1, mod_revision: 1, version: 1, lease: 0 };
    writer.load(7, [record]).unwrap();
    assert!(watch.try_recv().is_pending());
    delete(&mut writer, "/a");
    let event = next(&mut watch);
    assert_eq!((event.name(), event.object().unwrap().value_str()), ("DELETED", Some("1")));
}

/// The same where the window leaves the listing behind before it was looked at: nothing of it is given, and the loss is said.
#[test]
fn rf_13_now_overtaken_before_it_began() {
    let cache = Cache::builder("/").capacity(128).segment_slots(16).expect_load(true).build().unwrap();
    let mut writer = cache.writer().unwrap();
    let mut watch = ObjectWatch::<KeyValue>::builder(&cache).start(Start::Now).open().unwrap();
    assert!(watch.try_recv().is_pending());
    let keys: Vec<String> = (0..1000).map(|number| format!("/k{number:04}")).collect();
    let record = |key| Record { key, value: b"1", create_revision: 1, mod_revision: 1, version: 1, lease: 0 };
    writer.load(7, keys.iter().map(|key| record(key.as_bytes()))).unwrap();
    lap(&mut writer, "/z");
    assert!(watch.try_recv().is_pending(), "nothing of the listing is given");
    delete(&mut writer, "/k0500");
    let event = next(&mut watch);
    assert_eq!((event.name(), event.object().unwrap().value_str()), ("DELETED", Some("1")));
    assert!(event.lost > 0);
    assert_eq!(watch.stats().known, 1000, "with /z, without the deleted one");
}

/// A start below the window is an error and not a silent gap, under every policy.
#[test]
fn fault_410_at_the_start_is_reported() {
    let cache = small_cache();
    lap(&mut cache.writer().unwrap(), "/z");
    for policy in [OnLag::Resnapshot, OnLag::Stop, OnLag::SkipToOldest] {
        let opened = ObjectWatch::<Text>::builder(&cache).start(Start::After(1)).on_lag(policy).open();
        assert_eq!(opened.unwrap_err().code(), Code::Compacted, "{policy}");
    }
}

/// A stop from another thread ends a wait, in every state, and once is as good as often.
#[test]
fn rf_01_stop_ends_a_wait() {
    let cache = wide_cache();
    let mut watch = ObjectWatch::<Text>::open(&cache).unwrap();
    assert_eq!(lines(&mut watch, 1), ["synced"]);
    let stopper = watchcore_toolkit::Watch::stopper(&watch);
    let waiting = std::thread::spawn(move || watch.recv(BOUND).unwrap().is_none());
    stopper.stop();
    stopper.stop();
    assert!(waiting.join().unwrap());
}

/// Nothing is kept for a consumer that does not take: neither events nor the log.
#[test]
fn fault_stalled_watch_holds_constant_memory() {
    let cache = small_cache();
    let mut writer = cache.writer().unwrap();
    for number in 0..500 {
        put(&mut writer, &format!("/k{number:03}"), "1");
    }
    // One that stands in the initial state, one that is live, one that is in the middle of a difference.
    let mut starting = ObjectWatch::<Text>::open(&cache).unwrap();
    assert_eq!(lines(&mut starting, 1), ["+ /k000=1"]);
    let mut live = ObjectWatch::<Text>::open(&cache).unwrap();
    let mut differing = ObjectWatch::<Text>::open(&cache).unwrap();
    assert_eq!(lines(&mut live, 501).last().unwrap(), "synced");
    assert_eq!(lines(&mut differing, 501).last().unwrap(), "synced");
    for number in 0..500 {
        put(&mut writer, &format!("/k{number:03}"), "2");
    }
    assert_eq!(next(&mut differing).origin, Origin::Difference);
    let round = |writer: &mut Writer| {
        for number in 0..200_000 {
            put(writer, &format!("/k{:03}", number % 500), "3");
        }
    };
    round(&mut writer);
    // What the thread that frees has not come to yet is not what is held.
    let held = |most: u64| crate::support::until("the log is freed", || cache.stats().bytes() <= most);
    held(2 << 20);
    round(&mut writer);
    held(2 << 20);
    for watch in [&mut starting, &mut live, &mut differing] {
        // Between two slices of a comparison a poll has nothing to hand out, too.
        while watch.try_recv() != Poll::Pending || watch.position() != cache.position() {}
        assert_eq!(watch.stats().known, 500);
    }
}
