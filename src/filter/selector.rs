//! The grammar of label and field selectors: Kubernetes' own.
//!
//! Labels follow k8s.io/apimachinery `pkg/labels`, function `Parse`; fields follow `pkg/fields`,
//! function `ParseSelector`. This parser accepts what these accept, with the same meaning, and refuses the rest, with
//! two differences:
//!
//! - A zero byte in a label selector is refused. There it ends the selector without a word, so that
//!   what follows it selects nothing.
//! - A field selector that is not UTF-8 is refused. There its bytes are kept, or become U+FFFD where
//!   the value holds an escape.
//!
//! A selector is a conjunction, so its requirements come back sorted and without doubles: equal
//! selectors compare equal, whatever their order was. `a=b`, `a==b` and `a in (b)` are one
//! requirement, and so are `a!=b` and `a notin (b)`.
//!
//! Parsing needs no recursion and one look at each byte; then the requirements are sorted.

#![forbid(unsafe_code)]

mod fields;
mod labels;

pub use fields::FieldRequirement;
pub(crate) use fields::parse_fields;
pub(crate) use labels::{LabelRequirement, Test, label_selector, parse_labels};

use crate::error::{Result, boundary, printable, refuse};
use std::fmt;

fn utf8<'a>(what: &str, text: &'a [u8]) -> Result<&'a str> {
    std::str::from_utf8(text).map_err(|wrong| refuse(what, text, wrong.valid_up_to(), "expected UTF-8"))
}

/// The text that stands where something else was expected.
struct Unexpected<'a>(&'a [u8]);

impl fmt::Display for Unexpected<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Unexpected(text) = *self;
        if text.is_empty() {
            return f.write_str("the end");
        }
        let quoted = if text.len() <= 40 { text.len() } else { boundary(text, 40) };
        f.write_str("\"")?;
        printable(f, &text[..quoted])?;
        f.write_str(if quoted < text.len() { "...\"" } else { "\"" })
    }
}

#[cfg(test)]
mod tests;
