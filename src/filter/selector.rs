//! The grammar of label and field selectors: Kubernetes' own.
//!
//! Labels follow k8s.io/apimachinery `pkg/labels`, function `Parse`; fields follow `pkg/fields`,
//! function `ParseSelector`. What these accept is accepted here with the same meaning, and what they
//! refuse is refused, but for:
//!
//! - A zero byte in a label selector is refused. There it ends the selector without a word, so that
//!   what stands behind it selects nothing.
//! - A field selector that is not UTF-8 is refused. There its bytes are kept, or become U+FFFD where
//!   the value holds an escape.
//!
//! A selector is a conjunction, so its requirements come back sorted and without doubles: equal
//! selectors compare equal, whatever their order was. `a=b`, `a==b` and `a in (b)` are one
//! requirement, and so are `a!=b` and `a notin (b)`.
//!
//! Parsing needs no recursion and one look at each byte; then the requirements are sorted.

#![forbid(unsafe_code)]

use crate::attribute::encode::Attributes;
use crate::attribute::schema::Labels;
use crate::error::{Error, Result, boundary, printable, refuse};
use std::fmt;

/// One requirement of a label selector.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct LabelRequirement {
    pub(crate) key: Box<str>,
    pub(crate) test: Test,
}

/// What a label must be. Sets are sorted, without doubles and never empty.
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

/// The value behind `=` or `!=`: nothing at all is the empty string.
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

/// The integer behind `>` or `<`. It has no sign: no label value may begin with one.
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

/// One requirement of a field selector.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct FieldRequirement {
    pub(crate) name: Box<str>,
    pub(crate) equal: bool,
    pub(crate) value: Box<str>,
}

impl FieldRequirement {
    /// Whether a field of this value passes; one that is absent is the empty string.
    #[inline]
    pub(crate) fn holds(&self, value: Option<&[u8]>) -> bool {
        (value.unwrap_or_default() == self.value.as_bytes()) == self.equal
    }
}

/// Prints what [`parse_fields`] reads back as an equal requirement.
impl fmt::Display for FieldRequirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.name, if self.equal { "=" } else { "!=" })?;
        for part in self.value.split_inclusive(['\\', ',', '=']) {
            match part.as_bytes().last() {
                Some(b'\\' | b',' | b'=') => {
                    let (plain, escaped) = part.split_at(part.len() - 1);
                    write!(f, "{plain}\\{escaped}")?;
                }
                _ => f.write_str(part)?,
            }
        }
        Ok(())
    }
}

/// Reads a field selector; the empty one has no requirement.
///
/// Empty terms are skipped, and so is a term of an operator alone. White space belongs to the name or
/// value beside it. The name ends at the first operator and has no escapes, except that a comma behind
/// a backslash does not end the term.
///
/// # Errors
/// INVALID_ARGUMENT with the 0-based byte position and what was expected there.
pub(crate) fn parse_fields(text: &[u8]) -> Result<Vec<FieldRequirement>> {
    let string = utf8(FIELDS, text)?;
    let mut requirements = Vec::new();
    let mut start = 0;
    while start < text.len() {
        let (name_end, operator) = name_and_operator(text, start)?;
        let value_start = name_end + operator;
        if operator == 0 {
            start = name_end + 1;
            continue;
        }
        let (value, end) = unescaped(text, value_start)?;
        let name = &string[start..name_end];
        if !name.is_empty() || !value.is_empty() {
            let equal = text[name_end] == b'=';
            requirements.push(FieldRequirement { name: name.into(), equal, value: value.into() });
        }
        start = end + 1;
    }
    requirements.sort_unstable();
    requirements.dedup();
    Ok(requirements)
}

/// Where the name that begins here ends, and the length of the operator there; 0 for an empty term.
fn name_and_operator(text: &[u8], start: usize) -> Result<(usize, usize)> {
    let mut escaped = false;
    let mut at = start;
    while let Some(b) = text.get(at) {
        match b {
            b'!' if text.get(at + 1) == Some(&b'=') => return Ok((at, 2)),
            b'=' => return Ok((at, 1 + usize::from(text.get(at + 1) == Some(&b'=')))),
            b',' if !escaped => break,
            _ => escaped = !escaped && *b == b'\\',
        }
        at += 1;
    }
    if at == start {
        return Ok((at, 0));
    }
    let found = Unexpected(&text[at..(at + 1).min(text.len())]);
    Err(refuse(FIELDS, text, at, &format!("expected \"=\", \"==\" or \"!=\" behind a name, found {found}")))
}

/// The value that begins here, without its escapes, and where it ends.
fn unescaped(text: &[u8], start: usize) -> Result<(String, usize)> {
    let mut value = String::new();
    let mut at = start;
    loop {
        let rest = &text[at..];
        let plain = rest.iter().position(|b| matches!(b, b'\\' | b',' | b'=')).unwrap_or(rest.len());
        // The text is UTF-8 and is cut at ASCII characters only.
        value.push_str(std::str::from_utf8(&rest[..plain]).unwrap_or_default());
        at += plain;
        match (text.get(at), text.get(at + 1)) {
            (None | Some(b','), _) => return Ok((value, at)),
            (Some(b'\\'), Some(special @ (b'\\' | b',' | b'='))) => value.push(char::from(*special)),
            (Some(b'\\'), _) => {
                return Err(refuse(FIELDS, text, at, "expected \"\\\" only before \"\\\", \",\" or \"=\""));
            }
            _ => return Err(refuse(FIELDS, text, at, "expected \"=\" in a value only behind \"\\\"")),
        }
        at += 2;
    }
}

const LABELS: &str = "selector";
const FIELDS: &str = "field selector";

fn utf8<'a>(what: &str, text: &'a [u8]) -> Result<&'a str> {
    std::str::from_utf8(text).map_err(|wrong| refuse(what, text, wrong.valid_up_to(), "expected UTF-8"))
}

/// What stands where something else was expected.
struct Unexpected<'a>(&'a [u8]);

impl fmt::Display for Unexpected<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Unexpected(text) = *self;
        if text.is_empty() {
            return f.write_str("the end");
        }
        let shown = if text.len() <= 40 { text.len() } else { boundary(text, 40) };
        f.write_str("\"")?;
        printable(f, &text[..shown])?;
        f.write_str(if shown < text.len() { "...\"" } else { "\"" })
    }
}

impl Labels {
    /// Whether extracted attributes pass a label selector. For benches.
    #[doc(hidden)]
    pub fn selector(text: &str) -> Result<impl Fn(&[u8]) -> bool> {
        let requirements = parse_labels(text.as_bytes())?;
        Ok(move |attributes: &[u8]| {
            let attributes = Attributes(attributes);
            requirements.iter().all(|requirement| requirement.holds(attributes.label(requirement.key.as_bytes())))
        })
    }
}

#[cfg(test)]
mod tests;
