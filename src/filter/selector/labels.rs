//! Label selectors: requirements, tokens, and the parser.

#![forbid(unsafe_code)]

use super::{Unexpected, utf8};
use crate::attribute::encode::Attributes;
use crate::error::{Error, Result, refuse};
use std::fmt;

const LABELS: &str = "selector";

/// A requirement of a label selector.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct LabelRequirement {
    pub(crate) key: Box<str>,
    pub(crate) test: Test,
}

/// The test of a label's value. Sets are sorted, without doubles and never empty.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Test {
    In(Box<[Box<str>]>),
    NotIn(Box<[Box<str>]>),
    Exists,
    Absent,
    Greater(i64),
    Less(i64),
}

impl LabelRequirement {
    /// Whether a label of this value passes; `None` is a label that is absent.
    #[inline]
    pub(crate) fn holds(&self, value: Option<&[u8]>) -> bool {
        match &self.test {
            Test::In(set) => value.is_some_and(|value| is_in(set, value)),
            Test::NotIn(set) => !value.is_some_and(|value| is_in(set, value)),
            Test::Exists => value.is_some(),
            Test::Absent => value.is_none(),
            Test::Greater(than) => value.and_then(integer).is_some_and(|value| value > *than),
            Test::Less(than) => value.and_then(integer).is_some_and(|value| value < *than),
        }
    }
}

#[inline]
fn is_in(set: &[Box<str>], value: &[u8]) -> bool {
    match set {
        [one] => one.as_bytes() == value,
        set => set.binary_search_by(|member| member.as_bytes().cmp(value)).is_ok(),
    }
}

fn integer(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Prints what [`parse_labels`] reads back as an equal requirement.
impl fmt::Display for LabelRequirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = &self.key;
        match &self.test {
            Test::In(set) if set.len() == 1 => write!(f, "{key}={}", set[0]),
            Test::NotIn(set) if set.len() == 1 => write!(f, "{key}!={}", set[0]),
            Test::In(set) => write!(f, "{key} in ({})", set.join(",")),
            Test::NotIn(set) => write!(f, "{key} notin ({})", set.join(",")),
            Test::Exists => f.write_str(key),
            Test::Absent => write!(f, "!{key}"),
            Test::Greater(than) => write!(f, "{key}>{than}"),
            Test::Less(than) => write!(f, "{key}<{than}"),
        }
    }
}

/// Reads a label selector; the empty one has no requirement.
///
/// # Errors
/// INVALID_ARGUMENT with the 0-based byte position and what was expected there.
pub(crate) fn parse_labels(text: &[u8]) -> Result<Vec<LabelRequirement>> {
    let mut tokens = Lexemes::new(text)?;
    let mut requirements = Vec::new();
    if tokens.next.kind == LexemeKind::End {
        return Ok(requirements);
    }
    loop {
        requirements.push(requirement(&mut tokens)?);
        let after = tokens.take()?;
        match after.kind {
            LexemeKind::End => break,
            LexemeKind::Comma => {}
            _ => return Err(tokens.expected("\",\" or the end", after)),
        }
    }
    requirements.sort_unstable();
    requirements.dedup();
    Ok(requirements)
}

fn requirement(tokens: &mut Lexemes) -> Result<LabelRequirement> {
    let mut first = tokens.take()?;
    let absent = first.kind == LexemeKind::Not;
    if absent {
        first = tokens.take()?;
    }
    if !first.kind.is_word() {
        return Err(tokens.expected(if absent { "a key" } else { "a key or \"!\"" }, first));
    }
    let key = tokens.key(first)?;
    if absent {
        return Ok(LabelRequirement { key, test: Test::Absent });
    }
    if matches!(tokens.next.kind, LexemeKind::End | LexemeKind::Comma) {
        return Ok(LabelRequirement { key, test: Test::Exists });
    }
    let operator = tokens.take()?;
    let test = match operator.kind {
        LexemeKind::In => Test::In(set(tokens)?),
        LexemeKind::NotIn => Test::NotIn(set(tokens)?),
        LexemeKind::Equal => Test::In(Box::new([exact(tokens)?])),
        LexemeKind::NotEqual => Test::NotIn(Box::new([exact(tokens)?])),
        LexemeKind::Greater => Test::Greater(number(tokens)?),
        LexemeKind::Less => Test::Less(number(tokens)?),
        _ => {
            return Err(
                tokens.expected("\"=\", \"==\", \"!=\", \"in\", \"notin\", \">\", \"<\", \",\" or the end", operator)
            );
        }
    };
    Ok(LabelRequirement { key, test })
}

