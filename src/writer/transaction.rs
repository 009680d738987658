//! One revision: prepared, then committed.
//!
//! Prepare finds the slots and makes the versions; nothing is published and all of it can be dropped.
//! Commit takes the events one by one: each is appended to the log in one step with the move of its
//! version into its key's slot ([`RingWriter::append`]), so that there is no moment between the two at
//! which a count has no owner. Then root, epochs and head make the whole revision visible.

use super::change::{Change, Content, Operation, Record};
use crate::cache::{Core, Gauges, Inner};
use crate::data::event::{Kind, LogEvent, Mark, Phase, flags};
use crate::data::key_value::{KeyMeta, KeyValue, KeyValueRef, VersionExtras, VersionPtr};
use crate::data::slot::{Fresh, SlotPtr, SlotRef};
use crate::error::{Result, say, show};
use crate::heap::One;
use crate::log::epochs::EpochChange;
use crate::log::ring::Ring;
use crate::log::writer::{Added, Plan};
use crate::sync::{Relaxed, step};
use std::sync::Arc;

/// One prepared change. It lives from `prepare` to the end of the commit. Meanwhile only its own transaction
/// stores into slots (I1), so its two addresses stay valid.
pub(super) struct Prepared {
    pub(super) slot: Option<SlotPtr>,
    /// The version in the slot, which the event replaces.
    before: VersionPtr,
    /// What its event adds to the window.
    added: Added,
    kind: Kind,
    flags: u32,
    pub(super) meta: KeyMeta,
    /// Made once its sequence number is known.
    fresh: Option<Fresh>,
    /// Of its key.
    hash: u64,
    /// Index in the input, for key and value.
    pub(super) input: usize,
}

/// A revision from prepare to commit: its number, and its epoch change where it is a resync.
pub(super) struct Transaction {
    pub(super) revision: u64,
    /// It is a resync: its marks go around the changes.
    pub(super) epoch_change: Option<EpochChange>,
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
                kept: before.map_or(0, |kv| kv.bytes() as u64),
                deleted: slot.filter(|_| kind == Kind::Deleted).map_or(0, SlotRef::deleted_bytes),
            },
            kind,
            flags: 0,
            meta,
            fresh: None,
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

    /// Where it puts a deleted key again: the delete's sequence number, and the bytes that stayed because
    /// of it.
    fn revived(&self) -> Option<(u64, u64)> {
        let tombstone = self.before().filter(|before| before.is_tombstone())?;
        Some((tombstone.seq(), self.slot()?.deleted_bytes()))
    }

    /// A key that the same transaction deletes before: its predecessor is that tombstone.
    fn replaces_tombstone_of(&mut self, earlier: &[Prepared]) {
        let Some(slot) = self.slot() else { return };
        // The deletes come first, by key.
        let found = earlier.binary_search_by(|one| match (one.kind, one.slot()) {
            (Kind::Deleted, Some(other)) => other.key().cmp(slot.key()),
            _ => std::cmp::Ordering::Greater,
        });
        let tombstone = found.ok().and_then(|delete| earlier[delete].fresh.as_ref()).map(Fresh::kv);
        let before = tombstone.map_or(VersionPtr::NULL, KeyValue::pointer);
        let kept = tombstone.map_or(0, |kv| kv.bytes() as u64);
        (self.before, self.added.kept) = (before, kept);
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

    /// By how many bytes the newest versions grow.
    fn grows(&self) -> i64 {
        self.fresh.as_ref().map_or(0, |fresh| fresh.kv().bytes() as i64) - self.added.kept as i64
    }
}

impl Core {
    /// Purges tombstones whose event has left the window: at most `most` of them.
    #[inline]
    pub(super) fn purge_tombstones(&mut self, inner: &Inner, most: usize) {
        if self.tombstones.len() > 0 {
            self.purge_some(inner, most);
        }
    }

    fn purge_some(&mut self, inner: &Inner, most: usize) {
        let oldest = inner.ring.oldest_seq();
        for _ in 0..most {
            match self.tombstones.front() {
                Some((seq, _)) if *seq < oldest => {}
                _ => return,
            }
            let Some((seq, slot)) = self.tombstones.pop_front() else { return };
            // SAFETY: I1: the table owns a slot until its last tombstone is purged, here.
            let slot = unsafe { slot.get() };
            let newest = slot.newest();
            if newest.seq() == seq && newest.is_tombstone() {
                // SAFETY: I1: the table owns the slots of the writer's index.
                unsafe { self.index.remove(slot.key(), &mut self.heap) };
                self.index_changed = true;
                self.ring.purged(slot.deleted_bytes());
                self.removed_slots.extend(self.slots.remove(slot.key(), &mut self.heap));
            }
        }
    }

