//! The way back after a loss: the difference between what was delivered and the state now.
//!
//! Like the initial state it is read page by page at a fixed head, and checks at each page that this head is
//! still in the window. Where it is not, the difference was itself overtaken: it begins again at a newer head
//! with the keys after the one that it had reached. Those before it were delivered as of its own head, which
//! [`CatchUp::heads`] keeps.

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

/// A difference on its way out, as of the last page that was handed out.
#[derive(Debug, Default)]
pub(super) struct CatchUp {
    place: Reached,
    /// Heads at which keys were delivered: those below the key of an entry at its head, the first that
    /// fits; the rest at `base`.
    heads: Vec<(Vec<u8>, u64)>,
    base: u64,
    /// It takes the place of the initial state.
    initial: bool,
}

/// How far a difference has come.
#[derive(Debug, Default, Clone)]
struct Reached {
    /// The state that it leads to: fixed with its first page.
    head: u64,
    at: Position,
    stage: Stage,
    next: Option<Vec<u8>>,
    /// The BEGIN of its bracket was handed out.
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

    /// Overtaken: the keys that it has handed out count as delivered at its head, the rest as before.
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

/// What a page came to.
struct Gathered {
    place: Reached,
    /// Keys that are delivered keys no more, in their order, and those that are now.
    gone: Vec<Vec<u8>>,
    came: Vec<SlotCount>,
    /// The head has left.
    lost: bool,
    batch: BatchBuilder,
}

/// A page of a difference in the making. It runs predicates, and borrows what it reads: until it is whole nothing of
/// the subscription changes, and one that panics was not.
struct DifferencePage<'a> {
    state: At<'a>,
    matcher: &'a Matcher,
    catch: &'a CatchUp,
    /// Keys that were delivered before this page.
    delivered: &'a KeySet,
    position: Position,
    bracket: bool,
    out: Gathered,
}

impl Awake<'_> {
    /// Whether the consumer stands inside the bracket of a difference: the loss was reported to it, and what
    /// overtakes the difference changes only the state that it leads to.
    pub(super) fn is_in_bracket(&self) -> bool {
        matches!(self.own.phase(), SubscriptionPhase::CatchUp(catch) if catch.place.begun)
    }

    /// Events were lost: the difference comes next.
    pub(super) fn fall_behind(&mut self) {
        let catch = match self.own.enter(SubscriptionPhase::Ended) {
            SubscriptionPhase::CatchUp(mut catch) | SubscriptionPhase::Behind(mut catch) => {
                catch.begin_again();
                catch
            }
            // The keys that were handed out were delivered at its head; of the others none was.
            SubscriptionPhase::Initial(_) => {
                Box::new(CatchUp { base: self.cursor.seq(), initial: true, ..CatchUp::default() })
            }
            _ => Box::new(CatchUp { base: self.cursor.seq(), ..CatchUp::default() }),
        };
        self.own.enter(SubscriptionPhase::Behind(catch));
    }

    /// The newest state that a difference may lead to: that at its end, where its owner has closed it. `None`: that one
    /// has left the window.
    pub(super) fn newest_state(&self) -> Option<(Position, u64)> {
        let ring = &self.inner().ring;
        loop {
            let frontier = self.frontier();
            let has_left = || !ring.has_all_from(frontier.head, ring.oldest_seq(), &reclaim::pin());
            // Closed before the listing, it has no state.
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
        // What was gathered is handed out first; the next poll reports the loss.
        if lost && batch.is_empty() {
            return Err(Halt::Lost(self.loss()));
        }
        batch.continues(true);
        Ok(batch.finish(self.position()))
    }

    /// Gathers a page, where there is a difference.
    fn gather_page(&self, max: usize) -> Step<Option<Gathered>> {
        let (catch, place) = match self.own.phase() {
            SubscriptionPhase::Behind(catch) => {
                let Some((at, head)) = self.newest_state() else {
                    // Since the loss was met: nothing leads back any more.
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
        // It would end inside its revision. Nothing of it was handed out: all of it again, in a state that is held, so
        // that it ends however fast the writer is.
        let snapshot = Snapshot::take(self.inner());
        if self.shared.end.load(Acquire) < snapshot.head() {
            // Closed meanwhile, below that.
            return Err(Halt::Lost(self.loss()));
        }
        let place = self.first_place(catch, snapshot.position(), snapshot.head())?;
        Ok(Some(self.gather_at(At::Held(&snapshot), catch, place, max)))
    }

    /// Where a difference begins that leads to this state.
    fn first_place(&self, catch: &CatchUp, at: Position, head: u64) -> Step<Reached> {
        if self.has(Flag::StopOnResync) && at.epoch != self.position().epoch && self.position().epoch != 0 {
            return Err(resynced(at.revision, "while events were lost", self.position()).into());
        }
        Ok(Reached { at, head, ..catch.place.clone() })
    }

    /// A page of the difference from a place on, in the state that it leads to.
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
    /// Goes on until the batch is full, or the difference is over.
    fn gather(&mut self) -> Result<(), Left> {
        while self.out.batch.room() > 0 && self.out.place.stage != Stage::Over {
            let stage = self.out.place.stage;
            self.out.place.stage = match stage {
                Stage::Begin => {
                    // Overtaken inside its bracket it continues there, at a newer state.
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

    /// Keys that were delivered and are not there, or do not match, any more. True: these were all.
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

    /// Keys that match now and were not delivered, or have changed since. True: these were all. Where the head
    /// has left, `next` is where this has come to.
    fn puts(&mut self) -> Result<bool, Left> {
        let Gathered { place, gone, came, batch, .. } = &mut self.out;
        let (matcher, catch) = (self.matcher, self.catch);
        let range = matcher.range().cloned().unwrap_or_else(Range::all);
        let mut scan = Scan::new(self.state, &range, place.next.take());
        // One that this page deletes, and that a predicate lets pass now, is delivered anew.
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
