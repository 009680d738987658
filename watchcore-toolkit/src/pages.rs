//! The pages of a list, put together.

#![forbid(unsafe_code)]

use crate::event::Status;
use crate::machine::Input;
use crate::source::{ListAt, ListPage, ListRequest};
use std::collections::HashSet;
use watchcore::Position;

/// Objects a page, where nothing else is said.
pub(crate) const PAGE: usize = 500;
/// Pages without an object that may follow each other: a server that filters has some.
const EMPTY: usize = 1000;

/// What was listed so far, and the request for what follows.
pub(crate) struct ListedPages<O> {
    pub(crate) request: ListRequest,
    pub(crate) listed: ListPage<O>,
    /// Where the pages began: each place once, or the list has no end.
    tokens: HashSet<String>,
    /// Pages without an object, since the last one that had some.
    empty: usize,
}

impl<O> ListedPages<O> {
    pub(crate) fn new(at: ListAt, limit: usize) -> ListedPages<O> {
        let request = ListRequest { at, limit, continue_token: None };
        ListedPages { request, listed: ListPage::new(Position::default(), []), tokens: HashSet::new(), empty: 0 }
    }

    /// Takes the answer to the request. True: there is more to ask for.
    pub(crate) fn take(&mut self, answer: Result<ListPage<O>, Status>) -> Result<bool, Input> {
        match answer {
            Ok(page) => self.add(page).map_err(Input::BrokenPages),
            // The state of the first page is gone.
            Err(status) if self.request.continue_token.is_some() && status.is_gone() => Err(Input::BrokenPages(status)),
            Err(status) => Err(Input::Failed(status)),
        }
    }

    /// An error where the pages have no end, or are not of one state: then the changes between two of them would be missing.
    fn add(&mut self, page: ListPage<O>) -> Result<bool, Status> {
        let listed = &mut self.listed;
        // A page that does not say its position has that of the others.
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

    /// The whole list; an error where a watch cannot begin behind it. Only an empty state at the beginning has no revision.
    pub(crate) fn into_listed(self, is_first: bool) -> Result<ListPage<O>, Input> {
        let listed = self.listed;
        if listed.position != Position::default() || (is_first && listed.objects.is_empty()) {
            return Ok(listed);
        }
        Err(Input::Failed(Status::new(500, "the list has no revision: a watch cannot begin behind it")))
    }
}
