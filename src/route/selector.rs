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

use crate::error::{Error, Result, say};
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
    let mut tokens = Tokens::new(text)?;
    let mut requirements = Vec::new();
    if tokens.next.kind == Kind::End {
        return Ok(requirements);
    }
    loop {
        requirements.push(requirement(&mut tokens)?);
        let after = tokens.take()?;
        match after.kind {
            Kind::End => break,
            Kind::Comma => {}
            _ => return Err(tokens.expected("\",\" or the end", after)),
        }
    }
    requirements.sort_unstable();
    requirements.dedup();
    Ok(requirements)
}

fn requirement(tokens: &mut Tokens) -> Result<LabelRequirement> {
    let mut first = tokens.take()?;
    let absent = first.kind == Kind::Not;
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
    if matches!(tokens.next.kind, Kind::End | Kind::Comma) {
        return Ok(LabelRequirement { key, test: Test::Exists });
    }
    let operator = tokens.take()?;
    let test = match operator.kind {
        Kind::In => Test::In(set(tokens)?),
        Kind::NotIn => Test::NotIn(set(tokens)?),
        Kind::Equal => Test::In(Box::new([exact(tokens)?])),
        Kind::NotEqual => Test::NotIn(Box::new([exact(tokens)?])),
        Kind::Greater => Test::Greater(number(tokens)?),
        Kind::Less => Test::Less(number(tokens)?),
        _ => {
            return Err(
                tokens.expected("\"=\", \"==\", \"!=\", \"in\", \"notin\", \">\", \"<\", \",\" or the end", operator)
            );
        }
    };
    Ok(LabelRequirement { key, test })
}

/// The value behind `=` or `!=`: nothing at all is the empty string.
fn exact(tokens: &mut Tokens) -> Result<Box<str>> {
    if matches!(tokens.next.kind, Kind::End | Kind::Comma) {
        return Ok("".into());
    }
    let value = tokens.take()?;
    if !value.kind.is_word() {
        return Err(tokens.expected("a value, \",\" or the end", value));
    }
    tokens.value(value)
}

/// The integer behind `>` or `<`. It has no sign: no label value may begin with one.
fn number(tokens: &mut Tokens) -> Result<i64> {
    let value = tokens.take()?;
    let digits = tokens.word(value);
    if !value.kind.is_word() || digits.len() > MAX_NAME || !digits.iter().all(u8::is_ascii_digit) {
        return Err(tokens.expected("an integer from 0 to 9223372036854775807", value));
    }
    integer(digits).ok_or_else(|| tokens.expected("an integer from 0 to 9223372036854775807", value))
}

