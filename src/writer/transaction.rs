//! A revision: the work before it, and its commit.
//!
//! Commit takes the [`Prepared`] changes one by one: each event is appended to the log in one step with the move of its
//! version into its key's slot ([`RingWriter::append`]), so that there is no moment between the two at
//! which a count has no owner. Then root, epochs and head make the whole revision visible.

use super::prepared::{ChangeSet, MadeVersion, Prepared};
use crate::cache::{Core, Gauges, Inner};
use crate::data::event::{Kind, LogEvent, Mark, Phase, edges};
use crate::data::slot::Fresh;
use crate::error::{Result, say};
use crate::heap::HeapArc;
use crate::log::epochs::{EPOCH_BYTES, EpochChange};
use crate::log::ring::Ring;
use crate::log::writer::{Added, Plan};
use crate::sync::{Relaxed, step};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// A revision from prepare to commit: its number, and its epoch change where it is a resync.
pub(super) struct Transaction {
    pub(super) revision: u64,
    /// Set for a resync: its marks go around the changes.
    pub(super) epoch_change: Option<EpochChange>,
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
                Some((seq, _)) if *seq < oldest && self.ring.may_purge() => {}
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
                self.ring.purged(slot.deleted_bytes(), slot.removed_bytes());
                self.removed_slots.extend(self.slots.remove(slot.key(), &mut self.heap));
            }
        }
    }

    /// Answers the requests for buckets; what an earlier refusal left is dropped.
    #[inline]
    pub(super) fn begin_revision(&mut self, inner: &Inner) {
        self.extract_failures = 0;
        if !inner.indexes.is_empty() {
            let next = self.ring.next_seq();
            self.tables_changed |= self.router.take_requests(&inner.requests, next, &mut self.heap);
        }
    }

    /// Stores only, in the order that ARCHITECTURE.md shows.
    ///
    /// # Errors
    /// CLOSED, with nothing stored.
    pub(super) fn commit(
        &mut self,
        what: &str,
        inner: &Arc<Inner>,
        revision: Transaction,
        plan: Plan,
        changes: &mut ChangeSet,
    ) -> Result<()> {
        let commit = Commit::begin(what, inner, self)?;
        let count = changes.prepared.len() + if revision.epoch_change.is_some() { 2 } else { 0 };
        let grown = self.write(inner, &revision, plan, changes);
        self.publish(commit, (revision.revision, revision.epoch_change.as_ref()), grown, count);
        Ok(())
    }

    /// Commits one change that has room in the current segment, under this sequence number.
    #[inline(always)]
    pub(super) fn commit_one(
        &mut self,
        inner: &Arc<Inner>,
        revision: u64,
        seq: u64,
        one: Prepared,
        made: MadeVersion,
    ) -> Result<()> {
        let commit = Commit::begin("apply", inner, self)?;
        let mut grown = Grown::default();
        self.write_change(&inner.ring, (revision, 0, seq), edges::BOTH, one, made, &mut grown);
        step("event written");
        self.publish(commit, (revision, None), grown, 1);
        Ok(())
    }

    /// Makes visible what was written: so many events.
    #[inline(always)]
    fn publish(
        &mut self,
        commit: Commit<'_>,
        (revision, epoch_change): (u64, Option<&EpochChange>),
        mut grown: Grown,
        events: usize,
    ) {
        let inner = commit.inner;
        step("events written");
        if self.index_changed {
            self.publish_root(inner, &mut grown);
        }
        step("root published");
        if let Some(epoch_change) = epoch_change {
            self.publish_epoch(inner, epoch_change);
        }
        step("before the head");
        let closed = self.ring.publish_head(&inner.ring);
        if let Some(epoch_change) = epoch_change {
            self.position.epoch = epoch_change.epoch;
        }
        self.position.revision = revision;
        self.highest = self.highest.max(revision);
        self.written = true;
        step("head published");
        self.ring.set_progress(&inner.ring, self.position);
        commit.end(self);
        grown.show(&inner.gauges);
        self.count(&inner.gauges, events as u64);
        if closed {
            inner.closed();
        } else if epoch_change.is_some() {
            inner.hubs.notify(inner);
        } else {
            inner.hubs.published_events(inner, &self.router);
        }
        self.heap.tidy();
        // Everything is visible: what this revision replaced may have to wait for the reclaimer.
        self.backpressure.wait_for_room();
    }

    fn publish_epoch(&mut self, inner: &Inner, epoch_change: &EpochChange) {
        let whole = EpochChange { oldest_before: inner.ring.oldest_revision(), ..epoch_change.clone() };
        self.ring.add_epoch(&inner.ring, whole);
        step("history published");
        if epoch_change.resets() {
            self.ring.set_oldest_revision(&inner.ring, epoch_change.to + 1);
        }
    }

    /// Shows what a revision of so many events has changed.
    #[inline(always)]
    fn count(&mut self, gauges: &Gauges, events: u64) {
        gauges.events.store(gauges.events.load(Relaxed) + events, Relaxed);
        gauges.revisions.store(gauges.revisions.load(Relaxed) + 1, Relaxed);
        gauges.window_bytes.store(self.ring.bytes(), Relaxed);
        gauges.window_log_bytes.store(self.ring.log_bytes(), Relaxed);
        gauges.open_bytes.store(self.ring.unreported_bytes(), Relaxed);
        if self.extract_failures > 0 {
            gauges.extract_failures.store(gauges.extract_failures.load(Relaxed) + self.extract_failures, Relaxed);
        }
        if std::mem::take(&mut self.tables_changed) {
            gauges.window_segments.store(self.ring.segments_live() as u64, Relaxed);
            gauges.tombstones.store(self.tombstones.len() as u64, Relaxed);
            gauges.tombstone_bytes.store(self.ring.deleted_bytes(), Relaxed);
            gauges.table_bytes.store(self.table_bytes(), Relaxed);
            gauges.buckets.store(self.router.len() as u64, Relaxed);
        }
    }

    /// Writes the events of a revision, each into the log and its version into its key's slot.
    fn write(&mut self, inner: &Inner, revision: &Transaction, mut plan: Plan, changes: &mut ChangeSet) -> Grown {
        let seqs = plan.seqs.take();
        // Segments come and go with it.
        self.tables_changed = true;
        let mut writing = self.ring.begin(&inner.ring, plan);
        step("room made");
        let marks = usize::from(revision.epoch_change.is_some());
        let ChangeSet { prepared, made } = changes;
        let last = prepared.len() + 2 * marks - 1;
        let mut changes = prepared.iter().zip(made.drain(..));
        let mut grown = Grown::default();
        for (at, seq) in seqs.iter().enumerate() {
            if let Some(epoch_change) = &revision.epoch_change
                && (at == 0 || at == last)
            {
                let (phase, retained) = if at == 0 { (Phase::Begin, EPOCH_BYTES) } else { (Phase::End, 0) };
                let mark = Mark::resync(&epoch_change.mark(phase), seq).into_event();
                self.ring.turn_to(&mut writing, seq);
                self.ring.append(&mut self.router, (at, Added { retained, ..Added::default() }), mark, || None);
                continue;
            }
            let Some((one, version)) = changes.next() else { break };
            let mut edges = edges::NONE;
            if marks == 0 {
                edges |= if at == 0 { edges::FIRST } else { 0 } | if at == last { edges::LAST } else { 0 };
            }
            self.ring.turn_to(&mut writing, seq);
            self.write_one_of_many(&inner.ring, (revision.revision, at, seq), edges, *one, version, &mut grown);
            step("event written");
        }
        grown
    }

    /// [`Core::write_change`] out of line, which keeps the loop of `write` small: with all in one function LLVM 22.1 (Rust
    /// 1.95, optimized) loses the address of a panic that leaves a step of `write`, and the unwinder stops at another one
    /// (`panic_in_oversized_revision_frees_exactly`).
    #[inline(never)]
    fn write_one_of_many(
        &mut self,
        log: &Ring,
        at: (u64, usize, u64),
        edges: u32,
        one: Prepared,
        made: MadeVersion,
        grown: &mut Grown,
    ) {
        self.write_change(log, at, edges, one, made, grown);
    }

    /// Writes one change. Calls that can fail come before or after the move of the counts.
    #[inline(always)]
    fn write_change(
        &mut self,
        log: &Ring,
        (revision, at, sequence): (u64, usize, u64),
        edges: u32,
        one: Prepared,
        MadeVersion { fresh, bytes }: MadeVersion,
        grown: &mut Grown,
    ) {
        let Prepared { slot, added, kind, hash, flags, .. } = one;
        grown.count(kind, bytes as i64 - added.retained as i64);
        let Some(slot) = slot else {
            grown.slot_bytes += self.write_first((revision, at, sequence), (flags, edges), hash, fresh) as i64;
            return;
        };
        let revived = one.revived();
        let event = LogEvent::of_change(revision, sequence, kind, flags, edges);
        if self.slots.is_hinted() {
            self.slots.renew_hint(hash, slot.as_ptr(), slot.distance_to(fresh.kv().pointer()));
        }
        // SAFETY: I1: this is the writer, and its table owns the slot. A key that a resync deletes and puts again stands
        // twice: the second replaces the tombstone.
        self.ring.append(&mut self.router, (at, added), event, || Some(unsafe { fresh.replace(slot) }));
        if let Some((seq, bytes)) = revived {
            self.ring.revived(log, seq, bytes);
            self.tables_changed = true;
        }
        if kind == Kind::Deleted {
            self.tombstones.push_back((sequence, slot));
            self.tables_changed = true;
        }
    }

    /// Writes the first change of a key, which has no slot yet: it replaces nothing. Returns the bytes of the slot.
    #[inline(never)]
    fn write_first(
        &mut self,
        (revision, at, sequence): (u64, usize, u64),
        (flags, edges): (u32, u32),
        hash: u64,
        fresh: Fresh,
    ) -> usize {
        let Core { heap, ring, slots, router, .. } = self;
        let event = LogEvent::of_change(revision, sequence, Kind::Added, flags, edges);
        let mut place = None;
        ring.append(router, (at, Added::default()), event, || {
            let (slot, counts) = fresh.first(heap);
            place = Some(slot.pointer());
            slots.insert(hash, slot, heap);
            Some(counts)
        });
        let Some(place) = place else { return 0 };
        // SAFETY: I1: the table owns it, as it owns every slot of the writer's index. An older index that gets it, too, is
        // read under a token or a pin from before the slot is retired, if it ever is.
        let added = unsafe {
            self.index_changed |= self.index.insert(place, &mut self.heap);
            place.get()
        };
        added.bytes()
    }

    /// Publishes the index, which has changed; the slots that it has no more stay with the newest segment.
    #[inline(never)]
    fn publish_root(&mut self, inner: &Inner, grown: &mut Grown) {
        self.index_changed = false;
        self.tables_changed = true;
        let copied = self.index.take_copied();
        let index = HeapArc::new(self.index.clone(), &mut self.heap);
        inner.root.replace(index, copied, &mut self.heap);
        while let Some(slot) = self.removed_slots.pop() {
            grown.slot_bytes -= slot.get().bytes() as i64;
            grown.bytes -= slot.get().newest().bytes() as i64;
            self.ring.keep_removed(slot);
        }
        grown.tree_bytes = Some(self.index.bytes() as u64);
    }
}

