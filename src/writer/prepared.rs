//! Prepare: the changes of a revision, and the versions that are made of them.
//!
//! A [`Prepared`] change has found its key's slot, and knows what its event is and what that adds to the window; its
//! version is made once its sequence number is known. Nobody else knows anything of it yet: what is dropped here was
//! never there. `super::transaction` commits it.

use super::change::{Change, Content, Operation, Record};
use crate::cache::{Core, Inner};
use crate::data::event::{Kind, flags};
use crate::data::key_value::{KeyMeta, KeyValue, KeyValueRef, VersionExtras, VersionPtr};
use crate::data::slot::{Fresh, SlotPtr, SlotRef};
use crate::error::{Error, Result, say, show};
use crate::log::writer::{Added, Plan};

/// The changes of a revision in their order: prepared, and the versions that were made of them.
#[derive(Default)]
pub(super) struct ChangeSet {
    pub(super) prepared: Vec<Prepared>,
    pub(super) made: Vec<MadeVersion>,
}

/// A version that nobody knows yet, and its bytes.
pub(super) struct MadeVersion {
    pub(super) fresh: Fresh,
    pub(super) bytes: usize,
}

/// Changes of a revision for which there is room beforehand.
const USUAL: usize = 1024;

impl ChangeSet {
    pub(super) fn of(prepared: Vec<Prepared>) -> ChangeSet {
        ChangeSet { made: Vec::with_capacity(prepared.len()), prepared }
    }

    /// Empties it, with room for a revision of usual length: that for a large one is freed, because no statistic counts it.
    pub(super) fn clear(&mut self) {
        self.prepared.clear();
        self.made.clear();
        self.prepared.shrink_to(USUAL);
        self.made.shrink_to(USUAL);
    }
}

/// A prepared change, from `prepare` to the end of the commit. Meanwhile only its own transaction stores into slots
/// (I1), so its two addresses stay valid.
#[derive(Clone, Copy)]
pub(super) struct Prepared {
    pub(super) slot: Option<SlotPtr>,
    /// The version in the slot, which the event replaces.
    before: VersionPtr,
    /// The bytes that its event adds to the window.
    pub(super) added: Added,
    pub(super) kind: Kind,
    pub(super) flags: u32,
    meta: KeyMeta,
    /// The hash of its key.
    pub(super) hash: u64,
    /// Index in the input, for key and value.
    input: usize,
}

impl Prepared {
    #[inline]
    fn new(
        (slot, hash): (Option<SlotRef<'_>>, u64),
        before: Option<&KeyValue>,
        kind: Kind,
        meta: KeyMeta,
        input: usize,
    ) -> Prepared {
        Prepared {
            slot: slot.map(SlotRef::pointer),
            before: before.map_or(VersionPtr::NULL, KeyValue::pointer),
            added: Added {
                retained: before.map_or(0, |kv| kv.bytes() as u64),
                decoded: before.map_or(0, KeyValue::decoded_bytes),
                deleted: slot.filter(|_| kind == Kind::Deleted).map_or(0, SlotRef::deleted_bytes),
            },
            kind,
            flags: 0,
            meta,
            hash,
            input,
        }
    }

    /// Made by a resync.
    fn synthetic(self) -> Prepared {
        Prepared { flags: flags::SYNTHETIC, ..self }
    }

    /// Bytes that it adds to the window.
    pub(super) fn added(&self) -> u64 {
        self.added.sum()
    }

    /// For a put of a deleted key: the delete's sequence number, and the bytes that stayed because of it.
    #[inline(always)]
    pub(super) fn revived(&self) -> Option<(u64, u64)> {
        if self.kind != Kind::Added {
            return None;
        }
        let tombstone = self.before().filter(|before| before.is_tombstone())?;
        Some((tombstone.seq(), self.slot()?.deleted_bytes()))
    }

    /// A key that the same transaction deletes before: its predecessor is that tombstone.
    fn replaces_tombstone_of(&mut self, earlier: &[Prepared], made: &[MadeVersion]) {
        let Some(slot) = self.slot() else { return };
        // The deletes come first, by key.
        let found = earlier.binary_search_by(|one| match (one.kind, one.slot()) {
            (Kind::Deleted, Some(other)) => other.key().cmp(slot.key()),
            _ => std::cmp::Ordering::Greater,
        });
        let tombstone = found.ok().map(|delete| made[delete].fresh.kv());
        let before = tombstone.map_or(VersionPtr::NULL, KeyValue::pointer);
        let retained = tombstone.map_or(0, |kv| kv.bytes() as u64);
        (self.before, self.added.retained) = (before, retained);
    }

    fn slot(&self) -> Option<SlotRef<'_>> {
        // SAFETY: I1: the writer's table owns the slot, and frees none before the transaction is over.
        self.slot.map(|slot| unsafe { slot.get() })
    }

