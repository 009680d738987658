//! The cursor of a subscription: three values that belong together and change only here.
//!
//! | part | meaning |
//! | --- | --- |
//! | `seq` | the next sequence number to look at |
//! | `position` | every match up to and with this revision was handed out; inside a revision it stays before it |
//! | `segment` | the segment that it reads, counted: a segment that leaves the window under a reader stays readable until the reader has left it |
//!
//! The segment is that of `seq`, or one that `seq` has moved out of; [`Cursor::next_run`] replaces it then. A
//! cursor that sleeps holds none ([`Cursor::release`]).
//!
//! Between two calls of the consumer it is stored in the words that other threads see (`awake`).
//!
//! Example, with segments of 4: the cursor stands at (6, revision 11) in the segment of 4 to 7, and the head is
//! 10. `next_run` gives 6 to 7. Their two events are revision 12, so `pass` over both leads to (8, revision 12).
//! The next `next_run` takes the segment of 8 to 11 and gives 8 to 9.

#![forbid(unsafe_code)]

use crate::data::event::{Event, Phase};
use crate::log::ring::{Ring, Run};
use crate::log::segment::SegmentRef;
use crate::position::Position;

/// Where the reading of the log begins: the first sequence number, and the position before its event.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadFrom {
    pub(super) seq: u64,
    pub(super) position: Position,
}

/// See the module.
#[derive(Clone)]
pub(super) struct Cursor {
    seq: u64,
    position: Position,
    segment: Option<SegmentRef>,
}

impl Cursor {
    /// The cursor as it was stored after the last call, with the segment that it kept.
    #[inline]
    pub(super) fn taken_up(seq: u64, position: Position, segment: Option<SegmentRef>) -> Cursor {
        Cursor { seq, position, segment }
    }

    #[inline]
    pub(super) fn seq(&self) -> u64 {
        self.seq
    }

    #[inline]
    pub(super) fn position(&self) -> Position {
        self.position
    }

    /// Whether it keeps the segment of its sequence number.
    #[inline]
    pub(super) fn is_in_segment(&self) -> bool {
        self.segment.as_ref().is_some_and(|segment| segment.contains(self.seq))
    }

    /// Moves to a start, the end of a lost range, or the end of a catch-up.
    pub(super) fn begin_at(&mut self, ReadFrom { seq, position }: ReadFrom) {
        *self = Cursor { seq, position, segment: None };
    }

    /// Drops its count on its segment: before it sleeps, and where it does not read on.
    pub(super) fn release(&mut self) {
        self.segment = None;
    }

    /// Takes the segment out, to walk with or to store between calls; [`Cursor::keep`] puts one in.
    pub(super) fn lend(&mut self) -> Option<SegmentRef> {
        self.segment.take()
    }

    /// A further count on the segment that it keeps.
    pub(super) fn held_segment(&self) -> Option<SegmentRef> {
        self.segment.clone()
    }

    /// The segment that it keeps.
    pub(super) fn segment(&self) -> Option<&SegmentRef> {
        self.segment.as_ref()
    }

    /// Keeps a segment, if its sequence number lies there and it keeps none.
    pub(super) fn keep_if_none(&mut self, segment: SegmentRef) {
        if self.segment.is_none() {
            self.keep(Some(segment));
        }
    }

    /// Keeps a segment, if its sequence number lies there.
    pub(super) fn keep(&mut self, segment: Option<SegmentRef>) {
        self.segment = segment.filter(|segment| segment.contains(self.seq));
    }

    /// The next events below `head`, those of one segment. Moves on to the next segment where one ends.
    #[inline]
    pub(super) fn next_run(&mut self, ring: &Ring, head: u64) -> Run {
        ring.next_run(&mut self.seq, &mut self.segment, head)
    }

    /// Moves over an event.
    #[inline]
    pub(super) fn pass(&mut self, event: &Event) {
        self.seq = event.sequence() + 1;
        if event.is_last() {
            self.position.revision = event.revision();
            if let Some(mark) = event.resync() {
                self.position.epoch = mark.epoch;
            }
        }
    }

    /// Moves over the first events of a run. `may_hold_mark`: a resync may end among them. `continues`: they
    /// end inside a revision.
    #[inline]
    pub(super) fn pass_run(&mut self, events: &[Event], may_hold_mark: bool, continues: bool) {
        self.seq += events.len() as u64;
        if may_hold_mark
            && let Some(mark) = events.iter().rev().find_map(Event::resync)
            && mark.phase == Phase::End
        {
            self.position = Position { epoch: mark.epoch, revision: mark.to };
        }
        let last = if continues { events.iter().rfind(|event| event.is_last()) } else { events.last() };
        if let Some(last) = last {
            self.position.revision = last.revision();
        }
    }

    /// Moves from the begin of its segment over all of its events below `head`, and returns their number. The segment
    /// has no mark, and begins and ends with whole revisions.
    pub(super) fn pass_segment(&mut self, head: u64) -> u64 {
        let Some(segment) = self.segment.take() else { return 0 };
        let end = segment.end(head);
        self.position.revision = segment.event(end - 1).revision();
        self.seq = segment.limit();
        end - segment.base()
    }

    /// Moves forward to a sequence number, below which no event concerns the subscription. Never backwards.
    #[inline]
    pub(super) fn jump(&mut self, seq: u64) {
        self.seq = self.seq.max(seq);
        if !self.is_in_segment() {
            self.segment = None;
        }
    }

    /// Raises the position, because everything up to this revision of its epoch was looked at.
    #[inline]
    pub(super) fn reach(&mut self, revision: u64) {
        self.position.revision = self.position.revision.max(revision);
    }

    /// Enters a later epoch during a wait for a revision.
    pub(super) fn enter_epoch(&mut self, epoch: u64) {
        self.position.epoch = epoch;
    }

    /// Goes back to a rollback point: the events that it has passed since are not handed out.
    pub(super) fn go_back(&mut self, seq: u64, position: Position, segment: Option<SegmentRef>) {
        *self = Cursor { seq, position, segment };
    }
}
