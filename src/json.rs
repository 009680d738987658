//! A walk over a JSON text that checks it and builds no tree.
//!
//! The core finds attributes by it, and watchcore-http the parts of an object that change on the way out. So both take a
//! value for JSON, or both refuse it.
//!
//! Accepted is what RFC 8259 calls JSON, up to [`MAX_JSON_DEPTH`] arrays and objects inside each other. Bytes of a string
//! that are no UTF-8, and halves of surrogate pairs, are errors only where the text of that string is asked for.
//!
//! serde_json with seeds and raw values was slower than an earlier form (by a program of that day), and would need two
//! crates where this needs none. The tests compare with its trees.

#![forbid(unsafe_code)]

use std::borrow::Cow;

/// The most arrays and objects inside each other in a JSON value: one that is nested deeper has no attributes, and is not
/// served over HTTP. serde_json draws the same line.
pub const MAX_JSON_DEPTH: usize = 127;

/// A walk over one JSON text.
///
/// Each method takes one thing at the place where the walk stands, behind white space. `None`: it is not there, or is
/// malformed, and the walk is over.
///
/// ```
/// use watchcore::json::JsonScan;
///
/// let mut versions = Vec::new();
/// let mut scan = JsonScan::new(br#"{"metadata": {"name": "a", "resourceVersion": "7"}, "spec": [1, 2]}"#);
/// scan.members(|scan, name| match name.is("metadata") {
///     true => scan.members(|scan, name| {
///         let value = scan.value()?;
///         versions.extend(name.is("resourceVersion").then_some(value));
///         Some(())
///     }),
///     false => scan.pass(),
/// })
/// .expect("it is an object");
/// assert!(scan.ends());
/// assert_eq!(versions, [b"\"7\""]);
/// ```
#[derive(Clone, Debug)]
pub struct JsonScan<'t> {
    text: &'t [u8],
    rest: &'t [u8],
    depth: usize,
    is_too_deep: bool,
}

impl<'t> JsonScan<'t> {
    /// Stands before the first byte of the text.
    pub fn new(text: &'t [u8]) -> JsonScan<'t> {
        JsonScan { text, rest: text, depth: 0, is_too_deep: false }
    }

    /// How many bytes of the text lie before the place where the walk stands.
    pub fn place(&self) -> usize {
        self.text.len() - self.rest.len()
    }

    /// The next byte that is no white space; the walk stands before it then. `{`, `[` or `"`, or the first byte of a number
    /// or word, where a value follows.
    #[inline(always)]
    pub fn peek(&mut self) -> Option<u8> {
        if self.rest.first().is_none_or(|first| *first <= b' ') {
            self.rest = space(self.rest);
        }
        self.rest.first().copied()
    }

    /// Whether nothing is left but white space.
    pub fn ends(&mut self) -> bool {
        self.peek().is_none()
    }

    /// Whether the walk is over because the text has more than [`MAX_JSON_DEPTH`] arrays and objects inside each other.
    ///
    /// ```
    /// use watchcore::json::{JsonScan, MAX_JSON_DEPTH};
    ///
    /// let nested = |depth| "[".repeat(depth) + &"]".repeat(depth);
    /// assert!(JsonScan::new(nested(MAX_JSON_DEPTH).as_bytes()).pass().is_some());
    /// let deeper = nested(MAX_JSON_DEPTH + 1);
    /// let mut scan = JsonScan::new(deeper.as_bytes());
    /// assert!(scan.pass().is_none() && scan.is_too_deep());
    /// ```
    pub fn is_too_deep(&self) -> bool {
        self.is_too_deep
    }

    /// Takes a string.
    #[inline(always)]
    pub fn string(&mut self) -> Option<JsonString<'t>> {
        let text = expect(self.rest, b'"')?;
        let (rest, escaped) = string(text)?;
        let raw = &text[..text.len() - rest.len() - 1];
        self.rest = rest;
        Some(JsonString { raw, escaped: escaped && raw.contains(&b'\\') })
    }

