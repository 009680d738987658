//! JSON lines: one object per line, with members in a fixed order.
//!
//! The lines of key-values and events are defined once, in watchcore-http, whose plain API sends the same ones. This
//! file has the lines that only the command line prints.

use super::exit::Failure;
pub(crate) use watchcore_http::lines::{Line, LineEvent, Numbers, bookmark, epoch, event, key_value, lagged, resync};

pub(crate) fn error(buffer: &mut Vec<u8>, failure: &Failure) {
    let Failure { code, message, oldest, token, subscriber } = failure;
    watchcore_http::lines::error(buffer, *subscriber, *code, message, *oldest, token.as_deref());
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
    use watchcore::{Code, Error, Phase, Resync, ResyncReason};

    fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut buffer = Vec::new();
        write(&mut buffer);
        String::from_utf8(buffer).expect("JSON is UTF-8")
    }

    const NUMBERS: Numbers = Numbers { create_revision: 12, mod_revision: 13, version: 2, lease: 7 };

    fn shown() -> LineEvent<'static> {
        LineEvent {
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
        let synthetic = LineEvent { synthetic: true, prev_value: None, ..shown() };
        assert_eq!(
            written(|buffer| event(buffer, None, &synthetic)),
            "{\"type\":\"MODIFIED\",\"revision\":13,\"synthetic\":true,\"key\":\"/a/x\",\"value\":\"new\",\
             \"create_revision\":12,\"mod_revision\":13,\"version\":2,\"lease\":7}\n"
        );
    }

    #[test]
    fn absent_and_empty_differ() {
        let deleted = LineEvent {
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
        let unknown = LineEvent { prev_value: None, numbers: None, ..deleted };
        assert_eq!(
            written(|buffer| event(buffer, None, &unknown)),
            "{\"type\":\"DELETED\",\"revision\":13,\"key\":\"/a/x\"}\n"
        );
        let empty = LineEvent { kind: "MODIFIED", value: Some(b""), prev_value: None, numbers: None, ..shown() };
        assert_eq!(
            written(|buffer| event(buffer, None, &empty)),
            "{\"type\":\"MODIFIED\",\"revision\":13,\"key\":\"/a/x\",\"value\":\"\"}\n"
        );
    }

    #[test]
    fn strings_are_escaped_and_bytes_are_base64() {
        let odd = LineEvent {
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
        let key = LineEvent { key: b"\xff", value: None, prev_value: None, numbers: None, ..shown() };
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
        let unknown = LineEvent { kind: "DELETED", revision: None, value: None, numbers: None, ..shown() };
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
