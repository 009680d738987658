//! Attributes of a JSON value: one pass over its text for any number of pointers, without a tree.
//!
//! Values that no pointer names are checked for their form and skipped. The pass always goes to the end: a
//! member that is named again replaces the one before, so an early stop could answer with a value
//! that does not hold, and could take half a text for a whole one. [`crate::json`] says what is accepted.

#![forbid(unsafe_code)]

use super::encode::Extracted;
use crate::error::{Result, refuse};
use crate::json::{JsonScan, JsonString, MAX_JSON_DEPTH};
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
    fn child(&self, name: JsonString<'_>) -> Option<&PointerChild> {
        self.children.iter().find(|child| name.is(&child.name))
    }
}

struct PointerChild {
    name: Box<str>,
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
            let known = self.nodes[at].children.iter().find(|child| *child.name == *token);
            at = match known {
                Some(child) => child.node,
                None => {
                    let node = self.nodes.len();
                    self.nodes.push(PointerNode::default());
                    let index = (token == "0" || !token.starts_with(['0', '+'])).then(|| token.parse().ok()).flatten();
                    self.nodes[at].children.push(PointerChild { name: token.into(), index, node });
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
        let mut scan = JsonScan::new(text);
        let walked = Walk { nodes: &self.nodes, found }.value(root, &mut scan);
        if walked.is_some() && scan.ends() { Ok(()) } else { Err(Malformed) }
    }
}

/// The value is not of the form that it should be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Malformed;

struct Walk<'v, 'w> {
    nodes: &'w [PointerNode],
    found: &'w mut Extracted<'v>,
}

impl<'v> Walk<'v, '_> {
    /// Takes the value of a node. Recursion ends with the longest pointer.
    fn value(&mut self, node: &PointerNode, scan: &mut JsonScan<'v>) -> Option<()> {
        match scan.peek()? {
            b'{' if node.labels => scan.members(|scan, name| self.label(node, name, scan)),
            b'{' if !node.children.is_empty() => scan.members(|scan, name| self.child(node.child(name), scan)),
            b'[' if !node.children.is_empty() => {
                let mut number = 0;
                scan.elements(|scan| {
                    let child = node.children.iter().find(|child| child.index == Some(number));
                    number += 1;
                    self.child(child, scan)
                })
            }
            _ if node.fields.is_empty() => scan.pass(),
            _ => {
                let scalar = scalar(scan)?;
                if let Some((last, others)) = node.fields.split_last() {
                    for field in others {
                        self.found.fields[*field] = scalar.clone();
                    }
                    self.found.fields[*last] = scalar;
                }
                Some(())
            }
        }
    }

    fn label(&mut self, node: &PointerNode, name: JsonString<'v>, scan: &mut JsonScan<'v>) -> Option<()> {
        if let Some(child) = node.child(name) {
            self.child(Some(child), &mut scan.clone())?;
        }
        self.found.labels.push((name.text()?, scalar(scan)?));
        Some(())
    }

    /// Takes the value of a member or element, which no pointer may lead to. A member named twice: what the first has
    /// brought is dropped.
    #[inline]
    fn child(&mut self, child: Option<&PointerChild>, scan: &mut JsonScan<'v>) -> Option<()> {
        let Some(child) = child else { return scan.pass() };
        let node = &self.nodes[child.node];
        for field in &node.fields_below {
            self.found.fields[*field] = None;
        }
        if node.labels_below {
            self.found.labels.clear();
        }
        self.value(node, scan)
    }
}

/// A string, or the text of a number or boolean; other values are skipped and are none.
#[inline]
fn scalar<'v>(scan: &mut JsonScan<'v>) -> Option<Option<Cow<'v, [u8]>>> {
    Some(match scan.peek()? {
        b'"' => Some(scan.string()?.text()?),
        b'{' | b'[' | b'n' => scan.pass().map(|()| None)?,
        _ => Some(Cow::Borrowed(scan.value()?)),
    })
}

#[cfg(test)]
mod tests;
