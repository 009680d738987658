//! The traversal of a filtered subscription: one for all read paths, and for polls and peeks.
//!
//! An [`EventSource`] gives the events to look at: those of the log, or those of the links of a bucket. A poll fills a
//! batch; a peek is a traversal with room for no event, which stops at the first one that a poll would deliver. These
//! rules are implemented only here:
//!
//! | rule | |
//! | --- | --- |
//! | position | Before the first event of a revision everything below that revision was looked at. A revision is complete when the cursor passes its last event, leaves the segment in which it ends, or comes to the end of its source, which lies between revisions. |
//! | rollback point | A batch that holds a whole revision ends between two revisions: the cursor goes back to the begin of the one that does not fit. Any other batch ends inside its revision, before the event that does not fit, and continues. |
//! | loss | The next segment has left. The gathered events are delivered first, without the revision that is not complete unless there is no other. The next poll reports the loss. |
//! | delivered | Policies that catch up by a difference record each key whose event passes the filter and lies before the end of the batch, also where a mask of kinds hides the event. |

#![forbid(unsafe_code)]

use super::awake::Awake;
use super::delivered::record;
use super::frontier::Frontier;
use super::loss::{Halt, Step, resynced};
use super::state::Flag;
use crate::batch::{Batch, BatchBuilder};
use crate::data::event::{Event, Kind};
use crate::log::segment::{Segment, SegmentRef};
use crate::position::Position;

/// A source of the events to look at, oldest first.
pub(super) trait EventSource {
    /// Moves the cursor to the next event, and into its segment. False: there is none below the head.
    fn advance(&mut self, awake: &mut Awake<'_>) -> Step<bool>;

    /// The events of the segment that `advance` has moved into.
    fn events<'s>(&self, segment: &'s Segment) -> impl Iterator<Item = &'s Event>;
}

/// See the module.
pub(super) struct Traversal {
    batch: BatchBuilder,
    /// The batch does not end inside a revision, whatever maximum was asked for.
    whole: bool,
    /// The head below which it looks.
    head: u64,
    /// The revision that it has come to, 0 for none yet.
    revision: u64,
    rollback: RollbackPoint,
    recorded: Vec<Recorded>,
}

/// The rollback point: the begin of the revision that a traversal has come to.
struct RollbackPoint {
    seq: u64,
    position: Position,
    /// The segment of that begin, where the traversal has moved out of it.
    segment: Option<SegmentRef>,
    /// The number of events of the batch before it.
    before: usize,
}

/// An event that counts as delivered if it lies before the end of the batch.
struct Recorded {
    kind: Kind,
    seq: u64,
    segment: SegmentRef,
}

