//! Rows AW-20 and FT-61, where a script cannot keep them: a watch that is dropped, and the words of a panic.

use crate::broadcaster::until;
use crate::fakes::all;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll};
use watchcore_toolkit::{DecodeError, Decoder, FakeWatch, InternalError, Status, StreamWatch, WatchEvent};

type Said = Result<Option<WatchEvent<u8>>, DecodeError>;

/// A decoder that a test speaks for. It counts itself.
struct Scripted {
    script: mpsc::Receiver<Said>,
    close: Arc<Mutex<Option<mpsc::Sender<Said>>>>,
    living: Arc<AtomicUsize>,
}

/// The test's side: what it says, and how many decoders live.
struct Script {
    say: Arc<Mutex<Option<mpsc::Sender<Said>>>>,
    living: Arc<AtomicUsize>,
}

impl Script {
    fn new() -> (Script, Scripted) {
        let (say, script) = mpsc::channel();
        let say = Arc::new(Mutex::new(Some(say)));
        let living = Arc::new(AtomicUsize::new(1));
        let decoder = Scripted { script, close: Arc::clone(&say), living: Arc::clone(&living) };
        (Script { say, living }, decoder)
    }

    fn say(&self, said: Said) {
        self.say.lock().unwrap().as_ref().expect("it was not closed").send(said).unwrap();
    }

    /// Waits for the end of the decoder's thread.
    fn is_gone(&self) {
        until("the decoder is dropped", || self.living.load(Ordering::SeqCst) == 0);
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.living.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Decoder for Scripted {
    type Object = u8;

    fn decode(&mut self) -> Said {
        self.script.recv().unwrap_or_else(|_| Err("use of a closed connection".into()))
    }

    fn closer(&self) -> Box<dyn Fn() + Send + Sync> {
        let close = Arc::clone(&self.close);
        Box::new(move || *close.lock().unwrap() = None)
    }
}

/// An error that nobody reads, then the drop.
#[test]
fn aw_20_dropped_watch_ends_its_decoder() {
    let (script, decoder) = Script::new();
    let watch = StreamWatch::spawn(decoder, InternalError).unwrap();
    script.say(Err("test error".into()));
    drop(watch);
    script.is_gone();
}

/// A reporter that panics is such an error, too, on the decoder's thread and in the consumer's poll.
#[test]
fn fault_panicking_reporter_is_an_error() {
    fn panics(_: &DecodeError) -> Status {
        panic!("the reporter's fault")
    }
    let (script, decoder) = Script::new();
    let spawned = StreamWatch::spawn(decoder, panics).unwrap();
    script.say(Err("test error".into()));
    let (fake, decoded) = FakeWatch::race_free();
    fake.add(0).unwrap();
    for mut watch in [spawned, StreamWatch::of(Decoded(decoded), panics)] {
        let events = all(&mut watch);
        assert_eq!(events.len(), 1);
        assert!(events[0].status().unwrap().message().contains("reporter"), "{events:?}");
    }
    script.is_gone();
}

/// A stream of what was decoded, given by a test.
struct Decoded(FakeWatch<u8>);

impl futures_core::Stream for Decoded {
    type Item = Result<WatchEvent<u8>, DecodeError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Pin::new(&mut self.0).poll_next(context).map(|event| {
            event.map(|event| match event.object() {
                Some(0) => Err("a zero".into()),
                _ => Ok(event),
            })
        })
    }
}
