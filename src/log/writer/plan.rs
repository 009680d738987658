//! The plan of a commit, decided before anything is written: where the events of a revision go, and which segments leave.
//!
//! A plan changes nothing. It allocates what the commit needs, so that the commit cannot fail, and
//! `RingWriter::begin` carries it out. The rules with an example in numbers: docs/internals/window.md.

#![forbid(unsafe_code)]

use super::{Live, RingWriter, WindowLimits};
use crate::heap::{HeapArc, System};
use crate::log::retention::RetentionToken;
use crate::log::ring::{Directory, Ring};
use crate::log::segment::{Before, SegmentWriter, own_bytes};
use crate::log::summaries::Summary;
use std::ops::Range;

/// The sequence numbers of one revision: runs of consecutive ones.
pub(crate) struct Seqs {
    first: Range<u64>,
    more: Vec<Range<u64>>,
}

impl Seqs {
    pub(crate) fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.first.clone().chain(self.more.iter().cloned().flatten())
    }

    pub(crate) fn first(&self) -> u64 {
        self.first.start
    }

    pub(crate) fn last(&self) -> u64 {
        self.more.last().unwrap_or(&self.first).end - 1
    }

    pub(crate) fn take(&mut self) -> Seqs {
        std::mem::replace(self, Seqs { first: 0..0, more: Vec::new() })
    }

    fn add(&mut self, run: Range<u64>) {
        match (run.is_empty(), self.first.is_empty()) {
            (true, _) => {}
            (_, true) => self.first = run,
            _ => self.more.push(run),
        }
    }
}

/// A segment that a revision needs beyond the newest one.
pub(super) struct Opened {
    pub(super) token: RetentionToken,
    pub(super) writer: SegmentWriter,
    pub(super) summary: Box<Summary>,
}

/// The additions of a revision to the window before its own events: segments, the events of those that it closes, bytes.
#[derive(Clone, Copy, Default)]
pub(super) struct Coming {
    segments: u64,
    events: u64,
    bytes: u64,
}

/// The oldest segments that go together.
#[derive(Clone, Copy, Default)]
struct Group {
    segments: usize,
    events: u64,
    bytes: u64,
}

/// The places of the events of one revision, with the allocations that they need.
pub(crate) struct Plan {
    pub(crate) seqs: Seqs,
    pub(super) opened: Vec<Opened>,
    /// Slots used in the segments left: the newest one before, then each opened but the last.
    pub(super) closed: Vec<u64>,
    pub(super) directory: Option<HeapArc<Directory>>,
    pub(super) oversized: bool,
    /// How many of the oldest segments go first.
    pub(super) evicted: usize,
    pub(super) fill: u64,
}

impl RingWriter {
    /// The sequence number of a revision of one event that adds so many bytes, where it needs no plan: the segment in
    /// hand has room, and nothing has to leave.
    #[inline]
    pub(crate) fn room_for_one(&self, added: u64) -> Option<u64> {
        let bytes = self.live.back().map_or(0, Live::bytes);
        let full = self.fill == self.newest.segment().limit() - self.base
            || self.fill > 0 && bytes >= self.limits.segment_bytes
            || self.bytes() + added > self.limits.bytes;
        (!full).then_some(self.base + self.fill)
    }

    /// Prepare: lays out the events of one revision (their bytes are given) and allocates for it.
    pub(crate) fn plan(&self, ring: &Ring, sizes: impl ExactSizeIterator<Item = u64>) -> Plan {
        let count = sizes.len() as u64;
        let slots = ring.slots;
        let short = count <= slots / 8;
        let mut base = self.base;
        let start = base + self.fill;
        let mut plan = Plan {
            seqs: Seqs { first: start..start, more: Vec::new() },
            opened: Vec::new(),
            closed: Vec::new(),
            directory: None,
            oversized: false,
            evicted: 0,
            fill: self.fill,
        };
        let mut bytes = self.live.back().map_or(0, Live::bytes);
        let mut events = self.newest.segment().events_before();
        let mut added = 0;
        let mut run = start..start;
        for (at, size) in sizes.enumerate() {
            // A short revision never straddles: whether it fits is asked once, before its first event.
            let full = if short {
                at == 0 && (plan.fill + count > slots || plan.fill > 0 && bytes >= self.limits.segment_bytes)
            } else {
                plan.fill == slots || plan.fill > 0 && bytes >= self.limits.segment_bytes
            };
            if full {
                let end = base + plan.fill;
                plan.closed.push(plan.fill);
                base += slots;
                events += plan.fill;
                let writer =
                    SegmentWriter::new(base, slots as usize, Before { end, events }, ring.width, ring.held.clone());
                let token = RetentionToken::new(writer.segment().clone(), ring.ages.clone());
                plan.opened.push(Opened { token, writer, summary: Box::new(Summary::new(&self.schema)) });
                plan.fill = 0;
                bytes = own_bytes(slots as usize, ring.width) as u64;
                added += bytes;
                plan.seqs.add(std::mem::replace(&mut run, base..base));
            }
            run.end += 1;
            plan.fill += 1;
            bytes += size;
            added += size;
        }
        plan.seqs.add(run);
        if !plan.opened.is_empty() || self.bytes() + added > self.limits.bytes {
            self.plan_directory(ring, &mut plan, added);
        }
        plan
    }

