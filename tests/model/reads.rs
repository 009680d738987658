//! Reads and refusals against the oracle.

use crate::draw::{KEYS, key_of};
use crate::filter::{Filter, Keys};
use crate::oracle::{Ev, Found, Kv, Oracle, State};
use std::collections::BTreeMap;
use std::time::Duration;
use watchcore::{
    Attribute, Cache, Change, Code, Error, KeyValue, Kind, Labels, Page, Position, Range, Read, ReadOptions, Record,
    ResyncReason, Snapshot, Writer,
};

fn assert_is(shown: Option<&KeyValue>, kv: Option<&Kv>, key: &[u8], what: &str) {
    let shown = shown
        .map(|kv| (kv.key(), kv.value().unwrap(), kv.create_revision(), kv.mod_revision(), kv.version(), kv.lease()));
    let expected = kv.map(|kv| (key, &kv.value[..], kv.create, kv.modified, kv.version, kv.lease));
    assert_eq!(shown, expected, "{what} of {key:?}");
}

pub fn snapshot(snapshot: &Snapshot, state: &State, position: Position, entropy: u32) {
    assert_eq!(snapshot.position(), position);
    assert_eq!((snapshot.len(), snapshot.is_empty()), (state.len(), state.is_empty()));
    for (shown, (key, kv)) in snapshot.iter().zip(state.iter()) {
        assert_is(Some(&shown), Some(kv), key, "snapshot");
    }
    for key in KEYS {
        assert_is(snapshot.get(key).as_deref(), state.get(key), key, "snapshot");
    }
    for (kv, key) in snapshot.get_many(&KEYS).iter().zip(KEYS) {
        assert_is(kv.as_deref(), state.get(key), key, "snapshot, of many");
    }
    let prefix = key_of(entropy);
    let below: Vec<&Vec<u8>> = state.keys().filter(|key| key.starts_with(&prefix)).collect();
    let shown: Vec<Vec<u8>> = snapshot.prefix(&prefix).map(|kv| kv.key().to_vec()).collect();
    assert!(shown.iter().eq(below), "prefix {prefix:?}");
    let path = Keys::Path(prefix);
    let count = state.keys().filter(|key| path.holds(key)).count();
    assert_eq!(snapshot.count(&path.range()), count as u64);
}

/// One revision, one key, one filter.
pub fn at(cache: &Cache, oracle: &Oracle, entropy: u32, key: u32, filter: &Filter, limit: u32) {
    let key = key_of(key);
    if !oracle.loaded {
        let codes = [
            cache.get(&key, Read::Any).unwrap_err().code(),
            cache.get_many(&KEYS, Read::Any).unwrap_err().code(),
            cache.list(&Range::all(), Read::AtLeast(5), 0).unwrap_err().code(),
            cache.count(&Range::all(), Read::Exact(0)).unwrap_err().code(),
            cache.diff(0, 1, &filter.build()).unwrap_err().code(),
        ];
        assert_eq!(codes, [Code::NotReady; 5]);
        return;
    }
    let revision = revision_of(oracle, entropy);
    let in_epoch = Position { epoch: epoch_of(oracle, entropy / 64), revision };
    for read in
        [Read::Exact(revision), Read::AtLeast(revision), Read::Any, Read::ExactIn(in_epoch), Read::AtLeastIn(in_epoch)]
    {
        one(cache, oracle, read, &key, filter, limit);
    }
}

fn revision_of(oracle: &Oracle, entropy: u32) -> u64 {
    let (oldest, current) = (oracle.oldest(), oracle.now.revision);
    match entropy % 8 {
        0 => oldest.saturating_sub(2),
        1 => current + 1,
        2 => oldest - 1,
        _ => oldest - 1 + u64::from(entropy / 8) % (current + 2 - oldest),
    }
}

fn epoch_of(oracle: &Oracle, entropy: u32) -> u64 {
    match entropy % 4 {
        0 => 0,
        1 => (oracle.birth ^ (1 << 40)) + 1,
        2 => oracle.now.epoch,
        _ => (oracle.now.epoch - u64::from(entropy / 4 % 3)).max(oracle.birth + 1),
    }
}

