//! A consumer that knows what must come next.

use crate::bound::BOUND;
use crate::plan::{Expected, Plan, Value, kind_of, revision_of};
use crate::roll::{Entry, Roll};
use std::sync::Arc;
use watchcore::*;

/// Which keys a consumer asks for.
#[derive(Clone, Debug)]
pub enum Keys {
    All,
    One(usize),
    Prefix(&'static str),
    Path(&'static str),
}

impl Keys {
    fn holds(&self, plan: &Plan, key: usize) -> bool {
        let name = plan.name(key);
        match self {
            Keys::All => true,
            Keys::One(one) => *one == key,
            Keys::Prefix(prefix) => name.starts_with(prefix.as_bytes()),
            Keys::Path(path) => {
                name == path.as_bytes() || name.starts_with(path.as_bytes()) && name[path.len()] == b'/'
            }
        }
    }
}

/// How a consumer wants its events.
#[derive(Clone, Debug)]
pub struct Wish {
    pub keys: Keys,
    pub whole: bool,
    pub raw: bool,
    pub types: Vec<Kind>,
    pub bookmarks: bool,
    pub stop_on_resync: bool,
}

impl Wish {
    pub fn of(keys: Keys) -> Wish {
        Wish { keys, whole: false, raw: false, types: Vec::new(), bookmarks: false, stop_on_resync: false }
    }

    fn wants(&self, plan: &Plan, expected: Expected) -> bool {
        let Expected::Change { key, visit } = expected else { return true };
        self.keys.holds(plan, key) && (self.types.is_empty() || self.types.contains(&kind_of(visit)))
    }

    fn open(&self, cache: &Cache, plan: &Plan, name: String, start: Start) -> Result<Subscription> {
        let builder =
            cache.subscribe(start).name(name).types(&self.types).raw_types(self.raw).whole_revisions(self.whole);
        let builder = builder.bookmarks(self.bookmarks).bookmark_interval(std::time::Duration::ZERO);
        let builder = builder.stop_on_resync(self.stop_on_resync).start_timeout(BOUND);
        match &self.keys {
            Keys::All => builder,
            Keys::One(key) => builder.key(plan.name(*key)),
            Keys::Prefix(prefix) => builder.prefix(prefix),
            Keys::Path(path) => builder.path(path),
        }
        .open()
    }
}

/// How a poll ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    Events,
    Nothing,
    Lagged,
    Resynced,
    Closed,
}

#[derive(Debug)]
enum Stage {
    /// The initial state: (key, visit) seen.
    Initial(Vec<(usize, usize)>),
    /// The next thing in the log to look at.
    Live {
        step: u64,
        at: usize,
    },
    Over,
}

/// A subscription beside what must come next.
pub struct Follower {
    pub plan: Arc<Plan>,
    pub subscription: Subscription,
    pub wish: Wish,
    stage: Stage,
    position: Position,
    /// Step of the last event that was handed out.
    inside: u64,
    last_sequence: u64,
    /// It began at a revision of the future: its epoch is not known before the first event.
    future: bool,
    pub events: u64,
    /// Another thread closes it, not before this revision: a loss may then end at the close.
    pub closed_from: Option<u64>,
    /// After the subscription: dropped when that is gone.
    entry: Entry,
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.entry.leaves();
    }
}

impl Follower {
    /// Opens a subscription; COMPACTED where `After` lies below the window.
    pub fn open(cache: &Cache, plan: &Arc<Plan>, roll: &Arc<Roll>, wish: Wish, start: Start) -> Result<Follower> {
        let current = cache.position().revision;
        let entry = roll.enter();
        let subscription = wish.open(cache, plan, entry.name(), start)?;
        entry.is_open();
        let position = subscription.position();
        let stage = match start {
            Start::Now | Start::After(_) => Stage::Live { step: position.revision / 2 + 1, at: 0 },
            _ => Stage::Initial(Vec::new()),
        };
        if let Start::After(revision) = start {
            assert_eq!(position.revision, revision, "the position of a start {start:?}");
        }
        Ok(Follower {
            plan: plan.clone(),
            subscription,
            wish,
            stage,
            position,
            inside: 0,
            last_sequence: 0,
            future: position.revision > current,
            events: 0,
            closed_from: None,
            entry,
        })
    }

    pub fn position(&self) -> Position {
        self.position
    }

    pub fn state(&self) -> String {
        format!("{:?} {:?} {:?} position {:?}", self.plan, self.wish, self.stage, self.position)
    }

