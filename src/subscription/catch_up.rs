//! The phase of the catch-up after a loss: the difference between the delivered keys and the state now.
//!
//! Like the initial state it is read page by page at a fixed head, and checks at each page that this head is still in the
//! window. If the head has left, the difference was itself overtaken and begins again at a newer head. The keys below the
//! one that it had reached were delivered as of the old head, which [`CatchUp::heads`] keeps for the next attempt.

#![forbid(unsafe_code)]

use super::cursor::{Cursor, ReadFrom};
use super::delivered::Delivered;
use super::frontier::newest_state;
use super::initial::PhasePage;
use super::loss::{Halt, Loss, Lost, Step, resynced};
use super::options::{Delivery, OnLag};
use crate::batch::{BatchBuilder, Made};
use crate::cache::{Consumer, PIN_KEYS, StateView};
use crate::data::event::{Kind, Mark, Phase as End, Resync, ResyncReason, edges, flags};
use crate::data::key_value::{KeyMeta, KeyValue, VersionPtr};
use crate::data::slot::SlotCount;
use crate::filter::matcher::Matcher;
use crate::filter::range::Range;
use crate::position::Position;
use crate::read::snapshot::Snapshot;
use crate::read::view::{At, Left, Scan};
use crate::reclaim;
use crate::store::key_set::KeySet;
use crate::sync::Acquire;

/// A difference that is being handed out, as of its last page.
#[derive(Debug, Default)]
pub(super) struct CatchUp {
    reached: Reached,
    /// Whether its state is fixed: by its first page. A difference that was overtaken leads to another state.
    fixed: bool,
    /// High-water marks (key, head): a key was delivered as of the head of the first mark whose key is above it, or of
    /// `base` where there is none.
    heads: Vec<(Vec<u8>, u64)>,
    base: u64,
    /// Whether it replaces an initial state that was lost.
    initial: bool,
    /// The last revision that was reported as lost.
    reported: u64,
}

/// The progress of a difference.
#[derive(Debug, Default, Clone)]
struct Reached {
    /// The head of the state that it leads to, fixed with its first page.
    head: u64,
    at: Position,
    stage: Stage,
    next: Option<Vec<u8>>,
    /// Whether its BEGIN mark was handed out.
    begun: bool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Stage {
    #[default]
    Begin,
    Deletes,
    Puts,
    End,
    /// The mark at the end of the initial state.
    Mark,
    Over,
}

impl CatchUp {
    /// The difference of a consumer that has all events below `base`; with `initial`, of one that has the initial state of
    /// that head as far as its delivered keys say. `reported`: the last revision that is reported as lost, 0 for none.
    pub(super) fn new(base: u64, initial: bool, reported: u64) -> CatchUp {
        CatchUp { base, initial, reported, ..CatchUp::default() }
    }

    /// Whether its BEGIN mark was handed out: the loss is reported by then, and overtaking the difference
    /// changes only the state that it leads to.
    pub(super) fn has_begun(&self) -> bool {
        self.reached.begun
    }

    /// Begins again, as it was overtaken: the keys that it has handed out count as delivered at its head, the rest as
    /// before.
    pub(super) fn begin_again(&mut self, reported: u64) {
        let reached = &mut self.reached;
        if reached.stage == Stage::Puts
            && let Some(next) = reached.next.take()
        {
            self.heads.retain(|(border, _)| *border > next);
            self.heads.insert(0, (next, reached.head));
        } else if matches!(reached.stage, Stage::End | Stage::Mark) {
            (self.heads, self.base) = (Vec::new(), reached.head);
        }
        reached.next = None;
        reached.stage = Stage::Begin;
        (self.fixed, self.reported) = (false, reported);
    }

    /// The next page of the difference.
    pub(super) fn poll(
        &mut self,
        max: usize,
        how: Delivery,
        delivered: &mut Delivered,
        cursor: &Cursor,
        consumer: &Consumer,
    ) -> Step<PhasePage> {
        let none = KeySet::default();
        let known = delivered.as_deref().unwrap_or(&none);
        let Gathered { reached, gone, came, lost, mut batch } = self.gather(max, how, known, cursor, consumer)?;
        if let Some(delivered) = delivered {
            gone.iter().for_each(|key| delivered.remove(key));
            came.into_iter().for_each(|key| delivered.add(key));
        }
        if reached.stage == Stage::Over {
            return Ok((batch.finish(reached.at), Some(ReadFrom { seq: reached.head, position: reached.at })));
        }
        (self.reached, self.fixed) = (reached, true);
        // Hand out the gathered events first; the next poll reports the loss.
        if lost && batch.is_empty() {
            return Err(Halt::Lost(self.loss(cursor, consumer)));
        }
        batch.continues(true);
        Ok((batch.finish(cursor.position()), None))
    }

