//! The phase of the initial state: the matching state as events.
//!
//! It is read page by page at a fixed head, not from a held snapshot: each page checks that the head is still in the
//! window, so a consumer that stalls keeps nothing alive (I9) and gets the loss reported (I8). The live stream
//! continues at that head: no gap, no overlap.

#![forbid(unsafe_code)]

use super::cursor::ReadFrom;
use super::delivered::Delivered;
use super::loss::{Halt, Loss, Step};
use crate::batch::{Batch, BatchBuilder, Made};
use crate::cache::Consumer;
use crate::data::event::{Kind, Mark, edges, flags};
use crate::data::key_value::KeyValue;
use crate::data::slot::SlotCount;
use crate::filter::range::Range;
use crate::position::Position;
use crate::read::view::{At, Left, Scan};

/// See the module. While it lasts, the cursor stands at `at`, with a position of revision 0.
#[derive(Debug)]
pub(super) struct Initial {
    /// The head of the state, and its position.
    at: ReadFrom,
    /// The first key that was not handed out.
    next: Option<Vec<u8>>,
    /// All objects were handed out; the mark was not.
    done: bool,
    /// The most bytes of a batch; `usize::MAX`: as many as there are.
    batch_bytes: usize,
}

/// A batch, and where the live phase begins if the batch ends the phase.
pub(super) type PhasePage = (Batch, Option<ReadFrom>);

impl Initial {
    pub(super) fn new(at: ReadFrom, batch_bytes: usize) -> Initial {
        Initial { at, next: None, done: false, batch_bytes }
    }

    /// The place of the cursor during the phase.
    pub(super) fn cursor(&self) -> ReadFrom {
        ReadFrom { seq: self.at.seq, position: Position { epoch: self.at.position.epoch, revision: 0 } }
    }

    /// The next page of the state, or its end mark.
    pub(super) fn poll(&mut self, max: usize, delivered: &mut Delivered, consumer: &Consumer) -> Step<PhasePage> {
        let position = self.cursor().position;
        let mut batch = BatchBuilder::new(max, false);
        if !self.done {
            let mut came = Vec::new();
            // Runs predicates, so nothing is changed before it has returned.
            let Ok(next) = self.objects(&mut batch, delivered.is_some().then_some(&mut came), consumer) else {
                return Err(Halt::Lost(Loss::of_state(position, consumer)));
            };
            if let Some(delivered) = delivered {
                came.into_iter().for_each(|slot| delivered.add(slot));
            }
            (self.done, self.next) = (next.is_none(), next);
        }
        if self.done && batch.room() > 0 {
            batch.push_mark(Mark::bookmark(self.at.position.revision, flags::INITIAL_STATE_END));
            return Ok((batch.finish(self.at.position), Some(self.at)));
        }
        batch.continues(!self.done && batch.is_empty());
        Ok((batch.finish(position), None))
    }

    /// Gathers objects of the state, and the keys to record as delivered. Returns the key at which the next page begins,
    /// `None` at the end. After an error the caller hands out and records nothing.
    fn objects(
        &self,
        batch: &mut BatchBuilder,
        came: Option<&mut Vec<SlotCount>>,
        consumer: &Consumer,
    ) -> Result<Option<Vec<u8>>, Left> {
        let matcher = &consumer.matcher;
        let shows = matcher.delivers(Kind::Added);
        if !shows && came.is_none() {
            // Added is masked: of the state only its end mark is delivered.
            return Ok(None);
        }
        let range = matcher.range().cloned().unwrap_or_else(Range::all);
        let mut scan = Scan::new(At::Head(&consumer.inner, self.at.seq), &range, self.next.clone());
        let most = if shows { batch.room() } else { usize::MAX };
        let pages = if self.batch_bytes == usize::MAX { usize::MAX } else { 1 };
        let mut cut = None;
        let keepers = &consumer.inner.ring.keepers;
        let kind = matcher.delivered_kind(Kind::Added);
        let (flags, edges) = (flags::INITIAL_STATE, edges::BOTH);
        let made = |kv: &KeyValue| Made { kind, revision: kv.mod_revision(), sequence: 0, flags, edges };
        if let Some(came) = came {
            let mut kept = scan.matching(matcher, most, pages, |slot| slot.counted())?;
            if shows {
                cut = kept.cut(self.batch_bytes);
            }
            came.extend(kept.each_with().cloned());
            if shows {
                batch.push_state(kept.settle(keepers), made);
            }
        } else {
            let mut kept = scan.matching(matcher, most, pages, |_| ())?;
            cut = kept.cut(self.batch_bytes);
            batch.push_state(kept.settle(keepers), made);
        }
        Ok(cut.or_else(|| scan.into_next()))
    }
}
