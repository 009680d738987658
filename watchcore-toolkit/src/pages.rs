//! Combines the pages of a list.

#![forbid(unsafe_code)]

use crate::event::Status;
use crate::machine::Input;
use crate::source::{ListAt, ListPage, ListRequest};
use std::collections::HashSet;
use watchcore::Position;

/// The default number of objects per page.
pub(crate) const PAGE: usize = 500;
/// How many pages without an object may follow each other: a server that filters returns some.
const EMPTY: usize = 1000;

/// The objects listed so far, and the request for the next page.
pub(crate) struct ListedPages<O> {
    pub(crate) request: ListRequest,
    pub(crate) listed: ListPage<O>,
    /// The tokens so far: a token that comes twice would make the list endless.
    tokens: HashSet<String>,
    /// Pages without an object since the last page with objects.
    empty: usize,
}

impl<O> ListedPages<O> {
    pub(crate) fn new(at: ListAt, limit: usize) -> ListedPages<O> {
        let request = ListRequest { at, limit, continue_token: None };
        ListedPages { request, listed: ListPage::new(Position::default(), []), tokens: HashSet::new(), empty: 0 }
    }

    /// Takes the answer to the request. Returns whether there are more pages.
    pub(crate) fn take(&mut self, answer: Result<ListPage<O>, Status>) -> Result<bool, Input> {
        match answer {
            Ok(page) => self.add(page).map_err(Input::BrokenPages),
            // The state of the first page is gone.
            Err(status) if self.request.continue_token.is_some() && status.is_gone() => Err(Input::BrokenPages(status)),
            Err(status) => Err(Input::Failed(status)),
        }
    }

    /// Adds a page. An error if the pages do not end, or belong to several states: then changes
    /// between two of them would be missing.
    fn add(&mut self, page: ListPage<O>) -> Result<bool, Status> {
        let listed = &mut self.listed;
        // A page without a position has that of the others.
        if page.position != Position::default() {
            if listed.position != Position::default() && listed.position != page.position {
                let (first, other) = (listed.position.revision, page.position.revision);
                return Err(Status::new(
                    500,
                    format!("the pages of a list are of several revisions: {first}, {other}"),
                ));
            }
            listed.position = page.position;
        }
        self.empty = if page.objects.is_empty() { self.empty + 1 } else { 0 };
        listed.objects.extend(page.objects);
        listed.refused.extend(page.refused);
        let Some(token) = page.continue_token else { return Ok(false) };
        if self.empty == EMPTY {
            return Err(Status::new(500, format!("{EMPTY} pages of a list have no entry, and more are to come")));
        }
        if !self.tokens.insert(token.clone()) {
            return Err(Status::new(500, "the pages of a list have no end: a continue token came twice"));
        }
        self.request.continue_token = Some(token);
        Ok(true)
    }

    /// Returns the whole list; an error if no watch can start after it. Only an empty first state may have no revision.
    pub(crate) fn into_listed(self, is_first: bool) -> Result<ListPage<O>, Input> {
        let listed = self.listed;
        if listed.position != Position::default() || (is_first && listed.objects.is_empty()) {
            return Ok(listed);
        }
        Err(Input::Failed(Status::new(500, "the list has no revision: a watch cannot begin behind it")))
    }
}
