//! The output for people: `REVISION TYPE KEY VALUE`, bytes escaped as `\xNN`.

use super::json::LineEvent;
use super::json::epoch;
use std::io::Write as _;
use watchcore::{Error, Phase, Resync};

/// Appends `bytes`: printable UTF-8 as it is, all else (and the backslash) as `\xNN`.
pub(crate) fn escape(buffer: &mut Vec<u8>, bytes: &[u8]) {
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            let mut room = [0; 4];
            let encoded = character.encode_utf8(&mut room).as_bytes();
            if character.is_control() || character == '\\' {
                hexadecimal(buffer, encoded);
            } else {
                buffer.extend_from_slice(encoded);
            }
        }
        hexadecimal(buffer, chunk.invalid());
    }
}

/// Returns `bytes` escaped, for use in a sentence.
pub(crate) fn escaped(bytes: &[u8]) -> String {
    let mut text = Vec::new();
    escape(&mut text, bytes);
    String::from_utf8_lossy(&text).into_owned()
}

/// The most bytes of a value that are shown on a terminal.
const GLANCE: usize = 256;

/// Appends a value; on a terminal only the beginning of a long one, and its length.
fn value(buffer: &mut Vec<u8>, value: &[u8], whole: bool) {
    buffer.push(b' ');
    if whole || value.len() <= GLANCE {
        return escape(buffer, value);
    }
    // The cut is between two characters.
    let most = (GLANCE - 3..=GLANCE).rev().find(|at| value[*at] & 0xc0 != 0x80).unwrap_or(GLANCE);
    escape(buffer, &value[..most]);
    let _ = write!(buffer, "\u{2026} ({} bytes)", value.len());
}

fn hexadecimal(buffer: &mut Vec<u8>, bytes: &[u8]) {
    for byte in bytes {
        let _ = write!(buffer, "\\x{byte:02x}");
    }
}

/// Appends an event. `whole`: a long value is shown in full.
pub(crate) fn event(buffer: &mut Vec<u8>, event: &LineEvent<'_>, whole: bool) {
    let _ = match event.revision {
        Some(revision) => write!(buffer, "{revision} {} ", event.kind),
        None => write!(buffer, "- {} ", event.kind),
    };
    escape(buffer, event.key);
    if let Some(bytes) = event.value {
        value(buffer, bytes, whole);
    }
    if event.synthetic {
        buffer.extend_from_slice(b" (resync)");
    }
    buffer.push(b'\n');
}

pub(crate) fn bookmark(buffer: &mut Vec<u8>, revision: u64, initial_state_end: bool) {
    let note = if initial_state_end { " end of the initial state" } else { "" };
    let _ = writeln!(buffer, "{revision} BOOKMARK{note}");
}

pub(crate) fn resync(buffer: &mut Vec<u8>, resync: &Resync) {
    let Resync { from, to, .. } = resync;
    let phase = match resync.phase {
        Phase::Begin => "begins",
        Phase::End => "ends",
    };
    let reason = resync.reason.name();
    let epoch = epoch(resync.epoch);
    let _ = writeln!(buffer, "{to} RESYNC {phase}: {reason}, from {from} to {to}, epoch {epoch}");
}

pub(crate) fn lagged(buffer: &mut Vec<u8>, error: &Error) {
    let (lost_from, lost_to) = (error.lost_from(), error.lost_to());
    let (oldest, current) = (error.oldest(), error.current());
    let _ = writeln!(
        buffer,
        "{current} LAGGED lost revisions {lost_from} to {lost_to}; the log holds {oldest} to {current}"
    );
}

pub(crate) fn key_value(buffer: &mut Vec<u8>, revision: u64, key: &[u8], bytes: Option<&[u8]>, whole: bool) {
    let _ = write!(buffer, "{revision} ");
    escape(buffer, key);
    if let Some(bytes) = bytes {
        value(buffer, bytes, whole);
    }
    buffer.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use watchcore::Code;

    #[test]
    fn bytes_are_escaped_and_can_be_told_apart() {
        assert_eq!(escaped(b"/a b/c"), "/a b/c");
        assert_eq!(escaped("caf\u{e9}".as_bytes()), "caf\u{e9}");
        assert_eq!(escaped(b"a\n\x00\x7f"), "a\\x0a\\x00\\x7f");
        assert_eq!(escaped(b"\xff\xc3(\xe2\x82"), "\\xff\\xc3(\\xe2\\x82");
        assert_eq!(escaped(b"\\x41"), "\\x5cx41");
        assert_eq!(escaped("\u{85}".as_bytes()), "\\xc2\\x85");
        assert_eq!(escaped(b""), "");
    }

    #[test]
    fn a_terminal_gets_the_beginning_of_a_long_value() {
        let shown = |bytes: &[u8], whole| {
            let mut buffer = Vec::new();
            key_value(&mut buffer, 7, b"/k", Some(bytes), whole);
            String::from_utf8(buffer).expect("UTF-8")
        };
        let long = "x".repeat(300);
        assert_eq!(shown(long.as_bytes(), true), format!("7 /k {long}\n"));
        assert_eq!(shown(long.as_bytes(), false), format!("7 /k {}\u{2026} (300 bytes)\n", &long[..256]));
        assert_eq!(shown(&long.as_bytes()[..256], false), format!("7 /k {}\n", &long[..256]));
        let split = format!("{}\u{20ac}{long}", &long[..255]);
        assert_eq!(shown(split.as_bytes(), false), format!("7 /k {}\u{2026} (558 bytes)\n", &long[..255]));
        let binary = [0xbf; 300];
        assert!(shown(&binary, false).ends_with("\\xbf\u{2026} (300 bytes)\n"));
    }

    #[test]
    fn a_line_of_each_kind() {
        let mut buffer = Vec::new();
        let shown = LineEvent {
            kind: "ADDED",
            revision: Some(5),
            synthetic: true,
            key: b"/k",
            value: Some(b"v\n"),
            prev_value: None,
            numbers: None,
        };
        event(&mut buffer, &shown, true);
        event(&mut buffer, &LineEvent { kind: "DELETED", synthetic: false, value: None, ..shown }, true);
        event(
            &mut buffer,
            &LineEvent { kind: "DELETED", revision: None, synthetic: false, value: None, ..shown },
            true,
        );
        bookmark(&mut buffer, 9, true);
        let loss = Error::new(Code::Lagged, "lost").with_lost(1, 2).with_oldest(3).with_current(4);
        lagged(&mut buffer, &loss);
        let text = String::from_utf8(buffer).expect("UTF-8");
        assert_eq!(
            text,
            "5 ADDED /k v\\x0a (resync)\n5 DELETED /k\n- DELETED /k\n9 BOOKMARK end of the initial state\n\
             4 LAGGED lost revisions 1 to 2; the log holds 3 to 4\n"
        );
    }
}
