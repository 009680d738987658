//! One pass over a JSON text for any number of pointers, without a tree.
//!
//! What nobody asked for is checked for its form and skipped. The pass always goes to the end: a
//! member that is named again replaces the one before, so an early stop could answer with a value
//! that does not hold, and could take half a text for a whole one.
//!
//! Accepted is what RFC 8259 calls JSON, up to [`MAX_JSON_DEPTH`] arrays and objects inside each other. Strings and
//! names that are skipped may hold bytes that are no UTF-8, and halves of surrogate pairs; where one is
//! asked for, these are errors.
//!
//! serde_json with seeds and raw values was slower than an earlier form (by a program of that day), and would need two
//! crates where this needs none. The tests compare with its trees.

#![forbid(unsafe_code)]

use super::MAX_JSON_DEPTH;
use super::encode::Extracted;
use crate::error::Result;
use crate::error::refuse;
use std::borrow::Cow;

/// An RFC 6901 pointer: its reference tokens without their escapes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Pointer(Box<[Box<str>]>);

impl Pointer {
    /// `what` begins the message of an error.
    pub(crate) fn parse(what: &str, text: &str) -> Result<Pointer> {
        let wrong = |at: usize, why: &str| refuse(what, text.as_bytes(), at, why);
        let Some(rest) = text.strip_prefix('/') else {
            return if text.is_empty() {
                Ok(Pointer(Box::new([])))
            } else {
                Err(wrong(0, "expected \"/\", as in \"/metadata/name\", or no text at all for the whole value"))
            };
        };
        let mut tokens = Vec::new();
        let mut at = 1;
        for token in rest.split('/') {
            if tokens.len() == MAX_JSON_DEPTH {
                return Err(wrong(at - 1, &format!("expected {MAX_JSON_DEPTH} parts at most")));
            }
            let mut plain = String::with_capacity(token.len());
            for (number, part) in token.split('~').enumerate() {
                match (number, part.as_bytes().first()) {
                    (0, _) => plain.push_str(part),
                    (_, Some(b'0')) => plain = plain + "~" + &part[1..],
                    (_, Some(b'1')) => plain = plain + "/" + &part[1..],
                    _ => return Err(wrong(at - 1, "expected \"~\" only as \"~0\" (for \"~\") or \"~1\" (for \"/\")")),
                }
                at += part.len() + 1;
            }
            tokens.push(plain.into());
        }
        Ok(Pointer(tokens.into()))
    }

    pub(crate) fn tokens(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|token| &**token)
    }
}

/// All pointers of a schema.
#[derive(Default)]
pub(crate) struct Pointers {
    /// The first is the root; there is none while there is no pointer.
    nodes: Vec<PointerNode>,
}

#[derive(Default)]
struct PointerNode {
    children: Vec<PointerChild>,
    /// The fields whose pointer ends here.
    fields: Vec<usize>,
    /// Whether the pointer of the labels ends here.
    labels: bool,
    /// The fields whose pointer ends here or below.
    fields_below: Vec<usize>,
    /// Whether the pointer of the labels ends here or below.
    labels_below: bool,
}

impl PointerNode {
    #[inline]
    fn child(&self, name: &[u8]) -> Option<&PointerChild> {
        self.children.iter().find(|child| *child.name == *name)
    }
}

struct PointerChild {
    name: Box<[u8]>,
    /// The name as an index of an array, if it is one.
    index: Option<usize>,
    node: usize,
}

impl Pointers {
    pub(crate) fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    pub(crate) fn add_field(&mut self, pointer: &Pointer, field: usize) {
        let node = self.path(pointer, |node| node.fields_below.push(field));
        self.nodes[node].fields.push(field);
    }

    pub(crate) fn set_labels(&mut self, pointer: &Pointer) {
        let node = self.path(pointer, |node| node.labels_below = true);
        self.nodes[node].labels = true;
    }

    fn path(&mut self, pointer: &Pointer, on_way: impl Fn(&mut PointerNode)) -> usize {
        if self.nodes.is_empty() {
            self.nodes.push(PointerNode::default());
        }
        let mut at = 0;
        on_way(&mut self.nodes[at]);
        for token in pointer.tokens() {
            let known = self.nodes[at].children.iter().find(|child| *child.name == *token.as_bytes());
            at = match known {
                Some(child) => child.node,
                None => {
                    let node = self.nodes.len();
                    self.nodes.push(PointerNode::default());
                    let index = (token == "0" || !token.starts_with(['0', '+'])).then(|| token.parse().ok()).flatten();
                    self.nodes[at].children.push(PointerChild { name: token.as_bytes().into(), index, node });
                    node
                }
            };
            on_way(&mut self.nodes[at]);
        }
        at
    }