    /// Polls once and checks all that came.
    pub fn poll(&mut self, max: usize) -> (Outcome, Option<Batch>) {
        let outcome = match self.subscription.poll(max) {
            Ok(batch) => {
                assert!(batch.len() <= max || self.wish.whole, "{} of {max} events: {}", batch.len(), self.state());
                self.check(&batch);
                let outcome = if batch.is_empty() { Outcome::Nothing } else { Outcome::Events };
                return (outcome, Some(batch));
            }
            Err(error) => self.ended(&error),
        };
        (outcome, None)
    }

    fn ended(&mut self, error: &Error) -> Outcome {
        // The poll that finds the end still moves over what did not match.
        let position = self.subscription.position();
        assert!(position >= self.position, "back to {position:?}: {}", self.state());
        let next = self.next();
        assert!(next.is_none_or(|(step, _)| position.revision < revision_of(step)), "ahead: {}", self.state());
        self.position = position;
        let outcome = match error.code() {
            Code::Closed => return Outcome::Closed,
            Code::Lagged => {
                let numbers = (error.lost_from(), error.lost_to(), error.oldest(), error.current());
                let text = format!("{numbers:?} {}", self.state());
                assert_eq!(error.position().revision, self.position.revision, "{text}");
                let initial = matches!(self.stage, Stage::Initial(_));
                assert_eq!(error.lost_from(), if initial { 1 } else { self.position.revision + 1 }, "{text}");
                let to = if initial { error.current() } else { error.oldest() - 1 };
                let ends_at_close = self.closed_from.is_some_and(|from| (from..to).contains(&error.lost_to()));
                assert!(error.lost_to() == to || ends_at_close, "{text}");
                assert!(error.lost_from() <= error.lost_to() && error.lost_to() <= error.current(), "{text}");
                Outcome::Lagged
            }
            Code::Resynced => {
                assert!(self.wish.stop_on_resync, "{}", self.state());
                let step = self.next().map(|(step, _)| step);
                assert_eq!(error.current(), revision_of(step.unwrap_or(0)), "reported at its resync: {}", self.state());
                Outcome::Resynced
            }
            code => panic!("{code:?} {error}: {}", self.state()),
        };
        self.stage = Stage::Over;
        for _ in 0..2 {
            let again = self.subscription.poll(9).map(|batch| batch.len());
            assert_eq!(again.expect_err("reported once, then").code(), Code::Closed, "{}", self.state());
        }
        outcome
    }

    /// What must come next, and its step; the cursor stands at it then.
    fn next(&mut self) -> Option<(u64, Expected)> {
        let Stage::Live { step, at } = &mut self.stage else { return None };
        while *step <= self.plan.steps {
            if let Some(expected) = self.plan.changes(*step).get(*at) {
                if self.wish.wants(&self.plan, *expected) {
                    return Some((*step, *expected));
                }
                *at += 1;
            } else {
                (*step, *at) = (*step + 1, 0);
            }
        }
        None
    }

    fn check(&mut self, batch: &Batch) {
        for event in batch {
            match self.stage {
                Stage::Initial(_) => self.initial(event),
                Stage::Live { .. } => self.live(event),
                Stage::Over => panic!("{event:?} behind the end: {}", self.state()),
            }
        }
        self.events += batch.len() as u64;
        let position = batch.position();
        assert_eq!(position, self.subscription.position(), "{}", self.state());
        if matches!(self.stage, Stage::Initial(_)) {
            assert_eq!(position.revision, 0, "during the initial state: {}", self.state());
            return;
        }
        assert!(position >= self.position, "back to {position:?}: {}", self.state());
        self.position = position;
        self.future &= batch.is_empty();
        let epoch = position.epoch_number();
        assert!(self.future || epoch == self.plan.epoch(position.revision / 2), "{}", self.state());
        let next = self.next();
        if let Some((step, expected)) = next {
            assert!(position.revision < revision_of(step), "ahead of {step} {expected:?}: {}", self.state());
            let inside = step == self.inside;
            assert!(batch.continues() || batch.is_empty() || !inside, "a revision cut in silence: {}", self.state());
            assert!(!(inside && self.wish.whole), "not whole: {}", self.state());
        }
        assert!(!(batch.continues() && self.wish.whole), "continues, but whole: {}", self.state());
        if batch.continues() {
            let len = self.plan.changes(self.inside).len();
            assert!(len > batch.len() && position.revision < revision_of(self.inside), "continues: {}", self.state());
        }
    }