/// What a read finds, and the position that it answers at.
fn found(oracle: &Oracle, read: Read) -> (Found, Position) {
    let unchecked = |revision| Position { epoch: 0, revision };
    let (asked, exact) = match read {
        Read::Any => return (Found::At(oracle.events.len()), oracle.now),
        Read::AtLeast(revision) => (unchecked(revision), false),
        Read::Exact(revision) => (unchecked(revision), true),
        Read::AtLeastIn(asked) => (asked, false),
        Read::ExactIn(asked) => (asked, true),
        other => unreachable!("{other:?} is none that it draws"),
    };
    match (oracle.find(asked.revision, asked.epoch, false), exact) {
        (Found::At(count), true) => (Found::At(count), Position { epoch: oracle.epoch_at(count), ..asked }),
        (found, true) => (found, asked),
        (_, false) if oracle.is_former(asked.epoch) => (Found::Compacted, asked),
        (_, false) if asked.revision > oracle.now.revision => (Found::Future, asked),
        (_, false) => (Found::At(oracle.events.len()), oracle.now),
    }
}

fn assert_refused(oracle: &Oracle, error: &Error, found: Found, asked: u64) {
    let code = if found == Found::Future { Code::FutureRevision } else { Code::Compacted };
    assert_eq!(error.code(), code, "{error}");
    assert_eq!((error.asked(), error.current()), (asked, oracle.now.revision), "{error}");
    if code == Code::Compacted {
        assert_eq!(error.oldest(), oracle.oldest());
    }
}

fn one(cache: &Cache, oracle: &Oracle, read: Read, key: &[u8], filter: &Filter, limit: u32) {
    let limit = if limit.is_multiple_of(3) { 0 } else { limit as usize % 5 + 1 };
    let options = ReadOptions::new(read).filter(filter.build()).timeout(Duration::ZERO);
    let get = cache.get_with(key, &options);
    let many = cache.get_many_with(&KEYS, &options);
    let count = cache.count_with(&Range::all(), &options);
    let list = cache.list_with(&Range::all(), &options.limit(limit));
    let (found, at) = found(oracle, read);
    let Found::At(events) = found else {
        for error in
            [get.expect_err("get"), many.expect_err("many"), list.expect_err("list"), count.expect_err("count")]
        {
            assert_refused(oracle, &error, found, at.revision);
        }
        return;
    };
    let (get, many, list, count) = (get.unwrap(), many.unwrap(), list.unwrap(), count.unwrap());
    let state = oracle.state_at(events);
    assert_eq!((get.epoch, get.revision), (at.epoch, at.revision), "{read:?}");
    assert_is(get.kv.as_ref(), state.get(key).filter(|kv| filter.holds(key, kv)), key, "get");
    assert_eq!((many.position(), many.kvs.len()), (at, KEYS.len()), "{read:?}");
    for (kv, key) in many.kvs.iter().zip(KEYS) {
        assert_is(kv.as_ref(), state.get(key).filter(|kv| filter.holds(key, kv)), key, "get of many");
    }
    assert_page(&list, &state, filter, b"", limit, at);
    let matching = state.iter().filter(|(key, kv)| filter.holds(key, kv)).count() as u64;
    assert_eq!((count.epoch, count.revision, count.count), (at.epoch, at.revision, matching));
    if filter.is_only_keys() {
        let count =
            cache.count_with(&filter.keys.range(), &ReadOptions::new(read).timeout(Duration::ZERO)).unwrap().count;
        assert_eq!(count, matching);
        assert_eq!(
            cache
                .list_with(&filter.keys.range(), &ReadOptions::new(read).limit(limit).timeout(Duration::ZERO))
                .unwrap()
                .len(),
            list.len()
        );
    }
}

/// A page of the keys from `start` on. Where there is more, the key behind it.
fn assert_page(
    page: &Page,
    state: &State,
    filter: &Filter,
    start: &[u8],
    limit: usize,
    at: Position,
) -> Option<Vec<u8>> {
    let behind = state.iter().filter(|(key, _)| &key[..] >= start && filter.keys.holds(key));
    let mut expected = Vec::new();
    let mut rest = 0;
    for (key, kv) in behind {
        if limit != 0 && expected.len() == limit {
            rest += 1;
        } else if filter.holds(key, kv) {
            expected.push((key, kv));
        }
    }
    assert_eq!((page.epoch(), page.revision()), (at.epoch, at.revision));
    assert_eq!(page.len(), expected.len(), "{filter:?} from {start:?}");
    for (shown, (key, kv)) in page.items().iter().zip(&expected) {
        assert_is(Some(shown), Some(kv), key, "list");
    }
    assert_eq!((page.more(), page.continue_token().is_some()), (rest > 0, rest > 0));
    assert_eq!(page.remaining(), if filter.is_only_keys() { rest } else { 0 });
    (rest > 0).then(|| [&expected.last().expect("a full page").0[..], b"\0"].concat())
}

