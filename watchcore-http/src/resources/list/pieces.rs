//! A list in pieces: each is made when it is asked for, of at most 64 KiB or one object.

use super::body::ListPieces;
use crate::catalog::Served;
use crate::frame::{Form, Object};
use crate::json::layout::{quoted, quoted_number};
use crate::request::Selection;
use std::sync::Arc;
use watchcore::{KeyValue, Page, Range, Result, Snapshot};

/// At most so much is made at a time, where it is not one object.
pub(crate) const PIECE: usize = 64 << 10;

/// Keys that are visited at a time, whether they are objects of the list or not.
const VISITED: usize = 1024;

/// Room for what goes into an object beside its value: its revision, and a name.
const ADDED: usize = 128;

/// Where the objects of a list come from. It cannot fail once it stands: what a client got of a list is part of a whole.
pub(super) enum ListSource {
    Walk(Box<Walk>),
    /// A page of the core, which has its objects counted.
    Page {
        page: Page,
        next: usize,
    },
}

/// The newest state, which is walked.
pub(super) struct Walk {
    snapshot: Snapshot,
    selection: Selection,
    /// The first key that was not visited.
    next: Vec<u8>,
}

/// A list on its way into bytes.
pub(super) struct Pieces {
    served: Arc<Served>,
    form: Form,
    source: ListSource,
    /// What stands before the objects.
    head: Vec<u8>,
    step: Step,
    /// An object went out: the next one stands behind a comma.
    comma: bool,
    /// How many bytes a piece has at most.
    size: usize,
    made: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Head,
    Objects,
    Over,
}

impl ListSource {
    /// A walk of what a selection has in a snapshot.
    ///
    /// # Errors
    /// INVALID_ARGUMENT where the selection names what the cache does not declare.
    pub(super) fn walk(snapshot: Snapshot, selection: Selection) -> Result<ListSource> {
        snapshot.filtered(&selection.filter).map(drop)?;
        Ok(ListSource::Walk(Box::new(Walk { snapshot, selection, next: Vec::new() })))
    }

    pub(super) fn page(page: Page) -> ListSource {
        ListSource::Page { page, next: 0 }
    }

    /// The metadata of the list: its revision, and where the next page begins. How many objects remain is only known
    /// where every key of the range is asked for; a page counts none otherwise.
    fn metadata(&self) -> Vec<u8> {
        let (revision, page) = match self {
            ListSource::Walk(walk) => (walk.snapshot.revision(), None),
            ListSource::Page { page, .. } => (page.revision(), Some(page)),
        };
        let mut out = br#"{"resourceVersion":"#.to_vec();
        quoted_number(revision, &mut out);
        if let Some((page, token)) = page.and_then(|page| page.continue_token().map(|token| (page, token))) {
            out.extend_from_slice(br#","continue":"#);
            quoted(token, &mut out);
            if page.remaining() > 0 {
                out.extend_from_slice(br#","remainingItemCount":"#);
                out.extend_from_slice(itoa::Buffer::new().format(page.remaining()).as_bytes());
            }
        }
        out.push(b'}');
        out
    }

    /// Gives the next key-values to `take`. The one that it refuses is the next one again. `false`: there is none left.
    fn visit(&mut self, mut take: impl FnMut(&KeyValue) -> bool) -> bool {
        match self {
            ListSource::Page { page, next } => {
                while let Some(kv) = page.get(*next) {
                    if !take(kv) {
                        return true;
                    }
                    *next += 1;
                }
                false
            }
            ListSource::Walk(walk) => walk.visit(take),
        }
    }
}

impl Walk {
    fn visit(&mut self, mut take: impl FnMut(&KeyValue) -> bool) -> bool {
        let end = self.end_of_visit();
        let piece = Range::between(&self.next, end.as_deref().unwrap_or_default());
        let Ok(found) = self.snapshot.filtered(&self.selection.filter.clone().range(piece)) else {
            return false; // The same filter was accepted when the walk began.
        };
        for kv in found {
            if !take(&kv) {
                self.next = kv.key().to_vec();
                return true;
            }
        }
        end.map(|end| self.next = end).is_some()
    }

    /// The key at which a visit ends, so that it is bounded also where hardly anything matches; `None`: at the end. A
    /// visit of all keys is bounded by what it takes.
    fn end_of_visit(&self) -> Option<Vec<u8>> {
        if self.selection.only_range {
            return None;
        }
        let rest = self.selection.range.and(&Range::between(&self.next, ""));
        self.snapshot.range(&rest).nth(VISITED).map(|kv| kv.key().to_vec())
    }
}

impl Pieces {
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
        Pieces { served, form, source, head, step: Step::Head, comma: false, size, made: 0 }
    }
}

impl ListPieces for Pieces {
    fn is_over(&self) -> bool {
        self.step == Step::Over
    }

    fn made(&self) -> usize {
        self.made
    }

    /// It may be empty: so many keys were visited, and none was an object of the list.
    fn next(&mut self) -> Vec<u8> {
        let mut out = match self.step {
            Step::Over => return Vec::new(),
            Step::Head => std::mem::take(&mut self.head),
            Step::Objects => Vec::new(),
        };
        self.step = Step::Objects;
        let Pieces { served, form, source, comma, made, .. } = self;
        let (size, mut visited, mut objects) = (self.size, 0, 0);
        let more = source.visit(|kv| {
            let room = kv.value().map_or(0, <[u8]>::len) + ADDED;
            if visited == VISITED || (objects > 0 && out.len() + room > size) {
                return false;
            }
            visited += 1;
            let Some(object) = Object::or_report(served, kv) else { return true };
            if out.capacity() < size {
                out.reserve(size.max(room));
            }
            if std::mem::replace(comma, true) {
                out.push(b',');
            }
            match *form {
                Form::Json => object.write(kv.mod_revision(), &mut out),
                Form::Metadata => object.write_partial(kv.mod_revision(), &mut out),
                Form::Table(included) => served.table.write_row(&object, kv.mod_revision(), included, &mut out),
            }
            objects += 1;
            true
        });
        *made += objects;
        if !more {
            out.extend_from_slice(b"]}\n");
            self.step = Step::Over;
        }
        out
    }
}
