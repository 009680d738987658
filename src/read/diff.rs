//! The difference between two states of the window.

#![forbid(unsafe_code)]

use super::view::walk;
use crate::batch::{Batch, Made, Own};
use crate::cache::{Cache, StateView};
use crate::data::event::{Kind, LogEvent};
use crate::data::key_value::{KeyValue, VersionPtr};
use crate::data::slot::SlotRef;
use crate::error::{Code, Error, Result, say};
use crate::filter::range::{Filter, Range};
use crate::log::ring::Place;
use crate::position::Position;
use crate::reclaim;

impl Cache {
    /// The net changes from the state at `from` to that at `to`, both in the window, the latest of
    /// each key, in key order: Added, Modified or Deleted by what the key was at `from`. Each has the
    /// revision of its own newest change, and `prev` is the value at `from`.
    ///
    /// A revision is unchecked, a [`Position`] is of its epoch. COMPACTED below the window,
    /// FUTURE_REVISION above the current revision, INVALID_ARGUMENT where `to` is before `from`.
    /// Never waits. O(keys of the filter's range).
    pub fn diff(&self, from: impl Into<Position>, to: impl Into<Position>, filter: &Filter) -> Result<Batch> {
        self.ready("diff")?;
        let (from, to) = (from.into(), to.into());
        let matcher = self.matcher(filter)?;
        let inner = &self.inner;
        let (first, last, epoch) = self.heads_of_diff(from, to)?;
        let range = matcher.range().cloned().unwrap_or_else(Range::all);
        let mut own = Own::default();
        let mut failed = false;
        let walked = walk(
            inner,
            first,
            &range,
            &mut None,
            |view: StateView<'_>, slot: SlotRef<'_>, before: Option<&KeyValue>| {
                let Some(now) = view.at(slot, last).filter(|kv| kv.seq() >= first) else { return true };
                let cur = !now.is_tombstone() && matcher.holds(&now);
                let old = before.is_some_and(|kv| matcher.holds(kv));
                let kind = Kind::of_change(old, cur).filter(|kind| matcher.shows(*kind));
                let Some(kind) = kind else { return true };
                let Place::At(segment) = inner.ring.place(now.seq(), &reclaim::pin()) else {
                    failed = true;
                    return false;
                };
                let LogEvent { revision, sequence, flags, .. } = *segment.event(now.seq()).log();
                let kv = if kind == Kind::Deleted {
                    let numbers = before.map(KeyValue::numbers).unwrap_or_default();
                    KeyValue::new(now.key(), None, numbers, now.seq(), VersionPtr::NULL)
                } else {
                    now.to_owned()
                };
                own.push_made(Made { kind, revision, sequence, flags }, kv, before.cloned());
                true
            },
        );
        if walked.is_err() || failed {
            return Err(inner.compacted("diff at", from.revision));
        }
        Ok(Batch::own(own, false, Position { epoch, revision: to.revision }))
    }

    /// The heads of both states, and the epoch of the second.
    fn heads_of_diff(&self, from: Position, to: Position) -> Result<(u64, u64, u64)> {
        for asked in [from, to] {
            say::check_revision("diff at", asked.revision)?;
        }
        let head_of = |asked: Position| {
            let found = self.inner.find("diff at", asked, true)?;
            if !found.future {
                return Ok(found);
            }
            let current = self.position().revision;
            Err(Error::new(
                Code::FutureRevision,
                format!("diff at revision {}: the cache is at {current}. Wait for it with wait_until.", asked.revision),
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
}