    /// Takes any value: its bytes as they stand there.
    #[inline]
    pub fn value(&mut self) -> Option<&'t [u8]> {
        self.peek()?;
        let before = self.rest;
        self.pass()?;
        Some(&before[..before.len() - self.rest.len()])
    }

    /// Takes any value, whose bytes nobody asks for.
    #[inline]
    pub fn pass(&mut self) -> Option<()> {
        let (first, after) = token(self.rest)?;
        self.rest = match first {
            b'"' => string(after)?.0,
            b'{' | b'[' => self.skip(after, first + 2)?,
            _ => atom(first, after)?,
        };
        Some(())
    }

    /// Takes an object: `member` gets each name, and takes the value behind it.
    #[inline(always)]
    pub fn members(&mut self, mut member: impl FnMut(&mut Self, JsonString<'t>) -> Option<()>) -> Option<()> {
        let mut goes_on = self.enter(b'{')?;
        while goes_on {
            let name = self.string()?;
            self.rest = expect(self.rest, b':')?;
            member(self, name)?;
            goes_on = self.goes_on(b'}')?;
        }
        Some(())
    }

    /// Takes an array: `element` takes each value.
    ///
    /// ```
    /// use watchcore::json::JsonScan;
    ///
    /// let mut numbers = Vec::new();
    /// let mut scan = JsonScan::new(b"[1, [2], \"3\", 4]");
    /// scan.elements(|scan| match scan.peek()? {
    ///     b'0'..=b'9' => scan.value().map(|number| numbers.push(number)),
    ///     _ => scan.pass(),
    /// })
    /// .expect("an array");
    /// assert_eq!(numbers, [b"1", b"4"]);
    /// ```
    #[inline(always)]
    pub fn elements(&mut self, mut element: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        let mut goes_on = self.enter(b'[')?;
        while goes_on {
            element(self)?;
            goes_on = self.goes_on(b']')?;
        }
        Some(())
    }

    /// Goes behind the opening bracket. Returns whether anything is inside; if not, it goes behind the closing one.
    #[inline(always)]
    fn enter(&mut self, bracket: u8) -> Option<bool> {
        self.rest = expect(self.rest, bracket)?;
        self.depth += 1;
        self.check(self.depth)?;
        let (next, after) = token(self.rest)?;
        let is_empty = next == bracket + 2;
        if is_empty {
            self.rest = after;
            self.depth -= 1;
        }
        Some(!is_empty)
    }

    /// Goes behind a comma, or the closing bracket. Returns whether it was a comma.
    #[inline(always)]
    fn goes_on(&mut self, close: u8) -> Option<bool> {
        let (next, after) = token(self.rest)?;
        self.rest = after;
        if next != b',' && next != close {
            return None;
        }
        self.depth -= usize::from(next == close);
        Some(next == b',')
    }

    #[inline(always)]
    fn check(&mut self, depth: usize) -> Option<()> {
        if depth > MAX_JSON_DEPTH {
            self.is_too_deep = true;
            return None;
        }
        Some(())
    }

    /// The text after an array or object whose inside is `rest` and whose end is `close`. The skip does not recurse, so
    /// the stack does not grow with values that nobody asked for.
    fn skip(&mut self, mut rest: &'t [u8], mut close: u8) -> Option<&'t [u8]> {
        // Each array or object around this one that is skipped, too, has a bit: whether it is an object.
        let mut around: u128 = 0;
        let depth = self.depth;
        let mut level = depth + 1;
        self.check(level)?;
        // Whether the array or object may end here, without a member.
        let mut fresh = token(rest)?.0 == close;
        loop {
            if !fresh {
                let (first, after) = if close == b'}' { value(string(expect(rest, b'"')?)?.0)? } else { token(rest)? };
                rest = match first {
                    b'"' => string(after)?.0,
                    b'{' | b'[' => {
                        level += 1;
                        self.check(level)?;
                        around = around << 1 | u128::from(close == b'}');
                        close = first + 2;
                        fresh = token(after)?.0 == close;
                        rest = after;
                        continue;
                    }
                    _ => atom(first, after)?,
                };
            }
            fresh = false;
            loop {
                let (next, after) = token(rest)?;
                rest = after;
                if next == b',' {
                    break;
                }
                if next != close {
                    return None;
                }
                level -= 1;
                if level == depth {
                    return Some(rest);
                }
                close = if around & 1 == 1 { b'}' } else { b']' };
                around >>= 1;
            }
        }
    }
}

/// A string of a JSON text, as it stands there.
///
/// ```
/// use watchcore::json::JsonScan;
///
/// let string = JsonScan::new(br#""caf\u00e9""#).string().expect("it is a string");
/// assert!(string.is("café"));
/// assert_eq!(string.text().as_deref(), Some("café".as_bytes()));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct JsonString<'t> {
    /// The text between the quotes.
    raw: &'t [u8],
    escaped: bool,
}

