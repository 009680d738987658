//! Attributes of key-values: declared once for a cache, extracted once, when a change is written.
//!
//! They are kept as bytes behind the value: one word (the number of fields in its low 8 bits, of labels
//! above), one word for the end of each string, then the strings: the fields, then key and value of
//! each label in the order of the keys. Words are little-endian; the highest bit of an end says that the
//! field is absent. Fields behind the last one that is present are left out, and where nothing is
//! present there are no bytes at all.

#![forbid(unsafe_code)]

use super::json::{Malformed, Pointer, Pointers};
use super::protobuf::{self, Paths};
use crate::error::{Code, Error, Result, say};
use std::borrow::Cow;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The most fields that a cache can declare.
pub(crate) const MAX_FIELDS: usize = 64;
/// The most labels of one key-value; all strings together stay below [`ABSENT`].
const MAX_LABELS: usize = (1 << 24) - 1;
const ABSENT: u32 = 1 << 31;

/// A declared attribute of key-values: extracted once, when a change is written.
///
/// A field selector names it, and an index can be built on it. On a value that does not have it, it is
/// the empty string.
#[derive(Clone)]
pub struct Attribute {
    name: Box<str>,
    origin: Origin,
}

#[derive(Clone)]
enum Origin {
    Segment(usize),
    Json { pointer: Pointer, protobuf: Option<Box<[u32]>> },
    Call(Arc<FieldCall>),
}

/// `Err` stands for an error of the extractor.
type FieldCall = dyn Fn(&[u8], &[u8]) -> Result<Option<Vec<u8>>, ()> + Send + Sync;
type LabelsCall = dyn Fn(&[u8], &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>, ()> + Send + Sync;

impl Attribute {
    /// Segment `depth` of the key, split at `/`, where a leading `/` does not count: of
    /// `/registry/pods/ns/x`, segment 2 is `ns`. A key with fewer segments does not have it.
    pub fn key_segment(name: impl Into<String>, depth: usize) -> Attribute {
        Attribute { name: name.into().into(), origin: Origin::Segment(depth) }
    }

    /// A scalar of a JSON value by its RFC 6901 pointer: a string as it is, a number or boolean by its
    /// JSON text. Arrays, objects and null are absent.
    ///
    /// All pointers of a cache are found in one pass over the value, which always goes to its end: of
    /// members with the same name the last holds. A value that is not JSON has none of them and is
    /// counted once.
    ///
    /// In a value of Kubernetes' protobuf storage form (`k8s\0`) the pointers `/metadata/name` and
    /// `/metadata/namespace` are known too; others are absent there, unless [`Attribute::protobuf`] says
    /// where they are.
    ///
    /// # Errors
    /// INVALID_ARGUMENT with the 0-based byte position where the pointer is malformed. UNSUPPORTED
    /// without the crate's feature `json`.
    pub fn json(name: impl Into<String>, pointer: &str) -> Result<Attribute> {
        let name = name.into();
        let pointer = json_pointer(&format!("attribute {name:?}, JSON pointer"), pointer)?;
        Ok(Attribute { name: name.into(), origin: Origin::Json { pointer, protobuf: None } })
    }

    /// Where an attribute of [`Attribute::json`] is in a value of Kubernetes' protobuf storage form: at
    /// this path of field numbers in the object. A pod's `spec.nodeName` is `&[2, 10]`.
    ///
    /// A string or bytes are taken as they are, a varint as a signed decimal number; numbers of fixed
    /// width and groups are absent. Of several occurrences the last holds.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the path is empty or longer than 100, if a number is not in 1..=536870911, or
    /// if the attribute does not come from JSON.
    pub fn protobuf(mut self, path: &[u32]) -> Result<Attribute> {
        let name = &self.name;
        let Origin::Json { protobuf, .. } = &mut self.origin else {
            return Err(say::invalid(format!(
                "attribute {name:?}, protobuf path {path:?}: only an attribute by JSON pointer has one. Declare it with json."
            )));
        };
        if path.is_empty() || path.len() > protobuf::MAX_DEPTH {
            return Err(say::invalid(format!(
                "attribute {name:?}, protobuf path: it has {} field numbers. Name 1 to {}.",
                path.len(),
                protobuf::MAX_DEPTH
            )));
        }
        if let Some((at, number)) =
            path.iter().enumerate().find(|(_, number)| !(1..=protobuf::MAX_FIELD).contains(*number))
        {
            return Err(say::invalid(format!(
                "attribute {name:?}, protobuf path: number {at} is {number}. Field numbers are 1 to {}.",
                protobuf::MAX_FIELD
            )));
        }
        *protobuf = Some(path.into());
        Ok(self)
    }

    /// What a function makes of key and value. It runs on the writer's thread, once for each put.
    ///
    /// An `Err` or a panic leaves the attribute absent and is counted; the change is written all the
    /// same.
    pub fn extractor<E: fmt::Display>(
        name: impl Into<String>,
        extract: impl Fn(&[u8], &[u8]) -> Result<Option<Vec<u8>>, E> + Send + Sync + 'static,
    ) -> Attribute {
        let name: Box<str> = name.into().into();
        let call = {
            let name = name.clone();
            move |key: &[u8], value: &[u8]| {
                extract(key, value).map_err(|error| tracing::debug!(attribute = &*name, "extractor failed: {error}"))
            }
        };
        Attribute { name, origin: Origin::Call(Arc::new(call)) }
    }

    /// The name that selectors use.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Debug for Attribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Attribute");
        shown.field("name", &self.name);
        match &self.origin {
            Origin::Segment(depth) => shown.field("key_segment", depth),
            Origin::Json { pointer, protobuf } => shown.field("json", pointer).field("protobuf", protobuf),
            Origin::Call(_) => shown.field("extractor", &format_args!("..")),
        };
        shown.finish()
    }
}

