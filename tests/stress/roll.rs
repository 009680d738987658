//! The subscriptions that the test has, and what a list of the cache's must have to do with them.

use crate::plan::Plan;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use watchcore::*;

/// How far a subscription of the test is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Presence {
    /// Between the beginning and the end of `open`: listed or not.
    Opens,
    Open,
    /// Between the beginning and the end of its drop: listed or not.
    Leaves,
}

/// The subscriptions that are there, by the numbers that their names have. One that is dropped is gone from it.
#[derive(Clone, Default)]
struct Names {
    next: u64,
    there: BTreeMap<u64, Presence>,
}

/// See the module.
#[derive(Default)]
pub struct Roll(Mutex<Names>);

impl Roll {
    /// A name of its own for a subscription that is opened next.
    pub fn enter(self: &Arc<Roll>) -> Entry {
        let mut names = self.lock();
        names.next += 1;
        let number = names.next;
        names.there.insert(number, Presence::Opens);
        drop(names);
        Entry { roll: self.clone(), number }
    }

    fn lock(&self) -> MutexGuard<'_, Names> {
        self.0.lock().unwrap()
    }

    fn now(&self) -> Names {
        self.lock().clone()
    }
}

/// One subscription of the roll: dropped after it.
pub struct Entry {
    roll: Arc<Roll>,
    number: u64,
}

impl Entry {
    pub fn name(&self) -> String {
        format!("number {}", self.number)
    }

    /// `open` has returned it.
    pub fn is_open(&self) {
        self.roll.lock().there.insert(self.number, Presence::Open);
    }

    /// It is dropped next.
    pub fn leaves(&self) {
        self.roll.lock().there.insert(self.number, Presence::Leaves);
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        // A list that begins after this must not have it.
        self.roll.lock().there.remove(&self.number);
    }
}

/// Looks at a cache again and again, and holds each look against the roll and those before.
pub struct Observer {
    cache: Cache,
    roll: Arc<Roll>,
    plan: Arc<Plan>,
    /// What the last list said, by id.
    last: HashMap<u64, SubscriptionInfo>,
    gone: HashSet<u64>,
    /// Of each name the id, for ever.
    ids: HashMap<u64, u64>,
    max_lag_seen: u64,
    /// Of each step, the events of it and those before.
    events: Vec<u64>,
    pub looks: u64,
}

impl Observer {
    pub fn new(cache: &Cache, roll: &Arc<Roll>, plan: &Arc<Plan>) -> Observer {
        let sum = |sum: &mut u64, step| {
            *sum += plan.changes(step).len() as u64;
            Some(*sum)
        };
        let events = (0..=plan.steps).scan(0, sum).collect();
        Observer {
            cache: cache.clone(),
            roll: roll.clone(),
            plan: plan.clone(),
            last: HashMap::new(),
            gone: HashSet::new(),
            ids: HashMap::new(),
            max_lag_seen: 0,
            events,
            looks: 0,
        }
    }

    /// One list, status and stats.
    pub fn look(&mut self) {
        let plan = self.plan.clone();
        let before = self.roll.now();
        let list = self.cache.subscriptions();
        let after = self.roll.now();
        let published = self.published();
        let mut listed = HashSet::new();
        for (at, info) in list.iter().enumerate() {
            assert!(at == 0 || list[at - 1].id < info.id, "ids rise: {list:?} {plan:?}");
            let number = info.name.strip_prefix("number ").and_then(|number| number.parse().ok());
            let number: u64 = number.unwrap_or_else(|| panic!("nobody was given this name: {info:?} {plan:?}"));
            assert!(number <= after.next, "a name that was not given yet: {info:?} {plan:?}");
            let was_dropped = number <= before.next && !before.there.contains_key(&number);
            assert!(!was_dropped, "it was dropped before the list began: {info:?} {plan:?}");
            assert!(listed.insert(number), "twice in one list: {info:?} {plan:?}");
            let id = *self.ids.entry(number).or_insert(info.id);
            assert_eq!(id, info.id, "{info:?} had another id {plan:?}");
            assert!(info.lag.events <= published, "{published} published: {info:?} {plan:?}");
            self.compare(info);
        }
        for (number, presence) in &before.there {
            let stays = *presence == Presence::Open && after.there.get(number) == Some(&Presence::Open);
            assert!(!stays || listed.contains(number), "{number} is open and not listed: {list:?} {plan:?}");
        }
        let last = list.into_iter().map(|info| (info.id, info)).collect();
        let before = std::mem::replace(&mut self.last, last);
        self.gone.extend(before.into_keys().filter(|id| !self.last.contains_key(id)));
        self.statistics();
        self.looks += 1;
    }

    /// What one look may say of a subscription after another.
    fn compare(&self, info: &SubscriptionInfo) {
        let plan = &self.plan;
        assert!(!self.gone.contains(&info.id), "an id is used again: {info:?} {plan:?}");
        let Some(before) = self.last.get(&info.id) else { return };
        assert!(info.position >= before.position, "back from {before:?} to {info:?} {plan:?}");
        assert!(info.handed_out >= before.handed_out, "taken back: {before:?} to {info:?} {plan:?}");
        // One loss may be counted that a poll under way still escapes.
        assert!(info.lagged + 1 >= before.lagged, "a loss less: {before:?} to {info:?} {plan:?}");
        let ended = SubscriptionState::Ended;
        assert!(before.state != ended || info.state == ended, "it goes on: {before:?} to {info:?} {plan:?}");
    }

    /// Events of the log up to now, by the plan: a loaded head is never above the position that is loaded after it.
    fn published(&self) -> u64 {
        self.events[(self.cache.position().revision / 2) as usize]
    }

    fn statistics(&mut self) {
        let plan = &self.plan;
        let status = self.cache.status();
        let published = self.published();
        assert!(status.max_lag_events <= published, "{published} published: {status:?} {plan:?}");
        assert!(status.max_lag_events <= status.max_lag_seen, "{status:?} {plan:?}");
        assert!(status.max_lag_seen >= self.max_lag_seen, "back from {}: {status:?} {plan:?}", self.max_lag_seen);
        assert!(status.max_lag_seen <= published, "{published} published: {status:?} {plan:?}");
        self.max_lag_seen = status.max_lag_seen;
    }
}