/// The value after `=` or `!=`: nothing at all is the empty string.
fn exact(tokens: &mut Lexemes) -> Result<Box<str>> {
    if matches!(tokens.next.kind, LexemeKind::End | LexemeKind::Comma) {
        return Ok("".into());
    }
    let value = tokens.take()?;
    if !value.kind.is_word() {
        return Err(tokens.expected("a value, \",\" or the end", value));
    }
    tokens.value(value)
}

/// The integer after `>` or `<`, without a sign: no label value may begin with one.
fn number(tokens: &mut Lexemes) -> Result<i64> {
    let value = tokens.take()?;
    let digits = tokens.word(value);
    if !value.kind.is_word() || digits.len() > MAX_NAME || !digits.iter().all(u8::is_ascii_digit) {
        return Err(tokens.expected("an integer from 0 to 9223372036854775807", value));
    }
    integer(digits).ok_or_else(|| tokens.expected("an integer from 0 to 9223372036854775807", value))
}

/// `( value, value )`, where a value that is left out is the empty string.
fn set(tokens: &mut Lexemes) -> Result<Box<[Box<str>]>> {
    let open = tokens.take()?;
    if open.kind != LexemeKind::Open {
        return Err(tokens.expected("\"(\"", open));
    }
    let mut values = Vec::new();
    loop {
        let mut token = tokens.take()?;
        let named = token.kind.is_word();
        if named {
            values.push(tokens.value(token)?);
            token = tokens.take()?;
        }
        match token.kind {
            LexemeKind::Comma | LexemeKind::Close if !named => values.push("".into()),
            LexemeKind::Comma | LexemeKind::Close => {}
            _ if named => return Err(tokens.expected("\",\" or \")\"", token)),
            _ => return Err(tokens.expected("a value, \",\" or \")\"", token)),
        }
        if token.kind == LexemeKind::Close {
            break;
        }
    }
    values.sort_unstable();
    values.dedup();
    Ok(values.into())
}

const MAX_NAME: usize = 63;
const MAX_PREFIX: usize = 253;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LexemeKind {
    Word,
    In,
    NotIn,
    Not,
    Equal,
    NotEqual,
    Greater,
    Less,
    Open,
    Close,
    Comma,
    End,
}

impl LexemeKind {
    /// `in` and `notin` are keys and values too.
    fn is_word(self) -> bool {
        matches!(self, LexemeKind::Word | LexemeKind::In | LexemeKind::NotIn)
    }
}

#[derive(Clone, Copy)]
struct Lexeme {
    kind: LexemeKind,
    start: usize,
    end: usize,
}

struct Lexemes<'a> {
    text: &'a str,
    /// The token that comes next.
    next: Lexeme,
}

impl<'a> Lexemes<'a> {
    fn new(text: &'a [u8]) -> Result<Lexemes<'a>> {
        let text = utf8(LABELS, text)?;
        if let Some(at) = text.bytes().position(|b| b == 0) {
            return Err(refuse(LABELS, text.as_bytes(), at, "expected no zero byte"));
        }
        let mut tokens = Lexemes { text, next: Lexeme { kind: LexemeKind::End, start: 0, end: 0 } };
        tokens.take()?;
        Ok(tokens)
    }

    fn take(&mut self) -> Result<Lexeme> {
        let taken = self.next;
        let bytes = self.text.as_bytes();
        let mut start = taken.end;
        while bytes.get(start).is_some_and(|b| is_space(*b)) {
            start += 1;
        }
        let two = bytes.get(start + 1) == Some(&b'=');
        let (kind, length) = match bytes.get(start) {
            None => (LexemeKind::End, 0),
            Some(b'=') => (LexemeKind::Equal, 1 + usize::from(two)),
            Some(b'!') if two => (LexemeKind::NotEqual, 2),
            Some(b'!') => (LexemeKind::Not, 1),
            Some(b'>') => (LexemeKind::Greater, 1),
            Some(b'<') => (LexemeKind::Less, 1),
            Some(b'(') => (LexemeKind::Open, 1),
            Some(b')') => (LexemeKind::Close, 1),
            Some(b',') => (LexemeKind::Comma, 1),
            Some(_) => {
                let rest = &bytes[start..];
                let length = rest.iter().position(|b| is_space(*b) || is_symbol(*b)).unwrap_or(rest.len());
                match &rest[..length] {
                    b"in" => (LexemeKind::In, length),
                    b"notin" => (LexemeKind::NotIn, length),
                    _ => (LexemeKind::Word, length),
                }
            }
        };
        self.next = Lexeme { kind, start, end: start + length };
        Ok(taken)
    }

    fn word(&self, token: Lexeme) -> &'a [u8] {
        &self.text.as_bytes()[token.start..token.end]
    }