    /// Answers the requests for buckets; what an earlier refusal left is dropped.
    #[inline]
    pub(super) fn begin_revision(&mut self, inner: &Inner) {
        if !inner.indexes.is_empty() {
            let next = self.ring.next_seq();
            self.tables_changed |= self.router.take_requests(&inner.requests, next, &mut self.heap);
        }
    }

    pub(super) fn prepare(&self, revision: u64, input: usize, change: &Change<'_>) -> Result<Prepared> {
        match change.operation {
            Operation::Put(value) | Operation::Exact(value, _) => {
                self.heap.prefetch(KeyValue::bytes_of(change.key, value));
            }
            Operation::Shared(_) => self.heap.prefetch(KeyValue::shared_bytes_of(change.key)),
            Operation::Delete => {}
        }
        let hash = self.hash_of(change.key);
        let slot = self.slot_of(hash, change.key);
        let before = slot.map(SlotRef::newest);
        let alive = before.as_deref().filter(|kv| !kv.is_tombstone());
        let meta = match (change.operation, alive) {
            (Operation::Delete, None) => {
                return Err(
                    say::invalid(format!("delete of key {}: it is not there", show(change.key))).with_asked(revision)
                );
            }
            (Operation::Delete, Some(kv)) => kv.meta(),
            (Operation::Put(_) | Operation::Shared(_), alive) => KeyMeta {
                create_revision: alive.map_or(revision, KeyValue::create_revision),
                mod_revision: revision,
                version: alive.map_or(1, |kv| kv.version().saturating_add(1)),
                lease: 0,
            },
            (Operation::Exact(_, meta), _) => {
                let sound = meta.mod_revision == revision
                    && (1..=revision).contains(&meta.create_revision)
                    && meta.version >= 1;
                if !sound {
                    return Err(say::invalid(format!(
                        "put of key {}: created at {}, changed at {}, version {} cannot be of revision {revision}",
                        show(change.key),
                        meta.create_revision,
                        meta.mod_revision,
                        meta.version
                    ))
                    .with_asked(revision));
                }
                meta
            }
        };
        let kind = match (change.operation, alive) {
            (Operation::Delete, _) => Kind::Deleted,
            (_, None) => Kind::Added,
            (_, Some(_)) => Kind::Modified,
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
        prepared: &mut [Prepared],
        input: impl Fn(usize) -> Content<'a>,
    ) {
        for (at, seq) in (0..prepared.len()).zip(plan.seqs.iter().skip(marks)) {
            let (earlier, rest) = prepared.split_at_mut(at);
            let one = &mut rest[0];
            if one.kind == Kind::Added && one.before.is_null() {
                one.replaces_tombstone_of(earlier);
            }
            // A delete by a resync has no input.
            let content = if one.kind == Kind::Deleted { Content::default() } else { input(one.input) };
            self.make_version(inner, (at + marks, seq), one, content);
        }
    }

    /// Makes the version of one change: event `at` of its revision.
    #[inline]
    pub(super) fn make_version(
        &mut self,
        inner: &Inner,
        (at, seq): (usize, u64),
        one: &mut Prepared,
        Content { key, value, shared }: Content<'_>,
    ) {
        let version = match (one.kind, one.slot()) {
            (Kind::Deleted, Some(slot)) => {
                let none = VersionExtras::default();
                KeyValue::with_extras(&mut self.heap, slot.key(), None, one.meta, seq, one.before, none)
            }
            _ => {
                let mut extras = extras(&mut self.attributes, inner, key, value);
                extras.shared = shared;
                KeyValue::with_extras(&mut self.heap, key, value, one.meta, seq, one.before, extras)
            }
        };
        let live = |kv: &&KeyValue| !kv.is_tombstone();
        let before = one.before();
        self.router.prepare(at, (version.key(), one.hash), Some(&version).filter(live), before.as_deref().filter(live));
        one.fresh = Some(Fresh::new(version));
    }

    /// Stores only, in the order that ARCHITECTURE.md shows. False: the cache was closed first, and
    /// nothing of the revision is ever visible.
    #[must_use]
    pub(super) fn commit(
        &mut self,
        inner: &Arc<Inner>,
        revision: Transaction,
        plan: Plan,
        prepared: &mut Vec<Prepared>,
    ) -> bool {
        self.poisoned = true;
        let unfinished = Unfinished(inner);
        let count = prepared.len() + if revision.epoch_change.is_some() { 2 } else { 0 };
        self.write(inner, &revision, plan, prepared);
        self.publish(inner, unfinished, &revision, count)
    }

    /// The same for one change that has room in the segment in hand, under this sequence number.
    #[must_use]
    pub(super) fn commit_one(&mut self, inner: &Arc<Inner>, revision: u64, seq: u64, one: Prepared) -> bool {
        self.poisoned = true;
        let unfinished = Unfinished(inner);
        let mut grown = Grown::of(&inner.gauges);
        let bits = one.flags | flags::FIRST | flags::LAST;
        self.write_change(&inner.ring, (revision, 0, seq), bits, one, &mut grown);
        step("event written");
        grown.show(&inner.gauges);
        self.publish(inner, unfinished, &Transaction { revision, epoch_change: None }, 1)
    }

    /// Makes visible what was written: so many events.
    #[inline]
    fn publish(
        &mut self,
        inner: &Arc<Inner>,
        unfinished: Unfinished<'_>,
        revision: &Transaction,
        events: usize,
    ) -> bool {
        step("events written");
        self.publish_root(inner);
        step("root published");
        if let Some(epoch_change) = &revision.epoch_change {
            self.publish_epoch(inner, epoch_change);
        }
        step("before the head");
        if !self.ring.publish_head(&inner.ring) {
            unfinished.finished();
            self.poisoned = false;
            return false;
        }
        if let Some(epoch_change) = &revision.epoch_change {
            self.position.epoch = epoch_change.epoch;
        }
        self.position.revision = revision.revision;
        self.highest = self.highest.max(revision.revision);
        self.written = true;
        step("head published");
        self.ring.set_progress(&inner.ring, self.position);
        unfinished.finished();
        self.poisoned = false;
        self.count(&inner.gauges, events as u64);
        if revision.epoch_change.is_some() {
            inner.hubs.notify(inner);
        } else {
            inner.hubs.published_events(inner, &self.router);
        }
        self.heap.tidy();
        // Everything is visible: what this revision replaced may have to wait for the reclaimer.
        self.patience.wait_for_room();
        true
    }

    fn publish_epoch(&mut self, inner: &Inner, epoch_change: &EpochChange) {
        let whole = EpochChange { oldest_before: inner.ring.oldest_revision(), ..epoch_change.clone() };
        self.epochs.push(whole, inner.ring.oldest_seq());
        self.ring.set_epochs(&inner.ring, self.epochs.clone());
        step("history published");
        if epoch_change.resets() {
            self.ring.set_oldest_revision(&inner.ring, epoch_change.to + 1);
        }
    }

    /// Shows what a revision of so many events has changed.
    fn count(&mut self, gauges: &Gauges, events: u64) {
        gauges.events.store(gauges.events.load(Relaxed) + events, Relaxed);
        gauges.revisions.store(gauges.revisions.load(Relaxed) + 1, Relaxed);
        gauges.window_bytes.store(self.ring.bytes(), Relaxed);
        gauges.open_bytes.store(self.ring.unreported_bytes(), Relaxed);
        if std::mem::take(&mut self.tables_changed) {
            gauges.window_segments.store(self.ring.segments_live() as u64, Relaxed);
            gauges.tombstones.store(self.tombstones.len() as u64, Relaxed);
            gauges.table_bytes.store(self.table_bytes(), Relaxed);
            gauges.buckets.store(self.router.len() as u64, Relaxed);
        }
    }

    /// Writes the events of a revision, each into the log and its version into its key's slot.
    fn write(&mut self, inner: &Inner, revision: &Transaction, mut plan: Plan, prepared: &mut Vec<Prepared>) {
        let seqs = plan.seqs.take();
        // Segments come and go with it.
        self.tables_changed = true;
        let mut writing = self.ring.begin(&inner.ring, plan);
        step("room made");
        let marks = usize::from(revision.epoch_change.is_some());
        let last = prepared.len() + 2 * marks - 1;
        let mut changes = prepared.drain(..);
        let mut grown = Grown::of(&inner.gauges);
        for (at, seq) in seqs.iter().enumerate() {
            if let Some(epoch_change) = &revision.epoch_change
                && (at == 0 || at == last)
            {
                let phase = if at == 0 { Phase::Begin } else { Phase::End };
                let mark = Mark::resync(&epoch_change.mark(phase), seq).into_event();
                self.ring.turn_to(&mut writing, seq);
                self.ring.append(&mut self.router, (at, Added::default()), mark, || None);
                continue;
            }
            let Some(one) = changes.next() else { break };
            let mut bits = one.flags;
            if marks == 0 {
                bits |= if at == 0 { flags::FIRST } else { 0 } | if at == last { flags::LAST } else { 0 };
            }
            self.ring.turn_to(&mut writing, seq);
            self.write_change(&inner.ring, (revision.revision, at, seq), bits, one, &mut grown);
            step("event written");
        }
        grown.show(&inner.gauges);
    }

    /// One change. What can fail comes before or after the move of the counts.
    fn write_change(
        &mut self,
        log: &Ring,
        (revision, at, sequence): (u64, usize, u64),
        flags: u32,
        one: Prepared,
        grown: &mut Grown,
    ) {
        grown.count(one.kind, one.grows());
        let revived = one.revived();
        let Prepared { slot, added, kind, fresh, hash, .. } = one;
        let Some(fresh) = fresh else { return };
        let (kv, prev) = (VersionPtr::NULL, VersionPtr::NULL);
        let event = LogEvent { revision, sequence, kind, flags, kv, prev, extra: [0; 3] };
        let Core { heap, ring, slots, router, .. } = self;
        let mut place = slot;
        ring.append(router, (at, added), event, || {
            Some(match slot {
                Some(slot) => {
                    if slots.is_hinted() {
                        slots.renew_hint(hash, slot.as_ptr(), slot.distance_to(fresh.kv().pointer()));
                    }
                    // SAFETY: I1: this is the writer, and its table owns the slot. A key that a resync deletes
                    // and puts again stands twice: the second replaces the tombstone.
                    unsafe { fresh.replace(slot) }
                }
                None => {
                    let (slot, counts) = fresh.first(heap);
                    place = Some(slot.pointer());
                    slots.insert(hash, slot, heap);
                    counts
                }
            })
        });
        if let Some((seq, bytes)) = revived {
            ring.revived(log, seq, bytes);
        }
        let Some(place) = place else { return };
        if slot.is_none() {
            // SAFETY: I1: the table owns it, as it owns every slot of the writer's index. An older index that gets it,
            // too, is read under a token or a pin from before the slot is retired, if it ever is.
            let added = unsafe {
                self.index_changed |= self.index.insert(place, &mut self.heap);
                place.get()
            };
            grown.slot_bytes += added.bytes() as u64;
        }
        if kind == Kind::Deleted {
            self.tombstones.push_back((sequence, place));
            self.tables_changed = true;
        }
    }

    /// Publishes the index, where it changed; the slots that it has no more stay with the newest segment.
    fn publish_root(&mut self, inner: &Inner) {
        if !std::mem::take(&mut self.index_changed) {
            return;
        }
        self.tables_changed = true;
        let copied = self.index.take_copied();
        let index = One::new(self.index.clone(), &mut self.heap);
        inner.root.replace(index, copied, &mut self.heap);
        let mut grown = Grown::of(&inner.gauges);
        while let Some(slot) = self.removed_slots.pop() {
            grown.slot_bytes -= slot.get().bytes() as u64;
            grown.bytes -= slot.get().newest().bytes() as i64;
            self.ring.keep_removed(slot);
        }
        grown.show(&inner.gauges);
        inner.gauges.tree_bytes.store(self.index.bytes() as u64, Relaxed);
    }
}

/// What the cache adds to a version: all foreign code of a change runs here. `attributes` is room for them.
pub(super) fn extras<'a>(
    attributes: &'a mut Vec<u8>,
    inner: &'a Inner,
    key: &[u8],
    value: Option<&[u8]>,
) -> VersionExtras<'a> {
    attributes.clear();
    let Some(value) = value else { return VersionExtras::default() };
    if !inner.schema.is_empty() {
        let failed = inner.schema.extract(key, value, attributes);
        if failed > 0 {
            let failures = &inner.gauges.extract_failures;
            failures.store(failures.load(Relaxed) + failed, Relaxed);
        }
    }
    VersionExtras { attributes, decoder: inner.decoder.as_ref(), shared: None }
}

