//! The rules that every server message must keep: those of etcd's API, and those of the history that the cache holds.
//!
//! Every message is checked here before any part of it reaches the cache: a header ([`revision_of_header`]), a
//! message of the watch ([`WatchRules`]), its events ([`check_events`], [`check`]), a page or a stream message of a
//! listing ([`ListingRules`]). A message that breaks a rule is a [`Violation`] and has no other effect: the session
//! fails with [`Class::Broken`](super::failure::Class), and the next session lists.

use super::range::KeyRange;
use super::server_text;
use etcd_client::KeyValue as EtcdKeyValue;
use etcd_client::proto::{PbEvent, PbKeyValue, PbWatchResponse};
use std::collections::HashMap;
use std::fmt;
use watchcore::{KeyValue, MAX_REVISION, Record};

/// The revisions and the version of a live key-value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Live {
    pub(super) create: u64,
    pub(super) modified: u64,
    pub(super) version: u64,
}

impl Live {
    pub(super) fn of(kv: &PbKeyValue) -> Live {
        Live {
            create: kv.create_revision.max(0) as u64,
            modified: kv.mod_revision.max(0) as u64,
            version: kv.version.max(0) as u64,
        }
    }
}

/// A broken rule: its name, and the values that broke it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Violation {
    pub(super) what: &'static str,
    key: Option<Vec<u8>>,
    revision: Option<i64>,
    held: Option<Live>,
    came: Option<Live>,
}

impl Violation {
    pub(super) fn new(what: &'static str) -> Violation {
        Violation { what, ..Violation::default() }
    }

    pub(super) fn at(what: &'static str, revision: i64) -> Violation {
        Violation { revision: Some(revision), ..Violation::new(what) }
    }

    /// A rule that this key-value broke.
    fn by(what: &'static str, kv: &PbKeyValue) -> Violation {
        Violation { key: Some(kv.key.clone()), came: Some(Live::of(kv)), ..Violation::at(what, kv.mod_revision) }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.what)?;
        if let Some(revision) = self.revision {
            write!(f, "; revision {revision}")?;
        }
        if let Some(key) = &self.key {
            write!(f, ", key {}", server_text::key(key))?;
        }
        for (name, live) in [("held", &self.held), ("came", &self.came)] {
            if let Some(live) = live {
                let Live { create, modified, version } = live;
                write!(f, "; {name}: created at {create}, modified at {modified}, version {version}")?;
            }
        }
        Ok(())
    }
}

/// Checks the revision of a header: at most the largest one that a cache can have, and 0 if the server gave none.
pub(super) fn revision_of_header(revision: i64) -> Result<u64, Violation> {
    let taken = u64::try_from(revision).ok().filter(|revision| *revision <= MAX_REVISION);
    taken.ok_or(Violation::at("a revision that no etcd reaches", revision))
}

/// Checks that the numbers can be those of a value that the store holds at `revision`.
fn check_numbers(kv: &PbKeyValue, revision: i64) -> Result<(), Violation> {
    let sound = (1..=kv.mod_revision).contains(&kv.create_revision) && kv.mod_revision <= revision && kv.version >= 1;
    if sound { Ok(()) } else { Err(Violation::by("numbers that no value has at its revision", kv)) }
}

fn check_key(kv: &PbKeyValue, range: &KeyRange) -> Result<(), Violation> {
    match kv.key.as_slice() {
        [] => Err(Violation::by("an empty key", kv)),
        key if !range.contains(key) => Err(Violation::by("a key outside the range that was asked for", kv)),
        _ => Ok(()),
    }
}

/// The rules for the messages of one watch stream that need no look at the cache.
#[derive(Default)]
pub(super) struct WatchRules {
    /// The watch's id, once the watch is confirmed.
    id: Option<i64>,
    /// The revision of the last progress notification.
    progress: u64,
}

/// The watch id of a progress notification for all watches of a stream.
const ALL_WATCHES: i64 = -1;

