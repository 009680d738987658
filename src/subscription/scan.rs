//! Events of the log: by view where nothing is filtered, by scan, or by the chain of a bucket.

#![forbid(unsafe_code)]

use super::awake::{Awake, Frontier};
use super::cursor::Cursor;
use super::own::Flag;
use super::{Halt, Step};
use crate::batch::{Batch, BatchBuilder, CutAtLoss, Recorded};
use crate::data::event::{Event, Kind};
use crate::error::{Code, Error};
use crate::log::ring::{Run, cut_at_revision};
use crate::log::segment::SegmentRef;
use crate::position::Position;
use std::ops::Range;

impl Awake<'_> {
    /// The next batch of events.
    pub(super) fn events(&mut self, frontier: &Frontier, max: usize) -> Step<Batch> {
        if self.has(Flag::Plain) {
            let Some((segment, run)) = self.next_run(frontier)? else { return Ok(Batch::empty(self.position())) };
            return Ok(self.view(segment, run, max));
        }
        self.with_place_kept(|awake| awake.filtered(frontier, max))
    }

    /// Runs predicates: what panics among them stands again where the subscription stands now, with the segment that it
    /// keeps, which may have left the window.
    pub(super) fn with_place_kept<T>(&mut self, run: impl FnOnce(&mut Self) -> T) -> T {
        let runs_predicates = self.shared.matcher.has_predicates();
        if runs_predicates {
            self.share();
            self.own.segment = self.cursor.kept();
        }
        let done = run(self);
        if runs_predicates {
            self.own.segment = None;
        }
        done
    }

    fn filtered(&mut self, frontier: &Frontier, max: usize) -> Step<Batch> {
        loop {
            let Some(chain) = self.chain() else {
                let to = self.scan_end(frontier);
                let batch = self.gather(&to, max)?;
                if batch.is_empty() && to.head < frontier.head {
                    continue;
                }
                return Ok(batch);
            };
            let links = match self.take_links() {
                Some(links) => *links,
                None => {
                    // After head: what lies below it has its mark here.
                    let mark = self.shared.inner.ring.newest_mark();
                    if mark >= self.cursor.seq() && self.cursor.seq() < frontier.head {
                        // No event of a new epoch before its bracket.
                        self.go_to_mark(chain, frontier)?;
                        let to = Frontier { head: frontier.head.min(mark + 1), ..*frontier };
                        let batch = self.gather(&to, max)?;
                        if batch.is_empty() && self.cursor.seq() < frontier.head {
                            continue;
                        }
                        return Ok(batch);
                    }
                    if let Some(batch) = self.view_of_one(chain, frontier)? {
                        return Ok(batch);
                    }
                    match self.collect(chain, frontier)? {
                        Some(links) => links,
                        // Too dense for a chain.
                        None if self.cursor.seq() < frontier.head => continue,
                        None => return Ok(Batch::empty(self.position())),
                    }
                }
            };
            let batch = self.follow(links, frontier, max)?;
            if !batch.is_empty() || self.cursor.seq() >= frontier.head {
                return Ok(batch);
            }
        }
    }

    /// The next events of the log from the cursor on; `None` at the head.
    #[inline]
    pub(super) fn next_run(&mut self, frontier: &Frontier) -> Step<Option<(SegmentRef, Range<u64>)>> {
        match self.cursor.next_run(&self.shared.inner.ring, frontier.head) {
            Run::Events(segment, run) => Ok(Some((segment, run))),
            Run::Head => Ok(None),
            Run::Evicted => Err(Halt::Lost(self.loss())),
        }
    }

    /// Unfiltered: a run of one segment, nothing copied.
    #[inline(always)]
    pub(super) fn view(&mut self, segment: SegmentRef, run: Range<u64>, max: usize) -> Batch {
        let events = segment.view(run.clone());
        let (count, continues) = cut_at_revision(events, max);
        let taken = &events[..count];
        self.cursor.pass_run(taken, self.shared.inner.ring.newest_mark() >= run.start, continues);
        self.own.looked += count as u64;
        if self.own.keeps_keys() {
            taken.iter().for_each(|event| self.record(event.kind(), event));
        }
        Batch::view(segment, run.start..self.cursor.seq(), continues, self.position())
    }

    /// Filtered: a compact array of the events that pass, from at most four segments, or of one revision that is wanted
    /// whole.
    fn gather(&mut self, frontier: &Frontier, max: usize) -> Step<Batch> {
        if self.cursor.seq() >= frontier.head {
            return Ok(Batch::empty(self.position()));
        }
        let mut batch = BatchBuilder::new(max, self.has(Flag::WholeRevisions), self.cursor.bare());
        let gathered = self.fill(&mut batch, frontier);
        if self.own.keeps_keys() {
            // What lies behind the end of the batch is not delivered.
            self.record_all(batch.take_recorded());
        }
        gathered.map(|()| batch.finish(self.position()))
    }

    /// Moves the cursor over events and puts those that pass into a batch, until it is full or the head is
    /// reached. An error is reported by the next poll where there is something to hand out first.
    fn fill(&mut self, batch: &mut BatchBuilder<Cursor>, frontier: &Frontier) -> Step<()> {
        // Not by its sequence number: the cursor may stand at the end of a segment that was closed early.
        let mut is_first = true;
        loop {
            let (segment, run) = match self.next_run(frontier) {
                Ok(Some(found)) => found,
                Ok(None) => return Ok(()),
                Err(halt) => return self.end_at_loss(batch, halt),
            };
            if self.skips(&segment, frontier) {
                continue;
            }
            for event in segment.view(run) {
                if std::mem::take(&mut is_first) && !event.is_synthetic() {
                    // The notifier may have moved the cursor: all before this revision was looked at.
                    let before = event.resync().map_or_else(|| event.revision() - 1, |mark| mark.from);
                    self.cursor.reach(before);
                    *batch.border() = self.cursor.bare();
                }
                if event.is_first() {
                    self.cursor.save_to(batch.begin_revision(), &segment);
                }
                if !self.take(batch, &segment, event)? {
                    return Ok(());
                }
            }
        }
    }

    /// Puts an event into a batch if it passes, and moves over it. False: the batch has ended.
    #[inline]
    fn take(&mut self, batch: &mut BatchBuilder<Cursor>, segment: &SegmentRef, event: &Event) -> Step<bool> {
        self.own.looked += 1;
        let kind = match self.passes(event) {
            Ok(kind) => kind,
            Err(_) if !batch.is_empty() => return Ok(false),
            Err(halt) => return Err(halt),
        };
        if let Some(kind) = kind {
            if kind == Kind::Resync || self.shared.matcher.delivers(kind) {
                if !batch.fits(segment) {
                    // Without a border it stands before this event.
                    if let Some(border) = batch.cut() {
                        self.cursor.go_back(border);
                    }
                    return Ok(false);
                }
                let (delivered, gone) = self.shared.matcher.delivered_form(event, kind);
                batch.push_logged(segment, event.sequence(), delivered, gone);
            }
            if self.own.keeps_keys() {
                batch.record(kind, event.sequence(), segment);
            }
        }
        self.cursor.pass(event);
        Ok(true)
    }

    /// The segment of the cursor has left. What was gathered is handed out first, without the part of a
    /// revision whose rest is lost; the next poll reports the loss.
    #[cold]
    fn end_at_loss(&mut self, batch: &mut BatchBuilder<Cursor>, halt: Halt) -> Step<()> {
        if batch.is_empty() {
            return Err(halt);
        }
        // At the end of a revision the position has moved away from its begin.
        if !batch.ends_inside() || batch.border().position() != self.position() {
            return Ok(());
        }
        match batch.cut_at_loss() {
            CutAtLoss::Back(border) => self.cursor.go_back(border),
            CutAtLoss::Inside => {}
            CutAtLoss::Nothing(border) => {
                self.cursor.go_back(border);
                return Err(halt);
            }
        }
        Ok(())
    }

    /// Records what lies below the cursor as delivered.
    pub(super) fn record_all(&mut self, recorded: Vec<Recorded>) {
        for Recorded { kind, seq, segment } in recorded {
            if seq < self.cursor.seq() {
                self.record(kind, segment.event(seq));
            }
        }
    }

    /// Moves over a whole segment that holds nothing for this filter.
    fn skips(&mut self, segment: &SegmentRef, frontier: &Frontier) -> bool {
        let whole = self.cursor.seq() == segment.base() && frontier.head >= segment.limit();
        let skips = whole && segment.excluded_by(&self.shared.matcher);
        if skips {
            let passed = self.cursor.pass_segment(segment, frontier.head);
            self.own.cold().reader.skipped += passed;
        }
        skips
    }

    /// What an event is to this subscription: filter, and the wish to stop at a resync.
    pub(super) fn passes(&self, event: &Event) -> Step<Option<Kind>> {
        if self.has(Flag::StopOnResync)
            && let Some(mark) = event.resync()
        {
            return Err(resynced(mark.to, mark.reason.name(), self.position()).into());
        }
        Ok(self.shared.matcher.transition(event))
    }
}

pub(super) fn resynced(to: u64, reason: &str, position: Position) -> Error {
    Error::new(
        Code::Resynced,
        format!(
            "subscription: the history was replaced at revision {to} ({reason}); it asked to stop there. Subscribe again from State."
        ),
    )
    .with_current(to)
    .with_position(position)
}