/// `( value, value )`, where a value that is left out is the empty string.
fn set(tokens: &mut Tokens) -> Result<Box<[Box<str>]>> {
    let open = tokens.take()?;
    if open.kind != Kind::Open {
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
            Kind::Comma | Kind::Close if !named => values.push("".into()),
            Kind::Comma | Kind::Close => {}
            _ if named => return Err(tokens.expected("\",\" or \")\"", token)),
            _ => return Err(tokens.expected("a value, \",\" or \")\"", token)),
        }
        if token.kind == Kind::Close {
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
enum Kind {
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

impl Kind {
    /// `in` and `notin` are keys and values too.
    fn is_word(self) -> bool {
        matches!(self, Kind::Word | Kind::In | Kind::NotIn)
    }
}

#[derive(Clone, Copy)]
struct Token {
    kind: Kind,
    start: usize,
    end: usize,
}

struct Tokens<'a> {
    text: &'a str,
    /// The token that comes next.
    next: Token,
}

impl<'a> Tokens<'a> {
    fn new(text: &'a [u8]) -> Result<Tokens<'a>> {
        let text = utf8(LABELS, text)?;
        if let Some(at) = text.bytes().position(|b| b == 0) {
            return Err(refuse(LABELS, text.as_bytes(), at, "expected no zero byte"));
        }
        let mut tokens = Tokens { text, next: Token { kind: Kind::End, start: 0, end: 0 } };
        tokens.take()?;
        Ok(tokens)
    }

    fn take(&mut self) -> Result<Token> {
        let taken = self.next;
        let bytes = self.text.as_bytes();
        let mut start = taken.end;
        while bytes.get(start).is_some_and(|b| is_space(*b)) {
            start += 1;
        }
        let two = bytes.get(start + 1) == Some(&b'=');
        let (kind, length) = match bytes.get(start) {
            None => (Kind::End, 0),
            Some(b'=') => (Kind::Equal, 1 + usize::from(two)),
            Some(b'!') if two => (Kind::NotEqual, 2),
            Some(b'!') => (Kind::Not, 1),
            Some(b'>') => (Kind::Greater, 1),
            Some(b'<') => (Kind::Less, 1),
            Some(b'(') => (Kind::Open, 1),
            Some(b')') => (Kind::Close, 1),
            Some(b',') => (Kind::Comma, 1),
            Some(_) => {
                let rest = &bytes[start..];
                let length = rest.iter().position(|b| is_space(*b) || is_symbol(*b)).unwrap_or(rest.len());
                match &rest[..length] {
                    b"in" => (Kind::In, length),
                    b"notin" => (Kind::NotIn, length),
                    _ => (Kind::Word, length),
                }
            }
        };
        self.next = Token { kind, start, end: start + length };
        Ok(taken)
    }

    fn word(&self, token: Token) -> &'a [u8] {
        &self.text.as_bytes()[token.start..token.end]
    }

    fn expected(&self, what: &str, found: Token) -> Error {
        refuse(
            LABELS,
            self.text.as_bytes(),
            found.start,
            &format!("expected {what}, found {}", Found(self.word(found))),
        )
    }

    fn refuse(&self, at: usize, what: &str) -> Error {
        refuse(LABELS, self.text.as_bytes(), at, what)
    }

    /// A key: a name, or a DNS subdomain, `/` and a name.
    fn key(&self, token: Token) -> Result<Box<str>> {
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

    fn value(&self, token: Token) -> Result<Box<str>> {
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
            let found = Found(&self.text.as_bytes()[start + at..start + at + found]);
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
    let found = Found(&text[at..(at + 1).min(text.len())]);
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

pub(crate) fn refuse(what: &str, text: &[u8], at: usize, why: &str) -> Error {
    say::invalid(format!("{what} \"{}\": byte {at}: {why}.", Around(text, at)))
}

/// The text around a position, about 80 bytes of it.
struct Around<'a>(&'a [u8], usize);

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

/// What stands where something else was expected.
struct Found<'a>(&'a [u8]);

impl fmt::Display for Found<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Found(text) = *self;
        if text.is_empty() {
            return f.write_str("the end");
        }
        let shown = if text.len() <= 40 { text.len() } else { boundary(text, 40) };
        f.write_str("\"")?;
        printable(f, &text[..shown])?;
        f.write_str(if shown < text.len() { "...\"" } else { "\"" })
    }
}

/// The greatest place at or before `at` that splits no character.
fn boundary(text: &[u8], at: usize) -> usize {
    let back = (0..4usize).find(|back| {
        at.checked_sub(*back).is_none_or(|at| text.get(at).is_none_or(|b| *b & 0b1100_0000 != 0b1000_0000))
    });
    at.saturating_sub(back.unwrap_or(0))
}

fn printable(f: &mut fmt::Formatter<'_>, text: &[u8]) -> fmt::Result {
    for c in String::from_utf8_lossy(text).chars() {
        match c {
            '"' | '\'' | '\\' => write!(f, "{c}")?,
            c => write!(f, "{}", c.escape_debug())?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Code;
    use proptest::prelude::*;
    use std::time::{Duration, Instant};

    fn printed<T: fmt::Display>(requirements: &[T]) -> String {
        requirements.iter().map(T::to_string).collect::<Vec<_>>().join(",")
    }

    fn labels(text: &str) -> String {
        match parse_labels(text.as_bytes()) {
            Ok(requirements) => printed(&requirements),
            Err(error) => panic!("{text:?} is refused: {error}"),
        }
    }

    fn fields(text: &str) -> String {
        match parse_fields(text.as_bytes()) {
            Ok(requirements) => printed(&requirements),
            Err(error) => panic!("{text:?} is refused: {error}"),
        }
    }

    /// The position that the refusal names.
    fn position<T: fmt::Debug>(text: &[u8], parsed: Result<Vec<T>>) -> usize {
        let error = parsed.expect_err(&format!("{:?} is accepted", String::from_utf8_lossy(text)));
        assert_eq!(error.code(), Code::InvalidArgument);
        let message = error.message();
        let at = message.rfind("\": byte ").expect("names a position") + "\": byte ".len();
        let digits = message[at..].split(':').next().unwrap_or_default();
        digits.parse().unwrap_or_else(|_| panic!("no position in {message}"))
    }

    #[test]
    fn label_selectors_are_accepted() {
        let table = [
            // text, what it means
            ("", ""),
            (" ", ""),
            ("\t\r\n ", ""),
            ("a", "a"),
            ("a ", "a"),
            ("\ra", "a"),
            ("!a", "!a"),
            (" ! a ", "!a"),
            ("a=b", "a=b"),
            ("a==b", "a=b"),
            (" a\t== \n b ", "a=b"),
            ("a!=b", "a!=b"),
            ("a!= b", "a!=b"),
            ("a=", "a="),
            ("a= ", "a="),
            ("a=,b= ", "a=,b="),
            ("a!=", "a!="),
            ("a==,b", "a=,b"),
            ("a>1", "a>1"),
            ("a < 5 , b>0", "a<5,b>0"),
            ("a>007", "a>7"),
            ("a<9223372036854775807", "a<9223372036854775807"),
            // Sets: one value is an equality, and every comma parts two values.
            ("a in (b)", "a=b"),
            ("a notin (b)", "a!=b"),
            ("a in(b)", "a=b"),
            ("a in (c,b)", "a in (b,c)"),
            ("a in ( c , b )", "a in (b,c)"),
            ("a  notin\t\n(c,b)", "a notin (b,c)"),
            ("a in (b,b)", "a=b"),
            ("a in ()", "a="),
            ("a in ( )", "a="),
            ("a notin ( )", "a!="),
            ("a in (,)", "a="),
            ("a in (b,)", "a in (,b)"),
            ("a in (b,,)", "a in (,b)"),
            ("a in (b,,,,,)", "a in (,b)"),
            ("a in (,b)", "a in (,b)"),
            ("a notin (, b)", "a notin (,b)"),
            ("a in (b,,c)", "a in (,b,c)"),
            ("a in (b,,b,,b,,b,,)", "a in (,b)"),
            ("a notin (c,,b),d,e in (),f", "a notin (,b,c),d,e=,f"),
            // Keywords are keys and values too.
            ("in", "in"),
            ("notin", "notin"),
            ("!in", "!in"),
            ("in,notin", "in,notin"),
            ("in in (in)", "in=in"),
            ("notin notin (notin)", "notin!=notin"),
            ("notin=in", "notin=in"),
            ("in!=notin", "in!=notin"),
            ("a in (in,notin)", "a in (in,notin)"),
            ("a in (x,y,notin, z,in)", "a in (in,notin,x,y,z)"),
            ("in>1", "in>1"),
            // Conjunctions, sorted, without doubles; contradictions are no errors.
            ("b,a", "a,b"),
            ("a,a", "a"),
            ("a=b,a==b,a in (b)", "a=b"),
            ("a,!a", "a,!a"),
            ("a=b,a!=b", "a=b,a!=b"),
            ("a=b,a=c", "a=b,a=c"),
            ("b,a in (c)", "a=c,b"),
            // Keys and values.
            ("example.com/a", "example.com/a"),
            ("with-dash.example.com/key-with-dash in (so,what)", "with-dash.example.com/key-with-dash in (so,what)"),
            ("0.1.2.example/99 notin (10.10.100.1, t.c)", "0.1.2.example/99 notin (10.10.100.1,t.c)"),
            ("A_b.c-D=E_f.g-H", "A_b.c-D=E_f.g-H"),
            ("a--b.-_c=d..e", "a--b.-_c=d..e"),
            ("a--b/c", "a--b/c"),
            ("a>1,a>1", "a>1"),
        ];
        for (text, meaning) in table {
            assert_eq!(labels(text), meaning, "{text:?}");
        }
        let (name, prefix) = ("n".repeat(63), "p".repeat(253));
        for text in [format!("{name}={name}"), format!("{prefix}/{name}"), format!("a>{}7", "0".repeat(62))] {
            assert!(parse_labels(text.as_bytes()).is_ok(), "{text}");
        }
    }

    #[test]
    fn label_selectors_are_refused_with_their_position() {
        let table: &[(&str, usize)] = &[
            (",", 0),
            (",a", 0),
            ("a,", 2),
            ("a, ", 3),
            ("a in (b),", 9),
            ("a,,b", 2),
            ("a,,", 2),
            ("a b", 2),
            ("a in (b)c notin ()", 8),
            ("a nott in (b)", 2),
            ("a!", 1),
            ("!", 1),
            ("!!a", 1),
            ("!a=b", 2),
            ("!a in (b)", 3),
            ("!a>1", 2),
            ("! ,a", 2),
            ("a! =b", 1),
            ("a=b=c", 3),
            ("a==b==c", 4),
            ("a===b", 3),
            ("a=!b", 2),
            ("a=!=b", 2),
            ("a=(b)", 2),
            ("a=)", 2),
            ("a=b c", 4),
            ("a=>1", 2),
            ("=b", 0),
            ("==", 0),
            ("!=b", 0),
            (">1", 0),
            ("a=b||c=d", 3),
            ("a||b", 1),
            ("(", 0),
            ("()", 0),
            (")", 0),
            ("(a)", 0),
            ("a (", 2),
            ("a (b)", 2),
            ("a in", 4),
            ("a in b", 5),
            ("a in ,b", 5),
            ("a in=b", 4),
            ("a notin(", 8),
            ("a notin (b", 10),
            ("a in (b c)", 8),
            ("a in (b,", 8),
            ("a in (,", 7),
            ("a in (=)", 6),
            ("a in (b,!c)", 8),
            ("a in ((b))", 6),
            ("a in (b))", 8),
            ("a in (b,>", 8),
            ("a>", 2),
            ("a>,b", 2),
            ("a<b", 2),
            ("a>-1", 2),
            ("a>+1", 2),
            ("a>1.5", 2),
            ("a>1_000", 2),
            ("a>9223372036854775808", 2),
            ("a>(1)", 2),
            // Keys.
            ("-a", 0),
            ("a-", 1),
            ("_a", 0),
            (".", 0),
            ("a/", 2),
            ("/a", 0),
            ("/", 0),
            ("a/b/c", 3),
            ("a/b/", 3),
            ("a//b", 2),
            ("a*b", 1),
            ("A.b/c", 0),
            ("a_b/c", 1),
            ("-a/c", 0),
            ("a-/c", 1),
            ("a..b/c", 1),
            ("a.-b/c", 1),
            ("a-.b/c", 1),
            (".a/c", 0),
            ("a./c", 1),
            ("a\u{b}", 1),
            ("\u{a0}a", 0),
            ("schl\u{fc}ssel", 4),
            // Values.
            ("a=-b", 2),
            ("a=b-", 3),
            ("a=b/c", 3),
            ("a in (b,c:d)", 9),
            ("a=\"b\"", 2),
            ("a=\u{6c34}", 2),
            // A zero byte: no silent end.
            ("\0", 0),
            ("a=b\0,c=d", 3),
        ];
        for (text, at) in table {
            assert_eq!(position(text.as_bytes(), parse_labels(text.as_bytes())), *at, "{text:?}");
        }
        let at = |text: String| position(text.as_bytes(), parse_labels(text.as_bytes()));
        assert_eq!(at("n".repeat(64)), 63);
        assert_eq!(at(format!("a={}", "v".repeat(64))), 2 + 63);
        assert_eq!(at(format!("a/{}", "n".repeat(64))), 2 + 63);
        assert_eq!(at(format!("{}/a", "p".repeat(254))), 253);
        assert_eq!(at(format!("a>{}7", "0".repeat(63))), 2);
        for (text, wrong) in [(&b"a=b\xff"[..], 3), (b"\x80", 0), (b"a in (b,\xe6\xb0)", 8), (b"a\xc0\x80", 1)] {
            assert_eq!(position(text, parse_labels(text)), wrong);
            assert_eq!(position(text, parse_fields(text)), wrong);
        }
    }

    #[test]
    fn label_operators_on_present_and_absent_labels() {
        /// A selector, where it holds, where not.
        type Row = (&'static str, &'static [Option<&'static str>], &'static [Option<&'static str>]);
        let table: &[Row] = &[
            ("a", &[Some("b"), Some("")], &[None]),
            ("!a", &[None], &[Some("b"), Some("")]),
            ("a=b", &[Some("b")], &[None, Some(""), Some("c"), Some("bb")]),
            ("a=", &[Some("")], &[None, Some("b")]),
            ("a!=b", &[None, Some(""), Some("c")], &[Some("b")]),
            ("a!=", &[None, Some("b")], &[Some("")]),
            ("a in (b,c,d)", &[Some("b"), Some("c"), Some("d")], &[None, Some(""), Some("e")]),
            ("a in (b,)", &[Some("b"), Some("")], &[None, Some("c")]),
            ("a notin (b,c)", &[None, Some(""), Some("d")], &[Some("b"), Some("c")]),
            ("a notin ()", &[None, Some("b")], &[Some("")]),
            ("a>1", &[Some("2"), Some("+2"), Some("002")], &[None, Some("1"), Some("-2"), Some("v2"), Some("2.0")]),
            ("a<1", &[Some("0"), Some("-5")], &[None, Some("1"), Some(""), Some("0x0"), Some(" 0")]),
            ("a<1", &[Some("-9223372036854775808")], &[Some("-9223372036854775809")]),
        ];
        for (text, holds, not) in table {
            let requirement = &parse_labels(text.as_bytes()).expect("parses")[0];
            for value in *holds {
                assert!(requirement.holds(value.map(str::as_bytes)), "{text} on {value:?}");
            }
            for value in *not {
                assert!(!requirement.holds(value.map(str::as_bytes)), "{text} on {value:?}");
            }
        }
        let requirement = &parse_labels(b"a>1").expect("parses")[0];
        assert!(!requirement.holds(Some(b"2\xff")));
    }

    #[test]
    fn field_selectors_are_accepted() {
        let table = [
            ("", ""),
            (",", ""),
            (",,,", ""),
            ("=", ""),
            ("!=", ""),
            ("==,a=b", "a=b"),
            ("a=b", "a=b"),
            ("a==b", "a=b"),
            ("a!=b", "a!=b"),
            ("a=", "a="),
            ("a!=", "a!="),
            ("a=b,", "a=b"),
            (",a=b", "a=b"),
            ("a=b,,c!=d", "a=b,c!=d"),
            ("c!=d,a=b", "a=b,c!=d"),
            ("a=b,a=b", "a=b"),
            ("=b", "=b"),
            // White space is text.
            (" a = b ", " a = b "),
            // Escapes, in values only.
            (r"a=\,", r"a=\,"),
            (r"a=\\,b=c", r"a=\\,b=c"),
            (r"a=\\\,,b=c", r"a=\\\,,b=c"),
            (r"a=\=\=b", r"a=\=\=b"),
            (r"a=b||c\=d", r"a=b||c\=d"),
            (r"a==\=b", r"a=\=b"),
            (r"a\,b=c", r"a\,b=c"),
            (r"a\=b", r"a\=b"),
            (r"a\\,b=c", "refused"),
            (r"a=b!c", "a=b!c"),
            ("a=!b", "a=!b"),
            ("a!b=c", "a!b=c"),
            ("a!!=b", "a!!=b"),
            ("metadata.name=x,spec.nodeName!=", "metadata.name=x,spec.nodeName!="),
            ("notin=in", "notin=in"),
            ("\u{6c34}=\u{706b},a=\0", "a=\0,\u{6c34}=\u{706b}"),
        ];
        for (text, meaning) in table {
            if meaning == "refused" {
                assert!(parse_fields(text.as_bytes()).is_err(), "{text:?}");
            } else {
                assert_eq!(fields(text), meaning, "{text:?}");
            }
        }
        let parsed = parse_fields(br"complex=\=value\\\,\\").expect("parses");
        assert_eq!((&*parsed[0].name, parsed[0].equal, &*parsed[0].value), ("complex", true, r"=value\,\"));
    }

    #[test]
    fn field_selectors_are_refused_with_their_position() {
        let table = [
            ("a", 1),
            ("a,b=c", 1),
            ("a=b,c", 5),
            ("a in (b)", 8),
            ("a in (b,c)", 7),
            ("!a", 2),
            ("a>1", 3),
            (" ", 1),
            ("a==b==c", 4),
            ("a=b=c", 3),
            ("a===", 3),
            ("a=b||c=d", 6),
            (r"a=\b", 2),
            (r"a=b\", 3),
            (r"a=\\\", 4),
            (r"a=b\,c=d", 6),
            (r"a=\!", 2),
            (r"a\", 2),
            (r"a\,b", 4),
        ];
        for (text, at) in table {
            assert_eq!(position(text.as_bytes(), parse_fields(text.as_bytes())), at, "{text:?}");
        }
    }

    #[test]
    fn absent_fields_are_the_empty_string() {
        let holds = |text: &str, value: Option<&str>| {
            parse_fields(text.as_bytes()).expect("parses")[0].holds(value.map(str::as_bytes))
        };
        assert!(holds("a!=b", None) && !holds("a!=b", Some("b")) && holds("a!=b", Some("c")));
        assert!(!holds("a=b", None) && holds("a=b", Some("b")) && !holds("a=b", Some("")));
        assert!(holds("a=", None) && holds("a=", Some("")) && !holds("a=", Some("b")));
        assert!(!holds("a!=", None) && !holds("a!=", Some("")) && holds("a!=", Some("b")));
    }

    #[test]
    fn messages_name_the_position_and_what_was_expected() {
        let said = |text: &str| parse_labels(text.as_bytes()).expect_err("is refused").to_string();
        assert_eq!(said("app in (web"), r#"selector "app in (web": byte 11: expected "," or ")", found the end."#);
        assert_eq!(
            said("a b"),
            "selector \"a b\": byte 2: expected \"=\", \"==\", \"!=\", \"in\", \"notin\", \">\", \"<\", \",\" or the end, found \"b\"."
        );
        assert_eq!(
            said("a\n=\u{1b}[2J"),
            "selector \"a\\n=\\u{1b}[2J\": byte 3: expected in the value a letter or digit at both ends, found \"\\u{1b}\"."
        );
        assert_eq!(
            parse_fields(br"a=\x").expect_err("is refused").to_string(),
            r#"field selector "a=\x": byte 2: expected "\" only before "\", "," or "="."#
        );
        // Long ones are shortened to what stands around the position; no character is split.
        for shift in 0..4 {
            let text = format!("a=b{},\u{1d11e}{}", " ".repeat(shift), "\u{1d11e}".repeat(100_000));
            let message = said(&text);
            assert!(message.len() < 400 && !message.contains('\u{fffd}'), "{message}");
            let text = format!("{}a=b c,{}", "a,".repeat(100_000), ",b".repeat(100_000));
            let message = said(&text);
            assert!(
                message.contains("...") && message.contains("byte 200004: expected \",\" or the end, found \"c\"."),
                "{message}"
            );
            assert!(message.len() < 200, "{message}");
        }
        // Characters of three bytes on both sides, so that each cut falls inside one.
        let many = "\u{6c34}".repeat(1000);
        for text in [format!("a {many}"), format!("a=b,{many}"), format!("a  {many}=b")] {
            let message = said(&text);
            assert!(message.len() < 400 && !message.contains('\u{fffd}'), "{message}");
        }
        let message = parse_fields(format!("a={many}=b{many}").as_bytes()).expect_err("is refused").to_string();
        assert!(message.len() < 200 && !message.contains('\u{fffd}') && message.contains("byte 3002: "), "{message}");
        let text = [&b"a"[..], &[0x80; 1000]].concat();
        assert!(parse_labels(&text).expect_err("is refused").message().len() < 400);
    }

    /// No size or nesting makes it slow or deep. The bound is generous: a quadratic reader needs minutes.
    #[test]
    fn a_mebibyte_is_read_in_linear_time() {
        let size = 1 << 20;
        let repeated = |part: &str| part.repeat(size / part.len());
        let start = Instant::now();
        for text in [
            repeated("a,") + "a",
            repeated("a=b,") + "a",
            format!("a in ({})", repeated("b,")),
            format!("a in ({})", repeated(",")),
            repeated("("),
            repeated("a in ("),
            repeated("a in (b),") + "a",
            repeated("a"),
            repeated("a/"),
            repeated("a."),
            repeated("!"),
            repeated("="),
            repeated(" "),
            repeated(" a=\n b ,") + "a",
            repeated("\\"),
            repeated("a=\\,"),
            repeated("a\\,"),
            repeated("a=\\=,"),
            repeated("\u{6c34}"),
            format!("a>{}", repeated("1")),
            (0..size / 8).map(|number| format!("k{number},")).collect::<String>() + "a",
            (0..size / 8).rev().map(|number| format!("k{number}=v,")).collect::<String>(),
        ] {
            let _ = parse_labels(text.as_bytes()).map(|requirements| printed(&requirements));
            let _ = parse_fields(text.as_bytes()).map(|requirements| printed(&requirements));
            let mut broken = text.into_bytes();
            broken.push(0xff);
            assert!(parse_labels(&broken).is_err() && parse_fields(&broken).is_err());
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
    }

    fn word() -> impl Strategy<Value = String> {
        prop_oneof![
            4 => "[a-c]",
            2 => "(in|notin)",
            2 => "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?",
            1 => "[a-z0-9]([-a-z0-9]{0,10}[a-z0-9])?(\\.[a-z0-9]{1,3}){0,2}/[a-z]{1,5}",
            1 => "[0-9]{1,4}",
        ]
    }

    /// Pieces that nearly make a selector.
    fn nearly() -> impl Strategy<Value = String> {
        let piece = prop_oneof![
            6 => word(),
            8 => prop::sample::select(vec![",", "=", "==", "!=", "!", "(", ")", " in (", " notin (", ">", "<", " ", "\t"]).prop_map(str::to_owned),
            1 => prop::sample::select(vec!["\\", "\\,", "/", "-", ".", "\u{fc}", "\0", "\"", "in", "1"]).prop_map(str::to_owned),
        ];
        prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
    }

    fn requirement() -> impl Strategy<Value = String> {
        let value = || prop_oneof!["[a-c]", "", "[A-Z0-9]{1,63}", "in"];
        let set = || prop::collection::vec(value(), 0..5).prop_map(|values| values.join(","));
        prop_oneof![
            (word(), prop::sample::select(vec!["=", "==", "!=", " = "]), value())
                .prop_map(|(k, o, v)| format!("{k}{o}{v}")),
            (word(), prop::sample::select(vec![" in ", " notin\t"]), set())
                .prop_map(|(k, o, s)| format!("{k}{o}({s})")),
            (word(), prop::sample::select(vec![">", "<"]), 0..i64::MAX).prop_map(|(k, o, n)| format!("{k}{o}{n}")),
            word(),
            word().prop_map(|k| format!(" !{k} ")),
        ]
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_or_refused(text in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse_labels(&text);
            let _ = parse_fields(&text);
        }

        /// What is accepted says the same when it is printed and read again; what is refused is refused
        /// at a position inside the text.
        #[test]
        fn printing_and_reading_again_gives_the_same(text in nearly()) {
            match parse_labels(text.as_bytes()) {
                Ok(parsed) => prop_assert_eq!(&parse_labels(printed(&parsed).as_bytes()).expect("parses"), &parsed),
                refused => prop_assert!(position(text.as_bytes(), refused) <= text.len()),
            }
            match parse_fields(text.as_bytes()) {
                Ok(parsed) => prop_assert_eq!(&parse_fields(printed(&parsed).as_bytes()).expect("parses"), &parsed),
                refused => prop_assert!(position(text.as_bytes(), refused) <= text.len()),
            }
        }

        #[test]
        fn right_selectors_are_accepted_in_any_order(mut parts in prop::collection::vec(requirement(), 0..8)) {
            let parsed = parse_labels(parts.join(",").as_bytes()).expect("parses");
            prop_assert_eq!(&parse_labels(printed(&parsed).as_bytes()).expect("parses"), &parsed);
            parts.reverse();
            prop_assert_eq!(&parse_labels(parts.join(" , ").as_bytes()).expect("parses"), &parsed);
        }

        #[test]
        fn any_value_of_a_field_comes_back(value in "\\PC{0,20}", name in "[a-z.]{1,8}") {
            let wanted = vec![FieldRequirement { name: name.into(), equal: value.len() % 2 == 0, value: value.into() }];
            prop_assert_eq!(parse_fields(printed(&wanted).as_bytes()).expect("parses"), wanted);
        }
    }
}