/// Where the labels of key-values come from: what a label selector looks at.
#[derive(Clone)]
pub struct Labels(LabelsOrigin);

#[derive(Clone)]
enum LabelsOrigin {
    Json(Pointer),
    Call(Arc<LabelsCall>),
}

impl Labels {
    /// The members of the JSON object at an RFC 6901 pointer: strings as they are, numbers and booleans
    /// by their JSON text; other members are no labels. For Kubernetes' objects: `/metadata/labels`.
    ///
    /// In a value of Kubernetes' protobuf storage form (`k8s\0`) the labels are metadata.labels, whatever
    /// the pointer says.
    ///
    /// # Errors
    /// As [`Attribute::json`].
    pub fn json(pointer: &str) -> Result<Labels> {
        json_pointer("labels, JSON pointer", pointer).map(|pointer| Labels(LabelsOrigin::Json(pointer)))
    }

    /// What a function makes of key and value: pairs of key and value. Of pairs with the same key the
    /// last holds. It runs on the writer's thread, once for each put.
    ///
    /// An `Err` or a panic leaves the key-value without labels and is counted; the change is written all
    /// the same.
    pub fn extractor<E: fmt::Display>(
        extract: impl Fn(&[u8], &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>, E> + Send + Sync + 'static,
    ) -> Labels {
        Labels(LabelsOrigin::Call(Arc::new(move |key: &[u8], value: &[u8]| {
            extract(key, value).map_err(|error| tracing::debug!("extractor of labels failed: {error}"))
        })))
    }
}

impl fmt::Debug for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Labels");
        match &self.0 {
            LabelsOrigin::Json(pointer) => shown.field("json", pointer),
            LabelsOrigin::Call(_) => shown.field("extractor", &format_args!("..")),
        };
        shown.finish()
    }
}

fn json_pointer(what: &str, pointer: &str) -> Result<Pointer> {
    if cfg!(feature = "json") {
        Pointer::parse(what, pointer)
    } else {
        Err(Error::new(
            Code::Unsupported,
            format!("{what} {pointer:?}: this build reads no JSON. Build watchcore with its feature json."),
        ))
    }
}

/// A label and its value; `None` where the last member of that name is no scalar.
pub(crate) type Label<'v> = (Cow<'v, [u8]>, Option<Cow<'v, [u8]>>);

/// What was found in one key-value.
pub(crate) struct Found<'v> {
    pub(crate) fields: Vec<Option<Cow<'v, [u8]>>>,
    pub(crate) labels: Vec<Label<'v>>,
}