impl<'t> JsonString<'t> {
    /// Its text in UTF-8, without escapes. `None`: it is no UTF-8, or has half of a surrogate pair.
    #[inline]
    pub fn text(self) -> Option<Cow<'t, [u8]>> {
        if !self.raw.is_ascii() && std::str::from_utf8(self.raw).is_err() {
            return None;
        }
        if self.escaped { unescape(self.raw).map(Cow::Owned) } else { Some(Cow::Borrowed(self.raw)) }
    }

    /// Whether its text is this.
    #[inline(always)]
    pub fn is(self, text: &str) -> bool {
        if self.escaped { self.is_unescaped(text) } else { self.raw == text.as_bytes() }
    }

    #[inline(never)]
    fn is_unescaped(self, text: &str) -> bool {
        // An escape is longer than what it stands for.
        self.raw.len() > text.len() && self.text().is_some_and(|own| *own == *text.as_bytes())
    }
}

fn unescape(raw: &[u8]) -> Option<Vec<u8>> {
    let mut text = Vec::with_capacity(raw.len());
    let mut rest = raw;
    while let Some(plain) = rest.iter().position(|b| *b == b'\\') {
        text.extend_from_slice(&rest[..plain]);
        let letter = *rest.get(plain + 1)?;
        rest = &rest[plain + 2..];
        let character = match letter {
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'"' | b'\\' | b'/' => char::from(letter),
            b'u' => {
                let mut code = u32::from(hex(rest)?);
                rest = &rest[4..];
                if (0xd800..0xdc00).contains(&code) {
                    let low = u32::from(hex(rest.strip_prefix(b"\\u")?)?);
                    rest = &rest[6..];
                    if !(0xdc00..0xe000).contains(&low) {
                        return None;
                    }
                    code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
                }
                char::from_u32(code)?
            }
            _ => return None,
        };
        text.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
    }
    text.extend_from_slice(rest);
    Some(text)
}

/// The first four bytes as a hexadecimal number.
fn hex(text: &[u8]) -> Option<u16> {
    let digits = text.get(..4)?;
    digits.iter().try_fold(0, |number: u16, b| {
        let digit = char::from(*b).to_digit(16)?;
        Some(number << 4 | digit as u16)
    })
}

/// The text after white space. Seldom needed: compact text has none.
#[inline(never)]
fn space(mut rest: &[u8]) -> &[u8] {
    while let [b' ' | b'\t' | b'\n' | b'\r', after @ ..] = rest {
        rest = after;
    }
    rest
}

/// The first byte of the next token, and what follows that byte.
#[inline(always)]
fn token(rest: &[u8]) -> Option<(u8, &[u8])> {
    match rest {
        [first, after @ ..] if *first > b' ' => Some((*first, after)),
        _ => space(rest).split_first().map(|(first, after)| (*first, after)),
    }
}

