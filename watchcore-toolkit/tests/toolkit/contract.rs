//! The rows of contract/toolkit/, which Go runs from the same files: contract/README.md says what their words mean.

use crate::informer_rows::InformerRow;
use crate::queue_rows::{LimiterRow, QueueRow};
use crate::rows;
use crate::script::Woken;
use crate::watch_rows::WatchRow;
use std::collections::VecDeque;
use std::env;
use std::future::ready;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use watchcore::{Cache, Range, Read};
use watchcore_toolkit::{
    Entry, ListAt, ListPage, ListRequest, ListerWatcher, ManualClock, Opening, PageFuture, Payload, Reflector,
    RetryWatch, Status, Stopper, Watch, WatchEvent, WatchRequest,
};

pub(crate) fn number(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| panic!("{text} is no number"))
}

/// `800ms`, `30s`, `2m`.
pub(crate) fn duration(text: &str) -> Duration {
    let (count, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).expect("a unit"));
    Duration::from_millis(
        number(count) * [("ms", 1), ("s", 1000), ("m", 60_000)].iter().find(|u| u.0 == unit).unwrap().1,
    )
}

/// `error 410 [after 5s]`.
fn error(words: &[&str]) -> Status {
    let status = Status::new(number(words[1]) as u16, "as the row says");
    match words.get(2) {
        Some(_) => status.with_retry_after(duration(words[3])),
        None => status,
    }
}

/// `/a=1@3`: a key, a value, the revision.
fn entry(text: &str) -> Entry {
    let (object, revision) = text.split_once('@').unwrap_or((text, "0"));
    let (key, value) = object.split_once('=').unwrap_or((object, ""));
    Entry::new(key, value, number(revision))
}

/// `+/a=1@11/10`, `~/a=2@12`, `-/a=2@13`, `?/a@13`, `bookmark@20`, `synced@20`; behind the last slash of a number, the position.
fn event(text: &str) -> WatchEvent<Entry> {
    match text.split_once('@') {
        Some(("bookmark", revision)) => return WatchEvent::bookmark(number(revision)),
        Some(("synced", revision)) => return WatchEvent::synced().at(number(revision)),
        _ => {}
    }
    let (object, numbers) = text.split_once('@').unwrap_or((text, "0"));
    let (own, position) = numbers.split_once('/').unwrap_or((numbers, numbers));
    let entry = entry(&format!("{}@{own}", &object[1..]));
    let event = match &object[..1] {
        "+" => WatchEvent::added(entry),
        "~" => WatchEvent::modified(None, entry),
        "-" => WatchEvent::deleted(entry),
        "?" => WatchEvent::deleted_unknown(entry.key),
        other => panic!("{other} is no event"),
    };
    event.at(number(position))
}

/// A watch that the script feeds.
#[derive(Clone, Default)]
pub(crate) struct Fed(Arc<Mutex<FedState>>);

#[derive(Default)]
struct FedState {
    events: VecDeque<WatchEvent<Entry>>,
    ended: bool,
    panics: bool,
    waker: Option<Waker>,
}

impl Fed {
    /// `EVENT... [then end|stay|panic|error 410]`.
    fn feed(&self, words: &[&str]) {
        let (events, then) = match words.iter().position(|word| *word == "then") {
            Some(at) => (&words[..at], &words[at + 1..]),
            None => (words, &["stay"][..]),
        };
        let mut events: Vec<_> = events.iter().map(|text| event(text)).collect();
        match then[0] {
            "stay" | "end" => {}
            "panic" => self.0.lock().unwrap().panics = true,
            "error" => events.push(WatchEvent::error(error(then))),
            other => panic!("then {other}?"),
        }
        self.push(events, then[0] == "end");
    }

    /// More events, and whether the watch ends behind them.
    pub(crate) fn push(&self, events: impl IntoIterator<Item = WatchEvent<Entry>>, ends: bool) {
        let mut state = self.0.lock().unwrap();
        state.events.extend(events);
        state.ended |= ends;
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    }
}

