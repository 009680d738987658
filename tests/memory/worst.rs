//! The most that a single apply asks of the allocator, however many keys there are.

use crate::heap::{Work, alone, work_of};
use watchcore::{Cache, Change};

/// The greatest of each figure.
fn most(all: impl Iterator<Item = Work>) -> Work {
    all.fold(Work::default(), |most, work| Work {
        blocks: most.blocks.max(work.blocks),
        bytes: most.bytes.max(work.bytes),
        freed: most.freed.max(work.freed),
    })
}

/// A segment of 64 KiB is the largest block; the rest are nodes of a path, a page that is divided, a chunk of
/// tombstones. None of it follows the number of keys.
#[test]
fn one_apply_allocates_few_blocks() {
    let _alone = alone();
    const KEYS: u64 = 60_000;
    let cache = Cache::builder("/").capacity(8192).build().unwrap();
    let mut writer = cache.writer().unwrap();
    let keys: Vec<String> = (0..KEYS).map(|number| format!("/registry/pods/{number:012}")).collect();
    let mut apply = |revision: u64, change: Change<'_>| work_of(|| writer.apply(revision, [change]).unwrap());
    let new = most((0..KEYS).map(|at| apply(1 + at, Change::put(&keys[at as usize], "value"))));
    let deleted = most((0..KEYS).map(|at| apply(1 + KEYS + at, Change::delete(&keys[at as usize]))));
    println!("new keys {new:?}, deletes {deleted:?}");
    for work in [new, deleted] {
        assert!(work.blocks <= 40 && work.bytes <= 160 << 10 && work.freed <= 16, "{work:?}");
    }
}