/// A list that is read page by page while the cache continues.
pub struct Pages {
    filter: Filter,
    limit: usize,
    read: Read,
    /// Where the first page was; `None`: the next one is the first, or continues with the newest state.
    at: Option<Position>,
    token: Option<String>,
    start: Vec<u8>,
}

impl Pages {
    pub fn new(oracle: &Oracle, entropy: u32, filter: Filter, limit: u32) -> Pages {
        let read = match entropy % 3 {
            0 => Read::Any,
            _ => Read::Exact(revision_of(oracle, entropy / 3)),
        };
        Pages { filter, limit: limit as usize % 3 + 1, read, at: None, token: None, start: Vec::new() }
    }

    fn options(&self) -> ReadOptions {
        let read = if self.token.is_some() { Read::Any } else { self.read };
        let options = ReadOptions::new(read).filter(self.filter.build()).limit(self.limit).timeout(Duration::ZERO);
        match &self.token {
            Some(token) => options.continue_from(token),
            None => options,
        }
    }

    /// The next page; true: there are more.
    pub fn next(&mut self, cache: &Cache, oracle: &Oracle) -> bool {
        self.refusals(cache);
        let page = cache.list_with(&Range::all(), &self.options());
        let read = match (self.at, &self.token) {
            (Some(at), _) => Read::ExactIn(at),
            (None, Some(_)) => Read::Any,
            (None, None) => self.read,
        };
        let (found, at) = found(oracle, read);
        let Found::At(count) = found else {
            let error = page.expect_err("the revision is not there");
            assert_refused(oracle, &error, found, at.revision);
            assert_eq!(error.continue_token().is_some(), self.token.is_some(), "{error}");
            // Continues at the same key in the newest state.
            (self.token, self.at) = (error.continue_token().map(String::from), None);
            return self.token.is_some();
        };
        let page = page.unwrap();
        let next = assert_page(&page, &oracle.state_at(count), &self.filter, &self.start, self.limit, at);
        self.token = page.continue_token().map(String::from);
        self.at = Some(at);
        self.start = next.unwrap_or_default();
        self.token.is_some()
    }

    /// Damaged tokens, and those of another range, filter, mode or cache, are refused.
    fn refusals(&self, cache: &Cache) {
        let Some(token) = &self.token else { return };
        let refused = |cache: &Cache, range: &Range, options: ReadOptions| {
            let error = cache.list_with(range, &options).expect_err("a token that does not fit");
            assert_eq!(error.code(), Code::InvalidArgument, "{error}");
        };
        let all = Range::all();
        let at = token.len() / 2;
        let other = if token.as_bytes()[at] == b'A' { "B" } else { "A" };
        refused(cache, &all, self.options().continue_from([&token[..at], other, &token[at + 1..]].concat()));
        refused(cache, &all, self.options().continue_from(&token[..at]));
        refused(cache, &all, self.options().continue_from(""));
        refused(cache, &all, self.options().filter(watchcore::Filter::any().labels("of=none").unwrap()));
        if matches!(self.filter.keys, Keys::All) {
            refused(cache, &Range::between("/", "/~"), self.options());
        }
        let mode = ReadOptions::new(Read::AtLeast(0)).filter(self.filter.build()).continue_from(token);
        refused(cache, &all, mode);
        if self.start.len().is_multiple_of(4) {
            let stranger = Cache::builder("/")
                .name("stranger")
                .labels(Labels::json("/l").unwrap())
                .field(Attribute::json("f", "/f").unwrap())
                .field(Attribute::key_segment("seg", 1))
                .build()
                .unwrap();
            refused(&stranger, &all, self.options());
        }
    }
}

