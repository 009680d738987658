//! The words of the rows that are about watches: contract/README.md, "Words of watches".
//!
//! No step waits: a call that would is a future of this module, a job, which is polled again when its waker was called, and
//! not before. So a wake-up that is missing shows as a job that waits. Readers of a broadcaster are woken by the core's
//! notifier, on a thread of its own: where there is something for such a job, its wake-up is waited for.

use crate::script::Woken;
use crate::support::until;
use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use watchcore::{Code, Error};
use watchcore_toolkit::{
    Action, BoxWatch, BroadcastWatch, Broadcaster, DecodeError, Decoder, EmptyWatch, FakeSource, FakeWatch, Keyed,
    Object, Payload, RaceFreeFakeSource, Recording, Status, Stopper, StreamWatch, Watch, WatchEvent, WatchExt,
    WatchOptions, WhenFull,
};

/// `a=1`: a key and a value. Without `=` it is both.
#[derive(Clone, PartialEq, Debug)]
struct Text(String);

impl Keyed for Text {
    fn object_key(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(key_of(&self.0).as_bytes())
    }

    fn object_revision(&self) -> u64 {
        0
    }
}

fn key_of(text: &str) -> &str {
    text.split_once('=').map_or(text, |(key, _)| key)
}

fn value_of(text: &str) -> &str {
    text.split_once('=').map_or(text, |(_, value)| value)
}

/// The text of an object, with or without a broadcaster.
trait Textual {
    fn text(&self) -> &str;
}

impl Textual for Text {
    fn text(&self) -> &str {
        &self.0
    }
}

impl Textual for Object<Text> {
    fn text(&self) -> &str {
        &self.0
    }
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| panic!("{text} is no number"))
}

/// `+a=1@3!2`, `~a=2<a=1`, `-a=2`, `?a`, `synced`, `bookmark@7`, `error:500`: behind `<` the old value, behind `@` the position,
/// behind `!` how many were lost.
fn event(text: &str) -> WatchEvent<Text> {
    let (text, lost) = text.split_once('!').unwrap_or((text, "0"));
    let (text, position) = text.split_once('@').unwrap_or((text, "0"));
    let of = |text: &str| Text(text.to_owned());
    let event = match (text, text.split_at(1)) {
        ("synced", _) => WatchEvent::synced(),
        ("bookmark", _) => WatchEvent::bookmark(0),
        (_, ("+", new)) => WatchEvent::added(of(new)),
        (_, ("~", change)) => {
            let (new, old) = change.split_once('<').map_or((change, None), |(new, old)| (new, Some(of(old))));
            WatchEvent::modified(old, of(new))
        }
        (_, ("-", last)) => WatchEvent::deleted(of(last)),
        (_, ("?", key)) => WatchEvent::deleted_unknown(key),
        _ => WatchEvent::error(status(text.strip_prefix("error:").expect("an event"))),
    };
    event.at(number(position)).with_lost(number(lost))
}

fn status(code: &str) -> Status {
    Status::new(number(code) as u16, "as the row says")
}

fn shown<O: Textual>(event: &WatchEvent<O>) -> String {
    let mut text = match &event.payload {
        Payload::Added(new) => format!("+{}", new.text()),
        Payload::Modified { old: Some(old), new } => format!("~{}<{}", new.text(), old.text()),
        Payload::Modified { old: None, new } => format!("~{}", new.text()),
        Payload::Deleted(last) => format!("-{}", last.text()),
        Payload::DeletedUnknown(key) => format!("?{}", String::from_utf8_lossy(key)),
        Payload::Error(status) => format!("error:{}", status.code()),
        _ => event.name().to_lowercase(),
    };
    if event.position.revision > 0 && event.status().is_none() {
        text += &format!("@{}", event.position.revision);
    }
    if event.lost > 0 { format!("{text}!{}", event.lost) } else { text }
}

