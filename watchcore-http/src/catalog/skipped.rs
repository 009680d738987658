//! Values below a resource's prefix that are not objects of it, and are therefore skipped.

use crate::object::Resource;
use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use watchcore::json::JsonScan;

/// How many skipped keys are named in the log; further ones are only counted.
const MAX_NAMED: usize = 1024;

/// Counts the values that lists and watches of a resource skip, and logs each key once.
#[derive(Default)]
pub(crate) struct SkippedValues {
    /// Number of skips. Relaxed: an independent statistic.
    count: AtomicU64,
    /// Hashes of the keys that were logged: 8 bytes each, at most [`MAX_NAMED`]. If two keys have equal hashes, only
    /// one is logged, which is improbable and harmless.
    named: Mutex<HashSet<u64>>,
    hasher: RandomState,
}

impl SkippedValues {
    /// Counts a skipped value, and logs its key the first time.
    pub(crate) fn report(&self, resource: &Resource, key: &[u8], value: Option<&[u8]>) {
        self.count.fetch_add(1, Relaxed);
        let Some(last) = self.is_new(key) else { return };
        let why = match (resource.identity(key), value) {
            (None, _) => "its key has another shape than those of the resource",
            (_, Some(value)) if value.starts_with(b"k8s\0") => "its value is in the protobuf form of storage",
            (_, Some(value)) if is_too_deep(value) => "its value is nested too deeply",
            _ => "its value is no JSON object",
        };
        tracing::warn!(target: "watchcore_http", %resource, key = %key.escape_ascii(), why, "a value is not served");
        if last {
            tracing::warn!(target: "watchcore_http", %resource, "{MAX_NAMED} keys of values that are not served were named: the rest is only counted");
        }
    }

    /// Returns how often a value was skipped.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Relaxed)
    }

    /// Returns `None` if the key is not to be logged; otherwise whether it is the last one that is.
    fn is_new(&self, key: &[u8]) -> Option<bool> {
        let hash = self.hasher.hash_one(key);
        let mut named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = named.len() < MAX_NAMED && named.insert(hash);
        is_new.then(|| named.len() == MAX_NAMED)
    }
}

fn is_too_deep(value: &[u8]) -> bool {
    let mut scan = JsonScan::new(value);
    scan.value().is_none() && scan.is_too_deep()
}

#[cfg(test)]
mod tests {
    use super::*;
    use watchcore::json::MAX_JSON_DEPTH;

    #[test]
    fn too_deep_is_no_other_fault() {
        let nested = |depth: usize| format!("{{\"a\":{}{}}}", "[".repeat(depth - 1), "]".repeat(depth - 1));
        assert!(is_too_deep(nested(MAX_JSON_DEPTH + 1).as_bytes()));
        for other in [nested(MAX_JSON_DEPTH).as_str(), "[]", "", "{", "k8s"] {
            assert!(!is_too_deep(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn keys_are_named_once_and_bounded() {
        let skipped = SkippedValues::default();
        assert_eq!(skipped.is_new(b"/a"), Some(false));
        assert_eq!(skipped.is_new(b"/a"), None, "once a key");
        let named = (0..MAX_NAMED * 2).filter_map(|key| skipped.is_new(&key.to_le_bytes())).collect::<Vec<_>>();
        assert_eq!(named.len(), MAX_NAMED - 1);
        assert_eq!(named.iter().filter(|last| **last).count(), 1);
        let widgets = Resource::new("", "v1", "widgets", "Widget").prefix("/w/");
        skipped.report(&widgets, b"/w/a", None);
        skipped.report(&widgets, b"/w/a", None);
        assert_eq!(skipped.count(), 2, "counted each time");
    }
}
