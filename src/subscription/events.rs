//! The next events of a live subscription: without a filter a view of the log, else a traversal of a scan of the log or
//! of the chain of a bucket.

#![forbid(unsafe_code)]

use super::awake::{Awake, Frontier};
use super::chain::{ChainEnd, Links};
use super::own::Flag;
use super::traverse::{EventSource, Traversal};
use super::{Halt, Step};
use crate::batch::Batch;
use crate::data::event::{Event, Kind};
use crate::error::{Code, Error};
use crate::log::ring::{Run, cut_at_revision};
use crate::log::segment::Segment;
use crate::position::Position;
use std::ops::Range;

/// The source of the next events.
enum NextRead {
    /// A scan of the log up to a sequence number.
    Log(LogSource),
    /// Links that were collected and not followed yet.
    Links(Links),
    /// The chain of a bucket, whose links are to be collected.
    Chain(ChainEnd),
    /// The cursor is at the head.
    Head,
}

/// The events of the log below a head.
struct LogSource {
    head: u64,
    run: Range<u64>,
}

impl EventSource for LogSource {
    fn advance(&mut self, awake: &mut Awake<'_>) -> Step<bool> {
        while let Some(run) = awake.next_run(self.head)? {
            if !awake.skips_segment(self.head) {
                self.run = run;
                return Ok(true);
            }
        }
        Ok(false)
    }

    #[inline]
    fn events<'s>(&self, segment: &'s Segment) -> impl Iterator<Item = &'s Event> {
        segment.view(self.run.clone()).iter()
    }
}

impl Awake<'_> {
    /// The next batch of events.
    pub(super) fn events(&mut self, frontier: &Frontier, max: usize) -> Step<Batch> {
        if self.has(Flag::Plain) {
            let Some(run) = self.next_run(frontier.head)? else { return Ok(Batch::empty(self.position())) };
            return Ok(self.view(run, max));
        }
        self.with_place_kept(|awake| awake.filtered(frontier, max))
    }

    /// Whether a poll has an event to hand out. Moves the cursor to that event, or to the head.
    pub(super) fn peek_events(&mut self, frontier: &Frontier) -> Step<bool> {
        self.with_place_kept(|awake| {
            let mut traversal = Traversal::new(awake, frontier, 0);
            awake.traverse(&mut traversal, frontier)
        })
    }

    /// Calls `run`, which may run predicates. If a predicate panics, the subscription is left at its present cursor,
    /// with the segment that it keeps, as the log may no longer have that.
    fn with_place_kept<T>(&mut self, run: impl FnOnce(&mut Self) -> T) -> T {
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
        if let Some(batch) = self.view_of_one(frontier)? {
            return Ok(batch);
        }
        let mut traversal = Traversal::new(self, frontier, max);
        self.traverse(&mut traversal, frontier)?;
        Ok(traversal.finish(self))
    }

    /// Runs a traversal until it has an event, or everything below the frontier was looked at. True: it ended early,
    /// before an event or at a loss.
    fn traverse(&mut self, traversal: &mut Traversal, frontier: &Frontier) -> Step<bool> {
        loop {
            let ended = match self.next_read(frontier)? {
                NextRead::Log(mut source) => traversal.run(self, &mut source)?,
                NextRead::Links(links) => self.follow(traversal, links, frontier)?,
                NextRead::Chain(chain) => match self.collect(chain, frontier)? {
                    Some(links) => self.follow(traversal, links, frontier)?,
                    None => false,
                },
                NextRead::Head => return Ok(false),
            };
            if ended || !traversal.is_empty() {
                return Ok(ended);
            }
        }
    }

    fn next_read(&mut self, frontier: &Frontier) -> Step<NextRead> {
        if let Some(links) = self.take_links() {
            return Ok(NextRead::Links(*links));
        }
        // Called at the head, too, as it takes over the bucket that the writer has answered with.
        let chain = self.chain();
        if self.cursor.seq() >= frontier.head {
            return Ok(NextRead::Head);
        }
        let Some(chain) = chain else {
            return Ok(NextRead::Log(LogSource { head: self.scan_end(frontier), run: 0..0 }));
        };
        // Loaded after head, so it covers every mark below head.
        if self.shared.inner.ring.newest_mark() >= self.cursor.seq() {
            // Marks are in no chain, and must come before the events of their epoch: scan up to the newest mark.
            self.go_to_mark(chain, frontier)?;
            return self.next_read(frontier);
        }
        Ok(NextRead::Chain(chain))
    }

    /// The next events of the log from the cursor on, in its segment; `None` at the head.
    #[inline]
    pub(super) fn next_run(&mut self, head: u64) -> Step<Option<Range<u64>>> {
        match self.cursor.next_run(&self.shared.inner.ring, head) {
            Run::Events(run) => Ok(Some(run)),
            Run::Head => Ok(None),
            Run::Evicted => Err(Halt::Lost(self.loss())),
        }
    }

    /// A batch without a filter: a view of a run of the cursor's segment, without a copy.
    #[inline(always)]
    pub(super) fn view(&mut self, run: Range<u64>, max: usize) -> Batch {
        let Some(segment) = self.cursor.kept() else { return Batch::empty(self.position()) };
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

    /// Moves over the whole segment of the cursor, if its summary excludes this filter.
    fn skips_segment(&mut self, head: u64) -> bool {
        let Some(segment) = self.cursor.segment() else { return false };
        let whole = self.cursor.seq() == segment.base() && head >= segment.limit();
        if !whole || !segment.excluded_by(&self.shared.matcher) {
            return false;
        }
        let passed = self.cursor.pass_segment(head);
        self.own.cold().reader.skipped += passed;
        true
    }

    /// The kind as which an event passes the filter, if it does; RESYNCED at a resync mark where it is to stop there.
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