    /// The version before.
    fn before(&self) -> Option<KeyValueRef<'_>> {
        // SAFETY: I1: its slot has its count until the commit; or it is the tombstone of the same
        // transaction, which has both of its own.
        unsafe { self.before.get() }
    }
}

/// Whether these can be the numbers of a put of this revision.
fn is_sound(revision: u64, meta: &KeyMeta) -> bool {
    meta.mod_revision == revision && (1..=revision).contains(&meta.create_revision) && meta.version >= 1
}

/// Why they cannot.
#[cold]
fn unsound(revision: u64, change: &Change<'_>, meta: &KeyMeta) -> Error {
    say::invalid(format!(
        "put of key {}: created at {}, changed at {}, version {} cannot be of revision {revision}. Give the numbers that the store gave it.",
        show(change.key),
        meta.create_revision,
        meta.mod_revision,
        meta.version
    ))
    .with_asked(revision)
}

/// Why a key cannot be deleted.
#[cold]
fn absent(revision: u64, change: &Change<'_>) -> Error {
    say::invalid(format!(
        "delete of key {}: the cache does not have it. Delete only keys that are there.",
        show(change.key)
    ))
    .with_asked(revision)
}

impl Core {
    #[inline(always)]
    pub(super) fn prepare(&self, revision: u64, input: usize, change: &Change<'_>) -> Result<Prepared> {
        let hash = self.hash_of(change.key);
        let bucket = self.router.fetch_place(hash);
        let slot = self.slot_of(hash, change.key);
        if let Some(bucket) = bucket {
            bucket.fetch_entry(change.key.len());
        }
        let before = slot.map(SlotRef::newest);
        let alive = before.as_deref().filter(|kv| !kv.is_tombstone());
        let kind = match (change.value, alive) {
            (None, None) => return Err(absent(revision, change)),
            (None, Some(_)) => Kind::Deleted,
            (Some(_), None) => Kind::Added,
            (Some(_), Some(_)) => Kind::Modified,
        };
        let meta = match (&change.operation, alive) {
            (Operation::Exact(meta), _) if is_sound(revision, meta) => *meta,
            (Operation::Exact(meta), _) => return Err(unsound(revision, change, meta)),
            (Operation::Delete, Some(kv)) => kv.meta(),
            (_, alive) => KeyMeta {
                create_revision: alive.map_or(revision, KeyValue::create_revision),
                mod_revision: revision,
                version: alive.map_or(1, |kv| kv.version().saturating_add(1)),
                lease: 0,
            },
        };
        Ok(Prepared::new((slot, hash), before.as_deref(), kind, meta, input))
    }

    /// Old state against a sorted listing: deletes by key, then puts by key.
    pub(super) fn difference(&self, records: &[Record<'_>]) -> Vec<Prepared> {
        let (mut deletes, mut puts) = (Vec::new(), Vec::new());
        let mut next = 0;
        let put = |slot: Option<SlotRef<'_>>, before: Option<&KeyValue>, kind, input: usize| {
            let record = &records[input];
            Prepared::new((slot, self.hash_of(record.key)), before, kind, record.meta(), input).synthetic()
        };
        // SAFETY: I1: the table owns the slots of the writer's index, and the writer is borrowed.
        for slot in unsafe { self.index.read() }.from(b"") {
            while next < records.len() && records[next].key < slot.key() {
                puts.push(put(None, None, Kind::Added, next));
                next += 1;
            }
            let listed = next < records.len() && records[next].key == slot.key();
            let kv = slot.newest();
            let delete = || {
                let place = (Some(slot), self.hash_of(slot.key()));
                Prepared::new(place, Some(&kv), Kind::Deleted, kv.meta(), usize::MAX).synthetic()
            };
            if !listed {
                if !kv.is_tombstone() {
                    deletes.push(delete());
                }
                continue;
            }
            let record = &records[next];
            if kv.is_tombstone() {
                puts.push(put(Some(slot), Some(&kv), Kind::Added, next));
            } else if record.create_revision != kv.create_revision() {
                deletes.push(delete());
                // Its predecessor is the tombstone of the delete: filled in when that is made.
                puts.push(put(Some(slot), None, Kind::Added, next));
            } else if record.meta() != kv.meta() || Some(record.value) != kv.value() {
                puts.push(put(Some(slot), Some(&kv), Kind::Modified, next));
            }
            next += 1;
        }
        puts.extend((next..records.len()).map(|input| put(None, None, Kind::Added, input)));
        deletes.append(&mut puts);
        deletes
    }