    /// The loss of the state that it leads to.
    fn loss(&self, cursor: &Cursor, consumer: &Consumer) -> Loss {
        Loss::at(cursor, Lost::Events, self.reported, consumer)
    }

    /// Gathers the next page. Changes nothing: it runs predicates, which may panic.
    fn gather(
        &self,
        max: usize,
        how: Delivery,
        delivered: &KeySet,
        cursor: &Cursor,
        consumer: &Consumer,
    ) -> Step<Gathered> {
        let position = cursor.position();
        let begin = |at: Position, head: u64| {
            if how.stop_on_resync && at.epoch != position.epoch && position.epoch != 0 {
                return Err(Halt::from(resynced(at.revision, "while events were lost", position)));
            }
            Ok(Reached { at, head, ..self.reached.clone() })
        };
        let reached = if self.fixed {
            self.reached.clone()
        } else {
            let Some((at, head)) = newest_state(consumer) else {
                // The state at the close has left since the loss was met: no difference can be made.
                return Err(self.loss(cursor, consumer).error(position).into());
            };
            begin(at, head)?
        };
        let gather = |state: At<'_>, reached: Reached| {
            let batch = BatchBuilder::new(max, how.whole_revisions);
            let out = Gathered { reached, gone: Vec::new(), came: Vec::new(), lost: false, batch };
            let has_marks = how.on_lag == OnLag::Resnapshot;
            let matcher = &consumer.matcher;
            let mut page = DifferencePage { state, matcher, catch: self, delivered, position, has_marks, out };
            page.out.lost = page.gather().is_err();
            page.out
        };
        let gathered = gather(At::Head(&consumer.inner, reached.head), reached);
        if !gathered.lost || !how.whole_revisions {
            return Ok(gathered);
        }
        // The batch would end inside its revision. As none of it was handed out, gather all again in a snapshot, which
        // is not overtaken however fast the writer is.
        let snapshot = Snapshot::take(&consumer.inner);
        if consumer.end.load(Acquire) < snapshot.head() {
            // Closed by its owner meanwhile, below the snapshot.
            return Err(Halt::Lost(self.loss(cursor, consumer)));
        }
        let reached = begin(snapshot.position(), snapshot.head())?;
        Ok(gather(At::Held(&snapshot), reached))
    }

    /// The head at which a key was delivered.
    fn head_of(&self, key: &[u8]) -> u64 {
        self.heads.iter().find(|(border, _)| key < &border[..]).map_or(self.base, |(_, head)| *head)
    }
}

/// The result of a page.
struct Gathered {
    reached: Reached,
    /// Keys to remove from the delivered keys, in key order, and keys to add.
    gone: Vec<Vec<u8>>,
    came: Vec<SlotCount>,
    /// Whether the head has left the window.
    lost: bool,
    batch: BatchBuilder,
}

/// A page of a difference that is being gathered. It runs predicates and only borrows the phase, which changes when the
/// page is whole: a page that panics has changed nothing.
struct DifferencePage<'a> {
    state: At<'a>,
    matcher: &'a Matcher,
    catch: &'a CatchUp,
    /// The keys that were delivered before this page.
    delivered: &'a KeySet,
    position: Position,
    has_marks: bool,
    out: Gathered,
}

