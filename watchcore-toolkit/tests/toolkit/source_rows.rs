//! Rows over a source that the script feeds: its words, and what all machines upon it share.

use crate::contract::{duration, line, number};
use crate::machine_rows::{Reflecting, Retrying};
use crate::script::Woken;
use crate::until_rows::Waiting;
use std::collections::VecDeque;
use std::future::{pending, ready};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use watchcore_toolkit::{
    Entry, ListAt, ListPage, ListRequest, ListerWatcher, ManualClock, SourceFuture, Status, Stopper, Watch, WatchEvent,
    WatchRequest,
};

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

/// `+/a=1@11/10!3`, `~/a=2@12`, `-/a=2@13`, `?/a@13`, `bookmark@20`, `synced@20`: the position stands behind the last
/// slash of the numbers, and what was lost before it behind `!`.
fn event(text: &str) -> WatchEvent<Entry> {
    let (text, lost) = text.split_once('!').unwrap_or((text, "0"));
    let (object, numbers) = text.split_once('@').unwrap_or((text, "0"));
    let (own, position) = numbers.split_once('/').unwrap_or((numbers, numbers));
    let entry = || entry(&format!("{}@{own}", &object[1..]));
    let event = match &object[..1] {
        _ if object == "bookmark" => WatchEvent::bookmark(0),
        _ if object == "synced" => WatchEvent::synced(),
        "+" => WatchEvent::added(entry()),
        "~" => WatchEvent::modified(None, entry()),
        "-" => WatchEvent::deleted(entry()),
        "?" => WatchEvent::deleted_unknown(entry().key),
        other => panic!("{other} is no event"),
    };
    event.at(number(position)).with_lost(number(lost))
}

/// A watch that the script feeds.
#[derive(Clone, Default)]
pub(crate) struct Fed(Arc<Mutex<FedState>>);

#[derive(Default)]
struct FedState {
    events: VecDeque<WatchEvent<Entry>>,
    ended: bool,
    panics: bool,
    stopped: bool,
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
        self.change(|state| {
            state.events.extend(events);
            state.ended |= ends;
        });
    }

    fn change(&self, change: impl FnOnce(&mut FedState)) {
        let mut state = self.0.lock().unwrap();
        change(&mut state);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Its reader has neither stopped nor dropped it: the source keeps one of its two counts.
    fn is_open(&self) -> bool {
        Arc::strong_count(&self.0) > 1 && !self.0.lock().unwrap().stopped
    }
}

impl futures_core::Stream for Fed {
    type Item = WatchEvent<Entry>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<WatchEvent<Entry>>> {
        let mut state = self.0.lock().unwrap();
        if state.stopped {
            return Poll::Ready(None);
        }
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
        let state = Arc::downgrade(&self.0);
        Stopper::new(move || {
            if let Some(state) = state.upgrade() {
                Fed(state).change(|state| state.stopped = true);
            }
        })
    }
}

/// The source of a script: its answers in turn. Without more lists it refuses with 503, without more watches it is silent.
#[derive(Clone, Default)]
pub(crate) struct Source(Arc<Mutex<SourceState>>);

/// An answer of a source, or its panic; `None`: it never answers.
type Answer<T> = Box<dyn FnOnce() -> Option<Result<T, Status>> + Send>;

#[derive(Default)]
struct SourceState {
    lists: VecDeque<Answer<ListPage>>,
    watches: VecDeque<Answer<Option<Fed>>>,
    given: Vec<Fed>,
    asked: Vec<String>,
}

impl Source {
    /// `list 10 /a=1@3 [more TOKEN]`, `list error 410`, `list panic`, `list never`.
    fn add_list(&self, words: &[&str]) {
        let answer: Answer<ListPage> = match words[0] {
            "panic" => Box::new(|| panic!("as the row says")),
            "never" => Box::new(|| None),
            "error" => {
                let status = error(words);
                Box::new(|| Some(Err(status)))
            }
            revision => {
                let more = words.iter().position(|word| *word == "more");
                let entries = words[1..more.unwrap_or(words.len())].iter().map(|text| entry(text));
                let page = ListPage::new(number(revision), entries);
                let page = if let Some(at) = more { page.continued(words[at + 1]) } else { page };
                Box::new(|| Some(Ok(page)))
            }
        };
        self.0.lock().unwrap().lists.push_back(answer);
    }

    /// `watch EVENT...`, `watch error 410`, `watch none`, `watch panic`, `watch never`; `slow 2s` before it: the clock moves
    /// before it answers.
    fn add_watch(&self, words: &[&str], clock: &Arc<ManualClock>) {
        let (slow, words) = match words {
            ["slow", time, rest @ ..] => (duration(time), rest),
            _ => (Duration::ZERO, words),
        };
        let answer: Answer<Option<Fed>> = match words.first() {
            Some(&"panic") => Box::new(|| panic!("as the row says")),
            Some(&"never") => Box::new(|| None),
            Some(&"error") => {
                let status = error(words);
                Box::new(|| Some(Err(status)))
            }
            Some(&"none") => Box::new(|| Some(Ok(None))),
            _ => {
                let fed = Fed::default();
                fed.feed(words);
                Box::new(|| Some(Ok(Some(fed))))
            }
        };
        let clock = Arc::clone(clock);
        let answer = Box::new(move || {
            clock.advance(slow);
            answer()
        });
        self.0.lock().unwrap().watches.push_back(answer);
    }