/// What a call that failed prints.
fn failed(error: &Error) -> String {
    match error.code() {
        Code::Closed if error.message().contains("broadcaster already stopped") => "broadcaster already stopped".into(),
        Code::Closed => "stopped".into(),
        Code::ResourceExhausted if error.message().contains("channel full") => "full".into(),
        Code::InvalidArgument => "refused".into(),
        code => format!("error:{}", code.http_status()),
    }
}

fn line(text: impl ToString) -> Vec<String> {
    vec![text.to_string()]
}

fn printed<T>(result: Result<T, Error>) -> Vec<String> {
    result.map_or_else(|error| line(failed(&error)), |_| Vec::new())
}

/// The next of a watch, as lines, with what an error says.
type Next = Option<(String, Option<String>)>;

/// A watch of a row, whatever it is made of.
trait Piece {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Next>;
    fn batch(&mut self, _most: usize) -> Result<Vec<String>, Error> {
        panic!("only a broadcaster's watch gives many at once")
    }
    fn lost(&self) -> u64 {
        panic!("only a broadcaster's watch counts what it has lost")
    }
    /// The number of the last event that a broadcaster's watch has taken.
    fn taken(&self) -> u64 {
        0
    }
    fn derived(self: Box<Self>, words: &[&str]) -> Derived;
}

/// A watch made of another one, and what it records.
type Derived = (Box<dyn Piece>, Stopper, Option<Box<dyn Fn() -> Vec<String>>>);

/// A watch of any make.
struct Boxed<O>(BoxWatch<O>);

fn next_of<W: Watch + ?Sized>(watch: &mut W, context: &mut Context<'_>) -> Poll<Next>
where
    W::Object: Textual,
{
    Pin::new(watch).poll_next(context).map(|event| {
        let event = event?;
        Some((shown(&event), event.status().map(|status| status.message().to_owned())))
    })
}

impl<O: Textual + Keyed + Clone + Unpin + Send + Sync + 'static> Piece for Boxed<O> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Next> {
        next_of(&mut self.0, context)
    }

    /// `filter [out TEXT] [fail TEXT]`, `select TEXT`, `record`.
    fn derived(self: Box<Self>, words: &[&str]) -> Derived {
        let mut recorded: Option<Box<dyn Fn() -> Vec<String>>> = None;
        let watch = match words {
            ["record"] => {
                let recorder = self.0.record();
                let recording: Recording<O> = recorder.recording();
                recorded = Some(Box::new(move || recording.events().iter().map(shown).collect()));
                recorder.boxed()
            }
            ["select", begins] => {
                let begins = (*begins).to_owned();
                self.0.filter_objects(move |object: &O| value_of(object.text()).starts_with(&begins)).boxed()
            }
            ["filter", options @ ..] => {
                let option =
                    |name: &str| options.iter().position(|word| *word == name).map(|at| options[at + 1].to_owned());
                let (out, fail) = (option("out"), option("fail"));
                let filter = move |event: WatchEvent<O>| {
                    let is = |begin: &Option<String>| {
                        let object = event.object().map(|object| value_of(object.text()));
                        object.zip(begin.as_deref()).is_some_and(|(object, begin)| object.starts_with(begin))
                    };
                    if is(&fail) {
                        return Some(WatchEvent::error(status("500")));
                    }
                    (!is(&out)).then_some(event)
                };
                self.0.filter_events(filter).boxed()
            }
            other => panic!("{other:?} makes no watch of another"),
        };
        let stopper = watch.stopper();
        (Box::new(Boxed(watch)), stopper, recorded)
    }
}

impl Piece for BroadcastWatch<Text> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Next> {
        next_of(self, context)
    }

    fn batch(&mut self, most: usize) -> Result<Vec<String>, Error> {
        let mut seen = Vec::new();
        let count = self.recv_many(Duration::ZERO, most, |event| {
            let sign = match event.action {
                Action::Added => "+",
                Action::Modified => "~",
                Action::Deleted => "-",
            };
            let position = match event.position.revision {
                0 => String::new(),
                revision => format!("@{revision}"),
            };
            let lost = if event.lost > 0 { format!("!{}", event.lost) } else { String::new() };
            seen.push(format!("{sign}{}{position}{lost}", event.object.0));
        })?;
        assert_eq!(count, seen.len());
        Ok(seen)
    }

    fn lost(&self) -> u64 {
        self.dropped()
    }

    fn taken(&self) -> u64 {
        self.position().revision
    }

    fn derived(self: Box<Self>, words: &[&str]) -> Derived {
        Box::new(Boxed(self.boxed())).derived(words)
    }
}

