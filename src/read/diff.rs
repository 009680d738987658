//! The difference between two states of the window.

#![forbid(unsafe_code)]

use super::view::{At, Left, Scan};
use crate::batch::{Batch, BatchBuilder, Made};
use crate::cache::Inner;
use crate::data::event::{Kind, LogEvent};
use crate::data::key_value::{KeyValue, VersionPtr};
use crate::error::{Code, Error, Result, say};
use crate::filter::matcher::Matcher;
use crate::filter::range::Range;
use crate::log::ring::Located;
use crate::position::Position;
use crate::reclaim;
use std::sync::Arc;

/// See `Cache::diff`.
pub(super) fn diff(inner: &Arc<Inner>, from: Position, to: Position, matcher: &Matcher) -> Result<Batch> {
    let (first, last, epoch) = heads(inner, from, to)?;
    let range = matcher.range().cloned().unwrap_or_else(Range::all);
    let Ok(batch) = changes(inner, matcher, &range, first, last) else {
        return Err(inner.compacted("diff at", from.revision));
    };
    Ok(batch.finish(Position { epoch, revision: to.revision }))
}

/// The heads of both states, and the epoch of the second.
fn heads(inner: &Inner, from: Position, to: Position) -> Result<(u64, u64, u64)> {
    for asked in [from, to] {
        say::check_asked("diff at", asked.revision, || inner.position().revision)?;
    }
    let head_of = |asked: Position| {
        let found = inner.resolve("diff at", asked, true)?;
        if !found.future {
            return Ok(found);
        }
        let current = inner.position().revision;
        Err(Error::new(
            Code::FutureRevision,
            format!("diff at revision {}: the cache is at {current}. Wait for that revision first.", asked.revision),
        )
        .with_asked(asked.revision)
        .with_current(current))
    };
    let (first, last) = (head_of(from)?, head_of(to)?);
    if first.seq > last.seq || from.revision > to.revision {
        return Err(say::invalid(format!(
            "diff from revision {} to {}: the second must not be before the first. Swap them.",
            from.revision, to.revision
        )));
    }
    Ok((first.seq, last.seq, last.epoch))
}

/// A key that changed between two states.
struct Changed {
    /// Its newest change, as the log has it.
    made: Made,
    before: Option<KeyValue>,
    now: KeyValue,
}

/// The changes between the states at two heads, as a filter sees them.
fn changes(inner: &Arc<Inner>, matcher: &Matcher, range: &Range, first: u64, last: u64) -> Result<BatchBuilder, Left> {
    let mut batch = BatchBuilder::new(usize::MAX, false);
    let mut scan = Scan::new(At::Head(inner, first), range, None);
    let (mut page, mut left) = (Vec::new(), false);
    while !scan.is_over() {
        scan.page(usize::MAX, &mut page, |view, slot, before| {
            let now = view.at(slot, last).filter(|kv| kv.seq() >= first)?;
            let Located::Segment(segment) = inner.ring.locate(now.seq(), &reclaim::pin()) else {
                left = true;
                return None;
            };
            let LogEvent { kind, revision, sequence, flags, edges, .. } = *segment.event(now.seq()).log();
            let made = Made { kind, revision, sequence, flags, edges };
            Some(Changed { made, before: before.map(|kv| kv.to_owned()), now: now.to_owned() })
        })?;
        if left {
            return Err(Left);
        }
        for Changed { made, before, now } in page.drain(..) {
            let old = before.as_ref().is_some_and(|kv| matcher.holds(kv));
            let cur = !now.is_tombstone() && matcher.holds(&now);
            let Some(kind) = Kind::of_change(old, cur).filter(|kind| matcher.delivers(*kind)) else { continue };
            let kv = if kind == Kind::Deleted {
                let meta = before.as_ref().map(KeyValue::meta).unwrap_or_default();
                KeyValue::new(now.key(), None, meta, now.seq(), VersionPtr::NULL)
            } else {
                now
            };
            batch.push_made(Made { kind, ..made }, kv, before);
        }
    }
    Ok(batch)
}
