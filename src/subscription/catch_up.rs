//! The catch-up after a loss: the difference between the delivered keys and the state now.
//!
//! Like the initial state it is read page by page at a fixed head, and checks at each page that this head is still in the
//! window. If the head has left, the difference was itself overtaken and begins again at a newer head. The keys below the
//! one that it had reached were delivered as of the old head, which [`CatchUp::heads`] keeps for the next attempt.

#![forbid(unsafe_code)]

use super::awake::Awake;
use super::events::resynced;
use super::own::{Flag, SubscriptionPhase};
use super::{Halt, OnLag, Step};
use crate::batch::{Batch, BatchBuilder, Made};
use crate::cache::StateView;
use crate::data::event::{Kind, Mark, Phase as End, Resync, ResyncReason, edges, flags};
use crate::data::key_value::{KeyMeta, KeyValue, VersionPtr};
use crate::data::slot::SlotCount;
use crate::filter::matcher::Matcher;
use crate::filter::range::Range;
use crate::position::Position;
use crate::read::snapshot::Snapshot;
use crate::read::view::{At, Left, PIN_KEYS, Scan};
use crate::reclaim;
use crate::store::key_set::KeySet;
use crate::sync::Acquire;

/// A difference that is being handed out, as of its last page.
#[derive(Debug, Default)]
pub(super) struct CatchUp {
    place: Reached,
    /// High-water marks (key, head): a key was delivered as of the head of the first mark whose key is above it, or of
    /// `base` where there is none.
    heads: Vec<(Vec<u8>, u64)>,
    base: u64,
    /// Whether it replaces an initial state that was lost.
    initial: bool,
}

/// The progress of a difference.
#[derive(Debug, Default, Clone)]
struct Reached {
    /// The head of the state that it leads to, fixed with its first page.
    head: u64,
    at: Position,
    stage: Stage,
    next: Option<Vec<u8>>,
    /// Whether the BEGIN of its bracket was handed out.
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
    /// The head at which a key was delivered.
    fn head_of(&self, key: &[u8]) -> u64 {
        self.heads.iter().find(|(border, _)| key < &border[..]).map_or(self.base, |(_, head)| *head)
    }

    /// Begins again, as it was overtaken: the keys that it has handed out count as delivered at its head, the rest as
    /// before.
    fn begin_again(&mut self) {
        let place = &mut self.place;
        if place.stage == Stage::Puts
            && let Some(next) = place.next.take()
        {
            self.heads.retain(|(border, _)| *border > next);
            self.heads.insert(0, (next, place.head));
        } else if matches!(place.stage, Stage::End | Stage::Mark) {
            (self.heads, self.base) = (Vec::new(), place.head);
        }
        place.next = None;
        place.stage = Stage::Begin;
    }
}

/// The result of a page.
struct Gathered {
    place: Reached,
    /// Keys to remove from the delivered keys, in key order, and keys to add.
    gone: Vec<Vec<u8>>,
    came: Vec<SlotCount>,
    /// Whether the head has left the window.
    lost: bool,
    batch: BatchBuilder,
}

/// A page of a difference that is being gathered. It runs predicates and only borrows the subscription, which changes
/// when the page is whole: a page that panics has changed nothing.
struct DifferencePage<'a> {
    state: At<'a>,
    matcher: &'a Matcher,
    catch: &'a CatchUp,
    /// The keys that were delivered before this page.
    delivered: &'a KeySet,
    position: Position,
    bracket: bool,
    out: Gathered,
}

