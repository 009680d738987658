//! Handlers and function indexes over a hostile source, a thousand histories of it: values that cannot be decoded, a
//! conversion and functions that panic, a function that answers differently each time, windows that move on, histories that
//! are replaced.
//!
//! In each revision the keys of a pair change together, so half a revision shows. The oracle has every state by its
//! position; an answer must be the state of exactly the position that it says, whenever it is read. `WATCHCORE_SEED` runs one history.

use crate::support::BOUND;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use watchcore::raw::TestBuilder as _;
use watchcore::{Cache, Change, Code, Error, KeyValue, OnLag, Position, Record, Result, ResyncReason, Writer};
use watchcore_toolkit::{
    FromKeyValue, Handler, HandlerOptions, HandlerRun, HandlerState, Informer, Lister, Origin, Registration,
};

/// Random numbers of a history.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }
}

/// An object whose conversion refuses `bad…` and panics over `boom…`.
#[derive(Clone)]
struct Word(KeyValue);

impl Word {
    fn key(&self) -> String {
        self.0.key_str().unwrap().to_owned()
    }

    fn value(&self) -> String {
        self.0.value_str().unwrap().to_owned()
    }
}

impl FromKeyValue for Word {
    fn from_key_value(kv: &KeyValue) -> Result<Word> {
        let value = kv.value_str().unwrap_or_default();
        if value.starts_with("bad") {
            return Err(Error::new(Code::InvalidArgument, "a bad value"));
        }
        if value.starts_with("boom") {
            std::panic::resume_unwind(Box::new("the conversion's fault"));
        }
        Ok(Word(kv.clone()))
    }

    fn key_value(&self) -> &KeyValue {
        &self.0
    }

    type View = KeyValue;

    fn view(kv: &KeyValue) -> Result<&KeyValue> {
        Ok(kv)
    }
}

fn decodes(value: &str) -> bool {
    !value.starts_with("bad") && !value.starts_with("boom")
}

type State = BTreeMap<String, String>;

/// What was written.
struct History {
    writer: Writer,
    /// The state at each position.
    states: Arc<Mutex<BTreeMap<Position, State>>>,
    state: State,
    /// Every good value that a key ever had.
    ever: Arc<Mutex<BTreeSet<(String, String)>>>,
    number: u64,
}

impl History {
    fn position(&self) -> Position {
        self.writer.position()
    }

    /// Notes the state of a position, before the cache shows it.
    fn note(&self, position: Position) {
        let good = self.state.iter().filter(|(_, value)| decodes(value));
        self.ever.lock().unwrap().extend(good.map(|(key, value)| (key.clone(), value.clone())));
        self.states.lock().unwrap().insert(position, self.state.clone());
    }

    fn apply(&mut self, changes: &[(String, Option<String>)]) {
        for (key, value) in changes {
            match value {
                Some(value) => self.state.insert(key.clone(), value.clone()),
                None => self.state.remove(key),
            };
        }
        let position = Position { revision: self.position().revision + 1, ..self.position() };
        self.note(position);
        let changes = changes.iter().map(|(key, value)| match value {
            Some(value) => Change::put(key, value),
            None => Change::delete(key),
        });
        self.writer.apply(position.revision, changes).unwrap();
    }

    fn value(&mut self, numbers: &mut Numbers) -> String {
        self.number += 1;
        let kind = ["good", "good", "good", "sick", "bad", "boom"][numbers.below(6) as usize];
        format!("{kind}-{}", self.number)
    }

    /// One step of a history.
    fn step(&mut self, numbers: &mut Numbers) {
        let key = format!("/k{}", numbers.below(4));
        match numbers.below(12) {
            0..=3 => {
                // A pair, and a third one whose value may have no event.
                let (value, third) = (format!("pair-{}", self.number), self.value(numbers));
                let pair = ["/x", "/y"].map(|key| (key.to_owned(), Some(value.clone())));
                let mut changes = pair.to_vec();
                changes.insert(numbers.below(3) as usize, (key, Some(third)));
                self.apply(&changes);
            }
            4..=6 => {
                let value = self.value(numbers);
                self.apply(&[(key, Some(value))]);
            }
            7 | 8 if self.state.contains_key(&key) => self.apply(&[(key, None)]),
            9 if numbers.below(4) == 0 => {
                for _ in 0..150 {
                    self.number += 1;
                    let value = format!("good-{}", self.number);
                    self.apply(&[("/lap".to_owned(), Some(value))]);
                }
            }
            10 if numbers.below(3) == 0 => self.replace(numbers),
            _ => {
                let next = Position { revision: self.position().revision + 1, ..self.position() };
                self.note(next);
                self.writer.progress(next.revision).unwrap();
            }
        }
    }