/// The additions of a commit to the gauges of the store, made once its head is published.
#[derive(Default)]
struct Grown {
    objects: i64,
    bytes: i64,
    slot_bytes: i64,
    /// The bytes of the index, where that has changed.
    tree_bytes: Option<u64>,
}

impl Grown {
    #[inline]
    fn count(&mut self, kind: Kind, bytes: i64) {
        self.bytes += bytes;
        match kind {
            Kind::Added => self.objects += 1,
            Kind::Deleted => self.objects -= 1,
            _ => {}
        }
    }

    /// Only the writer stores there. Most changes leave most of them as they are.
    #[inline]
    fn show(&self, gauges: &Gauges) {
        let add = |gauge: &AtomicU64, by: i64| {
            if by != 0 {
                gauge.store(gauge.load(Relaxed).wrapping_add_signed(by), Relaxed);
            }
        };
        add(&gauges.objects, self.objects);
        add(&gauges.version_bytes, self.bytes);
        add(&gauges.slot_bytes, self.slot_bytes);
        if let Some(bytes) = self.tree_bytes {
            gauges.tree_bytes.store(bytes, Relaxed);
        }
    }
}

/// A commit under way. A commit has claimed the log, so that it is decided before its first store whether it is refused
/// with CLOSED, and a close that comes meanwhile takes effect after it. If a panic drops it, the cache fails for good,
/// which ends the waits for revisions that will not come; [`Commit::end`] disarms that.
pub(super) struct Commit<'a> {
    inner: &'a Arc<Inner>,
}

impl<'a> Commit<'a> {
    /// # Errors
    /// CLOSED.
    #[inline(always)]
    pub(super) fn begin(what: &str, inner: &'a Arc<Inner>, core: &mut Core) -> Result<Commit<'a>> {
        if !core.ring.claim(&inner.ring) {
            return Err(say::closed(what));
        }
        core.poisoned = true;
        Ok(Commit { inner })
    }

    /// Ends a commit whose head is published.
    #[inline(always)]
    fn end(self, core: &mut Core) {
        core.poisoned = false;
        std::mem::forget(self);
    }

    /// Ends a commit that has no events, and wakes those who wait for what it has stored.
    pub(super) fn end_at_the_same_head(self, core: &mut Core) {
        let inner = self.inner;
        let closed = core.ring.release(&inner.ring);
        self.end(core);
        if closed { inner.closed() } else { inner.hubs.published(inner) }
    }
}

impl Drop for Commit<'_> {
    fn drop(&mut self) {
        if self.inner.ring.release() {
            self.inner.closed();
        }
        self.inner.fail_for_good();
    }
}
