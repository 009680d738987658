//! Events of the log: by view where nothing is filtered, by scan, or by the chain of a bucket.

#![forbid(unsafe_code)]

use super::{Frontier, Halt, Step, Subscription};
use crate::batch::{Batch, BatchBuilder, CutAtLoss, Noted};
use crate::cache::ReadPath;
use crate::data::event::{Event, Kind, Phase};
use crate::error::{Code, Error};
use crate::log::ring::{Located, cut_at_revision, run_of};
use crate::log::segment::SegmentRef;
use crate::position::Position;
use crate::reclaim;

/// What a subscription did so far, and how.
///
/// ```
/// use watchcore::{Cache, Change, Index, ReadPath, Start};
///
/// let cache = Cache::builder("/").index(Index::key()).build()?;
/// let mut writer = cache.writer()?;
/// let mut one = cache.subscribe(Start::Now).key("/a").open()?;
/// writer.apply(1, [Change::put("/a", "1"), Change::put("/b", "1")])?;
/// one.poll(10)?;
/// writer.apply(2, [Change::put("/b", "2"), Change::put("/a", "2")])?;
/// one.poll(10)?;
/// assert_eq!(one.stats().read_path, ReadPath::Chain { index: "key".into() });
/// # Ok::<(), watchcore::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SubscriptionStats {
    /// Which way it reads now.
    pub read_path: ReadPath,
    /// Events that it looked at.
    pub looked_at: u64,
    /// Events of the log that it passed over unseen: not of its bucket, or in a segment that the
    /// summary ruled out.
    pub skipped: u64,
    /// Events and marks that it handed out.
    pub handed_out: u64,
    /// Times that it lost events, told or made up.
    pub lagged: u64,
    /// Keys that it remembers as shown (policies Resnapshot and Conflate).
    pub delivered_keys: u64,
    /// Bytes of that memory.
    pub delivered_bytes: u64,
}

/// A place to go back to: the begin of a revision. Its segment's count is kept: what was within reach does
/// not get lost.
#[derive(Clone)]
struct Border {
    seq: u64,
    position: Position,
    segment: Option<SegmentRef>,
}

impl Subscription {
    /// What it did so far, and which way it reads.
    pub fn stats(&self) -> SubscriptionStats {
        let read_path = self.index_name().map_or(ReadPath::Scan, |index| ReadPath::Chain { index: index.to_string() });
        SubscriptionStats {
            read_path,
            looked_at: self.reader.looked,
            skipped: self.reader.skipped,
            handed_out: self.shared.handed_out(),
            lagged: self.shared.losses(),
            delivered_keys: self.delivered.as_ref().map_or(0, |delivered| delivered.len()),
            delivered_bytes: self.delivered.as_ref().map_or(0, |delivered| delivered.bytes()),
        }
    }

    /// The next batch of events.
    pub(super) fn events(&mut self, frontier: &Frontier, max: usize) -> Step<Batch> {
        if self.plain {
            return self.view(frontier, max);
        }
        loop {
            let Some(bucket) = self.chain() else { return self.gather(frontier, max) };
            let links = match self.reader.links.take() {
                Some(links) => *links,
                None => {
                    // After head: what lies below it has its mark here.
                    let mark = self.shared.inner.ring.newest_mark();
                    if mark >= self.cursor && self.cursor < frontier.head {
                        // No event of a new epoch before its bracket.
                        self.go_to_mark(&bucket, frontier)?;
                        let to = Frontier { head: frontier.head.min(mark + 1), ..*frontier };
                        let batch = self.gather(&to, max)?;
                        if batch.is_empty() && self.cursor < frontier.head {
                            continue;
                        }
                        return Ok(batch);
                    }
                    match self.collect(&bucket, frontier)? {
                        Some(links) => links,
                        // Too dense for a chain.
                        None if self.cursor < frontier.head => continue,
                        None => return Ok(Batch::empty(self.position)),
                    }
                }
            };
            let batch = self.follow(links, frontier, max)?;
            if !batch.is_empty() || self.cursor >= frontier.head {
                return Ok(batch);
            }
        }
    }

