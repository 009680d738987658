//! The difference that brings a consumer back behind a loss, worked out by looking at every event.

use crate::filter::Filter;
use crate::oracle::{Kv, Oracle, raw_kind};
use crate::sub::Options;
use std::collections::{BTreeMap, VecDeque};
use watchcore::{Batch, Error, Event, Kind, OnLag, Phase, Position, ResyncReason};

pub fn assert_is(event: &Event, key: &[u8], kv: &Kv) {
    assert_eq!((event.key(), event.value()), (key, Some(&kv.value[..])));
    let numbers = (event.create_revision(), event.mod_revision(), event.version(), event.lease());
    assert_eq!(numbers, (kv.create, kv.modified, kv.version, kv.lease), "numbers of {key:?}");
}

/// The keys that a consumer has been delivered: what it saw last, and (for a difference) behind how many
/// events that was.
#[derive(Clone, Debug, Default)]
pub struct Delivered(BTreeMap<Vec<u8>, (Kv, usize)>);

impl Delivered {
    pub fn new(state: BTreeMap<Vec<u8>, Kv>) -> Delivered {
        Delivered(state.into_iter().map(|(key, kv)| (key, (kv, 0))).collect())
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn put(&mut self, key: &[u8], kv: &Kv, at: usize) {
        self.0.insert(key.to_vec(), (kv.clone(), at));
    }

    pub fn all_at(&mut self, count: usize) {
        self.0.values_mut().for_each(|(_, at)| *at = count);
    }

    /// An event: no Added for a key delivered, no other for one that is not.
    pub fn change(&mut self, kind: Kind, key: &[u8], kv: Option<&Kv>) {
        match (kind, kv) {
            (Kind::Added, Some(kv)) => {
                assert!(self.0.insert(key.to_vec(), (kv.clone(), 0)).is_none(), "ADDED, though delivered: {key:?}");
            }
            (Kind::Modified, Some(kv)) => {
                assert!(
                    self.0.insert(key.to_vec(), (kv.clone(), 0)).is_some(),
                    "MODIFIED, though not delivered: {key:?}"
                );
            }
            (Kind::Deleted, _) => assert!(self.0.remove(key).is_some(), "DELETED, though not delivered: {key:?}"),
            _ => {}
        }
    }

    pub fn assert_are(&self, state: &BTreeMap<Vec<u8>, Kv>, when: &str) {
        let delivered: Vec<_> = self.0.iter().map(|(key, (kv, _))| (key, kv)).collect();
        assert_eq!(delivered, state.iter().collect::<Vec<_>>(), "the replayed state {when}");
    }
}

#[derive(Debug)]
enum Step {
    Mark(Phase),
    Deleted(Vec<u8>),
    /// As what; `None`: unchanged.
    Put(Vec<u8>, Kv, Option<Kind>),
    /// The bookmark at the end of the initial state.
    End,
}

#[derive(Debug)]
pub struct Plan {
    steps: VecDeque<Step>,
    pub count: usize,
    pub at: Position,
    from: u64,
    pub initial: bool,
    /// Its BEGIN mark was handed out.
    pub begun: bool,
    exact: bool,
}

impl Plan {
    pub fn new(
        options: &Options,
        oracle: &Oracle,
        delivered: &Delivered,
        from: u64,
        (count, at): (usize, Position),
        (initial, begun): (bool, bool),
        exact: bool,
    ) -> Plan {
        let filter = &options.filter;
        let state = oracle.matching_at(filter, count);
        let has_marks = options.on_lag == OnLag::Resnapshot;
        let mut steps = VecDeque::new();
        steps.extend((has_marks && !begun).then_some(Step::Mark(Phase::Begin)));
        steps.extend(delivered.0.keys().filter(|key| !state.contains_key(*key)).map(|key| Step::Deleted(key.clone())));
        for (key, kv) in &state {
            let kind = match delivered.0.get(key) {
                None => Some(Kind::Added),
                Some((_, at)) => {
                    oracle.events[*at..count].iter().any(|event| event.key == *key).then_some(Kind::Modified)
                }
            };
            steps.push_back(Step::Put(key.clone(), kv.clone(), kind));
        }
        steps.extend(has_marks.then_some(Step::Mark(Phase::End)));
        steps.extend(initial.then_some(Step::End));
        Plan { steps, count, at, from, initial, begun, exact }
    }

