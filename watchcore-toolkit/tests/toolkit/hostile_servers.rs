//! Reflectors and retrying watches over a server that cuts, refuses, compacts, goes back and lies, and is honest in the end.

use crate::source_rows::Fed;
use crate::support::objects_of;
use std::collections::BTreeMap;
use std::future::ready;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use watchcore::{Cache, KeyValue, Range, Read};
use watchcore_toolkit::{
    Clock, Entry, ListAt, ListPage, ListRequest, ListerWatcher, ManualClock, ObjectWatch, Payload, Reflector,
    RetryWatch, SourceFuture, Status, WatchEvent, WatchExt, WatchRequest,
};

const SEEDS: u64 = 1000;
const HOSTILE_ROUNDS: u64 = 60;
const HONEST_ROUNDS: u64 = 40;

type State = BTreeMap<String, String>;

/// The server of one seed. Revision `n` is the n-th entry of its history.
struct Hostile {
    random: u64,
    history: Vec<Vec<(String, Option<String>)>>,
    oldest: u64,
    /// Its events say which one is the last of its revision.
    is_marked: bool,
    is_hostile: bool,
    /// It went back, and nobody has listed it since: it writes nothing, for a history that has passed its clients cannot be
    /// told from theirs.
    went_back: bool,
    open: Option<Fed>,
    values: u64,
}

impl Hostile {
    fn new(seed: u64, is_marked: bool) -> Hostile {
        let random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let (history, open) = (Vec::new(), None);
        let mut server =
            Hostile { random, history, oldest: 0, is_marked, is_hostile: true, went_back: false, open, values: 0 };
        server.write();
        server
    }

    fn below(&mut self, count: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) % count
    }

    fn newest(&self) -> u64 {
        self.history.len() as u64
    }

    fn objects(&self) -> BTreeMap<String, (String, u64)> {
        objects_of(&self.history)
    }

    fn truth(&self) -> State {
        self.objects().into_iter().map(|(key, (value, _))| (key, value)).collect()
    }

    /// One revision of one to three keys.
    fn write(&mut self) {
        let state = self.objects();
        let mut changes = BTreeMap::new();
        for _ in 0..=self.below(3) {
            let key = format!("/{}", self.below(5));
            self.values += 1;
            let is_deletion = state.contains_key(&key) && self.below(3) == 0;
            changes.insert(key, (!is_deletion).then(|| self.values.to_string()));
        }
        self.history.push(changes.into_iter().collect());
        let events = self.events(self.newest() - 1);
        if let Some(open) = &self.open {
            open.push(events, false);
        }
    }

    /// A restored backup: its newest revisions never were. The first of these has one change: a RetryWatch that was given half
    /// of a revision which never was could not know.
    fn go_back(&mut self) {
        let mut length = self.newest() / 2 + 1;
        while length > 0 && self.history.get(length as usize).is_some_and(|lost| lost.len() > 1) {
            length -= 1;
        }
        if length == 0 {
            return;
        }
        self.history.truncate(length as usize);
        self.oldest = self.oldest.min(length);
        self.went_back = true;
        self.close();
    }

    fn close(&mut self) {
        if let Some(open) = self.open.take() {
            open.push([], true);
        }
    }

    fn events(&self, from: u64) -> Vec<WatchEvent<Entry>> {
        let mut events = Vec::new();
        for (at, changes) in self.history.iter().enumerate().skip(from as usize) {
            let revision = at as u64 + 1;
            for (number, (key, value)) in changes.iter().enumerate() {
                let is_last = number + 1 == changes.len();
                let entry = Entry::new(key.as_bytes(), value.clone().unwrap_or_default(), revision);
                let event =
                    if value.is_some() { WatchEvent::modified(None, entry) } else { WatchEvent::deleted(entry) };
                events.push(event.at(if is_last || !self.is_marked { revision } else { revision - 1 }));
            }
        }
        events
    }

    fn refusal(&mut self) -> Status {
        let code = [400, 404, 410, 429, 500, 502, 503, 504, 666][self.below(9) as usize];
        Status::new(code, "in this mood")
    }

    fn list(&mut self, at_least: u64) -> Result<ListPage, Status> {
        if self.is_hostile && self.below(4) == 0 {
            return Err(self.refusal());
        }
        if at_least > self.newest() {
            return Err(Status::new(504, "too large a revision"));
        }
        self.went_back = false;
        let entries = self.objects().into_iter().map(|(key, (value, revision))| Entry::new(key, value, revision));
        Ok(ListPage::new(self.newest(), entries.collect::<Vec<_>>()))
    }

    fn watch(&mut self, from: u64) -> Result<Option<Fed>, Status> {
        self.open = None;
        let mood = if self.is_hostile { self.below(12) } else { 12 };
        let watch = Fed::default();
        match (mood, self.newest()) {
            (0, _) => return Err(self.refusal()),
            (1, _) => return Ok(None),
            (2, newest) => watch.push([WatchEvent::bookmark(newest.min(from))], true),
            (3, newest) if from > newest => watch.push([WatchEvent::bookmark(newest)], false),
            (_, newest) if from > newest => return Err(Status::new(504, "too large a revision")),
            _ if from < self.oldest => return Err(Status::new(410, "compacted")),
            (4..=8, _) => {
                // Of its events some, perhaps after those of the revisions before.
                let begin = if mood == 4 { from.saturating_sub(3).max(1).min(from) } else { from };
                let mut events = self.events(begin);
                events.truncate(self.below(8) as usize);
                if mood == 8 {
                    events.push(WatchEvent::error(self.refusal()));
                }
                watch.push(events, true);
            }
            _ => {
                let events = self.events(from);
                watch.push(events, false);
                self.open = Some(watch.clone());
            }
        }
        Ok(Some(watch))
    }

    /// Something happens on the server.
    fn step(&mut self) {
        match self.below(10) {
            0..=5 if !self.went_back => self.write(),
            6 => self.close(),
            7 => self.oldest = self.newest(),
            8 => self.go_back(),
            _ => {}
        }
    }
}