impl WatchRules {
    /// Checks a message of the stream; `is_inside`: fragments of a message are still to come.
    pub(super) fn check(&mut self, message: &PbWatchResponse, is_inside: bool) -> Result<(), Violation> {
        let is_progress = message.events.is_empty() && !message.fragment;
        match self.id {
            // A refused watch has no id.
            None if message.canceled => return Ok(()),
            None if message.created => self.id = Some(message.watch_id),
            None => return Err(Violation::new("a message on a watch that was not confirmed")),
            Some(id) if message.watch_id == id || message.watch_id == ALL_WATCHES && is_progress => {}
            Some(_) => return Err(Violation::new("a message of another watch")),
        }
        if is_inside && is_progress && !message.canceled {
            return Err(Violation::new("a progress notification between fragments"));
        }
        Ok(())
    }

    /// Checks a progress notification. If it lies below the cache's point, the caller has already made sure that the
    /// history is the same.
    pub(super) fn progress(&mut self, revision: u64) -> Result<(), Violation> {
        if revision < self.progress {
            return Err(Violation::at("progress that goes back on one watch", revision as i64));
        }
        self.progress = revision;
        Ok(())
    }
}

/// Checks whole revisions without the cache, and removes repetitions of an event within its revision; returns how
/// many were removed. If a message breaks a rule, no part of it is applied.
///
/// `named` is the revision of the message's header, 0 if it has none: etcd's revision at that time, so no event may
/// lie above it.
pub(super) fn check_events(events: &mut Vec<PbEvent>, range: &KeyRange, named: u64) -> Result<u64, Violation> {
    let mut last = 0;
    let mut keys: HashMap<&[u8], &PbEvent> = HashMap::new();
    let mut repeated = Vec::new();
    for (i, event) in events.iter().enumerate() {
        let Some(kv) = &event.kv else { return Err(Violation::new("an event without a key")) };
        check_key(kv, range)?;
        if !(1..=MAX_REVISION as i64).contains(&kv.mod_revision) {
            return Err(Violation::by("an event of a revision that no etcd reaches", kv));
        }
        if named > 0 && kv.mod_revision as u64 > named {
            return Err(Violation::by("an event after the revision of its message", kv));
        }
        match is_delete(event) {
            Some(false) => check_numbers(kv, kv.mod_revision)?,
            Some(true) => {}
            None => return Err(Violation::by("an event of an unknown kind", kv)),
        }
        if kv.mod_revision < last {
            return Err(Violation::by("revisions that do not rise in a message", kv));
        }
        let is_alone =
            kv.mod_revision != last && events.get(i + 1).is_none_or(|next| revision(next) != kv.mod_revision);
        if kv.mod_revision != last {
            keys.clear();
        }
        last = kv.mod_revision;
        if is_alone {
            continue;
        }
        match keys.insert(&kv.key, event) {
            Some(before) if before == event => repeated.push(i),
            Some(_) => return Err(Violation::by("a key that changes twice in one revision", kv)),
            None => {}
        }
    }
    drop(keys);
    let count = repeated.len() as u64;
    let (mut at, mut repeated) = (0, repeated.into_iter().peekable());
    events.retain(|_| {
        let is_repeated = repeated.next_if_eq(&at).is_some();
        at += 1;
        !is_repeated
    });
    Ok(count)
}

fn revision(event: &PbEvent) -> i64 {
    event.kv.as_ref().map_or(0, |kv| kv.mod_revision)
}

/// Whether the event is a deletion; `None` for a kind that this client does not know.
pub(super) fn is_delete(event: &PbEvent) -> Option<bool> {
    match event.r#type {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

/// Checks one event that [`check_events`] accepted against the live value of its key.
pub(super) fn check(event: &PbEvent, held: Option<Live>) -> Result<(), Violation> {
    let Some(kv) = event.kv.as_ref() else { return Err(Violation::new("an event without a key")) };
    let came = Live::of(kv);
    let fail = |what| Err(Violation { held, ..Violation::by(what, kv) });
    match (is_delete(event), held) {
        (None, _) => fail("an event of an unknown kind"),
        (Some(true), None) => fail("a deletion of a key that is not there"),
        (Some(true), Some(held)) if came.modified <= held.modified => fail("a deletion older than the value"),
        (Some(true), Some(_)) => Ok(()),
        (Some(false), None) if came.version != 1 => fail("a new key whose version is not 1"),
        (Some(false), None) if came.create != came.modified => fail("a new key that was created before"),
        (Some(false), None) => Ok(()),
        (Some(false), Some(held)) if came.create != held.create => fail("a changed key with another creation"),
        (Some(false), Some(held)) if came.version != held.version + 1 => {
            fail("a changed key whose version is not the next")
        }
        (Some(false), Some(held)) if came.modified <= held.modified => fail("a change older than the value"),
        (Some(false), Some(_)) => Ok(()),
    }
}

/// The rules for the pages or stream messages of one listing: keys rise across all of them and lie in the range, and
/// no more come than were counted. So a listing ends.
pub(super) struct ListingRules<'a> {
    range: &'a KeyRange,
    revision: u64,
    last: Option<Vec<u8>>,
    /// How many keys are still to come, if that is known.
    left: Option<u64>,
}