/// What a decoder says next.
enum Said {
    Event(WatchEvent<Text>),
    End,
    Broken,
    Error(String),
    Panic,
}

/// The script of a decoder: what it is to say, and what became of it.
#[derive(Default)]
struct Speech {
    state: Mutex<SpeechState>,
    changed: Condvar,
}

#[derive(Default)]
struct SpeechState {
    words: VecDeque<Said>,
    /// It has said everything, and waits for more.
    waits: bool,
    /// Its closer was called.
    closed: bool,
    gone: bool,
    waker: Option<Waker>,
}

impl Speech {
    /// `EVENT... [then end|broken|error TEXT|panic]`.
    fn add(&self, words: &[&str]) {
        let (events, then) = match words.iter().position(|word| *word == "then") {
            Some(at) => (&words[..at], &words[at + 1..]),
            None => (words, &[][..]),
        };
        let mut state = self.state.lock().unwrap();
        state.words.extend(events.iter().map(|text| Said::Event(event(text))));
        state.words.extend(match then {
            [] => None,
            ["end"] => Some(Said::End),
            ["broken"] => Some(Said::Broken),
            ["error", text] => Some(Said::Error((*text).to_owned())),
            ["panic"] => Some(Said::Panic),
            other => panic!("then {other:?}?"),
        });
        state.waits = false;
        let waker = state.waker.take();
        drop(state);
        self.changed.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn is_idle(&self) -> bool {
        let state = self.state.lock().unwrap();
        state.waits && !state.closed
    }

    fn is_gone(&self) -> bool {
        self.state.lock().unwrap().gone
    }
}

fn said(said: Said) -> Result<Option<WatchEvent<Text>>, DecodeError> {
    match said {
        Said::Event(event) => Ok(Some(event)),
        Said::End => Ok(None),
        Said::Broken => Err(io::Error::from(io::ErrorKind::ConnectionReset).into()),
        Said::Error(text) => Err(text.into()),
        Said::Panic => panic!("as the row says"),
    }
}

/// The decoder itself, as one that blocks and as a stream.
struct Speaker(Arc<Speech>);

impl Drop for Speaker {
    fn drop(&mut self) {
        self.0.state.lock().unwrap().gone = true;
    }
}

impl Decoder for Speaker {
    type Object = Text;

    fn decode(&mut self) -> Result<Option<WatchEvent<Text>>, DecodeError> {
        let mut state = self.0.state.lock().unwrap();
        loop {
            if state.closed {
                return Err("use of a closed connection".into());
            }
            if let Some(next) = state.words.pop_front() {
                drop(state);
                return said(next);
            }
            state.waits = true;
            state = self.0.changed.wait(state).unwrap();
        }
    }

    fn closer(&self) -> Box<dyn Fn() + Send + Sync> {
        let speech = Arc::clone(&self.0);
        Box::new(move || {
            speech.state.lock().unwrap().closed = true;
            speech.changed.notify_all();
        })
    }
}

impl futures_core::Stream for Speaker {
    type Item = Result<WatchEvent<Text>, DecodeError>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut state = self.0.state.lock().unwrap();
        let Some(next) = state.words.pop_front() else {
            state.waits = true;
            state.waker = Some(context.waker().clone());
            return Poll::Pending;
        };
        drop(state);
        Poll::Ready(said(next).transpose())
    }
}

/// What a fake's verbs are called on.
enum Fake {
    Waits(FakeSource<Text>),
    Buffers(RaceFreeFakeSource<Text>),
}

