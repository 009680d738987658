//! Building a batch: how much goes into one, and where it may end.
//!
//! Every batch that is no view is built here: scans, chains, initial states, differences. A builder knows
//! the most events that were asked for, and that a batch keeps at most four segments alive (but for one revision that is
//! longer than either, where whole ones were asked for); it knows where the revision begins that is being gathered, so that
//! a batch can end there. The life of one:
//!
//! 1. [`BatchBuilder::begin_revision`] at the first event of each revision, with what it takes to go back;
//! 2. [`BatchBuilder::fits`], then a push, for each event;
//! 3. where one does not fit, [`BatchBuilder::cut`]; where the rest of the revision has left the log,
//!    [`BatchBuilder::cut_at_loss`]: both end the batch between revisions if it holds a whole one;
//! 4. [`BatchBuilder::finish`].
//!
//! What a subscription keeps as delivered is recorded here on the way ([`BatchBuilder::record`]), and taken over
//! once it is sure where the batch ends.

#![forbid(unsafe_code)]

use super::{Batch, Made, OwnedEvents};
use crate::data::event::{Kind, Mark};
use crate::data::key_value::KeyValue;
use crate::log::kept::Kept;
use crate::log::segment::SegmentRef;
use crate::position::Position;

/// An event that counts as delivered if it lies before the end of the batch.
pub(crate) struct Recorded {
    pub(crate) kind: Kind,
    pub(crate) seq: u64,
    pub(crate) segment: SegmentRef,
}

/// A batch in the making. `B` is what a reader needs to go back to the begin of a revision.
pub(crate) struct BatchBuilder<B = ()> {
    own: OwnedEvents,
    max: usize,
    /// The batch does not end inside a revision, whatever was asked.
    whole: bool,
    /// Begin of the revision that is being gathered, and the events from before it.
    border: B,
    before: usize,
    recorded: Vec<Recorded>,
    continues: bool,
}

/// Where a batch ends whose last revision is lost in part.
pub(crate) enum CutAtLoss<B> {
    /// At the begin of that revision.
    Back(B),
    /// Inside it: it is all that there is.
    Inside,
    /// Nowhere: whole revisions were asked for, and this one is lost.
    Nothing(B),
}

impl<B> BatchBuilder<B> {
    /// At most `max` events, from `border` on.
    pub(crate) fn new(max: usize, whole: bool, border: B) -> BatchBuilder<B> {
        BatchBuilder {
            own: OwnedEvents::default(),
            max,
            whole,
            border,
            before: 0,
            recorded: Vec::new(),
            continues: false,
        }
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

    /// Whether its newest event is not the last of its revision in the log.
    pub(crate) fn ends_inside(&self) -> bool {
        self.own.last().is_some_and(|last| !last.is_last())
    }

    /// A revision begins with the next event: the caller stores there what it needs to come back.
    pub(crate) fn begin_revision(&mut self) -> &mut B {
        self.before = self.len();
        &mut self.border
    }

    /// Begin of the revision that is being gathered.
    pub(crate) fn border(&mut self) -> &mut B {
        &mut self.border
    }

    /// Whether another event of this segment goes into it. The first one always does, and with whole
    /// revisions the rest of its revision.
    pub(crate) fn fits(&self, segment: &SegmentRef) -> bool {
        let full = self.len() >= self.max || self.own.is_full_for(segment);
        let first_revision = self.before == 0 && !self.is_empty();
        !full || (self.whole && first_revision)
    }

    /// The next event does not fit. `Some`: the batch ends at the begin of its revision, go back there.
    /// `None`: it ends before that event, inside its revision if it has any of it.
    pub(crate) fn cut(&mut self) -> Option<B>
    where
        B: Clone,
    {
        if self.before > 0 {
            self.own.truncate(self.before);
            return Some(self.border.clone());
        }
        self.continues = !self.is_empty();
        None
    }

    /// The rest of the revision that is being gathered has left the log.
    pub(crate) fn cut_at_loss(&mut self) -> CutAtLoss<B>
    where
        B: Clone,
    {
        if self.before > 0 {
            self.own.truncate(self.before);
            CutAtLoss::Back(self.border.clone())
        } else if self.whole {
            CutAtLoss::Nothing(self.border.clone())
        } else {
            self.continues = true;
            CutAtLoss::Inside
        }
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
    pub(crate) fn push_kept<T>(&mut self, kept: Kept<T>, made: impl Fn(&KeyValue) -> Made) {
        self.own.push_kept(kept, made);
    }

    /// A bookmark, or one end of a bracket.
    pub(crate) fn push_mark(&mut self, mark: Mark) {
        self.own.push_mark(mark);
    }

    /// Counts as delivered, if the batch ends after it.
    pub(crate) fn record(&mut self, kind: Kind, seq: u64, segment: &SegmentRef) {
        self.recorded.push(Recorded { kind, seq, segment: segment.clone() });
    }

    pub(crate) fn take_recorded(&mut self) -> Vec<Recorded> {
        std::mem::take(&mut self.recorded)
    }

    /// More comes after it, though it ends a revision nowhere.
    pub(crate) fn continues(mut self, continues: bool) -> BatchBuilder<B> {
        self.continues = continues;
        self
    }

    /// Whether it ends inside a revision.
    pub(crate) fn does_continue(&self) -> bool {
        self.continues
    }

    pub(crate) fn finish(self, position: Position) -> Batch {
        Batch::own(self.own, self.continues, position)
    }
}
