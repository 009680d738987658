//! Rows AW-18 to AW-20: watches of what a decoder reads.

use crate::broadcaster::{LONG, until};
use crate::fakes::all;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll};
use watchcore_toolkit::{
    DecodeError, Decoder, InternalError, RaceFreeFakeSource, Status, StreamWatch, Watch, WatchEvent, WatchExt,
};

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

#[test]
fn aw_18_decoded_events_come_in_order() {
    let (script, decoder) = Script::new();
    let mut watch = StreamWatch::spawn(decoder, InternalError).unwrap();
    script.say(Ok(Some(WatchEvent::added(1))));
    script.say(Ok(Some(WatchEvent::deleted(1))));
    assert_eq!(watch.recv(LONG).unwrap(), Some(WatchEvent::added(1)));
    assert_eq!(watch.recv(LONG).unwrap(), Some(WatchEvent::deleted(1)));
    watch.stop();
    watch.stop();
    assert_eq!(watch.recv(LONG).unwrap(), None);
    script.is_gone();
}

#[test]
fn aw_18_end_of_stream_is_silent() {
    for end in [Ok(None), Err(io::Error::from(io::ErrorKind::UnexpectedEof).into())] {
        let (script, decoder) = Script::new();
        let mut watch = StreamWatch::spawn(decoder, InternalError).unwrap();
        script.say(Ok(Some(WatchEvent::added(1))));
        script.say(end);
        assert_eq!(all(&mut watch), [WatchEvent::added(1)]);
        script.is_gone();
    }
}

#[test]
fn aw_19_decode_error_is_one_error_event() {
    let (script, decoder) = Script::new();
    let mut watch = StreamWatch::spawn(decoder, InternalError).unwrap();
    script.say(Err("test error".into()));
    let status = Status::new(500, "unable to decode an event from the watch stream: test error");
    assert_eq!(all(&mut watch), [WatchEvent::error(status)]);
    script.is_gone();
    watch.stop();
    assert_eq!(all(&mut watch), []);

    let (script, decoder) = Script::new();
    let mut watch = StreamWatch::spawn(decoder, |error: &DecodeError| Status::new(410, error.to_string())).unwrap();
    script.say(Err("too old".into()));
    assert_eq!(all(&mut watch), [WatchEvent::error(Status::new(410, "too old"))]);
}

/// An error that nobody reads, then the stop, or the drop.
#[test]
fn aw_20_error_without_reader_then_stop() {
    for drops in [false, true] {
        let (script, decoder) = Script::new();
        let mut watch = StreamWatch::spawn(decoder, InternalError).unwrap();
        script.say(Err("test error".into()));
        if drops {
            drop(watch);
        } else {
            watch.stop();
            assert_eq!(all(&mut watch), [], "the pending error went with the stop");
        }
        script.is_gone();
    }
}

/// The stop makes an outstanding decode end, from any thread.
#[test]
fn fault_stop_closes_the_decoder() {
    let (script, decoder) = Script::new();
    let mut watch = StreamWatch::spawn(decoder, InternalError).unwrap();
    let stopper = watch.stopper();
    let consumer = std::thread::spawn(move || watch.recv(LONG).unwrap());
    stopper.stop();
    assert_eq!(consumer.join().unwrap(), None);
    script.is_gone();
}

/// A decoder that panics ends its watch with an error.
#[test]
fn fault_panicking_decoder_is_an_error() {
    struct Panics;
    impl Decoder for Panics {
        type Object = u8;
        fn decode(&mut self) -> Said {
            panic!("the decoder's fault")
        }
        fn closer(&self) -> Box<dyn Fn() + Send + Sync> {
            Box::new(|| {})
        }
    }
    let mut watch = StreamWatch::spawn(Panics, InternalError).unwrap();
    let events = all(&mut watch);
    assert_eq!(events.len(), 1);
    assert!(events[0].status().unwrap().message().contains("panicked"));
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
    let (fake, decoded) = RaceFreeFakeSource::pair();
    fake.add(0).unwrap();
    for mut watch in [spawned, StreamWatch::of(Decoded(decoded), panics)] {
        let events = all(&mut watch);
        assert_eq!(events.len(), 1);
        assert!(events[0].status().unwrap().message().contains("reporter"), "{events:?}");
    }
    script.is_gone();
}

/// A stream of what was decoded, given by a test.
struct Decoded(watchcore_toolkit::FakeWatch<u8>);

impl futures_core::Stream for Decoded {
    type Item = Result<WatchEvent<u8>, DecodeError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Pin::new(&mut self.0).poll_next(context).map(|event| {
            event.map(|event| match event.object() {
                Some(0) => Err("a zero".into()),
                Some(9) => panic!("a nine"),
                _ => Ok(event),
            })
        })
    }
}

#[test]
fn aw_18_async_decoder_has_the_same_rules() {
    let (fake, decoded) = RaceFreeFakeSource::pair();
    let mut watch = StreamWatch::of(Decoded(decoded), InternalError);
    fake.add(1).unwrap();
    assert_eq!(watch.try_recv(), Poll::Ready(Some(WatchEvent::added(1))));
    assert!(watch.try_recv().is_pending());
    fake.add(0).unwrap();
    let status = Status::new(500, "unable to decode an event from the watch stream: a zero");
    assert_eq!(all(&mut watch), [WatchEvent::error(status)]);
    assert!(fake.is_stopped(), "the stream is dropped behind its error");

    let (fake, decoded) = RaceFreeFakeSource::pair();
    let mut watch = StreamWatch::of(Decoded(decoded), InternalError);
    fake.add(9).unwrap();
    assert_eq!(all(&mut watch).len(), 1);

    let (fake, decoded) = RaceFreeFakeSource::pair();
    let mut watch = StreamWatch::of(Decoded(decoded), InternalError);
    fake.add(1).unwrap();
    watch.stop();
    assert_eq!(all(&mut watch), []);
    assert!(fake.is_stopped());
}
