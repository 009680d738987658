//! The words of an informer, for the rows of contract/toolkit/.

use crate::contract::{duration, line, number};
use crate::script::Woken;
use crate::support::{BOUND, Text};
use std::collections::{BTreeMap, HashMap};
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::task::{Context, Poll, Waker};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use watchcore::raw::TestBuilder as _;
use watchcore::{Cache, Change, Code, Error, Filter, OnLag, Record, Result, Snapshot, Writer};
use watchcore_toolkit::{
    Handler, HandlerOptions, HandlerRun, HandlerState, HandlerStatus, Informer, Lister, ManualClock, Origin,
    Registration, Status,
};

/// What a handler's thread and the row say to each other.
#[derive(Default)]
struct Told {
    state: Mutex<ToldState>,
    changed: Condvar,
}

#[derive(Default)]
struct ToldState {
    /// What the handler was given since the last `given`.
    lines: Vec<String>,
    /// Its calls do not return, but for so many.
    stalls: bool,
    may_return: u64,
    /// One of them stands now.
    stands: bool,
    /// How often the row has asked for a poll, and how often it was answered that nothing is left to do.
    asked: u64,
    answered: u64,
    /// Its future has ended.
    is_over: bool,
    /// What its `ended` was called with: the code of the error, or 0.
    ended: Option<u16>,
    /// The row is over.
    quits: bool,
}

impl Told {
    fn lock(&self) -> MutexGuard<'_, ToldState> {
        self.state.lock().unwrap()
    }

    fn change(&self, change: impl FnOnce(&mut ToldState)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    fn wait(&self, holds: impl Fn(&ToldState) -> bool) -> MutexGuard<'_, ToldState> {
        let (state, late) = self.changed.wait_timeout_while(self.lock(), BOUND, |state| !holds(state)).unwrap();
        assert!(!late.timed_out(), "not within {BOUND:?}");
        state
    }
}

/// A handler that writes down what it is given.
struct Writes {
    told: Arc<Told>,
    /// It panics where it is given this value.
    panics: Option<String>,
    /// It removes itself, and waits for that, in its first call.
    removes: bool,
    own: Arc<OnceLock<Arc<Registration>>>,
}

impl Writes {
    fn write(&mut self, text: String, value: &str) {
        self.told.change(|state| state.stands = state.stalls);
        drop(self.told.wait(|state| !state.stalls || state.may_return > 0));
        self.told.change(|state| {
            state.stands = false;
            state.may_return = state.may_return.saturating_sub(1);
        });
        assert_ne!(self.panics.as_deref(), Some(value), "as the row says");
        if std::mem::take(&mut self.removes) {
            let refused = self.own.get().expect("it is known").remove_and_wait(BOUND).unwrap_err();
            self.told.change(|state| state.lines.push(refused.code().name().to_owned()));
        }
        self.told.change(|state| state.lines.push(text));
    }
}

fn shown(object: &Text) -> String {
    format!("{}={}", object.key_str().unwrap(), **object)
}

impl Handler<Text> for Writes {
    fn added(&mut self, new: &Text, origin: Origin) {
        let mark = if origin == Origin::InitialState { "*" } else { "+" };
        self.write(format!("{mark}{}", shown(new)), new);
    }

    fn updated(&mut self, old: &Text, new: &Text, origin: Origin) {
        match origin {
            Origin::Resync => self.write(format!("={}", shown(new)), new),
            _ => self.write(format!("~{}>{}", shown(old), **new), new),
        }
    }

    fn deleted(&mut self, last: &Text, _: Origin) {
        self.write(format!("-{}", shown(last)), last);
    }

    fn deleted_unknown(&mut self, key: &[u8], _: Origin) {
        self.write(format!("?{}", String::from_utf8_lossy(key)), "");
    }

    fn ended(&mut self, error: Option<&Status>) {
        self.told.change(|state| state.ended = Some(error.map_or(0, Status::code)));
    }
}

/// A handler of a row: its thread polls it when the row asks, so that a step is over when nothing is left to do.
struct Hand {
    registration: Arc<Registration>,
    told: Arc<Told>,
    thread: Option<JoinHandle<()>>,
}

impl Hand {
    fn new(informer: &Informer<Text>, words: &[&str]) -> Result<Hand> {
        let told = Arc::<Told>::default();
        let mut writes = Writes { told: Arc::clone(&told), panics: None, removes: false, own: Arc::default() };
        let mut options = HandlerOptions::new().name(words[0]);
        let mut rest = words[1..].iter();
        while let Some(word) = rest.next() {
            let mut next = || rest.next().expect("a word");
            match *word {
                "resync" => options = options.resync_period(duration(next())),
                "lag" => options = options.on_lag(policy(next())),
                "panics" => writes.panics = Some((*next()).to_owned()),
                "removes-itself" => writes.removes = true,
                "stalls" => told.change(|state| state.stalls = true),
                other => panic!("{other} is no option of a handler"),
            }
        }
        let own = Arc::clone(&writes.own);
        let (registration, run) = informer.handler(writes, options)?;
        let registration = Arc::new(registration);
        assert!(own.set(Arc::clone(&registration)).is_ok());
        let thread = thread::spawn({
            let told = Arc::clone(&told);
            move || poll_when_asked(run, &told)
        });
        Ok(Hand { registration, told, thread: Some(thread) })
    }

