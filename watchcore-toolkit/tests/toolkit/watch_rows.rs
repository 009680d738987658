//! The words of the rows that are about watches: contract/README.md, "Words of watches".
//!
//! No step waits: a call that would is a future of this module, a job, which is polled again when its waker was called, and
//! not before. So a wake-up that is missing shows as a job that waits. Readers of a broadcaster are woken by the core's
//! notifier, on a thread of its own: where there is something for such a job, its wake-up is waited for.

use crate::script::Woken;
use crate::support::until;
use crate::watch_speech::{Speaker, Speech};
use crate::watch_text::{Text, Textual, event, failed, key_of, line, number, printed, shown, status, value_of};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use watchcore::{Code, Error};
use watchcore_toolkit::{
    Action, BoxWatch, BroadcastWatch, Broadcaster, DecodeError, EmptyWatch, FakeSource, FakeWatch, Keyed, Payload,
    Recording, Status, Stopper, StreamWatch, Watch, WatchEvent, WatchExt, WatchOptions, WhenFull,
};

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

/// What a fake's verbs are called on.
enum Fake {
    Waits(FakeSource<Text>),
    Buffers(FakeSource<Text>),
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
                let (fake, watch) = FakeWatch::race_free();
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
fn sent_by_verb(fake: &FakeSource<Text>, event: WatchEvent<Text>) -> Result<(), Error> {
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
