//! The builder of batches, which limits their length.
//!
//! Every batch that is no view is built here: traversals, initial states, differences. A builder knows the most events that
//! were asked for, and that a batch keeps at most four segments alive (but for one revision that is longer than either, where
//! whole ones were asked for). The caller knows where a batch may end: for events of the log see `subscription::traverse`.

#![forbid(unsafe_code)]

use super::{Batch, Made, OwnedEvents};
use crate::data::event::{Kind, Mark};
use crate::data::key_value::KeyValue;
use crate::log::found::Versions;
use crate::log::segment::SegmentRef;
use crate::position::Position;

/// A batch in the making.
pub(crate) struct BatchBuilder {
    own: OwnedEvents,
    max: usize,
    /// The batch does not end inside a revision, whatever was asked.
    whole: bool,
    continues: bool,
}

impl BatchBuilder {
    /// At most `max` events.
    pub(crate) fn new(max: usize, whole: bool) -> BatchBuilder {
        BatchBuilder { own: OwnedEvents::default(), max, whole, continues: false }
    }

    pub(crate) fn len(&self) -> usize {
        self.own.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many more events it takes.
    pub(crate) fn room(&self) -> usize {
        if self.whole { usize::MAX } else { self.max.saturating_sub(self.len()) }
    }

    /// Whether it has no room for another event of this segment.
    pub(crate) fn is_full_for(&self, segment: &SegmentRef) -> bool {
        self.len() >= self.max || self.own.is_full_for(segment)
    }

    /// An event of the log, delivered as `kind`. `instead` is the key-value that it has in place of its own.
    pub(crate) fn push_logged(&mut self, segment: &SegmentRef, seq: u64, kind: Kind, instead: Option<KeyValue>) {
        self.own.push_logged(segment, seq, kind, instead);
    }

    /// An event that is in no log, or not in this form.
    pub(crate) fn push_made(&mut self, made: Made, kv: KeyValue, prev: Option<KeyValue>) {
        self.own.push_made(made, kv, prev);
    }

    /// Events that are in no log, of versions that are kept together. Once a batch.
    pub(crate) fn push_state(&mut self, versions: Versions, made: impl Fn(&KeyValue) -> Made) {
        self.own.push_state(versions, made);
    }

    /// A bookmark, or a mark of a resync.
    pub(crate) fn push_mark(&mut self, mark: Mark) {
        self.own.push_mark(mark);
    }

    /// Drops all but the first `len` events.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.own.truncate(len);
    }

    /// Whether more of its last revision, or of its state, comes in the next batch.
    pub(crate) fn continues(&mut self, continues: bool) {
        self.continues = continues;
    }

    pub(crate) fn finish(self, position: Position) -> Batch {
        Batch::own(self.own, self.continues, position)
    }
}