    fn initial(&mut self, event: &Event) {
        let state = self.state();
        let Stage::Initial(seen) = &mut self.stage else { return };
        if event.ends_initial_state() {
            assert_eq!(event.kind(), Kind::Bookmark);
            let step = event.revision() / 2;
            let shows = self.wish.types.is_empty() || self.wish.types.contains(&Kind::Added);
            let must: Vec<(usize, usize)> =
                self.plan.state(step).filter(|(key, _)| shows && self.wish.keys.holds(&self.plan, *key)).collect();
            assert_eq!(*seen, must, "the initial state at {}: {state}", event.revision());
            self.stage = Stage::Live { step: step + 1, at: 0 };
            return;
        }
        assert!(event.is_initial_state() && event.sequence() == 0, "{event:?}: {state}");
        assert_eq!(event.kind(), if self.wish.raw { Kind::Put } else { Kind::Added }, "{state}");
        let kv = event.kv().unwrap_or_else(|| panic!("{event:?} has none: {state}"));
        seen.push(check_kv(&self.plan, kv));
        assert_eq!(event.revision(), kv.mod_revision(), "its own revision: {state}");
        assert!(event.prev().is_none());
    }

    fn live(&mut self, event: &Event) {
        if event.kind() == Kind::Bookmark {
            assert!(self.wish.bookmarks && event.flags() == 0, "{event:?}: {}", self.state());
            let next = self.next();
            let done = next.is_none_or(|(step, _)| event.revision() < revision_of(step));
            assert!(done, "a bookmark at {} before {next:?}: {}", event.revision(), self.state());
            return;
        }
        let Some((step, expected)) = self.next() else { panic!("{event:?} behind the last: {}", self.state()) };
        let place = || format!("{event:?} for {expected:?} of step {step}: {}", self.state());
        assert_eq!(event.revision(), revision_of(step), "{}", place());
        assert!(event.sequence() > self.last_sequence, "{}", place());
        assert_eq!(event.is_synthetic(), self.plan.is_resync(step) && event.kind() != Kind::Resync, "{}", place());
        match expected {
            Expected::Begin | Expected::End => {
                let mark = event.resync().unwrap_or_else(|| panic!("no mark: {}", place()));
                let phase = if expected == Expected::Begin { Phase::Begin } else { Phase::End };
                assert_eq!((mark.phase, mark.reason), (phase, ResyncReason::Compacted), "{}", place());
                assert_eq!((mark.from, mark.to), (self.plan.told_before(step), revision_of(step)), "{}", place());
                assert_eq!(mark.epoch & 0xffff_ffff, self.plan.epoch(step), "{}", place());
            }
            Expected::Change { key, visit } => {
                let kind = match (kind_of(visit), self.wish.raw) {
                    (Kind::Deleted, true) => Kind::Delete,
                    (_, true) => Kind::Put,
                    (kind, _) => kind,
                };
                assert_eq!(event.kind(), kind, "{}", place());
                assert_eq!(event.key(), self.plan.name(key), "{}", place());
                let gone = kind_of(visit) == Kind::Deleted;
                let value = Value::of(key, visit);
                assert_eq!(event.value(), (!gone).then(|| value.bytes()), "{}", place());
                let before = (!visit.is_multiple_of(4)).then(|| Value::of(key, visit - 1));
                assert_eq!(event.prev_value(), before.as_ref().map(Value::bytes), "{}", place());
                assert_eq!(event.prev().is_some(), before.is_some(), "{}", place());
                let numbers = (event.create_revision(), event.mod_revision(), event.version());
                assert_eq!(numbers, self.plan.numbers(key, visit - usize::from(gone)), "{}", place());
            }
        }
        self.last_sequence = event.sequence();
        self.inside = step;
        if let Stage::Live { at, .. } = &mut self.stage {
            *at += 1;
        }
    }

    /// Whether everything up to the last step was handed out.
    pub fn is_done(&mut self) -> bool {
        matches!(self.stage, Stage::Live { .. }) && self.next().is_none()
    }

    /// Whether the initial state is behind it.
    pub fn is_live(&self) -> bool {
        matches!(self.stage, Stage::Live { .. })
    }

    /// Everything of the steps up to this one that it asked for was handed out.
    pub fn assert_all_up_to(&mut self, last: u64) {
        assert!(matches!(self.stage, Stage::Live { .. }), "not live: {}", self.state());
        let next = self.next();
        assert!(next.is_none_or(|(step, _)| step > last), "{next:?} was not handed out: {}", self.state());
    }
}

/// A key-value shows what its visit put; (key, visit).
pub fn check_kv(plan: &Plan, kv: &KeyValue) -> (usize, usize) {
    let key = plan.key_of(kv.key());
    let step = kv.mod_revision() / 2;
    let visit = plan.shown(key, step).unwrap_or_else(|| panic!("{:?} at {step} is absent: {plan:?}", plan.name(key)));
    assert_eq!((kv.create_revision(), kv.mod_revision(), kv.version()), plan.numbers(key, visit), "{plan:?}");
    assert_eq!(kv.value(), Some(Value::of(key, visit).bytes()), "{plan:?}");
    (key, visit)
}
