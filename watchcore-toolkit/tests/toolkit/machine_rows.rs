//! Rows of a reflector and of a RetryWatch.

use crate::contract::{line, number};
use crate::source_rows::{Machine, Source, settle};
use futures_core::Stream;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use watchcore::{Cache, Code, KeyValue, Range, Read, State};
use watchcore_toolkit::{
    Entry, ManualClock, ObjectWatch, Payload, Reflector, ReflectorHandle, RetryWatch, Watch, WatchEvent,
};

/// What a row calls an object: its key and its value.
pub(crate) trait Named {
    fn named(&self) -> (&[u8], &[u8]);
}

impl Named for Entry {
    fn named(&self) -> (&[u8], &[u8]) {
        (&self.key, &self.value)
    }
}

impl Named for KeyValue {
    fn named(&self) -> (&[u8], &[u8]) {
        (self.key(), self.value().unwrap_or_default())
    }
}

/// `/a=1`; without a value the key alone.
fn object(object: &impl Named) -> String {
    let (key, value) = object.named();
    let between: &[u8] = if value.is_empty() { b"" } else { b"=" };
    String::from_utf8_lossy(&[key, between, value].concat()).into_owned()
}

/// `+/a=1`, `~/a=2`, `-/a=2`, `?/a`, `error:410`; with what was lost before it, `!3`.
pub(crate) fn shown<O: Named>(event: &WatchEvent<O>) -> String {
    let text = match &event.payload {
        Payload::Added(new) => format!("+{}", object(new)),
        Payload::Modified { new, .. } => format!("~{}", object(new)),
        Payload::Deleted(last) => format!("-{}", object(last)),
        Payload::DeletedUnknown(key) => format!("?{}", String::from_utf8_lossy(key)),
        Payload::Error(status) => format!("error:{}", status.code()),
        _ => event.name().to_lowercase(),
    };
    if event.lost > 0 { format!("{text}!{}", event.lost) } else { text }
}

/// `~/a=2 was 1`.
fn shown_with_old<O: Named>(event: &WatchEvent<O>) -> String {
    match &event.payload {
        Payload::Modified { old: Some(old), .. } => {
            format!("{} was {}", shown(event), String::from_utf8_lossy(old.named().1))
        }
        _ => shown(event),
    }
}

/// What a reader was given, and not asked for yet.
struct Given<O> {
    events: Vec<WatchEvent<O>>,
    ended: bool,
}

impl<O: Named + Clone> Given<O> {
    fn new() -> Given<O> {
        Given { events: Vec::new(), ended: false }
    }

    /// Takes what there is.
    fn take(&mut self, watch: &mut (impl Stream<Item = WatchEvent<O>> + Unpin), context: &mut Context<'_>) {
        while !self.ended {
            match Pin::new(&mut *watch).poll_next(context) {
                Poll::Ready(Some(event)) => self.events.push(event),
                Poll::Ready(None) => self.ended = true,
                Poll::Pending => return,
            }
        }
    }

    fn line(&mut self, end: &mut bool) -> Vec<String> {
        let mut words: Vec<String> = std::mem::take(&mut self.events).iter().map(shown).collect();
        if self.ended && !std::mem::replace(end, true) {
            words.push("end".to_owned());
        }
        line(words.join(" "))
    }
}

/// A reflector, and a reader of its cache.
pub(crate) struct Reflecting {
    cache: Cache,
    handle: ReflectorHandle,
    run: Option<Pin<Box<dyn Future<Output = ()>>>>,
    reader: ObjectWatch<KeyValue>,
    given: Given<KeyValue>,
    end_said: bool,
}

impl Reflecting {
    /// `run reflector [state] [below PREFIX]`.
    pub(crate) fn new(options: &[&str], source: Source, clock: &Arc<ManualClock>) -> Reflecting {
        let below = options.iter().position(|word| *word == "below").map_or("/", |at| options[at + 1]);
        let cache = Cache::builder(below).expect_load(true).build().unwrap();
        let reader = ObjectWatch::open(&cache).unwrap();
        let reflector = Reflector::new(cache.writer().unwrap(), source).unwrap().clock(clock.clone());
        let reflector = reflector.initial_watch(options.contains(&"state"));
        let handle = reflector.handle();
        Reflecting { cache, handle, run: Some(Box::pin(reflector.run())), reader, given: Given::new(), end_said: false }
    }
}

impl Machine for Reflecting {
    fn poll(&mut self, context: &mut Context<'_>) {
        if self.run.as_mut().is_some_and(|run| run.as_mut().poll(context).is_ready()) {
            self.run = None;
            assert_eq!(self.cache.status().state, State::Closed);
        }
    }

    /// Not beside the reflector: a reader's poll of a cache that is not ready wakes its source.
    fn read(&mut self) {
        settle(|context| self.given.take(&mut self.reader, context));
        // The source's losses are no losses of a reader that is given the difference.
        self.given.events.iter_mut().for_each(|event| event.lost = 0);
    }

    fn say(&mut self, word: &str, rest: &[&str]) -> Vec<String> {
        match (word, rest) {
            ("stop", []) => {
                self.handle.stopper().stop();
                Vec::new()
            }
            ("given", []) => self.given.line(&mut self.end_said),
            ("given", ["full"]) => std::mem::take(&mut self.given.events).iter().map(shown_with_old).collect(),
            ("objects", []) => {
                let page = match self.cache.list(&Range::all(), Read::Any, 0) {
                    Err(error) if error.code() == Code::NotReady => return Vec::new(),
                    page => page.unwrap(),
                };
                let texts = page
                    .iter()
                    .map(|kv| format!("{}={}@{}", kv.key_str().unwrap(), kv.value_str().unwrap(), kv.mod_revision()));
                line(texts.collect::<Vec<_>>().join(" "))
            }
            ("at", []) => line(self.cache.position().revision),
            ("epoch", []) => line(self.cache.position().epoch_number()),
            _ => panic!("{word} is no word of a reflector"),
        }
    }
}

/// A RetryWatch, and its reader.
pub(crate) struct Retrying {
    watch: RetryWatch<Source>,
    given: Given<Entry>,
    end_said: bool,
    held: bool,
}

impl Retrying {
    /// `run retry FROM [lister]`.
    pub(crate) fn new(options: &[&str], source: Source, clock: &Arc<ManualClock>) -> watchcore::Result<Retrying> {
        let builder = RetryWatch::builder(source, number(options[0])).clock(clock.clone());
        let watch = if options.len() > 1 { builder.relist() } else { builder }.open()?;
        Ok(Retrying { watch, given: Given::new(), end_said: false, held: false })
    }
}

impl Machine for Retrying {
    fn poll(&mut self, context: &mut Context<'_>) {
        if !self.held {
            self.given.take(&mut self.watch, context);
        }
    }

    fn say(&mut self, word: &str, rest: &[&str]) -> Vec<String> {
        match (word, rest) {
            ("stop", []) => self.watch.stopper().stop(),
            ("hold", []) => self.held = true,
            ("release", []) => self.held = false,
            ("given", []) => return self.given.line(&mut self.end_said),
            ("given", ["full"]) => {
                let events = std::mem::take(&mut self.given.events);
                let full = |event: &WatchEvent<Entry>| format!("{} {}", event.position.revision, shown_with_old(event));
                return events.iter().map(full).collect();
            }
            _ => panic!("{word} is no word of a retrying watch"),
        }
        Vec::new()
    }
}