impl Traversal {
    /// Makes a traversal for at most `max` events below the frontier; 0 is a peek.
    pub(super) fn new(awake: &Awake<'_>, frontier: &Frontier, max: usize) -> Traversal {
        let whole = awake.has(Flag::WholeRevisions);
        Traversal {
            batch: BatchBuilder::new(max, whole),
            whole,
            head: frontier.head,
            revision: 0,
            rollback: RollbackPoint { seq: awake.cursor.seq(), position: awake.position(), segment: None, before: 0 },
            recorded: Vec::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.batch.is_empty()
    }

    pub(super) fn finish(self, awake: &Awake<'_>) -> Batch {
        self.batch.finish(awake.position())
    }

    /// Looks at events until one does not fit, or there are no more. True: the traversal has ended with the cursor
    /// before an event that does not fit, or at a loss that the next poll reports.
    pub(super) fn run(&mut self, awake: &mut Awake<'_>, source: &mut impl EventSource) -> Step<bool> {
        let ended = self.look(awake, source);
        for Recorded { kind, seq, segment } in self.recorded.drain(..) {
            if seq < awake.cursor.seq()
                && let Some(keys) = awake.state.delivered()
            {
                record(keys, awake.shared, kind, segment.event(seq));
            }
        }
        ended
    }

    fn look(&mut self, awake: &mut Awake<'_>, source: &mut impl EventSource) -> Step<bool> {
        loop {
            match source.advance(awake) {
                Ok(true) => {}
                Ok(false) => {
                    awake.cursor.reach(self.revision);
                    return Ok(false);
                }
                Err(halt) => return self.end_at_loss(awake, halt),
            }
            let Some(segment) = awake.cursor.lend() else { return Ok(false) };
            let ended = self.look_in(awake, source, &segment);
            awake.cursor.keep_if_none(segment);
            if ended? {
                return Ok(true);
            }
        }
    }

    /// Looks at the events of one segment.
    fn look_in(&mut self, awake: &mut Awake<'_>, source: &impl EventSource, segment: &SegmentRef) -> Step<bool> {
        let mut last = None;
        for event in source.events(segment) {
            if event.is_first() || event.revision() != self.revision {
                self.begin_revision(awake, event);
            }
            if !self.take(awake, segment, event)? {
                return Ok(true);
            }
            last = Some(event);
        }
        if let Some(last) = last.filter(|last| !last.is_last()) {
            self.leave(awake, segment, last);
        }
        Ok(false)
    }

    /// Sets the rollback point to this event, which is the first of its revision that is looked at.
    #[inline]
    fn begin_revision(&mut self, awake: &mut Awake<'_>, event: &Event) {
        // Synthetic events of a resync have the revision of its END mark, which may be of another history.
        if !event.is_synthetic() {
            awake.cursor.reach(event.resync().map_or_else(|| event.revision() - 1, |mark| mark.from));
        }
        self.revision = event.revision();
        (self.rollback.seq, self.rollback.position) = (awake.cursor.seq(), awake.position());
        self.rollback.before = self.batch.len();
        if self.rollback.segment.is_some() {
            self.rollback.segment = None;
        }
    }

    /// Puts an event into the batch if it passes, and moves over it. False: the batch has ended before it. Inlined,
    /// because most events of a scan do not pass.
    #[inline(always)]
    fn take(&mut self, awake: &mut Awake<'_>, segment: &SegmentRef, event: &Event) -> Step<bool> {
        awake.state.looked += 1;
        match passes(awake, event) {
            Ok(None) => {}
            Ok(Some(kind)) => {
                if !self.put(awake, segment, event, kind) {
                    return Ok(false);
                }
            }
            Err(_) if !self.batch.is_empty() => return Ok(false),
            Err(halt) => return Err(halt),
        }
        awake.cursor.pass(event);
        Ok(true)
    }

    /// Puts an event, which passes as this kind, into the batch. False: there is no room for it.
    fn put(&mut self, awake: &mut Awake<'_>, segment: &SegmentRef, event: &Event, kind: Kind) -> bool {
        let matcher = &awake.shared.matcher;
        if kind == Kind::Resync || matcher.delivers(kind) {
            if !self.fits(segment) {
                self.cut(awake);
                return false;
            }
            let (form, instead) = matcher.delivered_form(event, kind);
            self.batch.push_logged(segment, event.sequence(), form, instead);
        }
        if awake.state.keeps_keys() {
            self.recorded.push(Recorded { kind, seq: event.sequence(), segment: segment.clone() });
        }
        true
    }

    /// Whether the batch has room for a further event. With whole revisions, the first revision fits however long it is.
    fn fits(&self, segment: &SegmentRef) -> bool {
        !self.batch.is_full_for(segment) || (self.whole && self.rollback.before == 0 && !self.batch.is_empty())
    }

    fn cut(&mut self, awake: &mut Awake<'_>) {
        if self.rollback.before > 0 {
            self.go_back(awake);
        } else {
            self.batch.continues(!self.batch.is_empty());
        }
    }

    fn go_back(&mut self, awake: &mut Awake<'_>) {
        let RollbackPoint { seq, position, before, .. } = self.rollback;
        self.batch.truncate(before);
        awake.cursor.go_back(seq, position, self.rollback.segment.take());
    }

    /// Leaves a segment whose last event that was looked at is not the last of its revision. If that revision continues
    /// in the next segment, this one is kept, because the batch may have to go back into it.
    fn leave(&mut self, awake: &mut Awake<'_>, segment: &SegmentRef, last: &Event) {
        let newest = segment.event(segment.end(self.head) - 1);
        if newest.is_last() || newest.revision() != last.revision() {
            awake.cursor.reach(last.revision());
        } else {
            self.rollback.segment.get_or_insert_with(|| segment.clone());
        }
    }

    #[cold]
    fn end_at_loss(&mut self, awake: &mut Awake<'_>, halt: Halt) -> Step<bool> {
        if self.batch.is_empty() {
            return Err(halt);
        }
        let is_complete = awake.position() != self.rollback.position;
        if is_complete || self.batch.len() == self.rollback.before {
            return Ok(true);
        }
        if self.rollback.before == 0 && !self.whole {
            self.batch.continues(true);
            return Ok(true);
        }
        let holds_others = self.rollback.before > 0;
        self.go_back(awake);
        if holds_others { Ok(true) } else { Err(halt) }
    }
}

/// The kind as which an event passes the filter, if it does; RESYNCED at a resync mark where it is to stop there.
fn passes(awake: &Awake<'_>, event: &Event) -> Step<Option<Kind>> {
    if awake.has(Flag::StopOnResync)
        && let Some(mark) = event.resync()
    {
        return Err(resynced(mark.to, mark.reason.name(), awake.position()).into());
    }
    Ok(awake.shared.matcher.transition(event))
}