impl<'a> ListingRules<'a> {
    pub(super) fn new(range: &'a KeyRange) -> ListingRules<'a> {
        ListingRules { range, revision: 0, last: None, left: None }
    }

    /// Begins a listing at this revision, of `count` keys.
    pub(super) fn begin(&mut self, revision: u64, count: Option<u64>) {
        (self.revision, self.last, self.left) = (revision, None, count);
    }

    /// Checks a message of a stream.
    pub(super) fn message(&mut self, keys: &[EtcdKeyValue]) -> Result<(), Violation> {
        for EtcdKeyValue(kv) in keys {
            check_key(kv, self.range)?;
            check_numbers(kv, self.revision as i64)?;
            if self.last.as_ref().is_some_and(|last| *last >= kv.key) {
                return Err(Violation::by("keys of a listing that do not rise", kv));
            }
            match &mut self.last {
                Some(last) => last.clone_from(&kv.key),
                None => self.last = Some(kv.key.clone()),
            }
        }
        let left = self.left.map(|left| left.checked_sub(keys.len() as u64));
        match left {
            Some(None) => Err(Violation::new("more keys of a listing than were counted")),
            left => {
                self.left = left.flatten();
                Ok(())
            }
        }
    }

    /// Checks a page: `count` is the number of keys from its first one on, `more` says whether another page follows.
    /// All pages are of one revision, so their counts must agree exactly: otherwise a server or proxy that loses or
    /// repeats a page, or part of one, would delete keys that still exist.
    pub(super) fn page(&mut self, keys: &[EtcdKeyValue], count: i64, more: bool) -> Result<(), Violation> {
        let count = u64::try_from(count).ok();
        if count.is_none() || self.left.is_some_and(|left| Some(left) != count) {
            return Err(Violation::new("a page of a listing that does not count what the one before left"));
        }
        self.left = count;
        self.message(keys)?;
        if more != (self.left > Some(0)) || more && keys.is_empty() {
            return Err(Violation::new("a page of a listing that does not fit its own count"));
        }
        Ok(())
    }
}

/// Whether a listed key can have followed from the held one, where the cache holds the complete state at `point`: a
/// key that was not touched since must be equal, and a key that was touched must be a later version of the same key.
pub(super) fn continues(record: &Record<'_>, held: Option<&KeyValue>, point: u64) -> bool {
    if record.create_revision > point {
        return true;
    }
    let Some(held) = held.filter(|held| held.create_revision() == record.create_revision) else { return false };
    if record.mod_revision > point {
        return record.version > held.version();
    }
    (record.mod_revision, record.version, record.lease) == (held.mod_revision(), held.version(), held.lease())
        && Some(record.value) == held.value()
}

#[cfg(test)]
mod tests {
    use super::*;
    use watchcore::Cache;
    use watchcore::Change;

    fn range() -> KeyRange {
        KeyRange::of_prefix(b"/")
    }

