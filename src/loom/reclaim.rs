//! Reclamation: an object that a reader has found lives until the reader has let it go.
//!
//! | row | test `loom_...` | weakened in the twins |
//! | --- | --- | --- |
//! | directory entry to counted reference | `segment_against_retirement` | step: no grace period |
//! | retention token | `snapshot_against_a_new_segment` | token swap; token load |
//! | a page: the token, then the versions | `page_against_eviction` | token swap |
//! | a larger page: it enters the list of such pages, its segment leaves | `page_against_detach`, `page_dropped_against_detach` | token swap; step: nothing is counted |
//! | purge, then retire | `forgetting_against_an_older_root` | step: no grace period |
//! | lone key | `key_against_purge` | step: the version is freed without a grace |
//! | unlinked, then retired | `retiring_against_list` | step: retired before it is unlinked |
//! | inbox | `inbox` | its exchange; its swap |
//! | version count | `version_count` | the release of a count; the last one's load |

use super::*;
use crate::data::slot::OwnedSlot;
use crate::heap::System;

/// Row "directory entry to counted reference": a segment that is found in the directory and counted, and the versions
/// of a batch, against eviction and freeing.
fn segment_against_retirement(weakened: Weak) {
    COLLECTS_DEEP.deep().run(weakened, || {
        let (cache, mut writer) = cache(1, 2);
        let mut subscription = follow(&cache);
        put(&mut writer, 1, &["/a"]);
        put(&mut writer, 2, &["/a"]);
        let write = |writer: &mut Writer| {
            put(writer, 3, &["/a"]);
            collector::collect();
        };
        let (_writer, batch) = race(writer, write, move || match subscription.poll(8) {
            Ok(batch) => {
                assert_eq!(read(&batch), [1]);
                Some(batch)
            }
            Err(error) => {
                assert_eq!(error.code(), Code::Lagged);
                None
            }
        });
        collector::collect();
        batch.iter().for_each(|batch| assert_eq!(read(batch), [1]));
    });
}

proof!(
    segment_against_retirement, loom_segment_against_retirement,
    loom_segment_against_retirement_without_grace: Grace => "",
);

/// Row "token": a snapshot keeps every segment from its head on, whatever is published meanwhile.
fn snapshot_against_a_new_segment(weakened: Weak) {
    COLLECTS.run(weakened, || {
        let (cache, mut writer) = cache(1, 3);
        put(&mut writer, 1, &["/a"]);
        let write = |writer: &mut Writer| {
            // Two segments at once: the token of the second holds nothing of what the first replaced.
            put(writer, 2, &["/a", "/b"]);
            (3..5).for_each(|revision| put(writer, revision, &["/b"]));
            collector::collect();
        };
        let (_writer, (snapshot, _cache)) = race(writer, write, move || (cache.snapshot().unwrap(), cache));
        collector::collect();
        assert_eq!(snapshot.get("/a").unwrap().mod_revision(), snapshot.revision().min(2));
    });
}

proof!(
    snapshot_against_a_new_segment, loom_snapshot_against_a_new_segment,
    loom_snapshot_against_a_new_segment_weak_token: Replace "RetentionToken" => "Causality violation",
    loom_snapshot_against_a_new_segment_weak_load: Load "RetentionToken" => "Causality violation",
);

/// Row "a page": its versions outlive their segments.
fn page_against_eviction(weakened: Weak) {
    COLLECTS_LONG.run(weakened, || {
        let (cache, mut writer) = cache(1, 2);
        put(&mut writer, 1, &["/a"]);
        let write = |writer: &mut Writer| {
            (2..4).for_each(|revision| put(writer, revision, &["/a"]));
            (4..6).for_each(|revision| put(writer, revision, &["/b"]));
            collector::collect();
        };
        let (_writer, (page, _cache)) =
            race(writer, write, move || (cache.list(&Range::all(), Read::Any, 0).unwrap(), cache));
        collector::collect();
        assert_eq!(page.items()[0].mod_revision(), page.revision().min(3));
    });
}

proof!(
    page_against_eviction, loom_page_against_eviction,
    loom_page_against_eviction_weak_token: Replace "RetentionToken" => "Causality violation",
);

/// Row "a larger page": a page of many keys enters the list of such pages while its segment leaves the window, and is
/// detached by one of the two threads.
fn page_against_detach(weakened: Weak) {
    COLLECTS_LONG.run(weakened, || {
        let (cache, mut writer) = cache(1, 2);
        put(&mut writer, 1, &["/a"]);
        put(&mut writer, 2, &["/b"]);
        let write = |writer: &mut Writer| {
            put(writer, 3, &["/a"]);
            (4..6).for_each(|revision| put(writer, revision, &["/b"]));
            collector::collect();
        };
        let (_writer, (page, cache)) =
            race(writer, write, move || (cache.list(&Range::all(), Read::Any, 0).unwrap(), cache));
        collector::collect();
        assert_eq!(page.items()[0].mod_revision(), if page.revision() < 3 { 1 } else { 3 });
        assert_eq!(page.items()[1].mod_revision(), if page.revision() == 3 { 2 } else { page.revision() });
        drop(page);
        assert_eq!(cache.stats().page_bytes, 0);
    });
}

proof!(
    page_against_detach, loom_page_against_detach,
    loom_page_against_detach_weak_token: Replace "RetentionToken" => "Causality violation",
    loom_page_against_detach_uncounted: KeepAll => "",
);

