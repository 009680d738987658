//! One pass over a JSON text for any number of pointers, without a tree.
//!
//! What nobody asked for is checked for its form and skipped. The pass always goes to the end: a
//! member that is named again replaces the one before, so an early stop could answer with a value
//! that does not hold, and could take half a text for a whole one.
//!
//! Accepted is what RFC 8259 calls JSON, up to 127 arrays and objects inside each other. Strings and
//! names that are skipped may hold bytes that are no UTF-8, and halves of surrogate pairs; where one is
//! asked for, these are errors.

#![forbid(unsafe_code)]

use super::attribute::Found;
use super::selector::refuse;
use crate::error::Result;
use std::borrow::Cow;

/// Arrays and objects inside each other.
const MAX_DEPTH: usize = 127;

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
            if tokens.len() == MAX_DEPTH {
                return Err(wrong(at - 1, &format!("expected {MAX_DEPTH} parts at most")));
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
    nodes: Vec<Node>,
}

#[derive(Default)]
struct Node {
    children: Vec<Child>,
    /// The fields whose pointer ends here.
    fields: Vec<usize>,
    /// Whether the pointer of the labels ends here.
    labels: bool,
    /// The fields whose pointer ends here or below.
    fields_below: Vec<usize>,
    /// Whether the pointer of the labels ends here or below.
    labels_below: bool,
}

struct Child {
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

    fn path(&mut self, pointer: &Pointer, on_way: impl Fn(&mut Node)) -> usize {
        if self.nodes.is_empty() {
            self.nodes.push(Node::default());
        }
        let mut at = 0;
        on_way(&mut self.nodes[at]);
        for token in pointer.tokens() {
            let known = self.nodes[at].children.iter().find(|child| *child.name == *token.as_bytes());
            at = match known {
                Some(child) => child.node,
                None => {
                    let node = self.nodes.len();
                    self.nodes.push(Node::default());
                    let index = (token == "0" || !token.starts_with(['0', '+'])).then(|| token.parse().ok()).flatten();
                    self.nodes[at].children.push(Child { name: token.as_bytes().into(), index, node });
                    node
                }
            };
            on_way(&mut self.nodes[at]);
        }
        at
    }

    /// Fills in what the pointers find. After an error `found` holds some of it.
    pub(crate) fn read<'v>(&self, text: &'v [u8], found: &mut Found<'v>) -> Result<(), Malformed> {
        let Some(root) = self.nodes.first() else { return Ok(()) };
        let mut walk = Walk { scan: Scan { text, at: 0 }, nodes: &self.nodes, found };
        walk.value(root, 0)?;
        walk.scan.space();
        if walk.scan.at < text.len() { Err(Malformed) } else { Ok(()) }
    }
}

/// The value is not of the form that it should be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Malformed;

struct Walk<'v, 'w> {
    scan: Scan<'v>,
    nodes: &'w [Node],
    found: &'w mut Found<'v>,
}

impl<'v> Walk<'v, '_> {
    /// Reads the value of a node. Recursion ends with the longest pointer.
    fn value(&mut self, node: &Node, depth: usize) -> Result<(), Malformed> {
        match self.scan.token() {
            Some(b'{') if node.labels || !node.children.is_empty() => self.object(node, depth + 1),
            Some(b'[') if !node.children.is_empty() => self.array(node, depth + 1),
            _ if node.fields.is_empty() => self.scan.skip(depth),
            _ => {
                let scalar = self.scan.scalar(depth)?;
                for field in &node.fields {
                    self.found.fields[*field] = scalar.clone();
                }
                Ok(())
            }
        }
    }

    fn object(&mut self, node: &Node, depth: usize) -> Result<(), Malformed> {
        if depth > MAX_DEPTH {
            return Err(Malformed);
        }
        self.scan.at += 1;
        if self.scan.token() == Some(b'}') {
            self.scan.at += 1;
            return Ok(());
        }
        loop {
            let name = self.scan.name()?;
            let name = if node.labels || name.escaped { name.text()? } else { Cow::Borrowed(name.raw) };
            let child = node.children.iter().find(|child| *child.name == *name);
            let start = self.scan.at;
            if let Some(child) = child {
                self.child(child, depth)?;
            }
            if node.labels {
                self.scan.at = start;
                let value = self.scan.scalar(depth)?;
                self.found.labels.push((name, value));
            } else if child.is_none() {
                self.scan.skip(depth)?;
            }
            match self.scan.token() {
                Some(b',') => self.scan.at += 1,
                Some(b'}') => break,
                _ => return Err(Malformed),
            }
        }
        self.scan.at += 1;
        Ok(())
    }

    fn array(&mut self, node: &Node, depth: usize) -> Result<(), Malformed> {
        if depth > MAX_DEPTH {
            return Err(Malformed);
        }
        self.scan.at += 1;
        if self.scan.token() == Some(b']') {
            self.scan.at += 1;
            return Ok(());
        }
        for number in 0.. {
            match node.children.iter().find(|child| child.index == Some(number)) {
                Some(child) => self.child(child, depth)?,
                None => self.scan.skip(depth)?,
            }
            match self.scan.token() {
                Some(b',') => self.scan.at += 1,
                Some(b']') => break,
                _ => return Err(Malformed),
            }
        }
        self.scan.at += 1;
        Ok(())
    }

    /// A member named twice: what the first has brought is forgotten.
    fn child(&mut self, child: &Child, depth: usize) -> Result<(), Malformed> {
        let nodes = self.nodes;
        let node = &nodes[child.node];
        for field in &node.fields_below {
            self.found.fields[*field] = None;
        }
        if node.labels_below {
            self.found.labels.clear();
        }
        self.value(node, depth)
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
        std::str::from_utf8(self.raw).map_err(|_| Malformed)?;
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

struct Scan<'v> {
    text: &'v [u8],
    at: usize,
}

