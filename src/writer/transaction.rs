//! One revision: prepared, then committed.

#![forbid(unsafe_code)]

use super::change::{Change, Record, Verb};
use crate::cache::{Core, Inner};
use crate::data::event::{Event, Kind, Phase, flags};
use crate::data::key_value::{Extras, KeyValue, Numbers, VersionPtr};
use crate::data::slot::SlotPtr;
use crate::error::{Result, say, show};
use crate::log::epochs::Turn;
use crate::log::writer::Plan;
use crate::sync::Relaxed;
use std::sync::Arc;

/// One prepared change.
pub(super) struct Prepared {
    pub(super) slot: Option<SlotPtr>,
    /// The version in the slot: moves into the event.
    pub(super) before: VersionPtr,
    kind: Kind,
    flags: u32,
    pub(super) numbers: Numbers,
    /// Made once its sequence number is known, with two counts: see `data::key_value`.
    cur: VersionPtr,
    /// Index in the input, for key and value.
    pub(super) input: usize,
}

/// A revision on its way into the log.
pub(super) struct Revision {
    pub(super) revision: u64,
    /// It is a resync: its marks go around the changes.
    pub(super) turn: Option<Turn>,
}

impl Prepared {
    /// Bytes that its event's segment keeps alive once the version before was replaced.
    pub(super) fn kept(&self) -> u64 {
        self.before.get().map_or(0, |kv| kv.bytes() as u64)
    }
}

impl Core {
    /// Forgets tombstones whose event has left the window: at most `most` of them.
    pub(super) fn forget(&mut self, inner: &Inner, most: usize) {
        let oldest = inner.ring.oldest_seq();
        for _ in 0..most {
            match self.tombstones.front() {
                Some((seq, _)) if *seq < oldest => {}
                _ => return,
            }
            let Some((seq, slot)) = self.tombstones.pop_front() else { return };
            let still = slot.newest().get().is_some_and(|kv| kv.seq() == seq && kv.is_tombstone());
            if still {
                self.slots.remove(slot.key());
                self.index.remove(slot.key());
                self.index_changed = true;
                self.forgotten.push(slot);
            }
        }
    }

    /// Answers who asked for a bucket meanwhile; what an earlier refusal left is forgotten.
    pub(super) fn begin_revision(&mut self, inner: &Inner) {
        self.router.done();
        if !inner.indexes.is_empty() {
            self.router.take_requests(&inner.requests, self.ring.next_seq());
        }
    }

    pub(super) fn prepare(&self, revision: u64, input: usize, change: &Change<'_>) -> Result<Prepared> {
        let slot = self.live(change.key);
        let before = slot.map_or(VersionPtr::NULL, |slot| slot.newest());
        let alive = before.get().filter(|kv| !kv.is_tombstone());
        let numbers = match (change.verb, alive) {
            (Verb::Delete, None) => {
                return Err(
                    say::invalid(format!("delete of key {}: it is not there", show(change.key))).with_asked(revision)
                );
            }
            (Verb::Delete, Some(kv)) => kv.numbers(),
            (Verb::Put(_), alive) => Numbers {
                create_revision: alive.map_or(revision, KeyValue::create_revision),
                mod_revision: revision,
                version: alive.map_or(1, |kv| kv.version().saturating_add(1)),
                lease: 0,
            },
            (Verb::Exact(_, numbers), _) => {
                let sound = numbers.mod_revision == revision
                    && (1..=revision).contains(&numbers.create_revision)
                    && numbers.version >= 1;
                if !sound {
                    return Err(say::invalid(format!(
                        "put of key {}: create_revision {}, mod_revision {}, version {} cannot be of revision {revision}",
                        show(change.key), numbers.create_revision, numbers.mod_revision, numbers.version
                    ))
                    .with_asked(revision));
                }
                numbers
            }
        };
        let kind = match (change.verb, alive) {
            (Verb::Delete, _) => Kind::Deleted,
            (_, None) => Kind::Added,
            (_, Some(_)) => Kind::Modified,
        };
        Ok(Prepared { slot, before, kind, flags: 0, numbers, cur: VersionPtr::NULL, input })
    }