    /// Fills in what the pointers find. After an error `found` holds some of it.
    pub(crate) fn read<'v>(&self, text: &'v [u8], found: &mut Extracted<'v>) -> Result<(), Malformed> {
        let Some(root) = self.nodes.first() else { return Ok(()) };
        let rest = Walk { nodes: &self.nodes, found }.value(root, text, 0)?;
        if space(rest).is_empty() { Ok(()) } else { Err(Malformed) }
    }
}

/// The value is not of the form that it should be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Malformed;

/// What is left of the text after what was read.
type Remaining<'v> = Result<&'v [u8], Malformed>;

struct Walk<'v, 'w> {
    nodes: &'w [PointerNode],
    found: &'w mut Extracted<'v>,
}

impl<'v> Walk<'v, '_> {
    /// Reads the value of a node. Recursion ends with the longest pointer.
    fn value(&mut self, node: &PointerNode, rest: &'v [u8], depth: usize) -> Remaining<'v> {
        let (first, inside) = token(rest)?;
        match first {
            b'{' if node.labels || !node.children.is_empty() => self.object(node, inside, depth + 1),
            b'[' if !node.children.is_empty() => self.array(node, inside, depth + 1),
            _ if node.fields.is_empty() => skip(rest, depth),
            _ => {
                let (scalar, rest) = scalar(rest, depth)?;
                if let Some((last, others)) = node.fields.split_last() {
                    for field in others {
                        self.found.fields[*field] = scalar.clone();
                    }
                    self.found.fields[*last] = scalar;
                }
                Ok(rest)
            }
        }
    }

    /// The members of an object and its end.
    fn object(&mut self, node: &PointerNode, mut rest: &'v [u8], depth: usize) -> Remaining<'v> {
        if depth > MAX_JSON_DEPTH {
            return Err(Malformed);
        }
        if let (b'}', rest) = token(rest)? {
            return Ok(rest);
        }
        loop {
            let (name, value) = named(rest)?;
            rest = if node.labels {
                self.label(node, name, value, depth)?
            } else {
                self.member(node, name, value, depth)?
            };
            match token(rest)? {
                (b',', after) => rest = after,
                (b'}', after) => return Ok(after),
                _ => return Err(Malformed),
            }
        }
    }

    #[inline]
    fn member(&mut self, node: &PointerNode, name: Quoted<'v>, value: &'v [u8], depth: usize) -> Remaining<'v> {
        let child = if name.escaped { node.child(&name.text()?) } else { node.child(name.raw) };
        match child {
            Some(child) => self.child(child, value, depth),
            None => skip(value, depth),
        }
    }

    fn label(&mut self, node: &PointerNode, name: Quoted<'v>, value: &'v [u8], depth: usize) -> Remaining<'v> {
        let name = name.text()?;
        if let Some(child) = node.child(&name) {
            self.child(child, value, depth)?;
        }
        let (scalar, rest) = scalar(value, depth)?;
        self.found.labels.push((name, scalar));
        Ok(rest)
    }

    /// The elements of an array and its end.
    fn array(&mut self, node: &PointerNode, mut rest: &'v [u8], depth: usize) -> Remaining<'v> {
        if depth > MAX_JSON_DEPTH {
            return Err(Malformed);
        }
        if let (b']', rest) = token(rest)? {
            return Ok(rest);
        }
        let mut number = 0;
        loop {
            rest = match node.children.iter().find(|child| child.index == Some(number)) {
                Some(child) => self.child(child, rest, depth)?,
                None => skip(rest, depth)?,
            };
            match token(rest)? {
                (b',', after) => rest = after,
                (b']', after) => return Ok(after),
                _ => return Err(Malformed),
            }
            number += 1;
        }
    }

    /// A member named twice: what the first has brought is dropped.
    fn child(&mut self, child: &PointerChild, rest: &'v [u8], depth: usize) -> Remaining<'v> {
        let nodes = self.nodes;
        let node = &nodes[child.node];
        for field in &node.fields_below {
            self.found.fields[*field] = None;
        }
        if node.labels_below {
            self.found.labels.clear();
        }
        self.value(node, rest, depth)
    }
}

/// What stands between two quotes.
#[derive(Clone, Copy)]
struct Quoted<'v> {
    raw: &'v [u8],
    escaped: bool,
}

