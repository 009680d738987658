//! The Table form: an object as a row of cells, as kubectl prints it.
//!
//! A [`TableShape`] is made once from a resource's declaration: the encoded column definitions, and a tree of the JSON
//! pointers of all columns. A row takes one scan of the value, which records where each column's value lies; then the
//! cells are written in order. Name comes first and Age last, around the declared columns.

use super::age::{UNKNOWN, age};
use super::resource::Resource;
use super::{Form, Included, Object};
use crate::json::layout::{quoted, quoted_number};
use serde_json::Value;
use std::ops::Range;
use std::time::SystemTime;
use watchcore::json::JsonScan;

const NAME: &str = "Name must be unique within a namespace. Is required when creating resources, although some resources may allow a client to request the generation of an appropriate name automatically. Name is primarily intended for creation idempotence and configuration definition. Cannot be updated. More info: https://kubernetes.io/docs/concepts/overview/working-with-objects/names#names";
const AGE: &str = "CreationTimestamp is a timestamp representing the server time when this object was created. It is not guaranteed to be set in happens-before order across separate operations. Clients may not set this value. It is represented in RFC3339 form and is in UTC.\n\nPopulated by the system. Read-only. Null for lists. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata";

/// Index of the creation time among the values that a scan finds; the declared columns follow.
const CREATED_AT: usize = 0;
const DECLARED_AT: usize = 1;

/// The columns of a resource's tables.
pub(crate) struct TableShape {
    /// The encoded array of column definitions.
    definitions: Vec<u8>,
    /// How each declared column is shown, in order.
    columns: Vec<CellKind>,
    root: PointerTree,
    /// Whether all pointers stay within `metadata`.
    only_metadata: bool,
}

/// How the cell of a declared column is made from its value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum CellKind {
    Text,
    Integer,
    Number,
    Boolean,
    /// Shown as an age.
    Date,
    /// A type that Kubernetes does not name: the value unchanged.
    Any,
    /// The revision of the key; the stored version is stale.
    Version,
    /// The namespace of the key, as in the object.
    Namespace,
    Name,
}

/// The JSON pointers of all columns, by their first segments.
#[derive(Default)]
struct PointerTree {
    /// Numbers of the values that lie at this node.
    ends: Vec<usize>,
    members: Vec<(String, PointerTree)>,
}

/// Byte ranges of the values in an object, by their numbers.
type ValueRanges = Vec<Option<Range<usize>>>;

impl TableShape {
    pub(crate) fn new(resource: &Resource) -> TableShape {
        let mut shape = TableShape {
            definitions: b"[".to_vec(),
            columns: Vec::new(),
            root: PointerTree::default(),
            only_metadata: false,
        };
        shape.root.add("/metadata/creationTimestamp", CREATED_AT);
        shape.define("Name", "string", "name", NAME);
        for (at, column) in resource.columns.iter().enumerate() {
            shape.root.add(&column.pointer, DECLARED_AT + at);
            shape.columns.push(CellKind::of(&column.kind, &column.pointer));
            shape.define(&column.name, &column.kind, "", &format!("The value at {} of the object", column.pointer));
        }
        shape.define("Age", "date", "", AGE);
        shape.definitions.push(b']');
        shape.only_metadata = shape.root.ends.is_empty() && shape.root.members.len() == 1;
        shape
    }

