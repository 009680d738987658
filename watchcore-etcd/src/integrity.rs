//! Whether what comes fits what the cache holds. It costs one look-up and finds lost, repeated and
//! foreign events, and listings of another history.

use super::server_text;
use etcd_client::proto::{PbEvent, PbKeyValue};
use std::fmt;
use watchcore::{KeyValue, Record};

/// The numbers of a live key-value.
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

/// An event that does not fit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Violation {
    pub(super) key: Vec<u8>,
    pub(super) revision: u64,
    what: &'static str,
    held: Option<Live>,
    came: Option<Live>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, revision, what) = (server_text::key(&self.key), self.revision, self.what);
        write!(f, "revision {revision}, key {key}: {what}")?;
        for (name, live) in [("held", &self.held), ("came", &self.came)] {
            if let Some(live) = live {
                let Live { create, modified, version } = live;
                write!(f, "; {name}: created at {create}, modified at {modified}, version {version}")?;
            }
        }
        Ok(())
    }
}

/// Whether the event is a deletion; `None` for a kind that this client does not know.
pub(super) fn is_delete(event: &PbEvent) -> Option<bool> {
    match event.r#type {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

/// Checks one event against the live value of its key.
pub(super) fn check(event: &PbEvent, held: Option<Live>) -> Result<(), Violation> {
    let Some(kv) = event.kv.as_ref() else {
        return Err(Violation { key: Vec::new(), revision: 0, what: "an event without a key", held, came: None });
    };
    let came = Live::of(kv);
    let fail = |what| Err(Violation { key: kv.key.clone(), revision: came.modified, what, held, came: Some(came) });
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

/// Whether a key that was listed can be what became of the one held, where the cache holds all that
/// was so at `point`: what was not touched since is the same, and what was is the same key later.
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
}