    /// Until it has nothing left to do, has ended, or stands in a call.
    fn settle(&self) {
        let stands = self.told.lock().stands;
        if !stands {
            self.told.change(|state| state.asked += 1);
        }
        drop(self.told.wait(|state| state.answered == state.asked || state.is_over || state.stands));
    }

    fn status(&self) -> HandlerStatus {
        self.registration.status()
    }

    /// What it was given since the last time. A state, and what a resync gives, are in no particular order.
    fn given(&self) -> Vec<String> {
        let mut lines = std::mem::take(&mut self.told.lock().lines);
        for run in lines.chunk_by_mut(|one, other| one[..1] == other[..1]) {
            if run[0].starts_with(['*', '=']) {
                run.sort();
            }
        }
        lines
    }
}

impl Drop for Hand {
    fn drop(&mut self) {
        self.told.change(|state| state.quits = true);
        // The thread of a row that has failed may have panicked.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn poll_when_asked(mut run: HandlerRun, told: &Told) {
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    loop {
        let asked = {
            // It waits without a bound: the row asks when it likes, and says when it is over.
            let state = told.changed.wait_while(told.lock(), |state| state.answered == state.asked && !state.quits);
            let state = state.unwrap();
            if state.quits {
                return;
            }
            state.asked
        };
        loop {
            let before = woken.count();
            match Pin::new(&mut run).poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(()) => return told.change(|state| state.is_over = true),
                Poll::Pending if woken.count() == before => break,
                Poll::Pending => {}
            }
        }
        told.change(|state| state.answered = asked);
    }
}

fn policy(word: &str) -> OnLag {
    match word {
        "stop" => OnLag::Stop,
        "skip" => OnLag::SkipToOldest,
        "resnapshot" => OnLag::Resnapshot,
        other => panic!("{other} is no policy of a handler"),
    }
}

/// How the functions of all indexes answer: with the words of a value, with this value, or by a panic (`None`).
#[derive(Clone, Default)]
struct Mood(Arc<Mutex<MoodState>>);

#[derive(Default)]
struct MoodState {
    says: Option<Option<String>>,
    /// By index, key and revision.
    calls: HashMap<(String, String, u64), u64>,
}

impl Mood {
    fn values(&self, index: &str, text: &Text) -> Vec<String> {
        let mut state = self.0.lock().unwrap();
        *state.calls.entry((index.to_owned(), shown(text), text.revision())).or_default() += 1;
        let says = state.says.clone();
        drop(state);
        match says {
            None => text.split(' ').filter(|word| !word.is_empty()).map(str::to_owned).collect(),
            Some(Some(value)) => vec![value],
            Some(None) => panic!("as the row says"),
        }
    }
}

/// A cache that the row feeds, an informer over it, and its handlers.
pub(crate) struct InformerRow {
    // Dropped in this order: handlers before what they are called with.
    hands: BTreeMap<String, Hand>,
    states: BTreeMap<String, Snapshot>,
    informer: Informer<Text>,
    lister: Lister<Text>,
    writer: Writer,
    cache: Cache,
    clock: ManualClock,
    mood: Mood,
    is_indexed: bool,
}

impl InformerRow {
    /// The informer, or the code of its refusal.
    pub(crate) fn new(words: &[&str]) -> std::result::Result<InformerRow, Vec<String>> {
        let decode = |_: &[u8], value: &[u8]| {
            let text = String::from_utf8_lossy(value).into_owned();
            assert!(!text.starts_with("panic"), "as the row says");
            if text.starts_with("bad") { Err("as the row says") } else { Ok(text) }
        };
        let mut builder = Cache::builder("/").decoder(decode);
        let (mut filter, mut indexes) = (Ok(Filter::any()), Vec::new());
        let mut rest = words.iter();
        while let Some(word) = rest.next() {
            let mut next = || *rest.next().expect("a word");
            match *word {
                "load" => builder = builder.expect_load(true),
                "small" => builder = builder.capacity(128).segment_slots(16),
                "labels" => builder = builder.labels(watchcore::Labels::json(next()).unwrap()),
                "prefix" => filter = filter.map(|filter| filter.prefix(next())),
                "where-labels" => filter = filter.and_then(|filter| filter.labels(next())),
                "index" => indexes.push(next().to_owned()),
                other => panic!("{other} is no option of an informer"),
            }
        }
        let cache = builder.build().unwrap();
        let (clock, mood) = (ManualClock::new(), Mood::default());
        let made = filter.and_then(|filter| {
            let mut builder = Informer::<Text>::builder(&cache).filter(filter).clock(Arc::new(clock.clone()));
            for index in &indexes {
                let (name, mood) = (index.clone(), mood.clone());
                builder = builder.index(index, move |text: &Text| mood.values(&name, text));
            }
            builder.build()
        });
        let informer = made.map_err(|error| refused(&error))?;
        let (lister, writer) = (informer.lister(), cache.writer().unwrap());
        let (hands, states) = (BTreeMap::new(), BTreeMap::new());
        Ok(InformerRow { hands, states, informer, lister, writer, cache, clock, mood, is_indexed: !indexes.is_empty() })
    }