#[derive(Clone)]
struct Shared(Arc<Mutex<Hostile>>);

impl ListerWatcher for Shared {
    type Watch = Fed;

    fn list(&mut self, request: ListRequest) -> SourceFuture<ListPage> {
        let at_least = if let ListAt::AtLeast(revision) = request.at { revision } else { 0 };
        Box::pin(ready(self.0.lock().unwrap().list(at_least)))
    }

    fn watch(&mut self, request: WatchRequest) -> SourceFuture<Option<Fed>> {
        Box::pin(ready(self.0.lock().unwrap().watch(request.from.revision)))
    }
}

/// Moves the server and the clock, first hostile, then honest; polls between.
fn drive(server: &Shared, clock: &ManualClock, mut poll: impl FnMut()) {
    for round in 0..HOSTILE_ROUNDS + HONEST_ROUNDS {
        {
            let mut server = server.0.lock().unwrap();
            server.is_hostile = round < HOSTILE_ROUNDS;
            if server.is_hostile {
                server.step();
            }
        }
        (0..8).for_each(|_| poll());
        // Some failures come at once, others when their delay is over.
        if round % 3 != 0 || round >= HOSTILE_ROUNDS {
            clock.advance(clock.next_due().unwrap_or_default().min(Duration::from_secs(31)));
        }
    }
}

/// Applies an event to what its reader holds. Whether it fits there.
fn fits<T>(state: &mut State, event: &WatchEvent<T>, bytes: impl Fn(&T) -> (&[u8], &[u8])) -> bool {
    let text = |object: &T| {
        let (key, value) = bytes(object);
        (String::from_utf8(key.to_vec()).unwrap(), String::from_utf8(value.to_vec()).unwrap())
    };
    let put = |state: &mut State, new: &T| {
        let (key, value) = text(new);
        state.insert(key, value)
    };
    match &event.payload {
        Payload::Added(new) => put(state, new).is_none(),
        Payload::Modified { new, .. } => put(state, new).is_some(),
        Payload::Deleted(last) => state.remove(&text(last).0).is_some(),
        _ => event.name() == "SYNCED",
    }
}

/// RF-28: whatever the server did, the cache has its state in the end, and who reads the cache sees changes that fit.
#[test]
fn rf_28_reflector_survives_hostile_servers() {
    for seed in 0..SEEDS {
        let server = Shared(Arc::new(Mutex::new(Hostile::new(seed, seed % 2 == 0))));
        let (cache, clock) = (Cache::builder("/").expect_load(true).build().unwrap(), Arc::new(ManualClock::new()));
        let reflector = Reflector::new(cache.writer().unwrap(), server.clone()).unwrap().clock(clock.clone());
        let mut run: Pin<Box<dyn Future<Output = ()>>> = Box::pin(reflector.run());
        let mut context = Context::from_waker(Waker::noop());
        let mut reader = ObjectWatch::<KeyValue>::open(&cache).unwrap();
        let mut state = State::new();
        drive(&server, &clock, || {
            assert!(run.as_mut().poll(&mut context).is_pending());
            while let Poll::Ready(event) = reader.try_recv() {
                let event = event.unwrap_or_else(|| panic!("seed {seed}: it ended"));
                let is_right = fits(&mut state, &event, |kv| (kv.key(), kv.value().unwrap()));
                assert!(is_right, "seed {seed}: {event:?} does not fit");
            }
        });
        let page = cache.list(&Range::all(), Read::Any, 0).unwrap();
        let cached: State =
            page.iter().map(|kv| (kv.key_str().unwrap().to_owned(), kv.value_str().unwrap().to_owned())).collect();
        let server = server.0.lock().unwrap();
        assert_eq!((server.truth(), server.newest()), (cached, cache.position().revision), "seed {seed}");
        assert_eq!(server.truth(), state, "seed {seed}: the reader");
    }
}

/// RW-33: whatever the server did, what a watch with a lister gave adds up to its state, and no deletion comes twice.
#[test]
fn rw_33_retry_survives_hostile_servers() {
    for seed in 0..SEEDS {
        let server = Shared(Arc::new(Mutex::new(Hostile::new(seed, true))));
        let clock = Arc::new(ManualClock::new());
        let watch = RetryWatch::builder(server.clone(), 0).relist();
        let mut watch = watch.clock(clock.clone() as Arc<dyn Clock>).open().unwrap();
        let mut state = State::new();
        drive(&server, &clock, || {
            while let Poll::Ready(event) = watch.try_recv() {
                let event = event.unwrap_or_else(|| panic!("seed {seed}: it ended"));
                let is_right = fits(&mut state, &event, |entry| (&entry.key, &entry.value));
                assert!(is_right, "seed {seed}: {event:?} does not fit");
            }
        });
        assert_eq!(server.0.lock().unwrap().truth(), state, "seed {seed}");
    }
}
