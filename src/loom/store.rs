//! The store: keys and versions that readers find while a revision is committed.
//!
//! | row | test `loom_...` | weakened in the twins |
//! | --- | --- | --- |
//! | slot.newest | `version_reached_early` | newest store; newest load |
//! | head, slot.newest, root (I2, I5) | `snapshot_is_whole` | newest load |
//! | root | `new_keys_against_list` | root swap; root load |
//! | the tail of a leaf | `appended_against_list` | its store; its load |
//! | root, then oldest_seq | `forgetting_against_list` | root swap |
//! | a cell of the table, then oldest_seq | `forgetting_against_get` | oldest_seq first |
//! | an entry in its cell, a page in its place | `new_keys_against_get` | both stores, both loads |
//! | a page that is divided | `dividing_against_get` | store of the state; without a second look at it |
//! | pages that are joined | `joining_against_get` | store of the state; without a second look at it |

use super::*;

/// Row "slot.newest": a version that is reached before the head that covers it.
fn version_reached_early(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, mut writer) = cache(4, 2);
        put(&mut writer, 1, &["/a"]);
        race(
            writer,
            |writer| put(writer, 2, &["/a"]),
            move || {
                let answer = cache.get("/a", Read::Any).unwrap();
                let kv = answer.kv.unwrap();
                assert_eq!(kv.mod_revision(), answer.revision);
                assert_eq!(kv.value().unwrap(), answer.revision.to_string().as_bytes());
                cache
            },
        );
    });
}

proof!(
    version_reached_early, loom_version_reached_early,
    loom_version_reached_early_weak_newest: Newest => "Causality violation",
    loom_version_reached_early_weak_load: NewestLoad => "Causality violation",
);

/// Rows "head", "slot.newest", "root": a snapshot taken while a revision is applied has all of it or
/// nothing.
fn snapshot_is_whole(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, mut writer) = cache(4, 2);
        put(&mut writer, 1, &["/a", "/b"]);
        race(
            writer,
            |writer| put(writer, 2, &["/a", "/b", "/c"]),
            move || {
                let snapshot = cache.snapshot().unwrap();
                let revision = snapshot.revision();
                assert!(snapshot.iter().all(|kv| kv.mod_revision() == revision), "two revisions in one snapshot");
                assert_eq!(snapshot.len() as u64, 1 + revision);
                cache
            },
        );
    });
}

proof!(
    snapshot_is_whole, loom_snapshot_is_whole,
    loom_snapshot_is_whole_weak_newest: NewestLoad => "Causality violation",
);

/// Row "root": keys that appear, against a list.
fn new_keys_against_list(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, writer) = cache(4, 2);
        race(
            writer,
            |writer| put(writer, 1, &["/a", "/b"]),
            move || {
                let page = cache.list(&Range::all(), Read::Any, 0).unwrap();
                assert_eq!(page.len() as u64, 2 * page.revision());
                cache
            },
        );
    });
}

proof!(
    new_keys_against_list, loom_new_keys_against_list,
    loom_new_keys_against_list_weak_root: Replace "Root" => "Causality violation",
    loom_new_keys_against_list_weak_load: Load "Root" => "Causality violation",
);

/// Row "tail": keys that a published leaf gets, against a list.
fn appended_against_list(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, mut writer) = cache(4, 2);
        put(&mut writer, 1, &["/b"]);
        race(
            writer,
            |writer| put(writer, 2, &["/a", "/c"]),
            move || {
                let page = cache.list(&Range::all(), Read::Any, 0).unwrap();
                assert_eq!(page.len() as u64, 2 * page.revision() - 1);
                cache
            },
        );
    });
}

proof!(
    appended_against_list, loom_appended_against_list,
    loom_appended_against_list_weak_tail: Tail => "Causality violation",
    loom_appended_against_list_weak_load: TailLoad => "Causality violation",
);

/// Row "oldest_seq, then purge": a key is absent at h only if that is so. `read` says whether the key that is deleted in
/// revision 3 is there, and at which revision.
fn forgetting(weakened: Weak, read: fn(&Cache) -> (bool, u64)) {
    LONGEST.run(weakened, move || {
        let (cache, mut writer) = cache(1, 2);
        put(&mut writer, 1, &["/b"]);
        put(&mut writer, 2, &["/a"]);
        let write = |writer: &mut Writer| {
            writer.apply(3, [Change::delete("/a")]).unwrap();
            // The third finds the tombstone out of the window.
            (4..7).for_each(|revision| put(writer, revision, &["/b"]));
        };
        race(writer, write, move || {
            let (is_there, revision) = read(&cache);
            assert_eq!(is_there, revision == 2, "absent at a head at which it lives");
            cache
        });
    });
}