impl<'v> Quoted<'v> {
    fn text(self) -> Result<Cow<'v, [u8]>, Malformed> {
        if !self.raw.is_ascii() && std::str::from_utf8(self.raw).is_err() {
            return Err(Malformed);
        }
        if self.escaped { unescape(self.raw).map(Cow::Owned) } else { Ok(Cow::Borrowed(self.raw)) }
    }
}

fn unescape(raw: &[u8]) -> Result<Vec<u8>, Malformed> {
    let mut text = Vec::with_capacity(raw.len());
    let mut rest = raw;
    while let Some(plain) = rest.iter().position(|b| *b == b'\\') {
        text.extend_from_slice(&rest[..plain]);
        let letter = *rest.get(plain + 1).ok_or(Malformed)?;
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
                    let low = u32::from(hex(rest.strip_prefix(b"\\u").ok_or(Malformed)?)?);
                    rest = &rest[6..];
                    if !(0xdc00..0xe000).contains(&low) {
                        return Err(Malformed);
                    }
                    code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
                }
                char::from_u32(code).ok_or(Malformed)?
            }
            _ => return Err(Malformed),
        };
        text.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
    }
    text.extend_from_slice(rest);
    Ok(text)
}

/// The first four bytes as a hexadecimal number.
fn hex(text: &[u8]) -> Result<u16, Malformed> {
    let digits = text.get(..4).ok_or(Malformed)?;
    digits.iter().try_fold(0, |number: u16, b| {
        let digit = char::from(*b).to_digit(16).ok_or(Malformed)?;
        Ok(number << 4 | digit as u16)
    })
}

/// What follows white space. Seldom needed: compact text has none.
#[inline(never)]
fn space(mut rest: &[u8]) -> &[u8] {
    while let [b' ' | b'\t' | b'\n' | b'\r', after @ ..] = rest {
        rest = after;
    }
    rest
}

/// The first byte of the next token, and what follows that byte.
#[inline(always)]
fn token(rest: &[u8]) -> Result<(u8, &[u8]), Malformed> {
    match rest {
        [first, after @ ..] if *first > b' ' => Ok((*first, after)),
        _ => space(rest).split_first().map(|(first, after)| (*first, after)).ok_or(Malformed),
    }
}

/// A token of this one byte.
#[inline(always)]
fn expect(rest: &[u8], byte: u8) -> Remaining<'_> {
    match token(rest)? {
        (first, after) if first == byte => Ok(after),
        _ => Err(Malformed),
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

/// What follows a string whose quote was read, and whether it may have a backslash.
#[inline(always)]
fn string(mut rest: &[u8]) -> Result<(&[u8], bool), Malformed> {
    while let Some(bytes) = rest.first_chunk() {
        let stops = stops(bytes);
        if stops != 0 {
            let length = stops.trailing_zeros() as usize / 8;
            let (stop, after) = (rest[length], &rest[length + 1..]);
            if stop == b'"' {
                return Ok((after, false));
            }
            break;
        }
        rest = &rest[8..];
    }
    Ok((escapes(rest)?, true))
}

/// The same for one with backslashes, and near the end of the text.
#[inline(never)]
fn escapes(mut rest: &[u8]) -> Remaining<'_> {
    loop {
        while let Some(bytes) = rest.first_chunk() {
            let stops = stops(bytes);
            rest = &rest[stops.trailing_zeros() as usize / 8..];
            if stops != 0 {
                break;
            }
        }
        rest = match rest {
            [b'"', after @ ..] => return Ok(after),
            [b'\\', b'u', code @ ..] => {
                hex(code)?;
                &code[4..]
            }
            [b'\\', b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't', after @ ..] => after,
            [0..0x20 | b'\\', ..] | [] => return Err(Malformed),
            [_, after @ ..] => after,
        }
    }
}

/// The quote of a name.
#[inline(always)]
fn name(rest: &[u8]) -> Remaining<'_> {
    match rest {
        [b'"', after @ ..] => Ok(after),
        _ => expect(rest, b'"'),
    }
}

