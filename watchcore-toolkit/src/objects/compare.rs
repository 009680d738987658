//! The difference between the objects that a consumer has and the present state.

#![forbid(unsafe_code)]

use super::known::Known;
use crate::foreign::guard;
use crate::object::{Conversion, FromKeyValue, object_of};
use watchcore::{Error, Filter, KeyValue, Position, Range, Result, Snapshot};

/// The number of key-values that one poll compares.
const SLICE: usize = 4096;

/// A comparison in progress. The snapshot keeps the log in memory, so the walk over it does not wait for the consumer, and
/// the snapshot is released at the end.
pub(super) struct Comparison<O> {
    snapshot: Snapshot,
    filter: Filter,
    /// The key at which the next slice starts.
    next: Vec<u8>,
    found: Found<O>,
}

/// The results of a comparison so far.
struct Found<O> {
    /// Whether equal modification revisions mean equal versions.
    same_epoch: bool,
    /// The objects that the consumer has, without those that the walk has found.
    before: Known<O>,
    /// The objects that the consumer will have after the difference.
    after: Known<O>,
    puts: Vec<(Option<O>, O)>,
    /// Values that could not be decoded.
    failures: Vec<(KeyValue, Error)>,
}

/// The events that lead the consumer to the state at `position`.
pub(super) struct Difference<O> {
    pub(super) position: Position,
    pub(super) deletes: Vec<O>,
    /// In the order of their revisions.
    pub(super) puts: Vec<(Option<O>, O)>,
    pub(super) known: Known<O>,
    pub(super) failures: Vec<(KeyValue, Error)>,
}

impl<O: FromKeyValue> Comparison<O> {
    pub(super) fn begin(snapshot: Snapshot, filter: &Filter, known: Known<O>, epoch: u64) -> Comparison<O> {
        Comparison {
            found: Found {
                same_epoch: snapshot.position().epoch == epoch,
                after: Known::with_capacity(known.len()),
                before: known,
                puts: Vec::new(),
                failures: Vec::new(),
            },
            snapshot,
            filter: filter.clone(),
            next: Vec::new(),
        }
    }

    /// Walks one slice; returns whether it was the last.
    pub(super) fn step(&mut self) -> Result<bool> {
        let rest = self.filter.clone().range(Range::between(&self.next, b""));
        // The filter's predicates run here, before the slice is used: if one panics, the next poll repeats the slice.
        let slice: Vec<_> = self.snapshot.filtered(&rest)?.take(SLICE).collect();
        let next = slice.get(SLICE - 1).map(|last| [last.key(), b"\0"].concat());
        for kv in slice {
            // All conversions of the program run here: a panic affects this key only.
            if let Err(panicked) = guard(Conversion::<O>::new(), || self.found.compare(&kv)) {
                self.found.failures.push((kv.to_owned(), Conversion::<O>::refused(&panicked, kv.key())));
            }
        }
        let last = next.is_none();
        self.next = next.unwrap_or_default();
        Ok(last)
    }

    pub(super) fn finish(self) -> Difference<O> {
        let Found { before, after, mut puts, failures, .. } = self.found;
        // Objects of different keys are ordered by their revisions.
        puts.sort_by_key(|(_, new)| new.key_value().mod_revision());
        let deletes = before.into_objects().collect();
        Difference { position: self.snapshot.position(), deletes, puts, known: after, failures }
    }
}

impl<O: FromKeyValue> Found<O> {
    /// Compares one key-value of the snapshot with what is known of its key.
    fn compare(&mut self, kv: &KeyValue) {
        let old = self.before.remove(kv.key());
        if let Some(old) = &old
            && same_version(old.key_value(), kv, self.same_epoch)
        {
            self.after.insert(old.clone());
            return;
        }
        match object_of::<O>(kv) {
            Ok(new) => {
                self.after.insert(new.clone());
                self.puts.push((old, new));
            }
            Err(error) => {
                self.failures.push((kv.to_owned(), error));
                // This is not a deletion: the last value that could be decoded stays.
                old.map(|old| self.after.insert(old));
            }
        }
    }
}

/// Whether two key-values of one key are the same version. Another history may use a revision again.
fn same_version(a: &KeyValue, b: &KeyValue, same_epoch: bool) -> bool {
    a.mod_revision() == b.mod_revision() && (same_epoch || a.value() == b.value())
}