    fn define(&mut self, name: &str, kind: &str, format: &str, description: &str) {
        let out = &mut self.definitions;
        for (member, text) in [("name", name), ("type", kind), ("format", format), ("description", description)] {
            out.extend_from_slice(if member != "name" {
                b","
            } else if out.len() > 1 {
                b",{"
            } else {
                b"{"
            });
            quoted(member, out);
            out.push(b':');
            quoted(text, out);
        }
        out.extend_from_slice(br#","priority":0}"#);
    }

    /// Appends the object in a form with this revision, as a watch event or a GET has it.
    pub(crate) fn write_as(&self, object: &Object<'_>, form: Form, revision: u64, out: &mut Vec<u8>) {
        match form {
            Form::Json => object.write(revision, out),
            Form::Metadata => object.write_partial(revision, out),
            Form::Table(included) => self.write_table(Some(object), revision, included, out),
        }
    }

    /// Appends a whole Table at a revision, with the row of an object or without rows.
    pub(crate) fn write_table(
        &self,
        object: Option<&Object<'_>>,
        revision: u64,
        included: Included,
        out: &mut Vec<u8>,
    ) {
        self.write_before_rows(revision, out);
        if let Some(object) = object {
            self.write_row(object, revision, included, out);
        }
        out.extend_from_slice(b"]}");
    }

    /// Appends the Table of a bookmark: one row with the bookmark's object.
    pub(crate) fn write_bookmark(&self, revision: u64, object: &[u8], out: &mut Vec<u8>) {
        self.write_before_rows(revision, out);
        self.write_bare_row(object, out);
        out.extend_from_slice(b"]}");
    }

    fn write_before_rows(&self, revision: u64, out: &mut Vec<u8>) {
        let mut metadata = br#"{"resourceVersion":"#.to_vec();
        quoted_number(revision, &mut metadata);
        metadata.push(b'}');
        self.write_head(&metadata, out);
    }

    /// Appends the table up to its first row; the caller then writes the rows and `]}`. `metadata` is the encoded
    /// metadata of the table itself.
    pub(crate) fn write_head(&self, metadata: &[u8], out: &mut Vec<u8>) {
        out.reserve(self.definitions.len() + metadata.len() + 96);
        out.extend_from_slice(br#"{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":"#);
        out.extend_from_slice(metadata);
        out.extend_from_slice(br#","columnDefinitions":"#);
        out.extend_from_slice(&self.definitions);
        out.extend_from_slice(br#","rows":["#);
    }

    /// Appends the row of an object.
    pub(crate) fn write_row(&self, object: &Object<'_>, revision: u64, included: Included, out: &mut Vec<u8>) {
        let text = self.scanned_text(object);
        let places = self.places(text);
        let value = |at: usize| places[at].clone().map(|place| &text[place]);
        out.extend_from_slice(br#"{"cells":["#);
        quoted(object.identity.name, out);
        let now = SystemTime::now();
        for (at, shown) in self.columns.iter().enumerate() {
            out.push(b',');
            shown.write(value(DECLARED_AT + at), object, revision, now, out);
        }
        out.push(b',');
        match value(CREATED_AT) {
            Some(created) if created != b"null" => CellKind::Date.write(Some(created), object, revision, now, out),
            _ => quoted(UNKNOWN, out),
        }
        out.extend_from_slice(br#"],"object":"#);
        match included {
            Included::None => out.extend_from_slice(b"null"),
            Included::Metadata => object.write_partial(revision, out),
            Included::Object => object.write(revision, out),
        }
        out.push(b'}');
    }

    /// Appends the row of a bookmark: empty cells and the given object.
    fn write_bare_row(&self, object: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(br#"{"cells":["""#);
        self.columns.iter().for_each(|_| out.extend_from_slice(b",null"));
        out.push(b',');
        quoted(UNKNOWN, out);
        out.extend_from_slice(br#"],"object":"#);
        out.extend_from_slice(object);
        out.push(b'}');
    }

    /// Returns the part of an object to scan: only `metadata` if all columns lie there.
    fn scanned_text<'k>(&self, object: &Object<'k>) -> &'k [u8] {
        if self.only_metadata { &object.value[object.layout.metadata()] } else { object.value }
    }

    fn places(&self, text: &[u8]) -> ValueRanges {
        let mut places = vec![None; DECLARED_AT + self.columns.len()];
        let tree = match &self.root.members[..] {
            [(_, metadata)] if self.only_metadata => metadata,
            _ => &self.root,
        };
        // Cannot fail: an object with a layout is valid JSON. An empty text, without metadata, leaves all places unset.
        let _ = tree.walk(&mut JsonScan::new(text), &mut places);
        places
    }
}

impl PointerTree {
    /// Adds a JSON pointer (RFC 6901), which was checked at the declaration.
    fn add(&mut self, pointer: &str, number: usize) {
        let mut tree = self;
        for segment in pointer.split('/').skip(1) {
            let name = segment.replace("~1", "/").replace("~0", "~");
            let at = tree.members.iter().position(|(member, _)| *member == name).unwrap_or_else(|| {
                tree.members.push((name, PointerTree::default()));
                tree.members.len() - 1
            });
            tree = &mut tree.members[at].1;
        }
        tree.ends.push(number);
    }

    /// Scans the next value and records the places of the columns inside it.
    fn walk(&self, scan: &mut JsonScan<'_>, places: &mut ValueRanges) -> Option<()> {
        // The last of repeated members counts, so places inside an earlier one are discarded.
        self.clear(places);
        let first = scan.peek()?;
        let from = scan.place();
        if self.members.is_empty() || !matches!(first, b'{' | b'[') {
            scan.pass()?;
        } else if first == b'{' {
            scan.members(|scan, name| match self.members.iter().find(|(member, _)| name.is(member)) {
                Some((_, below)) => below.walk(scan, places),
                None => scan.pass(),
            })?;
        } else {
            let mut index = 0usize;
            scan.elements(|scan| {
                let mut digits = itoa::Buffer::new();
                let name = digits.format(index);
                index += 1;
                match self.members.iter().find(|(member, _)| member == name) {
                    Some((_, below)) => below.walk(scan, places),
                    None => scan.pass(),
                }
            })?;
        }
        for number in &self.ends {
            places[*number] = Some(from..scan.place());
        }
        Some(())
    }

    fn clear(&self, places: &mut ValueRanges) {
        self.ends.iter().for_each(|number| places[*number] = None);
        self.members.iter().for_each(|(_, below)| below.clear(places));
    }
}

impl CellKind {
    fn of(kind: &str, pointer: &str) -> CellKind {
        match (pointer, kind) {
            ("/metadata/resourceVersion", _) => CellKind::Version,
            ("/metadata/namespace", _) => CellKind::Namespace,
            ("/metadata/name", _) => CellKind::Name,
            (_, "string") => CellKind::Text,
            (_, "integer") => CellKind::Integer,
            (_, "number") => CellKind::Number,
            (_, "boolean") => CellKind::Boolean,
            (_, "date") => CellKind::Date,
            _ => CellKind::Any,
        }
    }

    /// Appends the cell of a value by the rules of apiextensions-apiserver's table convertor: null for a missing value
    /// or one of another type.
    fn write(self, value: Option<&[u8]>, object: &Object<'_>, revision: u64, now: SystemTime, out: &mut Vec<u8>) {
        match (self, value) {
            (CellKind::Version, _) => return quoted_number(revision, out),
            (CellKind::Name, _) => return quoted(object.identity.name, out),
            (CellKind::Namespace, _) => match object.identity.namespace {
                Some(namespace) => return quoted(namespace, out),
                None => return out.extend_from_slice(b"null"),
            },
            _ => {}
        }
        let Some(value) = value.filter(|value| *value != b"null") else { return out.extend_from_slice(b"null") };
        match (self, value[0]) {
            (CellKind::Any, _) | (CellKind::Text, b'"') | (CellKind::Number, b'-' | b'0'..=b'9') => {
                out.extend_from_slice(value)
            }
            (CellKind::Boolean, b't' | b'f') => out.extend_from_slice(value),
            (CellKind::Integer, b'-' | b'0'..=b'9') => write_integer(value, out),
            (CellKind::Date, b'"') => match serde_json::from_slice::<String>(value) {
                Ok(text) => quoted(&age(&text, now), out),
                Err(_) => out.extend_from_slice(b"null"),
            },
            // A string column shows maps and lists as compact JSON.
            (CellKind::Text, _) => match serde_json::from_slice::<Value>(value) {
                Ok(value) => quoted(&value.to_string(), out),
                Err(_) => out.extend_from_slice(b"null"),
            },
            _ => out.extend_from_slice(b"null"),
        }
    }
}

/// Appends a number without its fraction, or null if it does not fit an i64.
fn write_integer(value: &[u8], out: &mut Vec<u8>) {
    let text = std::str::from_utf8(value).unwrap_or("");
    let number = text.parse::<i64>().ok().or_else(|| {
        let float = text.parse::<f64>().ok()?.trunc();
        // 2^63 is exact as a float; the largest i64 is not.
        (-9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0).contains(&float).then_some(float as i64)
    });
    match number {
        Some(number) => out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes()),
        None => out.extend_from_slice(b"null"),
    }
}

#[cfg(test)]
mod tests;
