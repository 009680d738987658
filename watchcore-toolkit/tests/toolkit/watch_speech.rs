//! The decoder of the rows about watches: a script says what it decodes.

use crate::watch_text::{Text, event};
use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Waker};
use watchcore_toolkit::{DecodeError, Decoder, WatchEvent};

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
pub(crate) struct Speech {
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
    pub(crate) fn add(&self, words: &[&str]) {
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

    pub(crate) fn is_idle(&self) -> bool {
        let state = self.state.lock().unwrap();
        state.waits && !state.closed
    }

    pub(crate) fn is_gone(&self) -> bool {
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
pub(crate) struct Speaker(pub(crate) Arc<Speech>);

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