    fn event(kind: i32, create: i64, modified: i64, version: i64) -> PbEvent {
        let kv = PbKeyValue {
            key: b"/a".to_vec(),
            create_revision: create,
            mod_revision: modified,
            version,
            ..Default::default()
        };
        PbEvent { r#type: kind, kv: Some(kv), prev_kv: None }
    }

    const HELD: Option<Live> = Some(Live { create: 3, modified: 7, version: 4 });

    #[test]
    fn what_fits() {
        assert!(check(&event(0, 9, 9, 1), None).is_ok());
        assert!(check(&event(0, 3, 9, 5), HELD).is_ok());
        assert!(check(&event(1, 0, 9, 0), HELD).is_ok());
    }

    #[test]
    fn a_new_key_is_new() {
        assert!(check(&event(0, 9, 9, 2), None).is_err(), "version");
        assert!(check(&event(0, 8, 9, 1), None).is_err(), "create");
    }

    #[test]
    fn a_change_is_the_next_version() {
        assert!(check(&event(0, 3, 9, 6), HELD).is_err(), "one was lost");
        assert!(check(&event(0, 3, 9, 4), HELD).is_err(), "repeated");
        assert!(check(&event(0, 9, 9, 1), HELD).is_err(), "a deletion was lost");
        assert!(check(&event(0, 4, 9, 5), HELD).is_err(), "another creation");
        assert!(check(&event(0, 3, 7, 5), HELD).is_err(), "not younger");
    }

    #[test]
    fn a_deletion_needs_a_key() {
        assert!(check(&event(1, 0, 9, 0), None).is_err());
        assert!(check(&event(1, 0, 7, 0), HELD).is_err(), "not younger");
    }

    #[test]
    fn what_nobody_knows() {
        assert!(check(&event(2, 9, 9, 1), None).is_err());
        assert!(check(&PbEvent::default(), None).is_err());
    }

    #[test]
    fn a_listing_goes_on_where_the_cache_stands_or_is_of_another_history() {
        let record = |create_revision, mod_revision, version, value: &'static [u8], lease| Record {
            key: b"/a",
            value,
            create_revision,
            mod_revision,
            version,
            lease,
        };
        let cache = Cache::builder("/").build().unwrap();
        let mut writer = cache.writer().unwrap();
        writer.apply(7, [Change::put_exact(record(3, 7, 4, b"x", 1))]).unwrap();
        let held = writer.get(b"/a");
        let continues = |record| continues(&record, held.as_deref(), 9);
        assert!(continues(record(3, 7, 4, b"x", 1)), "untouched");
        assert!(continues(record(3, 10, 5, b"y", 0)), "changed since");
        assert!(continues(record(10, 10, 1, b"y", 0)), "made again since");
        assert!(!continues(record(3, 6, 3, b"w", 1)), "went back");
        assert!(!continues(record(3, 9, 5, b"x", 1)), "changed before, and never seen");
        assert!(!continues(record(3, 7, 4, b"y", 1)), "another value");
        assert!(!continues(record(3, 7, 4, b"x", 2)), "another lease");
        assert!(!continues(record(4, 10, 5, b"y", 0)), "another creation before");
        assert!(!continues(record(3, 10, 4, b"y", 0)), "changed since, with the same version");
        assert!(!super::continues(&record(9, 10, 2, b"y", 0), None, 9), "created before, and never seen");
        assert!(super::continues(&record(10, 11, 2, b"y", 0), None, 9), "new");
    }

    #[test]
    fn a_violation_tells_the_numbers() {
        let text = check(&event(0, 3, 9, 6), HELD).unwrap_err().to_string();
        assert!(text.contains("revision 9") && text.contains("\"/a\"") && text.contains("version 6"), "{text}");
        assert!(text.contains("version 4"), "{text}");
    }

    /// An event that creates `key` at `revision`.
    fn put(key: &str, revision: i64) -> PbEvent {
        let mut put = event(0, revision, revision, 1);
        put.kv.as_mut().unwrap().key = key.into();
        put
    }

    #[test]
    fn headers_have_revisions_of_etcd() {
        assert_eq!(revision_of_header(0), Ok(0));
        assert_eq!(revision_of_header(MAX_REVISION as i64), Ok(MAX_REVISION));
        assert!(revision_of_header(MAX_REVISION as i64 + 1).is_err() && revision_of_header(-1).is_err());
    }

    #[test]
    fn events_stand_by_themselves() {
        let check =
            |mut events: Vec<PbEvent>| check_events(&mut events, &range(), 20).map_err(|violation| violation.what);
        assert_eq!(check(vec![put("/a", 3), put("/b", 3), put("/a", 4), event(1, 0, 5, 0)]), Ok(0));
        for broken in [
            vec![PbEvent::default()],
            vec![put("", 3)],
            vec![put("/a", 3), put("elsewhere", 3)],
            vec![put("/a", 0)],
            vec![put("/a", -1)],
            vec![put("/a", MAX_REVISION as i64 + 1)],
            vec![put("/a", 4), put("/b", 3)],
            vec![put("/a", 21)],
            vec![event(0, 9, 8, 1)],
            vec![event(0, 0, 8, 1)],
            vec![event(0, 8, 8, -1)],
            vec![event(2, 9, 9, 1)],
            vec![put("/a", 3), put("/b", 3), event(1, 0, 3, 0)],
        ] {
            assert!(check(broken.clone()).is_err(), "{broken:?}");
        }
    }

