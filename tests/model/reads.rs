//! Reads and refusals against the twin.

use crate::filter::Keys;
use crate::twin::{Found, Kv, State, Twin};
use crate::world::{KEYS, key_of};
use std::time::Duration;
use watchcore::{Cache, Change, Code, KeyValue, Position, Range, Read, Record, ResyncReason, Snapshot, Writer};

fn assert_is(shown: Option<&KeyValue>, kv: Option<&Kv>, key: &[u8], what: &str) {
    let shown = shown
        .map(|kv| (kv.key(), kv.value().unwrap(), kv.create_revision(), kv.mod_revision(), kv.version(), kv.lease()));
    let expected = kv.map(|kv| (key, &kv.value[..], kv.create, kv.modified, kv.version, kv.lease));
    assert_eq!(shown, expected, "{what} of {key:?}");
}

pub fn snapshot(snapshot: &Snapshot, state: &State, position: Position, dice: u32) {
    assert_eq!(snapshot.position(), position);
    assert_eq!((snapshot.len(), snapshot.is_empty()), (state.len(), state.is_empty()));
    for (shown, (key, kv)) in snapshot.iter().zip(state.iter()) {
        assert_is(Some(&shown), Some(kv), key, "snapshot");
    }
    for key in KEYS {
        assert_is(snapshot.get(key).as_deref(), state.get(key), key, "snapshot");
    }
    let prefix = key_of(dice);
    let below: Vec<&Vec<u8>> = state.keys().filter(|key| key.starts_with(&prefix)).collect();
    let shown: Vec<Vec<u8>> = snapshot.prefix(&prefix).map(|kv| kv.key().to_vec()).collect();
    assert!(shown.iter().eq(below), "prefix {prefix:?}");
    let path = Keys::Path(prefix);
    let count = state.keys().filter(|key| path.holds(key)).count();
    assert_eq!(snapshot.count(&path.range()), count as u64);
}

/// One revision, one key, one range.
pub fn at(cache: &Cache, twin: &Twin, dice: u32, key: u32, keys: &Keys, limit: u32) {
    let key = key_of(key);
    if !twin.loaded {
        let codes = [
            cache.get(&key, Read::Any).unwrap_err().code(),
            cache.list(&Range::all(), Read::AtLeast(5), 0).unwrap_err().code(),
            cache.count(&Range::all(), Read::Exact(0)).unwrap_err().code(),
        ];
        assert_eq!(codes, [Code::NotReady; 3]);
        return;
    }
    let (oldest, current) = (twin.oldest(), twin.now.revision);
    let revision = match dice % 8 {
        0 => oldest.saturating_sub(2),
        1 => current + 1,
        2 => oldest - 1,
        _ => oldest - 1 + u64::from(dice / 8) % (current + 2 - oldest),
    };
    one(cache, twin, Read::Exact(revision), &key, keys, limit);
    one(cache, twin, Read::AtLeast(revision), &key, keys, limit);
    one(cache, twin, Read::Any, &key, keys, limit);
}

fn one(cache: &Cache, twin: &Twin, read: Read, key: &[u8], keys: &Keys, limit: u32) {
    let get = cache.get_within(key, read, Duration::ZERO);
    let limit = if limit.is_multiple_of(3) { 0 } else { limit as usize % 5 + 1 };
    let list = cache.list_within(&keys.range(), read, limit, Duration::ZERO);
    let (found, asked) = match read {
        Read::Any => (Found::At(twin.events.len()), 0),
        Read::AtLeast(asked) if asked > twin.now.revision => (Found::Future, asked),
        Read::AtLeast(asked) => (Found::At(twin.events.len()), asked),
        Read::Exact(asked) => (twin.find(asked, 0, false), asked),
        other => unreachable!("not asked here: {other:?}"),
    };
    let code = match found {
        Found::Compacted => Code::Compacted,
        Found::Future => Code::FutureRevision,
        Found::At(count) => {
            let (get, list) = (get.unwrap(), list.unwrap());
            let at = if let Read::Exact(asked) = read {
                Position { epoch: twin.epoch_at(count), revision: asked }
            } else {
                twin.now
            };
            let state = twin.state_at(count);
            assert_eq!((get.epoch, get.revision), (at.epoch, at.revision), "{read:?}");
            assert_is(get.kv.as_ref(), state.get(key), key, "get");
            let all: Vec<(&Vec<u8>, &Kv)> = state.iter().filter(|(key, _)| keys.holds(key)).collect();
            let most = if limit == 0 { all.len() } else { limit.min(all.len()) };
            assert_eq!((list.epoch(), list.revision()), (at.epoch, at.revision), "{read:?}");
            assert_eq!(list.len(), most, "{read:?} {keys:?}");
            for (shown, (key, kv)) in list.iter().zip(&all) {
                assert_is(Some(&shown), Some(kv), key, "list");
            }
            assert_eq!((list.remaining(), list.more()), ((all.len() - most) as u64, all.len() > most));
            let count = cache.count(&keys.range(), read).unwrap();
            assert_eq!((count.epoch, count.revision, count.count), (at.epoch, at.revision, all.len() as u64));
            return;
        }
    };
    for error in [get.expect_err("get"), list.expect_err("list")] {
        assert_eq!(error.code(), code, "{read:?}: {error}");
        assert_eq!((error.asked(), error.current()), (asked, twin.now.revision), "{error}");
        if code == Code::Compacted {
            assert_eq!(error.oldest(), twin.oldest());
        }
    }
}

