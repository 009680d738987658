//! A list in pieces of at most 64 KiB or one item, each produced when it is polled.

use super::body::ListPieces;
use super::source::{ListSource, VISITED};
use crate::catalog::Served;
use crate::frame::{Form, Object};
use crate::json::layout::quoted;
use std::sync::Arc;
use watchcore::KeyValue;

/// Maximum size of a piece that has several items.
pub(crate) const PIECE: usize = 64 << 10;

/// Room for an item's bytes besides key and value: numbers, and a name.
const ADDED: usize = 128;

/// The bytes after the items.
const END: &[u8] = b"]}\n";

/// The format of a list's items.
pub(crate) trait ListItems: Send + 'static {
    /// Returns a closure that appends the item of a key-value; `None` if the key-value is not an item of the list.
    fn item(&self, kv: &KeyValue) -> Option<impl FnOnce(&mut Vec<u8>)>;
}

/// A list being encoded.
pub(crate) struct Pieces<I = ObjectItems> {
    items: I,
    source: ListSource,
    /// The bytes before the items.
    head: Vec<u8>,
    step: Step,
    /// Maximum size of a piece.
    size: usize,
    made: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Head,
    Items,
    Over,
}

/// The objects of a resource in a form.
pub(crate) struct ObjectItems {
    served: Arc<Served>,
    form: Form,
}

impl ListItems for ObjectItems {
    fn item(&self, kv: &KeyValue) -> Option<impl FnOnce(&mut Vec<u8>)> {
        let ObjectItems { served, form } = self;
        let object = Object::or_report(served, kv)?;
        Some(move |out: &mut Vec<u8>| match *form {
            Form::Json => object.write(kv.mod_revision(), out),
            Form::Metadata => object.write_partial(kv.mod_revision(), out),
            Form::Table(included) => served.table.write_row(&object, kv.mod_revision(), included, out),
        })
    }
}

impl Pieces {
    /// Creates the list of a resource's objects.
    pub(super) fn new(served: Arc<Served>, form: Form, source: ListSource, size: usize) -> Pieces {
        let metadata = source.metadata();
        let mut head = Vec::new();
        let resource = &served.resource;
        let (kind, version) = match form {
            Form::Json => (format!("{}List", resource.kind), resource.api_version()),
            _ => ("PartialObjectMetadataList".to_owned(), "meta.k8s.io/v1".to_owned()),
        };
        if let Form::Table(_) = form {
            served.table.write_head(&metadata, &mut head);
        } else {
            for (member, text) in [(&b"{\"kind\":"[..], &kind), (b",\"apiVersion\":", &version)] {
                head.extend_from_slice(member);
                quoted(text, &mut head);
            }
            head.extend_from_slice(b",\"metadata\":");
            head.extend_from_slice(&metadata);
            head.extend_from_slice(b",\"items\":[");
        }
        Pieces::of(ObjectItems { served, form }, source, head, size)
    }
}

impl<I: ListItems> Pieces<I> {
    /// Creates a list of any items after a head, in pieces of at most `size` bytes.
    pub(crate) fn of(items: I, source: ListSource, head: Vec<u8>, size: usize) -> Pieces<I> {
        Pieces { items, source, head, step: Step::Head, size, made: 0 }
    }
}

impl<I: ListItems> ListPieces for Pieces<I> {
    fn is_over(&self) -> bool {
        self.step == Step::Over
    }

    fn made(&self) -> usize {
        self.made
    }

    /// Returns an empty piece if the visited keys contained no item of the list.
    fn next(&mut self) -> Vec<u8> {
        let mut out = match self.step {
            Step::Over => return Vec::new(),
            Step::Head => std::mem::take(&mut self.head),
            Step::Items => Vec::new(),
        };
        self.step = Step::Items;
        let Pieces { items, source, size, made, .. } = self;
        // Any piece may turn out to be the last, and must have room for the end.
        let size = *size - END.len();
        let (mut visited, mut shown) = (0, 0);
        let more = source.visit(|kv| {
            let room = kv.key().len() + kv.value().map_or(0, <[u8]>::len) + ADDED;
            if visited == VISITED || (shown > 0 && out.len() + room > size) {
                return false;
            }
            visited += 1;
            let Some(write) = items.item(kv) else { return true };
            let before = out.len();
            if out.capacity() < size {
                out.reserve(size.max(room));
            }
            if *made + shown > 0 {
                out.push(b',');
            }
            write(&mut out);
            // Escapes may make the item longer than its estimate; it then goes into the next piece.
            if shown > 0 && out.len() > size {
                out.truncate(before);
                return false;
            }
            shown += 1;
            true
        });
        *made += shown;
        if !more {
            out.extend_from_slice(END);
            self.step = Step::Over;
        }
        out
    }
}