    #[test]
    fn event_twice_in_a_revision_counts_once() {
        let mut events = vec![put("/a", 3), put("/b", 3), put("/a", 3), put("/a", 4), put("/a", 4)];
        assert_eq!(check_events(&mut events, &range(), 0), Ok(2));
        assert_eq!(events, [put("/a", 3), put("/b", 3), put("/a", 4)]);
    }

    #[test]
    fn watch_has_its_own_messages() {
        let message = |watch_id| PbWatchResponse { watch_id, ..Default::default() };
        let with_event = |watch_id| PbWatchResponse { events: vec![put("/a", 3)], ..message(watch_id) };
        let mut rules = WatchRules::default();
        assert!(rules.check(&with_event(5), false).is_err(), "not confirmed");
        assert!(rules.check(&PbWatchResponse { created: true, ..message(5) }, false).is_ok());
        assert!(rules.check(&with_event(5), true).is_ok() && rules.check(&message(-1), false).is_ok());
        assert!(rules.check(&with_event(4), false).is_err() && rules.check(&with_event(-1), false).is_err());
        assert!(rules.check(&message(4), false).is_err());
        assert!(rules.check(&message(5), true).is_err() && rules.check(&message(-1), true).is_err(), "half a revision");
        assert!(rules.progress(7).is_ok() && rules.progress(7).is_ok() && rules.progress(6).is_err());
    }

    fn page(keys: &[&str]) -> Vec<EtcdKeyValue> {
        keys.iter().map(|key| EtcdKeyValue(put(key, 3).kv.unwrap())).collect()
    }

    #[test]
    fn pages_fit_each_other() {
        let range = range();
        let check = |before: &[&str], left, keys: &[&str], count, more| {
            let mut rules = ListingRules::new(&range);
            rules.begin(9, None);
            rules.page(&page(before), before.len() as i64 + left, left > 0).unwrap();
            rules.page(&page(keys), count, more).is_ok()
        };
        assert!(check(&["/a"], 5, &["/b", "/c"], 5, true));
        assert!(check(&["/a"], 2, &["/b", "/c"], 2, false));
        for (keys, count, more) in [
            (&["/b", "/c"][..], 2, true),
            (&["/b"], 2, false),
            (&["/b", "/c", "/d"], 2, false),
            (&[], 2, true),
            (&["/a", "/c"], 2, false),
            (&["/c", "/b"], 2, false),
            (&["/c", "/c"], 2, false),
            (&["/b", "/c"], 3, true),
            (&["/b", "/c"], -1, false),
        ] {
            assert!(!check(&["/a"], 2, keys, count, more), "{keys:?} {count} {more}");
        }
    }

    #[test]
    fn messages_of_a_stream_rise_to_their_count() {
        let range = range();
        let mut rules = ListingRules::new(&range);
        rules.begin(9, Some(3));
        assert!(rules.message(&page(&["/a", "/b"])).is_ok() && rules.message(&[]).is_ok());
        assert!(rules.message(&page(&["/b"])).is_err(), "it came before");
        assert!(rules.message(&page(&["/c", "/d"])).is_err(), "more than were counted");
        for broken in ["", "elsewhere"] {
            rules.begin(9, None);
            assert!(rules.message(&page(&[broken])).is_err(), "{broken:?}");
        }
        let with = |change: fn(&mut PbKeyValue)| {
            let mut kv = put("/a", 3).kv.unwrap();
            change(&mut kv);
            vec![EtcdKeyValue(kv)]
        };
        rules.begin(9, None);
        assert!(rules.message(&with(|kv| kv.mod_revision = 10)).is_err(), "after the listing");
        assert!(rules.message(&with(|kv| kv.mod_revision = 1 << 52)).is_err());
        assert!(rules.message(&with(|kv| kv.version = -1)).is_err());
        assert!(rules.message(&with(|kv| kv.create_revision = 0)).is_err());
    }
}