/// The text after a token of this one byte.
#[inline(always)]
fn expect(rest: &[u8], byte: u8) -> Option<&[u8]> {
    match rest {
        [first, after @ ..] if *first == byte => Some(after),
        _ => space(rest).strip_prefix(&[byte]),
    }
}

/// Marks quotes, backslashes and control characters among eight bytes by their highest bits. Zero if there
/// is none; otherwise the lowest mark is right, and those above it may be wrong by a borrow.
#[inline(always)]
fn stops(bytes: &[u8; 8]) -> u64 {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    let word = u64::from_le_bytes(*bytes);
    // With this bit turned round the quote is 0x20 and the control characters are still below it.
    let low = (word ^ (ONES * 0x02)).wrapping_sub(ONES * 0x21);
    let backslash = (word ^ (ONES * u64::from(b'\\'))).wrapping_sub(ONES);
    (low | backslash) & !word & (ONES << 7)
}

/// The text after a string whose quote was read, and whether the string may have a backslash.
#[inline(always)]
fn string(mut rest: &[u8]) -> Option<(&[u8], bool)> {
    while let Some(bytes) = rest.first_chunk() {
        let stops = stops(bytes);
        if stops != 0 {
            let length = stops.trailing_zeros() as usize / 8;
            let (stop, after) = (rest[length], &rest[length + 1..]);
            if stop == b'"' {
                return Some((after, false));
            }
            break;
        }
        rest = &rest[8..];
    }
    Some((escapes(rest)?, true))
}

/// The rest of [`string`] for strings with backslashes, and near the end of the text.
#[inline(never)]
fn escapes(mut rest: &[u8]) -> Option<&[u8]> {
    loop {
        while let Some(bytes) = rest.first_chunk() {
            let stops = stops(bytes);
            rest = &rest[stops.trailing_zeros() as usize / 8..];
            if stops != 0 {
                break;
            }
        }
        rest = match rest {
            [b'"', after @ ..] => return Some(after),
            [b'\\', b'u', code @ ..] => {
                hex(code)?;
                &code[4..]
            }
            [b'\\', b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't', after @ ..] => after,
            [0..0x20 | b'\\', ..] | [] => return None,
            [_, after @ ..] => after,
        }
    }
}

/// The colon after a name and the first byte of the value, and what follows that byte.
#[inline(always)]
fn value(rest: &[u8]) -> Option<(u8, &[u8])> {
    match rest {
        [b':', first, after @ ..] if *first > b' ' => Some((*first, after)),
        _ => token(expect(rest, b':')?),
    }
}

/// A number, `true`, `false` or `null` that begins with `first`, and has more in `rest`.
fn atom(first: u8, rest: &[u8]) -> Option<&[u8]> {
    let word: &[u8] = match first {
        b't' => b"rue",
        b'f' => b"alse",
        b'n' => b"ull",
        _ => return number(first, rest),
    };
    rest.strip_prefix(word)
}

fn number(mut first: u8, mut rest: &[u8]) -> Option<&[u8]> {
    if first == b'-' {
        let (digit, after) = rest.split_first()?;
        (first, rest) = (*digit, after);
    }
    match first {
        b'0' => {}
        b'1'..=b'9' => rest = digits(rest),
        _ => return None,
    }
    if let [b'.', b'0'..=b'9', after @ ..] = rest {
        rest = digits(after);
    }
    if let [b'e' | b'E', b'0'..=b'9', after @ ..] | [b'e' | b'E', b'+' | b'-', b'0'..=b'9', after @ ..] = rest {
        rest = digits(after);
    }
    // A dot or an E without digits is no token: whatever follows a value refuses it.
    Some(rest)
}

fn digits(mut rest: &[u8]) -> &[u8] {
    while let [b'0'..=b'9', after @ ..] = rest {
        rest = after;
    }
    rest
}

#[cfg(test)]
mod tests;