    pub(crate) fn run(&mut self, word: &str, rest: &[&str]) -> Vec<String> {
        let printed = match word {
            "apply" | "load" | "resync" | "progress" | "compact" | "close" | "stop" | "advance" | "function" => {
                self.feed(word, rest)
            }
            "handler" => match Hand::new(&self.informer, rest) {
                Ok(hand) => {
                    hand.settle();
                    self.hands.insert(rest[0].to_owned(), hand);
                    Ok(Vec::new())
                }
                Err(error) => Err(error),
            },
            "until" => {
                let timeout = if rest.len() > 1 { Duration::ZERO } else { BOUND };
                match self.lister.wait_until(number(rest[0]), timeout) {
                    Err(error) if error.code() == Code::FutureRevision => Ok(line("TIMEOUT")),
                    waited => waited.map(|_| Vec::new()),
                }
            }
            "function-panics" => {
                self.settle();
                Ok(line(self.informer.index_panics()))
            }
            "calls" => {
                let calls = self.mood.0.lock().unwrap().calls.values().copied().max();
                Ok(line(calls.unwrap_or_default()))
            }
            "keep" => {
                self.settle();
                self.cache
                    .snapshot()
                    .map(|state| drop(self.states.insert(rest[0].to_owned(), state)))
                    .map(|()| Vec::new())
            }
            "at" | "list" | "get" | "select" | "by" | "values" => self.read(word, rest),
            "in" => self.read_then(rest),
            _ => self.handler(word, rest),
        };
        printed.unwrap_or_else(|error| refused(&error))
    }

    /// Until every index and every handler is through with what was published.
    fn settle(&self) {
        if self.is_indexed && self.cache.is_ready() {
            // An informer that has ended follows nothing.
            let _ = self.lister.wait_until(self.cache.position().revision, BOUND);
        }
        self.hands.values().for_each(Hand::settle);
    }

    /// The words that make something happen.
    fn feed(&mut self, word: &str, rest: &[&str]) -> Result<Vec<String>> {
        match word {
            "apply" => {
                let changes = rest[1..].iter().map(|word| match (word.strip_prefix('-'), word.split_once('=')) {
                    (Some(key), _) => Change::delete(key),
                    (None, Some((key, value))) => Change::put(key, value),
                    (None, None) => Change::put(word, ""),
                });
                self.writer.apply(number(rest[0]), changes.collect::<Vec<_>>())?;
            }
            "load" => self.writer.load(number(rest[0]), rest[1..].iter().map(|word| record(word)))?,
            "resync" => {
                let reason = rest[1].parse().expect("a reason");
                self.writer.resync(number(rest[0]), rest[2..].iter().map(|word| record(word)), reason)?;
            }
            "progress" => self.writer.progress(number(rest[0]))?,
            "compact" => self.writer.compact(number(rest[0]))?,
            "close" => self.cache.close(),
            "stop" => self.informer.stop(),
            "function" => {
                self.mood.0.lock().unwrap().says = match rest[0] {
                    "works" => None,
                    "panics" => Some(None),
                    value => Some(Some(value.to_owned())),
                };
            }
            _ => {
                self.settle();
                self.clock.advance(duration(rest[0]));
            }
        }
        self.settle();
        Ok(Vec::new())
    }

