//! Section 5: pages that continue where the one before ended, and differences.

use crate::tools::*;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use watchcore::*;

fn keys(page: &Page) -> Vec<String> {
    page.iter().map(|kv| text(kv.key())).collect()
}

/// A conjunction has no order, so neither has what a token says of its filter; a predicate is the same only as itself.
#[test]
fn token_is_of_equal_filters_alone() {
    let field = |name: &str| Attribute::key_segment(name, 0);
    let builder = Cache::builder("/").labels(plain_labels()).field(field("f")).field(field("g"));
    let cache = builder.build().unwrap();
    let mut writer = cache.writer().unwrap();
    let value = "a=1,b=1";
    writer.apply(1, [Change::put("/a/1", value), Change::put("/a/2", value), Change::put("/a/3", value)]).unwrap();
    let any = Filter::any;
    let yes = any().predicate(|_| true);
    let named = |name: &str| any().named_predicate(name, |_| true);
    let filters: [&[Filter]; 6] = [
        &[
            any().labels("b=1").unwrap().labels("a=1").unwrap(),
            any().labels("a=1,b=1").unwrap(),
            any().labels("b in (1),a==1,b=1").unwrap(),
        ],
        &[
            any().fields("g=a").unwrap().fields("f=a").unwrap(),
            any().fields("f==a,g=a").unwrap().fields("f=a").unwrap(),
        ],
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

/// A token with other bytes, and the checksum of those: anybody can make one. Version and scope, epoch, revision and
/// filter take 33 bytes; what is behind them is the key.
fn signed_anew(token: &str, change: impl FnOnce(&mut Vec<u8>)) -> String {
    let mut bytes = URL_SAFE_NO_PAD.decode(token).unwrap();
    bytes.truncate(bytes.len() - 8);
    change(&mut bytes);
    let sum = bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |sum: u64, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    bytes.extend(sum.to_le_bytes());
    URL_SAFE_NO_PAD.encode(bytes)
}

fn with_next(token: &str, next: &str) -> String {
    signed_anew(token, |bytes| {
        bytes.truncate(33);
        bytes.extend(next.as_bytes());
    })
}

fn households() -> (Cache, Writer) {
    let (cache, mut writer) = tiny();
    let keys = ["/a/secret", "/b", "/b/1", "/b/2", "/b/3", "/bb", "/c/secret"];
    writer.apply(1, keys.map(|key| Change::put(key, "v"))).unwrap();
    (cache, writer)
}

/// Who may list one range gets nothing else by a token, whatever its checksum.
#[test]
fn a_token_signed_anew_stays_in_its_range() {
    let (cache, _writer) = households();
    let any = Filter::any;
    for (range, filter, outside) in [
        (Range::prefix("/b/"), any(), &["", "/", "/a/", "/b", "/b0", "/c/"][..]),
        (Range::all(), any().range(Range::prefix("/b/")), &["", "/a/", "/b", "/b0"]),
        (Range::between("/b/", "/b/3"), any(), &["/a/", "/b/3"]),
        (Range::between("/b", ""), any(), &["", "/a/secret"]),
        (Range::path("/b"), any(), &["", "/a/secret\0", "/c"]),
        (Range::path("/b"), any().predicate(|_| true), &["/a/", "/c/"]),
    ] {
        let options = |limit| ReadOptions::new(Read::Any).filter(filter.clone()).limit(limit);
        let page = cache.list_with(&range, &options(1)).unwrap();
        let token = page.continue_token().expect("more than one");
        for next in outside {
            for limit in [0, 1, 10] {
                let forged = options(limit).continue_from(with_next(token, next));
                let error = refused(cache.list_with(&range, &forged), Code::InvalidArgument);
                let says = [format!("begins at {next:?}"), "the range from \"/b".into(), "list from the start".into()];
                assert!(says.iter().all(|part| error.message().contains(part)), "{error}");
            }
        }
        // A key in the range is as good as the one that the token had.
        let rest = cache.list_with(&range, &options(0).continue_from(with_next(token, "/b/2"))).unwrap();
        assert_eq!(keys(&rest)[0], "/b/2");
        assert!(rest.iter().all(|kv| range.contains(kv.key())), "{rest:?}");
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
        let in_pieces = cache.subscribe(Start::State).initial_batch_bytes(1 << 10).open().unwrap().poll(100).unwrap();
        let state = cache.subscribe(Start::State).open().unwrap().poll(100).unwrap();
        let mut lags = cache.subscribe(Start::State).on_lag(OnLag::Conflate).open().unwrap();
        assert_eq!(lags.poll(100).unwrap().len(), objects + 1);
        let many = if objects > 8 { 3 } else { 0 };
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
        for kv in page.items().iter().chain(again.items()) {
            assert_eq!((kv.value(), kv.mod_revision()), (Some(&b"1"[..]), 1));
        }
        for event in in_pieces.events().iter().chain(state.events()).filter(|event| event.kind() == Kind::Added) {
            assert_eq!(event.value(), Some(&b"1"[..]));
        }
        assert!(caught_up.events().iter().all(|event| event.value() == Some(b"2")));
        drop((page, again, in_pieces, state, caught_up));
        assert_eq!((cache.stats().pages, cache.stats().page_bytes), (0, 0));
    }
}

/// Snapshots keep the log: the figures say how many they are, and how much of it.
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