/// A step that was started.
struct Job {
    future: Pin<Box<dyn Future<Output = Vec<String>>>>,
    woken: Arc<Woken>,
    /// How often it had been woken when it was polled last.
    polled: Option<usize>,
    printed: Option<Vec<String>>,
    /// Whether there is something for a reader of a broadcaster.
    due: Box<dyn Fn() -> bool>,
}

impl Job {
    fn new(future: impl Future<Output = Vec<String>> + 'static) -> Job {
        Job { future: Box::pin(future), woken: Arc::default(), polled: None, printed: None, due: Box::new(|| false) }
    }

    /// Polls it if it was woken since the last time. Whether it did.
    fn poll(&mut self) -> bool {
        if self.printed.is_some() {
            return false;
        }
        if (self.due)() {
            until("the reader is woken", || self.polled != Some(self.woken.count()));
        }
        let woken = self.woken.count();
        if self.polled == Some(woken) {
            return false;
        }
        self.polled = Some(woken);
        let waker = Waker::from(Arc::clone(&self.woken));
        if let Poll::Ready(printed) = self.future.as_mut().poll(&mut Context::from_waker(&waker)) {
            self.printed = Some(printed);
        }
        true
    }
}

type Shared = Rc<RefCell<Box<dyn Piece>>>;

/// A watch of a row, by its name.
struct Named {
    piece: Shared,
    stopper: Stopper,
    recorded: Option<Box<dyn Fn() -> Vec<String>>>,
    /// The broadcaster of which it is a watch.
    of: Option<Arc<Broadcaster<Text>>>,
    /// Of one whose decoder has a thread of its own.
    speech: Option<Arc<Speech>>,
    why: Rc<RefCell<String>>,
}

/// What the steps of a case have made.
#[derive(Default)]
pub(crate) struct WatchRow {
    broadcasters: BTreeMap<String, Arc<Broadcaster<Text>>>,
    watches: BTreeMap<String, Named>,
    fakes: BTreeMap<String, Fake>,
    speeches: BTreeMap<String, Arc<Speech>>,
    jobs: BTreeMap<String, Job>,
    /// The jobs in the order in which they were started.
    order: Vec<String>,
}

/// `[queue N] [drop]`, where one of them is said.
fn queue_of(words: &[&str]) -> Option<(usize, WhenFull)> {
    let queue = option(words, "queue").map(|queue| number(queue) as usize);
    let when_full = if words.contains(&"drop") { WhenFull::Drop } else { WhenFull::Wait };
    (queue.is_some() || when_full == WhenFull::Drop).then(|| (queue.unwrap_or_default(), when_full))
}

fn option<'a>(words: &[&'a str], name: &str) -> Option<&'a str> {
    words.iter().position(|word| *word == name).map(|at| words[at + 1])
}

/// The object that an event publishes, and how.
fn action_of(text: &str) -> (Action, Text) {
    match event(text).payload {
        Payload::Added(new) => (Action::Added, new),
        Payload::Modified { new, .. } => (Action::Modified, new),
        Payload::Deleted(last) => (Action::Deleted, last),
        _ => panic!("a broadcaster publishes objects, and {text} is none"),
    }
}

impl WatchRow {
    pub(crate) fn run(&mut self, word: &str, rest: &[&str]) -> Vec<String> {
        let printed = match (word, rest) {
            ("start", [name, word, rest @ ..]) => {
                let job = self.call(word, rest);
                self.order.push((*name).to_owned());
                assert!(self.jobs.insert((*name).to_owned(), job).is_none(), "{name} has been started");
                Vec::new()
            }
            ("join", [name]) => match self.jobs.get(*name).expect("a job").printed.clone() {
                None => line("waits"),
                Some(printed) if printed.is_empty() => line("done"),
                Some(printed) => printed,
            },
            ("cancel", [name]) => {
                self.jobs.remove(*name).expect("a job");
                self.order.retain(|job| job != name);
                Vec::new()
            }
            ("publish" | "send", _) => {
                let mut job = self.call(word, rest);
                job.poll();
                job.printed.unwrap_or_else(|| panic!("it waits: start it"))
            }
            ("broadcaster" | "watch" | "try" | "shutdown" | "at", [name, rest @ ..]) => {
                self.broadcast(word, name, rest)
            }
            _ => self.make(word, rest).unwrap_or_else(|| self.read(word, rest)),
        };
        while self.order.iter().any(|name| self.jobs.get_mut(name).is_some_and(Job::poll)) {}
        printed
    }

