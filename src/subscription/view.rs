//! A batch without a filter: a view of a run of the cursor's segment, without a copy.

#![forbid(unsafe_code)]

use super::awake::Awake;
use super::delivered::record;
use crate::batch::Batch;
use crate::log::ring::cut_at_revision;
use std::ops::Range;

/// The view of at most `max` events of a run. Moves the cursor over them.
#[inline(always)]
pub(super) fn of_run(awake: &mut Awake<'_>, run: Range<u64>, max: usize) -> Batch {
    let Some(segment) = awake.cursor.held_segment() else { return Batch::empty(awake.position()) };
    let events = segment.view(run.clone());
    let (count, continues) = cut_at_revision(events, max);
    let taken = &events[..count];
    awake.cursor.pass_run(taken, awake.shared.inner.ring.newest_mark() >= run.start, continues);
    awake.state.looked += count as u64;
    if let Some(keys) = awake.state.delivered() {
        taken.iter().for_each(|event| record(keys, awake.shared, event.kind(), event));
    }
    Batch::view(segment, run.start..awake.cursor.seq(), continues, awake.position())
}