    /// Plans which segments leave, and whether another directory is due: an oversized revision needs a longer one; when the
    /// last of them is gone, a short one follows.
    fn plan_directory(&self, ring: &Ring, plan: &mut Plan, added: u64) {
        let opened = plan.opened.len() as u64;
        let closed: u64 = plan.closed.iter().sum();
        let WindowLimits { events, segments, bytes, .. } = self.limits;
        plan.oversized = opened + 1 > segments || opened > 0 && (closed + ring.slots > events || added > bytes);
        // The other events of an oversized revision's last segment leave with it.
        let of_oversized = if self.is_oversized { plan.closed.first().copied().unwrap_or_default() } else { 0 };
        let coming = Coming { segments: opened, events: closed - of_oversized, bytes: added };
        plan.evicted = if plan.oversized { self.left_by_oversized() } else { self.leaving(coming, ring.ages.now()) };
        let stay = self.live.len() - plan.evicted;
        let oversized_stay =
            self.oversized.segments > 0 && self.live.iter().skip(plan.evicted).any(|live| live.oversized != 0);
        let size = if plan.oversized {
            stay as u64 + opened + segments + 1
        } else if oversized_stay {
            self.directory.size()
        } else {
            segments
        };
        if size != self.directory.size() {
            plan.directory = Some(HeapArc::new(Directory::new(size), &mut System));
        }
    }

    /// The oldest segments from `gone` on that go together: those of one oversized revision do.
    fn group(&self, gone: usize) -> Group {
        let id = self.live[gone].oversized;
        let together = self.live.range(gone..).take_while(|live| live.oversized == id);
        let mut group = Group::default();
        for live in together.take(if id == 0 { 1 } else { usize::MAX }) {
            group.segments += 1;
            group.bytes += live.bytes();
        }
        let next = gone + group.segments;
        let rest = if next < self.live.len() { self.closed_from(next) } else { 0 };
        group.events = self.closed_from(gone) - rest;
        group
    }

    /// Events of the closed segments from one on.
    fn closed_from(&self, segment: usize) -> u64 {
        self.newest.segment().events_before() - self.live[segment].token.segment().events_before()
    }

    /// How many of the oldest segments leave when this comes. Ordinary segments stay up to the window's limits of events,
    /// segments and bytes; those of an oversized revision do not count, and leave when they are the oldest and others have to. The newest
    /// segment stays, and counts whole, for it fills without a plan. With an age to keep, older segments leave too.
    ///
    /// With the limit of events alone, at least that limit less two segments stays: with the segment that left last there
    /// were too many, and the newest may be empty. A segment has an eighth of the capacity at most, so that is 7/8 of the
    /// capacity less one segment.
    pub(super) fn leaving(&self, coming: Coming, now: u64) -> usize {
        let fills = coming.segments > 0 || !self.is_oversized;
        let mut segments = self.ordinary.segments + coming.segments;
        let mut events = self.ordinary.events + coming.events + if fills { self.slots() } else { 0 };
        let mut bytes = self.bytes() + coming.bytes;
        let limits = &self.limits;
        let mut gone = 0;
        loop {
            let group = self.group(gone);
            let next = gone + group.segments;
            let full = events > limits.events || segments > limits.segments || bytes > limits.bytes;
            if next >= self.live.len() || !(full || self.is_aged(next, now)) {
                return gone;
            }
            if self.live[gone].oversized == 0 {
                (segments, events, bytes) = (segments - 1, events - group.events, bytes - group.bytes);
            }
            gone = next;
        }
    }

    /// Whether all before this segment is older than has to be kept, and enough stays. Events are counted, not sequence
    /// numbers: slots that a segment leaves free are no events.
    fn is_aged(&self, segment: usize, now: u64) -> bool {
        let Some((age, events)) = self.limits.keep else { return false };
        now.saturating_sub(self.live[segment].opened) >= age && self.closed_from(segment) + self.fill >= events
    }

    /// An oversized revision evicts only what the window's events, or its bytes, of younger ones follow, so that one of them
    /// evicts nothing and many do not add up (I9).
    fn left_by_oversized(&self) -> usize {
        let mut bytes = self.ordinary.bytes + self.oversized.bytes;
        let mut gone = 0;
        loop {
            let group = self.group(gone);
            let next = gone + group.segments;
            bytes -= group.bytes;
            if next == self.live.len() {
                return gone;
            }
            if self.closed_from(next) + self.slots() < self.limits.events && bytes < self.limits.bytes {
                return gone;
            }
            gone = next;
        }
    }
}