    /// A call that may wait.
    fn call(&self, word: &str, rest: &[&str]) -> Job {
        match (word, rest) {
            ("publish", [name, text]) => {
                let (broadcaster, (action, object)) = (Arc::clone(&self.broadcasters[*name]), action_of(text));
                Job::new(async move { printed(broadcaster.action_async(action, object).await) })
            }
            ("send", [name, text]) => match &self.fakes[*name] {
                Fake::Waits(fake) => {
                    let (fake, event) = (fake.clone(), event(text));
                    Job::new(async move { printed(fake.send_async(event).await) })
                }
                Fake::Buffers(fake) => {
                    let sent = printed(sent_by_verb(fake, event(text)));
                    Job::new(async move { sent })
                }
            },
            ("take", [name]) => {
                let named = &self.watches[*name];
                let (piece, why) = (Rc::clone(&named.piece), Rc::clone(&named.why));
                let due: Box<dyn Fn() -> bool> = match &named.of {
                    Some(of) => {
                        let (of, piece, stopper) = (Arc::clone(of), Rc::clone(&piece), named.stopper.clone());
                        Box::new(move || {
                            let more = of.position().revision > piece.borrow().taken();
                            more || of.stats().is_none() || stopper.is_stopped()
                        })
                    }
                    None => Box::new(|| false),
                };
                let reader = Job::new(async move {
                    let next = poll_fn(|context| piece.borrow_mut().poll(context)).await;
                    line(told(next, &why))
                });
                Job { due, ..reader }
            }
            _ => panic!("{word} does not wait"),
        }
    }

    fn add(&mut self, name: &str, piece: Box<dyn Piece>, stopper: Stopper) {
        let named = Named {
            piece: Rc::new(RefCell::new(piece)),
            stopper,
            recorded: None,
            of: None,
            speech: None,
            why: Rc::default(),
        };
        self.watches.insert(name.to_owned(), named);
    }

    /// Words of a broadcaster.
    fn broadcast(&mut self, word: &str, name: &str, rest: &[&str]) -> Vec<String> {
        match (word, rest) {
            ("broadcaster", options) => {
                let (queue, when_full) = queue_of(options).unwrap_or_default();
                let mut builder = Broadcaster::builder(queue, when_full);
                if let Some(events) = option(options, "history") {
                    builder = builder.history(number(events) as usize);
                }
                if options.contains(&"keys") {
                    builder = builder.keys(|object: &Text| key_of(&object.0).to_owned());
                }
                match builder.build() {
                    Ok(broadcaster) => drop(self.broadcasters.insert(name.to_owned(), Arc::new(broadcaster))),
                    Err(error) => return line(failed(&error)),
                }
            }
            ("watch", ["of", of, options @ ..]) => {
                let broadcaster = &self.broadcasters[*of];
                let prefix = options.iter().position(|word| *word == "prefix").map(|at| &options[at + 1..]);
                let prefix = prefix.map(|events| events.iter().map(|text| event(text)));
                let queue = queue_of(options).map(|(queue, when_full)| WatchOptions::new(queue, when_full));
                let opened = match (queue, prefix, option(options, "after").map(number)) {
                    (None, None, None) => broadcaster.watch(),
                    (Some(queue), None, None) => broadcaster.watch_with(queue),
                    (None, Some(prefix), _) => broadcaster.with_prefix(prefix),
                    (Some(queue), Some(prefix), _) => broadcaster.with_prefix_and(queue, prefix),
                    (None, None, Some(after)) => broadcaster.after(after),
                    (Some(queue), None, Some(after)) => broadcaster.after_with(queue, after),
                };
                match opened {
                    Ok(watch) => {
                        let (stopper, of) = (watch.stopper(), Arc::clone(broadcaster));
                        self.add(name, Box::new(watch), stopper);
                        self.watches.get_mut(name).expect("it was added").of = Some(of);
                    }
                    Err(error) => return line(failed(&error)),
                }
            }
            ("try", [text]) => {
                let (action, object) = action_of(text);
                return match self.broadcasters[name].action_or_drop(action, object) {
                    Ok(true) => Vec::new(),
                    Ok(false) => line("full"),
                    Err(error) => line(failed(&error)),
                };
            }
            ("shutdown", []) => self.broadcasters[name].shutdown(),
            ("shutdown", [code]) => self.broadcasters[name].shutdown_with(status(code)),
            ("at", []) => return line(self.broadcasters[name].position().revision),
            _ => panic!("{word} {name} {rest:?}?"),
        }
        Vec::new()
    }