    /// The words of a handler.
    fn handler(&self, word: &str, rest: &[&str]) -> Result<Vec<String>> {
        let hand = self.hands.get(rest[0]).unwrap_or_else(|| panic!("{word} is no word of an informer, or no handler"));
        match word {
            "stall" => hand.told.change(|state| state.stalls = true),
            "release" => {
                hand.told.change(|state| (state.stalls, state.stands) = (false, false));
                hand.settle();
            }
            "step" => {
                hand.told.change(|state| (state.may_return, state.stands) = (1, false));
                hand.settle();
            }
            "remove" if rest.len() > 1 => {
                hand.settle();
                let in_vain = matches!(hand.status().state, HandlerState::Handling { .. });
                let timeout = if in_vain { Duration::ZERO } else { BOUND };
                return Ok(hand
                    .registration
                    .remove_and_wait(timeout)
                    .map_or_else(|error| line(why(hand, &error)), |()| Vec::new()));
            }
            "remove" => hand.registration.remove(),
            "given" => {
                hand.settle();
                return Ok(hand.given());
            }
            _ => {
                hand.settle();
                return Ok(line(counted(word, hand)));
            }
        }
        Ok(Vec::new())
    }

    /// The reads of a lister.
    fn read(&self, word: &str, rest: &[&str]) -> Result<Vec<String>> {
        self.settle();
        let lister = &self.lister;
        let objects = match word {
            "at" => return Ok(line(lister.list()?.position.revision)),
            "get" => lister.get(rest[0])?.into_iter().collect(),
            "values" => return Ok(line(lister.index_values(rest[0])?.join(" "))),
            "select" => lister.select(&Filter::any().labels(rest[0])?)?.objects,
            "by" => lister.by_index(rest[0], rest[1])?.objects,
            _ => lister.list()?.objects,
        };
        Ok(listed(objects))
    }

    /// The same of a state that was kept: `in NAME list`.
    fn read_then(&self, words: &[&str]) -> Result<Vec<String>> {
        let lister = self.lister.at(&self.states[words[0]])?;
        let objects = match words[1] {
            "at" => return Ok(line(lister.position().revision)),
            "get" => lister.get(words[2])?.into_iter().collect(),
            "select" => lister.select(&Filter::any().labels(words[2])?)?.objects,
            "by" => lister.by_index(words[2], words[3])?.objects,
            _ => lister.list()?.objects,
        };
        Ok(listed(objects))
    }
}

impl Drop for InformerRow {
    fn drop(&mut self) {
        self.hands.values().for_each(|hand| hand.told.change(|state| state.stalls = false));
        self.informer.stop();
    }
}

fn counted(word: &str, hand: &Hand) -> String {
    let (yes_or_no, status) = (|yes| if yes { "yes" } else { "no" }.to_owned(), hand.status());
    match word {
        "handling" => match status.state {
            HandlerState::Handling { key, .. } => String::from_utf8_lossy(&key).into_owned(),
            _ => String::new(),
        },
        "synced" => yes_or_no(hand.registration.has_synced()),
        "why" => why(hand, &hand.registration.wait_synced(Duration::ZERO).unwrap_err()),
        "ended" => match status.state {
            HandlerState::Ended(Some(why)) if why.contains("410") => {
                assert_eq!(hand.told.lock().ended, Some(410), "it was told so");
                "LAGGED".to_owned()
            }
            HandlerState::Ended(_) => "yes".to_owned(),
            _ => "no".to_owned(),
        },
        "handled" => status.handled.to_string(),
        "panics" => status.panics.to_string(),
        "lag" => status.stats.lag.events.to_string(),
        "seen" => (status.handled + status.stats.lost).to_string(),
        _ => panic!("{word} is no word of a handler"),
    }
}

/// The code of an error, and what it says of a handler that it names: that there is no listing, or which call stands.
fn why(hand: &Hand, error: &Error) -> String {
    let (code, status) = (error.code().name(), hand.status());
    let says = |what: &str| error.message().contains(what) && error.message().contains(&format!("({})", status.name));
    match &status.state {
        HandlerState::Handling { key, .. } if says(&format!("handling {}", String::from_utf8_lossy(key))) => {
            format!("{code} handling {}", String::from_utf8_lossy(key))
        }
        _ if says("no listing yet") => format!("{code} no listing"),
        _ => code.to_owned(),
    }
}

fn refused(error: &Error) -> Vec<String> {
    line(error.code().name())
}

fn listed(objects: Vec<Text>) -> Vec<String> {
    objects.iter().map(shown).collect()
}

/// `/a=1@3` was created and changed at 3, `/a=1@2,3,2` has its own numbers.
fn record(word: &str) -> Record<'_> {
    let (object, numbers) = word.rsplit_once('@').expect("KEY=VALUE@REVISION");
    let (key, value) = object.split_once('=').expect("KEY=VALUE");
    let numbers: Vec<u64> = numbers.split(',').map(number).collect();
    let (create, modified, version) = match *numbers {
        [one] => (one, one, 1),
        [create, modified, version] => (create, modified, version),
        _ => panic!("{word}: @M or @C,M,V"),
    };
    Record {
        key: key.as_bytes(),
        value: value.as_bytes(),
        create_revision: create,
        mod_revision: modified,
        version,
        lease: 0,
    }
}