impl Awake<'_> {
    /// Whether the BEGIN of a difference's bracket was handed out: the loss is reported by then, and overtaking the
    /// difference changes only the state that it leads to.
    pub(super) fn is_in_bracket(&self) -> bool {
        matches!(self.own.phase(), SubscriptionPhase::CatchUp(catch) if catch.place.begun)
    }

    /// Enters the phase `Behind` after a loss: the next poll begins the difference.
    pub(super) fn fall_behind(&mut self) {
        let catch = match self.own.enter(SubscriptionPhase::Ended) {
            SubscriptionPhase::CatchUp(mut catch) | SubscriptionPhase::Behind(mut catch) => {
                catch.begin_again();
                catch
            }
            // The keys of the initial state that were handed out were delivered at its head, all others were not delivered.
            SubscriptionPhase::Initial(_) => {
                Box::new(CatchUp { base: self.cursor.seq(), initial: true, ..CatchUp::default() })
            }
            _ => Box::new(CatchUp { base: self.cursor.seq(), ..CatchUp::default() }),
        };
        self.own.enter(SubscriptionPhase::Behind(catch));
    }

    /// The newest state that a difference may lead to; where its owner has closed it, the state at the close. `None`:
    /// that state has left the window.
    pub(super) fn newest_state(&self) -> Option<(Position, u64)> {
        let ring = &self.inner().ring;
        loop {
            let frontier = self.frontier();
            let has_left = || !ring.has_all_from(frontier.head, ring.oldest_seq(), &reclaim::pin());
            // A subscription that was closed before the listing has no state.
            if frontier.head < ring.first_seq() || frontier.closed && has_left() {
                return None;
            }
            if let Some(at) = self.position_at(&frontier) {
                return Some((at, frontier.head));
            }
        }
    }

    /// The next page of the difference.
    pub(super) fn catch_up_page(&mut self, max: usize) -> Step<Batch> {
        let Some(Gathered { place, gone, came, lost, mut batch }) = self.gather_page(max)? else {
            return Ok(Batch::empty(self.position()));
        };
        if let Some(delivered) = self.own.delivered() {
            gone.iter().for_each(|key| delivered.remove(key));
            came.into_iter().for_each(|key| delivered.add(key));
        }
        if place.stage == Stage::Over {
            self.live(place.head, place.at);
            if let Some(cold) = &mut self.own.cold {
                cold.reported = 0;
            }
            return Ok(batch.finish(self.position()));
        }
        if let SubscriptionPhase::Behind(mut catch) | SubscriptionPhase::CatchUp(mut catch) =
            self.own.enter(SubscriptionPhase::Ended)
        {
            catch.place = place;
            self.own.enter(SubscriptionPhase::CatchUp(catch));
        }
        // Hand out the gathered events first; the next poll reports the loss.
        if lost && batch.is_empty() {
            return Err(Halt::Lost(self.loss()));
        }
        batch.continues(true);
        Ok(batch.finish(self.position()))
    }

    /// Gathers the next page; `None`: the subscription is in no difference.
    fn gather_page(&self, max: usize) -> Step<Option<Gathered>> {
        let (catch, place) = match self.own.phase() {
            SubscriptionPhase::Behind(catch) => {
                let Some((at, head)) = self.newest_state() else {
                    // The state at the close has left since the loss was met: no difference can be made.
                    return Err(self.loss().error(self.position()).into());
                };
                (catch, self.first_place(catch, at, head)?)
            }
            SubscriptionPhase::CatchUp(catch) => (catch, catch.place.clone()),
            _ => return Ok(None),
        };
        let gathered = self.gather_at(At::Head(self.inner(), place.head), catch, place, max);
        if !gathered.lost || !self.has(Flag::WholeRevisions) {
            return Ok(Some(gathered));
        }
        // The batch would end inside its revision. As none of it was handed out, gather all again in a snapshot, which
        // is not overtaken however fast the writer is.
        let snapshot = Snapshot::take(self.inner());
        if self.shared.end.load(Acquire) < snapshot.head() {
            // Closed by its owner meanwhile, below the snapshot.
            return Err(Halt::Lost(self.loss()));
        }
        let place = self.first_place(catch, snapshot.position(), snapshot.head())?;
        Ok(Some(self.gather_at(At::Held(&snapshot), catch, place, max)))
    }

    /// The beginning of a difference that leads to this state.
    fn first_place(&self, catch: &CatchUp, at: Position, head: u64) -> Step<Reached> {
        if self.has(Flag::StopOnResync) && at.epoch != self.position().epoch && self.position().epoch != 0 {
            return Err(resynced(at.revision, "while events were lost", self.position()).into());
        }
        Ok(Reached { at, head, ..catch.place.clone() })
    }

    /// Gathers a page of the difference from `place` on, in the state that it leads to.
    fn gather_at(&self, state: At<'_>, catch: &CatchUp, place: Reached, max: usize) -> Gathered {
        let batch = BatchBuilder::new(max, self.has(Flag::WholeRevisions));
        let none = KeySet::default();
        let mut page = DifferencePage {
            state,
            matcher: &self.shared.matcher,
            catch,
            delivered: self.own.cold.as_ref().and_then(|cold| cold.delivered.as_deref()).unwrap_or(&none),
            position: self.position(),
            bracket: self.own.on_lag == OnLag::Resnapshot,
            out: Gathered { place, gone: Vec::new(), came: Vec::new(), lost: false, batch },
        };
        page.out.lost = page.gather().is_err();
        page.out
    }
}