fn forgetting_against_get(weakened: Weak) {
    forgetting(weakened, |cache| {
        let answer = cache.get("/a", Read::Any).unwrap();
        (answer.kv.is_some(), answer.revision)
    });
}

proof!(
    forgetting_against_get, loom_forgetting_against_get,
    loom_forgetting_against_get_early: OldestEarly => "absent at a head at which it lives",
);

/// The key is read by the index.
fn forgetting_against_list(weakened: Weak) {
    forgetting(weakened, |cache| {
        let page = cache.list(&Range::all(), Read::Any, 0).unwrap();
        (page.len() == 2, page.revision())
    });
}

proof!(
    forgetting_against_list, loom_forgetting_against_list,
    loom_forgetting_against_list_weak_root: Replace "Root" => "Causality violation",
);

/// Rows "entry", "page": a key that appears, against a read of it.
fn new_keys_against_get(weakened: Weak) {
    PLAIN.run(weakened, || {
        let (cache, mut writer) = cache(4, 2);
        put(&mut writer, 1, &["/b"]);
        race(
            writer,
            |writer| put(writer, 2, &["/a"]),
            move || {
                let answer = cache.get("/a", Read::Any).unwrap();
                assert_eq!(answer.kv.is_some(), answer.revision == 2);
                cache
            },
        );
    });
}

proof!(
    new_keys_against_get, loom_new_keys_against_get,
    loom_new_keys_against_get_weak_entry: TableEntry => "Causality violation",
    loom_new_keys_against_get_weak_entry_load: TableEntryLoad => "Causality violation",
);

/// The first key behind "/e" that lies in this page of so many, whatever the hash is.
fn key_of_page(page: usize, pages: usize) -> &'static str {
    let keys = ["/f", "/g", "/h", "/i", "/j", "/k", "/l", "/m", "/n", "/o", "/p", "/q", "/r", "/s", "/t", "/u", "/v"];
    let found = keys.into_iter().find(|key| crate::store::table::page_of_key(key.as_bytes(), pages) == page);
    found.expect("a key of each page among seventeen")
}

/// Row "divided": under loom there is a page for each two keys. Keys that move and keys that stay are found.
fn dividing_against_get(weakened: Weak) {
    LONG.run(weakened, || {
        let (cache, mut writer) = cache(4, 2);
        let both = [0, 1].map(|page| key_of_page(page, 2));
        put(&mut writer, 1, &both);
        race(
            writer,
            |writer| put(writer, 2, &["/c"]),
            move || {
                for key in both {
                    assert!(cache.get(key, Read::Any).unwrap().kv.is_some(), "missed between two pages");
                }
                cache
            },
        );
    });
}

proof!(
    dividing_against_get, loom_dividing_against_get,
    loom_dividing_against_get_weak_page: TablePage => "Causality violation",
    loom_dividing_against_get_weak_page_load: TablePageLoad => "Causality violation",
    loom_dividing_against_get_looked_once: LookOnce => "missed between two pages",
);

/// Row "joined": of five keys four are forgotten, and three pages become two. The fifth lies in the third.
fn joining_against_get(weakened: Weak) {
    LONGEST.run(weakened, || {
        let (cache, mut writer) = cache(1, 2);
        let last = key_of_page(2, 3);
        let others = ["/a", "/b", "/c", "/d"];
        put(&mut writer, 1, &[last]);
        for (key, revision) in others.into_iter().zip(2..) {
            put(&mut writer, revision, &[key]);
        }
        for (key, revision) in others.into_iter().zip(6..) {
            writer.apply(revision, [Change::delete(key)]).unwrap();
        }
        put(&mut writer, 10, &[last]);
        race(
            writer,
            |writer| (11..13).for_each(|revision| put(writer, revision, &[last])),
            move || {
                assert!(cache.get(last, Read::Any).unwrap().kv.is_some(), "missed between two pages");
                cache
            },
        );
    });
}

proof!(
    joining_against_get, loom_joining_against_get,
    loom_joining_against_get_looked_once: LookOnce => "missed between two pages",
);
