//! Keys with all their versions, and the events in order.

use etcd_client::proto::{PbEvent, PbKeyValue};
use std::collections::BTreeMap;

pub(super) struct Store {
    revision: i64,
    compacted: i64,
    /// The versions of each key, oldest first; version 0 is a deletion.
    keys: BTreeMap<Vec<u8>, Vec<PbKeyValue>>,
    events: Vec<PbEvent>,
}

impl Default for Store {
    /// An empty etcd is at revision 1.
    fn default() -> Store {
        Store { revision: 1, compacted: 0, keys: BTreeMap::new(), events: Vec::new() }
    }
}

/// Whether a key lies in etcd's range; an empty end means one key, one zero byte the last key.
pub(super) fn is_within(key: &[u8], start: &[u8], end: &[u8]) -> bool {
    match end {
        [] => key == start,
        [0] => key >= start,
        _ => key >= start && key < end,
    }
}

impl Store {
    pub(super) fn revision(&self) -> i64 {
        self.revision
    }

    pub(super) fn compacted(&self) -> i64 {
        self.compacted
    }

    /// A history that begins with this state: etcd is compacted at that revision.
    pub(super) fn beginning(revision: i64, state: Vec<PbKeyValue>) -> Store {
        let keys = state.into_iter().map(|kv| (kv.key.clone(), vec![kv])).collect();
        Store { revision, compacted: revision, keys, events: Vec::new() }
    }

    /// The revision rises, by keys that no test looks at.
    pub(super) fn progress(&mut self, revision: i64) {
        assert!(revision >= self.revision, "{revision} lies below {}", self.revision);
        self.revision = revision;
    }

    /// Puts and deletions of one revision; it rises where something changes.
    pub(super) fn txn(&mut self, changes: &[(&[u8], Option<&[u8]>)]) -> i64 {
        self.txn_at(self.revision + 1, changes)
    }

    /// A version that brings its numbers, as one of its own revision.
    pub(super) fn put_exact(&mut self, kv: PbKeyValue) {
        self.revision = kv.mod_revision;
        self.keys.entry(kv.key.clone()).or_default().push(kv.clone());
        self.events.push(PbEvent { r#type: 0, kv: Some(kv), prev_kv: None });
    }

    /// Puts and deletions of a revision that the caller chooses.
    pub(super) fn txn_at(&mut self, revision: i64, changes: &[(&[u8], Option<&[u8]>)]) -> i64 {
        for (key, value) in changes {
            let versions = self.keys.entry(key.to_vec()).or_default();
            let live = versions.last().filter(|kv| kv.version > 0);
            if live.is_none() && value.is_none() {
                continue;
            }
            let kv = PbKeyValue {
                key: key.to_vec(),
                value: value.unwrap_or_default().to_vec(),
                create_revision: if value.is_some() { live.map_or(revision, |kv| kv.create_revision) } else { 0 },
                mod_revision: revision,
                version: if value.is_some() { live.map_or(0, |kv| kv.version) + 1 } else { 0 },
                lease: 0,
            };
            versions.push(kv.clone());
            self.events.push(PbEvent { r#type: i32::from(value.is_none()), kv: Some(kv), prev_kv: None });
            self.revision = revision;
        }
        self.revision
    }

    /// Changes the newest version of a key in place; whether it is there.
    pub(super) fn corrupt(&mut self, key: &[u8], value: &[u8]) -> bool {
        let newest = self.keys.get_mut(key).and_then(|versions| versions.last_mut()).filter(|kv| kv.version > 0);
        newest.map(|kv| kv.value = value.to_vec()).is_some()
    }

    pub(super) fn compact(&mut self, revision: i64) {
        self.compacted = self.compacted.max(revision.min(self.revision));
    }

    /// The key-values of a range at a revision.
    pub(super) fn range(&self, start: &[u8], end: &[u8], revision: i64) -> Vec<PbKeyValue> {
        let of_range = self.keys.iter().filter(|(key, _)| is_within(key, start, end));
        let at = |versions: &Vec<PbKeyValue>| {
            versions.iter().rev().find(|kv| kv.mod_revision <= revision).filter(|kv| kv.version > 0).cloned()
        };
        of_range.filter_map(|(_, versions)| at(versions)).collect()
    }

    /// The events of a range from a revision on.
    pub(super) fn events(&self, start: &[u8], end: &[u8], from: i64) -> Vec<PbEvent> {
        let of_range = |event: &&PbEvent| {
            event.kv.as_ref().is_some_and(|kv| kv.mod_revision >= from && is_within(&kv.key, start, end))
        };
        self.events.iter().filter(of_range).cloned().collect()
    }
}