impl futures_core::Stream for Fed {
    type Item = WatchEvent<Entry>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<WatchEvent<Entry>>> {
        let mut state = self.0.lock().unwrap();
        match state.events.pop_front() {
            Some(event) => Poll::Ready(Some(event)),
            None if state.ended => Poll::Ready(None),
            None if state.panics => {
                drop(state);
                panic!("as the row says")
            }
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Watch for Fed {
    type Object = Entry;

    fn stopper(&self) -> Stopper {
        Stopper::new(|| {})
    }
}

/// The source of a script: its answers in turn. Without more lists it refuses with 503, without more watches it is silent.
#[derive(Clone, Default)]
struct Source(Arc<Mutex<SourceState>>);

/// An answer of a source, or its panic.
type Answer<T> = Box<dyn FnOnce() -> Result<T, Status> + Send>;

#[derive(Default)]
struct SourceState {
    lists: VecDeque<Answer<ListPage>>,
    watches: VecDeque<Answer<Option<Fed>>>,
    open: Option<Fed>,
    asked: Vec<String>,
}

impl Source {
    /// `list 10 /a=1@3 [more TOKEN]`, `list error 410`, `list panic`.
    fn add_list(&self, words: &[&str]) {
        let add = |answer: Answer<ListPage>| self.0.lock().unwrap().lists.push_back(answer);
        match words[0] {
            "panic" => add(Box::new(|| panic!("as the row says"))),
            "error" => {
                let status = error(words);
                add(Box::new(|| Err(status)));
            }
            revision => {
                let more = words.iter().position(|word| *word == "more");
                let entries = words[1..more.unwrap_or(words.len())].iter().map(|text| entry(text));
                let page = ListPage::new(number(revision), entries);
                let page = if let Some(at) = more { page.continued(words[at + 1]) } else { page };
                add(Box::new(|| Ok(page)));
            }
        }
    }

    /// `watch EVENT...`, `watch error 410`, `watch none`, `watch panic`; `slow 2s` before it: the clock moves before it answers.
    fn add_watch(&self, words: &[&str], clock: &Arc<ManualClock>) {
        let (slow, words) = match words {
            ["slow", time, rest @ ..] => (duration(time), rest),
            _ => (Duration::ZERO, words),
        };
        let answer: Answer<Option<Fed>> = match words.first() {
            Some(&"panic") => Box::new(|| panic!("as the row says")),
            Some(&"error") => {
                let status = error(words);
                Box::new(|| Err(status))
            }
            Some(&"none") => Box::new(|| Ok(None)),
            _ => {
                let fed = Fed::default();
                fed.feed(words);
                Box::new(|| Ok(Some(fed)))
            }
        };
        let clock = Arc::clone(clock);
        let answer = Box::new(move || {
            clock.advance(slow);
            answer()
        });
        self.0.lock().unwrap().watches.push_back(answer);
    }

    fn page(&self, asked: String) -> Result<ListPage, Status> {
        let mut state = self.0.lock().unwrap();
        state.asked.push(asked);
        let answer = state.lists.pop_front();
        drop(state);
        answer.map_or_else(|| Err(Status::new(503, "no more lists")), |answer| answer())
    }

    fn open(&self, from: u64) -> Result<Option<Fed>, Status> {
        let mut state = self.0.lock().unwrap();
        state.asked.push(format!("watch@{from}"));
        let answer = state.watches.pop_front();
        drop(state);
        let answer = answer.map_or_else(|| Ok(Some(Fed::default())), |answer| answer());
        self.0.lock().unwrap().open = answer.as_ref().ok().cloned().flatten();
        answer
    }
}

impl ListerWatcher for Source {
    type Watch = Fed;

    fn list(&mut self, request: ListRequest) -> PageFuture {
        let word = if request.limit == 0 { "whole" } else { "list" };
        Box::pin(ready(self.page(match (&request.continue_token, request.at) {
            (Some(token), _) => format!("list+{token}"),
            (None, ListAt::AtLeast(revision)) => format!("{word}@{revision}"),
            (None, _) => word.to_owned(),
        })))
    }

    fn watch(&mut self, request: WatchRequest) -> Opening<Fed> {
        Box::pin(ready(self.open(request.from.revision)))
    }
}

/// What a script drives over its source.
enum Machine {
    Reflector(Cache, Pin<Box<dyn Future<Output = ()>>>),
    Retry(Pin<Box<dyn futures_core::Stream<Item = WatchEvent<Entry>>>>, Vec<String>),
}

impl Machine {
    fn start(words: &[&str], source: Source, clock: &Arc<ManualClock>) -> Machine {
        if words[0] == "reflector" {
            let cache = Cache::builder("/").expect_load(true).build().unwrap();
            let reflector = Reflector::new(cache.writer().unwrap(), source).unwrap().clock(clock.clone());
            return Machine::Reflector(cache, Box::pin(reflector.run()));
        }
        let builder = RetryWatch::builder(source, number(words[1])).clock(clock.clone());
        let builder = if words.len() > 2 { builder.relist() } else { builder };
        Machine::Retry(Box::pin(builder.open().unwrap()), Vec::new())
    }

    /// Polls until it waits for something.
    fn settle(&mut self) {
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut context = Context::from_waker(&waker);
        loop {
            let before = woken.count();
            match self {
                Machine::Reflector(_, run) => assert!(run.as_mut().poll(&mut context).is_pending()),
                Machine::Retry(watch, given) => match watch.as_mut().poll_next(&mut context) {
                    Poll::Ready(Some(event)) => {
                        given.push(shown(&event));
                        continue;
                    }
                    Poll::Ready(None) if given.last().is_some_and(|last| last == "end") => return,
                    Poll::Ready(None) => given.push("end".to_owned()),
                    Poll::Pending => {}
                },
            }
            if woken.count() == before {
                return;
            }
        }
    }

    fn objects(&self) -> String {
        let Machine::Reflector(cache, _) = self else { panic!("a watch has no objects") };
        let page = cache.list(&Range::all(), Read::Any, 0).unwrap();
        let texts = page
            .iter()
            .map(|kv| format!("{}={}@{}", kv.key_str().unwrap(), kv.value_str().unwrap(), kv.mod_revision()));
        texts.collect::<Vec<_>>().join(" ")
    }

    fn at(&self) -> u64 {
        let Machine::Reflector(cache, _) = self else { panic!("a watch has no state") };
        cache.position().revision
    }

    fn given(&mut self) -> String {
        let Machine::Retry(_, given) = self else { panic!("a reflector gives nothing") };
        std::mem::take(given).join(" ")
    }
}

/// `+/a=1`, `~/a=2`, `-/a=2`, `?/a`, `error:410`; with what was lost before it, `!3`.
fn shown(event: &WatchEvent<Entry>) -> String {
    let of = |entry: &Entry| {
        let between: &[u8] = if entry.value.is_empty() { b"" } else { b"=" };
        String::from_utf8_lossy(&[&entry.key[..], between, &entry.value[..]].concat()).into_owned()
    };
    let text = match &event.payload {
        Payload::Added(new) => format!("+{}", of(new)),
        Payload::Modified { new, .. } => format!("~{}", of(new)),
        Payload::Deleted(last) => format!("-{}", of(last)),
        Payload::DeletedUnknown(key) => format!("?{}", String::from_utf8_lossy(key)),
        Payload::Error(status) => format!("error:{}", status.code()),
        _ => event.name().to_lowercase(),
    };
    if event.lost > 0 { format!("{text}!{}", event.lost) } else { text }
}

/// What the steps of a case have made.
#[derive(Default)]
enum Toolkit {
    #[default]
    Nothing,
    Source(SourceRow),
    Queue(QueueRow),
    Limiter(LimiterRow),
    Informer(Box<InformerRow>),
    Watches(WatchRow),
}

impl rows::Machine for Toolkit {
    fn run(&mut self, words: &[String]) -> Vec<String> {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match (self, &*words) {
            (nothing @ Toolkit::Nothing, ["run", "queue", options @ ..]) => {
                *nothing = Toolkit::Queue(QueueRow::new(options));
                Vec::new()
            }
            (nothing @ Toolkit::Nothing, ["run", "limiter", options @ ..]) => {
                *nothing = Toolkit::Limiter(LimiterRow::new(options));
                Vec::new()
            }
            (nothing @ Toolkit::Nothing, ["run", "informer", options @ ..]) => match InformerRow::new(options) {
                Ok(row) => {
                    *nothing = Toolkit::Informer(Box::new(row));
                    Vec::new()
                }
                Err(refused) => refused,
            },
            (nothing @ Toolkit::Nothing, ["run", "watches" | "batches"]) => {
                *nothing = Toolkit::Watches(WatchRow::default());
                Vec::new()
            }
            (nothing @ Toolkit::Nothing, ["run", what @ ..]) => {
                let what = what.iter().map(|&word| word.to_owned()).collect();
                *nothing = Toolkit::Source(SourceRow { what, ..SourceRow::default() });
                Vec::new()
            }
            (Toolkit::Source(row), [word, rest @ ..]) => row.run(word, rest),
            (Toolkit::Queue(row), [word, rest @ ..]) => row.run(word, rest),
            (Toolkit::Limiter(row), [word, rest @ ..]) => row.run(word, rest),
            (Toolkit::Informer(row), [word, rest @ ..]) => row.run(word, rest),
            (Toolkit::Watches(row), [word, rest @ ..]) => row.run(word, rest),
            _ => panic!("the first step says what runs"),
        }
    }
}

/// Nothing is no line.
pub(crate) fn line(text: impl ToString) -> Vec<String> {
    Vec::from_iter(Some(text.to_string()).filter(|text| !text.is_empty()))
}

/// A row that feeds a source, and the machine upon it once that has started.
#[derive(Default)]
struct SourceRow {
    what: Vec<String>,
    source: Source,
    clock: Arc<ManualClock>,
    machine: Option<Machine>,
}

impl SourceRow {
    fn run(&mut self, word: &str, rest: &[&str]) -> Vec<String> {
        let mut printed = Vec::new();
        match (word, &mut self.machine) {
            ("list", _) => self.source.add_list(rest),
            ("watch", _) => self.source.add_watch(rest, &self.clock),
            ("start", _) => {
                let what: Vec<&str> = self.what.iter().map(String::as_str).collect();
                self.machine = Some(Machine::start(&what, self.source.clone(), &self.clock));
            }
            ("send", _) => self.source.0.lock().unwrap().open.as_ref().expect("a watch is open").feed(rest),
            ("advance", _) => self.clock.advance(duration(rest[0])),
            ("backoff" | "delay", _) => {
                let (most, due) = (duration(rest[0]), self.clock.next_due().unwrap_or_default());
                let least = if word == "backoff" { most / 2 } else { most };
                if !(least..=most).contains(&due) {
                    printed = line(format!("waits for {}ms", due.as_millis()));
                }
                self.clock.advance(due);
            }
            ("asked", _) => printed = line(std::mem::take(&mut self.source.0.lock().unwrap().asked).join(" ")),
            ("objects", Some(machine)) => printed = line(machine.objects()),
            ("at", Some(machine)) => printed = line(machine.at()),
            ("given", Some(machine)) => printed = line(machine.given()),
            _ => panic!("{word} is no word of a source, or nothing has started"),
        }
        if let Some(machine) = &mut self.machine {
            machine.settle();
        }
        printed
    }
}

/// Every row that names Rust. `ROW=WQ-25` runs the files whose names begin so.
#[test]
fn contract_rows_of_the_toolkit() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../contract/toolkit");
    let only = env::var("ROW").unwrap_or_default();
    let mut rows = rows::Row::all(&folder, "rust");
    rows.retain(|row| row.name.starts_with(&only));
    assert!(!rows.is_empty(), "no row begins with {only:?}");
    let failed: Vec<String> = rows.iter().filter_map(|row| row.run::<Toolkit>().err()).collect();
    assert!(failed.is_empty(), "{} rows have failed:\n{}", failed.len(), failed.join("\n"));
}