    /// Old state against a sorted listing: deletes by key, then puts by key.
    pub(super) fn difference(&self, records: &[Record<'_>]) -> Vec<Prepared> {
        let flags = flags::SYNTHETIC;
        let (mut deletes, mut puts) = (Vec::new(), Vec::new());
        let mut next = 0;
        let put = |slot, before, kind, input: usize| Prepared {
            slot,
            before,
            kind,
            flags,
            numbers: records[input].numbers(),
            cur: VersionPtr::NULL,
            input,
        };
        for slot in self.index.iter() {
            while next < records.len() && records[next].key < slot.key() {
                puts.push(put(None, VersionPtr::NULL, Kind::Added, next));
                next += 1;
            }
            let listed = next < records.len() && records[next].key == slot.key();
            let before = slot.newest();
            let Some(kv) = before.get() else { continue };
            let delete = |input| Prepared {
                slot: Some(slot),
                before,
                kind: Kind::Deleted,
                flags,
                numbers: kv.numbers(),
                cur: VersionPtr::NULL,
                input,
            };
            if !listed {
                if !kv.is_tombstone() {
                    deletes.push(delete(usize::MAX));
                }
                continue;
            }
            let record = &records[next];
            if kv.is_tombstone() {
                puts.push(put(Some(slot), before, Kind::Added, next));
            } else if record.create_revision != kv.create_revision() {
                deletes.push(delete(usize::MAX));
                // Its predecessor is the tombstone of the delete: filled in when that is made.
                puts.push(put(Some(slot), VersionPtr::NULL, Kind::Added, next));
            } else if record.numbers() != kv.numbers() || Some(record.value) != kv.value() {
                puts.push(put(Some(slot), before, Kind::Modified, next));
            }
            next += 1;
        }
        puts.extend((next..records.len()).map(|input| put(None, VersionPtr::NULL, Kind::Added, input)));
        deletes.append(&mut puts);
        deletes
    }

    /// What the cache adds to a version: all foreign code of a change runs here.
    pub(super) fn extras<'a>(&'a mut self, inner: &'a Inner, key: &[u8], value: Option<&[u8]>) -> Extras<'a> {
        self.attributes.clear();
        let Some(value) = value else { return Extras::default() };
        if !inner.schema.is_empty() {
            let failed = inner.schema.extract(key, value, &mut self.attributes);
            if failed > 0 {
                let failures = &inner.gauges.extract_failures;
                failures.store(failures.load(Relaxed) + failed, Relaxed);
            }
        }
        Extras { attributes: &self.attributes, decoder: inner.decoder.as_ref() }
    }

    /// Makes the versions once their sequence numbers are known. `marks` is 1 where a mark comes
    /// before the first.
    pub(super) fn make_versions<'a>(
        &mut self,
        inner: &Inner,
        plan: &Plan,
        marks: usize,
        prepared: &mut [Prepared],
        input: impl Fn(usize) -> (&'a [u8], Option<&'a [u8]>),
    ) {
        let mut fresh = 0;
        for (at, seq) in (0..prepared.len()).zip(plan.seqs.iter().skip(marks)) {
            if prepared[at].kind == Kind::Added && prepared[at].before.is_null() && prepared[at].slot.is_some() {
                let slot = prepared[at].slot.expect("just looked").key().to_vec();
                let tombstone = prepared[..at]
                    .binary_search_by(|one| {
                        if one.kind != Kind::Deleted {
                            return std::cmp::Ordering::Greater;
                        }
                        one.slot.map_or(std::cmp::Ordering::Greater, |other| other.key().cmp(&slot[..]))
                    })
                    .ok()
                    .map(|delete| prepared[delete].cur);
                prepared[at].before = tombstone.unwrap_or(VersionPtr::NULL);
            }
            let one = &mut prepared[at];
            fresh += usize::from(one.slot.is_none());
            let cur = match (one.kind, one.slot) {
                (Kind::Deleted, Some(slot)) => {
                    KeyValue::new_twice(slot.key(), None, one.numbers, seq, one.before, Extras::default())
                }
                _ => {
                    let (key, value) = input(one.input);
                    let (numbers, before) = (one.numbers, one.before);
                    KeyValue::new_twice(key, value, numbers, seq, before, self.extras(inner, key, value))
                }
            };
            let one = &mut prepared[at];
            one.cur = cur;
            if let Some(kv) = cur.get() {
                let live = |kv: &&KeyValue| !kv.is_tombstone();
                let (now, before) = (cur, one.before);
                self.router.prepare(at + marks, kv.key(), now.get().filter(live), before.get().filter(live));
            }
        }
        if fresh > 0 {
            self.slots.reserve(fresh);
        }
    }