/// Row "a larger page": a page is dropped while it is detached.
fn page_dropped_against_detach(weakened: Weak) {
    COLLECTS_LONG.run(weakened, || {
        let (cache, mut writer) = cache(1, 2);
        put(&mut writer, 1, &["/a"]);
        put(&mut writer, 2, &["/b"]);
        let page = cache.list(&Range::all(), Read::Any, 0).unwrap();
        let write = |writer: &mut Writer| {
            (3..5).for_each(|revision| put(writer, revision, &["/a"]));
            collector::collect();
        };
        let (_writer, ()) = race(writer, write, move || {
            assert_eq!(page.items()[0].mod_revision(), 1);
            drop(page);
        });
        collector::collect();
        assert_eq!((cache.stats().pages, cache.stats().page_bytes), (0, 0));
    });
}

proof!(page_dropped_against_detach, loom_page_dropped_against_detach);

/// Rows "root", "token": a removed slot outlives every reader whose root still has it.
fn forgetting_against_an_older_root(weakened: Weak) {
    COLLECTS.deep().run(weakened, || {
        let (cache, mut writer) = cache(1, 2);
        put(&mut writer, 1, &["/a"]);
        writer.apply(2, [Change::delete("/a")]).unwrap();
        (3..5).for_each(|revision| put(&mut writer, revision, &["/b"]));
        let write = |writer: &mut Writer| {
            // The first purges the key; its segment, which keeps the slot, leaves with the third.
            (5..8).for_each(|revision| put(writer, revision, &["/b"]));
            collector::collect();
        };
        let (_writer, (snapshot, _cache)) = race(writer, write, move || (cache.snapshot().unwrap(), cache));
        collector::collect();
        assert!(snapshot.get("/a").is_none());
        assert_eq!(snapshot.get("/b").unwrap().mod_revision(), snapshot.revision());
    });
}

proof!(
    forgetting_against_an_older_root, loom_forgetting_against_an_older_root,
    loom_forgetting_against_an_older_root_without_grace: Grace => "",
);

/// Row "lone key": a reader with a count on a slot finds its key, while the slot loses the version that it showed.
fn key_against_purge(weakened: Weak) {
    COLLECTS.run(weakened, || {
        let tombstone = Version::new(b"/a", None, KeyMeta::default(), 10, VersionPtr::NULL);
        let slot = OwnedSlot::new(tombstone, &mut System);
        let count = Local::new(slot.get().counted());
        let purge = move || {
            // SAFETY: the model has a count on the slot, so it is alive.
            unsafe { slot.destroy() };
            collector::collect();
        };
        let read = move || {
            let pin = collector::pin();
            // SAFETY: the version is not freed before the pin ends.
            assert_eq!(unsafe { count.key() }, b"/a");
            drop(pin);
            count
        };
        let (_, count) = both(purge, read);
        drop(count);
    });
}

proof!(
    key_against_purge, loom_key_against_purge,
    loom_key_against_purge_without_grace: Grace => "",
);

/// Row "unlinked, then retired": whatever is collected meanwhile, the root that is found is there.
fn retiring_against_list(weakened: Weak) {
    COLLECTS.run(weakened, || {
        let (cache, writer) = cache(4, 2);
        race(
            writer,
            // The first key changes the root, not only the tail of a leaf.
            |writer| put(writer, 1, &["/a", "/b"]),
            move || {
                // The reclaimer's part, before this thread pins.
                collector::collect();
                let page = cache.list(&Range::all(), Read::Any, 0).unwrap();
                assert_eq!(page.len() as u64, 2 * page.revision());
                cache
            },
        );
    });
}

proof!(
    retiring_against_list, loom_retiring_against_list,
    loom_retiring_against_list_pushed_early: PushEarly => "used after it was freed",
);

/// Row "inbox": a message that is taken is complete, and taken once.
fn inbox_push_against_take(weakened: Weak) {
    PLAIN.run(weakened, || {
        let inbox = std::sync::Arc::new(Local::new(sync::Inbox::new()));
        let tracked = || Box::new((collector::Track::new(), 1));
        let pushing = {
            let inbox = inbox.clone();
            thread::spawn(move || {
                inbox.push(tracked());
                inbox.push(tracked());
            })
        };
        inbox.push(tracked());
        let take = || inbox.take_all().into_iter().map(|value| (value.0.read(), value.1).1).sum::<u32>();
        let first = take();
        pushing.join().unwrap();
        assert_eq!(first + take(), 3, "each value is taken once");
    });
}

proof!(
    inbox_push_against_take, loom_inbox,
    loom_inbox_weak_push: InboxPush => "Causality violation",
    loom_inbox_weak_take: InboxTake => "Causality violation",
);

/// Row "version count": every read of the version happens before the free.
fn version_count(weakened: Weak) {
    PLAIN.run(weakened, || {
        let meta = KeyMeta { create_revision: 1, mod_revision: 1, version: 1, lease: 0 };
        let version = Version::new(b"/a", Some(b"x"), meta, 1, VersionPtr::NULL);
        let other = version.clone();
        let reading = thread::spawn(move || assert_eq!(other.value(), Some(&b"x"[..])));
        assert_eq!(version.key(), b"/a");
        drop(version);
        reading.join().unwrap();
    });
}

proof!(
    version_count, loom_version_count,
    loom_version_count_weak_give_back: CountRelease => "Causality violation",
    loom_version_count_weak_last: CountReleaseLast => "Causality violation",
);
