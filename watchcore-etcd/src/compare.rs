//! Compares the cache with etcd's state at the same revision, without input or output.
//!
//! A cache at position P has the state of etcd's range at revision P, key by key with value and numbers. So a part of
//! the range that is read at P is compared with a snapshot at P, and any difference reveals another history, a
//! corrupt member or a bug here. Both sides are in key order.

use super::integrity::{self, Live};
use super::list::record;
use super::server_text;
use etcd_client::KeyValue as Stored;
use std::cmp::Ordering;
use std::fmt;
use std::ops::Deref;
use watchcore::KeyValue;

/// How the two sides must relate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rule {
    /// Both sides are of one revision and must be equal.
    Same,
    /// etcd's side is of a later revision, because the cache's revision (given here) is compacted: keys that were not
    /// touched after it must be equal, and keys that are gone are not checked.
    Continues(u64),
}

/// A key that differs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Difference {
    pub(super) key: Vec<u8>,
    held: Option<Live>,
    stored: Option<Live>,
}

impl Difference {
    fn of(held: Option<&KeyValue>, stored: Option<&Stored>) -> Difference {
        let key = held.map(KeyValue::key).or(stored.map(Stored::key)).unwrap_or_default().to_vec();
        let of_held =
            |kv: &KeyValue| Live { create: kv.create_revision(), modified: kv.mod_revision(), version: kv.version() };
        Difference { key, held: held.map(of_held), stored: stored.map(|kv| Live::of(&kv.0)) }
    }
}

impl fmt::Display for Difference {
    /// Shows the numbers of both sides. Values may be secrets, so they are not shown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "key {}", server_text::key(&self.key))?;
        for (name, live) in [("the cache", self.held), ("etcd", self.stored)] {
            match live {
                None => write!(f, "; {name}: absent")?,
                Some(Live { create, modified, version }) => {
                    write!(f, "; {name}: created at {create}, modified at {modified}, version {version}")?;
                }
            }
        }
        if self.held == self.stored {
            f.write_str("; the value or the lease is another one")?;
        }
        Ok(())
    }
}

/// The first key of a part of the range that breaks the rule, in key order.
pub(super) fn first_difference<'a, K: Deref<Target = KeyValue>>(
    held: impl IntoIterator<Item = K>,
    stored: impl IntoIterator<Item = &'a Stored>,
    rule: Rule,
) -> Option<Difference> {
    let (mut held, mut stored) = (held.into_iter().peekable(), stored.into_iter().peekable());
    loop {
        let side = match (held.peek(), stored.peek()) {
            (None, None) => return None,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(held), Some(stored)) => held.key().cmp(stored.key()),
        };
        let held = (side != Ordering::Greater).then(|| held.next()).flatten();
        let stored = (side != Ordering::Less).then(|| stored.next()).flatten();
        let held = held.as_deref();
        if !fits(held, stored, rule) {
            return Some(Difference::of(held, stored));
        }
    }
}

/// Whether the two sides of one key keep the rule.
fn fits(held: Option<&KeyValue>, stored: Option<&Stored>, rule: Rule) -> bool {
    let Some(stored) = stored else { return rule != Rule::Same };
    // No key was touched after the largest revision, so every key has to be equal.
    let point = if let Rule::Continues(point) = rule { point } else { u64::MAX };
    integrity::continues(&record(&stored.0), held, point)
}

#[cfg(test)]
mod tests {
    use super::*;
    use etcd_client::proto::PbKeyValue;
    use watchcore::{Cache, Record};

    /// Key, value, create revision, mod revision, version.
    type Row = (&'static str, &'static str, u64, u64, u64);

    fn stored(&(key, value, create, modified, version): &Row) -> Stored {
        Stored(PbKeyValue {
            key: key.into(),
            value: value.into(),
            create_revision: create as i64,
            mod_revision: modified as i64,
            version: version as i64,
            lease: 0,
        })
    }

    fn differs(held: &[Row], etcd: &[Row], rule: Rule) -> Option<String> {
        let cache = Cache::builder("/").expect_load(true).build().unwrap();
        let records = held.iter().map(|(key, value, create_revision, mod_revision, version)| Record {
            key: key.as_bytes(),
            value: value.as_bytes(),
            create_revision: *create_revision,
            mod_revision: *mod_revision,
            version: *version,
            lease: 0,
        });
        cache.writer().unwrap().load(20, records).unwrap();
        let snapshot = cache.snapshot().unwrap();
        let etcd: Vec<Stored> = etcd.iter().map(stored).collect();
        let difference = first_difference(snapshot.iter(), &etcd, rule);
        difference.map(|difference| String::from_utf8(difference.key).unwrap())
    }

    const A: Row = ("/a", "1", 3, 7, 2);
    const B: Row = ("/b", "1", 4, 4, 1);
    const C: Row = ("/c", "1", 5, 5, 1);

    #[test]
    fn same_revision_is_the_same_state() {
        let first = |held: &[Row], etcd: &[Row]| differs(held, etcd, Rule::Same);
        assert_eq!(first(&[A, B, C], &[A, B, C]), None);
        assert_eq!(first(&[], &[]), None);
        assert_eq!(first(&[A, B, C], &[A, ("/b", "2", 4, 4, 1), C]).as_deref(), Some("/b"), "another value alone");
        for other in [("/b", "1", 3, 4, 1), ("/b", "1", 4, 5, 1), ("/b", "1", 4, 4, 2)] {
            assert_eq!(first(&[A, B, C], &[A, other, C]).as_deref(), Some("/b"), "{other:?}");
        }
        assert_eq!(first(&[A, C], &[A, B, C]).as_deref(), Some("/b"), "etcd has one more");
        assert_eq!(first(&[A, B, C], &[A, C]).as_deref(), Some("/b"), "etcd has one less");
        assert_eq!(first(&[A, B, C], &[A, B]).as_deref(), Some("/c"), "the last one");
        assert_eq!(first(&[A], &[A, B]).as_deref(), Some("/b"), "behind the last one");
    }

    #[test]
    fn later_state_has_what_was_not_touched() {
        let first = |held: &[Row], etcd: &[Row]| differs(held, etcd, Rule::Continues(20));
        assert_eq!(first(&[A, B, C], &[A, ("/b", "2", 4, 21, 2), ("/d", "", 22, 22, 1)]), None);
        assert_eq!(first(&[A, B], &[A, ("/b", "2", 4, 4, 1)]).as_deref(), Some("/b"), "another value");
        assert_eq!(first(&[A], &[A, B]).as_deref(), Some("/b"), "the cache should have it");
    }

    #[test]
    fn difference_shows_numbers_and_no_values() {
        let difference = Difference::of(None, Some(&stored(&("/a\n", "secret", 3, 7, 2))));
        let text = difference.to_string();
        assert_eq!(text, "key \"/a\\n\"; the cache: absent; etcd: created at 3, modified at 7, version 2");
    }
}