    /// Another history, in which some keys are gone and some have other values.
    fn replace(&mut self, numbers: &mut Numbers) {
        let keys: Vec<String> = self.state.keys().cloned().collect();
        for key in keys.iter().filter(|key| key.starts_with("/k")) {
            match numbers.below(3) {
                0 => drop(self.state.remove(key)),
                1 => {
                    let value = self.value(numbers);
                    self.state.insert(key.clone(), value);
                }
                _ => {}
            }
        }
        let before = self.position();
        let revision =
            if numbers.below(2) == 0 { before.revision + 5 } else { before.revision.saturating_sub(3).max(1) };
        // An unchanged state at the same revision would publish nothing.
        self.number += 1;
        self.state.insert("/lap".into(), format!("good-{}", self.number));
        self.note(Position { epoch: before.epoch + 1, revision });
        let records: Vec<Record<'_>> = self
            .state
            .iter()
            .map(|(key, value)| Record {
                key: key.as_bytes(),
                value: value.as_bytes(),
                mod_revision: revision,
                create_revision: revision,
                version: 1,
                lease: 0,
            })
            .collect();
        self.writer.resync(revision, records, ResyncReason::Requested).unwrap();
    }
}

/// What a handler was given, and how that did not fit.
#[derive(Default)]
struct Given {
    objects: State,
    misfits: Vec<String>,
    calls: u64,
}

struct Follows {
    given: Arc<Mutex<Given>>,
    /// Whether a gap may hide a change of what it was given.
    may_skip: bool,
}

impl Follows {
    fn take(&mut self, key: String, old: Option<String>, new: Option<String>) {
        let mut given = self.given.lock().unwrap();
        given.calls += 1;
        let known = given.objects.get(&key).cloned();
        if known != old && !self.may_skip {
            given.misfits.push(format!("{key}: it has {known:?}, and is told {old:?} -> {new:?}"));
        }
        match new {
            Some(new) => given.objects.insert(key, new),
            None => given.objects.remove(&key),
        };
        if given.calls.is_multiple_of(7) {
            drop(given);
            std::panic::resume_unwind(Box::new("the handler's fault"));
        }
    }
}

impl Handler<Word> for Follows {
    fn added(&mut self, new: &Word, _: Origin) {
        self.take(new.key(), None, Some(new.value()));
    }

    fn updated(&mut self, old: &Word, new: &Word, _: Origin) {
        self.take(new.key(), Some(old.value()), Some(new.value()));
    }

    fn deleted(&mut self, last: &Word, _: Origin) {
        self.take(last.key(), Some(last.value()), None);
    }
}

/// The values that the flighty function gave, by key and value of its object; it was called once for each.
type Calls = Arc<Mutex<HashMap<(String, String, u64), Vec<Vec<String>>>>>;

/// The states of a history by position, and every good value of a key.
type Oracle = (Arc<Mutex<BTreeMap<Position, State>>>, Arc<Mutex<BTreeSet<(String, String)>>>);

/// A check of an answer by index: it is the state of its position, as far as that could be decoded.
fn check(history: &Oracle, lister: &Lister<Word>) {
    let answer = match lister.by_index("all", "all") {
        Err(error) if error.code() == Code::NotReady => return,
        answer => answer.unwrap(),
    };
    let states = history.0.lock().unwrap();
    let Some(state) = states.get(&answer.position) else { panic!("no state at {:?}", answer.position) };
    let found: State = answer.objects.iter().map(|word| (word.key(), word.value())).collect();
    assert_eq!(found.len(), answer.objects.len(), "a key twice at {:?}", answer.position);
    for (key, value) in state {
        match found.get(key) {
            Some(found) if found == value => {}
            None if !decodes(value) => {}
            // The last good value that it was given stays.
            Some(found) if !decodes(value) => {
                assert!(history.1.lock().unwrap().contains(&(key.clone(), found.clone())), "{key} never was {found}");
            }
            found => panic!("{key} is {found:?} at {:?}, and was {value}", answer.position),
        }
    }
    let deleted: Vec<&String> = found.keys().filter(|key| !state.contains_key(*key)).collect();
    assert!(deleted.is_empty(), "{deleted:?} are there at {:?}", answer.position);
}

/// A handler that is polled by hand.
struct Polled {
    registration: Registration,
    run: HandlerRun,
    given: Arc<Mutex<Given>>,
    on_lag: OnLag,
}

impl Polled {
    fn add(informer: &Informer<Word>, on_lag: OnLag) -> Polled {
        let given = Arc::new(Mutex::new(Given::default()));
        let handler = Follows { given: Arc::clone(&given), may_skip: on_lag == OnLag::SkipToOldest };
        let (registration, run) = informer.handler(handler, HandlerOptions::new().on_lag(on_lag)).unwrap();
        Polled { registration, run, given, on_lag }
    }

    fn poll(&mut self) {
        if !matches!(self.registration.status().state, HandlerState::Ended(_)) {
            let _: Poll<()> = Pin::new(&mut self.run).poll(&mut Context::from_waker(Waker::noop()));
        }
    }

