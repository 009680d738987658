//! The declarations of one cache, compiled: what is extracted of a key-value, once, when its change is prepared.

#![forbid(unsafe_code)]

use super::declared::{Attribute, Labels, LabelsOrigin, Origin};
use super::encode::{Extracted, MAX_FIELDS, TOO_LONG, encode};
use super::json::{Malformed, Pointers};
use super::protobuf::{self, Paths};
use crate::error::{Result, say};
use crate::foreign;
use std::borrow::Cow;

/// The attributes and labels that a cache declares.
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
        let mut found = Extracted { fields: vec![None; self.fields.len()], labels: Vec::new() };
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
        failures + u64::from(!encode(found, TOO_LONG, out))
    }
}

/// Runs an extractor; a panic is an error.
fn guarded<T>(call: impl FnOnce() -> Result<T, ()>) -> Result<T, ()> {
    foreign::guard(call).unwrap_or(Err(()))
}

fn segment(key: &[u8], depth: usize) -> Option<&[u8]> {
    key.strip_prefix(b"/").unwrap_or(key).split(|b| *b == b'/').nth(depth)
}

#[cfg(all(test, feature = "json"))]
mod tests;

#[cfg(all(test, not(feature = "json")))]
mod tests_without_json {
    use super::*;
    use crate::error::Code;

    #[test]
    fn pointers_name_the_feature_that_is_missing() {
        let field = Attribute::json("node", "/spec/nodeName").expect_err("is unsupported");
        let labels = Labels::json("/metadata/labels").expect_err("is unsupported");
        for error in [field, labels] {
            assert_eq!(error.code(), Code::Unsupported);
            assert!(error.message().contains("feature json"), "{error}");
        }
    }
}
