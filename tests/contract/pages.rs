//! Section 5: pages that continue where the one before ended, and differences.

use crate::tools::*;
use watchcore::*;

fn keys(page: &Page) -> Vec<String> {
    page.iter().map(|kv| text(kv.key())).collect()
}

/// A conjunction has no order, so neither has what a token says of its filter; a predicate is the same only as itself.
#[test]
fn token_is_of_equal_filters_alone() {
    let (cache, mut writer) = embedded();
    writer.apply(1, ["/a/1", "/a/2", "/a/3"].map(|key| Change::put(key, "v"))).unwrap();
    let any = Filter::any;
    let yes = any().predicate(|_| true);
    let named = |name: &str| any().named_predicate(name, |_| true);
    let filters: [&[Filter]; 4] = [
        &[any().path("/a").prefix("/a/"), any().prefix("/a/").path("/a").types(&[Kind::Deleted])],
        &[yes.clone(), yes.clone().and(yes)],
        &[any().predicate(|_| true)],
        &[named("one").and(named("two")), named("two").and(named("one"))],
    ];
    let list = |filter: &Filter, token: Option<&str>| {
        let options = ReadOptions::new(Read::Any).filter(filter.clone()).limit(1);
        let options = token.map_or(options.clone(), |token| options.continue_from(token));
        cache.list_with(&Range::all(), &options)
    };
    for (at, equal) in filters.iter().enumerate() {
        for one in *equal {
            let page = list(one, None).unwrap();
            let token = page.continue_token().unwrap();
            for (number, others) in filters.iter().enumerate() {
                for other in *others {
                    match number == at {
                        true => assert_eq!(keys(&list(other, Some(token)).unwrap()), ["/a/2"], "{one:?} {other:?}"),
                        false => _ = refused(list(other, Some(token)), Code::InvalidArgument),
                    }
                }
            }
        }
    }
    // Where a range is said makes no difference, nor does the cache's own prefix.
    let by_filter = list(&any().prefix("/a/"), None).unwrap();
    let token = by_filter.continue_token().unwrap();
    for range in [Range::prefix("/a/"), Range::prefix("/a/").and(&Range::prefix("/"))] {
        let options = ReadOptions::new(Read::Any).limit(1).continue_from(token);
        assert_eq!(keys(&cache.list_with(&range, &options).unwrap()), ["/a/2"]);
    }
}

/// Pages and batches of an initial state, small or large, keep what they show and nothing of the log beyond the window.
#[test]
fn pages_keep_nothing_of_the_log() {
    for objects in [1, 8, 9, 40] {
        let (cache, mut writer) = tiny();
        let keys: Vec<String> = (0..objects).map(|number| format!("/{number:02}")).collect();
        writer.apply(1, keys.iter().map(|key| Change::put(key, "1"))).unwrap();
        let page = cache.list(&Range::all(), Read::Any, 0).unwrap();
        let again = page.clone();
        let exact = cache.list(&Range::all(), Read::Exact(1), 0).unwrap();
        let in_pieces = cache.subscribe(Start::State).initial_batch_bytes(1 << 10).open().unwrap().poll(100).unwrap();
        let state = cache.subscribe(Start::State).open().unwrap().poll(100).unwrap();
        let mut lags = cache.subscribe(Start::State).on_lag(OnLag::Conflate).open().unwrap();
        assert_eq!(lags.poll(100).unwrap().len(), objects + 1);
        let many = if objects > 8 { 4 } else { 0 };
        assert_eq!((cache.stats().pages, cache.stats().page_bytes), (many, 0));
        // Replaced, then deleted, purged and gone.
        for revision in 2..300 {
            writer.apply(revision, keys.iter().map(|key| Change::put(key, "2"))).unwrap();
        }
        let caught_up = lags.poll(100).unwrap();
        for revision in 300..600 {
            match (&keys[..], revision) {
                (keys, 300) => writer.apply(revision, keys.iter().map(Change::delete)).unwrap(),
                _ => write(&mut writer, [revision]),
            }
        }
        until("the log is let go", || cache.stats().segments == cache.stats().window_segments);
        let stats = cache.stats();
        assert_eq!((stats.pages, stats.kept_bytes), (many, 0), "{stats:?}");
        assert_eq!(stats.page_bytes > 0, many > 0, "{stats:?}");
        for kv in page.items().iter().chain(again.items()).chain(exact.items()) {
            assert_eq!((kv.value(), kv.mod_revision()), (Some(&b"1"[..]), 1));
        }
        for event in in_pieces.events().iter().chain(state.events()).filter(|event| event.kind() == Kind::Added) {
            assert_eq!(event.value(), Some(&b"1"[..]));
        }
        assert!(caught_up.events().iter().all(|event| event.value() == Some(b"2")));
        drop((page, again, exact, in_pieces, state, caught_up));
        assert_eq!((cache.stats().pages, cache.stats().page_bytes), (0, 0));
    }
}

/// Snapshots keep the log: the statistics say how many they are, and how much of it.
#[test]
fn snapshots_are_counted_with_what_they_keep() {
    let (cache, mut writer) = tiny();
    write(&mut writer, 1..=10);
    assert_eq!((cache.stats().snapshots, cache.stats().kept_bytes), (0, 0));
    let snapshot = cache.snapshot().unwrap();
    let again = snapshot.clone();
    write(&mut writer, 11..=500);
    let stats = cache.stats();
    assert_eq!(stats.snapshots, 2);
    // 64 bytes an event at least; 128 are in the window.
    assert!(stats.kept_bytes > (500 - 10 - 128 - 16) * 64 && stats.kept_bytes < stats.log_bytes, "{stats:?}");
    drop(snapshot);
    assert_eq!(cache.stats().snapshots, 1);
    drop(again);
    until("the log is let go", || cache.stats().kept_bytes == 0);
    assert_eq!(cache.stats().snapshots, 0);
}