impl<'v> Scan<'v> {
    #[inline]
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    #[inline]
    fn space(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.peek() {
            self.at += 1;
        }
    }

    /// The first byte of the next token; the scan stays before it.
    #[inline]
    fn token(&mut self) -> Option<u8> {
        match self.peek() {
            Some(b) if b > b' ' => Some(b),
            _ => {
                self.space();
                self.peek()
            }
        }
    }

    /// A string; the scan stands before its quote.
    #[inline]
    fn quoted(&mut self) -> Result<Quoted<'v>, Malformed> {
        self.at += 1;
        let start = self.at;
        let mut escaped = false;
        loop {
            self.plain();
            match self.peek() {
                Some(b'"') => {
                    let raw = &self.text[start..self.at];
                    self.at += 1;
                    return Ok(Quoted { raw, escaped });
                }
                Some(b'\\') => {
                    escaped = true;
                    match self.text.get(self.at + 1) {
                        Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 2,
                        Some(b'u') => {
                            hex(&self.text[self.at + 2..])?;
                            self.at += 6;
                        }
                        _ => return Err(Malformed),
                    }
                }
                _ => return Err(Malformed),
            }
        }
    }

    /// Moves to the next quote, backslash or control character, eight bytes at a time.
    #[inline]
    fn plain(&mut self) {
        const ONES: u64 = u64::from_le_bytes([1; 8]);
        const HIGH: u64 = ONES << 7;
        // The lowest marked byte is right; those above it may be marked by a borrow.
        let zero = |word: u64| word.wrapping_sub(ONES) & !word & HIGH;
        while let Some(bytes) = self.text.get(self.at..).and_then(<[u8]>::first_chunk) {
            let word = u64::from_le_bytes(*bytes);
            let control = word.wrapping_sub(ONES * 0x20) & !word & HIGH;
            let stop = control | zero(word ^ (ONES * u64::from(b'"'))) | zero(word ^ (ONES * u64::from(b'\\')));
            if stop != 0 {
                self.at += stop.trailing_zeros() as usize / 8;
                return;
            }
            self.at += 8;
        }
        while self.peek().is_some_and(|b| b >= 0x20 && b != b'"' && b != b'\\') {
            self.at += 1;
        }
    }

    /// The name of a member and the colon behind it.
    #[inline]
    fn name(&mut self) -> Result<Quoted<'v>, Malformed> {
        if self.token() != Some(b'"') {
            return Err(Malformed);
        }
        let name = self.quoted()?;
        if self.token() != Some(b':') {
            return Err(Malformed);
        }
        self.at += 1;
        Ok(name)
    }

    /// A string, or the text of a number or boolean; other values are skipped and are none.
    fn scalar(&mut self, depth: usize) -> Result<Option<Cow<'v, [u8]>>, Malformed> {
        match self.token() {
            Some(b'"') => self.quoted()?.text().map(Some),
            Some(b'{' | b'[' | b'n') => self.skip(depth).map(|()| None),
            Some(first) => {
                let start = self.at;
                self.atom(first)?;
                Ok(Some(Cow::Borrowed(&self.text[start..self.at])))
            }
            None => Err(Malformed),
        }
    }

    /// Skips a value inside of `depth` arrays and objects.
    fn skip(&mut self, depth: usize) -> Result<(), Malformed> {
        // One bit for each array or object entered here: whether it is an object.
        let mut objects: u128 = 0;
        let mut level = 0;
        loop {
            match self.token().ok_or(Malformed)? {
                b'"' => {
                    self.quoted()?;
                }
                open @ (b'{' | b'[') => {
                    level += 1;
                    if depth + level > MAX_DEPTH {
                        return Err(Malformed);
                    }
                    objects = objects << 1 | u128::from(open == b'{');
                    self.at += 1;
                    match self.token() {
                        // Empty: closed below.
                        Some(b'}' | b']') => {}
                        _ if open == b'{' => {
                            self.name()?;
                            continue;
                        }
                        _ => continue,
                    }
                }
                first => self.atom(first)?,
            }
            loop {
                if level == 0 {
                    return Ok(());
                }
                let object = objects & 1 == 1;
                match self.token() {
                    Some(b',') => {
                        self.at += 1;
                        if object {
                            self.name()?;
                        }
                        break;
                    }
                    Some(b'}') if object => {}
                    Some(b']') if !object => {}
                    _ => return Err(Malformed),
                }
                self.at += 1;
                objects >>= 1;
                level -= 1;
            }
        }
    }

    /// A number, `true`, `false` or `null`, which begins here with `first`.
    fn atom(&mut self, first: u8) -> Result<(), Malformed> {
        let word: &[u8] = match first {
            b't' => b"true",
            b'f' => b"false",
            b'n' => b"null",
            b'-' | b'0'..=b'9' => return self.number(),
            _ => return Err(Malformed),
        };
        if !self.text[self.at..].starts_with(word) {
            return Err(Malformed);
        }
        self.at += word.len();
        Ok(())
    }

    fn number(&mut self) -> Result<(), Malformed> {
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        if self.peek() == Some(b'0') {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.peek() {
            self.at += 1;
            if let Some(b'+' | b'-') = self.peek() {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    fn digits(&mut self) -> Result<(), Malformed> {
        let start = self.at;
        while self.peek().is_some_and(|b| b.is_ascii_digit()) {
            self.at += 1;
        }
        if self.at == start { Err(Malformed) } else { Ok(()) }
    }
}