/// What a cache declares.
pub(crate) struct Schema {
    fields: Vec<Attribute>,
    labels: Option<Labels>,
    pointers: Pointers,
    paths: Paths,
    /// The fields that come from the value by pointer or path.
    parsed: Vec<usize>,
}

impl Schema {
    /// # Errors
    /// INVALID_ARGUMENT for more than 64 fields, and for a name that is empty or comes twice.
    pub(crate) fn new(fields: Vec<Attribute>, labels: Option<Labels>) -> Result<Schema> {
        if fields.len() > MAX_FIELDS {
            return Err(say::invalid(format!(
                "{} attributes: a cache has {MAX_FIELDS} at most. Declare fewer.",
                fields.len()
            )));
        }
        let (mut pointers, mut paths, mut parsed) = (Pointers::default(), Paths::default(), Vec::new());
        for (number, field) in fields.iter().enumerate() {
            if field.name.is_empty() {
                return Err(say::invalid(format!("attribute {number}: its name is empty. Give it one.")));
            }
            if fields[..number].iter().any(|other| other.name == field.name) {
                return Err(say::invalid(format!(
                    "attribute {:?}: it is declared twice. Give each a name of its own.",
                    field.name
                )));
            }
            if let Origin::Json { pointer, protobuf } = &field.origin {
                pointers.add_field(pointer, number);
                parsed.push(number);
                let tokens: Vec<&str> = pointer.tokens().collect();
                match (protobuf, &*tokens) {
                    (Some(path), _) => paths.add_field(path, number),
                    (None, ["metadata", "name"]) => paths.add_field(protobuf::NAME, number),
                    (None, ["metadata", "namespace"]) => paths.add_field(protobuf::NAMESPACE, number),
                    _ => {}
                }
            }
        }
        if let Some(Labels(LabelsOrigin::Json(pointer))) = &labels {
            pointers.set_labels(pointer);
            paths.set_labels();
        }
        Ok(Schema { fields, labels, pointers, paths, parsed })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.fields.is_empty() && self.labels.is_none()
    }

    pub(crate) fn has_labels(&self) -> bool {
        self.labels.is_some()
    }

    /// The number of the field with this name.
    pub(crate) fn field(&self, name: &str) -> Option<usize> {
        self.fields.iter().position(|field| *field.name == *name)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.fields.iter().map(Attribute::name)
    }

    /// Appends the encoded attributes of a key-value to `out`, and returns how many extractors failed. A
    /// value that is malformed where JSON or protobuf is asked for is one failure; a pointer that leads
    /// nowhere is none.
    ///
    /// It never panics, also where an extractor does. Its time grows with the length of the value.
    pub(crate) fn extract(&self, key: &[u8], value: &[u8], out: &mut Vec<u8>) -> u64 {
        if self.is_empty() {
            return 0;
        }
        let mut failures = 0;
        let mut found = Found { fields: vec![None; self.fields.len()], labels: Vec::new() };
        if !self.pointers.is_empty() {
            let read = if value.starts_with(protobuf::MAGIC) {
                self.paths.read(value, &mut found)
            } else {
                self.pointers.read(value, &mut found)
            };
            if let Err(Malformed) = read {
                failures += 1;
                self.parsed.iter().for_each(|field| found.fields[*field] = None);
                found.labels.clear();
            }
        }
        for (field, place) in self.fields.iter().zip(&mut found.fields) {
            match &field.origin {
                Origin::Segment(depth) => *place = segment(key, *depth).map(Cow::Borrowed),
                Origin::Call(call) => match guarded(|| call(key, value)) {
                    Ok(attribute) => *place = attribute.map(Cow::Owned),
                    Err(()) => failures += 1,
                },
                Origin::Json { .. } => {}
            }
        }
        if let Some(Labels(LabelsOrigin::Call(call))) = &self.labels {
            match guarded(|| call(key, value)) {
                Ok(labels) => {
                    found.labels = labels.into_iter().map(|(key, value)| (key.into(), Some(value.into()))).collect();
                }
                Err(()) => failures += 1,
            }
        }
        failures + u64::from(!encode(found, ABSENT as usize, out))
    }
}

/// Runs an extractor; a panic is an error.
fn guarded<T>(call: impl FnOnce() -> Result<T, ()>) -> Result<T, ()> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(outcome) => outcome,
        Err(payload) => {
            // A payload may panic in its turn when it is dropped; that one is left alone.
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
                std::mem::forget(payload);
            }
            Err(())
        }
    }
}

