//! The scan of the log: the source of the events of a subscription that reads no chain.

#![forbid(unsafe_code)]

use super::awake::Awake;
use super::loss::{Halt, Step};
use super::traverse::EventSource;
use crate::data::event::Event;
use crate::log::ring::Run;
use crate::log::segment::Segment;
use std::ops::Range;

/// The events of the log below a head.
pub(super) struct LogScan {
    head: u64,
    run: Range<u64>,
}

impl LogScan {
    pub(super) fn new(head: u64) -> LogScan {
        LogScan { head, run: 0..0 }
    }
}

impl EventSource for LogScan {
    fn advance(&mut self, awake: &mut Awake<'_>) -> Step<bool> {
        while let Some(run) = next_run(awake, self.head)? {
            if !skips_segment(awake, self.head) {
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

/// The next events of the log from the cursor on, in its segment; `None` at the head.
#[inline]
pub(super) fn next_run(awake: &mut Awake<'_>, head: u64) -> Step<Option<Range<u64>>> {
    match awake.cursor.next_run(&awake.shared.inner.ring, head) {
        Run::Events(run) => Ok(Some(run)),
        Run::Head => Ok(None),
        Run::Evicted => Err(Halt::Lost(awake.loss())),
    }
}

/// Moves over the whole segment of the cursor, if its summary excludes this filter.
fn skips_segment(awake: &mut Awake<'_>, head: u64) -> bool {
    let Some(segment) = awake.cursor.segment() else { return false };
    let whole = awake.cursor.seq() == segment.base() && head >= segment.limit();
    if !whole || !segment.excluded_by(&awake.shared.matcher) {
        return false;
    }
    let passed = awake.cursor.pass_segment(head);
    awake.state.rare().path.skipped += passed;
    true
}
