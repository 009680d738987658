//! JSON lines: one object a line, its members in a fixed order.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::exit::Failure;
use super::shown::{Numbers, Shown};
use watchcore::{Error, Phase, Resync};

/// One object under construction at the end of a buffer.
pub(crate) struct Line<'a> {
    buffer: &'a mut Vec<u8>,
    empty: bool,
}

impl<'a> Line<'a> {
    pub(crate) fn new(buffer: &'a mut Vec<u8>) -> Line<'a> {
        buffer.push(b'{');
        Line { buffer, empty: true }
    }

    /// One that says first whose it is.
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

    pub(crate) fn text(&mut self, name: &str, text: &str) -> &mut Self {
        self.name(name, "");
        // A string is always JSON and a Vec always takes it.
        let _ = serde_json::to_writer(&mut *self.buffer, text);
        self
    }

    /// Bytes: a string where they are UTF-8, else base64 under `name_base64`.
    pub(crate) fn bytes(&mut self, name: &str, bytes: &[u8]) -> &mut Self {
        if let Ok(text) = std::str::from_utf8(bytes) {
            return self.text(name, text);
        }
        self.name(name, "_base64");
        self.buffer.push(b'"');
        self.buffer.extend_from_slice(STANDARD.encode(bytes).as_bytes());
        self.buffer.push(b'"');
        self
    }

    pub(crate) fn number(&mut self, name: &str, number: impl std::fmt::Display) -> &mut Self {
        self.raw(name, &number.to_string())
    }

    pub(crate) fn truth(&mut self, name: &str) -> &mut Self {
        self.raw(name, "true")
    }

    pub(crate) fn text_or_null(&mut self, name: &str, text: Option<&str>) -> &mut Self {
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

    pub(crate) fn end(&mut self) {
        self.buffer.extend_from_slice(b"}\n");
    }
}

/// ADDED, MODIFIED, DELETED.
pub(crate) fn event(buffer: &mut Vec<u8>, subscriber: Option<u64>, event: &Shown<'_>) {
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

pub(crate) fn bookmark(buffer: &mut Vec<u8>, subscriber: Option<u64>, revision: u64, initial_state_end: bool) {
    let mut line = Line::of(buffer, subscriber);
    line.text("type", "BOOKMARK").number("revision", revision);
    if initial_state_end {
        line.truth("initial_state_end");
    }
    line.end();
}

/// The part of an epoch that people see: counted from 1 since the cache's birth.
pub(crate) fn epoch(epoch: u64) -> u64 {
    epoch & u64::from(u32::MAX)
}

pub(crate) fn resync(buffer: &mut Vec<u8>, subscriber: Option<u64>, resync: &Resync) {
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

pub(crate) fn lagged(buffer: &mut Vec<u8>, subscriber: Option<u64>, error: &Error) {
    Line::of(buffer, subscriber)
        .text("type", "LAGGED")
        .number("lost_from", error.lost_from())
        .number("lost_to", error.lost_to())
        .number("oldest", error.oldest())
        .number("current", error.current())
        .end();
}

pub(crate) fn error(buffer: &mut Vec<u8>, failure: &Failure) {
    let mut line = Line::of(buffer, failure.subscriber);
    line.text("type", "ERROR").text("code", failure.code.name()).text("message", &failure.message);
    if failure.oldest != 0 {
        line.number("oldest", failure.oldest);
    }
    if let Some(token) = &failure.token {
        line.text("continue", token);
    }
    line.end();
}

/// A line of `list` and `get`; `value` is absent where only keys are asked for.
pub(crate) fn key_value(buffer: &mut Vec<u8>, key: &[u8], value: Option<&[u8]>, numbers: Numbers) {
    let mut line = Line::new(buffer);
    line.bytes("key", key);
    if let Some(value) = value {
        line.bytes("value", value);
    }
    line.numbers(numbers).end();
}

/// The line of `count`.
pub(crate) fn counted(buffer: &mut Vec<u8>, revision: u64, count: u64) {
    Line::new(buffer).number("revision", revision).number("count", count).end();
}

/// The last line of `diff`.
pub(crate) fn end_of_diff(buffer: &mut Vec<u8>, from: u64, to: u64, count: u64) {
    Line::new(buffer).text("type", "END").number("from", from).number("to", to).number("count", count).end();
}

/// The last line of `list`.
pub(crate) fn end_of_list(buffer: &mut Vec<u8>, revision: u64, count: u64, token: Option<&str>) {
    let mut line = Line::new(buffer);
    line.text("type", "END").number("revision", revision).number("count", count);
    if let Some(token) = token {
        line.text("continue", token);
    }
    line.end();
}

#[cfg(test)]
mod tests {
    use super::*;
    use watchcore::{Code, ResyncReason};

    fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut buffer = Vec::new();
        write(&mut buffer);
        String::from_utf8(buffer).expect("JSON is UTF-8")
    }

    const NUMBERS: Numbers = Numbers { create_revision: 12, mod_revision: 13, version: 2, lease: 7 };

    fn shown() -> Shown<'static> {
        Shown {
            kind: "MODIFIED",
            revision: Some(13),
            synthetic: false,
            key: b"/a/x",
            value: Some(b"new"),
            prev_value: Some(b"old"),
            numbers: Some(NUMBERS),
        }
    }

    #[test]
    fn members_stand_in_order() {
        assert_eq!(
            written(|buffer| event(buffer, None, &shown())),
            "{\"type\":\"MODIFIED\",\"revision\":13,\"key\":\"/a/x\",\"value\":\"new\",\"prev_value\":\"old\",\
             \"create_revision\":12,\"mod_revision\":13,\"version\":2,\"lease\":7}\n"
        );
        let synthetic = Shown { synthetic: true, prev_value: None, ..shown() };
        assert_eq!(
            written(|buffer| event(buffer, None, &synthetic)),
            "{\"type\":\"MODIFIED\",\"revision\":13,\"synthetic\":true,\"key\":\"/a/x\",\"value\":\"new\",\
             \"create_revision\":12,\"mod_revision\":13,\"version\":2,\"lease\":7}\n"
        );
    }

    #[test]
    fn absent_and_empty_differ() {
        let deleted = Shown {
            kind: "DELETED",
            value: None,
            prev_value: Some(b""),
            numbers: Some(Numbers { lease: 0, ..NUMBERS }),
            ..shown()
        };
        assert_eq!(
            written(|buffer| event(buffer, None, &deleted)),
            "{\"type\":\"DELETED\",\"revision\":13,\"key\":\"/a/x\",\"prev_value\":\"\",\
             \"create_revision\":12,\"mod_revision\":13,\"version\":2}\n"
        );
        let unknown = Shown { prev_value: None, numbers: None, ..deleted };
        assert_eq!(
            written(|buffer| event(buffer, None, &unknown)),
            "{\"type\":\"DELETED\",\"revision\":13,\"key\":\"/a/x\"}\n"
        );
        let empty = Shown { kind: "MODIFIED", value: Some(b""), prev_value: None, numbers: None, ..shown() };
        assert_eq!(
            written(|buffer| event(buffer, None, &empty)),
            "{\"type\":\"MODIFIED\",\"revision\":13,\"key\":\"/a/x\",\"value\":\"\"}\n"
        );
    }

    #[test]
    fn strings_are_escaped_and_bytes_are_base64() {
        let odd = Shown {
            key: b"a\"\\\n\x01\xc3\xa9",
            value: Some(b"\xff\x00"),
            prev_value: Some(b"\xfe"),
            numbers: None,
            ..shown()
        };
        assert_eq!(
            written(|buffer| event(buffer, None, &odd)),
            "{\"type\":\"MODIFIED\",\"revision\":13,\"key\":\"a\\\"\\\\\\n\\u0001\u{e9}\",\
             \"value_base64\":\"/wA=\",\"prev_value_base64\":\"/g==\"}\n"
        );
        let key = Shown { key: b"\xff", value: None, prev_value: None, numbers: None, ..shown() };
        assert_eq!(
            written(|buffer| event(buffer, None, &key)),
            "{\"type\":\"MODIFIED\",\"revision\":13,\"key_base64\":\"/w==\"}\n"
        );
    }

    #[test]
    fn marks() {
        assert_eq!(written(|buffer| bookmark(buffer, None, 20, false)), "{\"type\":\"BOOKMARK\",\"revision\":20}\n");
        assert_eq!(
            written(|buffer| bookmark(buffer, None, 12, true)),
            "{\"type\":\"BOOKMARK\",\"revision\":12,\"initial_state_end\":true}\n"
        );
        let begin =
            Resync { phase: Phase::Begin, reason: ResyncReason::Compacted, epoch: (77 << 32) | 2, from: 20, to: 57 };
        assert_eq!(
            written(|buffer| resync(buffer, None, &begin)),
            "{\"type\":\"RESYNC\",\"phase\":\"begin\",\"reason\":\"Compacted\",\"from\":20,\"to\":57,\"epoch\":2}\n"
        );
        let loss = Error::new(Code::Lagged, "lost").with_lost(21, 40).with_oldest(41).with_current(99);
        assert_eq!(
            written(|buffer| lagged(buffer, None, &loss)),
            "{\"type\":\"LAGGED\",\"lost_from\":21,\"lost_to\":40,\"oldest\":41,\"current\":99}\n"
        );
    }

    #[test]
    fn whose_it_is_stands_first() {
        let begin = Resync { phase: Phase::Begin, reason: ResyncReason::Lagged, epoch: 1, from: 1, to: 2 };
        let mut failure = Failure::new(Code::Lagged, "lost");
        failure.subscriber = Some(3);
        for line in [
            written(|buffer| event(buffer, Some(3), &shown())),
            written(|buffer| bookmark(buffer, Some(3), 1, true)),
            written(|buffer| resync(buffer, Some(3), &begin)),
            written(|buffer| lagged(buffer, Some(3), &Error::new(Code::Lagged, "lost"))),
            written(|buffer| error(buffer, &failure)),
        ] {
            assert!(line.starts_with("{\"subscriber\":3,\"type\":\""), "{line}");
        }
    }

    #[test]
    fn errors_name_the_oldest_where_it_is_known() {
        let mut failure = Failure::new(Code::Compacted, "gone");
        failure.oldest = 41;
        assert_eq!(
            written(|buffer| error(buffer, &failure)),
            "{\"type\":\"ERROR\",\"code\":\"COMPACTED\",\"message\":\"gone\",\"oldest\":41}\n"
        );
        failure.token = Some("abc".to_owned());
        assert_eq!(
            written(|buffer| error(buffer, &failure)),
            "{\"type\":\"ERROR\",\"code\":\"COMPACTED\",\"message\":\"gone\",\"oldest\":41,\"continue\":\"abc\"}\n"
        );
        (failure.oldest, failure.token) = (0, None);
        assert_eq!(
            written(|buffer| error(buffer, &failure)),
            "{\"type\":\"ERROR\",\"code\":\"COMPACTED\",\"message\":\"gone\"}\n"
        );
    }

    #[test]
    fn lines_of_list() {
        assert_eq!(
            written(|buffer| key_value(buffer, b"/a", Some(b""), Numbers { lease: 0, ..NUMBERS })),
            "{\"key\":\"/a\",\"value\":\"\",\"create_revision\":12,\"mod_revision\":13,\"version\":2}\n"
        );
        assert_eq!(
            written(|buffer| key_value(buffer, b"/a", None, NUMBERS)),
            "{\"key\":\"/a\",\"create_revision\":12,\"mod_revision\":13,\"version\":2,\"lease\":7}\n"
        );
        assert_eq!(written(|buffer| counted(buffer, 99, 0)), "{\"revision\":99,\"count\":0}\n");
        assert_eq!(
            written(|buffer| end_of_diff(buffer, 7, 9, 3)),
            "{\"type\":\"END\",\"from\":7,\"to\":9,\"count\":3}\n"
        );
        let unknown = Shown { kind: "DELETED", revision: None, value: None, numbers: None, ..shown() };
        assert_eq!(
            written(|buffer| event(buffer, None, &unknown)),
            "{\"type\":\"DELETED\",\"key\":\"/a/x\",\"prev_value\":\"old\"}\n"
        );
        assert_eq!(
            written(|buffer| end_of_list(buffer, 99, 3, None)),
            "{\"type\":\"END\",\"revision\":99,\"count\":3}\n"
        );
        assert_eq!(
            written(|buffer| end_of_list(buffer, 99, 3, Some("abc"))),
            "{\"type\":\"END\",\"revision\":99,\"count\":3,\"continue\":\"abc\"}\n"
        );
    }

    #[test]
    fn null_where_a_member_is_always_there() {
        assert_eq!(
            written(|buffer| Line::new(buffer).text_or_null("a", None).text_or_null("b", Some("x")).end()),
            "{\"a\":null,\"b\":\"x\"}\n"
        );
    }
}