/// The colon after a name and the first byte of the value, and what follows that byte.
#[inline(always)]
fn value(rest: &[u8]) -> Result<(u8, &[u8]), Malformed> {
    match rest {
        [b':', first, after @ ..] if *first > b' ' => Ok((*first, after)),
        _ => token(expect(rest, b':')?),
    }
}

/// A string whose quote was read.
#[inline]
fn quoted(text: &[u8]) -> Result<(Quoted<'_>, &[u8]), Malformed> {
    let (rest, escaped) = string(text)?;
    let raw = &text[..text.len() - rest.len() - 1];
    Ok((Quoted { raw, escaped: escaped && raw.contains(&b'\\') }, rest))
}

/// The name of a member, and what follows its colon.
#[inline]
fn named(rest: &[u8]) -> Result<(Quoted<'_>, &[u8]), Malformed> {
    let (name, rest) = quoted(expect(rest, b'"')?)?;
    Ok((name, expect(rest, b':')?))
}

type Scalar<'v> = Option<Cow<'v, [u8]>>;

/// A string, or the text of a number or boolean; other values are skipped and are none.
#[inline]
fn scalar(rest: &[u8], depth: usize) -> Result<(Scalar<'_>, &[u8]), Malformed> {
    let (first, after) = token(rest)?;
    match first {
        b'"' => {
            let (string, rest) = quoted(after)?;
            Ok((Some(string.text()?), rest))
        }
        b'{' | b'[' | b'n' => Ok((None, skip(rest, depth)?)),
        _ => {
            let text = &rest[rest.len() - after.len() - 1..];
            let rest = atom(first, after)?;
            Ok((Some(Cow::Borrowed(&text[..text.len() - rest.len()])), rest))
        }
    }
}

/// Skips a value inside of `depth` arrays and objects.
fn skip(rest: &[u8], depth: usize) -> Remaining<'_> {
    let (first, after) = token(rest)?;
    match first {
        b'"' => Ok(string(after)?.0),
        b'{' => members(after, b'}', depth),
        b'[' => members(after, b']', depth),
        _ => atom(first, after),
    }
}

/// Skips the inside of an array or object and `close`, its end.
fn members(mut rest: &[u8], mut close: u8, depth: usize) -> Remaining<'_> {
    // One bit for each array or object around this one that is skipped, too: whether it is an object.
    let mut around: u128 = 0;
    let mut level = depth + 1;
    if level > MAX_JSON_DEPTH {
        return Err(Malformed);
    }
    // Whether the array or object may end here, without a member.
    let mut fresh = token(rest)?.0 == close;
    loop {
        if !fresh {
            let (first, after) = if close == b'}' { value(string(name(rest)?)?.0)? } else { token(rest)? };
            rest = match first {
                b'"' => string(after)?.0,
                b'{' | b'[' => {
                    level += 1;
                    if level > MAX_JSON_DEPTH {
                        return Err(Malformed);
                    }
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
                return Err(Malformed);
            }
            level -= 1;
            if level == depth {
                return Ok(rest);
            }
            close = if around & 1 == 1 { b'}' } else { b']' };
            around >>= 1;
        }
    }
}

/// A number, `true`, `false` or `null` that begins with `first`, and has more in `rest`.
fn atom(first: u8, rest: &[u8]) -> Remaining<'_> {
    let word: &[u8] = match first {
        b't' => b"rue",
        b'f' => b"alse",
        b'n' => b"ull",
        _ => return number(first, rest),
    };
    rest.strip_prefix(word).ok_or(Malformed)
}

fn number(mut first: u8, mut rest: &[u8]) -> Remaining<'_> {
    if first == b'-' {
        let (digit, after) = rest.split_first().ok_or(Malformed)?;
        (first, rest) = (*digit, after);
    }
    match first {
        b'0' => {}
        b'1'..=b'9' => rest = digits(rest),
        _ => return Err(Malformed),
    }
    if let [b'.', b'0'..=b'9', after @ ..] = rest {
        rest = digits(after);
    }
    if let [b'e' | b'E', b'0'..=b'9', after @ ..] | [b'e' | b'E', b'+' | b'-', b'0'..=b'9', after @ ..] = rest {
        rest = digits(after);
    }
    // A dot or an E without digits is no token: whatever follows a value refuses it.
    Ok(rest)
}

fn digits(mut rest: &[u8]) -> &[u8] {
    while let [b'0'..=b'9', after @ ..] = rest {
        rest = after;
    }
    rest
}

#[cfg(test)]
mod tests;