    /// Stores only. The order is the law (design, section 2).
    pub(super) fn commit(
        &mut self,
        inner: &Arc<Inner>,
        revision: Revision,
        mut plan: Plan,
        prepared: &mut Vec<Prepared>,
    ) {
        self.poisoned = true;
        let count = prepared.len() + if revision.turn.is_some() { 2 } else { 0 };
        self.write_log(inner, &revision, &mut plan, prepared);
        self.write_store(inner, prepared);
        if let Some(turn) = &revision.turn {
            let resets = turn.resets();
            self.history.turns.push(turn.clone());
            self.history.trim(inner.ring.oldest_seq());
            self.ring.set_history(&inner.ring, self.history.clone());
            if resets {
                self.ring.set_oldest_revision(&inner.ring, turn.to + 1);
            }
            self.position.epoch = turn.epoch;
        }
        self.position.revision = revision.revision;
        self.highest = self.highest.max(revision.revision);
        self.written = true;
        self.ring.publish_head(&inner.ring);
        self.ring.set_progress(&inner.ring, self.position);
        self.poisoned = false;
        let gauges = &inner.gauges;
        gauges.events.store(gauges.events.load(Relaxed) + count as u64, Relaxed);
        gauges.revisions.store(gauges.revisions.load(Relaxed) + 1, Relaxed);
        gauges.window_segments.store(self.ring.segments_live() as u64, Relaxed);
        gauges.open_bytes.store(self.ring.untold_bytes(), Relaxed);
        gauges.tombstones.store(self.tombstones.len() as u64, Relaxed);
        gauges.table_bytes.store(self.table_bytes(), Relaxed);
        gauges.buckets.store(self.router.len() as u64, Relaxed);
        if revision.turn.is_some() {
            inner.hub.notify(inner);
        } else {
            inner.hub.published_events(inner, &self.router);
        }
        self.router.done();
        // Everything is visible: what this revision replaced may have to wait for the reclaimer.
        self.patience.wait_for_room();
    }

    fn write_log(&mut self, inner: &Inner, revision: &Revision, plan: &mut Plan, prepared: &[Prepared]) {
        let seqs = plan.seqs.take();
        let marks = usize::from(revision.turn.is_some());
        let last = prepared.len() + 2 * marks - 1;
        let events = seqs.iter().enumerate().map(|(at, seq)| {
            if let Some(turn) = &revision.turn {
                let phase = if at == 0 { Some(Phase::Begin) } else { (at == last).then_some(Phase::End) };
                if let Some(phase) = phase {
                    return (Event::resync_mark(&turn.mark(phase), seq), 0);
                }
            }
            let one = &prepared[at - marks];
            let mut bits = one.flags;
            if marks == 0 {
                bits |= if at == 0 { flags::FIRST } else { 0 } | if at == last { flags::LAST } else { 0 };
            }
            // One count goes to the event, and with it the count of the version before.
            let event = Event {
                revision: revision.revision,
                sequence: seq,
                kind: one.kind,
                flags: bits,
                kv: one.cur,
                prev: if one.before.get().is_some_and(|kv| !kv.is_tombstone()) { one.before } else { VersionPtr::NULL },
                extra: [0; 3],
            };
            (event, one.kept())
        });
        self.ring.write(&inner.ring, plan, events, &mut self.router);
    }

    fn write_store(&mut self, inner: &Inner, prepared: &mut Vec<Prepared>) {
        let gauges = &inner.gauges;
        let (mut objects, mut bytes) = (gauges.objects.load(Relaxed), gauges.version_bytes.load(Relaxed) as i64);
        let mut slot_bytes = gauges.slot_bytes.load(Relaxed);
        for one in prepared.drain(..) {
            let Some(cur) = one.cur.take() else { continue };
            bytes += cur.bytes() as i64 - one.before.get().map_or(0, |kv| kv.bytes() as i64);
            let seq = cur.seq();
            match one.kind {
                Kind::Added => objects += 1,
                Kind::Deleted => objects -= 1,
                _ => {}
            }
            let slot = match one.slot {
                // The count of what was there has moved into the event. A key that a resync deletes
                // and puts again stands twice: the second store replaces the tombstone.
                Some(slot) => {
                    slot.set_newest(cur);
                    slot
                }
                None => {
                    let slot = SlotPtr::new(cur);
                    slot_bytes += slot.bytes() as u64;
                    self.slots.insert(slot);
                    self.index.insert(slot);
                    self.index_changed = true;
                    slot
                }
            };
            if one.kind == Kind::Deleted {
                self.tombstones.push_back((seq, slot));
            }
        }
        if self.index_changed {
            self.index_changed = false;
            let copied = self.index.take_copied();
            inner.root.replace(Arc::new(self.index.clone()), copied);
            for slot in self.forgotten.drain(..) {
                slot_bytes -= slot.bytes() as u64;
                bytes -= slot.newest().get().map_or(0, |kv| kv.bytes() as i64);
                self.ring.keep_forgotten(slot);
            }
            gauges.tree_bytes.store(self.index.bytes() as u64, Relaxed);
        }
        gauges.objects.store(objects, Relaxed);
        gauges.version_bytes.store(bytes as u64, Relaxed);
        gauges.slot_bytes.store(slot_bytes, Relaxed);
    }
}
