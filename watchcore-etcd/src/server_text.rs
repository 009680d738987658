//! Cleans text from a server for logs, errors and terminals: one short line without control characters.
//!
//! A server, or an attacker in its place, chooses the reasons of its refusals, its version and the names of keys.
//! Raw, such a text moves the cursor of a terminal, forges log lines, or fills a disk. [`super::failure::Failure`]
//! cleans every text that it is made from, so no error of a call can skip the cleaning; [`version`] and [`key`] are
//! for other texts.

use std::fmt::Write as _;

/// The longest text of a failure, in bytes: our own longest text has less than half of it.
const LONGEST_TEXT: usize = 1024;
/// The longest version, and the longest key inside a sentence.
const LONGEST_NAME: usize = 128;

/// Cleans the text of a failure. A clean text is unchanged.
pub(super) fn clean(text: &str) -> String {
    bounded(text, LONGEST_TEXT)
}

/// Cleans the version that a server reports.
pub(super) fn version(text: &str) -> String {
    bounded(text, LONGEST_NAME)
}

/// Quotes a key for a sentence; only the beginning of a long one.
pub(super) fn key(key: &[u8]) -> String {
    let shown = &key[..key.len().min(LONGEST_NAME)];
    let rest = if shown.len() < key.len() { format!("… ({} bytes)", key.len()) } else { String::new() };
    format!("\"{}\"{rest}", shown.escape_ascii())
}

/// Escapes control characters, and characters that reverse the direction of a line or end it. Backslashes stay, so
/// that cleaning twice changes nothing.
fn bounded(text: &str, most: usize) -> String {
    let mut clean = String::with_capacity(text.len().min(most));
    for character in text.chars() {
        if clean.len() >= most {
            let _ = write!(clean, "… ({} bytes)", text.len());
            break;
        }
        match character {
            '\n' | '\r' | '\t' => clean.extend(character.escape_default()),
            '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
                clean.extend(character.escape_unicode());
            }
            control if control.is_control() => clean.extend(control.escape_unicode()),
            other => clean.push(other),
        }
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_and_log_stay_whole() {
        let forged = "no\u{1b}[2J\r\n2026-01-01 ERROR forged\u{7}\u{9b}31m\u{202e}x\u{2028}y\0";
        let shown = clean(forged);
        assert!(!shown.chars().any(char::is_control), "{shown:?}");
        assert!(!shown.contains(['\u{202e}', '\u{2028}']), "{shown:?}");
        assert!(shown.contains("\\r\\n2026-01-01 ERROR forged"), "it is still read: {shown}");
        assert_eq!(clean(&shown), shown, "cleaning twice changes nothing");
        assert_eq!(clean("etcdserver: Größe \\ \"x\""), "etcdserver: Größe \\ \"x\"");
    }

    #[test]
    fn long_texts_are_cut() {
        let shown = clean(&"é\n".repeat(10_000));
        assert!(shown.len() < LONGEST_TEXT + 32 && shown.ends_with("… (30000 bytes)"), "{}", shown.len());
        assert!(version(&"3".repeat(20_000)).len() < LONGEST_NAME + 32);
        assert_eq!(key(b"/a\x1b"), "\"/a\\x1b\"");
        assert!(key(&[0xff; 100_000]).len() < LONGEST_NAME * 4 + 32);
    }
}