    /// Whether an answer is the rest of this difference, though its state has left the window. What is left
    /// must be marks, and whether they need the state is the core's to know: a key that it keeps and that is
    /// not shown may stand behind the last one shown.
    pub fn ends_without_its_state(&self, answer: &Result<Batch, Error>) -> bool {
        // What is masked is compared loosely: which steps are left is not known.
        let marks = !self.exact || self.steps.iter().all(|step| matches!(step, Step::Mark(Phase::End) | Step::End));
        // Its BEGIN mark was handed out: nothing after that is read.
        let bookmark = self.begun && matches!(self.steps.front(), Some(Step::End));
        // Without marks, as of Conflate, only the position says that it was the rest.
        let here = |batch: &Batch| match batch.events().last() {
            Some(event) => event.revision() == self.at.revision,
            None => !batch.continues() && batch.position() == self.at,
        };
        bookmark || marks && answer.as_ref().is_ok_and(here)
    }

    /// Compares a page and takes over what it shows. True: the difference is complete.
    pub fn check_page(&mut self, filter: &Filter, batch: &Batch, most: usize, delivered: &mut Delivered) -> bool {
        self.begun |= batch.events().iter().filter_map(Event::resync).any(|mark| mark.phase == Phase::Begin);
        if !self.exact {
            return self.check_loosely(filter, batch, delivered);
        }
        let mut events = batch.events().iter();
        let mut taken = 0;
        while taken < most {
            let Some(step) = self.steps.pop_front() else {
                assert!(events.next().is_none(), "more than the difference");
                return true;
            };
            let mut next = || {
                taken += 1;
                events.next().unwrap_or_else(|| panic!("{step:?} is missing in {batch:?}, at most {most}"))
            };
            match &step {
                Step::Mark(phase) => {
                    self.assert_mark(next(), *phase);
                    if *phase == Phase::End && !self.initial {
                        assert!(events.next().is_none(), "more than the difference");
                        return true;
                    }
                }
                Step::End => {
                    let event = next();
                    assert!(event.ends_initial_state() && event.kind() == Kind::Bookmark, "{event:?}");
                    assert_eq!(event.revision(), self.at.revision);
                    return true;
                }
                Step::Deleted(key) => {
                    let (before, _) = delivered.0.remove(key).expect("it is delivered");
                    if filter.shows(Kind::Deleted) {
                        let event = next();
                        self.assert_made(event, Kind::Deleted, filter.raw);
                        assert_eq!((event.key(), event.value()), (&key[..], None));
                        let prev = event.prev_value();
                        assert!(prev.is_none_or(|value| *value == *before.value), "{prev:?}, delivered was {before:?}");
                    }
                }
                Step::Put(key, kv, kind) => {
                    if let Some(kind) = kind.filter(|kind| filter.shows(*kind)) {
                        let event = next();
                        self.assert_made(event, kind, filter.raw);
                        assert_is(event, key, kv);
                        let before = delivered.0.get(key).map(|(kv, _)| &kv.value);
                        let prev = event.prev_value();
                        let last_delivered = prev.is_none_or(|value| before.is_some_and(|before| **before == *value));
                        assert!(last_delivered, "{prev:?}, delivered was {before:?}");
                    }
                    delivered.put(key, kv, self.count);
                }
            }
        }
        assert!(events.next().is_none(), "more than {most}");
        false
    }

    fn assert_mark(&self, event: &Event, phase: Phase) {
        let mark = event.resync().unwrap_or_else(|| panic!("a mark was expected, not {event:?}"));
        let body = (mark.phase, mark.reason, mark.epoch, mark.from, mark.to);
        let Position { epoch, revision } = self.at;
        assert_eq!(body, (phase, ResyncReason::Lagged, epoch, self.from, revision));
    }

    fn assert_made(&self, event: &Event, kind: Kind, raw: bool) {
        assert_eq!(event.kind(), raw_kind(kind, raw), "kind of {event:?}");
        assert_eq!((event.revision(), event.sequence()), (self.at.revision, 0), "{event:?}");
        assert!(event.is_synthetic() && !event.is_initial_state());
    }

    /// Where masked kinds were passed over at an unknown place: kinds of the mask, values of the state.
    fn check_loosely(&mut self, filter: &Filter, batch: &Batch, delivered: &mut Delivered) -> bool {
        for event in batch {
            let of_state = self.steps.iter().find_map(|step| match step {
                Step::Put(key, kv, _) if *key == event.key() => Some(kv),
                _ => None,
            });
            match (event.kind(), of_state) {
                (Kind::Resync | Kind::Bookmark, _) => {}
                (Kind::Deleted | Kind::Delete, None) => assert!(filter.shows(Kind::Deleted)),
                (Kind::Added | Kind::Modified | Kind::Put, Some(kv)) => assert_is(event, event.key(), kv),
                (kind, _) => panic!("{kind:?} of {:?}, {of_state:?}", event.key()),
            }
        }
        if batch.continues() {
            return false;
        }
        delivered.0.clear();
        for step in self.steps.drain(..) {
            if let Step::Put(key, kv, _) = step {
                delivered.put(&key, &kv, self.count);
            }
        }
        true
    }
}