    /// Puts the segment of the cursor into the hand, from the directory if it is not there yet.
    /// False: the cursor moved on to the next segment, look again.
    #[inline]
    fn hold(&mut self) -> Step<bool> {
        let base = self.shared.inner.ring.base_of(self.cursor);
        if self.segment.as_ref().is_some_and(|held| held.base() == base) { Ok(true) } else { self.fetch() }
    }

    #[cold]
    fn fetch(&mut self) -> Step<bool> {
        self.segment = None;
        match self.shared.inner.ring.locate(self.cursor, &reclaim::pin()) {
            Located::Segment(segment) => {
                self.segment = Some(segment);
                Ok(true)
            }
            Located::Next(to) => {
                self.cursor = to;
                Ok(false)
            }
            Located::Evicted => Err(Halt::Lost(self.loss())),
        }
    }

    /// The segment as an owned count, for loops that change the subscription meanwhile.
    pub(super) fn segment(&mut self) -> Step<Option<SegmentRef>> {
        Ok(if self.hold()? { self.segment.clone() } else { None })
    }

    /// Unfiltered: a run of one segment, nothing copied.
    fn view(&mut self, frontier: &Frontier, max: usize) -> Step<Batch> {
        while self.cursor < frontier.head {
            if !self.hold()? {
                continue;
            }
            let Some(segment) = &self.segment else { continue };
            let run = run_of(segment, self.cursor, frontier.head);
            if run.is_empty() {
                self.cursor = segment.limit();
                continue;
            }
            let events = segment.view(run.clone());
            let (count, continues) = cut_at_revision(events, max);
            let taken = &events[..count];
            let end = run.start + count as u64;
            if self.shared.inner.ring.newest_mark() >= run.start
                && let Some(mark) = taken.iter().rev().find_map(Event::resync)
                && mark.phase == Phase::End
            {
                self.position = Position { epoch: mark.epoch, revision: mark.to };
            }
            // Inside a revision the position stays before it.
            let whole = if continues { taken.iter().rposition(|event| event.is_last()) } else { Some(count - 1) };
            if let Some(last) = whole {
                self.position.revision = taken[last].revision();
            }
            self.cursor = end;
            self.reader.looked += count as u64;
            let segment = segment.clone();
            if self.delivered.is_some() {
                segment.view(run.start..end).iter().for_each(|event| self.record(event.kind(), event));
            }
            return Ok(Batch::view(segment, run.start..end, continues, self.position));
        }
        Ok(Batch::empty(self.position))
    }

    /// Filtered: a compact array of the events that pass, from at most four segments.
    fn gather(&mut self, frontier: &Frontier, max: usize) -> Step<Batch> {
        let border = Border { seq: self.cursor, position: self.position, segment: None };
        let mut batch = BatchBuilder::new(max, self.whole_revisions, border);
        let gathered = self.fill(&mut batch, frontier);
        // What lies behind the end of the batch was not shown.
        self.note_all(batch.take_noted());
        if self.segment.as_ref().is_some_and(|held| held.base() != self.shared.inner.ring.base_of(self.cursor)) {
            self.segment = None;
        }
        gathered.map(|()| batch.finish(self.position))
    }

