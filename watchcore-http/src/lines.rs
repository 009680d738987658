//! Key-values and events as JSON lines: one object per line, its members in a fixed order.
//!
//! The command line prints these lines, and the server's `/v1/keys` API sends them, so the same client code reads both.
//! The module is in this crate because the command line depends on it. No other program should call it, so it is hidden
//! and promises nothing.
//!
//! A [`Line`] writes to the end of a buffer that the caller owns and reuses. Bytes that are not UTF-8 are written in
//! base64 (standard alphabet, padded) under the member's name with the suffix `_base64`; absent values are omitted.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::io::Write as _;
use watchcore::{Code, Error, Event, KeyValue, Kind, Phase, Resync};

/// Revisions, version and lease of a key-value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers {
    pub create_revision: u64,
    pub mod_revision: u64,
    pub version: u64,
    pub lease: i64,
}

impl Numbers {
    pub fn of(kv: &KeyValue) -> Numbers {
        Numbers {
            create_revision: kv.create_revision(),
            mod_revision: kv.mod_revision(),
            version: kv.version(),
            lease: kv.lease(),
        }
    }
}

/// An event of type ADDED, MODIFIED or DELETED.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineEvent<'a> {
    pub kind: &'static str,
    /// Absent in a DELETED from a resync, where the revision of the deletion is unknown.
    pub revision: Option<u64>,
    pub synthetic: bool,
    pub key: &'a [u8],
    /// Always absent in a DELETED.
    pub value: Option<&'a [u8]>,
    pub prev_value: Option<&'a [u8]>,
    /// The numbers of the value shown; absent in a DELETED whose last value is not known.
    pub numbers: Option<Numbers>,
}

impl<'a> LineEvent<'a> {
    /// Returns `None` for bookmarks and resync marks, which change no key.
    pub fn of(event: &'a Event) -> Option<LineEvent<'a>> {
        let deleted = match event.kind() {
            Kind::Added | Kind::Modified | Kind::Put => false,
            Kind::Deleted | Kind::Delete => true,
            _ => return None,
        };
        let numbers = Numbers {
            create_revision: event.create_revision(),
            mod_revision: event.mod_revision(),
            version: event.version(),
            lease: event.lease(),
        };
        Some(LineEvent {
            kind: event.kind().name(),
            revision: Some(event.revision()),
            synthetic: event.is_synthetic(),
            key: event.key(),
            value: if deleted { None } else { event.value() },
            prev_value: event.prev_value(),
            numbers: (!deleted || event.prev().is_some()).then_some(numbers),
        })
    }
}

/// A JSON object under construction at the end of a buffer.
pub struct Line<'a> {
    buffer: &'a mut Vec<u8>,
    empty: bool,
}