    /// What it was given is the state, where it has followed to the end.
    fn settle(mut self, history: &History) {
        // A poll makes 64 calls at most, and there is no more than a window of them.
        for _ in 0..32 {
            self.poll();
        }
        let given = self.given.lock().unwrap();
        assert_eq!(given.misfits, [""; 0], "{:?}", self.on_lag);
        if matches!(self.registration.status().state, HandlerState::Ended(_)) {
            // Overtaken under Stop, or under SkipToOldest in the initial state.
            assert_ne!(self.on_lag, OnLag::Resnapshot);
            return;
        }
        if self.on_lag == OnLag::SkipToOldest {
            return;
        }
        for (key, value) in history.state.iter().filter(|(_, value)| decodes(value)) {
            assert_eq!(given.objects.get(key), Some(value), "{key} under {:?}", self.on_lag);
        }
        let gone: Vec<_> = given.objects.keys().filter(|key| !history.state.contains_key(*key)).collect();
        assert!(gone.is_empty(), "{gone:?} under {:?}", self.on_lag);
    }
}

/// All that the functions say, when the indexes have come to the end.
fn check_indexes(history: &History, lister: &Lister<Word>, calls: &Calls) {
    let all = lister.by_index("all", "all").unwrap();
    let objects: BTreeMap<String, &Word> = all.objects.iter().map(|word| (word.key(), word)).collect();
    let mut under: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for value in lister.index_values("flighty").unwrap() {
        let found = lister.by_index("flighty", &value).unwrap();
        assert!(!found.is_empty(), "{value} is a value without an object");
        for word in &found.objects {
            let newest = objects.get(&word.key()).map(|word| word.value());
            assert_eq!(newest, Some(word.value()), "an old {} is under {value}", word.key());
            under.entry(word.key()).or_default().insert(value.clone());
        }
    }
    let calls = calls.lock().unwrap();
    for (key, word) in &objects {
        let said = &calls[&(key.clone(), word.value(), word.0.mod_revision())];
        // A replaced history gives the same version again; its last call is what counts.
        let last: BTreeSet<String> = said.last().unwrap().iter().cloned().collect();
        assert_eq!(under.get(key).cloned().unwrap_or_default(), last, "{key} of {:?}", history.position());
    }
    let orphans: Vec<_> = under.keys().filter(|key| !objects.contains_key(*key)).collect();
    assert!(orphans.is_empty(), "{orphans:?}");
}

fn run(seed: u64) {
    let mut numbers = Numbers(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let cache = Cache::builder("/").capacity(128).segment_slots(16).build().unwrap();
    let mut history = History {
        writer: cache.writer().unwrap(),
        states: Arc::default(),
        state: State::new(),
        ever: Arc::default(),
        number: 0,
    };
    history.note(history.position());
    let calls = Calls::default();
    let flighty = {
        let (calls, called) = (Arc::clone(&calls), AtomicU64::new(0));
        move |word: &Word| {
            let number = called.fetch_add(1, Ordering::Relaxed);
            let values = match word.value().starts_with("sick") {
                true => vec![],
                false => vec![format!("call-{}", number % 5), word.value(), format!("call-{}", number % 3)],
            };
            let id = (word.key(), word.value(), word.0.mod_revision());
            calls.lock().unwrap().entry(id).or_default().push(values.clone());
            if word.value().starts_with("sick") {
                std::panic::resume_unwind(Box::new("the function's fault"));
            }
            values
        }
    };
    let builder = Informer::<Word>::builder(&cache).index("all", |_| vec!["all".into()]).index("flighty", flighty);
    let informer = builder.build().unwrap();
    let lister = informer.lister();
    let oracle = (Arc::clone(&history.states), Arc::clone(&history.ever));
    let policies = [OnLag::Resnapshot, OnLag::Stop, OnLag::SkipToOldest];
    let mut handlers: Vec<Polled> = policies.map(|policy| Polled::add(&informer, policy)).into();
    for _ in 0..numbers.below(50) + 10 {
        history.step(&mut numbers);
        check(&oracle, &lister);
        for handler in &mut handlers {
            if numbers.below(3) == 0 {
                handler.poll();
            }
        }
        if numbers.below(20) == 0 {
            handlers.push(Polled::add(&informer, policies[numbers.below(3) as usize]));
        }
    }
    lister.wait_until(history.position().revision, BOUND).unwrap();
    check(&oracle, &lister);
    check_indexes(&history, &lister, &calls);
    handlers.into_iter().for_each(|handler| handler.settle(&history));
    assert!(informer.index_status().unwrap().failure.is_none());
}

/// A thousand hostile histories, the seed of a failure in its message.
#[test]
fn si_10_hostile_histories() {
    if let Ok(seed) = std::env::var("WATCHCORE_SEED") {
        return run(seed.parse().expect("a number"));
    }
    // On the threads that there are: the indexes' own threads run beside them.
    let next = AtomicU64::new(1);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed > 1000 {
                        return;
                    }
                    let ran = std::panic::catch_unwind(|| run(seed));
                    assert!(ran.is_ok(), "WATCHCORE_SEED={seed}");
                }
            });
        }
    });
}
