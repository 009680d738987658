//! Field selectors: requirements, and the parser.

#![forbid(unsafe_code)]

use super::{Unexpected, utf8};
use crate::error::{Result, refuse};
use std::fmt;

const FIELDS: &str = "field selector";

/// A requirement of a field selector: a field is, or is not, this value.
///
/// For programs that name fields otherwise than their caches do: they read a selector, give each requirement the name of
/// an attribute, and print them as a selector of the cache.
///
/// ```
/// use watchcore::{FieldRequirement, Filter};
///
/// let mut requirements = FieldRequirement::parse(r"spec.node!=a\,b,spec.node==c")?;
/// requirements.iter_mut().for_each(|requirement| requirement.name = "node".into());
/// let texts: Vec<String> = requirements.iter().map(|requirement| requirement.to_string()).collect();
/// assert_eq!(texts, [r"node!=a\,b", "node=c"]);
/// assert_eq!(Filter::any().fields(texts.join(","))?, Filter::any().fields(r"node=c,node!=a\,b")?);
/// # Ok::<(), watchcore::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FieldRequirement {
    /// Which field.
    pub name: Box<str>,
    /// Whether its value has to be [`FieldRequirement::value`], or anything else.
    pub equal: bool,
    /// The value, without escapes.
    pub value: Box<str>,
}

impl FieldRequirement {
    /// Reads a field selector in Kubernetes' grammar, as [`Filter::fields`](crate::Filter::fields) does; the empty one has
    /// no requirement. They come sorted, each once.
    ///
    /// # Errors
    /// INVALID_ARGUMENT with the 0-based byte position and what was expected there.
    pub fn parse(selector: impl AsRef<[u8]>) -> Result<Vec<FieldRequirement>> {
        parse_fields(selector.as_ref())
    }

    /// Whether a field of this value passes; one that is absent is the empty string.
    #[inline]
    pub(crate) fn holds(&self, value: Option<&[u8]>) -> bool {
        (value.unwrap_or_default() == self.value.as_bytes()) == self.equal
    }
}

/// Prints what [`FieldRequirement::parse`] reads back as an equal requirement.
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
/// value beside it. The name ends at the first operator and has no escapes, except that a comma after
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

/// The end of the name that begins here, and the length of the operator there; 0 for an empty term.
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
