//! Keys and texts as messages quote them.

#![forbid(unsafe_code)]

use std::fmt;

/// A key for a message: its beginning, where it is long.
pub(crate) fn show(key: &[u8]) -> String {
    let short = String::from_utf8_lossy(&key[..key.len().min(80)]).into_owned();
    if key.len() > 80 { format!("{short:?}…") } else { format!("{short:?}") }
}

/// A key as `Debug` shows it: as [`show`].
pub(crate) struct DebugBytes<'a>(pub(crate) &'a [u8]);

impl fmt::Debug for DebugBytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&show(self.0))
    }
}

/// A value as `Debug` shows it: its length alone, for it may be long, or a secret.
pub(crate) struct Length<'a>(pub(crate) Option<&'a [u8]>);

impl fmt::Debug for Length<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(value) => write!(f, "{} bytes", value.len()),
            None => f.write_str("none"),
        }
    }
}

/// The text around a position, about 80 bytes of it.
pub(super) struct Around<'a>(pub(super) &'a [u8], pub(super) usize);

impl fmt::Display for Around<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Around(text, at) = *self;
        let (from, to) =
            if text.len() <= 80 { (0, text.len()) } else { (at.saturating_sub(40), (at + 40).min(text.len())) };
        let (from, to) = (boundary(text, from), boundary(text, to));
        if from > 0 {
            f.write_str("...")?;
        }
        printable(f, &text[from..to])?;
        if to < text.len() {
            f.write_str("...")?;
        }
        Ok(())
    }
}

/// The greatest place at or before `at` that splits no character.
pub(crate) fn boundary(text: &[u8], at: usize) -> usize {
    let back = (0..4usize).find(|back| {
        at.checked_sub(*back).is_none_or(|at| text.get(at).is_none_or(|b| *b & 0b1100_0000 != 0b1000_0000))
    });
    at.saturating_sub(back.unwrap_or(0))
}

pub(crate) fn printable(f: &mut fmt::Formatter<'_>, text: &[u8]) -> fmt::Result {
    for c in String::from_utf8_lossy(text).chars() {
        match c {
            '"' | '\'' | '\\' => write!(f, "{c}")?,
            c => write!(f, "{}", c.escape_debug())?,
        }
    }
    Ok(())
}