    /// Words that make a watch which is no broadcaster's. `None`: it is no such word.
    fn make(&mut self, word: &str, rest: &[&str]) -> Option<Vec<String>> {
        match (word, rest) {
            ("fake", [name]) => {
                let (fake, watch) = FakeWatch::pair();
                self.fakes.insert((*name).to_owned(), Fake::Waits(fake));
                self.add_fake(name, watch);
            }
            ("buffered", [name]) => {
                let (fake, watch) = RaceFreeFakeSource::pair();
                self.fakes.insert((*name).to_owned(), Fake::Buffers(fake));
                self.add_fake(name, watch);
            }
            ("reset", [name]) => {
                let Fake::Waits(fake) = &self.fakes[*name] else { panic!("it is made anew") };
                let watch = fake.reset();
                self.add_fake(name, watch);
            }
            ("empty", [name]) => {
                let watch = EmptyWatch::<Text>::new();
                let stopper = watch.stopper();
                self.add(name, Box::new(Boxed(watch.boxed())), stopper);
            }
            ("decoder" | "events", [name, options @ ..]) => self.decode(word, name, options),
            ("filter" | "select" | "record", [name, "of", of, options @ ..]) => {
                let Named { piece, .. } = self.watches.remove(*of).expect("a watch");
                let piece = Rc::into_inner(piece).expect("nobody takes from it").into_inner();
                let (piece, stopper, recorded) = piece.derived(&[&[word], options].concat());
                self.add(name, piece, stopper);
                self.watches.get_mut(*name).expect("it was added").recorded = recorded;
            }
            _ => return None,
        }
        Some(Vec::new())
    }

    fn add_fake(&mut self, name: &str, watch: FakeWatch<Text>) {
        let stopper = watch.stopper();
        self.add(name, Box::new(Boxed(watch.boxed())), stopper);
    }

    /// `[reporter CODE|panic]`.
    fn decode(&mut self, word: &str, name: &str, options: &[&str]) {
        let speech = Arc::new(Speech::default());
        let speaker = Speaker(Arc::clone(&speech));
        let code = option(options, "reporter").unwrap_or("500").to_owned();
        let reporter = move |error: &DecodeError| match &*code {
            "panic" => panic!("as the row says"),
            code => {
                Status::new(number(code) as u16, format!("unable to decode an event from the watch stream: {error}"))
            }
        };
        let watch = match (word, options.is_empty()) {
            ("decoder", true) => StreamWatch::spawn(speaker, watchcore_toolkit::InternalError).unwrap(),
            ("decoder", false) => StreamWatch::spawn(speaker, reporter).unwrap(),
            (_, true) => StreamWatch::of(speaker, watchcore_toolkit::InternalError),
            (_, false) => StreamWatch::of(speaker, reporter),
        };
        let stopper = watch.stopper();
        self.add(name, Box::new(Boxed(watch.boxed())), stopper);
        if word == "decoder" {
            self.watches.get_mut(name).expect("it was added").speech = Some(Arc::clone(&speech));
        }
        self.speeches.insert(name.to_owned(), speech);
    }

