//! The pages of a list, put together.

#![forbid(unsafe_code)]

use super::source::{Entry, ListPage};
use crate::event::Status;
use std::collections::HashSet;

/// Pages without an entry that may follow each other: a server that filters has some.
const EMPTY: usize = 1000;

/// What was listed so far.
#[derive(Default)]
pub(super) struct ListedPages {
    pub(super) revision: u64,
    pub(super) entries: Vec<Entry>,
    /// Where the pages began: each place once, or the list has no end.
    tokens: HashSet<String>,
    /// Pages without an entry, since the last one that had some.
    empty: usize,
}

impl ListedPages {
    /// Adds a page: where the next one begins, or `None` behind the last. An error where the pages have no end, or are not
    /// of one state: then the changes between two of them would be missing.
    pub(super) fn add(&mut self, page: ListPage) -> Result<Option<String>, Status> {
        // A page that does not say its revision has that of the others.
        if page.revision != 0 {
            if self.revision != 0 && self.revision != page.revision {
                let (first, other) = (self.revision, page.revision);
                return Err(Status::new(
                    500,
                    format!("the pages of a list are of several revisions: {first}, {other}"),
                ));
            }
            self.revision = page.revision;
        }
        self.empty = if page.entries.is_empty() { self.empty + 1 } else { 0 };
        self.entries.extend(page.entries);
        let Some(token) = page.continue_token else { return Ok(None) };
        if self.empty == EMPTY {
            return Err(Status::new(500, format!("{EMPTY} pages of a list have no entry, and more are to come")));
        }
        if !self.tokens.insert(token.clone()) {
            return Err(Status::new(500, "the pages of a list have no end: a continue token came twice"));
        }
        Ok(Some(token))
    }
}