impl<'a> Line<'a> {
    pub fn new(buffer: &'a mut Vec<u8>) -> Line<'a> {
        buffer.push(b'{');
        Line { buffer, empty: true }
    }

    /// Begins a line whose first member is the subscriber, if there is one.
    fn of(buffer: &'a mut Vec<u8>, subscriber: Option<u64>) -> Line<'a> {
        let mut line = Line::new(buffer);
        if let Some(subscriber) = subscriber {
            line.number("subscriber", subscriber);
        }
        line
    }

    fn name(&mut self, name: &str, suffix: &str) {
        if !self.empty {
            self.buffer.push(b',');
        }
        self.empty = false;
        self.buffer.push(b'"');
        self.buffer.extend_from_slice(name.as_bytes());
        self.buffer.extend_from_slice(suffix.as_bytes());
        self.buffer.extend_from_slice(b"\":");
    }

    pub fn text(&mut self, name: &str, text: &str) -> &mut Self {
        self.name(name, "");
        // Neither can fail: a string is always valid JSON, and writes to a Vec succeed.
        let _ = serde_json::to_writer(&mut *self.buffer, text);
        self
    }

    /// Writes bytes as a string if they are UTF-8, otherwise in base64 as `NAME_base64`.
    pub fn bytes(&mut self, name: &str, bytes: &[u8]) -> &mut Self {
        if let Ok(text) = std::str::from_utf8(bytes) {
            return self.text(name, text);
        }
        self.name(name, "_base64");
        self.buffer.push(b'"');
        self.buffer.extend_from_slice(STANDARD.encode(bytes).as_bytes());
        self.buffer.push(b'"');
        self
    }

    pub fn number(&mut self, name: &str, number: impl std::fmt::Display) -> &mut Self {
        self.name(name, "");
        // Writes to a Vec succeed.
        let _ = write!(self.buffer, "{number}");
        self
    }

    pub fn truth(&mut self, name: &str) -> &mut Self {
        self.raw(name, "true")
    }

    pub fn text_or_null(&mut self, name: &str, text: Option<&str>) -> &mut Self {
        match text {
            Some(text) => self.text(name, text),
            None => self.raw(name, "null"),
        }
    }

    fn raw(&mut self, name: &str, json: &str) -> &mut Self {
        self.name(name, "");
        self.buffer.extend_from_slice(json.as_bytes());
        self
    }

    fn numbers(&mut self, numbers: Numbers) -> &mut Self {
        self.number("create_revision", numbers.create_revision)
            .number("mod_revision", numbers.mod_revision)
            .number("version", numbers.version);
        if numbers.lease != 0 {
            self.number("lease", numbers.lease);
        }
        self
    }

    pub fn end(&mut self) {
        self.buffer.extend_from_slice(b"}\n");
    }
}

/// Appends a line of type ADDED, MODIFIED or DELETED.
pub fn event(buffer: &mut Vec<u8>, subscriber: Option<u64>, event: &LineEvent<'_>) {
    let mut line = Line::of(buffer, subscriber);
    line.text("type", event.kind);
    if let Some(revision) = event.revision {
        line.number("revision", revision);
    }
    if event.synthetic {
        line.truth("synthetic");
    }
    line.bytes("key", event.key);
    if let Some(value) = event.value {
        line.bytes("value", value);
    }
    if let Some(value) = event.prev_value {
        line.bytes("prev_value", value);
    }
    if let Some(numbers) = event.numbers {
        line.numbers(numbers);
    }
    line.end();
}

/// Appends a line of type BOOKMARK.
pub fn bookmark(buffer: &mut Vec<u8>, subscriber: Option<u64>, revision: u64, initial_state_end: bool) {
    let mut line = Line::of(buffer, subscriber);
    line.text("type", "BOOKMARK").number("revision", revision);
    if initial_state_end {
        line.truth("initial_state_end");
    }
    line.end();
}

/// Returns the part of an epoch that is shown to people: the count since the cache was created, from 1.
pub fn epoch(epoch: u64) -> u64 {
    epoch & u64::from(u32::MAX)
}

/// Appends a line of type RESYNC: the begin or the end of a difference.
pub fn resync(buffer: &mut Vec<u8>, subscriber: Option<u64>, resync: &Resync) {
    let phase = match resync.phase {
        Phase::Begin => "begin",
        Phase::End => "end",
    };
    Line::of(buffer, subscriber)
        .text("type", "RESYNC")
        .text("phase", phase)
        .text("reason", resync.reason.name())
        .number("from", resync.from)
        .number("to", resync.to)
        .number("epoch", epoch(resync.epoch))
        .end();
}

/// Appends a line of type LAGGED.
pub fn lagged(buffer: &mut Vec<u8>, subscriber: Option<u64>, error: &Error) {
    Line::of(buffer, subscriber)
        .text("type", "LAGGED")
        .number("lost_from", error.lost_from())
        .number("lost_to", error.lost_to())
        .number("oldest", error.oldest())
        .number("current", error.current())
        .end();
}

/// Appends a line of type ERROR; an `oldest` of 0 means unknown, and is omitted.
pub fn error(
    buffer: &mut Vec<u8>,
    subscriber: Option<u64>,
    code: Code,
    message: &str,
    oldest: u64,
    continue_token: Option<&str>,
) {
    let mut line = Line::of(buffer, subscriber);
    line.text("type", "ERROR").text("code", code.name()).text("message", message);
    if oldest != 0 {
        line.number("oldest", oldest);
    }
    if let Some(token) = continue_token {
        line.text("continue", token);
    }
    line.end();
}

/// Appends a key-value; `value` is absent if only keys were requested.
pub fn key_value(buffer: &mut Vec<u8>, key: &[u8], value: Option<&[u8]>, numbers: Numbers) {
    let mut line = Line::new(buffer);
    line.bytes("key", key);
    if let Some(value) = value {
        line.bytes("value", value);
    }
    line.numbers(numbers).end();
}
