//! The way back after a loss: the difference between what was delivered and the state now.
//!
//! Like the initial state it is read page by page at a fixed head, and checks at each page that this head is
//! still in the window. Where it is not, the difference was itself overtaken: it begins again at a newer head
//! with the keys after the one that it had reached. Those before it were delivered as of its own head, which
//! [`CatchUp::heads`] keeps.

#![forbid(unsafe_code)]

use super::awake::Awake;
use super::own::{Flag, SubscriptionPhase};
use super::scan::resynced;
use super::{Halt, OnLag, Step};
use crate::batch::{Batch, BatchBuilder, Made};
use crate::cache::StateView;
use crate::data::event::{Kind, Mark, Phase as End, Resync, ResyncReason, flags};
use crate::data::key_value::{KeyMeta, KeyValue, VersionPtr};
use crate::filter::range::Range;
use crate::position::Position;
use crate::read::view::{At, Left, PIN_KEYS, Scan};
use crate::reclaim;

/// A difference on its way out.
#[derive(Debug, Default)]
pub(super) struct CatchUp {
    /// The state that it leads to: fixed with its first page.
    head: u64,
    at: Position,
    stage: Stage,
    next: Option<Vec<u8>>,
    /// Heads at which keys were delivered: those below the key of an entry at its head, the first that
    /// fits; the rest at `base`.
    heads: Vec<(Vec<u8>, u64)>,
    base: u64,
    /// It takes the place of the initial state.
    initial: bool,
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
}

impl CatchUp {
    /// The head at which a key was delivered.
    fn head_of(&self, key: &[u8]) -> u64 {
        self.heads.iter().find(|(border, _)| key < &border[..]).map_or(self.base, |(_, head)| *head)
    }

    /// Overtaken: the keys that it has handed out count as delivered at its head, the rest as before.
    fn begin_again(&mut self) {
        if self.stage == Stage::Puts
            && let Some(next) = self.next.take()
        {
            self.heads.retain(|(border, _)| *border > next);
            self.heads.insert(0, (next, self.head));
        } else if matches!(self.stage, Stage::End | Stage::Mark) {
            (self.heads, self.base) = (Vec::new(), self.head);
        }
        self.next = None;
        self.stage = Stage::Begin;
    }
}

