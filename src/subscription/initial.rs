//! The initial state as events.
//!
//! It is read page by page at a fixed head h, not from a held snapshot: each page checks that h is still in the
//! window, so a consumer that stalls keeps nothing alive (I9) and gets the loss reported (I8). The live stream
//! continues at h: no gap, no overlap.

#![forbid(unsafe_code)]

use super::awake::Awake;
use super::own::SubscriptionPhase;
use super::{Halt, Step};
use crate::batch::{Batch, BatchBuilder, Made};
use crate::data::event::{Kind, Mark, edges, flags};
use crate::data::key_value::KeyValue;
use crate::data::slot::SlotCount;
use crate::filter::range::Range;
use crate::position::Position;
use crate::read::view::{At, Left, Scan};

#[derive(Debug, Default)]
pub(super) struct Initial {
    /// The first key that was not handed out.
    next: Option<Vec<u8>>,
    /// All objects were handed out; the mark was not.
    done: bool,
    at: Position,
    /// The most bytes of a batch; `usize::MAX`: as many as there are.
    batch_bytes: usize,
}

impl Awake<'_> {
    pub(super) fn initial(&mut self, head: u64, at: Position, batch_bytes: usize) {
        let keeps_keys = self.own.on_lag.needs_delivered_keys();
        self.cursor.begin_at(head, Position { epoch: at.epoch, revision: 0 });
        let cold = self.own.cold();
        cold.delivered = keeps_keys.then(Box::default);
        cold.phase = SubscriptionPhase::Initial(Box::new(Initial { at, batch_bytes, ..Initial::default() }));
    }

    /// The next page of the initial state, or its end mark.
    pub(super) fn initial_page(&mut self, max: usize) -> Step<Batch> {
        let SubscriptionPhase::Initial(initial) = self.own.phase() else {
            return Ok(Batch::empty(self.position()));
        };
        let (at, batch_bytes, mut done) = (initial.at, initial.batch_bytes, initial.done);
        let mut batch = BatchBuilder::new(max, false);
        if !done {
            let mut came = Vec::new();
            // Runs predicates, so the subscription is changed only after it has returned.
            let Ok(next) = self.initial_objects(initial.next.clone(), batch_bytes, &mut batch, &mut came) else {
                return Err(Halt::Lost(self.loss_of_state()));
            };
            done = next.is_none();
            if let Some(delivered) = self.own.delivered() {
                came.into_iter().for_each(|slot| delivered.add(slot));
            }
            if let SubscriptionPhase::Initial(initial) = &mut self.own.cold().phase {
                (initial.done, initial.next) = (done, next);
            }
        }
        if done && batch.room() > 0 {
            batch.push_mark(Mark::bookmark(at.revision, flags::INITIAL_STATE_END));
            self.live(self.cursor.seq(), at);
        }
        batch.continues(!done && batch.is_empty());
        Ok(batch.finish(self.position()))
    }

    /// Gathers objects of the state from a key on, and the keys to record as delivered. Returns the key at which the
    /// next page begins, `None` at the end. After an error the caller hands out and records nothing.
    fn initial_objects(
        &self,
        from: Option<Vec<u8>>,
        batch_bytes: usize,
        batch: &mut BatchBuilder,
        came: &mut Vec<SlotCount>,
    ) -> Result<Option<Vec<u8>>, Left> {
        let matcher = &self.shared.matcher;
        let shows = matcher.delivers(Kind::Added);
        let keeps_keys = self.own.keeps_keys();
        if !shows && !keeps_keys {
            // Added is masked: of the state only its end mark is delivered.
            return Ok(None);
        }
        let range = matcher.range().cloned().unwrap_or_else(Range::all);
        let mut scan = Scan::new(At::Head(&self.shared.inner, self.cursor.seq()), &range, from);
        let most = if shows { batch.room() } else { usize::MAX };
        let pages = if batch_bytes == usize::MAX { usize::MAX } else { 1 };
        let mut cut = None;
        let keepers = &self.shared.inner.ring.keepers;
        let kind = matcher.delivered_kind(Kind::Added);
        let (flags, edges) = (flags::INITIAL_STATE, edges::BOTH);
        let made = |kv: &KeyValue| Made { kind, revision: kv.mod_revision(), sequence: 0, flags, edges };
        if keeps_keys {
            let mut kept = scan.matching(matcher, most, pages, |slot| slot.counted())?;
            if shows {
                cut = kept.cut(batch_bytes);
            }
            came.extend(kept.each_with().cloned());
            if shows {
                batch.push_state(kept.settle(keepers), made);
            }
        } else {
            let mut kept = scan.matching(matcher, most, pages, |_| ())?;
            cut = kept.cut(batch_bytes);
            batch.push_state(kept.settle(keepers), made);
        }
        Ok(cut.or_else(|| scan.into_next()))
    }
}