    /// Words that read, and that end.
    fn read(&mut self, word: &str, rest: &[&str]) -> Vec<String> {
        match (word, rest) {
            ("take", [name]) => line(self.take(name)),
            ("drain", [name]) => {
                let mut all = vec![self.take(name)];
                while !matches!(&**all.last().expect("one"), "nothing" | "end") {
                    all.push(self.take(name));
                }
                all
            }
            ("batch", [name, most]) => match self.watches[*name].piece.borrow_mut().batch(number(most) as usize) {
                Ok(events) if events.is_empty() => line("end"),
                Ok(events) => events,
                Err(error) if error.code() == Code::Timeout => line("nothing"),
                Err(error) => line(failed(&error)),
            },
            ("lost", [name]) => line(self.watches[*name].piece.borrow().lost()),
            ("why", [name]) => line(self.watches[*name].why.borrow()),
            ("recorded", [name]) => (self.watches[*name].recorded.as_ref().expect("it records"))(),
            ("say", [name, words @ ..]) => {
                self.speeches[*name].add(words);
                Vec::new()
            }
            ("stop", [name]) => {
                match (self.watches.get(*name), self.fakes.get(*name)) {
                    (Some(watch), _) => watch.stopper.stop(),
                    // Another watch was made of it.
                    (None, Some(Fake::Waits(fake))) => fake.stop(),
                    (None, Some(Fake::Buffers(fake))) => fake.stop(),
                    (None, None) => panic!("{name} is no watch"),
                }
                Vec::new()
            }
            ("drop", [name]) => {
                self.watches.remove(*name).expect("a watch");
                Vec::new()
            }
            ("stopped", [name]) => yes(match &self.fakes[*name] {
                Fake::Waits(fake) => fake.is_stopped(),
                Fake::Buffers(fake) => fake.is_stopped(),
            }),
            ("closed", [name]) => {
                let speech = &self.speeches[*name];
                until("the decoder waits, or is dropped", || speech.is_idle() || speech.is_gone());
                yes(speech.is_gone())
            }
            _ => panic!("{word} {rest:?} is no step of watches"),
        }
    }

    /// The next that is there. Of a decoder on a thread of its own nothing is on its way once that waits for the script.
    fn take(&self, name: &str) -> String {
        let named = &self.watches[name];
        let next = RefCell::new(Poll::Pending);
        until("a decoder waits for the script, or has given something", || {
            let idle = named.speech.as_ref().is_none_or(|speech| speech.is_idle());
            let polled = named.piece.borrow_mut().poll(&mut Context::from_waker(Waker::noop()));
            let ready = polled.is_ready();
            *next.borrow_mut() = polled;
            idle || ready
        });
        match next.into_inner() {
            Poll::Ready(next) => told(next, &named.why),
            Poll::Pending => "nothing".to_owned(),
        }
    }
}

/// Sends as a test does: by the verb of the event's type where there is one.
fn sent_by_verb(fake: &RaceFreeFakeSource<Text>, event: WatchEvent<Text>) -> Result<(), Error> {
    if event.position.revision > 0 || event.lost > 0 {
        return fake.send(event);
    }
    match event.payload {
        Payload::Added(new) => fake.add(new),
        Payload::Modified { old: None, new } => fake.modify(new),
        Payload::Deleted(last) => fake.delete(last),
        Payload::Error(status) => fake.error(status),
        _ => fake.send(event),
    }
}

fn yes(it_is: bool) -> Vec<String> {
    line(if it_is { "yes" } else { "no" })
}

/// What a watch gave, as a line; what an error said is kept.
fn told(next: Next, why: &RefCell<String>) -> String {
    let Some((text, status)) = next else { return "end".to_owned() };
    if let Some(status) = status {
        *why.borrow_mut() = status;
    }
    text
}
