//! Kubernetes' protobuf storage form, walked by field numbers.
//!
//! A value is the bytes `k8s\0` and a message `Unknown` (k8s.io/apimachinery `runtime/generated.proto`):
//! field 2 is the object, field 3 its encoding, which the storage leaves empty. Of the object only what
//! a path leads to is looked at: metadata is field 1 of every kind, and in it (`meta/v1/generated.proto`)
//! 1 is name, 3 namespace, and 11 labels, a map with key 1 and value 2.
//!
//! As protobuf says, the last occurrence of a scalar holds, and messages that occur again are merged.
//! The bytes do not show whether a field is a string or a message: a path that ends at a message gives
//! the bytes of its last occurrence.

#![forbid(unsafe_code)]

use super::attribute::Found;
use super::json::Malformed;
use std::borrow::Cow;

pub(crate) const MAGIC: &[u8] = b"k8s\0";
pub(crate) const MAX_FIELD: u32 = (1 << 29) - 1;
/// Messages inside each other; the limit of most readers of protobuf.
pub(crate) const MAX_DEPTH: usize = 100;

pub(crate) const NAME: &[u32] = &[1, 1];
pub(crate) const NAMESPACE: &[u32] = &[1, 3];
const LABELS: &[u32] = &[1, 11];

/// All paths of a schema.
#[derive(Default)]
pub(crate) struct Paths {
    /// The first is the object; there is none while there is no path.
    nodes: Vec<Node>,
}

#[derive(Default)]
struct Node {
    /// By field number.
    children: Vec<(u32, usize)>,
    /// The fields whose path ends here.
    fields: Vec<usize>,
    /// Whether this is an entry of the labels.
    labels: bool,
}

impl Paths {
    pub(crate) fn add_field(&mut self, path: &[u32], field: usize) {
        let node = self.path(path);
        self.nodes[node].fields.push(field);
    }

    pub(crate) fn set_labels(&mut self) {
        let node = self.path(LABELS);
        self.nodes[node].labels = true;
    }

    fn path(&mut self, path: &[u32]) -> usize {
        if self.nodes.is_empty() {
            self.nodes.push(Node::default());
        }
        let mut at = 0;
        for number in path {
            let known = self.nodes[at].children.iter().find(|child| child.0 == *number);
            at = match known {
                Some(child) => child.1,
                None => {
                    let node = self.nodes.len();
                    self.nodes.push(Node::default());
                    self.nodes[at].children.push((*number, node));
                    node
                }
            };
        }
        at
    }

    /// Fills in what the paths find in `value`, which begins with [`MAGIC`]. After an error `found`
    /// holds some of it.
    pub(crate) fn read<'v>(&self, value: &'v [u8], found: &mut Found<'v>) -> Result<(), Malformed> {
        let Some(object) = self.nodes.first() else { return Ok(()) };
        let mut raw: &[u8] = &[];
        let mut fields = Fields(value.get(MAGIC.len()..).ok_or(Malformed)?);
        while let Some((number, field)) = fields.next()? {
            match (number, field) {
                (2, Field::Bytes(bytes)) => raw = bytes,
                // Nobody knows how to read this.
                (3, Field::Bytes(encoding)) if !encoding.is_empty() => return Err(Malformed),
                _ => {}
            }
        }
        self.message(object, raw, found)
    }

    /// Recursion ends with the longest path.
    fn message<'v>(&self, node: &Node, message: &'v [u8], found: &mut Found<'v>) -> Result<(), Malformed> {
        let mut fields = Fields(message);
        while let Some((number, field)) = fields.next()? {
            let Some((_, child)) = node.children.iter().find(|child| child.0 == number) else { continue };
            let child = &self.nodes[*child];
            if !child.fields.is_empty() {
                let scalar = match field {
                    Field::Bytes(bytes) => Some(Cow::Borrowed(bytes)),
                    Field::Varint(number) => Some(Cow::Owned(number.cast_signed().to_string().into_bytes())),
                    Field::Other => None,
                };
                for field in &child.fields {
                    found.fields[*field] = scalar.clone();
                }
            }
            if let Field::Bytes(bytes) = field {
                if child.labels {
                    found.labels.push(entry(bytes)?);
                }
                if !child.children.is_empty() {
                    self.message(child, bytes, found)?;
                }
            }
        }
        Ok(())
    }
}

/// An entry of a map of strings. What is left out is empty.
fn entry(message: &[u8]) -> Result<super::attribute::Label<'_>, Malformed> {
    let (mut key, mut value): (&[u8], &[u8]) = (&[], &[]);
    let mut fields = Fields(message);
    while let Some((number, field)) = fields.next()? {
        match (number, field) {
            (1, Field::Bytes(bytes)) => key = bytes,
            (2, Field::Bytes(bytes)) => value = bytes,
            _ => {}
        }
    }
    Ok((Cow::Borrowed(key), Some(Cow::Borrowed(value))))
}

#[derive(Clone, Copy)]
enum Field<'v> {
    Varint(u64),
    Bytes(&'v [u8]),
    /// A number of fixed width, or a group.
    Other,
}

/// The fields of a message that are still to be read.
struct Fields<'v>(&'v [u8]);

impl<'v> Fields<'v> {
    #[inline]
    fn next(&mut self) -> Result<Option<(u32, Field<'v>)>, Malformed> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let (number, kind) = self.tag()?;
        let field = match kind {
            0 => Field::Varint(self.varint()?),
            2 => Field::Bytes(self.bytes()?),
            3 => {
                self.group(number)?;
                Field::Other
            }
            kind => {
                self.fixed(kind)?;
                Field::Other
            }
        };
        Ok(Some((number, field)))
    }

    #[inline]
    fn tag(&mut self) -> Result<(u32, u8), Malformed> {
        let tag = u32::try_from(self.varint()?).map_err(|_| Malformed)?;
        if tag >> 3 == 0 { Err(Malformed) } else { Ok((tag >> 3, (tag & 7) as u8)) }
    }

    #[inline]
    fn varint(&mut self) -> Result<u64, Malformed> {
        let mut number = 0;
        for (at, b) in self.0.iter().take(10).enumerate() {
            // The tenth byte holds the last bit.
            if at == 9 && *b > 1 {
                return Err(Malformed);
            }
            number |= u64::from(b & 0x7f) << (7 * at);
            if b & 0x80 == 0 {
                self.0 = &self.0[at + 1..];
                return Ok(number);
            }
        }
        Err(Malformed)
    }

    #[inline]
    fn bytes(&mut self) -> Result<&'v [u8], Malformed> {
        let length = usize::try_from(self.varint()?).map_err(|_| Malformed)?;
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(Malformed)?;
        self.0 = rest;
        Ok(bytes)
    }

    fn fixed(&mut self, kind: u8) -> Result<(), Malformed> {
        let length = match kind {
            1 => 8,
            5 => 4,
            _ => return Err(Malformed),
        };
        self.0 = self.0.get(length..).ok_or(Malformed)?;
        Ok(())
    }

    /// Skips a group whose start was read, to its end.
    fn group(&mut self, number: u32) -> Result<(), Malformed> {
        let mut open = vec![number];
        while let Some(innermost) = open.last() {
            let (number, kind) = self.tag()?;
            match kind {
                0 => {
                    self.varint()?;
                }
                2 => {
                    self.bytes()?;
                }
                3 if open.len() < MAX_DEPTH => open.push(number),
                4 if number == *innermost => {
                    open.pop();
                }
                kind => self.fixed(kind)?,
            }
        }
        Ok(())
    }
}