fn segment(key: &[u8], depth: usize) -> Option<&[u8]> {
    key.strip_prefix(b"/").unwrap_or(key).split(|b| *b == b'/').nth(depth)
}

/// Appends what was found, or nothing and `false` where its strings have `limit` bytes or more.
fn encode(mut found: Found<'_>, limit: usize, out: &mut Vec<u8>) -> bool {
    // A stable sort, so that of equal keys the last named one comes last.
    found.labels.sort_by(|one, other| one.0.cmp(&other.0));
    let mut labels: Vec<(&[u8], &[u8])> = Vec::with_capacity(found.labels.len());
    for (at, (key, value)) in found.labels.iter().enumerate() {
        let last = found.labels.get(at + 1).is_none_or(|next| next.0 != *key);
        if let (true, Some(value)) = (last, value) {
            labels.push((key, value));
        }
    }
    let fields = found.fields.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
    if fields == 0 && labels.is_empty() {
        return true;
    }
    let strings = || {
        let fields = found.fields[..fields].iter().map(Option::as_deref);
        fields.chain(labels.iter().flat_map(|(key, value)| [Some(*key), Some(*value)]))
    };
    let length = strings().flatten().fold(0usize, |sum, string| sum.saturating_add(string.len()));
    if length >= limit || labels.len() > MAX_LABELS {
        return false;
    }
    out.reserve((1 + fields + 2 * labels.len()) * 4 + length);
    out.extend_from_slice(&((labels.len() as u32) << 8 | fields as u32).to_le_bytes());
    let mut end = 0;
    for string in strings() {
        end += string.map_or(0, <[u8]>::len) as u32;
        let absent = if string.is_none() { ABSENT } else { 0 };
        out.extend_from_slice(&(end | absent).to_le_bytes());
    }
    strings().flatten().for_each(|string| out.extend_from_slice(string));
    true
}

/// A view of encoded attributes; an empty slice has none.
///
/// Reading never panics, whatever the bytes are.
#[derive(Clone, Copy)]
pub(crate) struct Attributes<'a>(pub(crate) &'a [u8]);

impl<'a> Attributes<'a> {
    /// The number of fields and of labels.
    #[inline]
    fn counts(&self) -> (usize, usize) {
        let word = self.word(0).unwrap_or(0);
        ((word & 0xff) as usize, (word >> 8) as usize)
    }

    #[inline]
    fn word(&self, number: usize) -> Option<u32> {
        let bytes = self.0.get(number * 4..)?.first_chunk()?;
        Some(u32::from_le_bytes(*bytes))
    }

    /// String `number` of `count`.
    #[inline]
    fn string(&self, number: usize, count: usize) -> Option<&'a [u8]> {
        let end = self.word(number + 1)?;
        let start = if number == 0 { 0 } else { self.word(number)? & !ABSENT };
        if end & ABSENT != 0 {
            return None;
        }
        let strings = self.0.get((count + 1) * 4..)?;
        strings.get(start as usize..end as usize)
    }

    /// The field with this number; `None` is absent.
    #[inline]
    pub(crate) fn field(&self, number: usize) -> Option<&'a [u8]> {
        let (fields, labels) = self.counts();
        if number < fields { self.string(number, fields + 2 * labels) } else { None }
    }

    /// The value of the label with this key; `None` is absent.
    #[inline]
    pub(crate) fn label(&self, key: &[u8]) -> Option<&'a [u8]> {
        let (fields, labels) = self.counts();
        let count = fields + 2 * labels;
        let (mut low, mut high) = (0, labels);
        while low < high {
            let middle = low + (high - low) / 2;
            let number = fields + 2 * middle;
            match self.string(number, count)?.cmp(key) {
                std::cmp::Ordering::Equal => return self.string(number + 1, count),
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        None
    }

    /// All labels, in the order of their keys.
    pub(crate) fn labels(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + 'a {
        let (fields, labels) = self.counts();
        let (view, count) = (*self, fields + 2 * labels);
        (0..labels).map_while(move |label| {
            let number = fields + 2 * label;
            Some((view.string(number, count)?, view.string(number + 1, count)?))
        })
    }
}
