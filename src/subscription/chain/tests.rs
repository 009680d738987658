//! The cost of reading a chain.

use crate::sync::hooked;
use crate::{Cache, Change, Event, Index, Kind, ReadPath, Record, ResyncReason, Start, Subscription};
use std::cell::Cell;
use std::rc::Rc;

/// Polls until a poll is empty, and returns the kinds and revisions of marks and of a key's events.
fn delivered(one: &mut Subscription, max: usize, key: &str) -> Vec<(Kind, u64)> {
    let mut all = Vec::new();
    loop {
        let batch = one.poll(max).unwrap();
        if batch.is_empty() {
            return all;
        }
        let own = |event: &&Event| event.kind() == Kind::Resync || event.key() == key.as_bytes();
        all.extend(batch.into_iter().filter(own).map(|event| (event.kind(), event.revision())));
    }
}

/// Many subscriptions come at once, so the writer answers some of them later: each scans only up to where its chain begins.
#[test]
fn scan_ends_where_the_chain_begins() {
    const OTHERS: u64 = 2000;
    let cache = Cache::builder("/").index(Index::key()).build().unwrap();
    let mut writer = cache.writer().unwrap();
    let mut one = cache.subscribe(Start::Now).key("/a").open().unwrap();
    let open = |number| cache.subscribe(Start::Now).key(format!("/{number}")).open().unwrap();
    let _others: Vec<Subscription> = (0..OTHERS).map(open).collect();
    for revision in 1..=OTHERS {
        writer.apply(revision, [Change::put("/other", "x")]).unwrap();
    }
    writer.apply(OTHERS + 1, [Change::put("/a", "x")]).unwrap();
    assert_eq!(delivered(&mut one, 1024, "/a"), [(Kind::Added, OTHERS + 1)]);
    let stats = one.stats();
    assert!((2..100).contains(&stats.looked_at) && stats.skipped > OTHERS - 100, "{stats:?}");
}

/// While a mark lies ahead each link is followed a few times in all, however small the batches are, and the events are
/// those that a scan delivers.
#[test]
fn links_before_a_mark_are_walked_once() {
    const OWN: u64 = 300;
    for (max, marks) in [(1, 1), (1, 40), (7, 1), (1024, 3)] {
        let cache = Cache::builder("/").index(Index::key()).build().unwrap();
        let mut writer = cache.writer().unwrap();
        let mut all = cache.subscribe(Start::Now).open().unwrap();
        let mut one = cache.subscribe(Start::Now).key("/a").open().unwrap();
        // The answer to its request, and the poll that finds it.
        writer.apply(1, [Change::put("/other", "x")]).unwrap();
        assert!(one.poll(1).unwrap().is_empty());
        let mut revision = 1;
        let mut write = |writer: &mut crate::Writer, own: u64| {
            for _ in 0..own {
                writer.apply(revision + 1, [Change::put("/other", "y"), Change::put("/a", "y")]).unwrap();
                writer.apply(revision + 2, [Change::put("/other", "z")]).unwrap();
                revision += 2;
            }
            revision
        };
        for mark in 0..marks {
            let before = write(&mut writer, OWN / marks);
            // The key has another value each time, so the resync has an event of it, too.
            let value = mark.to_string();
            let record = |key, value, version| Record {
                key,
                value,
                create_revision: 1,
                mod_revision: before,
                version,
                lease: 0,
            };
            let listing = [record(b"/a", value.as_bytes(), 1000 + mark), record(b"/other", b"z", 1000 + mark)];
            writer.resync(before, listing, ResyncReason::Requested).unwrap();
        }
        let last = write(&mut writer, OWN);

        let links = Rc::new(Cell::new(0));
        let counted = links.clone();
        let count = move |step: &'static str| counted.set(counted.get() + u64::from(step == "link"));
        let own = hooked(count, || delivered(&mut one, max, "/a"));
        assert_eq!(own, delivered(&mut all, 1024, "/a"), "batches of {max}");
        assert!(own.len() as u64 >= 2 * OWN && own.last() == Some(&(Kind::Modified, last - 1)), "{own:?}");
        assert!(links.get() <= 5 * OWN, "batches of {max}, {marks} marks: {} links", links.get());
        // After the mark it reads its chain again, and looks only at its own event.
        let before = one.stats();
        for other in 1..=50 {
            writer.apply(last + other, [Change::put("/other", "x")]).unwrap();
        }
        writer.apply(last + 51, [Change::put("/a", "x")]).unwrap();
        assert_eq!(delivered(&mut one, max, "/a"), [(Kind::Modified, last + 51)]);
        let after = one.stats();
        assert!(matches!(after.read_path, ReadPath::Chain { .. }));
        assert_eq!((after.looked_at - before.looked_at, after.skipped - before.skipped), (1, 50));
    }
}
