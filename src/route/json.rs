//! One pass over a JSON text for any number of pointers, without a tree.
//!
//! What nobody asked for is checked for its form and skipped. The pass always goes to the end: a
//! member that is named again replaces the one before, so an early stop could answer with a value
//! that does not hold, and could take half a text for a whole one.
//!
//! Accepted is what RFC 8259 calls JSON, up to 127 arrays and objects inside each other. Strings and
//! names that are skipped may hold bytes that are no UTF-8, and halves of surrogate pairs; where one is
//! asked for, these are errors.
//!
//! serde_json with seeds and raw values was measured too: a tenth to a fifth slower on a pod of 2 KiB, and it needs
//! two crates where this needs none. The tests compare with its trees.

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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Fields and labels as text.
    type Texts = (Vec<Option<String>>, Vec<(String, String)>);

    fn pointer(text: &str) -> Pointer {
        Pointer::parse("test", text).expect("parses")
    }

    fn read(pointers: &[&str], labels: Option<&str>, text: &[u8]) -> Result<Texts, Malformed> {
        let mut all = Pointers::default();
        for (number, text) in pointers.iter().enumerate() {
            all.add_field(&pointer(text), number);
        }
        if let Some(text) = labels {
            all.set_labels(&pointer(text));
        }
        let mut found = Found { fields: vec![None; pointers.len()], labels: Vec::new() };
        all.read(text, &mut found)?;
        let string = |text: Cow<[u8]>| String::from_utf8(text.into_owned()).expect("is UTF-8");
        let mut labels = std::collections::BTreeMap::new();
        for (key, value) in found.labels {
            labels.insert(string(key), value.map(string));
        }
        let labels = labels.into_iter().filter_map(|(key, value)| Some((key, value?))).collect();
        Ok((found.fields.into_iter().map(|field| field.map(string)).collect(), labels))
    }

    fn one(pointer: &str, text: &str) -> Result<Option<String>, Malformed> {
        read(&[pointer], None, text.as_bytes()).map(|(mut fields, _)| fields.remove(0))
    }

    #[test]
    fn a_pointer_finds_a_scalar() {
        let text = r#" { "s" : "text" , "n": -1.50e+3, "big":123456789012345678901234567890, "t":true,"f" :false,
            "null":null, "a":["x",[1,{"y":"z"}], {"0":"in"}], "o":{"p":{"q":"deep"}}, "":"nameless",
            "m~n":"tilde", "x/y":"slash", "e\u0073c":"name", "v":"a\"\\\/\b\f\n\r\t\u00fc\ud834\udd1e\u0000", "~1":"both",
            "empty":"", "zero":-0, "utf":"ü水" } "#;
        let table = [
            ("/s", Some("text")),
            ("/n", Some("-1.50e+3")),
            ("/big", Some("123456789012345678901234567890")),
            ("/t", Some("true")),
            ("/f", Some("false")),
            ("/null", None),
            ("/a", None),
            ("/o", None),
            ("", None),
            ("/a/0", Some("x")),
            ("/a/1/0", Some("1")),
            ("/a/1/1/y", Some("z")),
            ("/a/2/0", Some("in")),
            ("/a/3", None),
            ("/a/00", None),
            ("/a/+0", None),
            ("/a/-", None),
            ("/a/-0", None),
            ("/a/99999999999999999999999", None),
            ("/a/", None),
            ("/o/p/q", Some("deep")),
            ("/o/p/q/r", None),
            ("/s/0", None),
            ("/", Some("nameless")),
            ("/m~0n", Some("tilde")),
            ("/x~1y", Some("slash")),
            ("/~01", Some("both")),
            ("/esc", Some("name")),
            ("/v", Some("a\"\\/\u{8}\u{c}\n\r\t\u{fc}\u{1d11e}\0")),
            ("/empty", Some("")),
            ("/zero", Some("-0")),
            ("/utf", Some("\u{fc}\u{6c34}")),
            ("/nowhere", None),
        ];
        for (pointer, value) in table {
            assert_eq!(one(pointer, text), Ok(value.map(str::to_owned)), "{pointer}");
        }
        // All in one pass say the same.
        let pointers: Vec<&str> = table.iter().map(|row| row.0).collect();
        let (fields, labels) = read(&pointers, Some("/a/2"), text.as_bytes()).expect("is JSON");
        assert_eq!(fields, table.map(|row| row.1.map(str::to_owned)));
        assert_eq!(labels, [("0".to_owned(), "in".to_owned())]);
        for (text, value) in
            [("\"x\"", Some("x")), (" 7 ", Some("7")), ("true", Some("true")), ("null", None), ("[]", None)]
        {
            assert_eq!(one("", text), Ok(value.map(str::to_owned)), "{text}");
        }
    }

    #[test]
    fn labels_are_the_scalars_of_an_object() {
        let text =
            r#"{"metadata":{"labels":{"b":"1","a":"x","n":7,"t":true,"z":null,"l":[],"o":{"a":"y"},"\u0065":"\n"}}}"#;
        let (fields, labels) = read(
            &["/metadata/labels/a", "/metadata/labels/o/a", "/metadata/labels/l", "/metadata/labels"],
            Some("/metadata/labels"),
            text.as_bytes(),
        )
        .expect("is JSON");
        assert_eq!(fields, [Some("x".into()), Some("y".into()), None, None]);
        let labels: Vec<(&str, &str)> = labels.iter().map(|(key, value)| (&**key, &**value)).collect();
        assert_eq!(labels, [("a", "x"), ("b", "1"), ("e", "\n"), ("n", "7"), ("t", "true")]);
        for text in [r#"{"metadata":{"labels":["a"]}}"#, r#"{"metadata":{"labels":"a"}}"#, r#"{"metadata":null}"#, "{}"]
        {
            assert_eq!(read(&[], Some("/metadata/labels"), text.as_bytes()), Ok((vec![], vec![])), "{text}");
        }
    }

    #[test]
    fn of_members_with_the_same_name_the_last_holds() {
        for (text, value) in [
            (r#"{"a":{"b":"1"},"a":{"b":"2"}}"#, Some("2")),
            (r#"{"a":{"b":"1","b":"2"}}"#, Some("2")),
            (r#"{"a":{"b":"1"},"a":{}}"#, None),
            (r#"{"a":{"b":"1"},"a":null}"#, None),
            (r#"{"a":{"b":"1","b":[]}}"#, None),
            (r#"{"a":["0","1"],"a":{"b":"2"}}"#, Some("2")),
            (r#"{"a":{"b":"1"},"\u0061":{"b":"2"}}"#, Some("2")),
        ] {
            assert_eq!(one("/a/b", text), Ok(value.map(str::to_owned)), "{text}");
        }
        for (text, labels) in [
            (r#"{"a":{"k":"1","l":"2","k":"3"}}"#, &[("k", "3"), ("l", "2")][..]),
            (r#"{"a":{"k":"1","k":null}}"#, &[]),
            (r#"{"a":{"k":"1"},"a":{"l":"2"}}"#, &[("l", "2")]),
            (r#"{"a":{"k":"1"},"a":"x"}"#, &[]),
        ] {
            let found = read(&[], Some("/a"), text.as_bytes()).expect("is JSON").1;
            let wanted: Vec<(String, String)> = labels.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
            assert_eq!(found, wanted, "{text}");
        }
    }

    #[test]
    fn what_is_not_json_is_malformed_wherever_it_stands() {
        for text in ["", " ", r#"{"a":}"#, r#"{"a": }"#] {
            assert_eq!(one("/a", text), Err(Malformed), "{text}");
        }
        let table: &[&[u8]] = &[
            b"{",
            b"}",
            b"{\"a\"}",
            b"{\"a\":}",
            b"{\"a\":1,}",
            b"{,}",
            b"{a:1}",
            b"{\"a\":1 \"b\":2}",
            b"{\"a\" 1}",
            b"[",
            b"[1,]",
            b"[,1]",
            b"[1 2]",
            b"[1}",
            b"{\"a\":1]",
            b"{\"a\":[}]",
            b"nul",
            b"truex",
            b"True",
            b"01",
            b"-",
            b"1.",
            b".5",
            b"+1",
            b"1e",
            b"1e+",
            b"0x1",
            b"NaN",
            b"'a'",
            b"\"a",
            b"\"a\nb\"",
            b"\"\\x\"",
            b"\"\\u12g4\"",
            b"\"\\u12\"",
            b"\"\\",
            b"1 2",
            b"{} {}",
            b"{}x",
            b"\xef\xbb\xbf{}",
            b"\xff",
        ];
        for text in table {
            let shown = String::from_utf8_lossy(text);
            for (before, after) in [("", ""), (r#"{"a":"x","s":["#, "]}"), (r#"{"s":{"t":"#, r#"},"a":"x"}"#)] {
                let text = [before.as_bytes(), text, after.as_bytes()].concat();
                for pointers in [&["/a"][..], &["/s"], &["/s/0"], &["/s/t"], &["/s/t", "/s/0", "", "/s/t/a"]] {
                    assert_eq!(read(pointers, None, &text), Err(Malformed), "{shown} {pointers:?}");
                    assert_eq!(read(pointers, Some("/s"), &text), Err(Malformed), "{shown} {pointers:?}");
                }
            }
        }
    }

    /// Bytes that are no text matter only where they are asked for.
    #[test]
    fn text_is_checked_where_it_is_asked_for() {
        for wrong in [&b"\xff"[..], b"\\ud834", b"\\ud834x", b"\\ud834\\u0041", b"\\udd1e"] {
            let text = [b"{\"a\":{\"b\":\"", wrong, b"\"},\"c\":\"x\"}"].concat();
            assert_eq!(read(&["/c"], None, &text).map(|found| found.0), Ok(vec![Some("x".into())]));
            assert_eq!(read(&["/a/b"], None, &text), Err(Malformed));
            assert_eq!(read(&["/c"], Some("/a"), &text), Err(Malformed));
        }
        assert_eq!(read(&[], Some("/a"), b"{\"a\":{\"\xff\":\"\"}}"), Err(Malformed));
    }

    #[test]
    fn nesting_has_a_limit_and_no_recursion() {
        let nested = |open: &str, close: &str, depth: usize| format!("{}1{}", open.repeat(depth), close.repeat(depth));
        for (open, close, part) in [("[", "]", "/0"), ("{\"a\":", "}", "/a")] {
            let longest = part.repeat(MAX_DEPTH);
            for pointer in ["", "/x", part, &part.repeat(50), &longest] {
                assert!(one(pointer, &nested(open, close, MAX_DEPTH)).is_ok(), "{pointer}");
                assert_eq!(one(pointer, &nested(open, close, MAX_DEPTH + 1)), Err(Malformed), "{pointer}");
            }
            assert_eq!(one(&longest, &nested(open, close, MAX_DEPTH)), Ok(Some("1".into())));
            assert_eq!(one("/x", &open.repeat(1 << 20)), Err(Malformed));
        }
    }

    #[test]
    fn malformed_pointers_are_refused_with_their_position() {
        let long = "/a".repeat(MAX_DEPTH + 1);
        let table = [
            ("a", 0),
            ("a/b", 0),
            ("#/a", 0),
            (" /a", 0),
            ("/a~", 2),
            ("/~2", 1),
            ("/a/b~c", 4),
            ("/a~0~/b", 4),
            ("/~~0", 1),
            ("/ü~", 3),
            (&*long, MAX_DEPTH * 2),
        ];
        for (text, at) in table {
            let message = Pointer::parse("JSON pointer", text).expect_err(text).to_string();
            assert!(
                message.starts_with("JSON pointer \"") && message.contains(&format!("\": byte {at}: expected ")),
                "{text}: {message}"
            );
        }
        let tokens = |text: &str| pointer(text).tokens().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(tokens(""), [""; 0]);
        assert_eq!(tokens("/"), [""]);
        assert_eq!(tokens("//a~1~0b~01/"), ["", "a/~b~1", ""]);
    }

    /// JSON text with doubled names, odd spaces and escapes.
    #[cfg(feature = "json")]
    fn json() -> impl Strategy<Value = String> {
        let string = || {
            prop::collection::vec(
                prop::sample::select(vec![
                    "a",
                    "b",
                    "/",
                    "~",
                    "\\n",
                    "\\\"",
                    "\\\\",
                    "\\u0061",
                    "\\ud834\\udd1e",
                    "ü",
                    "\u{1d11e}",
                    "0123456789",
                    "{",
                    "]",
                    ",",
                    ":",
                ]),
                0..6,
            )
            .prop_map(|parts| format!("\"{}\"", parts.concat()))
        };
        let scalar = prop_oneof![
            string(),
            prop::sample::select(vec!["null", "true", "false", "0", "-1", "42", "18446744073709551615"])
                .prop_map(str::to_owned),
        ];
        let name = move || {
            prop_oneof![
                6 => prop::sample::select(vec!["\"a\"", "\"b\"", "\"0\"", "\"1\"", "\"\\u0061\"", "\"m~n\"", "\"x/y\"", "\"\""]).prop_map(str::to_owned),
                1 => string(),
            ]
        };
        let space = || prop::sample::select(vec!["", "", "", " ", "\n\t", "\r "]);
        scalar.prop_recursive(5, 60, 6, move |inner| {
            prop_oneof![
                2 => prop::collection::vec((space(), name(), space(), inner.clone()), 0..6).prop_map(|members| {
                    let members: Vec<String> = members.iter().map(|(s, k, t, v)| format!("{s}{k}{t}:{s}{v}{t}")).collect();
                    format!("{{{}}}", members.join(","))
                }),
                1 => prop::collection::vec((space(), inner), 0..4).prop_map(|members| {
                    let members: Vec<String> = members.iter().map(|(s, v)| format!("{s}{v}{s}")).collect();
                    format!("[{}]", members.join(","))
                }),
            ]
        })
    }

    #[cfg(feature = "json")]
    fn scalar(value: Option<&serde_json::Value>) -> Option<String> {
        match value? {
            serde_json::Value::String(text) => Some(text.clone()),
            value @ (serde_json::Value::Number(_) | serde_json::Value::Bool(_)) => Some(value.to_string()),
            _ => None,
        }
    }

    #[cfg(feature = "json")]
    const POINTERS: &[&str] =
        &["", "/a", "/a/b", "/b", "/a/a/a", "/a/0", "/0/1/a", "/b/1", "/m~0n", "/x~1y/a", "/", "//a", "/a/b/0"];

    #[cfg(feature = "json")]
    proptest! {
        /// The same as from a whole tree.
        #[test]
        fn pointers_find_what_a_tree_holds(text in json(), labels in prop::sample::select(vec!["", "/a", "/a/b", "/0"])) {
            let tree: serde_json::Value = serde_json::from_str(&text).expect("is JSON");
            let (fields, found) = read(POINTERS, Some(labels), text.as_bytes()).expect("is JSON");
            for (pointer, field) in POINTERS.iter().zip(fields) {
                prop_assert_eq!(field, scalar(tree.pointer(pointer)), "{}", pointer);
            }
            let members = tree.pointer(labels).and_then(serde_json::Value::as_object).into_iter().flatten();
            let members: Vec<_> = members.filter_map(|(key, value)| Some((key.clone(), scalar(Some(value))?))).collect();
            prop_assert_eq!(found, members);
        }

        /// Cut, doubled and overwritten anywhere, it is JSON exactly where it is for another reader.
        #[test]
        fn nearly_json_is_malformed_as_for_a_tree(text in json(), cuts in prop::collection::vec((any::<prop::sample::Index>(), "[]{}\\[,:\" 01tfn.eE+-]{0,2}", 0..3usize), 1..3)) {
            let mut text: Vec<char> = text.chars().collect();
            for (at, piece, remove) in cuts {
                let at = at.index(text.len() + 1);
                text.splice(at..(at + remove).min(text.len()), piece.chars());
            }
            let text: String = text.into_iter().collect();
            let tree = serde_json::from_str::<serde_json::Value>(&text);
            // Halves of surrogate pairs and numbers out of range are no errors where they are skipped.
            prop_assume!(!tree.as_ref().is_err_and(|error| error.to_string().contains("surrogate") || error.to_string().contains("hex escape") || error.to_string().contains("out of range")));
            for pointers in [&["/nowhere"][..], POINTERS] {
                prop_assert_eq!(read(pointers, None, text.as_bytes()).is_ok(), tree.is_ok(), "{} {:?}", text, tree);
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_malformed(text in prop::collection::vec(any::<u8>(), 0..300), object in any::<bool>()) {
            let text = if object { [b"{\"a\":", &text[..], b"}"].concat() } else { text };
            let _ = read(&["", "/a", "/a/b", "/a/0"], None, &text);
        }
    }
}