    /// Moves the cursor over events and puts those that pass into a batch, until it is full or the head is
    /// reached. An error is told by the next poll where there is something to hand out first.
    fn fill(&mut self, batch: &mut BatchBuilder<Border>, frontier: &Frontier) -> Step<()> {
        let first = self.cursor;
        while self.cursor < frontier.head {
            let segment = match self.segment() {
                Ok(Some(segment)) => segment,
                Ok(None) => continue,
                Err(halt) => return self.end_at_loss(batch, halt),
            };
            let run = run_of(&segment, self.cursor, frontier.head);
            if run.is_empty() {
                self.cursor = segment.limit();
                self.segment = None;
                continue;
            }
            if self.skips(&segment, frontier) {
                continue;
            }
            for event in segment.view(run) {
                if event.sequence() == first && !event.is_synthetic() {
                    // The notifier may have moved the cursor: all before this revision was looked at.
                    let before = event.resync().map_or_else(|| event.revision() - 1, |mark| mark.from);
                    self.position.revision = self.position.revision.max(before);
                    batch.border().position = self.position;
                }
                if event.is_first() {
                    let border = batch.begin_revision();
                    (border.seq, border.position) = (event.sequence(), self.position);
                    if border.segment.as_ref().is_none_or(|held| held.base() != segment.base()) {
                        border.segment = Some(segment.clone());
                    }
                }
                if !self.take(batch, &segment, event)? {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Puts an event into a batch if it passes, and moves over it. False: the batch has ended.
    #[inline]
    fn take(&mut self, batch: &mut BatchBuilder<Border>, segment: &SegmentRef, event: &Event) -> Step<bool> {
        self.reader.looked += 1;
        let kind = match self.passes(event) {
            Ok(kind) => kind,
            Err(_) if !batch.is_empty() => return Ok(false),
            Err(halt) => return Err(halt),
        };
        if let Some(kind) = kind {
            if kind == Kind::Resync || self.matcher.shows(kind) {
                if !batch.fits(segment) {
                    match batch.cut() {
                        Some(border) => self.go_back(border),
                        None => self.cursor = event.sequence(),
                    }
                    return Ok(false);
                }
                let (delivered, gone) = self.matcher.shown(event, kind);
                batch.push_logged(segment, event.sequence(), delivered, gone);
            }
            if self.delivered.is_some() {
                batch.record(kind, event.sequence(), segment);
            }
        }
        self.move_over(event);
        Ok(true)
    }

    /// The segment of the cursor has left. What was gathered is handed out first, without the part of a
    /// revision whose rest is lost; the next poll tells the loss.
    #[cold]
    fn end_at_loss(&mut self, batch: &mut BatchBuilder<Border>, halt: Halt) -> Step<()> {
        if batch.is_empty() {
            return Err(halt);
        }
        // At the end of a revision the position has moved away from its begin.
        if !batch.ends_inside() || batch.border().position != self.position {
            return Ok(());
        }
        match batch.cut_at_loss() {
            CutAtLoss::Back(border) => self.go_back(border),
            CutAtLoss::Inside => {}
            CutAtLoss::Nothing(border) => {
                self.go_back(border);
                return Err(halt);
            }
        }
        Ok(())
    }

    fn go_back(&mut self, border: Border) {
        (self.cursor, self.position, self.segment) = (border.seq, border.position, border.segment);
    }

    /// Remembers what lies below the cursor as shown.
    pub(super) fn note_all(&mut self, noted: Vec<Noted>) {
        for Noted { kind, seq, segment } in noted {
            if seq < self.cursor {
                self.record(kind, segment.event(seq));
            }
        }
    }

    /// Moves over a whole segment that holds nothing for this filter.
    fn skips(&mut self, segment: &SegmentRef, frontier: &Frontier) -> bool {
        let whole = self.cursor == segment.base() && frontier.head >= segment.limit();
        if !whole || !segment.excluded_by(&self.matcher) {
            return false;
        }
        let end = segment.end(frontier.head);
        self.reader.skipped += end - segment.base();
        // It begins and ends with whole revisions, and holds no mark.
        self.position.revision = segment.event(end - 1).revision();
        self.cursor = segment.limit();
        self.segment = None;
        true
    }

    pub(super) fn move_over(&mut self, event: &Event) {
        self.cursor = event.sequence() + 1;
        if event.is_last() {
            self.position.revision = event.revision();
            if let Some(mark) = event.resync() {
                self.position.epoch = mark.epoch;
            }
        }
    }

    /// What an event is to this subscription: filter, and the wish to stop at a resync.
    pub(super) fn passes(&self, event: &Event) -> Step<Option<Kind>> {
        if self.stop_on_resync
            && let Some(mark) = event.resync()
        {
            return Err(resynced(mark.to, mark.reason.name(), self.position).into());
        }
        Ok(self.matcher.transition(event))
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