/// The gauges of the store while a commit changes them: loaded at its begin, stored at its end.
struct Grown {
    objects: u64,
    bytes: i64,
    slot_bytes: u64,
}

impl Grown {
    fn of(gauges: &Gauges) -> Grown {
        Grown {
            objects: gauges.objects.load(Relaxed),
            bytes: gauges.version_bytes.load(Relaxed) as i64,
            slot_bytes: gauges.slot_bytes.load(Relaxed),
        }
    }

    fn count(&mut self, kind: Kind, bytes: i64) {
        self.bytes += bytes;
        match kind {
            Kind::Added => self.objects += 1,
            Kind::Deleted => self.objects -= 1,
            _ => {}
        }
    }

    fn show(&self, gauges: &Gauges) {
        gauges.objects.store(self.objects, Relaxed);
        gauges.version_bytes.store(self.bytes as u64, Relaxed);
        gauges.slot_bytes.store(self.slot_bytes, Relaxed);
    }
}

/// A commit under way. Where a panic drops it, the cache fails for good, which ends the waits for revisions
/// that will not come. [`Unfinished::finished`] disarms it.
pub(super) struct Unfinished<'a>(pub(super) &'a Arc<Inner>);

impl Unfinished<'_> {
    pub(super) fn finished(self) {
        std::mem::forget(self);
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        self.0.fail_for_good();
    }
}