/// Every revision of the window and one beyond each border.
pub fn all(cache: &Cache, twin: &Twin) {
    if !twin.loaded {
        return;
    }
    let (oldest, current) = (twin.oldest(), twin.now.revision);
    for revision in oldest.saturating_sub(2)..=current + 1 {
        let key = KEYS[revision as usize % KEYS.len()];
        one(cache, twin, Read::Exact(revision), key, &Keys::Prefix(b"/a".to_vec()), revision as u32);
    }
    one(cache, twin, Read::Any, b"/a", &Keys::All, 0);
}

/// One refusal; the caller looks whether anything changed.
pub fn refuse(writer: &mut Writer, twin: &Twin, what: u32, dice: u32) {
    let (now, state) = (twin.now.revision, twin.state());
    let (next, key) = (now + 1, key_of(dice));
    let absent = KEYS.iter().find(|key| !state.contains_key(**key));
    let long = [b"/".as_slice(), &[b'k'; 64]].concat();
    let big = vec![0; 8193];
    let exact = |create_revision, mod_revision, version| {
        Change::put_exact(Record { key: b"/a", value: b"", create_revision, mod_revision, version, lease: 0 })
    };
    let good = Change::put("/zz", "never seen");
    let record = |key, create_revision, mod_revision, version| Record {
        key,
        value: b"v",
        create_revision,
        mod_revision,
        version,
        lease: 0,
    };
    let all = ResyncReason::Requested;
    let (refused, code) = match what % 19 {
        0 => (writer.apply(now, [good]), Code::OutOfOrder),
        1 => (writer.apply(u64::from(dice) % (now + 1), [good]), Code::OutOfOrder),
        2 => match absent {
            Some(absent) => (writer.apply(next, [good, Change::delete(*absent)]), Code::InvalidArgument),
            None => return,
        },
        3 => (writer.apply(next, [good, Change::put(&key, ""), Change::put(&key, "x")]), Code::InvalidArgument),
        4 => (writer.apply(next, [good, Change::put("", "x")]), Code::InvalidArgument),
        5 => (writer.apply(next, [good, Change::put("outside", "x")]), Code::InvalidArgument),
        6 => (writer.apply(next, [good, Change::put(&long, "x")]), Code::InvalidArgument),
        7 => (writer.apply(next, [good, Change::put(&key, &big)]), Code::InvalidArgument),
        8 => (writer.apply(next, [good, exact(1, now, 1)]), Code::InvalidArgument),
        9 => (writer.apply(next, [good, exact(next + 1, next, 1)]), Code::InvalidArgument),
        10 => (writer.apply(next, [good, exact(0, next, 1)]), Code::InvalidArgument),
        11 => (writer.apply(next, [good, exact(1, next, 0)]), Code::InvalidArgument),
        12 => (writer.apply(1 << 52, [good]), Code::InvalidArgument),
        13 => (writer.progress(now.saturating_sub(1)), if now == 0 { return } else { Code::OutOfOrder }),
        14 => (writer.progress(1 << 52), Code::InvalidArgument),
        15 => (writer.compact(next), Code::FutureRevision),
        16 => {
            let twice = [record(b"/b", 1, 1, 1), record(b"/a", 1, 1, 1), record(b"/b", 1, 1, 2)];
            (writer.resync(next, twice, all).map(drop), Code::InvalidArgument)
        }
        17 => {
            let bad = [record(b"/b", 1, next + 1, 1), record(b"x", 1, 1, 1), record(b"/b", 0, 1, 2)][dice as usize % 3];
            (writer.resync(next, [bad], all).map(drop), Code::InvalidArgument)
        }
        _ => (writer.resync(next, [], ResyncReason::Lagged).map(drop), Code::InvalidArgument),
    };
    assert_eq!(refused.expect_err("to be refused").code(), code, "refusal {}", what % 19);
}
