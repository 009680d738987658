//! A walk over a JSON text that checks it (RFC 8259) and gives out places, not values.
//!
//! Nested deeper than [`MAX_JSON_DEPTH`], a text is refused, as the core refuses it for its attributes: what is served has
//! the labels and fields that select it.

use std::ops::Range;
use watchcore::MAX_JSON_DEPTH;

/// A walk over one text. Each method takes one thing at the place where it stands, after white space; `None`: it is not
/// there, and the text is to be given up.
///
/// Strings are checked for their escapes, not for UTF-8: who begins a walk does that once for the whole text.
pub(crate) struct Scan<'t> {
    text: &'t [u8],
    at: usize,
    depth: usize,
    is_too_deep: bool,
}

impl<'t> Scan<'t> {
    /// Before the first byte.
    pub(crate) fn new(text: &'t [u8]) -> Scan<'t> {
        Scan { text, at: 0, depth: 0, is_too_deep: false }
    }

    /// The next byte that is no white space.
    #[inline]
    fn peek(&mut self) -> Option<u8> {
        loop {
            match self.text.get(self.at)? {
                b' ' | b'\n' | b'\r' | b'\t' => self.at += 1,
                byte => return Some(*byte),
            }
        }
    }

    #[inline]
    fn take(&mut self, byte: u8) -> Option<()> {
        (self.peek()? == byte).then(|| self.at += 1)
    }

    /// Whether there is nothing left but white space.
    pub(crate) fn ends(&mut self) -> bool {
        self.peek().is_none()
    }

    /// Whether the text was given up because it is nested more than [`MAX_JSON_DEPTH`] deep.
    pub(crate) fn is_too_deep(&self) -> bool {
        self.is_too_deep
    }

    /// Where it stands.
    pub(crate) fn place(&self) -> usize {
        self.at
    }

    /// What the next value begins with: `{`, `[`, `"`, or the first byte of a number or word.
    pub(crate) fn starts_with(&mut self, byte: u8) -> bool {
        self.peek() == Some(byte)
    }

    /// A string; where it lies, with its quotes.
    #[inline]
    pub(crate) fn string(&mut self) -> Option<Range<usize>> {
        self.take(b'"')?;
        let from = self.at - 1;
        loop {
            let rest = &self.text[self.at..];
            let end = memchr::memchr2(b'"', b'\\', rest)?;
            if rest[..end].iter().any(|byte| *byte < 0x20) {
                return None;
            }
            self.at += end + 1;
            if rest[end] == b'"' {
                return Some(from..self.at);
            }
            match self.text.get(self.at)? {
                b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => self.at += 1,
                b'u' => {
                    let digits = self.text.get(self.at + 1..self.at + 5)?;
                    if !digits.iter().all(u8::is_ascii_hexdigit) {
                        return None;
                    }
                    self.at += 5;
                }
                _ => return None,
            }
        }
    }

    /// Any value; where it lies.
    pub(crate) fn value(&mut self) -> Option<Range<usize>> {
        let first = self.peek()?;
        let from = self.at;
        match first {
            b'"' => return self.string(),
            b'{' => self.members(|scan, _| scan.value().map(|_| ()))?,
            b'[' => self.elements(|scan| scan.value().map(|_| ()))?,
            b't' => self.word(b"true")?,
            b'f' => self.word(b"false")?,
            b'n' => self.word(b"null")?,
            _ => self.number()?,
        }
        Some(from..self.at)
    }

    /// Any value of a text that was checked before, without checking it again; where it lies. Of a text that was not, it
    /// takes something, or nothing, and does not fail.
    pub(crate) fn skip(&mut self) -> Option<Range<usize>> {
        let first = self.peek()?;
        let from = self.at;
        match first {
            b'"' => self.skip_string()?,
            b'{' | b'[' => {
                let mut open = 0usize;
                loop {
                    match self.text.get(self.at)? {
                        b'"' => {
                            self.skip_string()?;
                            continue;
                        }
                        b'{' | b'[' => open += 1,
                        b'}' | b']' => open -= 1,
                        _ => {}
                    }
                    self.at += 1;
                    if open == 0 {
                        break;
                    }
                }
            }
            _ => {
                let ends = |byte: &u8| matches!(byte, b',' | b'}' | b']' | b' ' | b'\n' | b'\r' | b'\t');
                self.at += self.text[from..].iter().position(ends).unwrap_or(self.text.len() - from);
            }
        }
        Some(from..self.at)
    }

    /// Behind the string that begins here.
    #[inline]
    fn skip_string(&mut self) -> Option<()> {
        self.at += 1;
        loop {
            let rest = &self.text[self.at..];
            let end = memchr::memchr2(b'"', b'\\', rest)?;
            if rest[end] == b'"' {
                self.at += end + 1;
                return Some(());
            }
            // What is escaped is one byte, or hexadecimal digits, none of which ends the string.
            self.at = (self.at + end + 2).min(self.text.len());
        }
    }

    /// An object: `member` gets each name, with its quotes, and takes the value behind it.
    pub(crate) fn members(&mut self, mut member: impl FnMut(&mut Self, Range<usize>) -> Option<()>) -> Option<()> {
        self.enter(b'{')?;
        if self.peek()? != b'}' {
            loop {
                let name = self.string()?;
                self.take(b':')?;
                member(self, name)?;
                if self.peek()? == b'}' {
                    break;
                }
                self.take(b',')?;
            }
        }
        self.leave()
    }

    /// An array: `element` takes each value.
    pub(crate) fn elements(&mut self, mut element: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        self.enter(b'[')?;
        if self.peek()? != b']' {
            loop {
                element(self)?;
                if self.peek()? == b']' {
                    break;
                }
                self.take(b',')?;
            }
        }
        self.leave()
    }

    fn enter(&mut self, bracket: u8) -> Option<()> {
        self.take(bracket)?;
        self.depth += 1;
        self.is_too_deep = self.depth > MAX_JSON_DEPTH;
        (!self.is_too_deep).then_some(())
    }

    /// Behind the closing bracket, which was looked at.
    fn leave(&mut self) -> Option<()> {
        self.at += 1;
        self.depth -= 1;
        Some(())
    }

    fn word(&mut self, word: &[u8]) -> Option<()> {
        self.text[self.at..].starts_with(word).then(|| self.at += word.len())
    }

    fn digits(&mut self) -> usize {
        let count = self.text[self.at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        self.at += count;
        count
    }

    fn next_is(&self, byte: u8) -> bool {
        self.text.get(self.at) == Some(&byte)
    }

    fn number(&mut self) -> Option<()> {
        if self.next_is(b'-') {
            self.at += 1;
        }
        let zero = self.next_is(b'0');
        let whole = self.digits();
        if whole == 0 || (zero && whole > 1) {
            return None;
        }
        if self.next_is(b'.') {
            self.at += 1;
            if self.digits() == 0 {
                return None;
            }
        }
        if self.next_is(b'e') || self.next_is(b'E') {
            self.at += 1;
            if self.next_is(b'+') || self.next_is(b'-') {
                self.at += 1;
            }
            if self.digits() == 0 {
                return None;
            }
        }
        Some(())
    }

    /// Whether a value of the text is this string when its escapes are resolved.
    pub(crate) fn is(&self, value: &Range<usize>, expected: &str) -> bool {
        let [b'"', inner @ .., b'"'] = &self.text[value.clone()] else { return false };
        // An escape is longer than what it stands for.
        let is_longer = inner.len() > expected.len();
        if !is_longer && inner != expected.as_bytes() {
            return false;
        }
        if memchr::memchr(b'\\', inner).is_none() {
            return !is_longer;
        }
        serde_json::from_slice::<String>(&self.text[value.clone()]).is_ok_and(|resolved| resolved == expected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// What is checked and what is skipped end at the same place; of anything else skipping takes no more than there is.
        #[test]
        fn skipping_ends_where_checking_ends(text in r#"[ ]?[\[\]{}",:0-9a\\tru e-]{0,24}"#) {
            for text in [text.clone(), format!("[{text}] ,")] {
                let (mut checked, mut skipped) = (Scan::new(text.as_bytes()), Scan::new(text.as_bytes()));
                let (value, skip) = (checked.value(), skipped.skip());
                prop_assert!(skipped.place() <= text.len());
                if value.is_some() && (checked.ends() || checked.starts_with(b',')) {
                    prop_assert_eq!(value, skip, "{}", text);
                }
            }
        }

        #[test]
        fn strings_are_what_their_escapes_say(one in r#"[ab"\\né]{0,4}"#, two in r#"[ab"\\né]{0,4}"#, escaped in any::<bool>()) {
            let text = match escaped {
                false => serde_json::to_string(&one).unwrap(),
                true => format!("\"{}\"", one.chars().map(|c| format!("\\u{:04x}", u32::from(c))).collect::<String>()),
            };
            let scan = Scan::new(text.as_bytes());
            prop_assert!(scan.is(&(0..text.len()), &one), "{}", text);
            prop_assert_eq!(scan.is(&(0..text.len()), &two), one == two, "{}", text);
        }

        #[test]
        fn json_is_skipped_whole(text in proptest::collection::vec(r#"\PC{0,6}"#, 0..4), number in any::<f64>()) {
            let value = serde_json::json!([{"a": text, "b": [number, null, true, {}]}, [[]], text.len()]);
            for text in [value.to_string(), serde_json::to_string_pretty(&value).unwrap()] {
                prop_assert_eq!(Scan::new(text.as_bytes()).skip(), Some(0..text.len()));
            }
        }
    }
}