    fn expected(&self, what: &str, found: Lexeme) -> Error {
        refuse(
            LABELS,
            self.text.as_bytes(),
            found.start,
            &format!("expected {what}, found {}", Unexpected(self.word(found))),
        )
    }

    fn refuse(&self, at: usize, what: &str) -> Error {
        refuse(LABELS, self.text.as_bytes(), at, what)
    }

    /// A key: a name, or a DNS subdomain, `/` and a name.
    fn key(&self, token: Lexeme) -> Result<Box<str>> {
        let word = self.word(token);
        let mut name = token.start;
        if let Some(slash) = word.iter().position(|b| *b == b'/') {
            self.prefix(token.start, &word[..slash])?;
            name += slash + 1;
            if let Some(second) = word[slash + 1..].iter().position(|b| *b == b'/') {
                return Err(self.refuse(name + second, "expected one \"/\" in a key at most"));
            }
        }
        if name == token.end {
            return Err(self.refuse(name, "expected a name behind \"/\""));
        }
        self.name("name of a key", name, token.end)?;
        Ok(self.text[token.start..token.end].into())
    }

    fn value(&self, token: Lexeme) -> Result<Box<str>> {
        self.name("value", token.start, token.end)?;
        Ok(self.text[token.start..token.end].into())
    }

    /// Letters, digits, `-`, `_` and `.`; a letter or digit at both ends; 63 at most.
    fn name(&self, what: &str, start: usize, end: usize) -> Result<()> {
        let name = &self.text.as_bytes()[start..end];
        let ends = |at: usize| at == 0 || at + 1 == name.len();
        let wrong = |at: usize, b: u8| !b.is_ascii_alphanumeric() && (ends(at) || !matches!(b, b'-' | b'_' | b'.'));
        if let Some(at) = name.iter().take(MAX_NAME + 1).enumerate().position(|(at, b)| wrong(at, *b)) {
            let allowed =
                if ends(at) { "a letter or digit at both ends" } else { "letters, digits, \"-\", \"_\" and \".\"" };
            let found = self.text[start + at..].chars().next().map_or(0, char::len_utf8);
            let found = Unexpected(&self.text.as_bytes()[start + at..start + at + found]);
            return Err(self.refuse(start + at, &format!("expected in the {what} {allowed}, found {found}")));
        }
        if name.len() > MAX_NAME {
            let length = name.len();
            return Err(self.refuse(
                start + MAX_NAME,
                &format!("expected the {what} to have {MAX_NAME} characters at most, found {length}"),
            ));
        }
        Ok(())
    }

    /// The DNS subdomain before the `/`.
    fn prefix(&self, start: usize, prefix: &[u8]) -> Result<()> {
        if prefix.is_empty() {
            return Err(self.refuse(start, "expected a DNS subdomain before \"/\""));
        }
        if prefix.len() > MAX_PREFIX {
            let length = prefix.len();
            return Err(self.refuse(
                start + MAX_PREFIX,
                &format!("expected the prefix of a key to have {MAX_PREFIX} characters at most, found {length}"),
            ));
        }
        let plain = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        for (at, b) in prefix.iter().enumerate() {
            let inside = match b {
                b'.' => at > 0 && plain(prefix.get(at - 1)) && plain(prefix.get(at + 1)),
                b'-' => at > 0 && prefix[at - 1] != b'.' && prefix.get(at + 1).is_some_and(|next| *next != b'.'),
                b => plain(Some(b)),
            };
            if !inside {
                return Err(self.refuse(
                    start + at,
                    "expected a DNS subdomain before \"/\": lower-case letters, digits and \"-\", in parts split by \".\", with a letter or digit at both ends of each",
                ));
            }
        }
        Ok(())
    }
}

fn is_space(b: u8) -> bool {
    matches!(b, b' ' | b'\t' | b'\r' | b'\n')
}

fn is_symbol(b: u8) -> bool {
    matches!(b, b'=' | b'!' | b'(' | b')' | b',' | b'>' | b'<')
}

/// Returns the function that evaluates a label selector on extracted attributes.
pub(crate) fn label_selector(text: &str) -> Result<impl Fn(&[u8]) -> bool> {
    let requirements = parse_labels(text.as_bytes())?;
    Ok(move |attributes: &[u8]| {
        let attributes = Attributes(attributes);
        requirements.iter().all(|requirement| requirement.holds(attributes.label(requirement.key.as_bytes())))
    })
}