impl DifferencePage<'_> {
    /// Gathers until the batch is full or the difference is over.
    fn gather(&mut self) -> Result<(), Left> {
        while self.out.batch.room() > 0 && self.out.reached.stage != Stage::Over {
            let stage = self.out.reached.stage;
            self.out.reached.stage = match stage {
                Stage::Begin => {
                    // A difference that was overtaken after its BEGIN continues, without a second one.
                    if self.has_marks && !self.out.reached.begun {
                        self.out.reached.begun = true;
                        self.push_mark(End::Begin);
                    }
                    Stage::Deletes
                }
                Stage::Deletes if !self.deletes()? => stage,
                Stage::Deletes => Stage::Puts,
                Stage::Puts if !self.puts()? => stage,
                Stage::Puts => Stage::End,
                Stage::End => {
                    if self.has_marks {
                        self.push_mark(End::End);
                    }
                    if self.catch.initial { Stage::Mark } else { Stage::Over }
                }
                Stage::Mark => {
                    let mark = Mark::bookmark(self.out.reached.at.revision, flags::INITIAL_STATE_END);
                    self.out.batch.push_mark(mark);
                    Stage::Over
                }
                Stage::Over => stage,
            };
        }
        Ok(())
    }

    fn push_mark(&mut self, phase: End) {
        let at = self.out.reached.at;
        let (from, to) = (self.position.revision, at.revision);
        let mark = Resync { phase, reason: ResyncReason::Lagged, epoch: at.epoch, from, to };
        self.out.batch.push_mark(Mark::resync(&mark, 0));
    }

    /// Gathers Deleted for delivered keys that are gone or no longer match. True: these were all.
    fn deletes(&mut self) -> Result<bool, Left> {
        let Gathered { reached, gone, batch, .. } = &mut self.out;
        let (matcher, catch) = (self.matcher, self.catch);
        let (shows, room) = (matcher.delivers(Kind::Deleted), batch.room());
        let mut found = Vec::new();
        {
            let pin = reclaim::pin();
            let view = match self.state {
                At::Head(inner, head) => StateView::pinned(inner, head, &pin).ok_or(Left)?,
                At::Held(snapshot) => snapshot.view(),
            };
            let from = reached.next.take().unwrap_or_default();
            for (looked, key) in self.delivered.from(&from, &pin).enumerate() {
                if looked == PIN_KEYS || (shows && found.len() == room) {
                    reached.next = Some(key.to_vec());
                    break;
                }
                let slot = view.slot(key);
                let live = slot.and_then(|slot| view.live(slot)).filter(|kv| matcher.may_hold_value(kv));
                if live.is_some() && !matcher.has_predicates() {
                    continue;
                }
                let prev = slot.filter(|_| shows).and_then(|slot| view.delivered_before(slot, catch.head_of(key)));
                found.push((key.to_vec(), live.map(|kv| kv.to_owned()), prev.map(|kv| kv.to_owned())));
            }
        }
        for (key, tried, prev) in found {
            if tried.is_some_and(|kv| matcher.predicates_hold(&kv)) {
                continue;
            }
            if shows {
                let meta = prev.as_ref().map_or_else(KeyMeta::default, KeyValue::meta);
                let kv = KeyValue::new(&key, None, meta, 0, VersionPtr::NULL);
                push(batch, matcher.delivered_kind(Kind::Deleted), reached.at.revision, kv, prev);
            }
            gone.push(key);
        }
        Ok(reached.next.is_none())
    }

    /// Gathers Added and Modified for keys that match now and were not delivered, or have changed since. True: these
    /// were all. After `Err(Left)`, `next` is the first key that was not looked at.
    fn puts(&mut self) -> Result<bool, Left> {
        let Gathered { reached, gone, came, batch, .. } = &mut self.out;
        let (matcher, catch) = (self.matcher, self.catch);
        let range = matcher.range().cloned().unwrap_or_else(Range::all);
        let mut scan = Scan::new(self.state, &range, reached.next.take());
        // A key that this page deletes, and that a predicate passes now, is delivered anew as Added.
        let has = |key: &[u8]| self.delivered.has(key) && gone.binary_search_by(|gone| gone[..].cmp(key)).is_err();
        let mut page = Vec::new();
        let looked = scan.page(batch.room(), &mut page, |view, slot, live| {
            let kv = live.filter(|kv| matcher.may_hold_value(kv))?;
            let (was, since) = (has(slot.key()), catch.head_of(slot.key()));
            if was && kv.seq() < since {
                return None;
            }
            let prev = if was { view.delivered_before(slot, since) } else { None };
            let key = (!was).then(|| slot.counted());
            Some((kv.to_owned(), key, prev.map(|kv| kv.to_owned())))
        });
        matcher.keep(&mut page, 0, |(kv, ..)| kv);
        for (kv, key, prev) in page {
            let Some(kind) = Kind::of_change(key.is_none(), true) else { continue };
            came.extend(key);
            if matcher.delivers(kind) {
                push(batch, matcher.delivered_kind(kind), reached.at.revision, kv, prev);
            }
        }
        reached.next = scan.into_next();
        looked.map(|()| reached.next.is_none())
    }
}

fn push(batch: &mut BatchBuilder, kind: Kind, revision: u64, kv: KeyValue, prev: Option<KeyValue>) {
    batch.push_made(Made { kind, revision, sequence: 0, flags: flags::SYNTHETIC, edges: edges::NONE }, kv, prev);
}