    /// Makes the versions once their sequence numbers are known. `marks` is 1 where a mark comes
    /// before the first.
    pub(super) fn make_versions<'a>(
        &mut self,
        inner: &Inner,
        plan: &Plan,
        marks: usize,
        ChangeSet { prepared, made }: &mut ChangeSet,
        input: impl Fn(usize) -> Content<'a>,
    ) {
        for (at, seq) in (0..prepared.len()).zip(plan.seqs.iter().skip(marks)) {
            let (earlier, rest) = prepared.split_at_mut(at);
            let one = &mut rest[0];
            if one.kind == Kind::Added && one.before.is_null() {
                one.replaces_tombstone_of(earlier, made);
            }
            // A delete by a resync has no input.
            let content = if one.kind == Kind::Deleted { Content::default() } else { input(one.input) };
            made.push(self.make_version(inner, (at + marks, seq), *one, content));
        }
    }

    /// Makes the version of one change: event `at` of its revision.
    #[inline(always)]
    pub(super) fn make_version(
        &mut self,
        inner: &Inner,
        (at, seq): (usize, u64),
        one: Prepared,
        Content { key, value, shared }: Content<'_>,
    ) -> MadeVersion {
        let (version, bytes) = match (value, shared) {
            (Some(value), None) if inner.adds_nothing() => {
                let none = VersionExtras::default();
                let heap = &mut self.heap;
                let version = KeyValue::with_extras(heap, key, Some(value), one.meta, seq, one.before, none);
                let bytes = version.bytes();
                (version, bytes)
            }
            _ => {
                let deleted = one.slot.filter(|_| one.kind == Kind::Deleted);
                self.make_with_extras(inner, deleted, one.meta, (seq, one.before), Content { key, value, shared })
            }
        };
        self.router.prepare(at, one.hash, &version, one.before().as_deref());
        MadeVersion { fresh: Fresh::new(version), bytes }
    }

    /// A version that has more than a key and a copied value, or the tombstone of a slot that is deleted; and its bytes.
    #[inline(never)]
    fn make_with_extras(
        &mut self,
        inner: &Inner,
        deleted: Option<SlotPtr>,
        meta: KeyMeta,
        (seq, before): (u64, VersionPtr),
        Content { key, value, shared }: Content<'_>,
    ) -> (KeyValue, usize) {
        // SAFETY: I1: the writer's table owns the slot, and frees none before the transaction is over.
        let (key, value, extras) = match deleted.map(|slot| unsafe { slot.get() }) {
            Some(slot) => (slot.key(), None, VersionExtras::default()),
            None => {
                let failed = &mut self.extract_failures;
                (key, value, VersionExtras { shared, ..extras(&mut self.attributes, failed, inner, key, value) })
            }
        };
        let version = KeyValue::with_extras(&mut self.heap, key, value, meta, seq, before, extras);
        let bytes = version.bytes();
        (version, bytes)
    }
}

/// The parts that the cache adds to a version: all foreign code of a change runs here. `attributes` is a buffer for them;
/// `failures` counts the extractors that fail, and is added to the statistics when the version is published.
#[inline]
pub(super) fn extras<'a>(
    attributes: &'a mut Vec<u8>,
    failures: &mut u64,
    inner: &'a Inner,
    key: &[u8],
    value: Option<&[u8]>,
) -> VersionExtras<'a> {
    attributes.clear();
    let Some(value) = value else { return VersionExtras::default() };
    if !inner.schema.is_empty() {
        *failures += inner.schema.extract(key, value, attributes);
    }
    VersionExtras { attributes, decoder: inner.decoder.as_ref(), shared: None }
}