impl DifferencePage<'_> {
    /// Gathers until the batch is full or the difference is over.
    fn gather(&mut self) -> Result<(), Left> {
        while self.out.batch.room() > 0 && self.out.place.stage != Stage::Over {
            let stage = self.out.place.stage;
            self.out.place.stage = match stage {
                Stage::Begin => {
                    // A difference that was overtaken inside its bracket continues there, without a second BEGIN.
                    if self.bracket && !self.out.place.begun {
                        self.out.place.begun = true;
                        self.push_bracket(End::Begin);
                    }
                    Stage::Deletes
                }
                Stage::Deletes if !self.deletes()? => stage,
                Stage::Deletes => Stage::Puts,
                Stage::Puts if !self.puts()? => stage,
                Stage::Puts => Stage::End,
                Stage::End => {
                    if self.bracket {
                        self.push_bracket(End::End);
                    }
                    if self.catch.initial { Stage::Mark } else { Stage::Over }
                }
                Stage::Mark => {
                    let mark = Mark::bookmark(self.out.place.at.revision, flags::INITIAL_STATE_END);
                    self.out.batch.push_mark(mark);
                    Stage::Over
                }
                Stage::Over => stage,
            };
        }
        Ok(())
    }

    fn push_bracket(&mut self, phase: End) {
        let at = self.out.place.at;
        let (from, to) = (self.position.revision, at.revision);
        let mark = Resync { phase, reason: ResyncReason::Lagged, epoch: at.epoch, from, to };
        self.out.batch.push_mark(Mark::resync(&mark, 0));
    }

    /// Gathers Deleted for delivered keys that are gone or no longer match. True: these were all.
    fn deletes(&mut self) -> Result<bool, Left> {
        let Gathered { place, gone, batch, .. } = &mut self.out;
        let (matcher, catch) = (self.matcher, self.catch);
        let (shows, room) = (matcher.delivers(Kind::Deleted), batch.room());
        let mut found = Vec::new();
        {
            let pin = reclaim::pin();
            let view = match self.state {
                At::Head(inner, head) => StateView::pinned(inner, head, &pin).ok_or(Left)?,
                At::Held(snapshot) => snapshot.view(),
            };
            let from = place.next.take().unwrap_or_default();
            for (looked, key) in self.delivered.from(&from, &pin).enumerate() {
                if looked == PIN_KEYS || (shows && found.len() == room) {
                    place.next = Some(key.to_vec());
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
                push(batch, matcher.delivered_kind(Kind::Deleted), place.at.revision, kv, prev);
            }
            gone.push(key);
        }
        Ok(place.next.is_none())
    }

    /// Gathers Added and Modified for keys that match now and were not delivered, or have changed since. True: these
    /// were all. After `Err(Left)`, `next` is the first key that was not looked at.
    fn puts(&mut self) -> Result<bool, Left> {
        let Gathered { place, gone, came, batch, .. } = &mut self.out;
        let (matcher, catch) = (self.matcher, self.catch);
        let range = matcher.range().cloned().unwrap_or_else(Range::all);
        let mut scan = Scan::new(self.state, &range, place.next.take());
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
                push(batch, matcher.delivered_kind(kind), place.at.revision, kv, prev);
            }
        }
        place.next = scan.into_next();
        looked.map(|()| place.next.is_none())
    }
}

fn push(batch: &mut BatchBuilder, kind: Kind, revision: u64, kv: KeyValue, prev: Option<KeyValue>) {
    batch.push_made(Made { kind, revision, sequence: 0, flags: flags::SYNTHETIC, edges: edges::NONE }, kv, prev);
}