    fn page(&self, asked: String) -> Option<Result<ListPage, Status>> {
        let mut state = self.0.lock().unwrap();
        state.asked.push(asked);
        let answer = state.lists.pop_front();
        drop(state);
        answer.map_or_else(|| Some(Err(Status::new(503, "no more lists"))), |answer| answer())
    }

    /// The answer to a request for a watch, which is written down.
    pub(crate) fn open(&self, asked: String) -> Option<Result<Option<Fed>, Status>> {
        let mut state = self.0.lock().unwrap();
        state.asked.push(asked);
        let answer = state.watches.pop_front();
        drop(state);
        let answer = answer.map_or_else(|| Some(Ok(Some(Fed::default()))), |answer| answer());
        if let Some(Ok(Some(fed))) = &answer {
            self.0.lock().unwrap().given.push(fed.clone());
        }
        answer
    }
}

/// What comes now, or never.
fn answering<T: Send + 'static>(answer: Option<T>) -> Pin<Box<dyn Future<Output = T> + Send>> {
    match answer {
        Some(answer) => Box::pin(ready(answer)),
        None => Box::pin(pending()),
    }
}

impl ListerWatcher for Source {
    type Watch = Fed;

    fn list(&mut self, request: ListRequest) -> SourceFuture<ListPage> {
        let word = if request.limit == 0 { "whole" } else { "list" };
        answering(self.page(match (&request.continue_token, request.at) {
            (Some(token), _) => format!("list+{token}"),
            (None, ListAt::AtLeast(revision)) => format!("{word}@{revision}"),
            (None, _) => word.to_owned(),
        }))
    }

    fn watch(&mut self, request: WatchRequest) -> SourceFuture<Option<Fed>> {
        let word = if request.initial_state { "state" } else { "watch" };
        answering(self.open(format!("{word}@{}", request.from.revision)))
    }
}

/// What a script drives over its source.
pub(crate) trait Machine {
    fn poll(&mut self, context: &mut Context<'_>);

    /// Lets a reader take what there is, once the machine waits.
    fn read(&mut self) {}

    /// A word of this machine, and what it prints.
    fn say(&mut self, word: &str, rest: &[&str]) -> Vec<String>;
}

/// Polls until nothing has woken it meanwhile.
pub(crate) fn settle(mut poll: impl FnMut(&mut Context<'_>)) {
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    loop {
        let before = woken.count();
        poll(&mut Context::from_waker(&waker));
        if woken.count() == before {
            return;
        }
    }
}

/// A row that feeds a source, and the machine upon it once that has started.
#[derive(Default)]
pub(crate) struct SourceRow {
    what: Vec<String>,
    source: Source,
    clock: Arc<ManualClock>,
    machine: Option<Box<dyn Machine>>,
}

impl SourceRow {
    pub(crate) fn new(what: &[&str]) -> SourceRow {
        SourceRow { what: what.iter().map(|&word| word.to_owned()).collect(), ..SourceRow::default() }
    }

    /// The machine; else why it is refused.
    fn start(&self) -> watchcore::Result<Box<dyn Machine>> {
        let (source, clock) = (self.source.clone(), &self.clock);
        let what: Vec<&str> = self.what.iter().map(String::as_str).collect();
        Ok(match &*what {
            ["reflector", options @ ..] => Box::new(Reflecting::new(options, source, clock)),
            ["retry", options @ ..] => Box::new(Retrying::new(options, source, clock)?),
            ["until", options @ ..] => Box::new(Waiting::new(options, source, clock)?),
            other => panic!("nothing runs {other:?}"),
        })
    }

    pub(crate) fn run(&mut self, word: &str, rest: &[&str]) -> Vec<String> {
        let mut printed = Vec::new();
        match (word, &mut self.machine) {
            ("list", _) => self.source.add_list(rest),
            ("watch", _) => self.source.add_watch(rest, &self.clock),
            ("start", _) => match self.start() {
                Ok(machine) => self.machine = Some(machine),
                Err(error) => printed = line(error.code().name()),
            },
            ("send", _) => self.source.0.lock().unwrap().given.last().expect("a watch was opened").feed(rest),
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
            ("open", _) => {
                printed = line(self.source.0.lock().unwrap().given.iter().filter(|fed| fed.is_open()).count())
            }
            (_, Some(machine)) => printed = machine.say(word, rest),
            _ => panic!("{word} is no word of a source, or nothing has started"),
        }
        if let Some(machine) = &mut self.machine {
            settle(|context| machine.poll(context));
            machine.read();
        }
        printed
    }
}
