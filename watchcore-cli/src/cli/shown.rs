//! What is shown of an event, whatever the format.

use watchcore::{Event, KeyValue, Kind};

/// The numbers of a key-value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Numbers {
    pub(crate) create_revision: u64,
    pub(crate) mod_revision: u64,
    pub(crate) version: u64,
    pub(crate) lease: i64,
}

impl Numbers {
    pub(crate) fn of(kv: &KeyValue) -> Numbers {
        Numbers {
            create_revision: kv.create_revision(),
            mod_revision: kv.mod_revision(),
            version: kv.version(),
            lease: kv.lease(),
        }
    }
}

/// An ADDED, MODIFIED or DELETED.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shown<'a> {
    pub(crate) kind: &'static str,
    /// Absent in a DELETED of which only the states before and after are known.
    pub(crate) revision: Option<u64>,
    pub(crate) synthetic: bool,
    pub(crate) key: &'a [u8],
    /// Never in a DELETED.
    pub(crate) value: Option<&'a [u8]>,
    pub(crate) prev_value: Option<&'a [u8]>,
    /// Those of the value shown; absent in a DELETED whose last value is not known.
    pub(crate) numbers: Option<Numbers>,
}

impl<'a> Shown<'a> {
    /// None for what is no change of a key: bookmarks and resync marks.
    pub(crate) fn of(event: &'a Event) -> Option<Shown<'a>> {
        let (kind, deleted) = match event.kind() {
            Kind::Added => ("ADDED", false),
            Kind::Modified => ("MODIFIED", false),
            Kind::Deleted => ("DELETED", true),
            Kind::Put => ("PUT", false),
            Kind::Delete => ("DELETE", true),
            _ => return None,
        };
        let numbers = Numbers {
            create_revision: event.create_revision(),
            mod_revision: event.mod_revision(),
            version: event.version(),
            lease: event.lease(),
        };
        Some(Shown {
            kind,
            revision: Some(event.revision()),
            synthetic: event.is_synthetic(),
            key: event.key(),
            value: if deleted { None } else { event.value() },
            prev_value: event.prev_value(),
            numbers: (!deleted || event.prev().is_some()).then_some(numbers),
        })
    }
}