/// The net changes between two revisions.
pub fn diff(cache: &Cache, oracle: &Oracle, entropy: [u32; 3], filter: &Filter) {
    let [from, to] = [entropy[0], entropy[1]].map(|entropy| revision_of(oracle, entropy));
    let (from, to) = if entropy[2].is_multiple_of(3) { (from, to) } else { (from.min(to), from.max(to)) };
    let asked = [(from, entropy[2] / 3), (to, entropy[2] / 5)]
        .map(|(revision, entropy)| Position { epoch: epoch_of(oracle, entropy), revision });
    let built = if filter.kinds.is_empty() { filter.build() } else { filter.build().types(&filter.kinds) };
    let answer = cache.diff(asked[0], asked[1], &built);
    let mut counts = [0; 2];
    for (count, asked) in counts.iter_mut().zip(asked) {
        match oracle.find(asked.revision, asked.epoch, true) {
            Found::At(at) => *count = at,
            found => return assert_refused(oracle, &answer.expect_err("not in the window"), found, asked.revision),
        }
    }
    if from > to {
        return assert_eq!(answer.expect_err("backwards").code(), Code::InvalidArgument);
    }
    let batch = answer.unwrap();
    assert_eq!(batch.position(), Position { epoch: oracle.epoch_at(counts[1]), revision: to });
    let [old, new] = counts.map(|count| oracle.state_at(count));
    let mut newest: BTreeMap<&[u8], &Ev> = BTreeMap::new();
    oracle.events[counts[0]..counts[1]].iter().filter(|event| !event.is_mark()).for_each(|event| {
        newest.insert(&event.key, event);
    });
    let mut shown = batch.events().iter();
    for (key, event) in newest {
        let matching = |state: &State| state.get(key).filter(|kv| filter.holds(key, kv)).cloned();
        let kind = match (matching(&old), matching(&new)) {
            (None, None) => continue,
            (None, Some(_)) => Kind::Added,
            (Some(_), Some(_)) => Kind::Modified,
            (Some(_), None) => Kind::Deleted,
        };
        if !filter.shows(kind) {
            continue;
        }
        let shown = shown.next().unwrap_or_else(|| panic!("{kind:?} of {key:?} is missing in {batch:?}"));
        assert_eq!((shown.kind(), shown.key(), shown.revision()), (kind, key, event.revision));
        let value = new.get(key).filter(|_| kind != Kind::Deleted).map(|kv| &kv.value[..]);
        assert_eq!(shown.value(), value, "value of {key:?}");
        assert_eq!(shown.prev_value(), old.get(key).map(|kv| &kv.value[..]), "value of {key:?} before");
        let kv = if kind == Kind::Deleted { old.get(key) } else { new.get(key) }.expect("it matches");
        let numbers = (shown.create_revision(), shown.mod_revision(), shown.version(), shown.lease());
        assert_eq!(numbers, (kv.create, kv.modified, kv.version, kv.lease), "numbers of {kind:?} {key:?}");
    }
    assert!(shown.next().is_none(), "more than the net changes: {batch:?}");
}

/// Every revision of the window and one beyond each border.
pub fn all(cache: &Cache, oracle: &Oracle) {
    if !oracle.loaded {
        return;
    }
    let (oldest, current) = (oracle.oldest(), oracle.now.revision);
    let filter = Filter::of_keys(Keys::Prefix(b"/a".to_vec()));
    // A few of a wide window: it may have many revisions that nothing happened at.
    let step = ((current + 1 - oldest.saturating_sub(2)) / 8).max(1);
    for revision in (oldest.saturating_sub(2)..=current + 1).step_by(step as usize) {
        let key = KEYS[revision as usize % KEYS.len()];
        one(cache, oracle, Read::Exact(revision), key, &filter, revision as u32);
    }
    one(cache, oracle, Read::Any, b"/a", &Filter::of_keys(Keys::All), 0);
}

/// One refusal; the caller looks whether anything changed.
pub fn refuse(writer: &mut Writer, oracle: &Oracle, what: u32, entropy: u32) {
    let (now, state) = (oracle.now.revision, oracle.state());
    let (next, key) = (now + 1, key_of(entropy));
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
        1 => (writer.apply(u64::from(entropy) % (now + 1), [good]), Code::OutOfOrder),
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
            let bad =
                [record(b"/b", 1, next + 1, 1), record(b"x", 1, 1, 1), record(b"/b", 0, 1, 2)][entropy as usize % 3];
            (writer.resync(next, [bad], all).map(drop), Code::InvalidArgument)
        }
        _ => (writer.resync(next, [], ResyncReason::Lagged).map(drop), Code::InvalidArgument),
    };
    assert_eq!(refused.expect_err("to be refused").code(), code, "refusal {}", what % 19);
}