impl Awake<'_> {
    /// Whether the consumer stands inside the bracket of a difference: the loss was reported to it, and what
    /// overtakes the difference changes only the state that it leads to.
    pub(super) fn is_in_bracket(&self) -> bool {
        matches!(self.own.phase(), SubscriptionPhase::CatchUp(catch) if catch.begun)
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

    /// The next page of the difference.
    pub(super) fn catch_up_page(&mut self, max: usize) -> Step<Batch> {
        let mut batch = BatchBuilder::new(max, self.has(Flag::WholeRevisions), ());
        let bracket = self.own.on_lag == OnLag::Resnapshot;
        let mut catch = match self.own.enter(SubscriptionPhase::Ended) {
            SubscriptionPhase::Behind(mut catch) => {
                let (at, head) = self.shared.inner.now(&reclaim::pin());
                (catch.at, catch.head) = (at, head);
                if self.has(Flag::StopOnResync) && at.epoch != self.position().epoch && self.position().epoch != 0 {
                    return Err(resynced(at.revision, "while events were lost", self.position()).into());
                }
                catch
            }
            SubscriptionPhase::CatchUp(catch) => catch,
            other => {
                self.own.enter(other);
                return Ok(Batch::empty(self.position()));
            }
        };
        let mut lost = false;
        while batch.room() > 0 {
            match catch.stage {
                Stage::Begin => {
                    // Overtaken inside its bracket it continues there, at a newer state.
                    if bracket && !catch.begun {
                        catch.begun = true;
                        batch.push_mark(self.bracket(&catch, End::Begin));
                    }
                    catch.stage = Stage::Deletes;
                }
                Stage::Deletes => match self.deletes(&mut catch, &mut batch) {
                    Ok(true) => (catch.stage, catch.next) = (Stage::Puts, None),
                    Ok(false) => {}
                    Err(Left) => lost = true,
                },
                Stage::Puts => match self.puts(&mut catch, &mut batch) {
                    Ok(true) => (catch.stage, catch.next) = (Stage::End, None),
                    Ok(false) => {}
                    Err(Left) => lost = true,
                },
                Stage::End => {
                    if bracket {
                        batch.push_mark(self.bracket(&catch, End::End));
                    }
                    if !catch.initial {
                        return Ok(self.caught(&catch, batch));
                    }
                    catch.stage = Stage::Mark;
                }
                Stage::Mark => {
                    batch.push_mark(Mark::bookmark(catch.at.revision, flags::INITIAL_STATE_END));
                    return Ok(self.caught(&catch, batch));
                }
            }
            if lost {
                break;
            }
        }
        self.own.enter(SubscriptionPhase::CatchUp(catch));
        // What was gathered is handed out first; the next poll reports the loss.
        if lost && batch.is_empty() {
            return Err(Halt::Lost(self.loss()));
        }
        Ok(batch.continues(true).finish(self.position()))
    }

    fn caught(&mut self, catch: &CatchUp, batch: BatchBuilder) -> Batch {
        self.live(catch.head, catch.at);
        if let Some(cold) = &mut self.own.cold {
            cold.reported = 0;
        }
        batch.finish(self.position())
    }

    fn bracket(&self, catch: &CatchUp, phase: End) -> Mark {
        let CatchUp { at, .. } = catch;
        let (from, to) = (self.position().revision, at.revision);
        Mark::resync(&Resync { phase, reason: ResyncReason::Lagged, epoch: at.epoch, from, to }, 0)
    }

    /// Keys that were delivered and are not there, or do not match, any more. True: these were all.
    fn deletes(&mut self, catch: &mut CatchUp, batch: &mut BatchBuilder) -> Result<bool, Left> {
        let matcher = self.shared.matcher.clone();
        let (shows, room) = (matcher.delivers(Kind::Deleted), batch.room());
        let Some(delivered) = self.own.delivered() else { return Ok(true) };
        let mut gone = Vec::new();
        {
            let pin = reclaim::pin();
            let view = StateView::pinned(&self.shared.inner, catch.head, &pin).ok_or(Left)?;
            let from = catch.next.take().unwrap_or_default();
            for (looked, key) in delivered.from(&from, &pin).enumerate() {
                if looked == PIN_KEYS || (shows && gone.len() == room) {
                    catch.next = Some(key.to_vec());
                    break;
                }
                let slot = view.slot(key);
                let live = slot.and_then(|slot| view.live(slot)).filter(|kv| matcher.may_hold_value(kv));
                if live.is_some() && !matcher.has_predicates() {
                    continue;
                }
                let prev = slot.filter(|_| shows).and_then(|slot| view.delivered_before(slot, catch.head_of(key)));
                gone.push((key.to_vec(), live.map(|kv| kv.to_owned()), prev.map(|kv| kv.to_owned())));
            }
        }
        for (key, tried, prev) in gone {
            if tried.is_some_and(|kv| matcher.predicates_hold(&kv)) {
                continue;
            }
            delivered.remove(&key);
            if shows {
                let meta = prev.as_ref().map_or_else(KeyMeta::default, KeyValue::meta);
                let kv = KeyValue::new(&key, None, meta, 0, VersionPtr::NULL);
                push(batch, matcher.delivered_kind(Kind::Deleted), catch.at.revision, kv, prev);
            }
        }
        Ok(catch.next.is_none())
    }

    /// Keys that match now and were not delivered, or have changed since. True: these were all. Where the head
    /// has left, `catch.next` is where this has come to.
    fn puts(&mut self, catch: &mut CatchUp, batch: &mut BatchBuilder) -> Result<bool, Left> {
        let matcher = self.shared.matcher.clone();
        let Some(delivered) = self.own.delivered() else { return Ok(true) };
        let range = matcher.range().cloned().unwrap_or_else(Range::all);
        let mut scan = Scan::new(At::Head(&self.shared.inner, catch.head), &range, catch.next.take());
        let mut page = Vec::new();
        let looked = scan.page(batch.room(), &mut page, |view, slot, live| {
            let kv = live.filter(|kv| matcher.may_hold_value(kv))?;
            let (was, since) = (delivered.has(slot.key()), catch.head_of(slot.key()));
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
            if let Some(key) = key {
                delivered.add(key);
            }
            if matcher.delivers(kind) {
                push(batch, matcher.delivered_kind(kind), catch.at.revision, kv, prev);
            }
        }
        catch.next = scan.into_next();
        looked.map(|()| catch.next.is_none())
    }
}

fn push(batch: &mut BatchBuilder, kind: Kind, revision: u64, kv: KeyValue, prev: Option<KeyValue>) {
    batch.push_made(Made { kind, revision, sequence: 0, flags: flags::SYNTHETIC }, kv, prev);
}
