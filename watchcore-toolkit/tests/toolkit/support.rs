//! What several modules need: a bound for every wait, small caches, and a cache whose values are strings.

use futures_core::Stream;
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use watchcore::raw::TestBuilder as _;
use watchcore::{Cache, Change, Writer};
use watchcore_toolkit::{DecodeError, InternalError, Object, StreamWatch, Watch, WatchEvent, WatchExt};

/// No wait of a test is meant to take this long: it is for loaded machines.
pub(crate) const BOUND: Duration = Duration::from_secs(60);

/// A value that is text, decoded.
pub(crate) type Text = Object<String>;

/// A cache of text whose window is a few events long.
pub(crate) fn small_cache() -> Cache {
    Cache::builder("/").capacity(128).segment_slots(16).decoder(text).build().unwrap()
}

/// A cache of text that loses nothing in a test.
pub(crate) fn wide_cache() -> Cache {
    Cache::builder("/").decoder(text).build().unwrap()
}

fn text(_: &[u8], value: &[u8]) -> Result<String, std::string::FromUtf8Error> {
    String::from_utf8(value.to_vec())
}

/// One change a revision.
pub(crate) fn put(writer: &mut Writer, key: &str, value: &str) -> u64 {
    let revision = writer.position().revision + 1;
    writer.apply(revision, [Change::put(key, value)]).unwrap();
    revision
}

pub(crate) fn delete(writer: &mut Writer, key: &str) -> u64 {
    let revision = writer.position().revision + 1;
    writer.apply(revision, [Change::delete(key)]).unwrap();
    revision
}

/// Moves the whole window on, without a change to any key but one.
pub(crate) fn lap(writer: &mut Writer, key: &str) {
    for round in 0..200 {
        put(writer, key, &round.to_string());
    }
}

/// The next event; an end is a failure.
pub(crate) fn next<W: Watch>(watch: &mut W) -> WatchEvent<W::Object> {
    watch.recv(BOUND).expect("an event in time").expect("not the end")
}

/// An event of text in a line: `+ /a=1`, `~ /a=1>2`, `- /a=2`, `synced`.
pub(crate) fn line(event: &WatchEvent<Text>) -> String {
    use watchcore_toolkit::Payload::*;
    let of = |object: &Text| format!("{}={}", object.key_str().unwrap(), **object);
    match &event.payload {
        Added(new) => format!("+ {}", of(new)),
        Modified { old: Some(old), new } => format!("~ {}>{}", of(old), **new),
        Modified { old: None, new } => format!("~ {} of unknown", of(new)),
        Deleted(last) => format!("- {}", of(last)),
        DeletedUnknown(key) => format!("? {}", String::from_utf8_lossy(key)),
        Synced => "synced".into(),
        Bookmark => "bookmark".into(),
        Error(status) => format!("error {}", status.code()),
        _ => "unknown".into(),
    }
}

/// Lines that one thread writes and another waits for.
#[derive(Default)]
pub(crate) struct Journal {
    lines: Mutex<Vec<String>>,
    written: Condvar,
}

impl Journal {
    fn lock(&self) -> MutexGuard<'_, Vec<String>> {
        self.lines.lock().unwrap()
    }

    pub(crate) fn write(&self, line: impl Into<String>) {
        self.lock().push(line.into());
        self.written.notify_all();
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.lock().clone()
    }

    /// Waits until the condition holds; what was written then.
    pub(crate) fn wait(&self, held: impl Fn(&[String]) -> bool) -> Vec<String> {
        let (lines, timed_out) = self.written.wait_timeout_while(self.lock(), BOUND, |lines| !held(lines)).unwrap();
        assert!(!timed_out.timed_out(), "not within {BOUND:?}; there is {:?}", *lines);
        lines.clone()
    }

    pub(crate) fn wait_for(&self, line: &str) {
        self.wait(|lines| lines.iter().any(|written| written == line));
    }
}

/// Looks until a condition holds that nothing notifies of.
pub(crate) fn until(what: &str, held: impl Fn() -> bool) {
    let deadline = Instant::now() + BOUND;
    while !held() {
        assert!(Instant::now() < deadline, "{what}: not within {BOUND:?}");
        std::thread::yield_now();
    }
}

/// The objects behind a history, whose n-th entry is revision n: their values, and the revisions of those.
pub(crate) fn objects_of(history: &[Vec<(String, Option<String>)>]) -> BTreeMap<String, (String, u64)> {
    let mut state = BTreeMap::new();
    for (changes, revision) in history.iter().zip(1..) {
        for (key, value) in changes {
            match value {
                Some(value) => state.insert(key.clone(), (value.clone(), revision)),
                None => state.remove(key),
            };
        }
    }
    state
}

/// A watch whose polls are a function's.
pub(crate) fn polled<O, P>(poll: P) -> StreamWatch<O>
where
    O: Send + Unpin + 'static,
    P: FnMut(&mut Context<'_>) -> Poll<Option<WatchEvent<O>>> + Send + Unpin + 'static,
{
    struct Polled<P>(P);

    impl<O, P: FnMut(&mut Context<'_>) -> Poll<Option<WatchEvent<O>>> + Unpin> Stream for Polled<P> {
        type Item = Result<WatchEvent<O>, DecodeError>;

        fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
            (self.0)(context).map(|event| event.map(Ok))
        }
    }

    StreamWatch::of(Polled(poll), InternalError)
}
